//! Checks whether an AOF is complete, without running its commands.

use std::io::{self, Read};

use resp::{Batch, ParseLimits, Parser, ProtocolError};

/// Number of bytes read at once; the buffer grows for a longer command.
const BUFFER_LEN: usize = 1 << 20;
/// Maximum length of an annotation line.
const MAX_LINE_LEN: usize = 4096;

/// The result of checking one AOF file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AofCheckResult {
    /// Number of complete commands before `complete_bytes`.
    pub commands: u64,
    /// Offset at which the last complete command or transaction ends.
    pub complete_bytes: u64,
    /// Length of the file in bytes.
    pub len: u64,
    /// The error at `complete_bytes`; `None` if all commands are valid or the file merely ends in the middle of a
    /// command.
    pub error: Option<String>,
    /// Offset of the first annotation with a time later than the limit passed to [`check_aof`].
    pub past_limit_offset: Option<u64>,
}

impl AofCheckResult {
    /// Adds `bytes` to all offsets, for a file with a prefix (such as an RDB) that was not checked.
    #[must_use]
    pub fn shift_offsets(self, bytes: u64) -> Self {
        Self {
            complete_bytes: self.complete_bytes + bytes,
            len: self.len + bytes,
            past_limit_offset: self.past_limit_offset.map(|past| past + bytes),
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
pub fn check_aof(input: impl Read, until: Option<i64>) -> io::Result<AofCheckResult> {
    let mut checker = Checker {
        input,
        buffer: Vec::new(),
        buffer_offset: 0,
        until,
        result: AofCheckResult::default(),
        transaction_commands: None,
    };
    checker.run()?;
    Ok(checker.result)
}

struct Checker<R> {
    input: R,
    /// Bytes that were read and not parsed yet.
    buffer: Vec<u8>,
    /// Offset in the file of the first byte of `buffer`.
    buffer_offset: u64,
    until: Option<i64>,
    result: AofCheckResult,
    /// Number of commands since the MULTI of an open transaction; `None` outside a transaction.
    transaction_commands: Option<u64>,
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
            self.count_command(bound, batch.consumed_bytes(index + 1));
        }
        let mut done = parsed.consumed_bytes;
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
            if is_later_than(&rest[..end], self.until) {
                self.result.past_limit_offset.get_or_insert(self.buffer_offset + done as u64);
            }
            done += end + 1;
            if self.transaction_commands.is_none() {
                self.result.complete_bytes = self.buffer_offset + done as u64;
            }
        }
        self.buffer.drain(..done);
        self.buffer_offset += done as u64;
        annotation.is_some()
    }

    /// Counts a command that ends at offset `end` of the buffer.
    fn count_command(&mut self, boundary: TransactionBoundary, end: usize) {
        let ended = match &mut self.transaction_commands {
            Some(inside) => {
                *inside += 1;
                if boundary != TransactionBoundary::End {
                    return;
                }
                self.transaction_commands.take().unwrap_or_default()
            }
            None if boundary == TransactionBoundary::Begin => {
                self.transaction_commands = Some(1);
                return;
            }
            None => 1,
        };
        self.result.commands += ended;
        self.result.complete_bytes = self.buffer_offset + end as u64;
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
fn is_later_than(line: &[u8], until: Option<i64>) -> bool {
    let time = line.strip_prefix(b"#TS:").map(<[u8]>::trim_ascii).and_then(resp::parse_i64);
    matches!((time, until), (Some(time), Some(until)) if time > until)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET_REQUEST: &str = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n";
    const MULTI_REQUEST: &str = "*1\r\n$5\r\nMULTI\r\n";
    const EXEC_REQUEST: &str = "*1\r\n$4\r\nexec\r\n";

    fn check_text(text: &str, until: Option<i64>) -> AofCheckResult {
        check_aof(text.as_bytes(), until).unwrap()
    }

    #[test]
    fn complete_commands_and_transactions_are_counted() {
        let text =
            format!("#TS:5\r\n{SET_REQUEST}{MULTI_REQUEST}{SET_REQUEST}{EXEC_REQUEST}#TS:9\r\n{SET_REQUEST}");
        let checked = check_text(&text, Some(7));
        assert!(checked.is_complete() && checked.error.is_none());
        assert_eq!(
            (checked.commands, checked.past_limit_offset),
            (5, text.find("#TS:9").map(|at| at as u64))
        );
    }

    #[test]
    fn truncation_anywhere_ends_at_last_complete_command() {
        let text = format!("{SET_REQUEST}#TS:1\r\n{MULTI_REQUEST}{SET_REQUEST}{EXEC_REQUEST}{SET_REQUEST}");
        let ends = [0, SET_REQUEST.len(), SET_REQUEST.len() + 7, text.len() - SET_REQUEST.len(), text.len()];
        for len in 0..=text.len() {
            let checked = check_text(&text[..len], None);
            let whole = *ends.iter().rfind(|end| **end <= len).unwrap();
            assert_eq!((checked.complete_bytes, checked.error), (whole as u64, None), "{len}");
        }
    }

    #[test]
    fn malformed_commands_are_reported() {
        for (bad, reason) in
            [("nonsense\r\n", "expected '*', got 'n'"), ("*1\r\n:1\r\n", "expected '$', got ':'")]
        {
            let text = format!("{SET_REQUEST}{bad}{SET_REQUEST}");
            let checked = check_text(&text, None);
            assert_eq!((checked.complete_bytes, checked.len), (SET_REQUEST.len() as u64, text.len() as u64));
            assert!(checked.error.unwrap().ends_with(reason));
        }
    }
}
