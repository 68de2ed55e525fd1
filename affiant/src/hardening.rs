//! Keeps memory with secrets out of files that the system writes.

/// Forbids core dumps of this process, and other processes of the user to read its memory.
///
/// Programs that the process starts are not concerned: the flag ends with their `exec`.
#[cfg(target_os = "linux")]
pub(crate) fn forbid_dumps() {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "core dumps of this process can't be forbidden");
    }
}

/// Forbids core dumps of this process, as far as a limit can.
#[cfg(not(target_os = "linux"))]
pub(crate) fn forbid_dumps() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "core dumps of this process can't be forbidden");
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    /// I-2: no core file can hold a secret.
    #[test]
    fn i_2_no_core_is_dumped() {
        super::forbid_dumps();
        let behavior = rustix::process::dumpable_behavior();
        assert_eq!(behavior, Ok(rustix::process::DumpableBehavior::NotDumpable));
    }
}
