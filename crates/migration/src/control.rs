//! Commands in a master's stream, an append-only file or the link of a slot migration that the node itself executes.
//! They are decoded only here; all other commands are executed by the engine.

use resp::Args;
use slot_routing::{NodeId, Slot, SlotChange};

use crate::message::SyncSlotsCommand;

/// A command that the node executes itself, without the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlCommand {
    /// REPLCONF GETACK: the master requests an acknowledgement.
    AckRequested,
    /// CLUSTER SETSLOT: the state of a slot changes.
    SetSlot(Slot, SlotChange),
    /// CLUSTER FAILOVER with REPLICAID, as in Valkey 9: the named replica must take over from its master, which is
    /// shutting down.
    TakeOver(NodeId),
    /// CLUSTER SYNCSLOTS: a message of a slot migration.
    SyncSlots(SyncSlotsCommand),
}

/// The arguments of a command for the node are invalid. The text describes why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed CLUSTER {0}")]
pub struct MalformedControlCommand(&'static str);

impl ControlCommand {
    /// Decodes a command; `None` if the engine must execute the command, or if the command has no meaning in a stream.
    ///
    /// # Errors
    /// The command is for the node and its arguments are invalid.
    pub fn decode(args: Args<'_>) -> Result<Option<Self>, MalformedControlCommand> {
        let is = |index: usize, word: &str| {
            args.get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
        };
        if is(0, "replconf") {
            return Ok(is(1, "getack").then_some(Self::AckRequested));
        }
        if !is(0, "cluster") {
            return Ok(None);
        }
        if is(1, "syncslots") {
            let command = SyncSlotsCommand::parse(&trailing_arguments(args))
                .map_err(|_| MalformedControlCommand("SYNCSLOTS"))?;
            return Ok(Some(Self::SyncSlots(command)));
        }
        if is(1, "setslot") {
            return parse_set_slot(&trailing_arguments(args))
                .ok_or(MalformedControlCommand("SETSLOT"))
                .map(Some);
        }
        if is(1, "failover") {
            let words = trailing_arguments(args);
            let named = words.windows(2).find(|pair| pair[0].eq_ignore_ascii_case("replicaid"));
            let named = named.map(|pair| pair[1].parse().map_err(|_| MalformedControlCommand("FAILOVER")));
            return Ok(named.transpose()?.map(Self::TakeOver));
        }
        Ok(None)
    }

    /// Returns the command as a RESP array.
    #[must_use]
    pub fn to_resp(&self) -> Vec<u8> {
        let mut wire = Vec::new();
        let mut encode =
            |words: &[&str]| resp::encode_request(&mut wire, words.iter().map(|word| word.as_bytes()));
        match self {
            Self::AckRequested => encode(&["REPLCONF", "GETACK", "*"]),
            Self::SetSlot(slot, change) => {
                let number = slot.number().to_string();
                encode(&[&["CLUSTER", "SETSLOT", &number], change.to_arguments().as_slice()].concat());
            }
            Self::TakeOver(replica) => {
                encode(&["CLUSTER", "FAILOVER", "FORCE", "REPLICAID", &replica.to_string()]);
            }
            Self::SyncSlots(command) => command.encode(&mut wire),
        }
        wire
    }
}

/// Returns the arguments from the third one on as text.
fn trailing_arguments(args: Args<'_>) -> Vec<String> {
    args.iter().skip(2).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn parse_set_slot(arguments: &[String]) -> Option<ControlCommand> {
    let [slot, change @ ..] = arguments else { return None };
    let change: Vec<&str> = change.iter().map(String::as_str).collect();
    let slot = Slot::new(slot.parse().ok()?)?;
    SlotChange::parse(&change).map(|change| ControlCommand::SetSlot(slot, change))
}

#[cfg(test)]
mod tests {
    use resp::Request;

    use super::*;
    use crate::message::MigrationMessage;

    fn decode_line(line: &str) -> Result<Option<ControlCommand>, MalformedControlCommand> {
        let request: Request = line.split(' ').collect();
        ControlCommand::decode(request.args())
    }

    #[test]
    fn commands_round_trip() {
        let (slot, node) = (Slot::new(7).unwrap(), "a".repeat(40));
        for command in [
            ControlCommand::AckRequested,
            ControlCommand::SetSlot(slot, SlotChange::Stable),
            ControlCommand::SetSlot(slot, SlotChange::Migrating { target: node.clone() }),
            ControlCommand::TakeOver(node.parse().unwrap()),
            ControlCommand::SyncSlots(SyncSlotsCommand::Message(MigrationMessage::Paused)),
        ] {
            let wire = String::from_utf8(command.to_resp()).unwrap();
            let words: Vec<&str> = wire.split("\r\n").skip(2).step_by(2).collect();
            assert_eq!(decode_line(&words.join(" ")), Ok(Some(command.clone())));
            assert_eq!(decode_line(&words.join(" ").to_ascii_lowercase()), Ok(Some(command)));
        }
    }

    #[test]
    fn other_commands_are_left_to_the_engine() {
        for line in
            ["SET k v", "REPLCONF ACK 5", "CLUSTER FAILOVER FORCE", "CLUSTER FLUSHSLOT 7", "PING", "CLUSTER"]
        {
            assert_eq!(decode_line(line), Ok(None), "{line}");
        }
    }

    #[test]
    fn malformed_commands_are_reported() {
        for (line, word) in [
            ("CLUSTER SETSLOT 16384 STABLE", "SETSLOT"),
            ("CLUSTER SETSLOT 7 MIGRATING", "SETSLOT"),
            ("CLUSTER FAILOVER REPLICAID x", "FAILOVER"),
            ("CLUSTER SYNCSLOTS NOSUCH", "SYNCSLOTS"),
        ] {
            assert_eq!(decode_line(line), Err(MalformedControlCommand(word)), "{line}");
        }
    }
}
