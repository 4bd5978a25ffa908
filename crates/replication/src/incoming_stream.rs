//! Splits a master's stream into whole commands and decides which of their bytes may be logged.
//!
//! | | the caller | this module |
//! | --- | --- | --- |
//! | 1 | receives bytes | [`IncomingStream::add_bytes`] returns the complete commands as a [`StreamBatch`] |
//! | 2 | takes the stream's lock, checks that the stream is still current, executes the commands | |
//! | 3 | under the same lock, calls [`IncomingStream::append_executed`] | appends the bytes of the executed commands |
//!
//! Invariant: neither the log nor the offset acknowledged to the master ends within a transaction. Commands of a
//! transaction are queued and run together at EXEC, and their bytes are not logged before EXEC. If the link breaks
//! before EXEC, the queue is discarded and the master sends the transaction again from MULTI.

use resp::{Batch, ParseLimits, Parser, ProtocolError};

/// The received part of a master's stream that has not been appended to the log yet.
#[derive(Debug, Default)]
pub struct IncomingStream {
    parser: Parser,
    /// An incomplete command at the end of the received bytes.
    partial_command: Vec<u8>,
    /// Commands of a transaction whose EXEC has not arrived.
    partial_transaction: Vec<u8>,
}

/// Complete commands that were received together.
#[derive(Debug, Default)]
pub struct StreamBatch {
    /// The commands in wire form, one after another.
    pub bytes: Vec<u8>,
    /// The position of each command within `bytes`.
    pub batch: Batch,
    /// The protocol error in the bytes after the last complete command; `None` if they are valid.
    pub error: Option<ProtocolError>,
}

impl IncomingStream {
    /// Discards incomplete commands and transactions, because the stream continues at a command boundary after a
    /// reconnect.
    pub fn discard_partial(&mut self) {
        *self = Self::default();
    }

    /// Adds received bytes and returns the commands that are now complete.
    pub fn add_bytes(&mut self, bytes: Vec<u8>) -> StreamBatch {
        let mut input = std::mem::take(&mut self.partial_command);
        if input.is_empty() {
            input = bytes;
        } else {
            input.extend_from_slice(&bytes);
        }
        let limits = ParseLimits { max_bulk_len: i64::from(u32::MAX), ..ParseLimits::default() };
        let mut batch = Batch::default();
        let parsed = self.parser.parse(&mut input, &mut batch, &limits);
        self.partial_command = input.split_off(parsed.consumed_bytes);
        StreamBatch { bytes: input, batch, error: parsed.error }
    }

    /// Passes the bytes of executed commands to `append`. Bytes of a transaction that is still open (`is_in_transaction`)
    /// are retained until its EXEC. Returns the number of appended bytes.
    pub fn append_executed(
        &mut self,
        executed_batch: &StreamBatch,
        is_in_transaction: bool,
        mut append: impl FnMut(&[u8]),
    ) -> u64 {
        let StreamBatch { bytes, batch, .. } = executed_batch;
        let whole =
            if is_in_transaction { last_multi_offset(bytes, batch).unwrap_or(0) } else { bytes.len() };
        let mut done = 0;
        if whole > 0 {
            // The transaction whose first commands were retained ends within these bytes.
            let held = std::mem::take(&mut self.partial_transaction);
            if !held.is_empty() {
                append(&held);
            }
            append(&bytes[..whole]);
            done = held.len() + whole;
        }
        self.partial_transaction.extend_from_slice(&bytes[whole..]);
        done as u64
    }
}

/// Returns the offset of the last MULTI in these requests; `None` if an earlier batch contains it.
#[must_use]
pub fn last_multi_offset(bytes: &[u8], batch: &Batch) -> Option<usize> {
    let is_multi = |index: &usize| {
        batch.args(*index, bytes).get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"multi"))
    };
    (0..batch.len()).rev().find(is_multi).map(|index| batch.consumed_bytes(index))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A test fixture that applies a stream in chunks and records the end of the log after each chunk.
    #[derive(Default)]
    struct StreamFixture {
        incoming: IncomingStream,
        commands: Vec<String>,
        log: Vec<u8>,
        command_ends: Vec<usize>,
        is_in_transaction: bool,
    }

    impl StreamFixture {
        fn receive(&mut self, bytes: &[u8]) {
            let piece = self.incoming.add_bytes(bytes.to_vec());
            assert_eq!(piece.error, None);
            for index in 0..piece.batch.len() {
                let name = String::from_utf8_lossy(&piece.batch.args(index, &piece.bytes)[0]).into_owned();
                self.is_in_transaction = match name.as_str() {
                    "MULTI" => true,
                    "EXEC" => false,
                    _ => self.is_in_transaction,
                };
                self.commands.push(name);
            }
            let before = self.log.len();
            let log = &mut self.log;
            let appended = self
                .incoming
                .append_executed(&piece, self.is_in_transaction, |bytes| log.extend_from_slice(bytes));
            assert_eq!(appended as usize, self.log.len() - before);
            self.command_ends.push(self.log.len());
        }
    }

    fn encode_stream(commands: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        commands.iter().for_each(|name| resp::encode_request(&mut bytes, [name.as_bytes(), b"argument"]));
        bytes
    }

    const STREAM_COMMANDS: [&str; 8] = ["SET", "MULTI", "INCR", "LPUSH", "EXEC", "MULTI", "EXEC", "DEL"];

    proptest! {
        #[test]
        fn split_stream_runs_once_and_the_log_never_ends_within_a_transaction(
            mut cuts in prop::collection::vec(0usize..250, 0..12),
        ) {
            let bytes = encode_stream(&STREAM_COMMANDS);
            // The log may end only at these offsets, which are outside of transactions.
            let outside: Vec<usize> = [0, 1, 5, 7, 8].map(|count| encode_stream(&STREAM_COMMANDS[..count]).len()).to_vec();
            cuts.retain(|cut| *cut < bytes.len());
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut applied = StreamFixture::default();
            cuts.windows(2).for_each(|cut| applied.receive(&bytes[cut[0]..cut[1]]));
            prop_assert_eq!(&applied.commands, &STREAM_COMMANDS);
            prop_assert_eq!(&applied.log, &bytes);
            prop_assert!(applied.command_ends.iter().all(|end| outside.contains(end)), "{:?}", applied.command_ends);
        }
    }

    #[test]
    fn interrupted_transaction_is_received_again_from_multi() {
        let mut applied = StreamFixture::default();
        applied.receive(&encode_stream(&["SET", "MULTI", "INCR"]));
        applied.receive(b"*2\r\n$4\r\nINC");
        assert_eq!(applied.log, encode_stream(&["SET"]));
        applied.incoming.discard_partial();
        applied.is_in_transaction = false;
        applied.receive(&encode_stream(&["MULTI", "INCR", "EXEC"]));
        assert_eq!(applied.log, encode_stream(&["SET", "MULTI", "INCR", "EXEC"]));
    }

    #[test]
    fn protocol_error_is_reported_after_the_commands_before_it() {
        let mut incoming = IncomingStream::default();
        let piece = incoming.add_bytes([&encode_stream(&["SET"])[..], b"*1\r\n!"].concat());
        assert_eq!((piece.batch.len(), piece.bytes.len()), (1, encode_stream(&["SET"]).len()));
        assert!(piece.error.is_some());
    }
}
