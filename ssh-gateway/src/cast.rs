//! A terminal session as an asciicast, version 2: a line of JSON that describes it, then one per
//! piece of output, change of size or mark.

use std::time::Duration;

/// The size of a session without a terminal.
const SIZE: [u32; 2] = [80, 24];

/// Writes the lines of one recording. Output that ends inside a character waits for its rest.
#[derive(Debug, Default)]
pub(crate) struct Cast {
    /// Incomplete characters, of stdout and stderr.
    waiting: [Vec<u8>; 2],
}

/// What a recording says of its session.
#[derive(Debug)]
pub(crate) struct About<'a> {
    /// Columns and rows, if there is a terminal.
    pub(crate) size: Option<[u32; 2]>,
    /// The terminal's type.
    pub(crate) term: Option<&'a str>,
    /// Where the session is.
    pub(crate) title: &'a str,
    /// When it began, seconds since 1970.
    pub(crate) began_s: u64,
}

impl Cast {
    /// The first line.
    pub(crate) fn header(about: &About<'_>) -> String {
        let [width, height] = about.size.filter(|size| !size.contains(&0)).unwrap_or(SIZE);
        let mut header = serde_json::json!({
            "version": 2,
            "width": width,
            "height": height,
            "timestamp": about.began_s,
            "title": about.title,
        });
        if let (Some(header), Some(term)) = (header.as_object_mut(), about.term) {
            header.insert("env".to_owned(), serde_json::json!({ "TERM": term }));
        }
        format!("{header}\n")
    }

    /// The line of a piece of output; none while nothing but the beginning of a character is there.
    pub(crate) fn output(&mut self, at: Duration, is_stderr: bool, data: &[u8]) -> Option<String> {
        let [stdout, stderr] = &mut self.waiting;
        let waiting = if is_stderr { stderr } else { stdout };
        waiting.extend_from_slice(data);
        let mut text = String::with_capacity(waiting.len());
        let mut rest = 0;
        for chunk in waiting.utf8_chunks() {
            text.push_str(chunk.valid());
            rest += chunk.valid().len();
            if chunk.invalid().is_empty() {
                continue;
            }
            if rest + chunk.invalid().len() == waiting.len() && may_go_on(chunk.invalid()) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            rest += chunk.invalid().len();
        }
        waiting.drain(..rest);
        (!text.is_empty()).then(|| line(at, "o", &text))
    }

    /// The line of a new size of the terminal.
    pub(crate) fn resized(at: Duration, [columns, rows]: [u32; 2]) -> String {
        line(at, "r", &format!("{columns}x{rows}"))
    }

    /// The line of a mark.
    pub(crate) fn mark(at: Duration, text: &str) -> String {
        line(at, "m", text)
    }
}

/// Whether the bytes are the beginning of a character.
fn may_go_on(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

fn line(at: Duration, kind: &str, text: &str) -> String {
    // Microseconds, as a number without rounding noise.
    let (seconds, micros) = (at.as_secs(), at.subsec_micros());
    format!("[{seconds}.{micros:06}, \"{kind}\", {}]\n", serde_json::Value::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(pieces: &[&[u8]]) -> String {
        let mut cast = Cast::default();
        pieces.iter().filter_map(|piece| cast.output(Duration::ZERO, false, piece)).collect()
    }

    #[test]
    fn characters_in_pieces_come_out_whole() {
        assert_eq!(recorded(&["h\u{e9}".as_bytes()]), "[0.000000, \"o\", \"h\u{e9}\"]\n");
        assert_eq!(
            recorded(&[b"a\xe2\x82", b"\xacb"]),
            "[0.000000, \"o\", \"a\"]\n[0.000000, \"o\", \"\u{20ac}b\"]\n"
        );
        assert_eq!(
            recorded(&[b"a\xff\xfe", b"b"]),
            "[0.000000, \"o\", \"a\u{fffd}\u{fffd}\"]\n\
             [0.000000, \"o\", \"b\"]\n"
        );
        assert_eq!(recorded(&[b"\xe2\x82", b"x"]), "[0.000000, \"o\", \"\u{fffd}x\"]\n");
    }

    #[test]
    fn lines_are_those_of_asciicast_2() {
        let about = About { size: Some([100, 30]), term: Some("xterm"), title: "t", began_s: 7 };
        let header: serde_json::Value = serde_json::from_str(&Cast::header(&about)).unwrap();
        assert_eq!(
            header,
            serde_json::json!({
                "version": 2, "width": 100, "height": 30, "timestamp": 7, "title": "t",
                "env": { "TERM": "xterm" },
            })
        );
        let at = Duration::from_micros(1_234_567);
        assert_eq!(Cast::resized(at, [80, 25]), "[1.234567, \"r\", \"80x25\"]\n");
        assert_eq!(Cast::mark(at, "a\"b"), "[1.234567, \"m\", \"a\\\"b\"]\n");
        let bare = About { size: None, term: None, title: "t", began_s: 7 };
        assert!(Cast::header(&bare).contains("\"width\":80"));
    }
}
