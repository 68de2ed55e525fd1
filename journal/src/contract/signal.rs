//! Names of exit signals. A target says them, so only names that are known, or that have the form of
//! a name, get into a record.

use super::wire::wire_enum;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The longest name of an extension (RFC 4251 section 6).
const MAX_BYTES: usize = 64;

/// What stands for a name that is none.
const OTHER: &str = "other@affiant";

wire_enum! {
    /// Signals by their names without `SIG`: those of RFC 4254 section 6.10 first, then the others of
    /// POSIX and Linux, which some servers send in the same form.
    "signal" enum Signal {
        /// Abnormal end.
        Abrt = "ABRT",
        /// A timer.
        Alrm = "ALRM",
        /// Wrong arithmetic.
        Fpe = "FPE",
        /// The terminal is gone.
        Hup = "HUP",
        /// No instruction.
        Ill = "ILL",
        /// An interrupt by a person.
        Int = "INT",
        /// The end that can't be refused.
        Kill = "KILL",
        /// A pipe without a reader.
        Pipe = "PIPE",
        /// An end with a core, by a person.
        Quit = "QUIT",
        /// Memory that is not there.
        Segv = "SEGV",
        /// A request to end.
        Term = "TERM",
        /// A program's own, the first.
        Usr1 = "USR1",
        /// A program's own, the second.
        Usr2 = "USR2",
        /// Memory that can't be reached so.
        Bus = "BUS",
        /// A device is ready.
        Io = "IO",
        /// The same by its older name.
        Poll = "POLL",
        /// A profiling timer.
        Prof = "PROF",
        /// Power fails.
        Pwr = "PWR",
        /// A coprocessor's stack.
        Stkflt = "STKFLT",
        /// No such system call.
        Sys = "SYS",
        /// A trap of a debugger.
        Trap = "TRAP",
        /// A timer of the process.
        Vtalrm = "VTALRM",
        /// Too much processor time.
        Xcpu = "XCPU",
        /// Too large a file.
        Xfsz = "XFSZ",
    }
}

/// The name of a signal of an implementation's own, `name@domain` (RFC 4254 section 6.10).
///
/// Invariant: at most 64 bytes of printable ASCII without blanks and commas, and one `@` that neither
/// begins nor ends it (RFC 4251 section 6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalName(String);

/// The exit signal of an SSH command, without `SIG`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignalName {
    /// A signal that is known.
    Known(Signal),
    /// One of the target's own.
    Local(LocalName),
    /// The target named none of either form.
    Other,
}

impl SignalName {
    /// Reads what a target, or a record, says. A target's word has to be free of secrets before.
    #[must_use]
    pub fn of(name: &str) -> Self {
        if let Ok(known) = name.parse() {
            return Self::Known(known);
        }
        let is_plain = name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
        let is_local = name
            .split_once('@')
            .is_some_and(|(own, at)| !own.is_empty() && !at.is_empty() && !at.contains('@'));
        if is_plain && is_local && name.len() <= MAX_BYTES && name != OTHER {
            Self::Local(LocalName(name.to_owned()))
        } else {
            Self::Other
        }
    }

    /// The name on the wire and in records.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(signal) => signal.as_str(),
            Self::Local(LocalName(name)) => name,
            Self::Other => OTHER,
        }
    }
}

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for SignalName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Older logs hold whatever a target said: what is no name is read as that.
impl<'de> Deserialize<'de> for SignalName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Ok(Self::of(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::SshEnd;

    /// I-2, M-2: a name that is known or has the form of one stays; of anything else nothing does.
    #[test]
    fn i_2_only_names_of_signals_get_into_records() {
        let longest = format!("{}@d", "x".repeat(MAX_BYTES - 2));
        let too_long = format!("x{longest}");
        for (said, kept) in [
            ("KILL", "KILL"),
            ("USR2", "USR2"),
            ("BUS", "BUS"),
            ("SIG@openssh.com", "SIG@openssh.com"),
            (longest.as_str(), longest.as_str()),
            (too_long.as_str(), OTHER),
            ("kill", OTHER),
            ("pw-zyxwvutsrq", OTHER),
            ("", OTHER),
            ("@x", OTHER),
            ("x@", OTHER),
            ("x@y@z", OTHER),
            ("x y@z", OTHER),
            ("x,y@z", OTHER),
            ("x@\u{e9}", OTHER),
            ("x\n@y", OTHER),
            (OTHER, OTHER),
        ] {
            assert_eq!(SignalName::of(said).as_str(), kept, "{said:?}");
            let json = serde_json::json!({ "exit_signal": said });
            let end: SshEnd = serde_json::from_value(json).unwrap();
            assert_eq!(end, SshEnd::ExitSignal(SignalName::of(said)));
            let written = serde_json::to_value(&end).unwrap();
            assert_eq!(written, serde_json::json!({ "exit_signal": kept }));
        }
        assert_eq!(SignalName::of("KILL"), SignalName::Known(Signal::Kill));
        assert_eq!(SignalName::of(OTHER), SignalName::Other);
    }
}
