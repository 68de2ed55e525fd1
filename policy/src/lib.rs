//! Policy of Affiant: what an agent may do, with which credential, under which remote contract.
//!
//! The decision ([`Snapshot`]) is pure: no I/O, no clock, no randomness. The store ([`Policy`]) keeps
//! numbered snapshots, agents and secrets in one LMDB environment that several processes may open;
//! every look at it sees what was committed last. This crate sends nothing of an agent's, keeps no
//! evidence and knows no connection but to sources of secrets: the gateways act on the grants it hands
//! out.

mod absent;
mod action;
pub mod agent;
pub mod batch;
mod binding;
pub mod call;
mod certificate;
pub mod command;
mod condition;
pub mod credential;
mod diagnostic;
pub mod diff;
mod document;
mod escape;
pub mod expect;
mod explain;
mod field;
mod glob;
mod grant;
mod handle;
mod hashicorp;
mod host;
mod inject;
mod json;
pub mod key;
pub mod learn;
mod onward;
mod parent;
mod path;
pub mod preset;
pub mod recipe;
pub mod repeat;
mod screen;
mod seal;
mod secret;
pub mod secrets;
mod snapshot;
mod spelling;
mod starter;
pub mod store;
mod token;
pub mod vault;

pub use absent::Absent;
pub use action::{Body, Details, HttpAction, Scheme, SshAction, SshRequest};
pub use binding::Obstacle;
pub use certificate::ClientCertificate;
pub use diagnostic::{Diagnostic, Kind as FindingKind};
pub use explain::{Considered, Explanation};
pub use field::is_same_field;
pub use grant::{Approval, Credential, Denial, HttpGrant, Limits, SecretRef, SshGrant};
pub use handle::{Policy, VersionInfo, apply, open, rollback};
pub use hashicorp::{Field, Hashicorp, Login, Server};
pub use inject::Inject;
pub use key::IdempotencyRule;
pub use onward::Onward;
pub use parent::Parent;
pub use screen::{Screen, Screened};
pub use secret::Secret;
pub use snapshot::Snapshot;
pub use spelling::spellings;
pub use starter::STARTER;
pub use token::{ClientAuth, Form, GithubApp, Grant, Mint, Oauth2, Token};
pub use vault::Vault;
