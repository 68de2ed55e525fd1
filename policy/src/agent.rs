//! Agents: who may call, and the tokens that prove it.
//!
//! A token has 256 bits of randomness, so a keyed hash (HMAC-SHA256 under a random key of the store)
//! is enough to keep of it, and cheap enough for every request.

mod login;

pub(crate) use login::Book;
pub use login::ShownToken;

use crate::document::value;
use crate::handle::now_ms;
use crate::store;
use crate::{Policy, Secret, seal};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What the store knows of an agent; never its token.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Info {
    /// The name.
    pub name: String,
    /// When it was added, milliseconds since 1970.
    pub added_at_ms: u64,
    /// When its token was last set, milliseconds since 1970.
    pub token_set_at_ms: u64,
    /// When its access ends, milliseconds since 1970; none: never.
    pub expires_at_ms: Option<u64>,
    /// Until when its token from before a rotation works (the overlap), milliseconds since 1970; none:
    /// no such token works.
    pub old_token_until_ms: Option<u64>,
    /// Registered SSH public keys, each `algorithm base64`.
    pub keys: Vec<String>,
}

/// Why a change of agents failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name can't be an agent's name.
    #[error(
        "an agent's name has 1 to 64 letters, digits, '.', '_' or '-', and starts with a letter or digit"
    )]
    Name,
    /// There is such an agent.
    #[error("agent {0:?} exists already; `affiant agent rotate` gives it a new token")]
    Exists(String),
    /// There is no such agent.
    #[error("there is no agent {0:?}")]
    Unknown(String),
    /// Its access ended.
    #[error("the access of agent {0:?} ended; `affiant agent rotate` renews it")]
    Expired(String),
    /// The text is not an OpenSSH public key line.
    #[error("this is not an OpenSSH public key line (`ssh-ed25519 AAAA...`)")]
    Key,
    /// The system gives no randomness.
    #[error("{0}")]
    Random(&'static str),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// What the store keeps of an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    added_at_ms: u64,
    token_set_at_ms: u64,
    /// Base64 of the keyed hash of the token.
    token_hash: String,
    /// How long a token lasts; none: until it is replaced.
    #[serde(default)]
    lasts_ms: Option<u64>,
    #[serde(default)]
    keys: Vec<String>,
    #[serde(default)]
    sessions: Vec<SessionRecord>,
}

impl Record {
    fn expires_at_ms(&self) -> Option<u64> {
        self.lasts_ms.map(|lasts| self.token_set_at_ms.saturating_add(lasts))
    }

    /// Until when the last of the old tokens works.
    fn old_token_until_ms(&self, now: u64) -> Option<u64> {
        let old = self.sessions.iter().filter(|session| session.is_old);
        old.map(|session| session.expires_at_ms).filter(|&until| now < until).max()
    }
}

/// How an agent gets a new token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rotation {
    /// How long the old token, and those of runs, work beside the new one; none: they end at once.
    pub overlap: Option<Duration>,
    /// How long the new token lasts; none: as long as the old one was to last.
    pub lasts: Option<Duration>,
}

/// A token beside the agent's own: of one run, or the one before a rotation.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SessionRecord {
    token_hash: String,
    expires_at_ms: u64,
    /// Whether it was the agent's own, before a rotation.
    #[serde(default)]
    is_old: bool,
}

/// A token that ends with a run ([`Policy::remove_session`]), at the latest after [`SESSION`].
#[derive(Debug)]
pub struct Session {
    /// The agent.
    pub agent: String,
    /// The token.
    pub token: Secret,
}

/// How long a session lasts that nobody ends, because its run was killed.
pub const SESSION: Duration = Duration::from_secs(30 * 24 * 3600);

const TOKEN_HEAD: &str = "afft_";

impl Policy {
    /// Adds an agent; answers its token, which is not kept and can't be shown again.
    ///
    /// # Errors
    /// [`Error`].
    pub fn add_agent(&self, name: &str) -> Result<Secret, Error> {
        self.add_agent_for(name, None)
    }

    /// As [`Policy::add_agent`], with a time after which its access ends.
    ///
    /// # Errors
    /// [`Error`].
    pub fn add_agent_for(&self, name: &str, lasts: Option<Duration>) -> Result<Secret, Error> {
        if !value::is_name(name, 64, b"") {
            return Err(Error::Name);
        }
        let token = fresh_token()?;
        let now = now_ms();
        let record = Record {
            added_at_ms: now,
            token_set_at_ms: now,
            token_hash: self.token_hash(&token),
            lasts_ms: lasts.map(millis),
            keys: Vec::new(),
            sessions: Vec::new(),
        };
        let store = &self.store;
        let mut txn = store.write()?;
        if store.bytes(&store.agents, &txn, name)?.is_some() {
            return Err(Error::Exists(name.to_owned()));
        }
        store.put_record(&store.agents, &mut txn, name, &record)?;
        store.commit(txn)?;
        Ok(token)
    }

    /// Gives an agent a new token; the old one ends at once, and so do its sessions.
    ///
    /// # Errors
    /// [`Error`].
    pub fn rotate_agent(&self, name: &str) -> Result<Secret, Error> {
        self.rotate_agent_with(name, Rotation::default())
    }

    /// As [`Policy::rotate_agent`], with an overlap or another lifetime.
    ///
    /// # Errors
    /// [`Error`].
    pub fn rotate_agent_with(&self, name: &str, rotation: Rotation) -> Result<Secret, Error> {
        let token = fresh_token()?;
        let hash = self.token_hash(&token);
        let now = now_ms();
        let until = rotation.overlap.map_or(now, |overlap| now.saturating_add(millis(overlap)));
        self.change_agent(name, |record| {
            let expires_at_ms = record.expires_at_ms().unwrap_or(u64::MAX);
            let old = std::mem::replace(&mut record.token_hash, hash);
            record.sessions.push(SessionRecord { token_hash: old, expires_at_ms, is_old: true });
            for session in &mut record.sessions {
                session.expires_at_ms = session.expires_at_ms.min(until);
            }
            record.sessions.retain(|session| now < session.expires_at_ms);
            record.token_set_at_ms = now;
            record.lasts_ms = rotation.lasts.map(millis).or(record.lasts_ms);
        })?;
        Ok(token)
    }

    /// Gives an agent a token for one run.
    ///
    /// # Errors
    /// [`Error`].
    pub fn add_session(&self, name: &str) -> Result<Session, Error> {
        let token = fresh_token()?;
        let token_hash = self.token_hash(&token);
        let now = now_ms();
        if self.state().agents.has(name) && !self.is_current(name) {
            return Err(Error::Expired(name.to_owned()));
        }
        self.change_agent(name, |record| {
            record.sessions.retain(|session| now < session.expires_at_ms);
            let latest = record.expires_at_ms().unwrap_or(u64::MAX);
            let expires_at_ms = now.saturating_add(millis(SESSION)).min(latest);
            record.sessions.push(SessionRecord { token_hash, expires_at_ms, is_old: false });
        })?;
        Ok(Session { agent: name.to_owned(), token })
    }

    /// Ends the token of a run. That the agent is gone by now is no failure.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove_session(&self, session: &Session) -> Result<(), Error> {
        let token_hash = self.token_hash(&session.token);
        let removed = self.change_agent(&session.agent, |record| {
            record.sessions.retain(|kept| kept.token_hash != token_hash);
        });
        match removed {
            Err(Error::Unknown(_)) => Ok(()),
            other => other,
        }
    }

    /// Removes an agent.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove_agent(&self, name: &str) -> Result<(), Error> {
        let mut txn = self.store.write()?;
        if !value::is_name(name, 64, b"")
            || !self.store.delete(&self.store.agents, &mut txn, name)?
        {
            return Err(Error::Unknown(name.to_owned()));
        }
        Ok(self.store.commit(txn)?)
    }

    /// Registers an SSH public key line for an agent.
    ///
    /// # Errors
    /// [`Error`].
    pub fn add_agent_key(&self, name: &str, line: &str) -> Result<(), Error> {
        let key = value::public_key(line).map_err(|_| Error::Key)?;
        self.change_agent(name, |record| {
            if !record.keys.contains(&key) {
                record.keys.push(key);
            }
        })
    }

    /// All agents by name.
    ///
    /// # Errors
    /// [`store::Error`].
    pub fn list_agents(&self) -> Result<Vec<Info>, store::Error> {
        let txn = self.store.read()?;
        let records = self.store.records::<Record>(&self.store.agents, &txn, "an agent")?;
        let now = now_ms();
        let info = |(name, record): (String, Record)| Info {
            name,
            added_at_ms: record.added_at_ms,
            token_set_at_ms: record.token_set_at_ms,
            expires_at_ms: record.expires_at_ms(),
            old_token_until_ms: record.old_token_until_ms(now),
            keys: record.keys,
        };
        Ok(records.into_iter().map(info).collect())
    }

    fn token_hash(&self, token: &Secret) -> String {
        seal::encode(&self.state().agents.hash(token.expose()))
    }

    fn change_agent(&self, name: &str, change: impl FnOnce(&mut Record)) -> Result<(), Error> {
        let unknown = || Error::Unknown(name.to_owned());
        if !value::is_name(name, 64, b"") {
            return Err(unknown());
        }
        let store = &self.store;
        let mut txn = store.write()?;
        let record = store.record(&store.agents, &txn, name, "an agent")?;
        let mut record: Record = record.ok_or_else(unknown)?;
        change(&mut record);
        store.put_record(&store.agents, &mut txn, name, &record)?;
        Ok(store.commit(txn)?)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn fresh_token() -> Result<Secret, Error> {
    let random = seal::random_key().map_err(Error::Random)?;
    Ok(Secret::from(format!("{TOKEN_HEAD}{}", URL_SAFE_NO_PAD.encode(*random))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent's access ends with its time, and everything that rests on it; a rotation renews it,
    /// and with an overlap the old token works beside the new one for so long.
    #[test]
    fn tokens_expire_and_rotate_with_an_overlap() {
        let home = tempfile::tempdir().unwrap();
        let policy = Policy::init(home.path(), None).unwrap();
        let works = |token: &Secret| policy.authenticate("a", token.expose_text().unwrap());
        let hour = Some(Duration::from_secs(3600));
        let first = policy.add_agent_for("a", hour).unwrap();
        let info = || policy.list_agents().unwrap().remove(0);
        assert_eq!(info().expires_at_ms, Some(info().token_set_at_ms + 3_600_000));
        let rotation = Rotation { overlap: hour, lasts: None };
        let second = policy.rotate_agent_with("a", rotation).unwrap();
        assert!(works(&first) && works(&second));
        let renewed = info();
        let within = renewed.token_set_at_ms..=renewed.token_set_at_ms + 3_600_000;
        assert!(within.contains(&renewed.old_token_until_ms.unwrap()), "{renewed:?}");
        assert_eq!(policy.agent_by_token(first.expose_text().unwrap()).as_deref(), Some("a"));
        let third = policy.rotate_agent("a").unwrap();
        assert!(!works(&first) && !works(&second) && works(&third));
        assert_eq!(info().old_token_until_ms, None);
        assert_eq!(info().expires_at_ms, Some(info().token_set_at_ms + 3_600_000));
        let key =
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE2h2hmDUO3o+G5OiqVpMTVjIHwuEc0LIVFQmVqJMwZz";
        policy.add_agent_key("a", key).unwrap();
        assert!(policy.authenticate_key("a", key) && policy.is_current("a"));
        let holds = |since| policy.login_holds("a", since);
        let since = info().token_set_at_ms;
        assert!(holds(since) && !holds(since - 1) && !policy.login_holds("b", since));
        let short = Rotation { overlap: None, lasts: Some(Duration::ZERO) };
        let fourth = policy.rotate_agent_with("a", short).unwrap();
        assert!(!holds(info().token_set_at_ms), "its time is over");
        assert!(!works(&fourth) && !policy.authenticate_key("a", key) && !policy.is_current("a"));
        assert_eq!(policy.agent_by_token(fourth.expose_text().unwrap()), None);
        assert!(matches!(policy.add_session("a"), Err(Error::Expired(_))));
        let fifth = policy.rotate_agent_with("a", Rotation { lasts: hour, ..short }).unwrap();
        assert!(works(&fifth) && policy.is_current("a"));
    }

    #[test]
    fn a_session_ends_with_its_run_and_with_the_agents_token() {
        let home = tempfile::tempdir().unwrap();
        let policy = Policy::init(home.path(), None).unwrap();
        let own = policy.add_agent("a").unwrap();
        let own = own.expose_text().unwrap();
        let first = policy.add_session("a").unwrap();
        let second = policy.add_session("a").unwrap();
        assert_eq!(policy.list_agents().unwrap()[0].old_token_until_ms, None, "a run's is not old");
        let (one, two) = (first.token.expose_text().unwrap(), second.token.expose_text().unwrap());
        for token in [own, one, two] {
            assert!(policy.authenticate("a", token));
            assert_eq!(policy.agent_by_token(token).as_deref(), Some("a"));
        }
        policy.remove_session(&first).unwrap();
        assert!(!policy.authenticate("a", one));
        assert_eq!(policy.agent_by_token(one), None);
        assert!(policy.authenticate("a", two));
        policy.rotate_agent("a").unwrap();
        assert!(!policy.authenticate("a", two) && !policy.authenticate("a", own));
        assert!(matches!(policy.add_session("b"), Err(Error::Unknown(_))));
        policy.remove_agent("a").unwrap();
        policy.remove_session(&second).unwrap();
    }
}
