//! What an sftp session does, read beside it: operations with paths and how each ended.
//!
//! Follows the file transfer protocol, version 3 (draft-ietf-secsh-filexfer-02), which every client
//! and server speaks. It only looks on: no byte is altered or held back, and what it can't read it
//! says it can't. Memory is bounded: of a packet only the beginning is kept, and requests without
//! an answer and open files are counted. Reads and writes are summed per file. Questions that
//! change nothing (stat, readdir, realpath ...) are counted.

#[path = "sftp/wire.rs"]
mod wire;

use serde_json::{Value, json};
use std::collections::HashMap;
use wire::{DATA, Fields, MAX_HANDLE_BYTES, Packets, WRITE, shown};

/// Requests without an answer.
const MAX_ASKED: usize = 8192;
/// Open files and folders.
const MAX_FILES: usize = 1024;

/// Questions among the extensions of OpenSSH; other extensions are recorded.
const QUESTIONS: [&[u8]; 7] = [
    b"statvfs@openssh.com",
    b"fstatvfs@openssh.com",
    b"limits@openssh.com",
    b"expand-path@openssh.com",
    b"home-directory",
    b"users-groups-by-id@openssh.com",
    b"vendor-id",
];

/// What a request asked for.
#[derive(Debug)]
enum Asked {
    Open {
        path: String,
        access: String,
    },
    List {
        path: String,
    },
    Close {
        handle: Vec<u8>,
    },
    Read {
        handle: Vec<u8>,
    },
    Write {
        handle: Vec<u8>,
        length_bytes: u32,
    },
    Change(Value),
    /// Something that changes nothing.
    Question,
    /// Several requests under one id, of which so many have no answer yet: which answer is whose
    /// can't be told.
    Ambiguous(u32),
}

/// An open file or folder.
#[derive(Debug)]
struct File {
    path: String,
    is_folder: bool,
    read_bytes: u64,
    written_bytes: u64,
    /// How reads and writes failed first.
    failed: Option<&'static str>,
}

/// Everything in sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Operations that were recorded.
    pub(crate) operations: u64,
    /// Questions that change nothing.
    pub(crate) questions: u64,
    /// File content that was read.
    pub(crate) read_bytes: u64,
    /// File content that was written, as the server confirmed it.
    pub(crate) written_bytes: u64,
    /// Whether everything was understood.
    pub(crate) is_whole: bool,
}

/// The observer of one session.
#[derive(Debug, Default)]
pub(crate) struct Sftp {
    requests: Packets,
    replies: Packets,
    asked: HashMap<u32, Asked>,
    files: HashMap<Vec<u8>, File>,
    totals: Totals,
    is_lossy: bool,
    /// What is to be told with the next replies.
    told: Vec<Value>,
}

impl Sftp {
    /// Looks at bytes of the client, before the server can answer them.
    pub(crate) fn request(&mut self, data: &[u8]) {
        let Self { requests, asked, files, totals, is_lossy, told, .. } = self;
        requests.push(data, |packet| match read_request(packet, files) {
            Some(Said::Nothing) => {}
            Some(Said::Asked(id, what)) => {
                totals.questions += u64::from(matches!(what, Asked::Question));
                let count = match asked.remove(&id) {
                    None => 0,
                    Some(Asked::Ambiguous(count)) => count,
                    Some(earlier) => {
                        told.extend(undecided(earlier, files, "AMBIGUOUS"));
                        1
                    }
                };
                let what = if count == 0 {
                    what
                } else {
                    *is_lossy = true;
                    told.extend(undecided(what, files, "AMBIGUOUS"));
                    Asked::Ambiguous(count.saturating_add(1))
                };
                if asked.len() < MAX_ASKED {
                    asked.insert(id, what);
                } else {
                    *is_lossy = true;
                }
                told.truncate(MAX_ASKED);
            }
            None => *is_lossy = true,
        });
    }

    /// Looks at bytes of the server; answers the operations that they decide.
    pub(crate) fn reply(&mut self, data: &[u8]) -> Vec<Value> {
        let mut done = std::mem::take(&mut self.told);
        let Self { replies, asked, files, totals, is_lossy, .. } = self;
        replies.push(data, |packet| {
            let Some(reply) = read_reply(packet) else {
                *is_lossy = true;
                return;
            };
            let Some((id, reply)) = reply else { return };
            match asked.remove(&id) {
                Some(Asked::Ambiguous(count)) if count > 1 => {
                    asked.insert(id, Asked::Ambiguous(count - 1));
                }
                Some(what) => done.extend(decide(what, reply, files, totals, is_lossy)),
                None => *is_lossy = true,
            }
        });
        self.totals.operations += done.len() as u64;
        done
    }

    /// The end of the session: what is open or without an answer is told as that.
    pub(crate) fn finish(&mut self) -> Vec<Value> {
        let mut left: Vec<(u32, Asked)> = self.asked.drain().collect();
        left.sort_unstable_by_key(|(id, _)| *id);
        let mut done = std::mem::take(&mut self.told);
        for (_, what) in left {
            done.extend(undecided(what, &mut self.files, "UNANSWERED"));
        }
        // One path may be open twice; its handles tell which comes first.
        let mut open: Vec<(Vec<u8>, File)> = self.files.drain().collect();
        open.sort_unstable_by(|(one, a), (other, b)| (&a.path, one).cmp(&(&b.path, other)));
        done.extend(open.iter().map(|(_, file)| closed(file, "NOT_CLOSED")));
        self.totals.operations += done.len() as u64;
        done
    }

    /// The sums so far.
    pub(crate) fn totals(&self) -> Totals {
        let is_broken = self.requests.is_broken || self.replies.is_broken;
        Totals { is_whole: !self.is_lossy && !is_broken, ..self.totals }
    }
}

enum Said {
    Nothing,
    Asked(u32, Asked),
}

/// Reads a request; none if it is none.
fn read_request(packet: &[u8], files: &HashMap<Vec<u8>, File>) -> Option<Said> {
    let mut fields = Fields(packet);
    let kind = fields.byte()?;
    // The version comes without an id.
    if kind == 1 {
        return Some(Said::Nothing);
    }
    let id = fields.u32()?;
    let path_of = |handle: &[u8]| {
        files.get(handle).map_or_else(|| "(unknown)".to_owned(), |file| file.path.clone())
    };
    let one = |name: &str, path: String| Asked::Change(json!({ "op": name, "path": path }));
    let two = |name: &str, path: String, to: String| {
        Asked::Change(json!({ "op": name, "path": path, "to": to }))
    };
    let what = match kind {
        3 => Asked::Open { path: fields.path()?, access: access(fields.u32()?) },
        4 => Asked::Close { handle: fields.handle()? },
        5 => Asked::Read { handle: fields.handle()? },
        WRITE => {
            let handle = fields.handle()?;
            fields.u64()?;
            Asked::Write { handle, length_bytes: fields.u32()? }
        }
        9 => {
            let path = fields.path()?;
            Asked::Change(json!({ "op": "setstat", "path": path, "set": attributes(&mut fields)? }))
        }
        10 => {
            let path = path_of(fields.string()?);
            Asked::Change(json!({ "op": "setstat", "path": path, "set": attributes(&mut fields)? }))
        }
        11 => Asked::List { path: fields.path()? },
        13 => one("remove", fields.path()?),
        14 => one("mkdir", fields.path()?),
        15 => one("rmdir", fields.path()?),
        18 => two("rename", fields.path()?, fields.path()?),
        // Servers and clients disagree on the order; this is the one on the wire.
        20 => two("symlink", fields.path()?, fields.path()?),
        200 => return extended(id, &mut fields, path_of),
        7 | 8 | 12 | 16 | 17 | 19 => Asked::Question,
        _ => return None,
    };
    Some(Said::Asked(id, what))
}

fn extended(id: u32, fields: &mut Fields<'_>, path_of: impl Fn(&[u8]) -> String) -> Option<Said> {
    let name = fields.string()?;
    if QUESTIONS.contains(&name) {
        return Some(Said::Asked(id, Asked::Question));
    }
    let what = match name {
        b"posix-rename@openssh.com" => {
            json!({ "op": "rename", "path": fields.path()?, "to": fields.path()? })
        }
        b"hardlink@openssh.com" => {
            json!({ "op": "hardlink", "path": fields.path()?, "to": fields.path()? })
        }
        b"lsetstat@openssh.com" => {
            json!({ "op": "setstat", "path": fields.path()?, "set": attributes(fields)? })
        }
        b"fsync@openssh.com" => json!({ "op": "fsync", "path": path_of(fields.string()?) }),
        b"copy-data" => {
            let from = path_of(fields.string()?);
            let (_, length) = (fields.u64()?, fields.u64()?);
            let to = path_of(fields.string()?);
            json!({ "op": "copy", "path": from, "to": to, "length_bytes": length })
        }
        other => json!({ "op": "extended", "name": shown(other) }),
    };
    Some(Said::Asked(id, Asked::Change(what)))
}

/// How a file is opened (section 6.3 of the draft).
fn access(flags: u32) -> String {
    let names = ["read", "write", "append", "create", "truncate", "exclusive"];
    let set = names.iter().zip(0..).filter(|(_, bit)| flags & (1 << bit) != 0);
    set.map(|(name, _)| *name).collect::<Vec<_>>().join(",")
}

/// Which attributes are set, and to what (section 5 of the draft).
fn attributes(fields: &mut Fields<'_>) -> Option<String> {
    let flags = fields.u32()?;
    let mut set = Vec::new();
    if flags & 1 != 0 {
        set.push(format!("size={}", fields.u64()?));
    }
    if flags & 2 != 0 {
        set.push(format!("owner={}:{}", fields.u32()?, fields.u32()?));
    }
    if flags & 4 != 0 {
        set.push(format!("mode={:o}", fields.u32()?));
    }
    if flags & 8 != 0 {
        set.push("times".to_owned());
    }
    Some(set.join(" "))
}

enum Reply<'a> {
    Status(&'static str),
    Handle(&'a [u8]),
    Data(u32),
    Other,
}

/// Reads a reply; the inner none is the server's version.
fn read_reply(packet: &[u8]) -> Option<Option<(u32, Reply<'_>)>> {
    let mut fields = Fields(packet);
    let kind = fields.byte()?;
    if kind == 2 {
        return Some(None);
    }
    let id = fields.u32()?;
    let reply = match kind {
        101 => Reply::Status(status(fields.u32()?)),
        102 => Reply::Handle(fields.string()?),
        DATA => Reply::Data(fields.u32()?),
        104 | 105 | 201 => Reply::Other,
        _ => return None,
    };
    Some(Some((id, reply)))
}

/// The name of a status (section 7 of the draft).
const fn status(code: u32) -> &'static str {
    match code {
        0 => "OK",
        1 => "EOF",
        2 => "NO_SUCH_FILE",
        3 => "PERMISSION_DENIED",
        4 => "FAILURE",
        5 => "BAD_MESSAGE",
        6 => "NO_CONNECTION",
        7 => "CONNECTION_LOST",
        8 => "OP_UNSUPPORTED",
        _ => "OTHER",
    }
}

/// What a reply makes of a request.
fn decide(
    what: Asked,
    reply: Reply<'_>,
    files: &mut HashMap<Vec<u8>, File>,
    totals: &mut Totals,
    is_lossy: &mut bool,
) -> Option<Value> {
    let status = match &reply {
        Reply::Status(status) => status,
        Reply::Handle(_) | Reply::Data(_) | Reply::Other => "OK",
    };
    match what {
        Asked::Open { path, access } => {
            let told = json!({ "op": "open", "path": path, "access": access, "status": status });
            opened(path, false, &reply, files, is_lossy);
            Some(told)
        }
        Asked::List { path } => {
            let told = json!({ "op": "list", "path": path, "status": status });
            opened(path, true, &reply, files, is_lossy);
            Some(told)
        }
        Asked::Close { handle } => {
            let file = files.remove(&handle)?;
            (!file.is_folder).then(|| closed(&file, status))
        }
        Asked::Read { handle } => {
            let file = files.get_mut(&handle)?;
            if let Reply::Data(length_bytes) = reply {
                file.read_bytes = file.read_bytes.saturating_add(u64::from(length_bytes));
                totals.read_bytes = totals.read_bytes.saturating_add(u64::from(length_bytes));
            } else if status != "EOF" {
                file.failed.get_or_insert(status);
            }
            None
        }
        Asked::Write { handle, length_bytes } => {
            let file = files.get_mut(&handle)?;
            if status == "OK" {
                file.written_bytes = file.written_bytes.saturating_add(u64::from(length_bytes));
                totals.written_bytes = totals.written_bytes.saturating_add(u64::from(length_bytes));
            } else {
                file.failed.get_or_insert(status);
            }
            None
        }
        Asked::Change(told) => Some(with_status(told, status)),
        Asked::Question | Asked::Ambiguous(_) => None,
    }
}

fn opened(
    path: String,
    is_folder: bool,
    reply: &Reply<'_>,
    files: &mut HashMap<Vec<u8>, File>,
    is_lossy: &mut bool,
) {
    let Reply::Handle(handle) = reply else { return };
    if handle.len() > MAX_HANDLE_BYTES || files.len() >= MAX_FILES {
        *is_lossy = true;
        return;
    }
    let file = File { path, is_folder, read_bytes: 0, written_bytes: 0, failed: None };
    // A handle that is in use already: what comes on it is of either file.
    *is_lossy |= files.insert(handle.to_vec(), file).is_some();
}

fn closed(file: &File, status: &str) -> Value {
    let mut told = json!({
        "op": "close",
        "path": file.path,
        "read_bytes": file.read_bytes,
        "written_bytes": file.written_bytes,
        "status": status,
    });
    if let (Some(told), Some(failed)) = (told.as_object_mut(), file.failed) {
        told.insert("failed".to_owned(), failed.into());
    }
    told
}

/// An operation whose answer never came, or can't be told from another's.
fn undecided(
    what: Asked,
    files: &mut HashMap<Vec<u8>, File>,
    status: &'static str,
) -> Option<Value> {
    match what {
        Asked::Open { path, access } => {
            Some(json!({ "op": "open", "path": path, "access": access, "status": status }))
        }
        Asked::Close { handle } => files.remove(&handle).map(|file| closed(&file, status)),
        Asked::Write { handle, .. } => {
            if let Some(file) = files.get_mut(&handle) {
                file.failed.get_or_insert(status);
            }
            None
        }
        Asked::Change(told) => Some(with_status(told, status)),
        Asked::List { path } if status == "AMBIGUOUS" => {
            Some(json!({ "op": "list", "path": path, "status": status }))
        }
        Asked::Read { .. } | Asked::List { .. } | Asked::Question | Asked::Ambiguous(_) => None,
    }
}

fn with_status(mut told: Value, status: &str) -> Value {
    if let Some(told) = told.as_object_mut() {
        told.insert("status".to_owned(), status.into());
    }
    told
}

#[cfg(test)]
#[path = "sftp_tests.rs"]
mod tests;
