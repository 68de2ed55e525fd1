//! Tokens that services mint: fetched by one call at a time, kept while they are good.
//!
//! ```text
//! call ─► token at hand and good? ─ yes ─► inject
//!              │ no: one call fetches, the others wait for what it gets
//!              ▼
//!         new refresh token? ─ yes ─► durable in the vault ─► the token may be used
//! ```

use super::{Error, github, oauth2};
use crate::token::{Mint, Token};
use crate::{Credential, Inject, Policy, Secret};
use journal::contract::CredentialUse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A token that says nothing of its life is taken for good for this long.
pub(super) const UNSTATED: Duration = Duration::from_secs(600);
/// How long before its end a token is no longer sent; a tenth of its life, if that is less.
const MARGIN: Duration = Duration::from_secs(30);
/// A token that replaced a refused one, and is refused as well, is kept for this long: a service that
/// refuses every token is not to make us fetch one for each call.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a service minted.
pub(super) struct Minted {
    /// The token.
    pub(super) token: Secret,
    /// How long it is good.
    pub(super) life: Duration,
}

/// A token at hand.
struct Held {
    token: Secret,
    obtained: Instant,
    good_for: Duration,
    /// Whether it was fetched because the one before was refused.
    replaced: bool,
}

/// What is known of a credential's tokens.
#[derive(Default)]
pub(super) struct State {
    held: Option<Held>,
    /// Whether the last token was dropped because it was refused.
    refused: bool,
    failed: Option<(Instant, Error)>,
}

/// A version of a refresh token in the vault: one call at a time shows it and keeps what replaces it,
/// for whichever credential and under whichever policy. Within it lies a new one that is not durable
/// yet; no token that came with it is used.
pub(super) type Refresh = Arc<Mutex<Option<Secret>>>;

/// The tokens of one credential, as policy has it now.
struct Slot {
    credential: Credential,
    version: u64,
    state: Mutex<State>,
}

/// The tokens of all credentials.
#[derive(Default)]
pub(crate) struct Book {
    slots: Mutex<HashMap<String, Arc<Slot>>>,
    refreshes: Mutex<HashMap<(String, u64), Refresh>>,
}

impl Book {
    /// What guards a version of a refresh token.
    pub(super) fn refresh(&self, name: &str, version: u64) -> Refresh {
        let mut all = self.refreshes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry((name.to_owned(), version)).or_default())
    }

    /// The slot of a credential. Another policy, or another version of the secret, begins anew.
    fn slot(&self, credential: &Credential, version: u64) -> Arc<Slot> {
        let fresh = || {
            let (credential, state) = (credential.clone(), Mutex::default());
            Arc::new(Slot { credential, version, state })
        };
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.entry(credential.id.clone()).or_insert_with(fresh);
        if slot.credential == *credential && slot.version == version {
            return Arc::clone(slot);
        }
        if slot.version > version {
            // A call that is bound to the version before does not displace what is newer.
            return fresh();
        }
        *slot = fresh();
        Arc::clone(slot)
    }
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A token that is good, or that was fetched after the call began to ask.
    fn good(&self, asked: Instant) -> Option<Secret> {
        let held = self.held.as_ref()?;
        let good = held.obtained >= asked || held.obtained.elapsed() < held.good_for;
        good.then(|| held.token.clone())
    }

    fn keep(&mut self, minted: Minted) -> Secret {
        let Minted { token, life } = minted;
        let margin = MARGIN.min(life / 10);
        self.held = Some(Held {
            token: token.clone(),
            obtained: Instant::now(),
            good_for: life.saturating_sub(margin),
            replaced: std::mem::take(&mut self.refused),
        });
        token
    }
}

impl Policy {
    /// The secret of a credential if it can be had without waiting for its source.
    #[must_use]
    pub fn at_hand(&self, credential: &Credential, bound: &CredentialUse) -> Option<Secret> {
        let Inject::Token(_) = credential.inject else { return None };
        if self.vault.status() == crate::vault::Status::Locked {
            return None;
        }
        let slot = self.minted.slot(credential, bound.version);
        let state = slot.state.try_lock().ok()?;
        state.good(Instant::now())
    }

    /// Takes note that a service refused the token that went to it at the given time. It is not sent
    /// again: the next call fetches another. The call itself is never repeated.
    pub fn refused(&self, credential: &Credential, bound: &CredentialUse, sent: Instant) {
        let Inject::Token(_) = credential.inject else { return };
        let slot = self.minted.slot(credential, bound.version);
        let mut state = slot.state();
        let drops = state.held.as_ref().is_some_and(|held| {
            held.obtained <= sent && (!held.replaced || held.obtained.elapsed() > PATIENCE)
        });
        if drops {
            state.held = None;
            state.refused = true;
        }
    }

    /// A token for a call: the one at hand, or a new one.
    pub(super) fn token(
        &self,
        credential: &Credential,
        token: &Token,
        bound: &CredentialUse,
    ) -> Result<Secret, Error> {
        if self.vault.status() == crate::vault::Status::Locked {
            // What comes back could not be kept.
            return Err(Error::Locked);
        }
        let asked = Instant::now();
        let slot = self.minted.slot(credential, bound.version);
        let mut state = slot.state();
        if let Some(token) = state.good(asked) {
            return Ok(token);
        }
        // Who waited while another call failed is not to wait for the same failure once more.
        if let Some((at, error)) = &state.failed
            && *at >= asked
        {
            return Err(error.clone());
        }
        let minted = match &token.from {
            Mint::Oauth2(client) => oauth2::fetch(self, client, credential, bound.version),
            Mint::GithubApp(app) => github::fetch(self, app, credential, bound),
        };
        match minted {
            Ok(minted) => Ok(state.keep(minted)),
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }
}
