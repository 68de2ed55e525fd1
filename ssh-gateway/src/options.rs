//! What bounds the gateway: every wait, every queue and every count has its limit here.

use std::time::Duration;

/// Bounds and names of one gateway.
#[derive(Debug, Clone)]
pub struct Options {
    /// Names by which clients reach the gateway, beside 127.0.0.1, localhost, ::1 and the address that
    /// a connection came in on. They stand in the gateway's own host certificate.
    pub names: Vec<String>,
    /// Connections at once.
    pub max_connections: usize,
    /// Connections at once that have not logged in.
    pub max_unauthenticated: usize,
    /// From the accepted connection to the login.
    pub login_grace: Duration,
    /// Login tries per connection.
    pub max_login_attempts: usize,
    /// Refused logins in a row that are recorded one by one (contract V-1); one more is after each second.
    pub max_refused_logins: u32,
    /// Channels at once, per connection and hop.
    pub max_channels: usize,
    /// Silence after which a peer is asked whether it is there.
    pub keepalive_interval: Duration,
    /// Unanswered questions after which a peer is gone.
    pub keepalive_max: usize,
    /// Bytes of stdin that wait for the target, per channel. From there on the channel gets no new
    /// window; one to which more comes all the same ends by a named error at twice as much and 16 MiB.
    pub stdin_spool_bytes: usize,
    /// The same of all channels of the gateway together: from there on, each keeps 64 KiB; at twice as
    /// much, a channel that sends more ends by a named error.
    pub stdin_total_bytes: usize,
    /// How long a client may leave output unread before it counts as gone.
    pub client_stall: Duration,
    /// How long the result of a command is read after its client has gone (contract D-4).
    pub read_on: Duration,
    /// How much more output of it is read (contract D-4): a producer without an end goes on for no
    /// longer than that.
    pub read_on_bytes: u64,
    /// How long a repeat of a call under way waits for its result (contract K-10); an equal command
    /// waits as long, ten seconds at most, for the input of the one under way (contract K-11).
    pub repeat_wait: Duration,
    /// How long `serve` waits for commands under way after it was told to stop.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            max_connections: 512,
            max_unauthenticated: 64,
            login_grace: Duration::from_secs(60),
            max_login_attempts: 6,
            max_refused_logins: journal::Strangers::BURST,
            max_channels: 64,
            keepalive_interval: Duration::from_secs(15),
            keepalive_max: 4,
            stdin_spool_bytes: 4 << 20,
            stdin_total_bytes: 256 << 20,
            client_stall: Duration::from_secs(600),
            read_on: Duration::from_secs(600),
            read_on_bytes: 256 << 20,
            repeat_wait: Duration::from_secs(60),
            drain: Duration::from_secs(30),
        }
    }
}
