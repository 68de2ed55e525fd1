use super::*;
use journal::contract::SignalName;

fn seen(change: impl FnOnce(&mut Seen)) -> Seen {
    let mut seen = Seen {
        accepted: Some(true),
        end: Some(End::Status(0)),
        eof: true,
        closed: true,
        ..Seen::default()
    };
    change(&mut seen);
    seen
}

fn code(change: impl FnOnce(&mut Seen)) -> Option<Code> {
    match seen(change).conclude() {
        Conclusion::Complete(_) => Some(Code::Ok),
        Conclusion::Refused => None,
        Conclusion::Incomplete(code, _) => Some(code),
    }
}

/// S-1, S-8: acceptance, end of both streams, status or signal, and close, or it is not complete.
#[test]
fn s_8_only_a_whole_end_is_complete() {
    assert_eq!(code(|_| {}), Some(Code::Ok));
    assert_eq!(code(|s| s.eof = false), Some(Code::Ok));
    assert_eq!(code(|s| s.end = None), Some(Code::RemoteResultIncomplete));
    assert_eq!(code(|s| s.closed = false), Some(Code::RemoteResultIncomplete));
    assert_eq!(code(|s| (s.closed, s.end) = (false, None)), Some(Code::RemoteResultIncomplete));
    let cut = code(|s| (s.eof, s.output_after_end) = (false, true));
    assert_eq!(cut, Some(Code::RemoteResultIncomplete));
    assert_eq!(code(|s| s.output_after_end = true), Some(Code::Ok));
    assert_eq!(code(|s| s.accepted = None), Some(Code::RemoteResultIncomplete));
    let never = code(|s| (s.accepted, s.closed, s.end) = (None, false, None));
    assert_eq!(never, Some(Code::RemoteOutcomeUnknown));
    assert_eq!(code(|s| s.accepted = Some(false)), None);
    let refused = |stop| code(|s| (s.accepted, s.stop) = (Some(false), Some(stop)));
    assert_eq!(refused(Stop::Deadline), None);
    assert_eq!(refused(Stop::ClientGone(Absence::Left)), None);
    assert_eq!(code(|s| s.violation = Some("x")), Some(Code::RemoteProtocolError));
    assert_eq!(code(|s| s.stop = Some(Stop::OutputLimit)), Some(Code::ResultLimit));
    let gone = |why| code(|s| s.stop = Some(Stop::ClientGone(why)));
    assert_eq!(gone(Absence::Left), Some(Code::CallerCancelled));
    assert_eq!(gone(Absence::Stalled), Some(Code::CallerCancelled));
    assert_eq!(gone(Absence::LoginOver), Some(Code::RemoteOutcomeUnknown));
}

/// A program that was killed is a committed result of the process (D-6).
#[test]
fn d_6_a_signal_is_a_committed_end() {
    let end = End::Signal {
        signal: SignalName::of("KILL"),
        core_dumped: false,
        message: String::new(),
        language: String::new(),
    };
    let record = end.to_record().unwrap();
    assert_eq!(record, SshEnd::ExitSignal(SignalName::of("KILL")));
    let verdict = settle_ssh(&record);
    assert_eq!((verdict.outcome().as_str(), verdict.code()), ("committed", Code::RemoteFailed));
}
