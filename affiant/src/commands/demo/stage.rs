//! The demo's stage: a temporary home, a running server, an origin, an SSH target, an agent.

use super::caller::Caller;
use super::origin::Origin;
use crate::cli::Listen;
use crate::commands::init;
use crate::home::Home;
use crate::server::Server;
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use journal::contract::InvocationId;
use journal::projection::Delivery;
use policy::{Policy, Secret};
use ssh_gateway::demo::{Client, Login, Target};
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;

const AGENT: &str = "demo";

/// Everything the demo needs; all of it goes with the process.
pub(super) struct Stage {
    server: Server,
    identity: ssh_gateway::Identity,
    token: Secret,
    pub(super) caller: Caller,
    pub(super) origin: Origin,
    pub(super) target: Target,
    /// An address that refuses connections.
    pub(super) closed: SocketAddr,
    /// The origin's token, which the agent must never see.
    pub(super) secret: String,
    /// Keeps [`Self::closed`] from others.
    #[expect(dead_code, reason = "held, not read")]
    refusing: TcpSocket,
    directory: tempfile::TempDir,
}

impl Stage {
    pub(super) async fn set() -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("affiant-demo-").tempdir()?;
        let home = Home::at(directory.path());
        init::create(&home, None)?;
        let secret = random_token()?;
        let origin = Origin::start(&secret).await.context("start the origin")?;
        let target = Target::start().await.context("start the SSH target")?;
        let refusing = closed_port().context("bind a port")?;
        let closed = refusing.local_addr()?;

        let policy = Policy::open(home.path())?;
        policy.set_secret("pay-token", &Secret::new(secret.clone().into_bytes()))?;
        policy.set_secret("deploy-key", &target.user_key())?;
        let token = policy.add_agent(AGENT)?;
        let ca_file = directory.path().join("origin-ca.pem");
        std::fs::write(&ca_file, &origin.ca_pem)?;
        let text = policy_text(&origin, &target, closed, &ca_file.display().to_string());
        policy.apply(&text, "demo.toml", "affiant demo").context("apply the demo's policy")?;

        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listen = Listen::on(any);
        let server = Server::start(&home, &listen).await?;
        let http = server.listening.http.context("the demo's server has a proxy")?;
        let caller = Caller::new(http, AGENT, &token, &server.ca_pem)?;
        let identity = ssh_gateway::Identity::open(&home.ssh())?;
        Ok(Self {
            server,
            identity,
            token,
            caller,
            origin,
            target,
            closed,
            secret,
            refusing,
            directory,
        })
    }

    /// What the origin counted at a path.
    pub(super) fn effects(&self, path: &str) -> usize {
        self.origin.ledger.effects(path) as usize
    }

    pub(super) fn new_id(&self) -> InvocationId {
        self.server.state().journal.new_id()
    }

    /// A session at the target, through the gateway.
    pub(super) async fn ssh_client(&self) -> anyhow::Result<Client> {
        let login = Login {
            gateway: self.server.listening.ssh.context("the demo's server has a gateway")?,
            agent: AGENT,
            token: self.token.expose_text().context("read the token")?,
            host: "target",
            port: 22,
            user: "deploy",
        };
        Ok(Client::connect(&self.identity, &login).await?)
    }

    /// Waits until the hand-over of a result is on record.
    pub(super) async fn settled_delivery(&self, id: &str) -> anyhow::Result<()> {
        let id: InvocationId = id.parse()?;
        let journal = &self.server.state().journal;
        for _ in 0..500 {
            let invocation = journal.invocation(id)?.context("the invocation is not on record")?;
            if matches!(invocation.delivery(), Delivery::Delivered(_)) {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        anyhow::bail!("the hand-over of {id} was not confirmed")
    }

    /// Stops the server and removes the home.
    pub(super) async fn clear(self) {
        self.server.stop().await;
        if let Err(error) = self.directory.close() {
            tracing::warn!("the demo's home could not be removed: {error}");
        }
    }
}

fn random_token() -> anyhow::Result<String> {
    let id = rcgen::KeyPair::generate()?.serialize_der();
    Ok(URL_SAFE_NO_PAD.encode(journal::contract::Digest::of(&id).0))
}

/// A port that refuses connections: bound, so that nobody else takes it, and not listened on.
fn closed_port() -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    Ok(socket)
}

fn policy_text(origin: &Origin, target: &Target, closed: SocketAddr, ca_file: &str) -> String {
    let (origin_port, closed_port) = (origin.address.port(), closed.port());
    let (target_address, host_key) = (target.address(), target.host_key());
    format!(
        r#"
[[trust]]
host = "127.0.0.1"
ca_file = "{ca_file}"

[[credential]]
id = "pay"
secret = "pay-token"
inject = "bearer"

[[credential]]
id = "deploy"
secret = "deploy-key"
inject = "ssh-key"

[[route]]
name = "pay"
agents = ["{AGENT}"]
match = {{ scheme = "https", host = "127.0.0.1", port = {origin_port}, methods = ["POST"], path = "/**" }}
credential = "pay"
private_addresses = "allow"

[[route]]
name = "nobody-listens"
agents = ["{AGENT}"]
match = {{ scheme = "http", host = "127.0.0.1", port = {closed_port}, methods = ["POST"], path = "/**" }}
private_addresses = "allow"

[[ssh]]
name = "target"
agents = ["{AGENT}"]
match = {{ host = "target", port = 22, users = ["deploy"], commands = ["*"] }}
address = "{target_address}"
host_keys = ["{host_key}"]
credential = "deploy"
allow = ["exec"]
"#
    )
}
