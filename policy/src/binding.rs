//! Whether what a held call is bound to still holds (contract V-5, V-6).

use crate::{Credential, Policy};
use journal::contract::Preflight;

/// Why a call that waits, or is approved, can't be sent as things are now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// Another version of policy is in force, for good: version numbers only grow.
    #[error(
        "policy version {now} is in force, and it was asked about under version {asked}: its caller \
         has to ask anew"
    )]
    Policy {
        /// The version that it is bound to.
        asked: u64,
        /// The version in force.
        now: u64,
    },
    /// The secret has another version, for good.
    #[error(
        "the secret of credential {id:?} has version {now}, and it was asked about with version \
         {asked}: its caller has to ask anew"
    )]
    Secret {
        /// The credential.
        id: String,
        /// The version that it is bound to.
        asked: u64,
        /// The version now; 0: there is none.
        now: u64,
    },
    /// There is no such agent, or its access ended.
    #[error("agent {0:?} has no access any more")]
    Agent(String),
}

impl Policy {
    /// What keeps a call with this binding from being sent now.
    #[must_use]
    pub fn obstacle(&self, agent: Option<&str>, asked: &Preflight) -> Option<Obstacle> {
        let snapshot = self.snapshot();
        if snapshot.version() != asked.policy_version {
            let (asked, now) = (asked.policy_version, snapshot.version());
            return Some(Obstacle::Policy { asked, now });
        }
        if let Some(agent) = agent.filter(|agent| !self.is_current(agent)) {
            return Some(Obstacle::Agent(agent.to_owned()));
        }
        let bound = asked.credential.as_ref()?;
        // The same version of policy has the same credentials.
        let credential: &Credential = snapshot.credentials().iter().find(|c| c.id == bound.id)?;
        let now = self.bind(credential).version;
        (now != bound.version).then(|| Obstacle::Secret {
            id: bound.id.clone(),
            asked: bound.version,
            now,
        })
    }
}
