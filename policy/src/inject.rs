//! How a secret is attached to a request.

use crate::Secret;
use crate::credential::{self, Error};
use crate::recipe::Recipe;
use crate::token::{Form, Token};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// A mode of injection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inject {
    /// `Authorization: Bearer <secret>`.
    Bearer,
    /// `Authorization: Basic`, the secret being `user:password`.
    Basic,
    /// A header of its own.
    Header {
        /// The field name, lower case.
        name: String,
        /// The value with `{secret}` in it; none: the secret alone.
        format: Option<String>,
    },
    /// A token that a service mints for the secret, in a header.
    Token(Box<Token>),
    /// A client certificate in the TLS handshake; the secret is its chain and its key as PEM. See
    /// [`Inject::client_certificate`].
    Mtls,
    /// SSH: password.
    Password,
    /// SSH: private key, OpenSSH PEM text.
    SshKey,
    /// SSH: password, given as the answer to every hidden question (keyboard-interactive).
    KeyboardInteractive,
    /// SSH: a user certificate minted per session; the secret is the private key of the user CA.
    SshCertificate,
    /// SSH: a key that an agent holds and signs with; the secret is the path of the agent's socket.
    SshAgent {
        /// Which key, `algorithm base64`; none: the only one.
        public_key: Option<String>,
    },
    /// More than one header: see [`Inject::edits`].
    Recipe(Box<Recipe>),
}

impl Inject {
    /// The mode's name in policy and records.
    #[must_use]
    pub fn mode(&self) -> &str {
        match self {
            Self::Bearer => "bearer",
            Self::Basic => "basic",
            Self::Header { .. } => "header",
            Self::Token(token) => token.from.mode(),
            Self::Mtls => "mtls",
            Self::Password => "password",
            Self::SshKey => "ssh-key",
            Self::KeyboardInteractive => "keyboard-interactive",
            Self::SshCertificate => "ssh-certificate",
            Self::SshAgent { .. } => "ssh-agent",
            Self::Recipe(recipe) => recipe.mode(),
        }
    }

    /// The lower-case name of the header field that the mode sets.
    #[must_use]
    pub fn header_name(&self) -> Option<&str> {
        match self {
            Self::Bearer | Self::Basic => Some("authorization"),
            Self::Header { name, .. } => Some(name),
            Self::Token(token) => Some(&token.name),
            Self::Recipe(recipe) => match recipe.as_ref() {
                Recipe::Sigv4(_) => Some("authorization"),
                Recipe::Jwt(jwt) => Some(&jwt.name),
                Recipe::Query { .. }
                | Recipe::Cookie { .. }
                | Recipe::Placeholder(_)
                | Recipe::Hmac(_) => None,
            },
            Self::Mtls
            | Self::Password
            | Self::SshKey
            | Self::KeyboardInteractive
            | Self::SshCertificate
            | Self::SshAgent { .. } => None,
        }
    }

    /// Builds the header field: lower-case name and value.
    ///
    /// # Errors
    /// [`credential::Error::Unreadable`] when the value can't stand in a header (line ends, NUL) or
    /// lacks the form that the mode needs; [`credential::Error::Unsupported`] for a mode that sets
    /// no header.
    pub fn header(&self, secret: &Secret) -> Result<(String, Secret), credential::Error> {
        let (name, value) = match self {
            Self::Bearer => ("authorization", joined(&[b"Bearer ", secret.expose()])),
            Self::Token(token) => (token.name.as_str(), token_value(&token.form, secret)?),
            Self::Basic => {
                let pair = secret.expose();
                if !pair.contains(&b':') {
                    return Err(Error::Unreadable(
                        "basic needs a secret of the form user:password",
                    ));
                }
                if pair.iter().any(u8::is_ascii_control) {
                    return Err(Error::Unreadable("it holds a control character"));
                }
                let encoded = Zeroizing::new(STANDARD.encode(pair));
                ("authorization", joined(&[b"Basic ", encoded.as_bytes()]))
            }
            Self::Header { name, format } => {
                (name.as_str(), formatted(format.as_deref().unwrap_or("{secret}"), secret)?)
            }
            Self::Mtls => {
                return Err(Error::Unsupported("a client certificate as a header"));
            }
            Self::Password
            | Self::SshKey
            | Self::KeyboardInteractive
            | Self::SshCertificate
            | Self::SshAgent { .. } => {
                return Err(Error::Unsupported("this mode of injection in HTTP"));
            }
            Self::Recipe(_) => {
                return Err(Error::Unsupported("this mode of injection as one header"));
            }
        };
        if secret.is_empty() {
            return Err(Error::Unreadable("it is empty"));
        }
        // RFC 9110 section 5.5: a line end or NUL in a value would begin another field or message.
        let forbidden = |&c: &u8| (c < 0x20 && c != b'\t') || c == 0x7f;
        if value.expose().iter().any(forbidden) {
            return Err(Error::Unreadable("it holds a control character"));
        }
        let blank = |c: Option<&u8>| c.is_some_and(|c| matches!(c, b' ' | b'\t'));
        if blank(value.expose().first()) || blank(value.expose().last()) {
            return Err(Error::Unreadable("it begins or ends with a blank"));
        }
        Ok((name.to_owned(), value))
    }
}

/// A header's value by its format.
fn formatted(format: &str, secret: &Secret) -> Result<Secret, Error> {
    let (before, after) =
        format.split_once("{secret}").ok_or(Error::Unreadable("the format has no place for it"))?;
    Ok(joined(&[before.as_bytes(), secret.expose(), after.as_bytes()]))
}

fn token_value(form: &Form, token: &Secret) -> Result<Secret, Error> {
    match form {
        Form::Format(format) => formatted(format, token),
        Form::Basic(user) => {
            let pair = joined(&[user.as_bytes(), b":", token.expose()]);
            let encoded = Zeroizing::new(STANDARD.encode(pair.expose()));
            Ok(joined(&[b"Basic ", encoded.as_bytes()]))
        }
    }
}

/// Joins parts in one allocation, so that no partial copy stays behind.
fn joined(parts: &[&[u8]]) -> Secret {
    let mut value = Vec::with_capacity(parts.iter().map(|p| p.len()).sum());
    for part in parts {
        value.extend_from_slice(part);
    }
    Secret::new(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(inject: &Inject, secret: &str, expected: Result<(&str, &str), Error>) {
        let made = inject.header(&Secret::from(secret));
        let made = made.map(|(name, value)| (name, value.expose_text().unwrap().to_owned()));
        assert_eq!(made, expected.map(|(n, v)| (n.to_owned(), v.to_owned())), "{inject:?}");
    }

    #[test]
    fn headers_are_built_by_mode() {
        check(&Inject::Bearer, "tok", Ok(("authorization", "Bearer tok")));
        check(
            &Inject::Basic,
            "Aladdin:open sesame",
            Ok(("authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==")),
        );
        let header = |format: Option<&str>| Inject::Header {
            name: "x-api-key".to_owned(),
            format: format.map(str::to_owned),
        };
        check(&header(None), "k", Ok(("x-api-key", "k")));
        check(&header(Some("Token {secret}!")), "k", Ok(("x-api-key", "Token k!")));
        check(&header(Some("{secret}")), "{secret}", Ok(("x-api-key", "{secret}")));
    }

    /// I-1: what can't stand in a header is unreadable, and unknown modes are unsupported.
    #[test]
    fn i_1_bad_values_and_modes_have_their_codes() {
        let control = || Err(Error::Unreadable("it holds a control character"));
        for secret in ["a\r\nX-Evil: 1", "a\nb", "a\0b", "tok\n", "a\u{7f}"] {
            check(&Inject::Bearer, secret, control());
            check(&Inject::Header { name: "x".to_owned(), format: None }, secret, control());
        }
        check(&Inject::Basic, "user:pass\nword", control());
        check(&Inject::Bearer, "", Err(Error::Unreadable("it is empty")));
        check(&Inject::Bearer, "tok ", Err(Error::Unreadable("it begins or ends with a blank")));
        let form = "basic needs a secret of the form user:password";
        check(&Inject::Basic, "nocolon", Err(Error::Unreadable(form)));
        let ssh = Inject::SshKey.header(&Secret::from("x"));
        assert_eq!(ssh.unwrap_err().code().as_str(), "INJECTION_UNSUPPORTED");
    }
}
