//! What a policy names and this machine does not have: looked for when a policy is checked, so that no
//! call has to find out.

use crate::{Credential, SecretRef, Snapshot};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use std::env;
use std::fs::File;
use std::path::Path;

/// Something that is named and not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// The credential that needs it; none: the whole policy.
    pub credential: Option<String>,
    /// What it is, as a clause.
    pub what: String,
}

impl Snapshot {
    /// Files, programs and variables that the policy names and that are not there, as far as this
    /// process sees: a server may have another environment. What lies in the vault is not looked for.
    #[must_use]
    pub fn absent(&self) -> Vec<Absent> {
        let of = |credential: &Credential| {
            let what = absent(&credential.secret)?;
            Some(Absent { credential: Some(credential.id.clone()), what })
        };
        let trusted = self.trust().iter().filter_map(|trust| {
            let what = without_certificates(&trust.ca_file)?;
            Some(Absent { credential: None, what })
        });
        self.credentials().iter().filter_map(of).chain(trusted).collect()
    }
}

/// Why a file of trusted certificates has none to offer.
fn without_certificates(file: &Path) -> Option<String> {
    let shown = file.display();
    let Ok(content) = std::fs::read(file) else {
        return Some(format!("the certificates in {shown} can't be read"));
    };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content).collect();
    match all {
        Err(_) => Some(format!("what is in {shown} is not PEM text")),
        Ok(all) if all.is_empty() => Some(format!("{shown} holds no certificate")),
        Ok(_) => None,
    }
}

fn absent(source: &SecretRef) -> Option<String> {
    match source {
        SecretRef::Vault(_) => None,
        SecretRef::Env(name) => is_unset(name)
            .then(|| format!("the variable {name} is not set here (a server may have it)")),
        SecretRef::File(path) => {
            File::open(path).is_err().then(|| format!("the file {} can't be read", path.display()))
        }
        SecretRef::Agent(path) => {
            (!path.exists()).then(|| format!("there is no socket {}", path.display()))
        }
        SecretRef::Exec(words) => {
            let program = words.first()?;
            (!is_program(program)).then(|| format!("there is no program {program:?}"))
        }
        SecretRef::Hashicorp(wanted) => {
            let unset = wanted.server.address.is_none() && is_unset("VAULT_ADDR");
            unset.then(|| {
                "neither `address` of [hashicorp] nor VAULT_ADDR says where its store is".to_owned()
            })
        }
    }
}

fn is_unset(name: &str) -> bool {
    env::var_os(name).is_none_or(|value| value.is_empty())
}

fn is_program(name: &str) -> bool {
    if name.contains('/') {
        return Path::new(name).is_file();
    }
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|directory| directory.join(name).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_and_not_there_is_told() {
        let told = |secret: &str| {
            let text = format!(
                "[[credential]]\nid = \"c\"\nsecret = {secret}\ninject = \"bearer\"\n\
                 [[route]]\nname = \"r\"\nmatch = {{ host = \"h.test\" }}\ncredential = \"c\"\n"
            );
            let absent = Snapshot::compile(&text, "p", 0).unwrap().absent();
            assert!(absent.iter().all(|absent| absent.credential.as_deref() == Some("c")));
            absent.into_iter().map(|absent| absent.what).collect::<Vec<_>>().join("; ")
        };
        for (secret, expected) in [
            ("\"name\"", ""),
            ("\"file:/nowhere/at/all\"", "the file /nowhere/at/all can't be read"),
            ("\"file:/etc/passwd\"", ""),
            ("\"exec:nosuchprogram-7f1 a\"", "there is no program \"nosuchprogram-7f1\""),
            ("\"exec:/nowhere/at/all\"", "there is no program \"/nowhere/at/all\""),
            ("{ exec = [\"printf\", \"x\"] }", ""),
            (
                "\"env:AFFIANT_TEST_NEVER_SET\"",
                "the variable AFFIANT_TEST_NEVER_SET is not set here (a server may have it)",
            ),
            ("\"env:PATH\"", ""),
            (
                "\"vault:secret/data/pay#token\"",
                "neither `address` of [hashicorp] nor VAULT_ADDR says where its store is",
            ),
        ] {
            assert_eq!(told(secret), expected, "{secret}");
        }
        let key = tempfile::NamedTempFile::new().unwrap();
        let pem = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        std::fs::write(key.path(), pem).unwrap();
        let key = key.path().to_str().unwrap();
        for (file, what) in [
            ("/nowhere/ca.pem", "the certificates in /nowhere/ca.pem can't be read".to_owned()),
            ("/dev/null", "/dev/null holds no certificate".to_owned()),
            (key, format!("{key} holds no certificate")),
        ] {
            let trust = format!("[[trust]]\nhost = \"h.test\"\nca_file = {file:?}\n");
            let absent = Snapshot::compile(&trust, "p", 0).unwrap().absent();
            assert_eq!(absent, [Absent { credential: None, what }]);
        }
    }
}
