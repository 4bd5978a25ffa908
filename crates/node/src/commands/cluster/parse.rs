//! Parses CLUSTER commands that change the cluster. An error is the complete reply text.

use std::net::IpAddr;
use std::time::Duration;

use gossip::{FailoverMode, OperatorCommand, SET_SLOT_TIMEOUT, SlotChange};
use keyspace::Keyspace;
use slot_routing::{Epoch, Slot};

const BAD_SLOT_ERROR: &str = "ERR Invalid or out of range slot";
const SYNTAX_ERROR: &str = "ERR syntax error";
const NOT_INTEGER_ERROR: &str = "ERR value is not an integer or out of range";
const BUS_PORT_OFFSET: i64 = 10_000;

#[derive(Debug, Clone, Copy)]
pub(super) enum ClusterChange {
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

/// Parses the arguments. If a command depends on whether this node has keys, `keyspace` is checked here, because the
/// state machine cannot see the keys.
pub(super) fn parse_change(
    change: ClusterChange,
    words: &[String],
    keyspace: &Keyspace,
) -> Result<OperatorCommand, String> {
    let name = || words.get(2).cloned().unwrap_or_default();
    let holds_keys = || (0..keyspace.database_count()).any(|db| !keyspace.is_empty(db));
    Ok(match change {
        ClusterChange::AddSlots => OperatorCommand::AddSlots(parse_slots(&words[2..])?),
        ClusterChange::DelSlots => OperatorCommand::DelSlots(parse_slots(&words[2..])?),
        ClusterChange::AddSlotsRange => OperatorCommand::AddSlots(parse_slot_ranges(words, "addslotsrange")?),
        ClusterChange::DelSlotsRange => OperatorCommand::DelSlots(parse_slot_ranges(words, "delslotsrange")?),
        ClusterChange::FlushSlots => OperatorCommand::FlushSlots { holds_keys: holds_keys() },
        ClusterChange::SetSlot => parse_set_slot(words, keyspace)?,
        ClusterChange::Replicate if words.len() > 3 => {
            let is = |at: usize, name| words[at].eq_ignore_ascii_case(name);
            match words.len() == 4 && is(2, "no") && is(3, "one") {
                true => OperatorCommand::Detach,
                false => return Err(invalid_arguments_error(words)),
            }
        }
        ClusterChange::Replicate => OperatorCommand::Replicate { node: name(), holds_keys: holds_keys() },
        ClusterChange::Failover => parse_failover(words)?,
        ClusterChange::Forget => OperatorCommand::Forget { node: name() },
        ClusterChange::Reset => parse_reset(words, holds_keys())?,
        ClusterChange::SetConfigEpoch => parse_set_config_epoch(&words[2])?,
        ClusterChange::BumpEpoch => OperatorCommand::BumpEpoch,
        ClusterChange::SaveConfig => OperatorCommand::SaveConfig,
        ClusterChange::Meet => parse_meet(words)?,
    })
}

/// Returns the error reply. As in Redis, it contains up to 128 characters of the subcommand as the client wrote it.
fn invalid_arguments_error(words: &[String]) -> String {
    let subcommand: String = words[1].chars().take(128).collect();
    format!("ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try CLUSTER HELP.")
}

fn parse_slot(word: &str) -> Result<Slot, String> {
    parse_integer(word)
        .and_then(|n| Slot::new(u16::try_from(n).ok()?))
        .ok_or_else(|| BAD_SLOT_ERROR.to_owned())
}

fn parse_integer(word: &str) -> Option<i64> {
    resp::parse_i64(word.as_bytes())
}

fn parse_slots(words: &[String]) -> Result<Vec<Slot>, String> {
    words.iter().map(|word| parse_slot(word)).collect()
}

fn parse_slot_ranges(words: &[String], subcommand: &str) -> Result<Vec<Slot>, String> {
    let bounds = &words[2..];
    if !bounds.len().is_multiple_of(2) {
        return Err(format!("ERR wrong number of arguments for 'cluster|{subcommand}' command"));
    }
    let mut all = Vec::new();
    for pair in bounds.chunks(2) {
        let (first, last) = (parse_slot(&pair[0])?, parse_slot(&pair[1])?);
        if first > last {
            return Err(format!("ERR start slot number {first} is greater than end slot number {last}"));
        }
        all.extend((first.number()..=last.number()).filter_map(Slot::new));
        // A list that is longer than the number of slots must repeat a slot. The state machine reports the first
        // repetition, so the rest is dropped.
        all.truncate(2 * slot_routing::SLOT_COUNT);
    }
    Ok(all)
}

fn parse_set_slot(words: &[String], keyspace: &Keyspace) -> Result<OperatorCommand, String> {
    let slot = parse_slot(&words[2])?;
    let said: Vec<&str> = words[3..].iter().map(String::as_str).collect();
    let Some(change) = SlotChange::parse(&said) else {
        let text = "ERR Invalid CLUSTER SETSLOT action or number of arguments. Try CLUSTER HELP";
        return Err(text.to_owned());
    };
    let timeout = parse_timeout(&said[change.to_arguments().len()..])?;
    let keys_in_slot = u64::try_from(keyspace.keys_in_slot(slot)).unwrap_or(u64::MAX);
    Ok(OperatorCommand::SetSlot { slot, change, keys_in_slot, timeout })
}

/// Parses the TIMEOUT option in milliseconds. As in Valkey, other words are ignored, and 0 means the default.
fn parse_timeout(words: &[&str]) -> Result<Duration, String> {
    let Some(at) = words.iter().position(|word| word.eq_ignore_ascii_case("timeout")) else {
        return Ok(SET_SLOT_TIMEOUT);
    };
    let word = words.get(at + 1).ok_or("ERR Missing timeout value")?;
    let millis = parse_integer(word).ok_or("ERR timeout is not an integer or out of range")?;
    match u64::try_from(millis) {
        Ok(0) => Ok(SET_SLOT_TIMEOUT),
        Ok(millis) => Ok(Duration::from_millis(millis)),
        Err(_) => Err("ERR timeout is negative".to_owned()),
    }
}

fn parse_failover(words: &[String]) -> Result<OperatorCommand, String> {
    let mode = match words.get(2).map(|word| word.to_ascii_lowercase()).as_deref() {
        _ if words.len() > 3 => return Err(invalid_arguments_error(words)),
        None => FailoverMode::Graceful,
        Some("force") => FailoverMode::Force,
        Some("takeover") => FailoverMode::Takeover,
        Some(_) => return Err(SYNTAX_ERROR.to_owned()),
    };
    Ok(OperatorCommand::Failover(mode))
}

fn parse_reset(words: &[String], has_keys: bool) -> Result<OperatorCommand, String> {
    let hard = match words.get(2).map(|word| word.to_ascii_lowercase()).as_deref() {
        _ if words.len() > 3 => return Err(invalid_arguments_error(words)),
        None | Some("soft") => false,
        Some("hard") => true,
        Some(_) => return Err(SYNTAX_ERROR.to_owned()),
    };
    Ok(OperatorCommand::Reset { is_hard: hard, holds_keys: has_keys })
}

fn parse_set_config_epoch(word: &str) -> Result<OperatorCommand, String> {
    let number = parse_integer(word).ok_or(NOT_INTEGER_ERROR)?;
    let epoch = u64::try_from(number).map_err(|_| format!("ERR Invalid config epoch specified: {number}"))?;
    // The limit leaves room for later epochs, which are larger.
    if epoch >= 1 << 62 {
        return Err(format!("ERR Invalid config epoch specified: {number}"));
    }
    Ok(OperatorCommand::SetConfigEpoch(Epoch(epoch)))
}

fn parse_meet(words: &[String]) -> Result<OperatorCommand, String> {
    if words.len() > 5 {
        return Err(invalid_arguments_error(words));
    }
    let (ip, base) = (&words[2], &words[3]);
    let port = parse_integer(base).ok_or_else(|| format!("ERR Invalid TCP base port specified: {base}"))?;
    let bus_port = match words.get(4) {
        Some(word) => {
            parse_integer(word).ok_or_else(|| format!("ERR Invalid TCP bus port specified: {word}"))?
        }
        None => port.saturating_add(BUS_PORT_OFFSET),
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
    fn invalid_arguments_get_valkey_errors() {
        use ClusterChange as C;
        let keyspace = Keyspace::new(1, 1);
        let wrong = "ERR unknown subcommand or wrong number of arguments for";
        let set_slot = "ERR Invalid CLUSTER SETSLOT action or number of arguments. Try CLUSTER HELP";
        // Columns: command, its arguments, the reply.
        let table = [
            (C::AddSlots, "addslots 99999", BAD_SLOT_ERROR.to_owned()),
            (C::DelSlots, "delslots 1 x", BAD_SLOT_ERROR.to_owned()),
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
            (C::SetSlot, "setslot 99999 stable", BAD_SLOT_ERROR.to_owned()),
            (C::Failover, "failover foo", SYNTAX_ERROR.to_owned()),
            (C::Failover, "FailOver force takeover", format!("{wrong} 'FailOver'. Try CLUSTER HELP.")),
            (C::Reset, "reset foo", SYNTAX_ERROR.to_owned()),
            (C::SetConfigEpoch, "set-config-epoch x", NOT_INTEGER_ERROR.to_owned()),
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
            assert_eq!(parse_change(command, &words, &keyspace), Err(text), "{line}");
        }
    }
}
