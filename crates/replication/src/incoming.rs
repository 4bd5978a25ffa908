//! A master's stream on its way into the data: its commands run in order, its bytes go to the own log as they came.
//!
//! | | the process | here |
//! | --- | --- | --- |
//! | 1 | bytes came | [`Incoming::take`]: the whole commands among them, a [`Piece`] |
//! | 2 | takes the stream's turn, asks whether the stream is still applied, and runs the commands | |
//! | 3 | in the same turn: [`Incoming::log`] | appends their bytes |
//!
//! Invariant: the log, and the position that is told to the master, never end within a transaction. Its commands are
//! queued as they come and run together at EXEC; until then their bytes are held. If the link breaks in between, the
//! queue is forgotten and the master sends the transaction again from MULTI.

use resp::{Batch, Limits, Parser, ProtocolError};

/// The stream as far as it has come and is not in the log.
#[derive(Debug, Default)]
pub struct Incoming {
    parser: Parser,
    /// The beginning of a command whose end has not come.
    input: Vec<u8>,
    /// The commands of a transaction whose EXEC has not come.
    held: Vec<u8>,
}

/// Whole commands that came together.
#[derive(Debug, Default)]
pub struct Piece {
    /// Their bytes.
    pub bytes: Vec<u8>,
    /// Where each command is in them.
    pub batch: Batch,
    /// The fault of the bytes that follow, if they have one.
    pub error: Option<ProtocolError>,
}

impl Incoming {
    /// A stream goes on after a break with a whole command, outside of a transaction.
    pub fn restart(&mut self) {
        *self = Self::default();
    }

    /// Takes the whole commands that are there when these bytes have come.
    pub fn take(&mut self, bytes: Vec<u8>) -> Piece {
        let mut input = std::mem::take(&mut self.input);
        if input.is_empty() {
            input = bytes;
        } else {
            input.extend_from_slice(&bytes);
        }
        let limits = Limits { max_bulk_len: i64::from(u32::MAX), ..Limits::default() };
        let mut batch = Batch::default();
        let parsed = self.parser.parse(&mut input, &mut batch, &limits);
        self.input = input.split_off(parsed.consumed);
        Piece { bytes: input, batch, error: parsed.error }
    }

    /// Appends a piece whose commands have run, up to a transaction that is not complete; `in_transaction`: there is one
    /// now. Returns how many bytes were appended.
    pub fn log(&mut self, piece: &Piece, in_transaction: bool, mut append: impl FnMut(&[u8])) -> u64 {
        let Piece { bytes, batch, .. } = piece;
        let whole =
            if in_transaction { begin_of_transaction(bytes, batch).unwrap_or(0) } else { bytes.len() };
        let mut done = 0;
        if whole > 0 {
            // Whatever was held before has ended within these bytes.
            let held = std::mem::take(&mut self.held);
            if !held.is_empty() {
                append(&held);
            }
            append(&bytes[..whole]);
            done = held.len() + whole;
        }
        self.held.extend_from_slice(&bytes[whole..]);
        done as u64
    }
}

/// Where the last MULTI of these requests stands; `None` if an earlier piece brought it.
#[must_use]
pub fn begin_of_transaction(bytes: &[u8], batch: &Batch) -> Option<usize> {
    let is_multi = |index: &usize| {
        batch.args(*index, bytes).get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"multi"))
    };
    (0..batch.len()).rev().find(is_multi).map(|index| batch.consumed(index))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives pieces of a stream as they come, and notes where the log ended after each.
    #[derive(Default)]
    struct Applied {
        incoming: Incoming,
        commands: Vec<String>,
        log: Vec<u8>,
        ends: Vec<usize>,
        in_transaction: bool,
    }

    impl Applied {
        fn come(&mut self, bytes: &[u8]) {
            let piece = self.incoming.take(bytes.to_vec());
            assert_eq!(piece.error, None);
            for index in 0..piece.batch.len() {
                let name = String::from_utf8_lossy(&piece.batch.args(index, &piece.bytes)[0]).into_owned();
                self.in_transaction = match name.as_str() {
                    "MULTI" => true,
                    "EXEC" => false,
                    _ => self.in_transaction,
                };
                self.commands.push(name);
            }
            let before = self.log.len();
            let log = &mut self.log;
            let appended =
                self.incoming.log(&piece, self.in_transaction, |bytes| log.extend_from_slice(bytes));
            assert_eq!(appended as usize, self.log.len() - before);
            self.ends.push(self.log.len());
        }
    }

    fn stream(commands: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        commands.iter().for_each(|name| resp::encode_request(&mut bytes, [name.as_bytes(), b"argument"]));
        bytes
    }

    const COMMANDS: [&str; 8] = ["SET", "MULTI", "INCR", "LPUSH", "EXEC", "MULTI", "EXEC", "DEL"];

    proptest! {
        #[test]
        fn however_it_comes_it_runs_and_is_logged_once_and_the_log_ends_in_no_transaction(
            mut cuts in prop::collection::vec(0usize..250, 0..12),
        ) {
            let bytes = stream(&COMMANDS);
            // The places at which the log may end.
            let outside: Vec<usize> = [0, 1, 5, 7, 8].map(|count| stream(&COMMANDS[..count]).len()).to_vec();
            cuts.retain(|cut| *cut < bytes.len());
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut applied = Applied::default();
            cuts.windows(2).for_each(|cut| applied.come(&bytes[cut[0]..cut[1]]));
            prop_assert_eq!(&applied.commands, &COMMANDS);
            prop_assert_eq!(&applied.log, &bytes);
            prop_assert!(applied.ends.iter().all(|end| outside.contains(end)), "{:?}", applied.ends);
        }
    }

    #[test]
    fn a_transaction_that_a_break_cut_off_comes_again_from_its_beginning() {
        let mut applied = Applied::default();
        applied.come(&stream(&["SET", "MULTI", "INCR"]));
        applied.come(b"*2\r\n$4\r\nINC");
        assert_eq!(applied.log, stream(&["SET"]));
        applied.incoming.restart();
        applied.in_transaction = false;
        applied.come(&stream(&["MULTI", "INCR", "EXEC"]));
        assert_eq!(applied.log, stream(&["SET", "MULTI", "INCR", "EXEC"]));
    }

    #[test]
    fn what_is_no_command_is_told_behind_the_commands_before_it() {
        let mut incoming = Incoming::default();
        let piece = incoming.take([&stream(&["SET"])[..], b"*1\r\n!"].concat());
        assert_eq!((piece.batch.len(), piece.bytes.len()), (1, stream(&["SET"]).len()));
        assert!(piece.error.is_some());
    }
}
