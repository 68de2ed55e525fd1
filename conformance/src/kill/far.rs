//! What is at the far end of a struck call, and what it counted.

use crate::case::MARK;
use crate::http::{Origin, Script, Step};
use crate::pki::Authority;
use crate::ssh::{self, Target};
use crate::subject::{Error, Home, io};
use std::net::{Ipv4Addr, TcpListener};

/// What is at the far end.
pub(super) enum Far {
    Origin { origin: Origin, tls: bool },
    Target(Target),
}

impl Far {
    /// How often a path or a command arrived.
    pub(super) fn count(&self, path: &str) -> usize {
        match self {
            Far::Origin { origin, .. } => {
                origin.seen().iter().filter(|seen| seen.target().ends_with(path)).count()
            }
            Far::Target(target) => {
                target.requests().iter().filter(|asked| *asked == path.as_bytes()).count()
            }
        }
    }

    /// How many effects it had.
    pub(super) fn effects(&self, path: &str) -> usize {
        match self {
            Far::Origin { origin, .. } => origin.effects(path),
            Far::Target(target) => target.effects_of(path.as_bytes()),
        }
    }

    pub(super) fn origin(home: &Home, tls: bool, streamed: bool) -> Result<Self, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Unexpected(error.to_string());
        let mut trust = String::new();
        let mut config = None;
        if tls {
            let authority = Authority::new("struck origins").map_err(|e| failed(&e))?;
            let leaf = authority.leaf(&["127.0.0.1"]).map_err(|e| failed(&e))?;
            config = Some(leaf.server_config().map_err(|e| failed(&e))?);
            let file = home.path().join("origins.pem");
            std::fs::write(&file, authority.pem()).map_err(io("write the CA"))?;
            let file = file.display();
            trust = format!("[[trust]]\nhost = \"127.0.0.1\"\nca_file = \"{file}\"\n");
        }
        home.policy(&format!(
            "[defaults]\negress = \"allow\"\nprivate_addresses = \"allow\"\n{trust}"
        ))?;
        let origin =
            Origin::start(vec![script(streamed)], config).map_err(io("start an origin"))?;
        Ok(Self::Origin { origin, tls })
    }

    /// Within a runtime.
    pub(super) fn target(home: &Home, streamed: bool) -> Result<Self, Error> {
        use ssh::Step;
        let mut steps = vec![Step::Apply, Step::Accept, Step::Stdout("first, ".into())];
        if streamed {
            steps.push(Step::Settle);
        }
        steps.extend([
            Step::Stdout("last".into()),
            Step::Eof,
            Step::ExitStatus(0),
            Step::CloseChannel,
        ]);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io("listen"))?;
        let target = Target::spawn(listener, ssh::Opening::Serve, steps);
        let target = target.map_err(io("start a target"))?;
        home.secret("struck", &ssh::user_key().map_err(io("make a key"))?)?;
        home.policy(&format!(
            "[[credential]]\nid = \"k\"\nsecret = \"struck\"\ninject = \"ssh-key\"\n\n\
             [[ssh]]\nname = \"struck\"\nmatch = {{ host = \"struck\", port = 22, \
             users = [\"u\"], commands = [\"*\"] }}\naddress = \"{}\"\n\
             host_keys = [\"{}\"]\ncredential = \"k\"\nallow = [\"exec\"]\n\
             private_addresses = \"allow\"\n",
            target.address(),
            target.host_key()
        ))?;
        Ok(Self::Target(target))
    }
}

fn script(streamed: bool) -> Script {
    let send = |text: String| Step::Send(text.into());
    let steps = if streamed {
        let kind = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked";
        let head = format!("HTTP/1.1 200 OK\r\n{MARK}: 1\r\n{kind}\r\n\r\nc\r\ndata: tick\n\n\r\n");
        let rest = "c\r\ndata: tock\n\n\r\n0\r\n\r\n".to_owned();
        vec![Step::ReadBody, Step::Apply, send(head), send(rest)]
    } else {
        let head = format!("HTTP/1.1 200 OK\r\n{MARK}: 1\r\nContent-Length: 2\r\n\r\nok");
        vec![Step::ReadBody, Step::Apply, send(head)]
    };
    Script::new("*", steps)
}
