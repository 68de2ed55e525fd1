use super::*;
use policy::Secret;

const SECRET: &str = "sk-canary-0123456789";

fn frame(first: u8, content: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match u16::try_from(content.len()) {
        Ok(length) if length < 126 => frame.push(length.to_le_bytes()[0]),
        Ok(length) => {
            frame.push(126);
            frame.extend_from_slice(&length.to_be_bytes());
        }
        Err(_) => {
            frame.push(127);
            frame.extend_from_slice(&(content.len() as u64).to_be_bytes());
        }
    }
    [frame, content.to_vec()].concat()
}

fn redactor() -> Redactor {
    Redactor::new(&Secret::from(SECRET), &Secret::from(format!("Bearer {SECRET}").as_str()))
}

/// What goes on of pieces, each of them followed by a pause.
fn slowly(pieces: &[&[u8]]) -> Result<(Vec<u8>, bool), Malformed> {
    let mut redactor = redactor();
    let mut frames = Frames::new(&mut redactor);
    let mut all = Vec::new();
    for piece in pieces {
        all.extend_from_slice(&frames.push(BytesMut::from(*piece))?);
        if frames.is_waiting() {
            all.extend_from_slice(&frames.release());
        }
    }
    all.extend_from_slice(&frames.finish());
    Ok((all, redactor.found()))
}

fn check(sent: &[u8], expected: &[u8]) {
    let found = sent != expected;
    let bytewise: Vec<&[u8]> = sent.chunks(1).collect();
    assert_eq!(slowly(&bytewise), Ok((expected.to_vec(), found)));
    for cut in 0..=sent.len() {
        let pieces = [&sent[..cut], &sent[cut..]];
        assert_eq!(slowly(&pieces), Ok((expected.to_vec(), found)), "cut at {cut}");
    }
}

/// I-4: wherever a frame is cut and however long the pause there, nothing of the credential passes.
#[test]
fn i_4_pauses_inside_a_frame_let_nothing_pass() {
    let stars = "*".repeat(SECRET.len());
    let text = |secret: &str| format!("a {secret} sk-canary-01, {secret}");
    for first in [0x81, 0x82] {
        check(&frame(first, text(SECRET).as_bytes()), &frame(first, text(&stars).as_bytes()));
    }
    for first in [0x88, 0x89, 0x8a] {
        check(&frame(first, SECRET.as_bytes()), &frame(first, stars.as_bytes()));
    }
    let long = |secret: &str| "x".repeat(70_000) + secret + "y";
    let (sent, expected) =
        (frame(0x82, long(SECRET).as_bytes()), frame(0x82, long(&stars).as_bytes()));
    let pieces: Vec<&[u8]> = sent.chunks(7_001).collect();
    assert_eq!(slowly(&pieces), Ok((expected, true)));
    // A beginning that comes to nothing passes, at the latest with its message.
    for text in ["sk-canary-012345678", "sk-canary-01234567890"] {
        let sent =
            [frame(0x81, &text.as_bytes()[..19]), frame(0x81, b"9"), frame(0x89, b"")].concat();
        check(&sent, &sent);
    }
}

/// I-4: a message in several frames is one text, whatever control frames lie between them.
#[test]
fn i_4_messages_in_several_frames_are_one_text() {
    let whole = |secret: &str| {
        let (first, rest) = secret.split_at(9);
        let (second, third) = rest.split_at(5);
        [
            frame(0x01, format!("a {first}").as_bytes()),
            frame(0x89, b"ping"),
            frame(0x00, second.as_bytes()),
            frame(0x00, b""),
            frame(0x8a, b"pong"),
            frame(0x80, format!("{third} b").as_bytes()),
            frame(0x81, b"next"),
        ]
        .concat()
    };
    check(&whole(SECRET), &whole(&"*".repeat(SECRET.len())));
}

/// I-4: of a message whose frames are a byte each, no more than a few bytes of the credential pass.
#[test]
fn i_4_of_slow_fragments_a_few_bytes_pass() {
    let message = |secret: &str| {
        let mut all = vec![frame(0x01, b"a ")];
        all.extend(secret.bytes().map(|byte| frame(0x00, &[byte])));
        all.push(frame(0x80, b""));
        all
    };
    let sent = message(SECRET);
    let (passed, found) = slowly(&sent.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
    let sent = sent.concat();
    assert_eq!(passed.len(), sent.len());
    assert!(found);
    let few = 7;
    let expected = SECRET[..few].to_owned() + &"*".repeat(SECRET.len() - few);
    assert_eq!(
        String::from_utf8_lossy(&passed),
        String::from_utf8_lossy(&message(&expected).concat())
    );
    // At once, all of it is replaced.
    let (passed, _) = slowly(&[&sent]).unwrap();
    assert_eq!(passed, message(&"*".repeat(SECRET.len())).concat());
}

/// RFC 6455 section 5: what a client has to fail the connection for is cut here.
#[test]
fn malformed_frames_are_refused() {
    let cases: [&[u8]; 9] = [
        &[0xc1, 0],
        &[0x81, 0x80, 0, 0, 0, 0],
        &[0x83, 0],
        &[0x8b, 0],
        &[0x80, 0],
        &[0x09, 0],
        &[0x89, 126, 0, 126],
        &[0x01, 0, 0x81, 0],
        &[0x00, 0],
    ];
    for case in cases {
        assert_eq!(slowly(&[case]), Err(Malformed), "{case:x?}");
    }
    let waiting =
        [frame(0x01, &SECRET.as_bytes()[..12]), frame(0x89, b"ping").repeat(12_000)].concat();
    assert_eq!(slowly(&[&waiting]), Err(Malformed));
}
