//! A simple blocking RESP2 and RESP3 client for tests.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Longer than the slowest reply takes, and shorter than the time limit of a test.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A reply as it was on the wire. Two replies are equal only if clients cannot distinguish them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    /// A simple string, such as `+OK`.
    Simple(String),
    /// An error, such as `-ERR message`, without its `-`.
    Error(String),
    /// An integer, such as `:1`.
    Int(i64),
    /// A bulk string, such as `$3` followed by three bytes.
    Bulk(Vec<u8>),
    /// `$-1`, the null bulk string of RESP2.
    NullBulk,
    /// `*-1`, the null array of RESP2.
    NullArray,
    /// `_`, the null of RESP3.
    Null,
    /// An array, such as `*2` followed by two replies.
    Array(Vec<Reply>),
    /// A RESP3 set, such as `~2` followed by two replies.
    Set(Vec<Reply>),
    /// A RESP3 map, such as `%1`, as pairs in the order received.
    Map(Vec<(Reply, Reply)>),
    /// A RESP3 push, such as `>2`, which may arrive between replies.
    Push(Vec<Reply>),
    /// A RESP3 boolean, such as `#t`.
    Bool(bool),
    /// A RESP3 double, such as `,1.5`, with its digits as received.
    Double(String),
    /// A RESP3 big number, such as `(12`, with its digits as received.
    BigNumber(String),
    /// A RESP3 verbatim string, including the three letters and the colon that precede its text.
    Verbatim(Vec<u8>),
}

impl Reply {
    /// Returns whether this is an error that begins with `code`.
    #[must_use]
    pub fn is_error(&self, code: &str) -> bool {
        matches!(self, Self::Error(text) if text.starts_with(code))
    }

    /// Returns the text of a simple, bulk or verbatim string.
    ///
    /// # Panics
    /// The reply has another type.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) => text.clone(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Verbatim(bytes) => String::from_utf8_lossy(&bytes[4..]).into_owned(),
            other => panic!("a string was expected, not {other:?}"),
        }
    }

    /// Returns the value of an integer reply.
    ///
    /// # Panics
    /// The reply has another type.
    #[must_use]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => panic!("an integer was expected, not {other:?}"),
        }
    }

    /// Returns the elements of an array, a set or a push.
    ///
    /// # Panics
    /// The reply has another type.
    #[must_use]
    pub fn items(&self) -> &[Reply] {
        match self {
            Self::Array(items) | Self::Set(items) | Self::Push(items) => items,
            other => panic!("an array was expected, not {other:?}"),
        }
    }

    /// Asserts that the reply is `+OK`.
    ///
    /// # Panics
    /// The reply is anything else.
    pub fn expect_ok(&self) {
        assert_eq!(*self, Self::Simple("OK".into()));
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Int(number) => write!(f, ":{number}"),
            Self::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::NullBulk => write!(f, "$-1"),
            Self::NullArray => write!(f, "*-1"),
            Self::Null => write!(f, "_"),
            Self::Array(items) => f.debug_list().entries(items).finish(),
            Self::Set(items) => write!(f, "~").and_then(|()| f.debug_set().entries(items).finish()),
            Self::Map(pairs) => f.debug_map().entries(pairs.iter().map(|(key, value)| (key, value))).finish(),
            Self::Push(items) => write!(f, ">").and_then(|()| f.debug_list().entries(items).finish()),
            Self::Bool(value) => write!(f, "#{value}"),
            Self::Double(text) => write!(f, ",{text}"),
            Self::BigNumber(text) => write!(f, "({text}"),
            Self::Verbatim(bytes) => write!(f, "={}", bytes.escape_ascii()),
        }
    }
}

/// A blocking connection to a server.
#[derive(Debug)]
pub struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// The connection failed.
    pub fn open(address: impl ToSocketAddrs) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    /// Sets the timeout for replies.
    ///
    /// # Panics
    /// The timeout is zero.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.reader.get_ref().set_read_timeout(Some(timeout)).expect("a timeout can be set");
    }

    /// Sends raw bytes, which need not be valid RESP.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Shuts down the sending direction.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn shut_down_sending(&mut self) -> io::Result<()> {
        self.reader.get_ref().shutdown(std::net::Shutdown::Write)
    }

    /// Sends a command without waiting for its reply.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<()> {
        self.send_raw(&encode_command(arguments))
    }

    /// Sends commands in a single write, without waiting for replies.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send_all<A: AsRef<[u8]>, C: AsRef<[A]>>(&mut self, commands: &[C]) -> io::Result<()> {
        let bytes: Vec<u8> = commands.iter().flat_map(|command| encode_command(command.as_ref())).collect();
        self.send_raw(&bytes)
    }

    /// Sends a command and returns its reply.
    ///
    /// # Errors
    /// The connection is broken, or no reply arrives.
    pub fn try_call<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<Reply> {
        self.send(arguments)?;
        self.read()
    }

    /// Like [`Self::try_call`], but panics instead of returning an error.
    ///
    /// # Panics
    /// The connection is broken, or no reply arrives.
    pub fn call(&mut self, arguments: &[&str]) -> Reply {
        self.try_call(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }

    /// Like [`Self::call`], with the command's words separated by blanks in one string.
    ///
    /// # Panics
    /// The connection is broken, or no reply arrives.
    pub fn call_line(&mut self, line: &str) -> Reply {
        self.call(&line.split(' ').collect::<Vec<_>>())
    }

    /// Like [`Self::call_line`], for several commands sent in a single write.
    ///
    /// # Panics
    /// The connection is broken, or a reply is missing.
    pub fn call_lines<L: AsRef<str>>(&mut self, lines: &[L]) -> Vec<Reply> {
        let commands: Vec<Vec<&str>> = lines.iter().map(|line| line.as_ref().split(' ').collect()).collect();
        self.send_all(&commands).expect("the server takes commands");
        commands
            .iter()
            .map(|command| self.read().unwrap_or_else(|error| panic!("{command:?}: {error}")))
            .collect()
    }

    /// Returns whether unread bytes or the end of the stream have arrived.
    ///
    /// # Panics
    /// The system call failed.
    #[must_use]
    pub fn has_unread_data(&self) -> bool {
        let stream = self.reader.get_ref();
        stream.set_nonblocking(true).expect("a socket can be told not to wait");
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).expect("a socket can be told to wait");
        !self.reader.buffer().is_empty()
            || !peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Reads one reply.
    ///
    /// # Errors
    /// The connection ended, the bytes are not valid RESP, or no reply arrived in time.
    pub fn read(&mut self) -> io::Result<Reply> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !line.ends_with(b"\r\n") {
            return Err(invalid_reply_error(&line));
        }
        line.truncate(line.len() - 2);
        let text = || String::from_utf8_lossy(&line[1..]).into_owned();
        let number = || text().parse::<i64>().map_err(|_| invalid_reply_error(&line));
        Ok(match line.first() {
            Some(b'+') => Reply::Simple(text()),
            Some(b'-') => Reply::Error(text()),
            Some(b':') => Reply::Int(number()?),
            Some(b'_') => Reply::Null,
            Some(b'#') => Reply::Bool(line[1..] == *b"t"),
            Some(b',') => Reply::Double(text()),
            Some(b'(') => Reply::BigNumber(text()),
            Some(b'$') => match number()? {
                -1 => Reply::NullBulk,
                length => Reply::Bulk(self.read_payload(length)?),
            },
            Some(b'=') => Reply::Verbatim(self.read_payload(number()?)?),
            Some(b'*') => match number()? {
                -1 => Reply::NullArray,
                count => Reply::Array(self.read_replies(count)?),
            },
            Some(b'~') => Reply::Set(self.read_replies(number()?)?),
            Some(b'>') => Reply::Push(self.read_replies(number()?)?),
            Some(b'%') => {
                let pairs = number()?;
                Reply::Map((0..pairs).map(|_| Ok((self.read()?, self.read()?))).collect::<io::Result<_>>()?)
            }
            _ => return Err(invalid_reply_error(&line)),
        })
    }

    /// Reads until the server closes the connection. Returns the bytes read.
    ///
    /// # Errors
    /// The server does not close the connection.
    pub fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match self.reader.read_to_end(&mut bytes) {
            // If a server closes a connection before it has read all input, the connection is reset.
            Err(error) if error.kind() != io::ErrorKind::ConnectionReset => Err(error),
            _ => Ok(bytes),
        }
    }

    fn read_payload(&mut self, length: i64) -> io::Result<Vec<u8>> {
        let length = usize::try_from(length).map_err(|_| invalid_reply_error(b"a negative length"))?;
        let mut bytes = vec![0; length + 2];
        self.reader.read_exact(&mut bytes)?;
        if !bytes.ends_with(b"\r\n") {
            return Err(invalid_reply_error(&bytes));
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    fn read_replies(&mut self, count: i64) -> io::Result<Vec<Reply>> {
        (0..count).map(|_| self.read()).collect()
    }
}

/// Encodes a command as an array of bulk strings.
fn encode_command<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn invalid_reply_error(bytes: &[u8]) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no RESP: \"{}\"", bytes.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_encoded_as_arrays_of_bulk_strings() {
        assert_eq!(encode_command(&["GET", "a b"]), b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n");
    }
}
