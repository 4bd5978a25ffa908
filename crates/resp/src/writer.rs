//! Writes replies in the client's protocol version.

use crate::double::Double;

/// The protocol version that a client selects with HELLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// RESP2, the default, which every client understands.
    #[default]
    Resp2,
    /// RESP3, selected by HELLO 3: adds maps, sets, doubles and push messages.
    Resp3,
}

/// Appends replies to a connection's output. Types that RESP2 lacks are converted as in Redis: maps to flat arrays,
/// doubles to bulk strings, booleans to integers, null to the null bulk string.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
    /// Maximum length of the output in bytes; `usize::MAX` by default.
    limit: usize,
    /// Whether output was discarded because it exceeded the limit.
    is_truncated: bool,
}

impl<'a> Writer<'a> {
    /// Creates a writer that appends to `out`.
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
        Self { out, protocol, limit: usize::MAX, is_truncated: false }
    }

    /// Limits the total length of the buffer. Output beyond `limit` is discarded; the caller must then
    /// disconnect the client (see [`Writer::is_over_limit`]).
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Returns whether output was discarded because of the limit.
    #[must_use]
    #[inline]
    pub fn is_over_limit(&self) -> bool {
        self.is_truncated || self.out.len() > self.limit
    }

    /// Returns the protocol version of the replies written next.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Switches the protocol version of later replies.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Returns the output buffer, for appending bytes that are already encoded.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Returns the current length of the output, to be passed to [`Writer::truncate`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Returns whether the output is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Discards output after `len`, for a command that fails after it started to reply.
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    /// Appends bytes that are already encoded.
    #[inline(always)]
    pub fn raw(&mut self, bytes: &[u8]) {
        if bytes.len() <= self.out.capacity() - self.out.len() || self.try_reserve(bytes.len()) {
            self.out.extend_from_slice(bytes);
        }
    }

    /// Reserves `additional` bytes, unless the output would exceed the limit.
    #[cold]
    fn try_reserve(&mut self, additional: usize) -> bool {
        let len = self.out.len();
        let needed = len.saturating_add(additional);
        self.is_truncated |= needed > self.limit;
        if !self.is_truncated {
            // Include the CR LF that ends a long string, because growing the buffer again for it would copy the string.
            let with_end = needed.saturating_add(b"\r\n".len());
            let room = self.out.capacity().saturating_mul(2).max(with_end).min(self.limit);
            self.out.reserve_exact(room - len);
        }
        !self.is_truncated
    }

    /// Writes the simple string `+OK`.
    pub fn ok(&mut self) {
        self.raw(b"+OK\r\n");
    }

    /// Writes a simple string, which must not contain CR or LF.
    pub fn simple(&mut self, text: &str) {
        self.simple_bytes(text.as_bytes());
    }

    /// Writes a simple string of client-supplied bytes, which must not contain CR or LF.
    pub fn simple_bytes(&mut self, text: &[u8]) {
        debug_assert!(!text.iter().any(|byte| matches!(byte, b'\r' | b'\n')));
        self.raw(b"+");
        self.raw(text);
        self.crlf();
    }

    /// Writes an error, whose text starts with its code ("ERR ..."). Line breaks, which quoted client input can
    /// contain, become spaces.
    pub fn error(&mut self, text: &str) {
        self.error_bytes(text.as_bytes());
    }

    /// Writes an error with a text of arbitrary bytes.
    pub fn error_bytes(&mut self, text: &[u8]) {
        self.out.push(b'-');
        self.out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
        self.crlf();
    }

    /// Writes an integer.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        self.write_number(b':', value);
    }

    /// Writes a bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.write_number(b'$', bytes.len() as i64);
        self.raw(bytes);
        self.crlf();
    }

    /// Writes an integer as a bulk string.
    pub fn bulk_integer(&mut self, value: i64) {
        let mut digits = itoa::Buffer::new();
        self.bulk(digits.format(value).as_bytes());
    }

    /// Writes null, which is a null bulk string in RESP2.
    pub fn null(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.raw(b"$-1\r\n"),
            Protocol::Resp3 => self.raw(b"_\r\n"),
        }
    }

    /// Writes null in place of an array, which is a null array in RESP2.
    pub fn null_array(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.raw(b"*-1\r\n"),
            Protocol::Resp3 => self.raw(b"_\r\n"),
        }
    }

    /// Starts an array; the caller must write `len` replies next.
    pub fn array(&mut self, len: usize) {
        self.write_number(b'*', len as i64);
    }

    /// Starts a map; the caller must write `pairs` keys, each followed by its value.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(pairs * 2),
            Protocol::Resp3 => self.write_number(b'%', pairs as i64),
        }
    }

    /// Starts a set; the caller must write `len` replies next.
    pub fn set(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(len),
            Protocol::Resp3 => self.write_number(b'~', len as i64),
        }
    }

    /// Starts a push message; the caller must write `len` replies next.
    pub fn push(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(len),
            Protocol::Resp3 => self.write_number(b'>', len as i64),
        }
    }

    /// Writes a boolean, which is 1 or 0 in RESP2.
    pub fn boolean(&mut self, value: bool) {
        match (self.protocol, value) {
            (Protocol::Resp2, value) => self.integer(i64::from(value)),
            (Protocol::Resp3, true) => self.raw(b"#t\r\n"),
            (Protocol::Resp3, false) => self.raw(b"#f\r\n"),
        }
    }

    /// Writes a double in the format of [`Double`].
    pub fn double(&mut self, value: f64) {
        match (Double(value).to_integer(), self.protocol) {
            (Some(whole), Protocol::Resp2) => self.bulk_integer(whole),
            (Some(whole), Protocol::Resp3) => self.write_number(b',', whole),
            (None, Protocol::Resp2) => self.bulk(Double(value).to_string().as_bytes()),
            (None, Protocol::Resp3) => {
                self.raw(b",");
                self.raw(Double(value).to_string().as_bytes());
                self.crlf();
            }
        }
    }

    /// Writes text with a three-letter format (`txt`, `mkd`), which RESP2 clients get as a bulk string.
    pub fn verbatim(&mut self, format: &[u8; 3], text: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => {
                self.write_number(b'=', text.len() as i64 + 4);
                self.raw(format);
                self.raw(b":");
                self.raw(text);
                self.crlf();
            }
        }
    }

    #[inline(always)]
    fn write_number(&mut self, kind: u8, value: i64) {
        // Fast path: most numbers are short, so they are written together with their CR LF.
        let digit = |value: i64| b'0' + (value % 10) as u8;
        match value {
            0..10 => self.raw(&[kind, digit(value), b'\r', b'\n']),
            10..100 => self.raw(&[kind, digit(value / 10), digit(value), b'\r', b'\n']),
            _ => self.write_long_number(kind, value),
        }
    }

    fn write_long_number(&mut self, kind: u8, value: i64) {
        let mut digits = itoa::Buffer::new();
        self.raw(&[kind]);
        self.raw(digits.format(value).as_bytes());
        self.crlf();
    }

    fn crlf(&mut self) {
        self.raw(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_with(protocol: Protocol, write: impl Fn(&mut Writer<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out, protocol));
        String::from_utf8(out).unwrap()
    }

    /// A reply of unlimited length uses no more memory than the client's output limit.
    #[test]
    fn output_stops_at_the_limit() {
        let mut out = b"before".to_vec();
        let mut writer = Writer::new(&mut out, Protocol::Resp2).with_limit(1000);
        writer.array(100_000);
        for _ in 0..100_000 {
            writer.bulk(b"value");
        }
        writer.bulk(&[b'x'; 5000]);
        assert!(writer.is_over_limit());
        assert!(out.len() <= 1000 && out.capacity() <= 1000, "{} of {}", out.len(), out.capacity());

        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, Protocol::Resp2).with_limit(1000);
        writer.bulk(&[b'x'; 992]);
        assert!(!writer.is_over_limit());
        writer.integer(1);
        assert!(writer.is_over_limit());
    }

    #[test]
    fn replies_are_encoded_for_both_protocol_versions() {
        type ReplyCase = (&'static str, fn(&mut Writer<'_>), &'static str, &'static str);
        let table: &[ReplyCase] = &[
            ("ok", |w| w.ok(), "+OK\r\n", "+OK\r\n"),
            ("error", |w| w.error("ERR a\r\nb"), "-ERR a  b\r\n", "-ERR a  b\r\n"),
            ("integer", |w| w.integer(-7), ":-7\r\n", ":-7\r\n"),
            ("bulk", |w| w.bulk(b"ab"), "$2\r\nab\r\n", "$2\r\nab\r\n"),
            ("null", |w| w.null(), "$-1\r\n", "_\r\n"),
            ("null array", |w| w.null_array(), "*-1\r\n", "_\r\n"),
            ("map", |w| w.map(2), "*4\r\n", "%2\r\n"),
            ("set", |w| w.set(2), "*2\r\n", "~2\r\n"),
            ("push", |w| w.push(2), "*2\r\n", ">2\r\n"),
            ("boolean", |w| w.boolean(true), ":1\r\n", "#t\r\n"),
            ("double", |w| w.double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"),
            ("infinity", |w| w.double(f64::NEG_INFINITY), "$4\r\n-inf\r\n", ",-inf\r\n"),
            ("verbatim", |w| w.verbatim(b"txt", b"hi"), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
        ];
        for (name, write, resp2, resp3) in table {
            assert_eq!(write_with(Protocol::Resp2, write), *resp2, "{name}");
            assert_eq!(write_with(Protocol::Resp3, write), *resp3, "{name}");
        }
    }
}
