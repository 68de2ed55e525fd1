//! Who gets in, and how many: bounds on connections, time and tries before a login.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code: a broken expectation ends the test"
)]

mod common;

use common::{AGENT, Home, demo_home_with, within};
use journal::contract::{Body, Code, Outcome};
use russh::client::{AuthResult, Config, Handle, Handler};
use russh::keys::{PrivateKey, PrivateKeyWithHashAlg, PublicKeyOrCertificate};
use ssh_gateway::Options;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

#[derive(Default)]
struct Trusting(Arc<Mutex<Option<String>>>);

impl Handler for Trusting {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        Ok(true)
    }

    async fn kex_done(
        &mut self,
        _secret: Option<&[u8]>,
        names: &russh::Names,
        _session: &mut russh::client::Session,
    ) -> Result<(), Self::Error> {
        *self.0.lock().unwrap() = Some(names.kex.as_ref().to_owned());
        Ok(())
    }
}

async fn connect(home: &Home) -> Handle<Trusting> {
    let stream = TcpStream::connect(home.address).await.unwrap();
    let connecting =
        russh::client::connect_stream(Arc::new(Config::default()), stream, Trusting::default());
    within(connecting).await.unwrap()
}

async fn login_with_key(home: &Home, agent: &str, key: &Path) -> bool {
    let key = PrivateKey::from_openssh(std::fs::read(key).unwrap()).unwrap();
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), None);
    let mut session = connect(home).await;
    let result = within(session.authenticate_publickey(agent, key)).await.unwrap();
    result == AuthResult::Success
}

/// Reads until the gateway closes the connection.
async fn is_closed(mut stream: TcpStream) -> bool {
    let mut bytes = Vec::new();
    let reading = stream.read_to_end(&mut bytes);
    tokio::time::timeout(Duration::from_secs(10), reading).await.is_ok()
}

#[tokio::test]
async fn a_connection_that_does_not_log_in_is_closed_in_time() {
    let options = Options { login_grace: Duration::from_millis(300), ..Options::default() };
    let (home, _target) = demo_home_with("", options).await;
    assert!(is_closed(TcpStream::connect(home.address).await.unwrap()).await);
    // One that speaks the protocol and then stops.
    let session = connect(&home).await;
    let waiting = async {
        while !session.is_closed() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap();
    assert_eq!(home.count(), 0);
}

#[tokio::test]
async fn strangers_beyond_the_limit_are_turned_away_and_make_room_again() {
    let options = Options {
        max_unauthenticated: 1,
        login_grace: Duration::from_millis(500),
        ..Options::default()
    };
    let (home, _target) = demo_home_with("", options).await;
    let mut first = TcpStream::connect(home.address).await.unwrap();
    let mut byte = [0; 1];
    within(first.read_exact(&mut byte)).await.unwrap();
    let mut second = TcpStream::connect(home.address).await.unwrap();
    let mut nothing = Vec::new();
    let read = within(second.read_to_end(&mut nothing)).await;
    assert!(read.is_err() || nothing.is_empty());
    assert!(is_closed(first).await);
    // Those who logged in do not count.
    let (one, two) = (home.client().await, home.client().await);
    for client in [one, two] {
        assert_eq!(within(client.exec("exit 0", b"", None)).await.unwrap().status, Some(0));
    }
}

#[tokio::test]
async fn tries_at_the_token_are_limited() {
    let options = Options { max_login_attempts: 2, ..Options::default() };
    let (home, _target) = demo_home_with("", options).await;
    let mut session = connect(&home).await;
    for _ in 0..2 {
        let result = within(session.authenticate_password(AGENT, "wrong")).await;
        assert!(!matches!(result, Ok(AuthResult::Success)));
    }
    let result = within(session.authenticate_password(AGENT, home.token.as_str())).await;
    assert!(!matches!(result, Ok(AuthResult::Success)), "{result:?}");
}

/// V-1: refused logins are on record within an allowance, so that they can't fill the journal; a later one says
/// how many are not.
#[tokio::test(flavor = "multi_thread")]
async fn v_1_strangers_do_not_fill_the_journal() {
    let options = Options { max_refused_logins: 2, ..Options::default() };
    let (home, _target) = demo_home_with("", options).await;
    let stranger = async || {
        let mut session = connect(&home).await;
        let result = within(session.authenticate_password(AGENT, "wrong")).await;
        assert!(!matches!(result, Ok(AuthResult::Success)));
    };
    let (mut tried, mut recorded, mut left_out) = (0, 0, 0);
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    // On until one is recorded that says how many were not.
    while left_out == 0 {
        assert!(tokio::time::Instant::now() < until, "{recorded} of {tried} are on record");
        tokio::join!(stranger(), stranger(), stranger(), stranger());
        tried += 4;
        let filter = journal::Filter { limit: 500, ..Default::default() };
        let listed = home.journal.list(&filter).unwrap().invocations;
        recorded = listed.len();
        for (_, event) in listed.iter().flat_map(|one| home.journal.events(one.id()).unwrap()) {
            if let Body::Noted(noted) = event.body
                && noted.name == "refused_without_a_record"
            {
                left_out = noted.detail.parse::<usize>().unwrap();
            }
        }
    }
    assert!(recorded >= 3, "two, and the one that told: {recorded}");
    assert!(recorded + left_out <= tried, "{recorded} and {left_out} of {tried}");
}

/// V-1: a login key belongs to one agent, and to one that policy knows.
#[tokio::test]
async fn v_1_a_login_key_is_good_for_its_agent_only() {
    let (home, _target) = demo_home_with("", Options::default()).await;
    home.policy.add_agent("other").unwrap();
    let key = home.identity.agent_key(AGENT).unwrap();
    assert!(login_with_key(&home, AGENT, &key).await);
    assert!(!login_with_key(&home, "other", &key).await);
    assert!(!login_with_key(&home, "nobody", &key).await);
    home.policy.remove_agent(AGENT).unwrap();
    assert!(!login_with_key(&home, AGENT, &key).await);
}

/// A public key that was registered in policy logs its agent in, without a file in the home.
#[tokio::test]
async fn a_registered_public_key_logs_in() {
    let (home, _target) = demo_home_with("", Options::default()).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let identity = ssh_gateway::Identity::open(elsewhere.path()).unwrap();
    let key = identity.agent_key(AGENT).unwrap();
    assert!(!login_with_key(&home, AGENT, &key).await);
    let line = std::fs::read_to_string(key.with_added_extension("pub")).unwrap();
    home.policy.add_agent_key(AGENT, line.trim()).unwrap();
    assert!(login_with_key(&home, AGENT, &key).await);
}

/// A client that can do the hybrid key exchange gets it.
#[tokio::test]
async fn the_hybrid_key_exchange_is_offered() {
    let (home, _target) = demo_home_with("", Options::default()).await;
    let stream = TcpStream::connect(home.address).await.unwrap();
    let chosen = Arc::default();
    let handler = Trusting(Arc::clone(&chosen));
    let connecting = russh::client::connect_stream(Arc::new(Config::default()), stream, handler);
    let mut session = within(connecting).await.unwrap();
    // By then the exchange is over.
    drop(within(session.authenticate_none("nobody")).await);
    assert_eq!(chosen.lock().unwrap().as_deref(), Some("mlkem768x25519-sha256"));
}

/// Keepalives begin after the login: a client that takes its time before it is not disturbed.
#[tokio::test]
async fn keepalives_do_not_disturb_a_login() {
    let options = Options {
        keepalive_interval: Duration::from_millis(100),
        keepalive_max: 50,
        ..Options::default()
    };
    let (home, _target) = demo_home_with("", options).await;
    let mut session = connect(&home).await;
    // Longer than several keepalives: the time is the case.
    tokio::time::sleep(Duration::from_millis(600)).await;
    let result = within(session.authenticate_password(AGENT, home.token.as_str())).await;
    assert!(matches!(result, Ok(AuthResult::Success)), "{result:?}");
}

/// A session with the target `t`, without a jump.
async fn direct(home: &Home) -> Handle<Trusting> {
    let mut session = connect(home).await;
    let login = session.authenticate_password("root%t", home.token.as_str());
    assert_eq!(within(login).await.unwrap(), AuthResult::Success);
    session
}

/// Channels beyond the bound are refused, those under way go on, and one that ends makes room.
#[tokio::test]
async fn channels_are_limited_per_connection() {
    let options = Options { max_channels: 2, ..Options::default() };
    let (home, _target) = demo_home_with("", options).await;
    let session = direct(&home).await;
    let one = within(session.channel_open_session()).await.unwrap();
    let mut two = within(session.channel_open_session()).await.unwrap();
    let third = within(session.channel_open_session()).await;
    let shortage = russh::ChannelOpenFailure::ResourceShortage;
    assert!(
        matches!(&third, Err(russh::Error::ChannelOpenFailure(reason)) if *reason == shortage),
        "{third:?}"
    );
    two.exec(true, "echo two").await.unwrap();
    let mut said = Vec::new();
    let ended = async {
        while let Some(message) = two.wait().await {
            if let russh::ChannelMsg::Data { data } = message {
                said.extend_from_slice(&data);
            }
        }
    };
    within(ended).await;
    assert_eq!(said, b"two\n");
    one.close().await.unwrap();
    let again = async {
        while session.channel_open_session().await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(again).await;
    // Another connection has its own count.
    within(direct(&home).await.channel_open_session()).await.unwrap();
}

/// Connections beyond the bound are closed before they get a word; one that ends makes room.
#[tokio::test]
async fn connections_are_limited() {
    let options = Options { max_connections: 1, ..Options::default() };
    let (home, _target) = demo_home_with("", options).await;
    let first = direct(&home).await;
    let mut second = TcpStream::connect(home.address).await.unwrap();
    let mut nothing = Vec::new();
    let read = within(second.read_to_end(&mut nothing)).await;
    assert!(read.is_err() || nothing.is_empty());
    assert!(!first.is_closed());
    within(first.disconnect(russh::Disconnect::ByApplication, "", "")).await.unwrap();
    let again = async {
        loop {
            let mut third = TcpStream::connect(home.address).await.unwrap();
            let mut byte = [0; 1];
            if third.read_exact(&mut byte).await.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(again).await;
}

/// D-4: a command is read on for a client that has gone as long as the gateway says, and no longer.
#[tokio::test]
async fn d_4_reading_on_ends_in_time() {
    let options = Options { read_on: Duration::from_millis(300), ..Options::default() };
    let (home, _target) = demo_home_with("", options).await;
    let client = home.client().await;
    within(client.exec_and_leave("sleep 600000", Duration::from_secs(1), None)).await.unwrap();
    let invocation = home.newest().await;
    let verdict = invocation.verdict();
    assert_eq!((verdict.outcome(), verdict.code()), (Outcome::Unknown, Code::CallerCancelled));
    let message = invocation.message();
    assert!(message.contains("what is read on") && message.contains("may still run"), "{message}");
}

/// A route's time for a command holds while its client takes no output.
#[tokio::test]
async fn a_deadline_holds_while_output_waits_for_the_client() {
    let extra = "limits = { response_timeout = \"2s\" }";
    let (home, _target) = demo_home_with(extra, Options::default()).await;
    let session = direct(&home).await;
    // Its output is never read, and the engine's queue for it is full soon.
    let channel = within(session.channel_open_session()).await.unwrap();
    channel.exec(true, "flood 400000000").await.unwrap();
    let id = async {
        while home.count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        home.newest_now().id()
    };
    let id = within(id).await;
    let verdict = home.settled(id).await.verdict();
    assert_eq!((verdict.outcome(), verdict.code()), (Outcome::Unknown, Code::ReadTimeout));
}
