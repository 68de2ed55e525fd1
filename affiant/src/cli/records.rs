//! Arguments of what reads and decides on records: approvals, invocations, the log.

use clap::Subcommand;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum Approval {
    /// What waits, with the request that would be sent
    List,
    /// All of one request that waits, also where the list shows its beginning only
    Show {
        /// Its invocation id
        id: String,
        /// Write the request here instead of stdout
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Let a call be sent, once
    Approve {
        /// Its invocation id
        id: String,
    },
    /// Refuse a call for good
    Deny {
        /// Its invocation id
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Inv {
    /// List invocations, newest first
    List {
        /// committed, rejected, not_attempted or unknown
        #[arg(long)]
        outcome: Option<String>,
        /// Where the broker stopped
        #[arg(long)]
        phase: Option<String>,
        /// The stable reason, for example NOT_JUDGED
        #[arg(long)]
        code: Option<String>,
        /// With `--outcome unknown`: also what was passed on as it is and ended in order (NOT_JUDGED)
        #[arg(long)]
        all: bool,
        /// The agent that called
        #[arg(long)]
        agent: Option<String>,
        /// Only calls that passed because policy observes, and would be denied else
        #[arg(long)]
        would_be_denied: bool,
        /// RFC 3339 time, or an age such as 15m, 6h, 2d
        #[arg(long)]
        since: Option<String>,
        /// How many, 1 to 500
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
        limit: u16,
        /// Where the list before ended
        #[arg(long)]
        cursor: Option<String>,
    },
    /// State and evidence of one invocation
    Show {
        /// Its id
        id: String,
        /// Wait up to this long for it to settle, for example 10s
        #[arg(long)]
        wait: Option<String>,
    },
    /// The events of one invocation
    Events {
        /// Its id
        id: String,
    },
    /// The stored result
    Result {
        /// Its id
        id: String,
        /// Write the content here instead of stdout, whole or not at all; a file that exists is left alone
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Begin at this byte: resumes a read that was cut off
        #[arg(long, value_name = "BYTE")]
        from: Option<u64>,
        /// One stream of a command alone
        #[arg(long, value_parser = ["stdout", "stderr"])]
        stream: Option<String>,
    },
    /// Replay the recording of an SSH shell
    Play {
        /// Its id
        id: String,
        /// How many times as fast
        #[arg(long, default_value_t = 1.0)]
        speed: f64,
    },
    /// What automation may do now
    Decide {
        /// Its id
        id: String,
    },
    /// Send the stored request again, if the instruction allows it
    Retry {
        /// Its id
        id: String,
    },
    /// Ask the origin what happened to a call in doubt, as its route says
    Reconcile {
        /// Its id
        id: String,
    },
    /// State what happened to a call in doubt; on record as an operator's word
    Attest {
        /// Its id
        id: String,
        /// committed or rejected
        #[arg(long)]
        outcome: String,
        /// How you know
        #[arg(long, value_name = "TEXT")]
        note: String,
    },
    /// List the calls in doubt that wait for a person
    Waiting,
    /// Confirm that the result was received
    Ack {
        /// Its id
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Journal {
    /// Walk the whole log and check chain, checksums, order, legality and results
    Verify {
        /// A checkpoint that was printed earlier: detects truncation and replacement since then
        #[arg(long, value_name = "FILE")]
        checkpoint: Option<PathBuf>,
        /// The checkpoint's key, when it is not the home's own (`journal/checkpoint.pub`)
        #[arg(long, value_name = "VKEY", requires = "checkpoint")]
        key: Option<String>,
    },
    /// Print a signed statement of where the log ends now; keep it on another machine
    Checkpoint,
    /// Print events as JSON lines, for a SIEM; works beside a running server
    Export {
        /// Begin at this sequence
        #[arg(long, default_value_t = 0, value_name = "SEQ")]
        since: u64,
    },
    /// Cut a damaged log after its last good record; needs the server stopped
    Repair {
        /// Do it; without this, say what would be done
        #[arg(long)]
        yes: bool,
    },
    /// Sealed mode: an audit copy that the server can't read back
    #[command(subcommand)]
    Seal(Seal),
    /// Counters of the log
    Stats,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Seal {
    /// Copy every event, encrypted to a public key, from now on and back to the log's beginning
    Init {
        /// An age public key (`age1...`), made on another machine
        #[arg(long, value_name = "KEY", required_unless_present = "identity")]
        recipient: Option<String>,
        /// Make a key pair and write its private half to this new file; move it to another machine
        #[arg(long, value_name = "FILE", conflicts_with = "recipient")]
        identity: Option<PathBuf>,
    },
    /// Print sealed files as JSON lines; also `age --decrypt` opens them
    Open {
        /// The private key
        #[arg(long, value_name = "FILE")]
        identity: PathBuf,
        /// The files, in order [default: all of the home]
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}
