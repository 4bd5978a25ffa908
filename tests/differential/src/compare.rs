//! Decides when two replies to a command are equivalent.

use harness::Value;

use crate::Command;
use crate::callers::{Caller, ExecutedCommands};
use crate::execution_mode::called;
use crate::waivers::is_waived;

/// How strictly the replies to a command can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closeness {
    /// Byte by byte.
    Exact,
    /// The same elements in any order.
    Unordered,
    /// The same pairs in any order: a map, or a flat list of names and values.
    Pairs,
    /// A cursor, then elements in any order.
    Scan,
    /// A cursor, then pairs in any order.
    ScanPairs,
    /// The same number of elements.
    Count,
    /// Positive numbers may differ by this much: time passed between the two servers.
    Near(i64),
    /// Scores may have another text for the same value, as in Redis before and after 7.2.
    Scores,
    /// Equal except for the lag of consumer groups, which Valkey computes differently, and stream fields that only
    /// Redis has for idempotent producers.
    Streams,
    /// The same type of reply; errors byte by byte.
    Kind,
}

/// Whether the two replies to `command` are equivalent for a client.
#[must_use]
pub fn same(command: &Command, ours: &Value, theirs: &Value) -> bool {
    if called(command).len() < command.len() {
        return same_in_order(command, &sort_unordered(ours), &sort_unordered(theirs));
    }
    same_in_order(command, ours, theirs)
}

fn same_in_order(command: &Command, ours: &Value, theirs: &Value) -> bool {
    ours == theirs
        || is_waived(called(command), ours, theirs)
        || match closeness(command) {
            Closeness::Exact => false,
            Closeness::Unordered => sorted(ours) == sorted(theirs),
            Closeness::Pairs => sort_pairs(ours) == sort_pairs(theirs),
            Closeness::Scan => same_scan(ours, theirs, sorted),
            Closeness::ScanPairs => same_scan(ours, theirs, sort_pairs),
            Closeness::Count => same_count(ours, theirs),
            Closeness::Near(most) => near(ours, theirs, most),
            Closeness::Scores => same_scores(ours, theirs),
            Closeness::Streams => same_streams(ours, theirs),
            Closeness::Kind => same_kind(ours, theirs),
        }
}

/// Compares the replies of a sequence in order. Replies of EXEC are compared by the queued commands. Records the
/// executed commands.
#[derive(Debug)]
pub(crate) struct Queue<'a> {
    commands: Vec<Command>,
    ran: &'a mut ExecutedCommands,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(ran: &'a mut ExecutedCommands) -> Self {
        Self { commands: Vec::new(), ran }
    }

    /// Whether the two replies to `command` are equivalent, given the commands before it.
    pub(crate) fn same(&mut self, command: &Command, ours: &Value, theirs: &Value) -> bool {
        if *theirs == Value::Simple("QUEUED".into()) {
            self.commands.push(command.clone());
            return ours == theirs;
        }
        let is = |word: &str| command.first().is_some_and(|name| name.eq_ignore_ascii_case(word.as_bytes()));
        // A nested MULTI is refused and does not end the transaction.
        if ["EXEC", "DISCARD", "RESET"].into_iter().any(is) {
            let queued = std::mem::take(&mut self.commands);
            if let (Value::Array(ours), Value::Array(theirs)) = (ours, theirs) {
                let replies = || queued.iter().zip(ours.iter().zip(theirs));
                replies().for_each(|(it, (ours, _))| self.note(Caller::Exec, it, ours));
                return ours.len() == queued.len()
                    && theirs.len() == queued.len()
                    && replies().all(|(it, (a, b))| same(it, a, b));
            }
        }
        self.note(Caller::Client, command, ours);
        same(command, ours, theirs)
    }

    /// Records a command without error, and the command that a script of [`called`] executed.
    fn note(&mut self, caller: Caller, command: &Command, ours: &Value) {
        if matches!(ours, Value::Error(_)) {
            return;
        }
        self.ran.add(caller, command);
        if called(command).len() < command.len() {
            self.ran.add(Caller::Script, called(command));
        }
    }
}

fn closeness(command: &Command) -> Closeness {
    let command = called(command);
    let upper = |index: usize| {
        command.get(index).map(|word| String::from_utf8_lossy(word).to_uppercase()).unwrap_or_default()
    };
    let compares_times = (3..command.len()).any(|index| ["GT", "LT"].contains(&upper(index).as_str()));
    match (upper(0).as_str(), upper(1).as_str()) {
        // The same command may have set a time relative to now; PTTL compares the result.
        ("EXPIRE" | "PEXPIRE", _) if compares_times => Closeness::Kind,
        ("HEXPIRE" | "HPEXPIRE", _) if compares_times => Closeness::Count,
        ("KEYS" | "HKEYS" | "HVALS", _) => Closeness::Unordered,
        ("SMEMBERS" | "SINTER" | "SUNION" | "SDIFF" | "SPOP", _) => Closeness::Unordered,
        ("HGETALL", _) => Closeness::Pairs,
        // A script returns a map as a flat list.
        ("EVAL" | "EVAL_RO", script) if script.contains("HGETALL") => Closeness::Pairs,
        ("HSCAN" | "ZSCAN", _) if !(3..command.len()).any(|index| upper(index).starts_with("NO")) => {
            Closeness::ScanPairs
        }
        ("ZRANDMEMBER", _) => Closeness::Count,
        ("XINFO", "CONSUMERS") => Closeness::Near(60_000),
        ("XINFO", "GROUPS" | "STREAM") => Closeness::Streams,
        ("ZSCAN", _) => Closeness::Scan,
        (name, _) if name.starts_with('Z') => Closeness::Scores,
        ("HRANDFIELD" | "SRANDMEMBER", _) => Closeness::Count,
        ("CONFIG", "GET") => Closeness::Unordered,
        ("SCAN" | "SSCAN" | "HSCAN", _) => Closeness::Scan,
        ("TTL" | "EXPIRETIME" | "HTTL" | "HEXPIRETIME", _) => Closeness::Near(60),
        ("PTTL" | "PEXPIRETIME" | "HPTTL" | "HPEXPIRETIME", _) => Closeness::Near(60_000),
        // Random choices, clocks, implementation statistics, and texts that change with every version. DBSIZE may
        // include expired keys.
        ("DBSIZE" | "RANDOMKEY" | "TIME" | "LASTSAVE" | "LOLWUT" | "DUMP" | "ROLE" | "HELLO" | "INFO", _)
        | ("OBJECT", "IDLETIME" | "REFCOUNT")
        | ("CLIENT", "ID" | "INFO" | "LIST")
        | ("DEBUG", "OBJECT")
        | ("FUNCTION", "STATS")
        | ("COMMAND", "") => Closeness::Kind,
        _ => Closeness::Exact,
    }
}

/// Whether two times, or lists of times, differ by at most `most`.
fn near(ours: &Value, theirs: &Value, most: i64) -> bool {
    match (ours, theirs) {
        (Value::Int(a), Value::Int(b)) => {
            a == b || *a >= 0 && *b >= 0 && a.abs_diff(*b) <= most.unsigned_abs()
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| near(a, b, most))
        }
        (Value::Map(a), Value::Map(b)) => {
            let pairs = || a.iter().zip(b);
            a.len() == b.len() && pairs().all(|(a, b)| a.0 == b.0 && near(&a.1, &b.1, most))
        }
        (ours, theirs) => ours == theirs,
    }
}

/// Whether two replies are equal except for the digits of large numbers.
fn same_scores(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_scores(a, b))
        }
        (Value::Double(a), Value::Double(b)) => same_score(a, b),
        (Value::Bulk(a), Value::Bulk(b)) if a != b => {
            let text = |bytes| std::str::from_utf8(bytes).ok();
            text(a).zip(text(b)).is_some_and(|(a, b)| same_score(a, b))
        }
        _ => ours == theirs,
    }
}

fn same_score(ours: &str, theirs: &str) -> bool {
    ours == theirs
        || theirs.contains("e+") && theirs.parse::<f64>().is_ok_and(|score| ours.parse() == Ok(score))
}

fn same_kind(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Error(a), Value::Error(b)) => a == b,
        (Value::Map(a), Value::Map(b)) => a.iter().map(|(key, _)| key).eq(b.iter().map(|(key, _)| key)),
        _ => std::mem::discriminant(ours) == std::mem::discriminant(theirs),
    }
}

/// The fields of XINFO about idempotent producers.
const PRODUCERS: &[&str] =
    &["idmp-duration", "idmp-maxsize", "pids-tracked", "iids-tracked", "iids-added", "iids-duplicates"];

fn same_streams(ours: &Value, theirs: &Value) -> bool {
    let tells = |value: &Value| format!("{value:?}").contains(PRODUCERS[0]);
    let alike = without(ours, &["lag"]) == without(theirs, &["lag"]);
    let left_out = [&["lag"], PRODUCERS].concat();
    alike || !tells(ours) && without(ours, &left_out) == without(theirs, &left_out)
}

/// A copy without the named fields, in nested maps and in flat lists of names and values.
pub(crate) fn without(value: &Value, names: &[&str]) -> Value {
    let is_left_out = |value: &Value| matches!(value, Value::Bulk(name) if names.iter().any(|other| name == other.as_bytes()));
    match value {
        Value::Map(pairs) => {
            let kept = pairs.iter().filter(|(name, _)| !is_left_out(name));
            Value::Map(kept.map(|(name, value)| (name.clone(), without(value, names))).collect())
        }
        Value::Array(items) => {
            let (mut kept, mut items) = (Vec::new(), items.iter());
            while let Some(item) = items.next() {
                if is_left_out(item) {
                    items.next();
                } else {
                    kept.push(without(item, names));
                }
            }
            Value::Array(kept)
        }
        other => other.clone(),
    }
}

fn same_scan(ours: &Value, theirs: &Value, in_order: fn(&Value) -> Value) -> bool {
    match (ours, theirs) {
        (Value::Array(a), Value::Array(b)) if a.len() == 2 && b.len() == 2 => {
            a[0] == b[0] && in_order(&a[1]) == in_order(&b[1])
        }
        _ => false,
    }
}

fn same_count(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len(),
        _ => same_kind(ours, theirs),
    }
}

/// A copy with sorted pairs.
fn sort_pairs(value: &Value) -> Value {
    match value {
        Value::Array(items) if items.len().is_multiple_of(2) => {
            let mut pairs: Vec<Vec<Value>> = items.chunks(2).map(<[Value]>::to_vec).collect();
            pairs.sort();
            Value::Array(pairs.concat())
        }
        other => sorted(other),
    }
}

/// A copy with sorted elements (a flat list of CONFIG GET is sorted by pairs).
fn sorted(value: &Value) -> Value {
    let mut value = value.clone();
    match &mut value {
        Value::Array(items) | Value::Set(items) => items.sort(),
        Value::Map(pairs) => pairs.sort(),
        _ => {}
    }
    value
}

/// A copy with sorted maps and sets, at every depth: scripts receive them as Lua tables, which have no order.
fn sort_unordered(value: &Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.iter().map(sort_unordered).collect()),
        Value::Set(items) => sorted(&Value::Set(items.iter().map(sort_unordered).collect())),
        Value::Map(pairs) => {
            let pair = |(key, value): &(Value, Value)| (sort_unordered(key), sort_unordered(value));
            sorted(&Value::Map(pairs.iter().map(pair).collect()))
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExecutionMode, Protocol};

    fn bulk(text: &str) -> Value {
        Value::Bulk(text.into())
    }

    fn command(line: &str) -> Command {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn most_replies_are_compared_byte_by_byte() {
        assert!(!same(&command("GET a"), &Value::NullBulk, &Value::Null));
        assert!(!same(&command("SET a"), &Value::Error("ERR a".into()), &Value::Error("ERR b".into())));
    }

    #[test]
    fn ttl_may_decrease_but_not_appear_or_disappear() {
        assert!(same(&command("pttl a"), &Value::Int(99_990), &Value::Int(100_000)));
        assert!(!same(&command("PTTL a"), &Value::Int(-1), &Value::Int(-2)));
    }

    #[test]
    fn field_value_pairs_are_compared_unordered() {
        let list = |items: &[i64]| Value::Array(items.iter().map(|item| Value::Int(*item)).collect());
        assert!(same(&command("HGETALL h"), &list(&[1, 2, 3, 4]), &list(&[3, 4, 1, 2])));
        assert!(!same(&command("HGETALL h"), &list(&[1, 2, 3, 4]), &list(&[1, 4, 3, 2])));
    }

    #[test]
    fn scores_are_compared_by_value_not_digits() {
        let scored = |score: &str| Value::Array(vec![bulk("m"), bulk(score)]);
        let command = command("ZRANGE z 0 -1 WITHSCORES");
        assert!(same(&command, &scored("9223372036854776000"), &scored("9.2233720368547758e+18")));
        assert!(!same(&command, &scored("9223372036854774000"), &scored("9.2233720368547758e+18")));
        assert!(!same(&command, &scored("1.0"), &scored("1")));
    }

    #[test]
    fn exec_replies_are_compared_by_queued_commands() {
        let queued = Value::Simple("QUEUED".into());
        let ttl = |value| Value::Array(vec![Value::Int(value)]);
        for (line, equal) in [("PTTL a", true), ("GET a", false)] {
            let mut ran = ExecutedCommands::without_table();
            let mut queue = Queue::new(&mut ran);
            assert!(queue.same(&command(line), &queued, &queued));
            let refused = Value::Error("ERR MULTI calls can not be nested".into());
            assert!(queue.same(&command("multi"), &refused, &refused));
            assert_eq!(queue.same(&command("exec"), &ttl(99_990), &ttl(100_000)), equal, "{line}");
        }
    }

    #[test]
    fn script_results_ignore_order_of_maps_but_not_lists() {
        let by_script = ExecutionMode::Script.give(Protocol::V3, vec![command("XINFO GROUPS s")]).remove(0);
        let groups = |pairs: [(&str, i64); 2]| {
            Value::Array(vec![Value::Map(pairs.map(|(name, value)| (bulk(name), Value::Int(value))).into())])
        };
        let (ours, theirs) =
            (groups([("consumers", 0), ("pending", 1)]), groups([("pending", 1), ("consumers", 0)]));
        assert!(same(&by_script, &ours, &theirs));
        assert!(!same(&command("XINFO GROUPS s"), &ours, &theirs));
        assert!(!same(&by_script, &ours, &groups([("pending", 0), ("consumers", 1)])));
        let list = |items: [i64; 2]| Value::Array(items.map(Value::Int).into());
        assert!(!same(&by_script, &list([1, 2]), &list([2, 1])));
    }

    #[test]
    fn scanned_members_are_compared_unordered() {
        let scan = |members: [&str; 2]| Value::Array(vec![bulk("0"), Value::Array(members.map(bulk).into())]);
        let (ours, theirs) = (scan(["m", "1"]), scan(["1", "m"]));
        for (line, equal) in
            [("ZSCAN z 0 NOSCORES", true), ("HSCAN h 0 NOVALUES", true), ("ZSCAN z 0", false)]
        {
            assert_eq!(same(&command(line), &ours, &theirs), equal, "{line}");
        }
    }

    #[test]
    fn keys_are_compared_unordered() {
        let list = |items: &[i64]| Value::Array(items.iter().map(|item| Value::Int(*item)).collect());
        assert!(same(&command("KEYS *"), &list(&[1, 2]), &list(&[2, 1])));
        assert!(!same(&command("KEYS *"), &list(&[1, 2]), &list(&[2, 2])));
        assert!(!same(&command("MGET a b"), &list(&[1, 2]), &list(&[2, 1])));
    }
}
