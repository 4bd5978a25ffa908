//! Parses CLUSTER commands that change something. An error is the complete reply text.

use std::net::IpAddr;
use std::time::Duration;

use gossip::{FailoverMode, OperatorCommand, SET_SLOT_TIMEOUT, SlotChange};
use keyspace::Keyspace;
use slot_routing::{Epoch, Slot};

const BAD_SLOT: &str = "ERR Invalid or out of range slot";
const SYNTAX: &str = "ERR syntax error";
const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
const BUS_OFFSET: i64 = 10_000;

/// A parsed command.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    AddSlots,
    AddSlotsRange,
    BumpEpoch,
    DelSlots,
    DelSlotsRange,
    Failover,
    FlushSlots,
    Forget,
    Meet,
    Replicate,
    Reset,
    SaveConfig,
    SetConfigEpoch,
    SetSlot,
}

/// Parses the arguments, and adds what the state machine needs to know about keys.
pub(super) fn change(
    change: Change,
    words: &[String],
    keyspace: &Keyspace,
) -> Result<OperatorCommand, String> {
    let name = || words.get(2).cloned().unwrap_or_default();
    let holds_keys = || (0..keyspace.databases()).any(|db| !keyspace.is_empty(db));
    Ok(match change {
        Change::AddSlots => OperatorCommand::AddSlots(slots(&words[2..])?),
        Change::DelSlots => OperatorCommand::DelSlots(slots(&words[2..])?),
        Change::AddSlotsRange => OperatorCommand::AddSlots(ranges(words, "addslotsrange")?),
        Change::DelSlotsRange => OperatorCommand::DelSlots(ranges(words, "delslotsrange")?),
        Change::FlushSlots => OperatorCommand::FlushSlots { holds_keys: holds_keys() },
        Change::SetSlot => set_slot(words, keyspace)?,
        Change::Replicate if words.len() > 3 => {
            let is = |at: usize, name| words[at].eq_ignore_ascii_case(name);
            match words.len() == 4 && is(2, "no") && is(3, "one") {
                true => OperatorCommand::Detach,
                false => return Err(wrong_words(words)),
            }
        }
        Change::Replicate => OperatorCommand::Replicate { node: name(), holds_keys: holds_keys() },
        Change::Failover => failover(words)?,
        Change::Forget => OperatorCommand::Forget { node: name() },
        Change::Reset => reset(words, holds_keys())?,
        Change::SetConfigEpoch => set_config_epoch(&words[2])?,
        Change::BumpEpoch => OperatorCommand::BumpEpoch,
        Change::SaveConfig => OperatorCommand::SaveConfig,
        Change::Meet => meet(words)?,
    })
}

/// Formats an error with the subcommand as the client wrote it, up to 128 characters as in Redis.
fn wrong_words(words: &[String]) -> String {
    let subcommand: String = words[1].chars().take(128).collect();
    format!("ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try CLUSTER HELP.")
}

fn slot(word: &str) -> Result<Slot, String> {
    integer(word).and_then(|n| Slot::new(u16::try_from(n).ok()?)).ok_or_else(|| BAD_SLOT.to_owned())
}

fn integer(word: &str) -> Option<i64> {
    resp::parse_i64(word.as_bytes())
}

fn slots(words: &[String]) -> Result<Vec<Slot>, String> {
    words.iter().map(|word| slot(word)).collect()
}

fn ranges(words: &[String], subcommand: &str) -> Result<Vec<Slot>, String> {
    let bounds = &words[2..];
    if !bounds.len().is_multiple_of(2) {
        return Err(format!("ERR wrong number of arguments for 'cluster|{subcommand}' command"));
    }
    let mut all = Vec::new();
    for pair in bounds.chunks(2) {
        let (first, last) = (slot(&pair[0])?, slot(&pair[1])?);
        if first > last {
            return Err(format!("ERR start slot number {first} is greater than end slot number {last}"));
        }
        all.extend((first.number()..=last.number()).filter_map(Slot::new));
        // A longer list repeats a slot, which is reported for the first repetition.
        all.truncate(2 * slot_routing::SLOT_COUNT);
    }
    Ok(all)
}

fn set_slot(words: &[String], keyspace: &Keyspace) -> Result<OperatorCommand, String> {
    let slot = slot(&words[2])?;
    let said: Vec<&str> = words[3..].iter().map(String::as_str).collect();
    let Some(change) = SlotChange::parse(&said) else {
        let text = "ERR Invalid CLUSTER SETSLOT action or number of arguments. Try CLUSTER HELP";
        return Err(text.to_owned());
    };
    let timeout = timeout(&said[change.words().len()..])?;
    let keys_in_slot = u64::try_from(keyspace.keys_in_slot(slot)).unwrap_or(u64::MAX);
    Ok(OperatorCommand::SetSlot { slot, change, keys_in_slot, timeout })
}

/// TIMEOUT milliseconds. As in Valkey, other words are ignored, and 0 means the default.
fn timeout(words: &[&str]) -> Result<Duration, String> {
    let Some(at) = words.iter().position(|word| word.eq_ignore_ascii_case("timeout")) else {
        return Ok(SET_SLOT_TIMEOUT);
    };
    let word = words.get(at + 1).ok_or("ERR Missing timeout value")?;
    let millis = integer(word).ok_or("ERR timeout is not an integer or out of range")?;
    match u64::try_from(millis) {
        Ok(0) => Ok(SET_SLOT_TIMEOUT),
        Ok(millis) => Ok(Duration::from_millis(millis)),
        Err(_) => Err("ERR timeout is negative".to_owned()),
    }
}

fn failover(words: &[String]) -> Result<OperatorCommand, String> {
    let mode = match words.get(2).map(|word| word.to_ascii_lowercase()).as_deref() {
        _ if words.len() > 3 => return Err(wrong_words(words)),
        None => FailoverMode::Graceful,
        Some("force") => FailoverMode::Force,
        Some("takeover") => FailoverMode::Takeover,
        Some(_) => return Err(SYNTAX.to_owned()),
    };
    Ok(OperatorCommand::Failover(mode))
}

fn reset(words: &[String], holds_keys: bool) -> Result<OperatorCommand, String> {
    let hard = match words.get(2).map(|word| word.to_ascii_lowercase()).as_deref() {
        _ if words.len() > 3 => return Err(wrong_words(words)),
        None | Some("soft") => false,
        Some("hard") => true,
        Some(_) => return Err(SYNTAX.to_owned()),
    };
    Ok(OperatorCommand::Reset { hard, holds_keys })
}

fn set_config_epoch(word: &str) -> Result<OperatorCommand, String> {
    let number = integer(word).ok_or(NOT_INTEGER)?;
    let epoch = u64::try_from(number).map_err(|_| format!("ERR Invalid config epoch specified: {number}"))?;
    // Leaves room for epochs to grow.
    if epoch >= 1 << 62 {
        return Err(format!("ERR Invalid config epoch specified: {number}"));
    }
    Ok(OperatorCommand::SetConfigEpoch(Epoch(epoch)))
}

fn meet(words: &[String]) -> Result<OperatorCommand, String> {
    if words.len() > 5 {
        return Err(wrong_words(words));
    }
    let (ip, base) = (&words[2], &words[3]);
    let port = integer(base).ok_or_else(|| format!("ERR Invalid TCP base port specified: {base}"))?;
    let bus_port = match words.get(4) {
        Some(word) => integer(word).ok_or_else(|| format!("ERR Invalid TCP bus port specified: {word}"))?,
        None => port.saturating_add(BUS_OFFSET),
    };
    let valid = |port: i64| u16::try_from(port).ok().filter(|port| *port > 0);
    match (ip.parse::<IpAddr>(), valid(port), valid(bus_port)) {
        (Ok(ip), Some(port), Some(bus_port)) => Ok(OperatorCommand::Meet { ip, port, bus_port }),
        _ => Err(format!("ERR Invalid node address specified: {ip}:{base}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_ask_for_nothing_get_the_known_texts() {
        use Change as C;
        let keyspace = Keyspace::new(1, 1);
        let wrong = "ERR unknown subcommand or wrong number of arguments for";
        let set_slot = "ERR Invalid CLUSTER SETSLOT action or number of arguments. Try CLUSTER HELP";
        // command, its arguments, the reply
        let table = [
            (C::AddSlots, "addslots 99999", BAD_SLOT.to_owned()),
            (C::DelSlots, "delslots 1 x", BAD_SLOT.to_owned()),
            (
                C::AddSlotsRange,
                "addslotsrange 5 3",
                "ERR start slot number 5 is greater than end slot number 3".to_owned(),
            ),
            (
                C::DelSlotsRange,
                "delslotsrange 5 6 7",
                "ERR wrong number of arguments for 'cluster|delslotsrange' command".to_owned(),
            ),
            (C::SetSlot, "setslot 1 foo", set_slot.to_owned()),
            (C::SetSlot, "setslot 1 migrating", set_slot.to_owned()),
            (C::SetSlot, "setslot 1 stable timeout", "ERR Missing timeout value".to_owned()),
            (
                C::SetSlot,
                "setslot 1 stable timeout 1.5",
                "ERR timeout is not an integer or out of range".to_owned(),
            ),
            (C::SetSlot, "setslot 1 node x timeout -1", "ERR timeout is negative".to_owned()),
            (C::SetSlot, "setslot 99999 stable", BAD_SLOT.to_owned()),
            (C::Failover, "failover foo", SYNTAX.to_owned()),
            (C::Failover, "FailOver force takeover", format!("{wrong} 'FailOver'. Try CLUSTER HELP.")),
            (C::Reset, "reset foo", SYNTAX.to_owned()),
            (C::SetConfigEpoch, "set-config-epoch x", NOT_INTEGER.to_owned()),
            (C::SetConfigEpoch, "set-config-epoch -1", "ERR Invalid config epoch specified: -1".to_owned()),
            (C::Meet, "meet foo 123", "ERR Invalid node address specified: foo:123".to_owned()),
            (C::Meet, "meet 127.0.0.1 x", "ERR Invalid TCP base port specified: x".to_owned()),
            (C::Meet, "meet 127.0.0.1 1 x", "ERR Invalid TCP bus port specified: x".to_owned()),
            (
                C::Meet,
                "meet 127.0.0.1 60000",
                "ERR Invalid node address specified: 127.0.0.1:60000".to_owned(),
            ),
        ];
        for (command, line, text) in table {
            let words: Vec<String> = format!("cluster {line}").split(' ').map(str::to_owned).collect();
            assert_eq!(change(command, &words, &keyspace), Err(text), "{line}");
        }
    }
}
