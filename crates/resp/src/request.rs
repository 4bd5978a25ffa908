//! Parses requests: arrays of bulk strings, or inline text.
//!
//! One read can bring many requests (pipelining), and a request can span many reads. [`Parser::parse`]
//! appends every complete request to a [`Batch`] as ranges of the buffer, without copying. An incomplete
//! request stays in the buffer; the parser remembers its progress, so that a request with a million arguments
//! is not parsed again with every packet.
//!
//! Inline requests are unquoted in place, because the unquoted text is never longer. If such a request is not
//! executed and must be parsed again, its line is restored first ([`Batch::restore_inline_requests`]).

mod inline;
#[cfg(test)]
mod tests;

use memchr::{memchr, memchr2};

use crate::number::parse_i64;

/// Maximum length of an inline request, a count or a length line: 64 KiB, as in Redis.
const MAX_LINE_LEN: usize = 64 * 1024;
/// Maximum number of arguments of a request before authentication.
const MAX_ARGS_BEFORE_AUTH: i64 = 10;
const MAX_BULK_LEN_BEFORE_AUTH: i64 = 16 * 1024;
/// Capacity in argument ranges above which the parser frees their memory after a request.
const MAX_RETAINED_SPANS: usize = 1024;
const MAX_RETAINED_BATCH_SPANS: usize = 16 * 1024;
/// Offset and length of an argument in the buffer.
type ArgSpan = (u32, u32);

/// Limits on what a client may send.
#[derive(Debug, Clone, Copy)]
pub struct ParseLimits {
    /// Maximum argument length in bytes (`proto-max-bulk-len`).
    pub max_bulk_len: i64,
    /// Whether the client is authenticated or authentication is disabled.
    pub is_authenticated: bool,
    /// Whether inline requests are accepted.
    pub allows_inline: bool,
    /// Maximum number of requests that one call parses.
    pub max_requests: usize,
}

impl Default for ParseLimits {
    fn default() -> Self {
        Self {
            max_bulk_len: 512 * 1024 * 1024,
            is_authenticated: true,
            allows_inline: true,
            max_requests: usize::MAX,
        }
    }
}

/// A malformed request. The connection must be closed after the error reply, because the start of the next
/// request is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtocolError {
    /// An inline request exceeds the maximum line length.
    TooBigInlineRequest,
    /// An inline request has an unclosed quote.
    UnbalancedQuotes,
    /// The line with the number of arguments exceeds the maximum length.
    TooBigCountString,
    /// The number of arguments is malformed or too large.
    InvalidMultibulkLength,
    /// The request has too many arguments for an unauthenticated client.
    UnauthenticatedMultibulkLength,
    /// The line with an argument's length exceeds the maximum length.
    TooBigBulkCountString,
    /// The request starts with this byte instead of `*`, where inline requests are not accepted.
    ExpectedAsterisk(u8),
    /// An argument starts with this byte instead of `$`.
    ExpectedDollar(u8),
    /// An argument's length is malformed or too large.
    InvalidBulkLength,
    /// An argument is too long for an unauthenticated client.
    UnauthenticatedBulkLength,
    /// A line or argument does not end with CR LF.
    InvalidCrlf,
}

impl ProtocolError {
    /// Returns whether the request is rejected only because the client is not authenticated.
    #[must_use]
    pub fn is_unauthenticated(self) -> bool {
        matches!(self, Self::UnauthenticatedMultibulkLength | Self::UnauthenticatedBulkLength)
    }
}

impl std::fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Protocol error: ")?;
        match self {
            Self::TooBigInlineRequest => f.write_str("too big inline request"),
            Self::UnbalancedQuotes => f.write_str("unbalanced quotes in request"),
            Self::TooBigCountString => f.write_str("too big mbulk count string"),
            Self::InvalidMultibulkLength => f.write_str("invalid multibulk length"),
            Self::UnauthenticatedMultibulkLength => f.write_str("unauthenticated multibulk length"),
            Self::TooBigBulkCountString => f.write_str("too big bulk count string"),
            Self::ExpectedAsterisk(got) => write!(f, "expected '*', got '{}'", char::from(*got)),
            Self::ExpectedDollar(got) => write!(f, "expected '$', got '{}'", char::from(*got)),
            Self::InvalidBulkLength => f.write_str("invalid bulk length"),
            Self::UnauthenticatedBulkLength => f.write_str("unauthenticated bulk length"),
            Self::InvalidCrlf => f.write_str("invalid CRLF in request"),
        }
    }
}

impl std::error::Error for ProtocolError {}

/// The arguments of a request, starting with the command name. Cheap to copy.
#[derive(Clone, Copy, Default)]
pub struct Args<'a> {
    buffer: &'a [u8],
    spans: &'a [ArgSpan],
}

impl<'a> Args<'a> {
    /// Returns the number of arguments, including the command name.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns whether there are no arguments. A parsed request always has at least one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the argument at `index`, where 0 is the command name.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let &(start, len) = self.spans.get(index)?;
        Some(&self.buffer[start as usize..start as usize + len as usize])
    }

    /// Returns the number of bytes that the arguments span in the read buffer.
    #[must_use]
    pub fn span_len(&self) -> usize {
        match (self.spans.first(), self.spans.last()) {
            (Some((start, _)), Some((last, len))) => (last + len - start) as usize,
            _ => 0,
        }
    }

    /// Returns whether the request was sent inline, not as an array of bulk strings. Also true for the arguments of a
    /// [`Request`], which contains no protocol framing.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        let first = self.spans.first();
        first.is_some_and(|&(start, len)| {
            find_number_line_before(self.buffer, start as usize, b'$', len as usize).is_none()
        })
    }

    /// Returns the bytes of the request as received, if they equal what [`encode_request`] writes.
    #[must_use]
    pub fn wire_bytes(&self) -> Option<&'a [u8]> {
        let (&(first, len), rest) = self.spans.split_first()?;
        let bulk = find_number_line_before(self.buffer, first as usize, b'$', len as usize)?;
        let start = find_number_line_before(self.buffer, bulk, b'*', self.spans.len())?;
        let mut end = first as usize + len as usize;
        for &(place, len) in rest {
            let bulk = find_number_line_before(self.buffer, place as usize, b'$', len as usize)?;
            if bulk != end + 2 || &self.buffer[end..bulk] != b"\r\n" {
                return None;
            }
            end = place as usize + len as usize;
        }
        self.buffer[end..].starts_with(b"\r\n").then(|| &self.buffer[start..end + 2])
    }

    /// Returns the arguments without the first `count`.
    #[must_use]
    pub fn skip(&self, count: usize) -> Self {
        Self { buffer: self.buffer, spans: &self.spans[count.min(self.spans.len())..] }
    }

    /// Returns the first `count` arguments.
    #[must_use]
    pub fn prefix(&self, count: usize) -> Self {
        Self { buffer: self.buffer, spans: &self.spans[..count.min(self.spans.len())] }
    }

    /// Iterates over the arguments in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + Clone + use<'a> {
        let Self { buffer, spans } = *self;
        spans.iter().map(move |&(start, len)| &buffer[start as usize..start as usize + len as usize])
    }
}

impl std::ops::Index<usize> for Args<'_> {
    type Output = [u8];

    fn index(&self, index: usize) -> &[u8] {
        self.get(index).expect("a handler asks only for arguments that its arity promises")
    }
}

impl std::fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}

/// The requests of one read, as ranges of the read buffer.
#[derive(Debug, Default)]
pub struct Batch {
    spans: Vec<ArgSpan>,
    /// End of each request: the index after its last argument range, and the offset in the buffer after its last byte.
    request_ends: Vec<(u32, u32)>,
    /// Original bytes of inline requests that contain quotes, with their offsets.
    original_lines: Vec<(u32, Box<[u8]>)>,
}

impl Batch {
    /// Returns the number of parsed requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.request_ends.len()
    }

    /// Returns whether no request was parsed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.request_ends.is_empty()
    }

    /// Removes all requests but retains the allocated memory for the next batch.
    pub fn clear(&mut self) {
        self.spans.clear();
        if self.spans.capacity() > MAX_RETAINED_BATCH_SPANS {
            self.spans = Vec::new();
        }
        self.request_ends.clear();
        self.original_lines.clear();
    }

    /// Removes all requests and frees the memory if they had many arguments.
    pub fn release_large_buffers(&mut self) {
        if self.spans.capacity() > MAX_RETAINED_BATCH_SPANS {
            self.clear();
        }
    }

    /// Restores the original bytes of inline requests in `buffer` from offset `from` on, so that these requests can be
    /// parsed again.
    pub fn restore_inline_requests(&self, from: usize, buffer: &mut [u8]) {
        for (start, line) in self.original_lines.iter().filter(|(start, _)| *start as usize >= from) {
            buffer[*start as usize..][..line.len()].copy_from_slice(line);
        }
    }

    /// Returns the arguments of request `index`; `buffer` is the buffer that was parsed.
    #[must_use]
    pub fn args<'a>(&'a self, index: usize, buffer: &'a [u8]) -> Args<'a> {
        let start = if index == 0 { 0 } else { self.request_ends[index - 1].0 as usize };
        Args { buffer, spans: &self.spans[start..self.request_ends[index].0 as usize] }
    }

    /// Iterates over the arguments of each request in `range`.
    pub fn requests<'a>(
        &'a self,
        range: std::ops::Range<usize>,
        buffer: &'a [u8],
    ) -> impl ExactSizeIterator<Item = Args<'a>> {
        let mut start = if range.start == 0 { 0 } else { self.request_ends[range.start - 1].0 as usize };
        self.request_ends[range].iter().map(move |&(end, _)| {
            let spans = &self.spans[start..end as usize];
            start = end as usize;
            Args { buffer, spans }
        })
    }

    /// Returns the number of buffer bytes that the first `count` requests take.
    #[must_use]
    pub fn consumed_bytes(&self, count: usize) -> usize {
        if count == 0 { 0 } else { self.request_ends[count - 1].1 as usize }
    }
}

/// A request that owns its bytes: queued by MULTI, constructed, or read from a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    bytes: Vec<u8>,
    spans: Vec<ArgSpan>,
}

impl Request {
    /// Creates a request without arguments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an argument.
    pub fn push(&mut self, arg: &[u8]) {
        self.spans.push((self.bytes.len() as u32, arg.len() as u32));
        self.bytes.extend_from_slice(arg);
    }

    /// Removes the arguments but retains the allocated memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }

    /// Returns the heap memory in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.spans.capacity() * size_of::<ArgSpan>()
    }

    /// Returns the arguments, starting with the command name.
    #[must_use]
    pub fn args(&self) -> Args<'_> {
        Args { buffer: &self.bytes, spans: &self.spans }
    }
}

impl<A: AsRef<[u8]>> FromIterator<A> for Request {
    fn from_iter<I: IntoIterator<Item = A>>(args: I) -> Self {
        let mut request = Self::new();
        for arg in args {
            request.push(arg.as_ref());
        }
        request
    }
}

impl From<Args<'_>> for Request {
    fn from(args: Args<'_>) -> Self {
        let bytes = args.iter().map(<[u8]>::len).sum();
        let mut request = Self { bytes: Vec::with_capacity(bytes), spans: Vec::with_capacity(args.len()) };
        args.iter().for_each(|arg| request.push(arg));
        request
    }
}

/// The result of [`Parser::parse`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseProgress {
    /// Number of bytes at the start of the buffer that belong to complete requests.
    pub consumed_bytes: usize,
    /// The protocol error found after the complete requests, if any.
    pub error: Option<ProtocolError>,
}

/// Parses requests incrementally, and keeps the progress within an unfinished request.
#[derive(Debug, Default)]
pub struct Parser {
    /// Number of arguments still missing; `None` before the request's count is known.
    missing_args: Option<u32>,
    /// Ranges of the arguments parsed so far, relative to the start of the request.
    spans: Vec<ArgSpan>,
    position: usize,
}

/// One request while it is parsed into a batch.
struct RequestCursor<'a> {
    buffer: &'a [u8],
    /// Offset of the start of the request in `buffer`.
    start: usize,
    position: usize,
    spans: &'a mut Vec<ArgSpan>,
}

enum ParseStep {
    Complete,
    Incomplete,
}

impl Parser {
    /// Creates a parser that expects the start of a request.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the heap memory in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<ArgSpan>()
    }

    /// Returns the number of bytes that are missing after the end of `buffer` to complete the last argument in it; 0 if
    /// unknown. `buffer` must be the unconsumed rest of the buffer that was parsed last.
    #[must_use]
    pub fn missing_argument_bytes(&self, buffer: &[u8]) -> usize {
        if self.missing_args.is_none() || buffer.get(self.position) != Some(&b'$') {
            return 0;
        }
        let header = parse_number(buffer, self.position + 1, ProtocolError::TooBigBulkCountString);
        let Ok(Some((length, start))) = header else { return 0 };
        let end = usize::try_from(length.unwrap_or(0)).unwrap_or(0) + start + 2;
        end.saturating_sub(buffer.len())
    }

    /// Appends every complete request in `buffer` to `batch`. The buffer must continue where the last call stopped,
    /// without the bytes that were consumed, and be shorter than 4 GiB.
    pub fn parse(&mut self, buffer: &mut [u8], batch: &mut Batch, limits: &ParseLimits) -> ParseProgress {
        debug_assert!(u32::try_from(buffer.len()).is_ok(), "the query buffer's limit is far below 4 GiB");
        let mut consumed = 0;
        while consumed < buffer.len() && batch.request_ends.len() < limits.max_requests {
            let first_span = batch.spans.len();
            let step = if self.missing_args.is_some() || buffer[consumed] == b'*' {
                self.parse_multibulk(buffer, consumed, &mut batch.spans, limits)
            } else if limits.allows_inline {
                parse_inline(buffer, consumed, batch)
            } else {
                Err(ProtocolError::ExpectedAsterisk(buffer[consumed]))
            };
            match step {
                Ok((ParseStep::Complete, end)) => consumed = end,
                Ok((ParseStep::Incomplete, _)) => break,
                Err(error) => {
                    batch.spans.truncate(first_span);
                    return ParseProgress { consumed_bytes: consumed, error: Some(error) };
                }
            }
            if batch.spans.len() > first_span {
                batch.request_ends.push((batch.spans.len() as u32, consumed as u32));
            }
        }
        ParseProgress { consumed_bytes: consumed, error: None }
    }

    /// Continues the request that starts with the `*` at `start`. Also returns the offset where parsing stopped.
    fn parse_multibulk(
        &mut self,
        buffer: &[u8],
        start: usize,
        spans: &mut Vec<ArgSpan>,
        limits: &ParseLimits,
    ) -> Result<(ParseStep, usize), ProtocolError> {
        let first_span = spans.len();
        if !self.spans.is_empty() {
            spans.extend(self.spans.drain(..).map(|(place, len)| (place + start as u32, len)));
        }
        let mut cursor = RequestCursor { buffer, start, position: start + self.position, spans };
        let mut missing = match self.missing_args {
            Some(missing) => missing,
            None => match cursor.parse_count(limits)? {
                Some(count) => count,
                None => return Ok((ParseStep::Incomplete, start)),
            },
        };
        while missing > 0 {
            if let Some((start, length)) = parse_short_bulk(buffer, cursor.position) {
                cursor.spans.push((start as u32, length as u32));
                cursor.position = start + length + 2;
                missing -= 1;
                continue;
            }
            match cursor.parse_bulk(limits)? {
                ParseStep::Complete => missing -= 1,
                ParseStep::Incomplete => {
                    self.missing_args = Some(missing);
                    self.position = cursor.position - start;
                    self.spans
                        .extend(spans.drain(first_span..).map(|(place, len)| (place - start as u32, len)));
                    return Ok((ParseStep::Incomplete, start));
                }
            }
        }
        self.missing_args = None;
        self.position = 0;
        if self.spans.capacity() > MAX_RETAINED_SPANS {
            self.spans = Vec::new();
        }
        Ok((ParseStep::Complete, cursor.position))
    }
}

impl RequestCursor<'_> {
    /// Reads the line with the number of arguments.
    fn parse_count(&mut self, limits: &ParseLimits) -> Result<Option<u32>, ProtocolError> {
        if let Some((count, next)) = parse_short_line(self.buffer, self.start)
            && limits.is_authenticated
        {
            self.position = next;
            return Ok(Some(count as u32));
        }
        let too_long = ProtocolError::TooBigCountString;
        let Some((count, next)) = parse_number(self.buffer, self.start + 1, too_long)? else {
            return Ok(None);
        };
        let count = count
            .filter(|&count| count <= i64::from(i32::MAX))
            .ok_or(ProtocolError::InvalidMultibulkLength)?;
        if count > MAX_ARGS_BEFORE_AUTH && !limits.is_authenticated {
            return Err(ProtocolError::UnauthenticatedMultibulkLength);
        }
        self.position = next;
        Ok(Some(u32::try_from(count).unwrap_or(0)))
    }

    /// Reads one argument: `$`, its length, and its bytes.
    fn parse_bulk(&mut self, limits: &ParseLimits) -> Result<ParseStep, ProtocolError> {
        let Some(&first) = self.buffer.get(self.position) else { return Ok(ParseStep::Incomplete) };
        if first != b'$' {
            return Err(ProtocolError::ExpectedDollar(first));
        }
        let too_long = ProtocolError::TooBigBulkCountString;
        let Some((length, start)) = parse_number(self.buffer, self.position + 1, too_long)? else {
            return Ok(ParseStep::Incomplete);
        };
        let length = length
            .filter(|length| (0..=limits.max_bulk_len).contains(length))
            .ok_or(ProtocolError::InvalidBulkLength)?;
        if length > MAX_BULK_LEN_BEFORE_AUTH && !limits.is_authenticated {
            return Err(ProtocolError::UnauthenticatedBulkLength);
        }
        let length = length as usize;
        if self.buffer.len() < start + length + 2 {
            return Ok(ParseStep::Incomplete);
        }
        if self.buffer[start + length..start + length + 2] != *b"\r\n" {
            return Err(ProtocolError::InvalidCrlf);
        }
        self.spans.push((start as u32, length as u32));
        self.position = start + length + 2;
        Ok(ParseStep::Complete)
    }
}

/// Splits a line into words, with the quotes and escapes of inline requests. Returns `None` if a quote is not closed.
#[must_use]
pub fn split_words(line: &str) -> Option<Vec<String>> {
    let words = split_words_bytes(line.as_bytes())?;
    Some(words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// Like [`split_words`], for arbitrary bytes.
#[must_use]
pub fn split_words_bytes(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut line, mut spans) = (line.to_vec(), Vec::new());
    inline::split_words(&mut line, 0, &mut spans).ok()?;
    let args = Args { buffer: &line, spans: &spans };
    Some(args.iter().map(<[u8]>::to_vec).collect())
}

fn parse_inline(
    buffer: &mut [u8],
    start: usize,
    batch: &mut Batch,
) -> Result<(ParseStep, usize), ProtocolError> {
    let line = &mut buffer[start..];
    // As in Redis, a NUL hides the end of the line. A client that starts another protocol (TLS) therefore gets no
    // reply.
    let Some(end) = memchr2(b'\n', 0, line).filter(|end| line[*end] == b'\n') else {
        let too_big = line.len() > MAX_LINE_LEN;
        return if too_big {
            Err(ProtocolError::TooBigInlineRequest)
        } else {
            Ok((ParseStep::Incomplete, start))
        };
    };
    let text_end = if end > 0 && line[end - 1] == b'\r' { end - 1 } else { end };
    let line = &mut line[..text_end];
    if memchr2(b'"', b'\'', line).is_some() {
        batch.original_lines.push((start as u32, (&*line).into()));
    }
    inline::split_words(line, start as u32, &mut batch.spans)?;
    Ok((ParseStep::Complete, start + end + 1))
}

/// Fast path for a count or length line with a number from 1 to 999, as in nearly all requests. Returns the number
/// after the type byte and the offset of the next line, or `None` if the line is incomplete or does not have this form.
/// Such numbers are within every limit of an authenticated client.
#[inline]
fn parse_short_line(buffer: &[u8], start: usize) -> Option<(usize, usize)> {
    let &[_, first @ b'1'..=b'9', second, third, fourth] = buffer.get(start..)?.first_chunk()? else {
        return None;
    };
    let first = usize::from(first - b'0');
    if second == b'\r' && third == b'\n' {
        return Some((first, start + 4));
    }
    let digit = |byte: u8| Some(usize::from(byte.wrapping_sub(b'0'))).filter(|digit| *digit < 10);
    let two = first * 10 + digit(second)?;
    if third == b'\r' && fourth == b'\n' {
        return Some((two, start + 5));
    }
    let three = two * 10 + digit(third)?;
    (fourth == b'\r' && buffer.get(start + 5) == Some(&b'\n')).then_some((three, start + 6))
}

/// Fast path: returns start and length of the argument at `position` if the argument is complete and its length has few
/// digits.
#[inline]
fn parse_short_bulk(buffer: &[u8], position: usize) -> Option<(usize, usize)> {
    let (length, start) = parse_short_line(buffer, position)?;
    let end = buffer.get(start + length..)?.first_chunk()?;
    (buffer[position] == b'$' && end == b"\r\n").then_some((start, length))
}

/// Returns the start of the line that ends at `end`, if this line consists of `type_byte` and `number`.
fn find_number_line_before(buffer: &[u8], end: usize, type_byte: u8, number: usize) -> Option<usize> {
    let digits = buffer[..end].strip_suffix(b"\r\n")?;
    let before = digits.strip_suffix(itoa::Buffer::new().format(number).as_bytes())?;
    before.strip_suffix(&[type_byte]).map(<[u8]>::len)
}

/// Parses the number on the line that starts at `start`. Once the line is complete, returns the value (`None` if
/// malformed) and the offset of the next line.
fn parse_number(
    buffer: &[u8],
    start: usize,
    too_long: ProtocolError,
) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
    let line = parse_line(buffer, start, too_long)?;
    Ok(line.map(|line| (parse_i64(line), start + line.len() + 2)))
}

/// Returns the line that starts at `start`, without CR LF, once it is complete.
fn parse_line(buffer: &[u8], start: usize, too_long: ProtocolError) -> Result<Option<&[u8]>, ProtocolError> {
    let rest = &buffer[start.min(buffer.len())..];
    match memchr(b'\r', rest) {
        Some(end) if end + 1 < rest.len() && rest[end + 1] != b'\n' => Err(ProtocolError::InvalidCrlf),
        Some(end) if end + 1 < rest.len() => Ok(Some(&rest[..end])),
        None if rest.len() > MAX_LINE_LEN => Err(too_long),
        _ => Ok(None),
    }
}

/// Appends a request in wire format.
pub fn encode_request<'a, I>(out: &mut Vec<u8>, args: I)
where
    I: IntoIterator<Item = &'a [u8]>,
    I::IntoIter: ExactSizeIterator,
{
    let args = args.into_iter();
    let mut digits = itoa::Buffer::new();
    out.push(b'*');
    out.extend_from_slice(digits.format(args.len()).as_bytes());
    out.extend_from_slice(b"\r\n");
    for arg in args {
        out.push(b'$');
        out.extend_from_slice(digits.format(arg.len()).as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}
