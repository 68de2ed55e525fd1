//! A jump on: who may go where, and what becomes of it. The text of a refusal is all that the user
//! sees.

use crate::algorithms;
use crate::alive;
use crate::door::{Door, Jump};
use crate::gateway::Shared;
use crate::hop::Hop;
use crate::invocation::record_refusal;
use crate::line::{Line, Stream};
use crate::opaque::{self, Entrance};
use crate::request::Agent;
use crate::respond::{self, Unopened};
use journal::contract::{Accepted, Code, Ended, Gateway, Retry, Verdict};
use russh::server::Msg;
use russh::{ChannelStream, Disconnect};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::oneshot;

/// What somebody is told whose login is over.
pub(crate) const LOGIN_OVER: &str = "The login of this connection is over: the agent was removed, has a new token, or its access \
     ended.";

/// A jump: ended here, or relayed as it is where policy says so.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    agent: Agent,
    (host, port): (String, u32),
    to: Entrance,
) {
    let refuse = |reason| Unopened::Prohibited.saying(reason);
    let port = match judge(&shared, &agent, &host, port).await {
        Ok(port) => port,
        Err(reason) => return to.reply.reject(refuse(reason)).await,
    };
    let relayed = shared.policy.snapshot().ssh_relay(&agent.name, &host, port);
    let jump = Jump { agent, host, port };
    match relayed {
        Ok(None) => {
            let Entrance { channel, reply, inlet, .. } = to;
            reply.accept().await;
            inside(shared, jump, channel.into_stream()).await;
            drop(inlet);
        }
        Ok(Some(grant)) => opaque::serve(shared, jump, grant, to).await,
        Err(denial) => {
            let target = jump_target(&jump.host, u32::from(port));
            let reason = refuse_jump(
                &shared,
                &jump.agent.name,
                target,
                (denial.verdict(), denial.message, denial.field),
            );
            to.reply.reject(refuse(reason.await)).await;
        }
    }
}

/// Serves the inner session on the jump's channel until it ends.
async fn inside(shared: Arc<Shared>, jump: Jump, stream: ChannelStream<Msg>) {
    let names = [jump.host.as_str()];
    let certificate = match shared.identity.host_certificate(&names, SystemTime::now()) {
        Ok(certificate) => certificate,
        Err(error) => {
            tracing::error!(%error, "no host certificate for a target");
            return;
        }
    };
    let door = Door::Jump(jump);
    let host_key = shared.identity.host_key();
    let config = algorithms::server_config(&shared.options, host_key, certificate, door.methods());
    let (grace, interval) = (shared.options.login_grace, shared.options.keepalive_interval);
    let questions_max = shared.options.keepalive_max;
    let line = Line::new();
    let stream = Stream::new(stream, Arc::clone(&line));
    let (logged_in, login) = oneshot::channel();
    let handler = Hop::new(shared, Arc::clone(&line), door, logged_in);
    let starting = tokio::time::timeout(grace, russh::server::run_stream(config, stream, handler));
    let mut session = match starting.await {
        Ok(Ok(session)) => session,
        Ok(Err(_)) | Err(_) => return,
    };
    let handle = session.handle();
    // The sender goes with the handler, so this also ends with the session.
    if tokio::time::timeout(grace, login).await.is_err() {
        let text = "login took too long".to_owned();
        drop(handle.disconnect(Disconnect::ByApplication, text, String::new()).await);
    }
    let heard = Arc::clone(&line);
    let lost = alive::lost(handle, interval, questions_max, move || heard.received_bytes());
    let ended = tokio::select! {
        ended = &mut session => ended,
        () = lost => {
            line.cut();
            session.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an inner session ended");
    }
}

/// Whether the agent may jump there; a refusal is recorded and explained.
async fn judge(shared: &Shared, agent: &Agent, host: &str, port: u32) -> Result<u16, String> {
    let (verdict, message, field) = match u16::try_from(port).ok().filter(|port| *port != 0) {
        None => {
            let verdict = Verdict::refused(Retry::AfterCorrection, Code::InvalidTarget);
            (verdict, "The target's port is none.".to_owned(), "target.port".to_owned())
        }
        Some(_) if !shared.is_current(agent) => {
            let verdict = Verdict::refused(Retry::AfterCorrection, Code::AgentUnauthenticated);
            (verdict, LOGIN_OVER.to_owned(), "agent".to_owned())
        }
        Some(port) => match shared.policy.snapshot().ssh_target(&agent.name, host, port) {
            Ok(()) => return Ok(port),
            Err(denial) => (denial.verdict(), denial.message, denial.field),
        },
    };
    let target = jump_target(host, port);
    Err(refuse_jump(shared, &agent.name, target, (verdict, message, field)).await)
}

/// Records the refusal of a jump; answers what the client is told.
async fn refuse_jump(
    shared: &Shared,
    agent: &str,
    target: String,
    (verdict, message, field): (Verdict, String, String),
) -> String {
    let accepted = Accepted {
        gateway: Gateway::Ssh,
        agent: Some(agent.to_owned()),
        action: "jump".to_owned(),
        target,
        command: None,
        fingerprint: None,
        caller_id: false,
        counted: false,
        link: None,
    };
    let ended =
        Ended { verdict, message, field: Some(field), not_before_ms: None, observation: None };
    respond::summary(&record_refusal(shared, accepted, ended).await)
}

/// The target of a jump as records name it: the host comes from the client, so only plain names and
/// addresses are kept.
fn jump_target(host: &str, port: u32) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.len() > 255 || !host.chars().all(plain) {
        return String::new();
    }
    if host.contains(':') {
        format!("ssh://[{host}]:{port}")
    } else {
        format!("ssh://{host}:{port}")
    }
}

/// Records a connection on which nobody logged in though somebody tried.
pub(crate) async fn record_refused_login(shared: &Shared) {
    let accepted = Accepted {
        gateway: Gateway::Ssh,
        agent: None,
        action: "login".to_owned(),
        target: String::new(),
        command: None,
        fingerprint: None,
        caller_id: false,
        counted: false,
        link: None,
    };
    let ended = Ended {
        verdict: Verdict::refused(Retry::AfterCorrection, Code::AgentUnauthenticated),
        message: "Nobody logged in: the token or key is not the agent's.".to_owned(),
        field: Some("request.login".to_owned()),
        not_before_ms: None,
        observation: None,
    };
    drop(record_refusal(shared, accepted, ended).await);
}
