//! Finds credentials that were written into a policy text: it is kept for ever, shown and compared
//! (contract V-3). What is found is not repeated.

use super::reader::Reader;
use crate::diagnostic::Kind;
use crate::screen;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Looks through every text of a table, however deep.
pub(super) fn find(reader: &Reader<'_>, table: &DeTable<'_>) {
    for (key, value) in table {
        // Who reads the URL of a proxy tells more of what is wrong with it.
        if key.get_ref() != "url" {
            look(reader, key.get_ref(), value);
        }
    }
}

fn look(reader: &Reader<'_>, key: &str, value: &Spanned<DeValue<'_>>) {
    match value.get_ref() {
        DeValue::String(text) if screen::has_form_of_credential(text.as_bytes()) => {
            let message = format!("`{key}`: this has the form of a secret itself");
            let hint = "put it into the vault (`affiant secret set NAME`) and write NAME; a name may \
                        not look like this";
            let (place, hint) = (reader.place(value.span().start), Some(hint.to_owned()));
            reader.find(Kind::PastedSecret, Some(key), place, message, hint);
        }
        DeValue::Table(table) => find(reader, table),
        DeValue::Array(values) => values.iter().for_each(|value| look(reader, key, value)),
        DeValue::String(_)
        | DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    fn findings(text: &str) -> Vec<String> {
        let text = format!("[[credential]]\nid = \"c\"\n{text}\n");
        let found = Policy::check(&text, "p").err().unwrap_or_default();
        found.iter().map(ToString::to_string).collect()
    }

    /// V-3: a secret that is pasted where a name belongs, or into a URL, an argument or a claim, is
    /// refused at its place and not repeated.
    #[test]
    fn v_3_pasted_secrets_are_refused_unseen() {
        const CANARY: &str = "sk-live-AKIAverysecretvalue123456";
        let oauth2 = "inject = \"oauth2\"\ngrant = \"client_credentials\"\nclient_id = \"a\"\n";
        for (text, place) in [
            (format!("secret = \"{CANARY}\"\ninject = \"bearer\""), "p:3:10: `secret`: "),
            (
                format!("inject = \"bearer\"\nsecret = {{ exec = [\"get\", \"--key={CANARY}\"] }}"),
                "p:4:27: `exec`: ",
            ),
            (format!("inject = \"bearer\"\nsecret = \"exec:get {CANARY}\""), "p:4:10: `secret`: "),
            (
                format!("{oauth2}secret = \"s\"\ntoken_url = \"https://u:{CANARY}@id.test/t\""),
                "p:7:13: `token_url`: ",
            ),
            (
                format!(
                    "{oauth2}secret = \"s\"\ntoken_url = \"https://id.test/t\"\n\
                     params = {{ key = \"{CANARY}\" }}"
                ),
                "p:8:18: `key`: ",
            ),
        ] {
            let found = findings(&text);
            assert!(found.iter().any(|finding| finding.starts_with(place)), "{text}: {found:?}");
            assert!(!found.concat().contains("verysecret"), "{found:?}");
        }
        for text in [
            "secret = \"sk\"\ninject = \"bearer\"",
            "secret = \"openai-production-key-of-the-team\"\ninject = \"bearer\"",
            "secret = \"s\"\ninject = \"header\"\nname = \"A\"\nformat = \"Bearer {secret}\"",
            "secret = \"s\"\ninject = \"placeholder\"\nplaceholder = \"affiant_ph_openai-key-of-the-team\"",
        ] {
            assert_eq!(findings(text), Vec::<String>::new(), "{text}");
        }
    }
}
