//! Reduces the log to the commands about a set of slots.
//!
//! A command passes the filter if all its keys are in these slots. A transaction stays one transaction, reduced to such
//! commands. Commands without keys, for example for functions and messages, are dropped. FLUSHALL and FLUSHDB are
//! reported to the caller instead.

use resp::{Args, Batch, ParseLimits, Parser, ProtocolError, encode_request};
use slot_routing::SlotSet;

use crate::logged_command::KeysInSlots;
use crate::{LoggedCommandDecoder, LoggedCommandKind};

/// A filter that passes only the commands about a set of slots.
#[derive(Debug)]
pub(crate) struct LogFilter {
    slots: SlotSet,
    slot_finder: LoggedCommandDecoder,
    parser: Parser,
    /// The bytes of an incomplete command.
    partial_command: Vec<u8>,
    batch: Batch,
    /// The database selected in the log.
    selected_db: Vec<u8>,
    sent_db: Option<Vec<u8>>,
    /// The commands of the current transaction that pass the filter, sent at EXEC; `None` outside of a transaction.
    transaction: Option<Vec<u8>>,
}

/// Whether a chunk of the log contains commands that affect all slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogContent {
    Changes,
    /// The chunk contains a FLUSHALL, FLUSHDB or SWAPDB.
    FlushAll,
}

impl LogFilter {
    /// Creates a filter for a log that selects a database before its first change.
    pub(crate) fn new(slots: SlotSet, slot_finder: LoggedCommandDecoder) -> Self {
        Self {
            slots,
            slot_finder,
            parser: Parser::new(),
            partial_command: Vec::new(),
            batch: Batch::default(),
            selected_db: b"0".to_vec(),
            sent_db: None,
            transaction: None,
        }
    }

    /// Filters a chunk of the log and appends the commands that pass to `out`.
    pub(crate) fn filter(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<LogContent, ProtocolError> {
        let (mut input, mut batch) =
            (std::mem::take(&mut self.partial_command), std::mem::take(&mut self.batch));
        input.extend_from_slice(bytes);
        batch.clear();
        let limits = ParseLimits { max_bulk_len: i64::from(u32::MAX), ..ParseLimits::default() };
        let parsed = self.parser.parse(&mut input, &mut batch, &limits);
        let mut content = LogContent::Changes;
        for index in 0..batch.len() {
            if self.filter_command(batch.args(index, &input), out) == LogContent::FlushAll {
                content = LogContent::FlushAll;
            }
        }
        input.drain(..parsed.consumed_bytes);
        (self.partial_command, self.batch) = (input, batch);
        parsed.error.map_or(Ok(content), Err)
    }

    fn filter_command(&mut self, args: Args<'_>, out: &mut Vec<u8>) -> LogContent {
        let (kind, keys) = self.slot_finder.decode(args, &self.slots);
        match kind {
            LoggedCommandKind::SelectDb => self.selected_db = args.get(1).unwrap_or_default().to_vec(),
            LoggedCommandKind::BeginTransaction => self.transaction = Some(Vec::new()),
            LoggedCommandKind::EndTransaction => {
                if let Some(commands) = self.transaction.take().filter(|commands| !commands.is_empty()) {
                    encode_request(out, [&b"MULTI"[..]]);
                    out.extend_from_slice(&commands);
                    encode_request(out, [&b"EXEC"[..]]);
                }
            }
            LoggedCommandKind::ChangesUnnamedKeys => return LogContent::FlushAll,
            LoggedCommandKind::Other if keys != KeysInSlots::None => self.write_command(args, out),
            LoggedCommandKind::KeepAlive | LoggedCommandKind::Other => {}
        }
        LogContent::Changes
    }

    fn write_command(&mut self, args: Args<'_>, out: &mut Vec<u8>) {
        let out = self.transaction.as_mut().unwrap_or(out);
        if self.sent_db.as_ref() != Some(&self.selected_db) {
            encode_request(out, [&b"SELECT"[..], &self.selected_db]);
            self.sent_db = Some(self.selected_db.clone());
        }
        match args.wire_bytes() {
            Some(wire) => out.extend_from_slice(wire),
            None => encode_request(out, args.iter()),
        }
    }
}

#[cfg(test)]
mod tests {
    use slot_routing::Slot;

    use super::*;

    fn example_filter() -> LogFilter {
        LogFilter::new(
            [Slot::of_key(b"{a}")].into_iter().collect(),
            crate::logged_command::tagged_argument_decoder(),
        )
    }

    fn decode_words(wire: &[u8]) -> String {
        let text = String::from_utf8(wire.to_vec()).unwrap();
        let words: Vec<&str> =
            text.split("\r\n").filter(|line| !line.starts_with(['*', '$']) && !line.is_empty()).collect();
        words.join(" ")
    }

    fn encode_log(lines: &[&str]) -> Vec<u8> {
        let mut wire = Vec::new();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            encode_request(&mut wire, words.iter().map(|word| word.as_bytes()));
        }
        wire
    }

    #[test]
    fn commands_of_the_slots_pass_for_every_split_of_the_log() {
        let wire = encode_log(&[
            "SELECT 2",
            "SET {b}1 x",
            "SET {a}1 x",
            "PING",
            "MULTI",
            "SET {b}2 x",
            "EXEC",
            "MULTI",
            "DEL {a}1",
            "SET {b}3 x",
            "SELECT 0",
            "RPUSH {a}2 y",
            "EXEC",
            "DEL {a}3 {a}4",
            "PUBLISH c m",
        ]);
        let expected = "SELECT 2 SET {a}1 x MULTI DEL {a}1 SELECT 0 RPUSH {a}2 y EXEC DEL {a}3 {a}4";
        for at in 0..wire.len() {
            let (mut filter, mut out) = (example_filter(), Vec::new());
            for piece in [&wire[..at], &wire[at..]] {
                assert_eq!(filter.filter(piece, &mut out).unwrap(), LogContent::Changes);
            }
            assert_eq!(decode_words(&out), expected, "cut at {at}");
        }
    }

    #[test]
    fn flushing_all_keys_is_reported() {
        for line in ["FLUSHALL", "flushdb ASYNC"] {
            let (mut filter, mut out) = (example_filter(), Vec::new());
            assert_eq!(
                filter.filter(&encode_log(&[line, "SET {a}1 x"]), &mut out).unwrap(),
                LogContent::FlushAll
            );
        }
    }
}
