//! Checks whether an AOF is complete, without running its commands.

use std::io::{self, Read};

use resp::{Batch, ParseLimits, Parser, ProtocolError};

/// Number of bytes read at once; the buffer grows for a longer command.
const BUFFER_LEN: usize = 1 << 20;
/// Maximum length of an annotation line.
const MAX_LINE_LEN: usize = 4096;

/// The result of checking one AOF file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AofCheck {
    /// Number of complete commands before `complete_bytes`.
    pub commands: u64,
    /// Offset at which the last complete command or transaction ends.
    pub complete_bytes: u64,
    /// Length of the file in bytes.
    pub len: u64,
    /// The error at `complete_bytes`; `None` if all commands are valid or the file merely ends in the middle of a
    /// command.
    pub error: Option<String>,
    /// Offset of the first annotation with a time later than the limit passed to [`check`].
    pub is_past_limit: Option<u64>,
}

impl AofCheck {
    /// Adds `bytes` to all offsets, for a file with a prefix (such as an RDB) that was not checked.
    #[must_use]
    pub fn shift(self, bytes: u64) -> Self {
        Self {
            complete_bytes: self.complete_bytes + bytes,
            len: self.len + bytes,
            is_past_limit: self.is_past_limit.map(|past| past + bytes),
            ..self
        }
    }

    /// Returns whether the file consists of complete commands and transactions only.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete_bytes == self.len
    }
}

/// Checks and counts the commands of a file, and finds the first annotation with a time later than `until` (in Unix
/// seconds).
///
/// # Errors
/// The file cannot be read.
pub fn check(input: impl Read, until: Option<i64>) -> io::Result<AofCheck> {
    let mut checker = Checker {
        input,
        buffer: Vec::new(),
        position: 0,
        limit: until,
        result: AofCheck::default(),
        in_transaction: None,
    };
    checker.run()?;
    Ok(checker.result)
}

struct Checker<R> {
    input: R,
    /// Bytes that were read and not parsed yet.
    buffer: Vec<u8>,
    /// Offset in the file of the first byte of `buffer`.
    position: u64,
    limit: Option<i64>,
    result: AofCheck,
    /// Number of commands since the MULTI of an open transaction; `None` outside a transaction.
    in_transaction: Option<u64>,
}

impl<R: Read> Checker<R> {
    fn run(&mut self) -> io::Result<()> {
        let mut parser = Parser::new();
        loop {
            let before = self.buffer.len();
            let room = BUFFER_LEN.max(before) as u64;
            (&mut self.input).take(room).read_to_end(&mut self.buffer)?;
            self.result.len += (self.buffer.len() - before) as u64;
            if self.buffer.len() == before {
                return Ok(());
            }
            while self.result.error.is_none() && self.parse_buffer(&mut parser) {}
            if self.result.error.is_some() {
                self.result.len += io::copy(&mut self.input, &mut io::sink())?;
                return Ok(());
            }
        }
    }

    /// Parses the buffer up to the next annotation. Returns whether it found an annotation.
    fn parse_buffer(&mut self, parser: &mut Parser) -> bool {
        let limits =
            ParseLimits { max_bulk_len: i64::from(u32::MAX), allows_inline: false, ..ParseLimits::default() };
        let mut batch = Batch::default();
        let parsed = parser.parse(&mut self.buffer, &mut batch, &limits);
        for index in 0..batch.len() {
            let bound =
                TransactionBoundary::of_command(batch.args(index, &self.buffer).get(0).unwrap_or_default());
            self.check_commands(bound, batch.consumed(index + 1));
        }
        let mut done = parsed.consumed;
        let rest = &self.buffer[done..];
        let annotation = match parsed.error {
            None => None,
            Some(ProtocolError::ExpectedAsterisk(b'#')) => {
                match rest.iter().position(|byte| *byte == b'\n') {
                    None if rest.len() > MAX_LINE_LEN => {
                        self.result.error = Some("an annotation without an end".to_owned());
                        None
                    }
                    end => end,
                }
            }
            Some(error) => {
                self.result.error = Some(error.to_string());
                None
            }
        };
        if let Some(end) = annotation {
            if ends_past_limit(&rest[..end], self.limit) {
                self.result.is_past_limit.get_or_insert(self.position + done as u64);
            }
            done += end + 1;
            if self.in_transaction.is_none() {
                self.result.complete_bytes = self.position + done as u64;
            }
        }
        self.buffer.drain(..done);
        self.position += done as u64;
        annotation.is_some()
    }

    /// Counts a command that ends at offset `end` of the buffer.
    fn check_commands(&mut self, bound: TransactionBoundary, end: usize) {
        let ended = match &mut self.in_transaction {
            Some(inside) => {
                *inside += 1;
                if bound != TransactionBoundary::End {
                    return;
                }
                self.in_transaction.take().unwrap_or_default()
            }
            None if bound == TransactionBoundary::Begin => {
                self.in_transaction = Some(1);
                return;
            }
            None => 1,
        };
        self.result.commands += ended;
        self.result.complete_bytes = self.position + end as u64;
    }
}

/// Whether a command starts or ends a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransactionBoundary {
    Begin,
    End,
    None,
}

impl TransactionBoundary {
    fn of_command(name: &[u8]) -> Self {
        match name {
            name if name.eq_ignore_ascii_case(b"multi") => Self::Begin,
            name if name.eq_ignore_ascii_case(b"exec") => Self::End,
            _ => Self::None,
        }
    }
}

/// Returns whether an annotation has a time later than `until`.
fn ends_past_limit(line: &[u8], until: Option<i64>) -> bool {
    let time = line.strip_prefix(b"#TS:").map(<[u8]>::trim_ascii).and_then(resp::parse_i64);
    matches!((time, until), (Some(time), Some(until)) if time > until)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: &str = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n";
    const MULTI: &str = "*1\r\n$5\r\nMULTI\r\n";
    const EXEC: &str = "*1\r\n$4\r\nexec\r\n";

    fn result(text: &str, until: Option<i64>) -> AofCheck {
        check(text.as_bytes(), until).unwrap()
    }

    #[test]
    fn complete_commands_and_transactions_are_counted() {
        let text = format!("#TS:5\r\n{SET}{MULTI}{SET}{EXEC}#TS:9\r\n{SET}");
        let checked = result(&text, Some(7));
        assert!(checked.is_complete() && checked.error.is_none());
        assert_eq!((checked.commands, checked.is_past_limit), (5, text.find("#TS:9").map(|at| at as u64)));
    }

    #[test]
    fn truncation_anywhere_ends_at_last_complete_command() {
        let text = format!("{SET}#TS:1\r\n{MULTI}{SET}{EXEC}{SET}");
        let ends = [0, SET.len(), SET.len() + 7, text.len() - SET.len(), text.len()];
        for len in 0..=text.len() {
            let checked = result(&text[..len], None);
            let whole = *ends.iter().rfind(|end| **end <= len).unwrap();
            assert_eq!((checked.complete_bytes, checked.error), (whole as u64, None), "{len}");
        }
    }

    #[test]
    fn malformed_commands_are_reported() {
        for (bad, reason) in
            [("nonsense\r\n", "expected '*', got 'n'"), ("*1\r\n:1\r\n", "expected '$', got ':'")]
        {
            let text = format!("{SET}{bad}{SET}");
            let checked = result(&text, None);
            assert_eq!((checked.complete_bytes, checked.len), (SET.len() as u64, text.len() as u64));
            assert!(checked.error.unwrap().ends_with(reason));
        }
    }
}
