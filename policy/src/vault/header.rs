//! What the store keeps of the vault. Nothing in it opens anything without key or passphrase.

use super::{Error, Key, Mode};
use crate::{Secret, seal};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

const CHECKED: &[u8] = b"affiant vault check 1";
const PASSPHRASE_AAD: &[u8] = b"affiant vault passphrase 1";
const ROOT_AAD: &[u8] = b"affiant vault root 1";

/// What the store keeps of the vault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(super) mode: Mode,
    /// Tells the right master key from others.
    check: String,
    /// The passphrase's parameters.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) passphrase: Option<Passphrase>,
    /// What keys of other parts are derived from, one for each master key that there was, the first
    /// one's first; sealed under the master key in force.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    generations: Vec<String>,
    /// Stores of before generations: the only one, once the master key was changed; before that it
    /// is the master key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    root: Option<String>,
}

/// How the master key follows from a passphrase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Passphrase {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    salt: String,
    /// The master key under the passphrase's key.
    wrapped: String,
}

impl Header {
    /// The header of a vault.
    pub(super) fn new(
        mode: Mode,
        master: &Key,
        passphrase: Option<Passphrase>,
        generations: &[Key],
    ) -> Result<Self, Error> {
        let sealed = |(number, generation): (usize, &Key)| {
            let sealed = seal::seal(master, &generation_aad(number), &**generation);
            sealed.map(|sealed| seal::encode(&sealed)).map_err(Error::Crypto)
        };
        let generations = generations.iter().enumerate().map(sealed).collect::<Result<_, _>>()?;
        Ok(Self { mode, check: check_of(master)?, passphrase, generations, root: None })
    }

    /// What the key is called where several may lie; it tells nothing of the key.
    pub(super) fn name(&self) -> &str {
        self.check.get(..16).unwrap_or(&self.check)
    }

    /// Whether a key is this vault's master key.
    pub(super) fn is_of(&self, master: &Key) -> bool {
        check_of(master).is_ok_and(|check| check.as_bytes().ct_eq(self.check.as_bytes()).into())
    }

    /// Opens the generations with the master key; there is one at least.
    pub(super) fn generations_under(&self, master: &Key) -> Result<Vec<Key>, Error> {
        let open = |aad: &[u8], sealed: &str| -> Result<Key, Error> {
            let opened = seal::decode(sealed).and_then(|sealed| seal::open(master, aad, &sealed));
            let bytes = opened.ok_or(Error::Damaged)?.expose().try_into();
            Ok(Zeroizing::new(bytes.map_err(|_| Error::Damaged)?))
        };
        match (self.generations.as_slice(), &self.root) {
            ([], None) => Ok(vec![master.clone()]),
            ([], Some(root)) => Ok(vec![open(ROOT_AAD, root)?]),
            (sealed, _) => {
                let numbered = sealed.iter().enumerate();
                numbered.map(|(number, sealed)| open(&generation_aad(number), sealed)).collect()
            }
        }
    }
}

/// What a sealed generation is bound to.
fn generation_aad(number: usize) -> Vec<u8> {
    format!("affiant vault generation 1\0{number}").into_bytes()
}

fn check_of(master: &Key) -> Result<String, Error> {
    let key = seal::derive(master, &[b"check"]).map_err(Error::Crypto)?;
    Ok(seal::encode(seal::mac(&key, CHECKED).as_ref()))
}

impl Passphrase {
    /// Wraps a master key by a passphrase.
    pub(super) fn wrap(passphrase: &Secret, master: &Key) -> Result<Self, Error> {
        if passphrase.is_empty() {
            return Err(Error::EmptyPassphrase);
        }
        let salt = seal::random_key().map_err(Error::Crypto)?;
        let mut made = Self {
            memory_kib: 64 * 1024,
            passes: 3,
            lanes: 1,
            salt: seal::encode(&*salt),
            wrapped: String::new(),
        };
        let key = made.key(passphrase)?;
        let sealed = seal::seal(&key, PASSPHRASE_AAD, &**master).map_err(Error::Crypto)?;
        made.wrapped = seal::encode(&sealed);
        Ok(made)
    }

    /// The master key, if the passphrase is the right one.
    pub(super) fn unwrap(&self, passphrase: &Secret) -> Result<Key, Error> {
        let wrapped = seal::decode(&self.wrapped).ok_or(Error::Damaged)?;
        let key = self.key(passphrase)?;
        let opened = seal::open(&key, PASSPHRASE_AAD, &wrapped);
        let opened = opened.ok_or(Error::WrongPassphrase)?;
        Ok(Zeroizing::new(opened.expose().try_into().map_err(|_| Error::Damaged)?))
    }

    /// The key that the passphrase gives. Bounds what a damaged header can make it cost.
    fn key(&self, passphrase: &Secret) -> Result<Key, Error> {
        if self.memory_kib > 4 << 20 || self.passes > 64 || self.lanes > 64 {
            return Err(Error::Damaged);
        }
        let salt = seal::decode(&self.salt).ok_or(Error::Damaged)?;
        let params = argon2::Params::new(self.memory_kib, self.passes, self.lanes, Some(32))
            .map_err(|_| Error::Damaged)?;
        let argon =
            argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        let mut key = Zeroizing::new([0; 32]);
        argon
            .hash_password_into(passphrase.expose(), &salt, &mut *key)
            .map_err(|_| Error::Crypto("argon2id"))?;
        Ok(key)
    }
}
