//! `affiant doctor`: the set-up as a user needs it, one line a check with the fix.

use super::Context;
use crate::control::client::Client;
use crate::output;
use policy::Policy;
use policy::vault::Status;
use serde::Serialize;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    Note,
    Fault,
}

#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    state: State,
    says: String,
}

pub(super) async fn doctor(context: &Context) -> anyhow::Result<ExitCode> {
    let mut checks = vec![home(context)];
    if checks.iter().all(|check| check.state == State::Ok) {
        checks.extend([
            private_files(context),
            store(context),
            forgotten_agents(context),
            policy_file(context),
            sources(context),
            vault(context).await,
            ca(context),
            socket(context).await,
        ]);
        checks.push(Check {
            check: "journal",
            state: State::Note,
            says: "`affiant journal verify` walks all of it; a start checks its end only"
                .to_owned(),
        });
        checks.push(program("curl", "HTTP examples"));
        checks.push(program("ssh", "SSH through the gateway"));
    }
    if context.json {
        output::json(&checks)?;
    } else {
        for check in &checks {
            let mark = match check.state {
                State::Ok => "ok   ",
                State::Note => "note ",
                State::Fault => "FAULT",
            };
            output::line(&format!("{mark}  {:<13} {}", check.check, check.says));
        }
    }
    let faulty = checks.iter().any(|check| check.state == State::Fault);
    Ok(if faulty { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn check(check: &'static str, result: Result<String, String>) -> Check {
    match result {
        Ok(says) => Check { check, state: State::Ok, says },
        Err(says) => Check { check, state: State::Fault, says },
    }
}

fn home(context: &Context) -> Check {
    let shown = context.home.path().display().to_string();
    check("home", context.home.require().map(|()| shown).map_err(|error| error.to_string()))
}

/// Key material must be readable by its owner alone.
fn private_files(context: &Context) -> Check {
    let open_to_others = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
    };
    let home = &context.home;
    let mut keys = vec![home.ca().join("ca-key.pem"), home.path().join("vault.key")];
    keys.extend([home.ssh().join("host_ca"), home.ssh().join("host_key")]);
    let exposed: Vec<String> = keys
        .iter()
        .filter(|path| open_to_others(path))
        .map(|path| path.display().to_string())
        .collect();
    let result = if exposed.is_empty() {
        Ok("keys are readable by their owner alone".to_owned())
    } else {
        Err(format!("others can read: run `chmod 600 {}`", exposed.join(" ")))
    };
    check("key files", result)
}

fn store(context: &Context) -> Check {
    let result =
        Policy::open(context.home.path()).map_err(|error| error.to_string()).map(|store| {
            let agents = store.list_agents().map(|agents| agents.len()).unwrap_or_default();
            let secrets = store.list_secrets().map(|secrets| secrets.len()).unwrap_or_default();
            format!("version {}, {agents} agents, {secrets} secrets", store.snapshot().version())
        });
    check("policy", result)
}

/// Tokens from before a rotation, and agents whose time is over, are easily forgotten.
fn forgotten_agents(context: &Context) -> Check {
    let agents = Policy::open(context.home.path())
        .map_err(|error| error.to_string())
        .and_then(|store| store.list_agents().map_err(|error| error.to_string()));
    let agents = match agents {
        Ok(agents) => agents,
        Err(says) => return check("agents", Err(says)),
    };
    let old = agents.iter().filter_map(|agent| {
        let until = output::time(agent.old_token_until_ms?);
        let (name, fix) = (&agent.name, "`affiant agent rotate NAME` ends it at once");
        Some(format!("the old token of {name:?} works until {until}; {fix}"))
    });
    let ended = agents.iter().filter(|agent| super::agent::has_ended(agent)).map(|agent| {
        let (name, fix) =
            (&agent.name, "`affiant agent rotate NAME --lasts TIME` renews it, `rm` removes it");
        format!("the access of {name:?} has ended; {fix}")
    });
    let notes: Vec<_> = old.chain(ended).collect();
    if notes.is_empty() {
        return check(
            "agents",
            Ok("no access has ended, no token from before a rotation works".to_owned()),
        );
    }
    Check { check: "agents", state: State::Note, says: notes.join("; ") }
}

/// A file that was edited does nothing until it is applied.
fn policy_file(context: &Context) -> Check {
    let differs = Policy::open(context.home.path())
        .ok()
        .and_then(|policy| super::serve::unapplied(&context.home, &policy));
    match differs {
        Some(says) => Check { check: "policy file", state: State::Note, says },
        None => check("policy file", Ok("is what is in force, or is not there".to_owned())),
    }
}

/// What the policy in force names has to be there.
fn sources(context: &Context) -> Check {
    let lacking =
        Policy::open(context.home.path()).map_err(|error| error.to_string()).and_then(|store| {
            let kept = store.list_secrets().map_err(|error| error.to_string())?;
            let snapshot = store.snapshot();
            let unset = snapshot.vault_secrets().into_iter();
            let unset = unset.filter(|(_, name)| kept.iter().all(|secret| secret.name != *name));
            let unset = unset.map(|(_, name)| format!("`affiant secret set {name}`"));
            let absent = snapshot.absent().into_iter().map(|absent| absent.what);
            Ok(unset.chain(absent).collect::<Vec<_>>())
        });
    match lacking {
        Err(says) => check("secrets", Err(says)),
        Ok(lacking) if lacking.is_empty() => {
            check("secrets", Ok("what the policy names is there".to_owned()))
        }
        Ok(lacking) => {
            let says = format!("calls will be refused for want of: {}", lacking.join("; "));
            Check { check: "secrets", state: State::Note, says }
        }
    }
}

/// A vault that is locked, of the server that runs or of one that would be started.
async fn vault(context: &Context) -> Check {
    let locked = match Client::running(&context.home).await {
        Some(server) => {
            server.json("/v1/vault").await.map(|state| state.get("vault") == Some(&"locked".into()))
        }
        None => context.home.open_policy().map(|store| store.vault().status() == Status::Locked),
    };
    match locked {
        Err(error) => check("vault", Err(format!("{error:#}"))),
        Ok(false) => check("vault", Ok("is open".to_owned())),
        Ok(true) => {
            Check { check: "vault", state: State::Note, says: super::serve::LOCKED.to_owned() }
        }
    }
}

fn ca(context: &Context) -> Check {
    let result = proxy::Ca::load(&context.home.ca())
        .map_err(|error| error.to_string())
        .and_then(|ca| {
            crate::bundle::write(&context.home, ca.certificate_pem()).map_err(|e| e.to_string())
        })
        .map(|bundle| format!("bundle for clients: {}", bundle.display()));
    check("CA", result)
}

async fn socket(context: &Context) -> Check {
    let Some(client) = Client::running(&context.home).await else {
        let says = "no server runs: `affiant serve`, or let `affiant run` start one".to_owned();
        return Check { check: "server", state: State::Note, says };
    };
    let result =
        client.json("/v1/health").await.map_err(|error| error.to_string()).map(
            |health| match health.pointer("/listening/http").and_then(|v| v.as_str()) {
                Some(address) => format!("serves on {address}"),
                None => "serves".to_owned(),
            },
        );
    check("server", result)
}

fn program(name: &'static str, purpose: &str) -> Check {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()));
    if found {
        check(name, Ok(format!("found ({purpose})")))
    } else {
        let says = format!("not on the PATH: install it for {purpose}");
        Check { check: name, state: State::Note, says }
    }
}
