//! Whether a name says that what it names is a credential.

/// What a name says of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing.
    No,
    /// It is a credential.
    Yes,
    /// It is one unless it is a number: `tokens` may be counted.
    UnlessNumber,
}

impl Kind {
    /// Whether a value under such a name is hidden.
    pub(super) fn hides(self, value: &[u8]) -> bool {
        match self {
            Self::No => false,
            Self::Yes => !value.is_empty(),
            Self::UnlessNumber => !value.iter().all(|c| c.is_ascii_digit() || *c == b'.'),
        }
    }
}

/// Words that say so alone.
const WORDS: &[&str] = &[
    "accesskey",
    "accesstoken",
    "apikey",
    "apitoken",
    "assertion",
    "auth",
    "authorization",
    "authtoken",
    "bearer",
    "clientsecret",
    "cookie",
    "credential",
    "credentials",
    "idtoken",
    "jwt",
    "otp",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "pin",
    "privatekey",
    "pwd",
    "refreshtoken",
    "secret",
    "secretkey",
    "secrets",
    "sessionid",
    "sig",
    "signature",
];

/// Words in front of `key` or `keys` that make it a secret one.
const KEYS: &[&str] = &[
    "access",
    "account",
    "api",
    "app",
    "auth",
    "encryption",
    "master",
    "private",
    "session",
    "shared",
    "signing",
    "ssh",
    "storage",
    "subscription",
];

/// Words in front of `token` that make it a place in a list or the like.
const PLACES: &[&str] =
    &["cancellation", "continuation", "next", "page", "pagination", "resume", "sync", "watch"];

/// Last words of names that tell of a credential and do not hold it.
const ABOUT: &[&str] = &[
    "action",
    "address",
    "amount",
    "balance",
    "command",
    "count",
    "currency",
    "length",
    "limit",
    "name",
    "policy",
    "price",
    "recipient",
    "status",
    "symbol",
    "type",
    "version",
];

/// Judges a name of a field, parameter, key, variable or option; it may be percent-encoded.
pub(super) fn is_credential(name: &[u8]) -> Kind {
    let decoded = crate::recipe::encode::decoded(name);
    let words = words(&decoded);
    if words.last().is_some_and(|last| ABOUT.contains(&last.as_str())) {
        return Kind::No;
    }
    let mut kind = Kind::No;
    for (at, word) in words.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| words.get(at)).map_or("", String::as_str);
        let found = match word.as_str() {
            "key" | "keys" if KEYS.contains(&before) => Kind::Yes,
            "id" if before == "session" => Kind::Yes,
            "token" if !PLACES.contains(&before) => Kind::Yes,
            "tokens" if !PLACES.contains(&before) => Kind::UnlessNumber,
            word if WORDS.contains(&word) => Kind::Yes,
            _ => Kind::No,
        };
        match found {
            Kind::Yes => return Kind::Yes,
            Kind::UnlessNumber => kind = found,
            Kind::No => {}
        }
    }
    kind
}

/// The words of a name in lower case: `clientSecret`, `client-secret` and `CLIENT_SECRET` are two.
fn words(name: &[u8]) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower_before = false;
    for &byte in name {
        let begins = byte.is_ascii_uppercase() && lower_before;
        lower_before = byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if begins || !byte.is_ascii_alphanumeric() {
            words.push(String::new());
        }
        if byte.is_ascii_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.push(char::from(byte.to_ascii_lowercase()));
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_credentials_are_known_in_every_spelling() {
        for name in [
            "password",
            "PGPASSWORD_PASSWD",
            "clientSecret",
            "client_secret",
            "CLIENT-SECRET",
            "X-Api-Key",
            "api_key",
            "apikey",
            "user[password]",
            "p%61ssword",
            "x-amz-security-token",
            "X-Amz-Signature",
            "X-Vault-Token",
            "access_token",
            "private-key",
            "sessionId",
            "Set-Cookie",
            "sig",
        ] {
            assert_eq!(is_credential(name.as_bytes()), Kind::Yes, "{name}");
        }
        for name in ["token_amount", "tokenType", "X-Auth-Command", "password[length]"] {
            assert_eq!(is_credential(name.as_bytes()), Kind::No, "{name}");
        }
        for name in ["next_page_token", "pageToken", "monkey", "key", "author", "compass", "spin"] {
            assert_eq!(is_credential(name.as_bytes()), Kind::No, "{name}");
        }
        assert_eq!(is_credential(b"max_tokens"), Kind::UnlessNumber);
    }
}
