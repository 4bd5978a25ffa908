use proptest::prelude::*;

use super::*;

fn parse_all(input: &[u8]) -> (Vec<Vec<Vec<u8>>>, ParseProgress) {
    let mut buffer = input.to_vec();
    let mut batch = Batch::default();
    let parsed = Parser::new().parse(&mut buffer, &mut batch, &ParseLimits::default());
    (collect_requests(&batch, &buffer), parsed)
}

fn collect_requests(batch: &Batch, buffer: &[u8]) -> Vec<Vec<Vec<u8>>> {
    (0..batch.len()).map(|index| batch.args(index, buffer).iter().map(<[u8]>::to_vec).collect()).collect()
}

/// Parses `input` in the given pieces. Like a connection, removes the consumed bytes after each piece.
fn parse_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let (mut parser, mut buffer, mut all) = (Parser::new(), Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let mut batch = Batch::default();
        let parsed = parser.parse(&mut buffer, &mut batch, &ParseLimits::default());
        all.extend(collect_requests(&batch, &buffer));
        buffer.drain(..parsed.consumed_bytes);
        if parsed.error.is_some() {
            return (all, parsed.error);
        }
    }
    (all, None)
}

fn to_byte_words(request: &[&str]) -> Vec<Vec<u8>> {
    request.iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn parses_pipeline_of_inline_and_multibulk_requests() {
    let complete = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\nping\r\n\r\n*0\r\n*-1\r\nset a \"b c\"\r\n";
    let (found, parsed) = parse_all(format!("{complete}*1\r\n$4\r\nPI").as_bytes());
    assert_eq!(
        found,
        [to_byte_words(&["GET", "k"]), to_byte_words(&["ping"]), to_byte_words(&["set", "a", "b c"])]
    );
    assert_eq!(parsed.error, None);
    assert_eq!(parsed.consumed_bytes, complete.len());
}

#[test]
fn reports_missing_argument_bytes() {
    let table = [
        ("*2\r\n$3\r\nGET\r\n$10\r\nabc", 9),
        ("*2\r\n$3\r\nGET\r\n$10\r\n", 12),
        ("*2\r\n$3\r\nGET\r\n$10\r\n0123456789\r", 1),
        ("*2\r\n$3\r\nGET\r\n$10", 0),
        ("*2\r\n$3\r\nGET\r\n", 0),
        ("*2", 0),
        ("GET", 0),
        ("", 0),
    ];
    for (bytes, missing) in table {
        for before in ["", "*1\r\n$4\r\nPING\r\n"] {
            let (mut parser, mut buffer) = (Parser::new(), format!("{before}{bytes}").into_bytes());
            let parsed = parser.parse(&mut buffer, &mut Batch::default(), &ParseLimits::default());
            assert_eq!(
                parser.missing_argument_bytes(&buffer[parsed.consumed_bytes..]),
                missing,
                "{before:?} {bytes:?}"
            );
        }
    }
}

#[test]
fn inline_requests_support_quoting() {
    let table: &[(&str, &[&[u8]])] = &[
        ("set k 'it\\'s'", &[b"set", b"k", b"it's"]),
        (r#"a "\x41\n\t\"\\\q" b"#, &[b"a", b"A\n\t\"\\q", b"b"]),
        (r#"pre"quo ted" x"#, &[b"prequo ted", b"x"]),
        (r#""" e"#, &[b"", b"e"]),
        (r#""\xzz""#, &[b"xzz"]),
        ("  a\tb  ", &[b"a", b"b"]),
        (r#"a "b"c 'd'e"#, &[b"a", b"bc", b"de"]),
        (r#""a"'b'"c" a"b'c"d"#, &[b"abc", b"ab'cd"]),
        // At the end of a line, a backslash cannot escape the closing quote.
        (r#"a "b\""#, &[b"a", b"b\\"]),
        (r"a 'b\'", &[b"a", b"b\\"]),
    ];
    for (line, expected) in table {
        let (found, parsed) = parse_all(format!("{line}\n").as_bytes());
        assert_eq!(parsed.error, None, "{line}");
        assert_eq!(found, [expected.iter().map(|word| word.to_vec()).collect::<Vec<_>>()], "{line}");
    }
}

#[test]
fn vertical_tab_does_not_end_a_word() {
    let (requests, _) = parse_all(b"\x0b\x0cECHO x\x0by\x0c \"a\"\x0bb\r\n");
    assert_eq!(requests, [to_byte_words(&["ECHO", "x\x0by\x0c", "a\x0bb"])]);
}

#[test]
fn malformed_requests_give_specific_errors() {
    use ProtocolError::*;
    let long = "a".repeat(MAX_LINE_LEN + 1);
    let table: Vec<(String, ProtocolError)> = vec![
        ("*x\r\n".into(), InvalidMultibulkLength),
        ("*2147483648\r\n".into(), InvalidMultibulkLength),
        ("*1\r\n:1\r\n".into(), ExpectedDollar(b':')),
        ("*1\r\n$-1\r\n".into(), InvalidBulkLength),
        ("*1\r\n$1000000000000\r\n".into(), InvalidBulkLength),
        ("*1\r\n$a\r\n".into(), InvalidBulkLength),
        ("set \"a\n".into(), UnbalancedQuotes),
        ("set \"a\\\" b\n".into(), UnbalancedQuotes),
        ("set 'a\n".into(), UnbalancedQuotes),
        ("set a\" b\n".into(), UnbalancedQuotes),
        ("*2\r\n$4\r\nECHO\r\n$3\r\nabcXY".into(), InvalidCrlf),
        ("*2\r\n$4\r\nECHO\r\n$3\r\nabc\n\n".into(), InvalidCrlf),
        ("*2\r\n$4\r\nECHOxx".into(), InvalidCrlf),
        (format!("*1\r\n$1000\r\n{}XX", "x".repeat(1000)), InvalidCrlf),
        ("*1\rX$4\r\nPING\r\n".into(), InvalidCrlf),
        ("*1\r\n$4\rXPING\r\n".into(), InvalidCrlf),
        ("*1\r\n$12\rX".into(), InvalidCrlf),
        ("*1\r\n$123\rX".into(), InvalidCrlf),
        (long.clone(), TooBigInlineRequest),
        (format!("*{long}"), TooBigCountString),
        (format!("*1\r\n${long}"), TooBigBulkCountString),
    ];
    for (input, error) in table {
        let (found, parsed) = parse_all(format!("*1\r\n$4\r\nPING\r\n{input}").as_bytes());
        assert_eq!(found, [to_byte_words(&["PING"])], "what came before is still served");
        assert_eq!(parsed.error, Some(error), "{}", &input[..input.len().min(30)]);
    }
}

/// A TLS handshake on the plain port contains a NUL, so the client gets no reply until it exceeds the line limit.
#[test]
fn inline_request_with_nul_gets_no_reply() {
    let (found, parsed) = parse_all(b"\x16\x03\x01\x00\x05\r\nPING\r\n");
    assert_eq!((found.len(), parsed.consumed_bytes, parsed.error), (0, 0, None));
    let (_, parsed) = parse_all(&[b"\x16\x03\x01\x00\r\n".as_slice(), &[b'x'; MAX_LINE_LEN]].concat());
    assert_eq!(parsed.error, Some(ProtocolError::TooBigInlineRequest));
}

#[test]
fn parse_stops_at_the_request_limit() {
    let mut buffer = b"PING\r\n*1\r\n$4\r\nPING\r\nPING\r\n".to_vec();
    let (mut batch, mut parser) = (Batch::default(), Parser::new());
    let limits = ParseLimits { max_requests: 2, ..ParseLimits::default() };
    assert_eq!(parser.parse(&mut buffer, &mut batch, &limits).consumed_bytes, 20);
    assert_eq!(batch.len(), 2);
    buffer.drain(..20);
    batch.clear();
    assert_eq!(parser.parse(&mut buffer, &mut batch, &limits).consumed_bytes, 6);
}

#[test]
fn unauthenticated_clients_have_tight_limits() {
    let limits = ParseLimits { is_authenticated: false, ..ParseLimits::default() };
    let parse = |input: &str| {
        Parser::new().parse(&mut input.as_bytes().to_vec(), &mut Batch::default(), &limits).error
    };
    assert_eq!(parse("*11\r\n"), Some(ProtocolError::UnauthenticatedMultibulkLength));
    assert_eq!(parse("*1\r\n$16385\r\n"), Some(ProtocolError::UnauthenticatedBulkLength));
    assert_eq!(parse("*10\r\n$16384\r\n"), None);
}

#[test]
fn huge_announced_count_reserves_no_memory() {
    let mut parser = Parser::new();
    let parsed =
        parser.parse(&mut b"*2147483647\r\n".to_vec(), &mut Batch::default(), &ParseLimits::default());
    assert_eq!(parsed, ParseProgress { consumed_bytes: 0, error: None });
    assert_eq!(parser.spans.capacity(), 0);
}

/// Requests in canonical form are forwarded without encoding them again.
#[test]
fn only_canonical_requests_have_wire_bytes() {
    let table: &[(&[u8], bool)] = &[
        (b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", true),
        (b"*1\r\n$0\r\n\r\n", true),
        (b"get k\r\n", false),
        (b"*02\r\n$3\r\nGET\r\n$1\r\nk\r\n", false),
        (b"*2\r\n$3\r\nGET\r\n$+1\r\nk\r\n", false),
        (b"*2\r\n$3\r\nGETxx$1\r\nk\r\n", false),
        (b"*2\r\n$3\r\nGET\r\n$1\r\nkxx", false),
        (b"*2\r\n$3\rxGET\r\n$1\r\nk\r\n", false),
    ];
    for (sent, usual) in table {
        let (mut buffer, mut batch) = (sent.to_vec(), Batch::default());
        let parsed = Parser::new().parse(&mut buffer, &mut batch, &ParseLimits::default());
        let wire = (batch.len() == 1).then(|| batch.args(0, &buffer).wire_bytes()).flatten();
        if batch.len() == 1 {
            assert_eq!(batch.args(0, &buffer).is_inline(), !sent.starts_with(b"*"));
        }
        assert_eq!(wire, usual.then_some(*sent), "{parsed:?} {}", String::from_utf8_lossy(sent));
    }
    let request: Request = ["set", "k", "v"].iter().collect();
    assert_eq!(request.args().wire_bytes(), None, "it keeps only the words");
}

/// Requests that a client pause or the end of a time slice left unexecuted are parsed again later.
#[test]
fn unexecuted_inline_requests_are_restored() {
    let came = b"GET 'a'\r\nSET \"a b\" '\\'1'\r\nPING\r\nSET \"x\\n\" 2\r\nGET \"open\r\n";
    let parse = |buffer: &mut [u8]| {
        let mut batch = Batch::default();
        let parsed = Parser::new().parse(buffer, &mut batch, &ParseLimits::default());
        let words: Vec<Vec<Vec<u8>>> = batch
            .requests(0..batch.len(), buffer)
            .map(|args| args.iter().map(<[u8]>::to_vec).collect())
            .collect();
        (batch, words, parsed.error)
    };
    let mut buffer = came.to_vec();
    let (batch, words, error) = parse(&mut buffer);
    assert_eq!((words.len(), error), (4, Some(ProtocolError::UnbalancedQuotes)));
    for done in 0..=4 {
        let (mut buffer, from) = (buffer.clone(), batch.consumed_bytes(done));
        batch.restore_inline_requests(from, &mut buffer);
        assert_eq!(buffer[from..], came[from..]);
        assert_eq!(parse(&mut buffer[from..]).1, words[done..]);
    }
}

proptest! {
    #[test]
    fn wire_bytes_equal_the_encoded_request(
        mut bytes in proptest::collection::vec(
            prop_oneof![
                Just(b"*1\r\n".to_vec()), Just(b"*2\r\n".to_vec()), Just(b"$1\r\n".to_vec()), Just(b"a\r\n".to_vec()),
                Just(b"$0\r\n\r\n".to_vec()), Just(b"ab\n".to_vec()), proptest::collection::vec(any::<u8>(), 1..3),
            ], 1..12).prop_map(|pieces| pieces.concat()),
    ) {
        let mut batch = Batch::default();
        Parser::new().parse(&mut bytes, &mut batch, &ParseLimits::default());
        for index in 0..batch.len() {
            let args = batch.args(index, &bytes);
            let mut written = Vec::new();
            encode_request(&mut written, args.iter());
            prop_assert!(args.wire_bytes().is_none_or(|wire| wire == written));
        }
    }

    #[test]
    fn requests_parse_at_every_split_point(
        sent in proptest::collection::vec(
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 1..5), 1..4),
    ) {
        let mut wire = Vec::new();
        for request in &sent {
            encode_request(&mut wire, request.iter().map(Vec::as_slice));
        }
        for split in 0..=wire.len() {
            let (head, tail) = wire.split_at(split);
            let (found, error) = parse_pieces([head, tail].into_iter());
            prop_assert_eq!(error, None);
            prop_assert_eq!(&found, &sent);
        }
        let (found, error) = parse_pieces(wire.chunks(1));
        prop_assert_eq!(error, None);
        prop_assert_eq!(&found, &sent);
    }

    #[test]
    fn parse_result_does_not_depend_on_pieces(
        input in proptest::collection::vec(
            prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'"'), b'0'..=b'9', any::<u8>()],
            0..200),
        piece in 1usize..20,
    ) {
        // The results are equal although inline requests are unquoted in place, because a complete line is not parsed
        // again.
        let whole = parse_pieces(std::iter::once(input.as_slice()));
        let cut = parse_pieces(input.chunks(piece));
        prop_assert_eq!(whole, cut);
    }
}

#[test]
fn memory_for_many_arguments_is_freed() {
    let mut wire = Vec::new();
    encode_request(&mut wire, (0..100_000).map(|_| &b"x"[..]).collect::<Vec<_>>().iter().copied());
    let (mut parser, mut batch) = (Parser::new(), Batch::default());
    let half = wire.len() / 2;
    assert_eq!(parser.parse(&mut wire[..half], &mut batch, &ParseLimits::default()).consumed_bytes, 0);
    assert!(parser.heap_bytes() >= 40_000 * size_of::<ArgSpan>());
    let len = wire.len();
    assert_eq!(parser.parse(&mut wire, &mut batch, &ParseLimits::default()).consumed_bytes, len);
    assert_eq!((parser.heap_bytes(), batch.args(0, &wire).len()), (0, 100_000));
    batch.release_large_buffers();
    assert!(batch.is_empty() && batch.spans.capacity() <= MAX_RETAINED_BATCH_SPANS);
}
