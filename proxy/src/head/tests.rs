use super::*;

fn check(text: &str, expected: Result<Framing, Fault>) {
    let mut searched = 0;
    let found = find_end(text.as_bytes(), &mut searched);
    let parsed = match found {
        Some(Ok(end)) => request(&Bytes::copy_from_slice(&text.as_bytes()[..end])),
        Some(Err(fault)) => Err(fault),
        None => panic!("no end in {text:?}"),
    };
    assert_eq!(parsed.and_then(|head| request_framing(&head)), expected, "{text:?}");
}

/// V-1: what leaves doubt about the message is refused.
#[test]
fn v_1_requests_with_doubtful_framing_are_refused() {
    check("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Ok(Framing::Empty));
    check("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n", Ok(Framing::Length(3)));
    check("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n", Ok(Framing::Chunked));
    for (fields, fault) in [
        ("Content-Length: 3\r\nContent-Length: 3", Fault::ContentLength),
        ("Content-Length: 3, 3", Fault::ContentLength),
        ("Content-Length: +3", Fault::ContentLength),
        ("Content-Length: 0x3", Fault::ContentLength),
        ("Content-Length:", Fault::ContentLength),
        ("Content-Length: 99999999999999999999", Fault::ContentLength),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked", Fault::ConflictingFraming),
        ("Transfer-Encoding: gzip, chunked", Fault::TransferEncoding),
        ("Transfer-Encoding: chunked, chunked", Fault::TransferEncoding),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", Fault::TransferEncoding),
        ("Transfer-Encoding: identity", Fault::TransferEncoding),
        ("Transfer-Encoding: \"chunked\"", Fault::TransferEncoding),
        ("Transfer-Encoding : chunked", Fault::FieldName),
        ("A: b\r\n c", Fault::Folded),
        (" A: b", Fault::Folded),
        ("A: b\nC: d", Fault::LineEnd),
        ("A: b\rc", Fault::LineEnd),
        ("A: b\0c", Fault::LineEnd),
        ("A: b\x01c", Fault::FieldValue),
        ("A: b\x7fc", Fault::FieldValue),
        (": b", Fault::FieldName),
        ("no colon", Fault::FieldName),
        ("A(b: c", Fault::FieldName),
    ] {
        check(&format!("POST / HTTP/1.1\r\n{fields}\r\n\r\n"), Err(fault));
    }
    check("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", Err(Fault::TransferEncoding));
}

#[test]
fn v_1_start_lines_have_one_form() {
    for (line, fault) in [
        ("GET  / HTTP/1.1", Fault::StartLine),
        ("GET / HTTP/1.1 ", Fault::StartLine),
        ("GET /", Fault::StartLine),
        ("G(T / HTTP/1.1", Fault::StartLine),
        ("GET /\t HTTP/1.1", Fault::StartLine),
        ("GET /\u{e9} HTTP/1.1", Fault::Target),
        ("GET / HTTP/2.0", Fault::Version),
        ("GET / http/1.1", Fault::Version),
        ("PRI * HTTP/2.0", Fault::ClearTextHttp2),
        ("", Fault::StartLine),
    ] {
        check(&format!("{line}\r\nA: b\r\n\r\n"), Err(fault));
    }
}

#[test]
fn fields_keep_order_spelling_and_duplicates() {
    let head = request(&Bytes::from_static(
        b"GET / HTTP/1.1\r\nX-b:  1 \r\nx-A:\t2\r\nX-B: \xff\r\nE:\r\n\r\n",
    ))
    .expect("head");
    let fields: Vec<_> = head.fields.iter().collect();
    let expected: [(&[u8], &[u8]); 4] =
        [(b"X-b", b"1"), (b"x-A", b"2"), (b"X-B", b"\xff"), (b"E", b"")];
    assert_eq!(fields, expected);
    assert_eq!(head.fields.all("x-b").count(), 2);
}

#[test]
fn limits_hold() {
    let many = "A: b\r\n".repeat(MAX_FIELDS + 1);
    check(&format!("GET / HTTP/1.1\r\n{many}\r\n"), Err(Fault::TooManyFields));
    let long = "a".repeat(MAX_BYTES);
    check(&format!("GET / HTTP/1.1\r\nA: {long}\r\n\r\n"), Err(Fault::TooLong));
}

#[test]
fn heads_are_found_across_reads() {
    let text = b"GET / HTTP/1.1\r\nA: b\r\n\r\nbody";
    let mut searched = 0;
    for end in 0..24 {
        assert_eq!(find_end(&text[..end], &mut searched), None, "{end}");
    }
    assert_eq!(find_end(text, &mut searched), Some(Ok(24)));
}

#[test]
fn responses_are_framed_by_rule() {
    let framing = |text: &str, method: &str| {
        response(&Bytes::copy_from_slice(text.as_bytes()))
            .and_then(|head| response_framing(&head, method))
    };
    for (text, method, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "GET", Ok(Framing::Length(5))),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HEAD", Ok(Framing::Empty)),
        ("HTTP/1.1 304 \r\nContent-Length: 5\r\n\r\n", "GET", Ok(Framing::Empty)),
        ("HTTP/1.1 204\r\n\r\n", "GET", Ok(Framing::Empty)),
        ("HTTP/1.1 200 OK\r\n\r\n", "GET", Ok(Framing::Close)),
        ("HTTP/1.0 200 OK\r\n\r\n", "GET", Ok(Framing::Close)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", Ok(Framing::Chunked)),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "GET",
            Err(Fault::ContentLength),
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET",
            Err(Fault::ConflictingFraming),
        ),
        ("HTTP/1.1 20 OK\r\n\r\n", "GET", Err(Fault::StartLine)),
        ("HTTP/1.1 700 OK\r\n\r\n", "GET", Err(Fault::StartLine)),
        ("ICY 200 OK\r\n\r\n", "GET", Err(Fault::Version)),
    ] {
        assert_eq!(framing(text, method), expected, "{text:?}");
    }
}

proptest::proptest! {
    /// Whatever comes, the parser answers, and the same however the bytes arrive; what it takes
    /// for a request is written again as it was.
    #[test]
    fn any_bytes_are_answered(text in "[ -~\r\n\t\0]{0,80}", cut in 0..80_usize) {
        let text = format!("GET /x HTTP/1.1\r\n{text}\r\n\r\n");
        let mut whole = 0;
        let at_once = find_end(text.as_bytes(), &mut whole);
        let mut pieces = 0;
        let start = &text.as_bytes()[..cut.min(text.len())];
        let in_pieces = find_end(start, &mut pieces)
            .or_else(|| find_end(text.as_bytes(), &mut pieces));
        proptest::prop_assert_eq!(at_once, in_pieces);
        let Some(Ok(end)) = at_once else { return Ok(()) };
        let Ok(head) = request(&Bytes::copy_from_slice(&text.as_bytes()[..end])) else {
            return Ok(());
        };
        let mut again = b"GET /x HTTP/1.1\r\n".to_vec();
        for (name, value) in head.fields.iter() {
            again.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
        }
        again.extend_from_slice(b"\r\n");
        let parsed = request(&Bytes::from(again)).expect("what was parsed parses again");
        let fields: Vec<_> = head.fields.iter().collect();
        proptest::prop_assert_eq!(fields, parsed.fields.iter().collect::<Vec<_>>());
    }
}
