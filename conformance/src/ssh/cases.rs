//! The cases of SSH (contract X-4, C-1, D-3, S-1, S-8): faults of the setup, around the request, in
//! the streams and at their end, and complete results of every kind.

use super::script::{Opening, Stage, Step};
use crate::peer::Way;
use bytes::Bytes;
use journal::contract::{Code, Outcome, Phase, Retry};

/// What a perfect observer at the gateway's place can know at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Truth {
    /// No request was sent.
    Untouched(&'static [Code]),
    /// The target refused the request.
    Refused,
    /// The command may have run, and no complete result exists.
    Open(&'static [Code]),
    /// A complete result exists: exit status (a signal shows as 255), stdout, stderr.
    Settled(i32, Bytes, Bytes),
    /// The specification leaves more than one honest answer.
    Either(Vec<Truth>),
}

/// One case.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its name, unique.
    pub name: String,
    /// The contract rules and RFC sections that it holds.
    pub rule: &'static str,
    /// Whether anything listens.
    pub listens: bool,
    /// Whether policy pins another host key than the target shows.
    pub other_key: bool,
    /// Whether the streams ended long before the gateway gives up: nothing can be said on stderr then.
    pub streams_ended: bool,
    /// What it does before the request.
    pub opening: Opening,
    /// What it does with the request.
    pub steps: Vec<Step>,
    /// What is true at the end.
    pub truth: Truth,
}

/// One honest answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// What is known of execution.
    pub outcome: Outcome,
    /// Where the gateway stopped.
    pub phase: Phase,
    /// The instructions that fit.
    pub retry: Vec<Retry>,
    /// The codes that fit.
    pub codes: Vec<Code>,
    /// Whether dispatch began.
    pub dispatched: bool,
    /// The complete result, which has to reach the client as it is.
    pub result: Option<(i32, Bytes, Bytes)>,
}

/// Every honest answer, on a route whose commands are declared idempotent or not (contract K-9).
pub(super) fn expect(truth: &Truth, idempotent: bool) -> Vec<Expected> {
    let after = |outcome, retry, codes: &[Code]| Expected {
        outcome,
        phase: Phase::RemoteExecution,
        retry: vec![retry],
        codes: codes.to_vec(),
        dispatched: true,
        result: None,
    };
    match truth {
        Truth::Either(truths) => {
            truths.iter().flat_map(|truth| expect(truth, idempotent)).collect()
        }
        Truth::Untouched(codes) => vec![Expected {
            outcome: Outcome::NotAttempted,
            phase: Phase::ConnectionSetup,
            retry: vec![Retry::Backoff, Retry::AfterCorrection],
            codes: codes.to_vec(),
            dispatched: false,
            result: None,
        }],
        Truth::Refused => {
            vec![after(Outcome::Rejected, Retry::AfterCorrection, &[Code::RequestRefused])]
        }
        Truth::Open(codes) => {
            let retry = if idempotent { Retry::Backoff } else { Retry::Reconcile };
            vec![after(Outcome::Unknown, retry, codes)]
        }
        Truth::Settled(status, stdout, stderr) => {
            let code = if *status == 0 { Code::Ok } else { Code::RemoteFailed };
            let result = Some((*status, stdout.clone(), stderr.clone()));
            vec![Expected { result, ..after(Outcome::Committed, Retry::Never, &[code]) }]
        }
    }
}

const LOST: &[Code] = &[Code::RemoteOutcomeUnknown];
const CUT: &[Code] = &[Code::RemoteResultIncomplete];
const LATE: &[Code] = &[Code::ReadTimeout, Code::ResponseTimeout];
const BROKEN: &[Code] =
    &[Code::RemoteProtocolError, Code::RemoteResultIncomplete, Code::RemoteOutcomeUnknown];
const OUT: &str = "0123456789";

struct Table(Vec<Case>);

impl Table {
    fn setup(&mut self, name: &str, opening: Opening, codes: &'static [Code]) -> &mut Case {
        self.0.push_mut(Case {
            name: name.to_owned(),
            rule: "X-1 C-1 C-2",
            listens: true,
            other_key: false,
            streams_ended: false,
            opening,
            steps: Vec::new(),
            truth: Truth::Untouched(codes),
        })
    }

    fn request(
        &mut self,
        name: &str,
        rule: &'static str,
        steps: impl IntoIterator<Item = Step>,
        truth: Truth,
    ) -> &mut Case {
        self.0.push_mut(Case {
            name: name.to_owned(),
            rule,
            listens: true,
            other_key: false,
            streams_ended: false,
            opening: Opening::Serve,
            steps: steps.into_iter().collect(),
            truth,
        })
    }

    /// The same after the request was accepted and the effect applied.
    fn accepted(
        &mut self,
        name: &str,
        rule: &'static str,
        steps: impl IntoIterator<Item = Step>,
        truth: Truth,
    ) -> &mut Case {
        let first = [Step::Apply, Step::Accept];
        self.request(name, rule, first.into_iter().chain(steps), truth)
    }
}

/// Every case.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut table = Table(Vec::new());
    setup(&mut table);
    around_the_request(&mut table);
    in_the_streams(&mut table);
    against_the_protocol(&mut table);
    complete(&mut table);
    complete_oddly(&mut table);
    table.0
}

fn setup(t: &mut Table) {
    const GONE: &[Code] = &[Code::ConnectionTerminated];
    const BAD: &[Code] = &[Code::SshTransportFailed, Code::ConnectionTerminated];
    const SLOW: &[Code] = &[Code::ConnectionTimeout];
    t.setup("refused", Opening::Serve, &[Code::ConnectionRefused]).listens = false;
    t.setup("other_host_key", Opening::Serve, &[Code::HostKeyMismatch]).other_key = true;
    for (name, opening, codes) in [
        ("closed_at_once", Opening::Ends(Stage::Connected, Way::Close), GONE),
        ("reset_at_once", Opening::Ends(Stage::Connected, Way::Reset), GONE),
        ("not_ssh", Opening::NotSsh, BAD),
        ("silent", Opening::Ends(Stage::Connected, Way::Stall), SLOW),
        ("closed_in_kex", Opening::Ends(Stage::Versions, Way::Close), GONE),
        ("stalled_in_kex", Opening::Ends(Stage::Versions, Way::Stall), SLOW),
        ("a_packet_of_4_gb_in_kex", Opening::LongPacket, &[Code::SshTransportFailed]),
        ("bad_signature", Opening::BadSignature, BAD),
        ("login_refused", Opening::RefuseLogin, &[Code::RemoteAuthFailed]),
        ("closed_in_login", Opening::Ends(Stage::Login, Way::Close), GONE),
        ("stalled_in_login", Opening::Ends(Stage::Login, Way::Stall), SLOW),
        ("channel_refused", Opening::RefuseChannel, &[Code::ChannelRefused]),
        ("closed_at_channel", Opening::Ends(Stage::Channel, Way::Close), GONE),
        ("stalled_at_channel", Opening::Ends(Stage::Channel, Way::Stall), SLOW),
    ] {
        t.setup(name, opening, codes);
    }
}

fn around_the_request(t: &mut Table) {
    let lost = || Truth::Open(LOST);
    for (name, end) in
        [("closed", Step::Close), ("reset", Step::Reset), ("disconnected", Step::Disconnect)]
    {
        let rule = "D-1 D-3 S-8";
        t.request(&format!("{name}_unanswered"), rule, [end.clone()], lost());
        t.request(&format!("applied_{name}_unanswered"), rule, [Step::Apply, end], lost());
    }
    let unanswered = Truth::Open(&[Code::RemoteResultIncomplete, Code::RemoteOutcomeUnknown]);
    t.request("channel_closed_unanswered", "S-8", [Step::Apply, Step::CloseChannel], unanswered);
    t.request("never_replying", "D-3 S-8", [Step::Apply, Step::Stall], Truth::Open(LATE));
    t.request("request_refused", "C-6 D-3", [Step::Refuse, Step::CloseChannel], Truth::Refused);
    t.request(
        "request_refused_then_closed",
        "C-6 D-3",
        [Step::Refuse, Step::Close],
        Truth::Refused,
    );
}

/// what an accepted command can end by, short of a result.
fn in_the_streams(t: &mut Table) {
    let cut = || Truth::Open(CUT);
    let out = || Step::Stdout(OUT.into());
    for (name, end) in [
        ("closed", Step::Close),
        ("reset", Step::Reset),
        ("disconnected", Step::Disconnect),
        ("channel_closed", Step::CloseChannel),
    ] {
        let rule = "X-4 S-8";
        let settle = Step::Settle;
        t.accepted(&format!("{name}_after_exec"), rule, [settle.clone(), end.clone()], cut());
        let steps = [out(), settle.clone(), end.clone()];
        t.accepted(&format!("{name}_after_output"), rule, steps, cut());
        let steps = [out(), Step::Eof, settle.clone(), end.clone()];
        t.accepted(&format!("{name}_after_eof"), rule, steps, cut());
        if end != Step::CloseChannel {
            let steps = [out(), Step::ExitStatus(0), settle.clone(), end.clone()];
            t.accepted(&format!("{name}_after_exit_status"), "X-4 S-8 S-2", steps, cut());
            let steps = [out(), Step::ExitSignal("TERM"), settle.clone(), end.clone()];
            t.accepted(&format!("{name}_after_exit_signal"), "X-4 S-8 S-2", steps, cut());
            let steps = [out(), Step::Eof, Step::ExitStatus(0), settle, end];
            // Both ends are there, and the word that closes the channel is not.
            t.accepted(&format!("{name}_before_channel_close"), "S-1 S-8", steps, cut());
        }
    }
    let trailing = [Step::ExitStatus(0), out(), Step::CloseChannel];
    t.accepted("output_cut_after_exit_status", "X-4 S-8 S-2", trailing, cut());
    for (name, steps) in [
        ("stalled_after_exec", vec![Step::Stall]),
        ("stalled_after_output", vec![out(), Step::Stall]),
        ("stalled_after_exit_status", vec![out(), Step::ExitStatus(0), Step::Stall]),
        ("stalled_after_eof", vec![out(), Step::Eof, Step::ExitStatus(0), Step::Stall]),
    ] {
        t.accepted(name, "S-8 D-1", steps, Truth::Open(LATE)).streams_ended = name.ends_with("eof");
    }
}

fn against_the_protocol(t: &mut Table) {
    let broken = || Truth::Open(BROKEN);
    let rule = "S-6 S-8; RFC 4254";
    let out = || Step::Stdout(OUT.into());
    let end = || [Step::Eof, Step::CloseChannel];
    let (zero, one) = (Step::ExitStatus(0), Step::ExitStatus(1));
    let chain = |first: Vec<Step>| first.into_iter().chain(end());
    t.accepted("two_exit_statuses", rule, chain(vec![zero.clone(), one.clone()]), broken());
    let mixed = vec![zero.clone(), Step::ExitSignal("KILL")];
    t.accepted("status_and_signal", rule, chain(mixed), broken());
    let late = [zero.clone(), Step::Eof, out(), Step::CloseChannel];
    t.accepted("output_after_eof", rule, late, broken());
    let elsewhere = [Step::Elsewhere(OUT.into()), zero.clone(), Step::Eof, Step::CloseChannel];
    let either = || Truth::Either(vec![Truth::Settled(0, Bytes::new(), Bytes::new()), broken()]);
    t.accepted("output_on_no_channel", rule, elsewhere, either());
    let garbage = Step::Bytes(Bytes::from(vec![0xff; 4096]));
    // Which length is believed shows in what ends the call: the packet, or the deadline.
    let no_packet = || Truth::Open(&[Code::RemoteProtocolError]);
    let (rule_of_packets, long) = ("S-6 S-8; RFC 4253 section 6", Bytes::from_static(&[0xff; 4]));
    t.accepted("not_a_packet", rule_of_packets, [garbage, Step::Close], no_packet());
    let long = [Step::Bytes(long), Step::Stall];
    t.accepted("a_packet_of_4_gb", rule_of_packets, long, no_packet());
    let forged = Bytes::from([&[0, 0, 0, 16][..], &[7; 32]].concat());
    t.accepted("a_forged_packet", rule_of_packets, [Step::Bytes(forged), Step::Stall], no_packet());
    let short = Step::Message(Bytes::from_static(&[94, 0, 0]));
    t.accepted(
        "message_cut_short",
        rule,
        [short, zero.clone(), Step::Eof, Step::CloseChannel],
        either(),
    );
    let unknown = Step::Message(Bytes::from_static(&[200, 1, 2, 3]));
    t.accepted("unknown_message", rule, [unknown, zero, Step::Eof, Step::CloseChannel], either());
    let piece = || Step::Stdout(Bytes::from(vec![b'x'; 1 << 15]));
    // Nobody waits for the window: RFC 4254 section 5.2. What comes is taken as fast as the client takes
    // it, so on a busy machine the deadline may come before the end.
    const DROWNED: &[Code] = &[Code::RemoteResultIncomplete, Code::ReadTimeout];
    let flood = std::iter::repeat_with(piece).take(160).chain([Step::Close]);
    t.accepted("beyond_the_window", "S-8; RFC 4254 section 5.2", flood, Truth::Open(DROWNED));
    let refused = [Step::Refuse, out(), Step::ExitStatus(0), Step::Eof, Step::CloseChannel];
    let truth = Truth::Either(vec![Truth::Refused, broken()]);
    t.request("output_of_a_refused_request", rule, refused, truth);
}

fn complete(t: &mut Table) {
    let done = |status: i32| Truth::Settled(status, OUT.into(), Bytes::new());
    let end = |status: u32| [Step::Eof, Step::ExitStatus(status), Step::CloseChannel];
    let rule = "S-1 R-1";
    for status in [0, 1, 2, 23, 126, 127, 254, 255] {
        let steps = std::iter::once(Step::Stdout(OUT.into())).chain(end(status));
        let expected = done(i32::try_from(status).unwrap_or(255));
        t.accepted(&format!("exit_{status}"), rule, steps, expected);
    }
    for name in ["KILL", "TERM", "custom@example.org"] {
        let signal = [Step::Eof, Step::ExitSignal(name), Step::CloseChannel];
        let steps = std::iter::once(Step::Stdout(OUT.into())).chain(signal);
        t.accepted(&format!("signal_{name}"), rule, steps, done(255));
    }
    let both = [Step::Stdout(OUT.into()), Step::Stderr("warning".into())];
    let truth = Truth::Settled(0, OUT.into(), "warning".into());
    t.accepted("both_streams", rule, both.into_iter().chain(end(0)), truth);
    t.accepted("no_output", rule, end(0), Truth::Settled(0, Bytes::new(), Bytes::new()));
    let big = Bytes::from(vec![b'x'; 1 << 15]);
    let many = std::iter::repeat_n(Step::Stdout(big), 8).chain(end(0));
    t.accepted(
        "long_output",
        rule,
        many,
        Truth::Settled(0, vec![b'x'; 8 << 15].into(), Bytes::new()),
    );
    let status_first =
        [Step::ExitStatus(3), Step::Stdout(OUT.into()), Step::Eof, Step::CloseChannel];
    t.accepted("exit_status_before_output", rule, status_first, done(3));
}

/// Complete, and something beside it is odd.
fn complete_oddly(t: &mut Table) {
    let done = || Truth::Settled(0, OUT.into(), Bytes::new());
    let out = || Step::Stdout(OUT.into());
    let status = || Step::ExitStatus(0);
    let rule = "S-1; RFC 4254 section 5.3";
    t.accepted("without_eof", rule, [out(), status(), Step::CloseChannel], done());
    let twice = [out(), Step::Eof, Step::Eof, status(), Step::CloseChannel];
    t.accepted("eof_twice", rule, twice, Truth::Either(vec![done(), Truth::Open(BROKEN)]));
    let early = [Step::Apply, out(), Step::Accept, Step::Eof, status(), Step::CloseChannel];
    t.request("output_before_the_reply", rule, early, done());
    let silent = [Step::Apply, out(), Step::Eof, status(), Step::CloseChannel];
    // No reply to want-reply: what follows shows that the command ran.
    t.request(
        "no_reply_but_a_result",
        rule,
        silent,
        Truth::Either(vec![done(), Truth::Open(BROKEN)]),
    );
    for (name, message) in [
        ("ignore", &[2, 0, 0, 0, 1, b'x'][..]),
        ("debug", &[4, 0, 0, 0, 0, 1, b'x', 0, 0, 0, 0]),
        ("keepalive", &[80, 0, 0, 0, 1, b'k', 1]),
        ("unknown_request", &[98, 0, 0, 0, 0, 0, 0, 0, 1, b'r', 0]),
    ] {
        let around = Step::Message(Bytes::from_static(message));
        let steps = [around.clone(), out(), around, Step::Eof, status(), Step::CloseChannel];
        t.accepted(&format!("with_{name}"), "RFC 4253 section 11", steps, done());
    }
    for (name, end) in [("closed", Step::Close), ("reset", Step::Reset)] {
        let steps = [out(), Step::Eof, status(), Step::CloseChannel, Step::Settle, end];
        t.accepted(&format!("then_{name}"), rule, steps, done());
    }
    let steps = [out(), Step::Eof, status(), Step::CloseChannel, Step::ExitStatus(9)];
    t.accepted(
        "then_another_status",
        rule,
        steps,
        Truth::Either(vec![done(), Truth::Open(BROKEN)]),
    );
}
