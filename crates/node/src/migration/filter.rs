//! Filters the log for a set of slots.
//!
//! A command is passed on if its keys are in these slots. A transaction is passed on as one, reduced to such commands.
//! Commands without keys are dropped (functions, messages). FLUSHALL and FLUSHDB cannot be passed on and are reported.

use std::sync::Arc;

use engine::Commands;
use resp::{Args, Batch, ParseLimits, Parser, ProtocolError, encode_request};
use slot_routing::SlotSet;

/// Passes on commands about a set of slots.
#[derive(Debug)]
pub(super) struct Filter {
    slots: SlotSet,
    commands: Arc<Commands>,
    parser: Parser,
    /// An incomplete command.
    input: Vec<u8>,
    batch: Batch,
    /// The database selected in the log, and the one selected at the receiver.
    db: Vec<u8>,
    sent_db: Option<Vec<u8>>,
    /// The part of a transaction to pass on at its end.
    transaction: Option<Vec<u8>>,
}

/// Reports the deletion of all keys of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Changes,
    Flush,
}

impl Filter {
    /// Creates a filter for a log that selects a database before its first change.
    pub(super) fn new(slots: SlotSet, commands: Arc<Commands>) -> Self {
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

    /// Handles a part of the log and appends what must be passed on to `out`.
    pub(super) fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Seen, ProtocolError> {
        let (mut input, mut batch) = (std::mem::take(&mut self.input), std::mem::take(&mut self.batch));
        input.extend_from_slice(bytes);
        batch.clear();
        let limits = ParseLimits { max_bulk_len: i64::from(u32::MAX), ..ParseLimits::default() };
        let parsed = self.parser.parse(&mut input, &mut batch, &limits);
        let mut seen = Seen::Changes;
        for index in 0..batch.len() {
            if self.pass(batch.args(index, &input), out) == Seen::Flush {
                seen = Seen::Flush;
            }
        }
        input.drain(..parsed.consumed);
        (self.input, self.batch) = (input, batch);
        parsed.error.map_or(Ok(seen), Err)
    }

    fn pass(&mut self, args: Args<'_>, out: &mut Vec<u8>) -> Seen {
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
            b"flushall" | b"flushdb" | b"swapdb" => return Seen::Flush,
            _ => {
                let slots = self.commands.key_slots(args).unwrap_or_default();
                if slots.iter().any(|slot| self.slots.contains(*slot)) {
                    self.pass_on(args, out);
                }
            }
        }
        Seen::Changes
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

    fn filter() -> Filter {
        let commands = Commands::new(::commands::for_server());
        Filter::new([Slot::of_key(b"{a}")].into_iter().collect(), Arc::new(commands))
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
            "CLUSTER FLUSHSLOT 15495",
            "cluster flushslot 15496 sync",
            "PUBLISH c m",
        ]);
        let expected = "SELECT 2 SET {a}1 x MULTI DEL {a}1 SELECT 0 RPUSH {a}2 y EXEC DEL {a}3 {a}4 \
                        CLUSTER FLUSHSLOT 15495";
        for at in 0..wire.len() {
            let (mut filter, mut out) = (filter(), Vec::new());
            for piece in [&wire[..at], &wire[at..]] {
                assert_eq!(filter.feed(piece, &mut out).unwrap(), Seen::Changes);
            }
            assert_eq!(words(&out), expected, "cut at {at}");
        }
    }

    #[test]
    fn flushing_all_keys_is_reported() {
        for line in ["FLUSHALL", "flushdb ASYNC"] {
            let (mut filter, mut out) = (filter(), Vec::new());
            assert_eq!(filter.feed(&log(&[line, "SET {a}1 x"]), &mut out).unwrap(), Seen::Flush);
        }
    }
}
