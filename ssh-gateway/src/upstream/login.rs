//! The login at a target, by whatever policy gives.

use super::error::timeout_at;
use super::verify::Verifier;
use super::{Error, Login, Plan};
use crate::agent;
use journal::contract::SetupStage;
use policy::Secret;
use russh::MethodSet;
use russh::client::{AuthResult, Handle, KeyboardInteractiveAuthResponse};
use russh::keys::{HashAlg, PrivateKeyWithHashAlg};
use std::sync::Arc;
use tokio::time::Instant;

/// Logs in.
///
/// # Errors
/// [`Error`] of the stage `ssh_auth`.
pub(super) async fn login(
    plan: &Plan<'_>,
    session: &mut Handle<Verifier>,
    deadline: Instant,
) -> Result<(), Error> {
    let stage = SetupStage::SshAuth;
    let authenticating = async {
        match plan.login {
            Login::None => session.authenticate_none(plan.user).await,
            Login::Password(secret) => {
                // The engine takes text; a password that is none was refused before.
                let password = secret.expose_text().unwrap_or_default();
                session.authenticate_password(plan.user, password).await
            }
            Login::Key(key) => {
                let hash = hash_for(session, key.algorithm().is_rsa()).await?;
                let key = PrivateKeyWithHashAlg::new(Arc::clone(key), hash);
                session.authenticate_publickey(plan.user, key).await
            }
            Login::Agent(held) => {
                let hash = hash_for(session, held.is_rsa()).await?;
                match agent::log_in(held, session, plan.user, hash).await? {
                    Ok(result) => Ok(result),
                    Err(error) => return Ok(Err(error)),
                }
            }
            Login::Certificate(key, certificate) => {
                let (key, certificate) = (Arc::clone(key), (**certificate).clone());
                session.authenticate_openssh_cert(plan.user, key, certificate).await
            }
            Login::Answer(secret) => answer(session, plan.user, secret).await,
        }
        .map(Ok)
    };
    let result = match timeout_at(deadline, stage, authenticating).await? {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => return Err(Error::Credential(error)),
        Err(error) => Err(error),
    };
    match result {
        Ok(AuthResult::Success) => Ok(()),
        // A connection that is lost here also looks like a refusal.
        Ok(AuthResult::Failure { .. }) if session.is_closed() => Err(Error::Closed(stage)),
        Ok(AuthResult::Failure { .. }) => Err(Error::LoginRefused),
        Err(_) => Err(Error::Closed(stage)),
    }
}

/// What the key signs with, if that is not settled by its kind.
async fn hash_for(
    session: &mut Handle<Verifier>,
    is_rsa: bool,
) -> Result<Option<HashAlg>, russh::Error> {
    if !is_rsa {
        return Ok(None);
    }
    Ok(session.best_supported_rsa_hash().await?.flatten().or(SHA512))
}

/// Rounds of questions that are answered.
const MAX_ROUNDS: usize = 8;

/// Answers hidden questions with the secret. A question whose answer is shown is about something
/// else, and is left unanswered.
async fn answer(
    session: &mut Handle<Verifier>,
    user: &str,
    secret: &Secret,
) -> Result<AuthResult, russh::Error> {
    let mut response = session.authenticate_keyboard_interactive_start(user, None).await?;
    for _ in 0..MAX_ROUNDS {
        let prompts = match response {
            KeyboardInteractiveAuthResponse::Success => return Ok(AuthResult::Success),
            KeyboardInteractiveAuthResponse::Failure { remaining_methods, partial_success } => {
                return Ok(AuthResult::Failure { remaining_methods, partial_success });
            }
            KeyboardInteractiveAuthResponse::InfoRequest { prompts, .. } => prompts,
        };
        // The engine takes text; a secret that is none was refused before.
        let text = secret.expose_text().unwrap_or_default();
        let given = |shown: bool| if shown { String::new() } else { text.to_owned() };
        let answers = prompts.iter().map(|prompt| given(prompt.echo)).collect();
        response = session.authenticate_keyboard_interactive_respond(answers).await?;
    }
    Ok(AuthResult::Failure { remaining_methods: MethodSet::empty(), partial_success: false })
}

/// What an RSA key signs with when the target names nothing; never SHA-1.
const SHA512: Option<HashAlg> = Some(HashAlg::Sha512);
