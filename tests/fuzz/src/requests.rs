//! Fuzzes the request parser: read boundaries must not matter. The bytes are also parsed as a reply, which must be
//! incomplete without its last byte.

use resp::{Batch, ParseLimits, Parser, ProtocolError, parse_value};

type ParsedRequests = Vec<Vec<Vec<u8>>>;

/// Parses `bytes` as a whole and in pieces.
pub fn fuzz_requests(bytes: &[u8]) {
    let whole = parse_pieces(std::iter::once(bytes));
    for len in crate::READ_SIZES {
        assert_eq!(parse_pieces(bytes.chunks(len)), whole);
    }
    if let Ok(Some((value, length))) = parse_value(bytes) {
        assert_eq!(parse_value(&bytes[..length]), Ok(Some((value, length))));
        assert_eq!(parse_value(&bytes[..length - 1]), Ok(None));
    }
}

/// Parses pieces as a connection does: consumed bytes are removed from the buffer, and the next piece is appended.
fn parse_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (ParsedRequests, Option<ProtocolError>) {
    let (mut parser, mut buffer, mut requests) = (Parser::new(), Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let mut batch = Batch::default();
        let parsed = parser.parse(&mut buffer, &mut batch, &ParseLimits::default());
        for index in 0..batch.len() {
            requests.push(batch.args(index, &buffer).iter().map(<[u8]>::to_vec).collect());
        }
        if parsed.error.is_some() {
            return (requests, parsed.error);
        }
        buffer.drain(..parsed.consumed_bytes);
    }
    (requests, None)
}
