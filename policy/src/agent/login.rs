//! Who calls: the book of all agents, and what a token or a key is held against.

use super::Record;
use crate::document::value;
use crate::handle::now_ms;
use crate::store::{self, Store};
use crate::{Policy, seal};
use std::collections::HashMap;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// All agents, ready for authentication.
#[derive(Default)]
pub(crate) struct Book {
    key: Zeroizing<[u8; 32]>,
    agents: HashMap<String, Entry>,
    by_hash: HashMap<Vec<u8>, Proof>,
}

struct Entry {
    /// Hash and end of every token.
    tokens: Vec<(Vec<u8>, u64)>,
    token_set_at_ms: u64,
    expires_at_ms: u64,
    keys: Vec<String>,
}

struct Proof {
    agent: String,
    expires_at_ms: u64,
}

impl Book {
    /// Reads all agents.
    pub(crate) fn load(store: &Store, txn: &heed::RoTxn<'_>) -> Result<Self, store::Error> {
        let key = store.bytes(&store.meta, txn, "agent-key")?.map(Zeroizing::new);
        let key = key.and_then(|bytes| bytes.as_slice().try_into().ok());
        let key = Zeroizing::new(key.ok_or(store::Error::Damaged("the key of token hashes"))?);
        let mut book = Self { key, ..Self::default() };
        for (name, record) in store.records::<Record>(&store.agents, txn, "an agent")? {
            let expires_at_ms = record.expires_at_ms().unwrap_or(u64::MAX);
            let own = (record.token_hash.as_str(), expires_at_ms);
            let sessions = record.sessions.iter().map(|s| (s.token_hash.as_str(), s.expires_at_ms));
            let mut tokens = Vec::new();
            for (hash, end) in std::iter::once(own).chain(sessions) {
                let hash = seal::decode(hash).ok_or(store::Error::Damaged("an agent"))?;
                let proof = Proof { agent: name.clone(), expires_at_ms: end };
                book.by_hash.insert(hash.clone(), proof);
                tokens.push((hash, end));
            }
            let Record { token_set_at_ms, keys, .. } = record;
            book.agents.insert(name, Entry { tokens, token_set_at_ms, expires_at_ms, keys });
        }
        Ok(book)
    }

    /// The keyed hash of a token.
    pub(super) fn hash(&self, token: &[u8]) -> Vec<u8> {
        seal::mac(&self.key, token).as_ref().to_vec()
    }

    /// Whether there is such an agent, whatever became of its access.
    pub(super) fn has(&self, agent: &str) -> bool {
        self.agents.contains_key(agent)
    }

    fn holds(&self, agent: &str, hash: &[u8]) -> bool {
        let now = now_ms();
        self.agents.get(agent).is_some_and(|entry| {
            entry.tokens.iter().any(|(known, end)| hash.ct_eq(known).into() && now < *end)
        })
    }
}

/// What an agent showed to be let in, without the token: its keyed hash.
#[derive(Clone)]
pub struct ShownToken {
    agent: String,
    hash: Vec<u8>,
}

impl ShownToken {
    /// The agent.
    #[must_use]
    pub fn agent(&self) -> &str {
        &self.agent
    }
}

impl Policy {
    /// Whether the token is this agent's, in constant time.
    #[must_use]
    pub fn authenticate(&self, agent: &str, token: &str) -> bool {
        self.login(agent, token).is_some()
    }

    /// The login of an agent with its token, compared in constant time; none if it is not its token.
    #[must_use]
    pub fn login(&self, agent: &str, token: &str) -> Option<ShownToken> {
        let state = self.state();
        let hash = state.agents.hash(token.as_bytes());
        let holds = state.agents.holds(agent, &hash);
        holds.then(|| ShownToken { agent: agent.to_owned(), hash })
    }

    /// The login with a token alone.
    #[must_use]
    pub fn login_by_token(&self, token: &str) -> Option<ShownToken> {
        let state = self.state();
        // What is looked up is a keyed hash: its timing tells nothing that helps to find a token.
        let hash = state.agents.hash(token.as_bytes());
        let proof = state.agents.by_hash.get(&hash)?;
        let agent = (now_ms() < proof.expires_at_ms).then(|| proof.agent.clone())?;
        Some(ShownToken { agent, hash })
    }

    /// Whether a login would be let in again: policy still knows agent and token. Cheap enough to ask
    /// for each request.
    #[must_use]
    pub fn knows(&self, login: &ShownToken) -> bool {
        self.state().agents.holds(&login.agent, &login.hash)
    }

    /// Whether there is such an agent, and its access has not ended. For what outlives its login, and
    /// for logins without a token.
    #[must_use]
    pub fn is_current(&self, name: &str) -> bool {
        let state = self.state();
        state.agents.agents.get(name).is_some_and(|entry| now_ms() < entry.expires_at_ms)
    }

    /// Whether a login that was made under the token set at that time still holds: the agent is there,
    /// its token is still that one, and its access has not ended. Cheap enough to ask before every byte
    /// that is passed on.
    #[must_use]
    pub fn login_holds(&self, name: &str, token_set_at_ms: u64) -> bool {
        let state = self.state();
        state.agents.agents.get(name).is_some_and(|entry| {
            entry.token_set_at_ms == token_set_at_ms && now_ms() < entry.expires_at_ms
        })
    }

    /// Whether the agent of that name has had its token since then: what was asked for before, another
    /// one of that name asked for, or a login that is over.
    #[must_use]
    pub fn asked(&self, name: &str, at_ms: u64) -> bool {
        let state = self.state();
        state.agents.agents.get(name).is_some_and(|entry| entry.token_set_at_ms <= at_ms)
    }

    /// The agent whose token this is.
    #[must_use]
    pub fn agent_by_token(&self, token: &str) -> Option<String> {
        self.login_by_token(token).map(|shown| shown.agent)
    }

    /// Whether the SSH public key (`algorithm base64`, a comment may follow) is registered for the
    /// agent.
    #[must_use]
    pub fn authenticate_key(&self, agent: &str, key: &str) -> bool {
        let Ok(key) = value::public_key(key) else { return false };
        let state = self.state();
        let registered = state.agents.agents.get(agent).is_some_and(|e| e.keys.contains(&key));
        registered && self.is_current(agent)
    }
}
