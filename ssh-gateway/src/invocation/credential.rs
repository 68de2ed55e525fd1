//! The credential of a bound call, as what the gateway logs in with.

use super::refusal::{Refusal, not_recorded, sentence};
use super::{Job, certificate};
use crate::agent;
use crate::redact::Needles;
use crate::request::Request;
use crate::upstream::Login;
use journal::Call;
use journal::contract::{CredentialUse, InvocationId};
use policy::{Credential, Inject, Policy, Secret, SshGrant};
use russh::keys::decode_secret_key;
use std::sync::Arc;
use std::time::SystemTime;

/// Gets the credential of a bound call.
pub(super) async fn authorize(
    job: &Job,
    call: &mut Call,
    grant: &SshGrant,
) -> Result<(Login, Needles), Refusal> {
    let bound = call.bound_credential();
    let (login, needles) = match grant.credential.as_ref().zip(bound.as_ref()) {
        None => (Login::None, Needles::default()),
        Some((credential, bound)) => {
            let secret = secret_of(&job.shared.policy, credential, bound).await;
            let secret = secret.map_err(unusable)?;
            match &credential.inject {
                Inject::SshAgent { public_key } => {
                    let held = agent::find(&secret, public_key.as_deref()).await;
                    (Login::Agent(held.map_err(unusable)?), Needles::default())
                }
                Inject::Password
                | Inject::KeyboardInteractive
                | Inject::SshKey
                | Inject::SshCertificate
                | Inject::Bearer
                | Inject::Token(_)
                | Inject::Mtls
                | Inject::Basic
                | Inject::Header { .. }
                | Inject::Recipe(_) => login(job, (call.id(), grant), credential, secret)?,
            }
        }
    };
    call.authorize(bound).map_err(|error| not_recorded(&error))?;
    Ok((login, needles))
}

/// The secret of a credential; a slow source is asked off the threads that serve other calls.
async fn secret_of(
    policy: &Arc<Policy>,
    credential: &Credential,
    bound: &CredentialUse,
) -> Result<Secret, policy::credential::Error> {
    if !credential.is_slow() {
        return policy.credential_bound(credential, bound);
    }
    let (policy, credential, bound) = (Arc::clone(policy), credential.clone(), bound.clone());
    tokio::task::spawn_blocking(move || policy.credential_bound(&credential, &bound))
        .await
        .unwrap_or(Err(policy::credential::Error::SourceFailed("the broker is stopping")))
}

fn unusable(error: policy::credential::Error) -> Refusal {
    Refusal::new(error.verdict(), sentence(&error.to_string()), Some("target.credential"))
}

fn login(
    job: &Job,
    (id, grant): (InvocationId, &SshGrant),
    credential: &Credential,
    secret: Secret,
) -> Result<(Login, Needles), Refusal> {
    match &credential.inject {
        Inject::Password | Inject::KeyboardInteractive => {
            if secret.expose_text().is_none() {
                let why = "a password has to be UTF-8 text";
                return Err(unusable(policy::credential::Error::Unreadable(why)));
            }
            let needles = Needles::password(&secret);
            let asks = credential.inject == Inject::KeyboardInteractive;
            let login = if asks { Login::Answer(secret) } else { Login::Password(secret) };
            Ok((login, needles))
        }
        Inject::SshKey => {
            let key = private_key(&secret).map_err(unusable)?;
            Ok((Login::Key(Arc::new(key)), Needles::key(&secret)))
        }
        Inject::SshCertificate => {
            let authority = private_key(&secret).map_err(unusable)?;
            let user = &job.destination.user;
            let with_terminal = job.preparation.terminal.is_some();
            let with_forwarding = matches!(job.request, Request::Forward { .. });
            let source_address = &grant.source_address;
            let wanted =
                certificate::Wanted { id, user, with_terminal, with_forwarding, source_address };
            let minted = certificate::mint(&authority, &wanted, SystemTime::now());
            let (key, certificate) = minted.map_err(|error| {
                tracing::error!(%id, %error, "no user certificate could be made");
                let why = "no certificate can be made with it";
                unusable(policy::credential::Error::Unreadable(why))
            })?;
            let login = Login::Certificate(Arc::new(key), Box::new(certificate));
            Ok((login, Needles::key(&secret)))
        }
        Inject::Bearer
        | Inject::Token(_)
        | Inject::Mtls
        | Inject::Basic
        | Inject::Header { .. }
        | Inject::Recipe(_)
        | Inject::SshAgent { .. } => {
            let why = "this mode of injection for SSH; use `ssh-key`, `ssh-certificate`, \
                       `ssh-agent`, `password` or `keyboard-interactive`";
            Err(unusable(policy::credential::Error::Unsupported(why)))
        }
    }
}

fn private_key(secret: &Secret) -> Result<russh::keys::PrivateKey, policy::credential::Error> {
    let unreadable = policy::credential::Error::Unreadable;
    let text = secret.expose_text().ok_or(unreadable("a private key has to be PEM text"))?;
    decode_secret_key(text, None)
        .map_err(|_| unreadable("it is no private key in PEM form, or it has a passphrase"))
}
