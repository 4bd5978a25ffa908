//! Reduces the log to the commands about a set of slots.
//!
//! A command passes the filter if all its keys are in these slots. A transaction stays one transaction, reduced to such
//! commands. Commands without keys, for example for functions and messages, are dropped. FLUSHALL and FLUSHDB are
//! reported to the caller instead.

use resp::{Args, Batch, ParseLimits, Parser, ProtocolError, encode_request};
use slot_routing::SlotSet;

use crate::SlotsOfCommand;

/// A filter that passes only the commands about a set of slots.
#[derive(Debug)]
pub(crate) struct LogFilter {
    slots: SlotSet,
    commands: SlotsOfCommand,
    parser: Parser,
    /// The bytes of an incomplete command.
    input: Vec<u8>,
    batch: Batch,
    /// The database selected in the log.
    db: Vec<u8>,
    sent_db: Option<Vec<u8>>,
    /// The commands of the current transaction that pass the filter, sent at EXEC; `None` outside of a transaction.
    transaction: Option<Vec<u8>>,
}

/// Whether a chunk of the log contains commands that affect all slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogContent {
    Changes,
    /// The chunk contains a FLUSHALL or FLUSHDB.
    Flush,
}

impl LogFilter {
    /// Creates a filter for a log that selects a database before its first change.
    pub(crate) fn new(slots: SlotSet, commands: SlotsOfCommand) -> Self {
        Self {
            slots,
            commands,
            parser: Parser::new(),
            input: Vec::new(),
            batch: Batch::default(),
            db: b"0".to_vec(),
            sent_db: None,
            transaction: None,
        }
    }

    /// Filters a chunk of the log and appends the commands that pass to `out`.
    pub(crate) fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<LogContent, ProtocolError> {
        let (mut input, mut batch) = (std::mem::take(&mut self.input), std::mem::take(&mut self.batch));
        input.extend_from_slice(bytes);
        batch.clear();
        let limits = ParseLimits { max_bulk_len: i64::from(u32::MAX), ..ParseLimits::default() };
        let parsed = self.parser.parse(&mut input, &mut batch, &limits);
        let mut content = LogContent::Changes;
        for index in 0..batch.len() {
            if self.pass(batch.args(index, &input), out) == LogContent::Flush {
                content = LogContent::Flush;
            }
        }
        input.drain(..parsed.consumed);
        (self.input, self.batch) = (input, batch);
        parsed.error.map_or(Ok(content), Err)
    }

    fn pass(&mut self, args: Args<'_>, out: &mut Vec<u8>) -> LogContent {
        let name = args.get(0).unwrap_or_default().to_ascii_lowercase();
        match name.as_slice() {
            b"select" => self.db = args.get(1).unwrap_or_default().to_vec(),
            b"multi" => self.transaction = Some(Vec::new()),
            b"exec" => {
                if let Some(commands) = self.transaction.take().filter(|commands| !commands.is_empty()) {
                    encode_request(out, [&b"MULTI"[..]]);
                    out.extend_from_slice(&commands);
                    encode_request(out, [&b"EXEC"[..]]);
                }
            }
            b"flushall" | b"flushdb" | b"swapdb" => return LogContent::Flush,
            _ if self.commands.touch_any(args, &self.slots) => self.pass_on(args, out),
            _ => {}
        }
        LogContent::Changes
    }

    fn pass_on(&mut self, args: Args<'_>, out: &mut Vec<u8>) {
        let out = self.transaction.as_mut().unwrap_or(out);
        if self.sent_db.as_ref() != Some(&self.db) {
            encode_request(out, [&b"SELECT"[..], &self.db]);
            self.sent_db = Some(self.db.clone());
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

    fn filter() -> LogFilter {
        LogFilter::new(
            [Slot::of_key(b"{a}")].into_iter().collect(),
            crate::slots_of_command::of_tagged_words(),
        )
    }

    fn words(wire: &[u8]) -> String {
        let text = String::from_utf8(wire.to_vec()).unwrap();
        let words: Vec<&str> =
            text.split("\r\n").filter(|line| !line.starts_with(['*', '$']) && !line.is_empty()).collect();
        words.join(" ")
    }

    fn log(lines: &[&str]) -> Vec<u8> {
        let mut wire = Vec::new();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            encode_request(&mut wire, words.iter().map(|word| word.as_bytes()));
        }
        wire
    }

    #[test]
    fn commands_of_the_slots_pass_however_the_log_is_split() {
        let wire = log(&[
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
            let (mut filter, mut out) = (filter(), Vec::new());
            for piece in [&wire[..at], &wire[at..]] {
                assert_eq!(filter.feed(piece, &mut out).unwrap(), LogContent::Changes);
            }
            assert_eq!(words(&out), expected, "cut at {at}");
        }
    }

    #[test]
    fn flushing_all_keys_is_reported() {
        for line in ["FLUSHALL", "flushdb ASYNC"] {
            let (mut filter, mut out) = (filter(), Vec::new());
            assert_eq!(filter.feed(&log(&[line, "SET {a}1 x"]), &mut out).unwrap(), LogContent::Flush);
        }
    }
}
