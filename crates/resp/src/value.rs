//! Parses complete replies, for clients of the protocol.

use memchr::memmem;

use crate::number::parse_i64;

/// Maximum nesting depth, so that malicious bytes cannot overflow the stack.
const MAX_DEPTH: usize = 32;
/// Maximum length in bytes of a line from a peer, like Redis's limit for a line of a request.
const MAX_LINE_LEN: usize = 64 * 1024;
const MAX_BULK_LEN: i64 = 512 * 1024 * 1024;

/// A parsed reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Null in any of its encodings.
    Null,
    /// A simple string such as `+OK`.
    Simple(String),
    /// An error without its leading `-`.
    Error(String),
    /// A 64-bit signed integer.
    Integer(i64),
    /// A floating-point number (RESP3).
    Double(f64),
    /// A boolean (RESP3).
    Boolean(bool),
    /// An integer of arbitrary size (RESP3), as its decimal digits.
    BigNumber(String),
    /// A bulk string, which may contain any bytes.
    Bulk(Vec<u8>),
    /// A verbatim string: its three-letter format and the text.
    Verbatim(String, Vec<u8>),
    /// An array of replies.
    Array(Vec<Value>),
    /// A set (RESP3), in the order received; duplicates are not removed.
    Set(Vec<Value>),
    /// A push message (RESP3), which is not the reply to a request.
    Push(Vec<Value>),
    /// Key-value pairs of a map (RESP3), in the order received.
    Map(Vec<(Value, Value)>),
}

impl Value {
    /// Returns the bytes of a bulk, verbatim or simple string; `None` for other types.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bulk(bytes) | Self::Verbatim(_, bytes) => Some(bytes),
            Self::Simple(text) => Some(text.as_bytes()),
            _ => None,
        }
    }

    /// Returns the value of an integer reply; `None` for other types.
    #[must_use]
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the elements of an array, set or push message; `None` for other types.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Self::Array(values) | Self::Set(values) | Self::Push(values) => Some(values),
            _ => None,
        }
    }
}

/// Why a reply is malformed. The connection must be closed, because the start of the next reply is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueError {
    /// The reply starts with this unknown type byte.
    UnknownType(u8),
    /// A number, length or count is malformed.
    InvalidNumber,
    /// A string that must be text is not valid UTF-8.
    InvalidUtf8,
    /// A line or string exceeds the maximum length.
    TooLong,
    /// Replies are nested too deeply.
    TooDeep,
}

impl std::fmt::Display for ValueError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownType(byte) => write!(f, "unknown reply type byte 0x{byte:02x}"),
            Self::InvalidNumber => f.write_str("a number in a reply cannot be read"),
            Self::InvalidUtf8 => f.write_str("a status or error reply is not text"),
            Self::TooLong => f.write_str("a reply is longer than allowed"),
            Self::TooDeep => f.write_str("a reply nests deeper than allowed"),
        }
    }
}

impl std::error::Error for ValueError {}

/// Parses one reply at the start of `buffer`. Returns the value and its length, or `None` if bytes are missing.
///
/// # Errors
/// The bytes are malformed, and the connection must be closed.
pub fn parse_value(buffer: &[u8]) -> Result<Option<(Value, usize)>, ValueError> {
    let mut reader = ReplyReader { buffer, position: 0 };
    Ok(reader.read_value(0)?.map(|value| (value, reader.position)))
}

struct ReplyReader<'a> {
    buffer: &'a [u8],
    position: usize,
}

impl<'a> ReplyReader<'a> {
    fn read_value(&mut self, depth: usize) -> Result<Option<Value>, ValueError> {
        if depth > MAX_DEPTH {
            return Err(ValueError::TooDeep);
        }
        let Some(&kind) = self.buffer.get(self.position) else { return Ok(None) };
        if !b"+-:$*_,#(!=~>%".contains(&kind) {
            return Err(ValueError::UnknownType(kind));
        }
        let Some(line) = self.read_line()? else { return Ok(None) };
        let value = match kind {
            b'+' => Value::Simple(parse_text(line)?),
            b'-' => Value::Error(parse_text(line)?),
            b':' => Value::Integer(parse_integer(line)?),
            b'_' => Value::Null,
            b',' => Value::Double(parse_text(line)?.parse().map_err(|_| ValueError::InvalidNumber)?),
            b'#' => Value::Boolean(line == b"t"),
            b'(' => Value::BigNumber(parse_text(line)?),
            b'$' | b'!' | b'=' => return self.read_string(kind, parse_integer(line)?),
            _ => return self.read_aggregate(kind, parse_integer(line)?, depth),
        };
        Ok(Some(value))
    }

    fn read_string(&mut self, kind: u8, len: i64) -> Result<Option<Value>, ValueError> {
        if len < 0 {
            return Ok(Some(Value::Null));
        }
        if len > MAX_BULK_LEN {
            return Err(ValueError::TooLong);
        }
        let (start, len) = (self.position, len as usize);
        if self.buffer.len() < start + len + 2 {
            return Ok(None);
        }
        let bytes = &self.buffer[start..start + len];
        self.position = start + len + 2;
        Ok(Some(match kind {
            b'!' => Value::Error(parse_text(bytes)?),
            b'=' if len >= 4 => Value::Verbatim(parse_text(&bytes[..3])?, bytes[4..].to_vec()),
            b'=' => return Err(ValueError::InvalidUtf8),
            _ => Value::Bulk(bytes.to_vec()),
        }))
    }

    fn read_aggregate(&mut self, kind: u8, len: i64, depth: usize) -> Result<Option<Value>, ValueError> {
        if len < 0 {
            return Ok(Some(Value::Null));
        }
        let count = if kind == b'%' { len.saturating_mul(2) } else { len };
        // A peer can announce any count, so reserve memory only for elements that fit in the buffer, at three bytes or
        // more each.
        let mut values = Vec::with_capacity((count as usize).min(self.buffer.len() / 3));
        for _ in 0..count {
            let Some(value) = self.read_value(depth + 1)? else { return Ok(None) };
            values.push(value);
        }
        Ok(Some(match kind {
            b'*' => Value::Array(values),
            b'~' => Value::Set(values),
            b'>' => Value::Push(values),
            _ => {
                let mut pairs = Vec::with_capacity(values.len() / 2);
                let mut values = values.into_iter();
                while let (Some(key), Some(value)) = (values.next(), values.next()) {
                    pairs.push((key, value));
                }
                Value::Map(pairs)
            }
        }))
    }

    /// Returns the rest of the current line, without CR LF; `None` if the line is incomplete.
    fn read_line(&mut self) -> Result<Option<&'a [u8]>, ValueError> {
        let rest = &self.buffer[self.position + 1..];
        match memmem::find(&rest[..rest.len().min(MAX_LINE_LEN + 2)], b"\r\n") {
            Some(end) => {
                self.position += 1 + end + 2;
                Ok(Some(&rest[..end]))
            }
            None if rest.len() > MAX_LINE_LEN => Err(ValueError::TooLong),
            None => Ok(None),
        }
    }
}

fn parse_text(bytes: &[u8]) -> Result<String, ValueError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| ValueError::InvalidUtf8)
}

fn parse_integer(bytes: &[u8]) -> Result<i64, ValueError> {
    parse_i64(bytes.strip_prefix(b"+").unwrap_or(bytes)).ok_or(ValueError::InvalidNumber)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parses_replies_of_every_type() {
        let bulk = |text: &str| Value::Bulk(text.as_bytes().to_vec());
        let table: Vec<(&str, Value)> = vec![
            ("+OK\r\n", Value::Simple("OK".into())),
            ("-ERR no\r\n", Value::Error("ERR no".into())),
            (":42\r\n", Value::Integer(42)),
            ("$2\r\nab\r\n", bulk("ab")),
            ("$-1\r\n", Value::Null),
            ("*-1\r\n", Value::Null),
            ("_\r\n", Value::Null),
            (",1.5\r\n", Value::Double(1.5)),
            (",-inf\r\n", Value::Double(f64::NEG_INFINITY)),
            ("#t\r\n", Value::Boolean(true)),
            ("(123456789012345678901\r\n", Value::BigNumber("123456789012345678901".into())),
            ("!3\r\nERR\r\n", Value::Error("ERR".into())),
            ("=6\r\ntxt:hi\r\n", Value::Verbatim("txt".into(), b"hi".to_vec())),
            ("*2\r\n:1\r\n$0\r\n\r\n", Value::Array(vec![Value::Integer(1), bulk("")])),
            ("~1\r\n:1\r\n", Value::Set(vec![Value::Integer(1)])),
            (">1\r\n:1\r\n", Value::Push(vec![Value::Integer(1)])),
            ("%1\r\n+a\r\n:1\r\n", Value::Map(vec![(Value::Simple("a".into()), Value::Integer(1))])),
        ];
        for (wire, value) in table {
            assert_eq!(parse_value(wire.as_bytes()), Ok(Some((value, wire.len()))), "{wire:?}");
            for end in 0..wire.len() {
                assert_eq!(parse_value(&wire.as_bytes()[..end]), Ok(None), "{wire:?} cut at {end}");
            }
        }
    }

    #[test]
    fn malformed_replies_are_rejected() {
        assert_eq!(parse_value(b"?\r\n"), Err(ValueError::UnknownType(b'?')));
        assert_eq!(parse_value(b":x\r\n"), Err(ValueError::InvalidNumber));
        assert_eq!(parse_value(b"$1000000000000\r\n"), Err(ValueError::TooLong));
        assert_eq!(parse_value("*1\r\n".repeat(100).as_bytes()), Err(ValueError::TooDeep));
        assert_eq!(parse_value(b"*9223372036854775807\r\n"), Ok(None), "a promise alone takes no memory");
        assert_eq!(parse_value(&[b'+'; MAX_LINE_LEN + 10]), Err(ValueError::TooLong));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse_value(&bytes);
        }
    }
}
