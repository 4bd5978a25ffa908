//! The requests of a client: where reads end makes no difference. The same bytes are also read as a reply, which is not
//! whole before its last byte.

use resp::{Batch, ParseLimits, Parser, ProtocolError, parse_value};

type Requests = Vec<Vec<Vec<u8>>>;

/// Parses a client's bytes whole and in pieces.
pub fn run(bytes: &[u8]) {
    let whole = read(std::iter::once(bytes));
    for len in crate::PIECES {
        assert_eq!(read(bytes.chunks(len)), whole);
    }
    if let Ok(Some((value, length))) = parse_value(bytes) {
        assert_eq!(parse_value(&bytes[..length]), Ok(Some((value, length))));
        assert_eq!(parse_value(&bytes[..length - 1]), Ok(None));
    }
}

/// Reads as a connection does: what is consumed leaves the buffer, the next piece is appended.
fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Requests, Option<ProtocolError>) {
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
        buffer.drain(..parsed.consumed);
    }
    (requests, None)
}
