//! Requests: arrays of bulk strings, or inline text.
//!
//! One read brings many requests (pipelining), and a request may come in many reads. [`Parser::parse`]
//! takes what has been read so far and appends every complete request to a [`Batch`], as places in the
//! buffer: nothing is copied. What is left of an unfinished request stays in the buffer; the parser
//! remembers how far it got, so that a request of a million arguments is not read again from its start
//! with every packet.
//!
//! Inline requests are unquoted in place, which the parser may do because unquoted text is never longer. A request that
//! is not run now and parsed again has its line put back before ([`Batch::put_back`]).

mod inline;
#[cfg(test)]
mod tests;

use memchr::{memchr, memchr2};

use crate::number::parse_i64;

/// No line of a request (inline text, a count, a length) may be longer: 64 KiB, as in Redis.
const MAX_LINE: usize = 64 * 1024;
/// The bounds for a client that has not authenticated: that many arguments, each so long.
const MAX_ARGS_BEFORE_AUTH: i64 = 10;
const MAX_BULK_BEFORE_AUTH: i64 = 16 * 1024;
/// Memory for the places of more arguments than this is given back when a request, or a batch of them, is done with.
const KEEP_SPANS: usize = 1024;
const KEEP_BATCH_SPANS: usize = 16 * 1024;
/// Where one argument lies: offset and length in the buffer.
type Span = (u32, u32);

/// Bounds on what a client may send.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest argument, in bytes (`proto-max-bulk-len`).
    pub max_bulk_len: i64,
    /// Whether the client has authenticated, or need not.
    pub authenticated: bool,
    /// Whether a line as people type it is a request, too.
    pub inline: bool,
    /// How many requests are parsed at once.
    pub requests: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bulk_len: 512 * 1024 * 1024, authenticated: true, inline: true, requests: usize::MAX }
    }
}

/// A request that cannot be understood. The connection is to be closed after the error reply, since
/// nobody knows where the next request starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtocolError {
    /// A line without an end.
    TooBigInlineRequest,
    /// An inline request with a quote that is not closed.
    UnbalancedQuotes,
    /// A count of arguments without an end.
    TooBigCountString,
    /// A count of arguments that is no number or too large.
    InvalidMultibulkLength,
    /// More arguments than a client that has not signed in may send.
    UnauthenticatedMultibulkLength,
    /// A length of an argument without an end.
    TooBigBulkCountString,
    /// A request that begins with this byte and not with `*`, where no lines are taken.
    ExpectedAsterisk(u8),
    /// An argument that begins with this byte and not with `$`.
    ExpectedDollar(u8),
    /// A length of an argument that is no number or too large.
    InvalidBulkLength,
    /// A longer argument than a client that has not signed in may send.
    UnauthenticatedBulkLength,
    /// A line or an argument that does not end where it says.
    InvalidCrlf,
}

impl ProtocolError {
    /// Whether it is only that the client has not authenticated.
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

/// The arguments of one request, the command's name first. Cheap to copy.
#[derive(Clone, Copy, Default)]
pub struct Args<'a> {
    buffer: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// How many arguments there are, the command's name included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Argument `index`; 0 is the command's name.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let &(start, len) = self.spans.get(index)?;
        Some(&self.buffer[start as usize..start as usize + len as usize])
    }

    /// How many bytes they took where they were read.
    #[must_use]
    pub fn span(&self) -> usize {
        match (self.spans.first(), self.spans.last()) {
            (Some((start, _)), Some((last, len))) => (last + len - start) as usize,
            _ => 0,
        }
    }

    /// Whether the request came as a typed line, not as an array of strings. A copy of its words seems typed, too.
    #[must_use]
    pub fn is_typed(&self) -> bool {
        let first = self.spans.first();
        first.is_some_and(|&(start, len)| {
            number_before(self.buffer, start as usize, b'$', len as usize).is_none()
        })
    }

    /// The request's bytes as it came, if they are those that [`encode_request`] would write.
    #[must_use]
    pub fn wire(&self) -> Option<&'a [u8]> {
        let (&(first, len), rest) = self.spans.split_first()?;
        let bulk = number_before(self.buffer, first as usize, b'$', len as usize)?;
        let start = number_before(self.buffer, bulk, b'*', self.spans.len())?;
        let mut end = first as usize + len as usize;
        for &(place, len) in rest {
            let bulk = number_before(self.buffer, place as usize, b'$', len as usize)?;
            if bulk != end + 2 || &self.buffer[end..bulk] != b"\r\n" {
                return None;
            }
            end = place as usize + len as usize;
        }
        self.buffer[end..].starts_with(b"\r\n").then(|| &self.buffer[start..end + 2])
    }

    /// The arguments from `first` on.
    #[must_use]
    pub fn from(&self, first: usize) -> Self {
        Self { buffer: self.buffer, spans: &self.spans[first.min(self.spans.len())..] }
    }

    /// The first `count` arguments.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        Self { buffer: self.buffer, spans: &self.spans[..count.min(self.spans.len())] }
    }

    /// The arguments in order.
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

/// The requests of one read, as places in the read buffer.
#[derive(Debug, Default)]
pub struct Batch {
    spans: Vec<Span>,
    /// Where each request ends: among the spans, and in the buffer.
    ends: Vec<(u32, u32)>,
    /// Lines with quotes, as they came, and where.
    quoted: Vec<(u32, Box<[u8]>)>,
}

impl Batch {
    /// How many requests there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it holds no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Forgets its requests.
    pub fn clear(&mut self) {
        self.spans.clear();
        if self.spans.capacity() > KEEP_BATCH_SPANS {
            self.spans = Vec::new();
        }
        self.ends.clear();
        self.quoted.clear();
    }

    /// Forgets its requests and gives the memory back if they have many arguments.
    pub fn release_large(&mut self) {
        if self.spans.capacity() > KEEP_BATCH_SPANS {
            self.clear();
        }
    }

    /// Has `buffer`, which was parsed, be again from byte `from` on what it was: the requests there are to be parsed
    /// again.
    pub fn put_back(&self, from: usize, buffer: &mut [u8]) {
        for (start, line) in self.quoted.iter().filter(|(start, _)| *start as usize >= from) {
            buffer[*start as usize..][..line.len()].copy_from_slice(line);
        }
    }

    /// The arguments of request `index`; `buffer` is what was parsed.
    #[must_use]
    pub fn args<'a>(&'a self, index: usize, buffer: &'a [u8]) -> Args<'a> {
        let start = if index == 0 { 0 } else { self.ends[index - 1].0 as usize };
        Args { buffer, spans: &self.spans[start..self.ends[index].0 as usize] }
    }

    /// The arguments of one request after another, from number `range.start` on.
    pub fn requests<'a>(
        &'a self,
        range: std::ops::Range<usize>,
        buffer: &'a [u8],
    ) -> impl ExactSizeIterator<Item = Args<'a>> {
        let mut start = if range.start == 0 { 0 } else { self.ends[range.start - 1].0 as usize };
        self.ends[range].iter().map(move |&(end, _)| {
            let spans = &self.spans[start..end as usize];
            start = end as usize;
            Args { buffer, spans }
        })
    }

    /// How many bytes of the buffer the first `count` requests take up.
    #[must_use]
    pub fn consumed(&self, count: usize) -> usize {
        if count == 0 { 0 } else { self.ends[count - 1].1 as usize }
    }
}

/// A request that owns its bytes: for what is queued, built or read from a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

impl Request {
    /// A request without arguments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an argument.
    pub fn push(&mut self, arg: &[u8]) {
        self.spans.push((self.bytes.len() as u32, arg.len() as u32));
        self.bytes.extend_from_slice(arg);
    }

    /// Forgets the arguments and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }

    /// Its bytes on the heap.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.capacity() + self.spans.capacity() * size_of::<Span>()
    }

    /// Its arguments.
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
pub struct Parsed {
    /// Bytes of the buffer that are done with: every complete request.
    pub consumed: usize,
    /// The fault of the bytes after that, if they have one.
    pub error: Option<ProtocolError>,
}

/// Remembers how far an unfinished request was read.
#[derive(Debug, Default)]
pub struct Parser {
    /// Arguments still to come, when a request's count has been read.
    missing: Option<u32>,
    /// The arguments already seen and the place to go on from, counted from the request's first byte.
    spans: Vec<Span>,
    position: usize,
}

/// One request on its way into a batch.
struct Cursor<'a> {
    buffer: &'a [u8],
    /// Where the request starts, and how far it was read.
    start: usize,
    position: usize,
    spans: &'a mut Vec<Span>,
}

enum Step {
    Done,
    NeedMore,
}

impl Parser {
    /// A parser at the start of a request.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Its bytes on the heap.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>()
    }

    /// How many bytes are missing behind `buffer`, in which nothing is done with that was parsed last, of the argument
    /// that it ends in. 0 if that is not known.
    #[must_use]
    pub fn missing_of_argument(&self, buffer: &[u8]) -> usize {
        if self.missing.is_none() || buffer.get(self.position) != Some(&b'$') {
            return 0;
        }
        let header = number(buffer, self.position + 1, ProtocolError::TooBigBulkCountString);
        let Ok(Some((length, start))) = header else { return 0 };
        let end = usize::try_from(length.unwrap_or(0)).unwrap_or(0) + start + 2;
        end.saturating_sub(buffer.len())
    }

    /// Appends every complete request in `buffer` to `batch`. The buffer must start where the last call
    /// left off (its `consumed` bytes taken out) and be below 4 GiB.
    pub fn parse(&mut self, buffer: &mut [u8], batch: &mut Batch, limits: &Limits) -> Parsed {
        debug_assert!(u32::try_from(buffer.len()).is_ok(), "the query buffer's limit is far below 4 GiB");
        let mut consumed = 0;
        while consumed < buffer.len() && batch.ends.len() < limits.requests {
            let first_span = batch.spans.len();
            let step = if self.missing.is_some() || buffer[consumed] == b'*' {
                self.multibulk(buffer, consumed, &mut batch.spans, limits)
            } else if limits.inline {
                inline(buffer, consumed, batch)
            } else {
                Err(ProtocolError::ExpectedAsterisk(buffer[consumed]))
            };
            match step {
                Ok((Step::Done, end)) => consumed = end,
                Ok((Step::NeedMore, _)) => break,
                Err(error) => {
                    batch.spans.truncate(first_span);
                    return Parsed { consumed, error: Some(error) };
                }
            }
            if batch.spans.len() > first_span {
                batch.ends.push((batch.spans.len() as u32, consumed as u32));
            }
        }
        Parsed { consumed, error: None }
    }

    /// Reads on in the request that begins with the `*` at `start`; also says where it stopped.
    fn multibulk(
        &mut self,
        buffer: &[u8],
        start: usize,
        spans: &mut Vec<Span>,
        limits: &Limits,
    ) -> Result<(Step, usize), ProtocolError> {
        let first_span = spans.len();
        if !self.spans.is_empty() {
            spans.extend(self.spans.drain(..).map(|(place, len)| (place + start as u32, len)));
        }
        let mut cursor = Cursor { buffer, start, position: start + self.position, spans };
        let mut missing = match self.missing {
            Some(missing) => missing,
            None => match cursor.count(limits)? {
                Some(count) => count,
                None => return Ok((Step::NeedMore, start)),
            },
        };
        while missing > 0 {
            if let Some((start, length)) = short_bulk(buffer, cursor.position) {
                cursor.spans.push((start as u32, length as u32));
                cursor.position = start + length + 2;
                missing -= 1;
                continue;
            }
            match cursor.bulk(limits)? {
                Step::Done => missing -= 1,
                Step::NeedMore => {
                    self.missing = Some(missing);
                    self.position = cursor.position - start;
                    self.spans
                        .extend(spans.drain(first_span..).map(|(place, len)| (place - start as u32, len)));
                    return Ok((Step::NeedMore, start));
                }
            }
        }
        self.missing = None;
        self.position = 0;
        if self.spans.capacity() > KEEP_SPANS {
            self.spans = Vec::new();
        }
        Ok((Step::Done, cursor.position))
    }
}

impl Cursor<'_> {
    /// Reads how many arguments there are.
    fn count(&mut self, limits: &Limits) -> Result<Option<u32>, ProtocolError> {
        if let Some((count, next)) = short_line(self.buffer, self.start)
            && limits.authenticated
        {
            self.position = next;
            return Ok(Some(count as u32));
        }
        let too_long = ProtocolError::TooBigCountString;
        let Some((count, next)) = number(self.buffer, self.start + 1, too_long)? else { return Ok(None) };
        let count = count
            .filter(|&count| count <= i64::from(i32::MAX))
            .ok_or(ProtocolError::InvalidMultibulkLength)?;
        if count > MAX_ARGS_BEFORE_AUTH && !limits.authenticated {
            return Err(ProtocolError::UnauthenticatedMultibulkLength);
        }
        self.position = next;
        Ok(Some(u32::try_from(count).unwrap_or(0)))
    }

    /// Reads one argument: `$`, its length, its bytes.
    fn bulk(&mut self, limits: &Limits) -> Result<Step, ProtocolError> {
        let Some(&first) = self.buffer.get(self.position) else { return Ok(Step::NeedMore) };
        if first != b'$' {
            return Err(ProtocolError::ExpectedDollar(first));
        }
        let too_long = ProtocolError::TooBigBulkCountString;
        let Some((length, start)) = number(self.buffer, self.position + 1, too_long)? else {
            return Ok(Step::NeedMore);
        };
        let length = length
            .filter(|length| (0..=limits.max_bulk_len).contains(length))
            .ok_or(ProtocolError::InvalidBulkLength)?;
        if length > MAX_BULK_BEFORE_AUTH && !limits.authenticated {
            return Err(ProtocolError::UnauthenticatedBulkLength);
        }
        let length = length as usize;
        if self.buffer.len() < start + length + 2 {
            return Ok(Step::NeedMore);
        }
        if self.buffer[start + length..start + length + 2] != *b"\r\n" {
            return Err(ProtocolError::InvalidCrlf);
        }
        self.spans.push((start as u32, length as u32));
        self.position = start + length + 2;
        Ok(Step::Done)
    }
}

/// The words of a line, with quotes and escapes as people type requests. `None` if a quote is not closed.
#[must_use]
pub fn split_words(line: &str) -> Option<Vec<String>> {
    let words = split_bytes(line.as_bytes())?;
    Some(words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// [`split_words`] of any bytes.
#[must_use]
pub fn split_bytes(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut line, mut spans) = (line.to_vec(), Vec::new());
    inline::split(&mut line, 0, &mut spans).ok()?;
    let args = Args { buffer: &line, spans: &spans };
    Some(args.iter().map(<[u8]>::to_vec).collect())
}

/// Reads the line of words that starts at `start`, as people type them.
fn inline(buffer: &mut [u8], start: usize, batch: &mut Batch) -> Result<(Step, usize), ProtocolError> {
    let line = &mut buffer[start..];
    // As there is no end of the line behind a null: what begins to speak another protocol (TLS) is told nothing.
    let Some(end) = memchr2(b'\n', 0, line).filter(|end| line[*end] == b'\n') else {
        let too_big = line.len() > MAX_LINE;
        return if too_big { Err(ProtocolError::TooBigInlineRequest) } else { Ok((Step::NeedMore, start)) };
    };
    let text_end = if end > 0 && line[end - 1] == b'\r' { end - 1 } else { end };
    let line = &mut line[..text_end];
    if memchr2(b'"', b'\'', line).is_some() {
        batch.quoted.push((start as u32, (&*line).into()));
    }
    inline::split(line, start as u32, &mut batch.spans)?;
    Ok((Step::Done, start + end + 1))
}

/// The number on the line that starts at `start`, behind a mark of one byte, and where the next line starts:
/// if the number is one from 1 to 999, which nearly every count and length is. They are within every limit of
/// a client that has authenticated. `None` says nothing: the line may be of another form, or not yet there.
#[inline]
fn short_line(buffer: &[u8], start: usize) -> Option<(usize, usize)> {
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

/// Where the argument at `position` starts and how long it is, if its length is short and it is there whole.
#[inline]
fn short_bulk(buffer: &[u8], position: usize) -> Option<(usize, usize)> {
    let (length, start) = short_line(buffer, position)?;
    let end = buffer.get(start + length..)?.first_chunk()?;
    (buffer[position] == b'$' && end == b"\r\n").then_some((start, length))
}

/// Where the line begins that ends at `end` and says `number` behind `mark`, if there is such a line.
fn number_before(buffer: &[u8], end: usize, mark: u8, number: usize) -> Option<usize> {
    let digits = buffer[..end].strip_suffix(b"\r\n")?;
    let before = digits.strip_suffix(itoa::Buffer::new().format(number).as_bytes())?;
    before.strip_suffix(&[mark]).map(<[u8]>::len)
}

/// Reads the number on the line that starts at `start`: its value (none if it is no number) and where
/// the next line starts, once the line is there whole.
fn number(
    buffer: &[u8],
    start: usize,
    too_long: ProtocolError,
) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
    let line = line(buffer, start, too_long)?;
    Ok(line.map(|line| (parse_i64(line), start + line.len() + 2)))
}

/// The line of `buffer` that starts at `start`, without its CR LF, once it is there whole.
fn line(buffer: &[u8], start: usize, too_long: ProtocolError) -> Result<Option<&[u8]>, ProtocolError> {
    let rest = &buffer[start.min(buffer.len())..];
    match memchr(b'\r', rest) {
        Some(end) if end + 1 < rest.len() && rest[end + 1] != b'\n' => Err(ProtocolError::InvalidCrlf),
        Some(end) if end + 1 < rest.len() => Ok(Some(&rest[..end])),
        None if rest.len() > MAX_LINE => Err(too_long),
        _ => Ok(None),
    }
}

/// Appends a request in wire form.
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
