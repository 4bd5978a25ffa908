//! Decides when two replies to a command are equivalent.

use harness::Reply;

use crate::Command;
use crate::callers::{CommandCaller, ExecutedCommands};
use crate::execution_mode::called_command;
use crate::waivers::is_waived;

/// How strictly the replies to a command can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ComparisonMode {
    /// The replies must be identical byte by byte.
    Exact,
    /// The replies must have the same elements in any order.
    Unordered,
    /// The replies must have the same pairs in any order, as a map or as a flat list of names and values.
    Pairs,
    /// The replies must be a cursor and the same elements in any order.
    Scan,
    /// The replies must be a cursor and the same pairs in any order.
    ScanPairs,
    /// The replies must have the same number of elements.
    SameLength,
    /// Positive numbers may differ by at most this much, because time passes between the two servers' replies.
    WithinTolerance(i64),
    /// Scores may be formatted differently but must have equal values; Redis changed the format in 7.2.
    Scores,
    /// The replies must be equal except for the lag of consumer groups, which Valkey computes differently, and stream
    /// fields that only Redis has for idempotent producers.
    Streams,
    /// The replies must have the same type; errors must be identical byte by byte.
    SameType,
}

/// Whether the two replies to `command` are equivalent for a client.
#[must_use]
pub fn are_equivalent(command: &Command, ours: &Reply, theirs: &Reply) -> bool {
    if called_command(command).len() < command.len() {
        return are_equal_or_waived(command, &sort_unordered(ours), &sort_unordered(theirs));
    }
    are_equal_or_waived(command, ours, theirs)
}

fn are_equal_or_waived(command: &Command, ours: &Reply, theirs: &Reply) -> bool {
    ours == theirs
        || is_waived(called_command(command), ours, theirs)
        || match comparison_mode(command) {
            ComparisonMode::Exact => false,
            ComparisonMode::Unordered => sort_elements(ours) == sort_elements(theirs),
            ComparisonMode::Pairs => sort_pairs(ours) == sort_pairs(theirs),
            ComparisonMode::Scan => are_equal_scans(ours, theirs, sort_elements),
            ComparisonMode::ScanPairs => are_equal_scans(ours, theirs, sort_pairs),
            ComparisonMode::SameLength => have_same_length(ours, theirs),
            ComparisonMode::WithinTolerance(most) => are_within_tolerance(ours, theirs, most),
            ComparisonMode::Scores => have_equal_scores(ours, theirs),
            ComparisonMode::Streams => are_equal_streams(ours, theirs),
            ComparisonMode::SameType => have_same_type(ours, theirs),
        }
}

/// Compares the replies of a sequence in order, and records the executed commands. Replies of EXEC are compared by the
/// rules of the queued commands.
#[derive(Debug)]
pub(crate) struct CommandQueue<'a> {
    commands: Vec<Command>,
    executed_commands: &'a mut ExecutedCommands,
}

impl<'a> CommandQueue<'a> {
    pub(crate) fn new(executed_commands: &'a mut ExecutedCommands) -> Self {
        Self { commands: Vec::new(), executed_commands }
    }

    /// Whether the two replies to `command` are equivalent, given the commands before it.
    pub(crate) fn compare_next(&mut self, command: &Command, ours: &Reply, theirs: &Reply) -> bool {
        if *theirs == Reply::Simple("QUEUED".into()) {
            self.commands.push(command.clone());
            return ours == theirs;
        }
        let is = |word: &str| command.first().is_some_and(|name| name.eq_ignore_ascii_case(word.as_bytes()));
        // A nested MULTI is refused and does not end the transaction.
        if ["EXEC", "DISCARD", "RESET"].into_iter().any(is) {
            let queued = std::mem::take(&mut self.commands);
            if let (Reply::Array(ours), Reply::Array(theirs)) = (ours, theirs) {
                let replies = || queued.iter().zip(ours.iter().zip(theirs));
                replies().for_each(|(it, (ours, _))| self.record_executed(CommandCaller::Exec, it, ours));
                return ours.len() == queued.len()
                    && theirs.len() == queued.len()
                    && replies().all(|(it, (a, b))| are_equivalent(it, a, b));
            }
        }
        self.record_executed(CommandCaller::Client, command, ours);
        are_equivalent(command, ours, theirs)
    }

    /// Records a command that succeeded, and the command that it called if it was a script of [`called_command`].
    fn record_executed(&mut self, caller: CommandCaller, command: &Command, ours: &Reply) {
        if matches!(ours, Reply::Error(_)) {
            return;
        }
        self.executed_commands.add(caller, command);
        if called_command(command).len() < command.len() {
            self.executed_commands.add(CommandCaller::Script, called_command(command));
        }
    }
}

fn comparison_mode(command: &Command) -> ComparisonMode {
    let command = called_command(command);
    let upper = |index: usize| {
        command.get(index).map(|word| String::from_utf8_lossy(word).to_uppercase()).unwrap_or_default()
    };
    let compares_times = (3..command.len()).any(|index| ["GT", "LT"].contains(&upper(index).as_str()));
    match (upper(0).as_str(), upper(1).as_str()) {
        // An earlier command may have set a time relative to the current time; only PTTL compares such times.
        ("EXPIRE" | "PEXPIRE", _) if compares_times => ComparisonMode::SameType,
        ("HEXPIRE" | "HPEXPIRE", _) if compares_times => ComparisonMode::SameLength,
        ("KEYS" | "HKEYS" | "HVALS", _) => ComparisonMode::Unordered,
        ("SMEMBERS" | "SINTER" | "SUNION" | "SDIFF" | "SPOP", _) => ComparisonMode::Unordered,
        ("HGETALL", _) => ComparisonMode::Pairs,
        // A script returns a map as a flat list, because Lua tables have no order.
        ("EVAL" | "EVAL_RO", script) if script.contains("HGETALL") => ComparisonMode::Pairs,
        ("HSCAN" | "ZSCAN", _) if !(3..command.len()).any(|index| upper(index).starts_with("NO")) => {
            ComparisonMode::ScanPairs
        }
        ("ZRANDMEMBER", _) => ComparisonMode::SameLength,
        ("XINFO", "CONSUMERS") => ComparisonMode::WithinTolerance(60_000),
        ("XINFO", "GROUPS" | "STREAM") => ComparisonMode::Streams,
        ("ZSCAN", _) => ComparisonMode::Scan,
        (name, _) if name.starts_with('Z') => ComparisonMode::Scores,
        ("HRANDFIELD" | "SRANDMEMBER", _) => ComparisonMode::SameLength,
        ("CONFIG", "GET") => ComparisonMode::Unordered,
        ("SCAN" | "SSCAN" | "HSCAN", _) => ComparisonMode::Scan,
        ("TTL" | "EXPIRETIME" | "HTTL" | "HEXPIRETIME", _) => ComparisonMode::WithinTolerance(60),
        ("PTTL" | "PEXPIRETIME" | "HPTTL" | "HPEXPIRETIME", _) => ComparisonMode::WithinTolerance(60_000),
        // These replies depend on random choices, clocks, implementation statistics or the version. DBSIZE may include
        // expired keys.
        ("DBSIZE" | "RANDOMKEY" | "TIME" | "LASTSAVE" | "LOLWUT" | "DUMP" | "ROLE" | "HELLO" | "INFO", _)
        | ("OBJECT", "IDLETIME" | "REFCOUNT")
        | ("CLIENT", "ID" | "INFO" | "LIST")
        | ("DEBUG", "OBJECT")
        | ("FUNCTION", "STATS")
        | ("COMMAND", "") => ComparisonMode::SameType,
        _ => ComparisonMode::Exact,
    }
}

/// Whether two times, or lists of times, differ by at most `max`.
fn are_within_tolerance(ours: &Reply, theirs: &Reply, max_difference: i64) -> bool {
    match (ours, theirs) {
        (Reply::Int(a), Reply::Int(b)) => {
            a == b || *a >= 0 && *b >= 0 && a.abs_diff(*b) <= max_difference.unsigned_abs()
        }
        (Reply::Array(a), Reply::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| are_within_tolerance(a, b, max_difference))
        }
        (Reply::Map(a), Reply::Map(b)) => {
            let pairs = || a.iter().zip(b);
            a.len() == b.len()
                && pairs().all(|(a, b)| a.0 == b.0 && are_within_tolerance(&a.1, &b.1, max_difference))
        }
        (ours, theirs) => ours == theirs,
    }
}

/// Whether two replies are equal except for the digits of large numbers.
fn have_equal_scores(ours: &Reply, theirs: &Reply) -> bool {
    match (ours, theirs) {
        (Reply::Array(a), Reply::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| have_equal_scores(a, b))
        }
        (Reply::Double(a), Reply::Double(b)) => are_equal_scores(a, b),
        (Reply::Bulk(a), Reply::Bulk(b)) if a != b => {
            let text = |bytes| std::str::from_utf8(bytes).ok();
            text(a).zip(text(b)).is_some_and(|(a, b)| are_equal_scores(a, b))
        }
        _ => ours == theirs,
    }
}

fn are_equal_scores(ours: &str, theirs: &str) -> bool {
    ours == theirs
        || theirs.contains("e+") && theirs.parse::<f64>().is_ok_and(|score| ours.parse() == Ok(score))
}

fn have_same_type(ours: &Reply, theirs: &Reply) -> bool {
    match (ours, theirs) {
        (Reply::Error(a), Reply::Error(b)) => a == b,
        (Reply::Map(a), Reply::Map(b)) => a.iter().map(|(key, _)| key).eq(b.iter().map(|(key, _)| key)),
        _ => std::mem::discriminant(ours) == std::mem::discriminant(theirs),
    }
}

/// The fields of XINFO about idempotent producers.
const PRODUCER_FIELDS: &[&str] =
    &["idmp-duration", "idmp-maxsize", "pids-tracked", "iids-tracked", "iids-added", "iids-duplicates"];

fn are_equal_streams(ours: &Reply, theirs: &Reply) -> bool {
    let tells = |value: &Reply| format!("{value:?}").contains(PRODUCER_FIELDS[0]);
    let alike = without_fields(ours, &["lag"]) == without_fields(theirs, &["lag"]);
    let left_out = [&["lag"], PRODUCER_FIELDS].concat();
    alike || !tells(ours) && without_fields(ours, &left_out) == without_fields(theirs, &left_out)
}

/// Returns a copy without the named fields, in nested maps and in flat lists of names and values.
pub(crate) fn without_fields(value: &Reply, names: &[&str]) -> Reply {
    let is_left_out = |value: &Reply| matches!(value, Reply::Bulk(name) if names.iter().any(|other| name == other.as_bytes()));
    match value {
        Reply::Map(pairs) => {
            let kept = pairs.iter().filter(|(name, _)| !is_left_out(name));
            Reply::Map(kept.map(|(name, value)| (name.clone(), without_fields(value, names))).collect())
        }
        Reply::Array(items) => {
            let (mut kept, mut items) = (Vec::new(), items.iter());
            while let Some(item) = items.next() {
                if is_left_out(item) {
                    items.next();
                } else {
                    kept.push(without_fields(item, names));
                }
            }
            Reply::Array(kept)
        }
        other => other.clone(),
    }
}

fn are_equal_scans(ours: &Reply, theirs: &Reply, sort_items: fn(&Reply) -> Reply) -> bool {
    match (ours, theirs) {
        (Reply::Array(a), Reply::Array(b)) if a.len() == 2 && b.len() == 2 => {
            a[0] == b[0] && sort_items(&a[1]) == sort_items(&b[1])
        }
        _ => false,
    }
}

fn have_same_length(ours: &Reply, theirs: &Reply) -> bool {
    match (ours, theirs) {
        (Reply::Array(a), Reply::Array(b)) => a.len() == b.len(),
        _ => have_same_type(ours, theirs),
    }
}

/// Returns a copy in which the pairs are sorted.
fn sort_pairs(value: &Reply) -> Reply {
    match value {
        Reply::Array(items) if items.len().is_multiple_of(2) => {
            let mut pairs: Vec<Vec<Reply>> = items.chunks(2).map(<[Reply]>::to_vec).collect();
            pairs.sort();
            Reply::Array(pairs.concat())
        }
        other => sort_elements(other),
    }
}

/// Returns a copy in which the elements are sorted; a flat list of CONFIG GET is sorted by pairs.
fn sort_elements(value: &Reply) -> Reply {
    let mut value = value.clone();
    match &mut value {
        Reply::Array(items) | Reply::Set(items) => items.sort(),
        Reply::Map(pairs) => pairs.sort(),
        _ => {}
    }
    value
}

/// Returns a copy in which maps and sets are sorted at every depth, because scripts receive them as Lua tables, which
/// have no order.
fn sort_unordered(value: &Reply) -> Reply {
    match value {
        Reply::Array(items) => Reply::Array(items.iter().map(sort_unordered).collect()),
        Reply::Set(items) => sort_elements(&Reply::Set(items.iter().map(sort_unordered).collect())),
        Reply::Map(pairs) => {
            let pair = |(key, value): &(Reply, Reply)| (sort_unordered(key), sort_unordered(value));
            sort_elements(&Reply::Map(pairs.iter().map(pair).collect()))
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExecutionMode, Protocol};

    fn bulk_string(text: &str) -> Reply {
        Reply::Bulk(text.into())
    }

    fn parse_command(line: &str) -> Command {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn most_replies_are_compared_byte_by_byte() {
        assert!(!are_equivalent(&parse_command("GET a"), &Reply::NullBulk, &Reply::Null));
        assert!(!are_equivalent(
            &parse_command("SET a"),
            &Reply::Error("ERR a".into()),
            &Reply::Error("ERR b".into())
        ));
    }

    #[test]
    fn ttl_may_decrease_but_not_appear_or_disappear() {
        assert!(are_equivalent(&parse_command("pttl a"), &Reply::Int(99_990), &Reply::Int(100_000)));
        assert!(!are_equivalent(&parse_command("PTTL a"), &Reply::Int(-1), &Reply::Int(-2)));
    }

    #[test]
    fn field_value_pairs_are_compared_unordered() {
        let list = |items: &[i64]| Reply::Array(items.iter().map(|item| Reply::Int(*item)).collect());
        assert!(are_equivalent(&parse_command("HGETALL h"), &list(&[1, 2, 3, 4]), &list(&[3, 4, 1, 2])));
        assert!(!are_equivalent(&parse_command("HGETALL h"), &list(&[1, 2, 3, 4]), &list(&[1, 4, 3, 2])));
    }

    #[test]
    fn scores_are_compared_by_value_not_digits() {
        let scored = |score: &str| Reply::Array(vec![bulk_string("m"), bulk_string(score)]);
        let command = parse_command("ZRANGE z 0 -1 WITHSCORES");
        assert!(are_equivalent(&command, &scored("9223372036854776000"), &scored("9.2233720368547758e+18")));
        assert!(!are_equivalent(&command, &scored("9223372036854774000"), &scored("9.2233720368547758e+18")));
        assert!(!are_equivalent(&command, &scored("1.0"), &scored("1")));
    }

    #[test]
    fn exec_replies_are_compared_by_the_rules_of_queued_commands() {
        let queued = Reply::Simple("QUEUED".into());
        let ttl = |value| Reply::Array(vec![Reply::Int(value)]);
        for (line, equal) in [("PTTL a", true), ("GET a", false)] {
            let mut ran = ExecutedCommands::without_command_flags();
            let mut queue = CommandQueue::new(&mut ran);
            assert!(queue.compare_next(&parse_command(line), &queued, &queued));
            let refused = Reply::Error("ERR MULTI calls can not be nested".into());
            assert!(queue.compare_next(&parse_command("multi"), &refused, &refused));
            assert_eq!(
                queue.compare_next(&parse_command("exec"), &ttl(99_990), &ttl(100_000)),
                equal,
                "{line}"
            );
        }
    }

    #[test]
    fn script_results_ignore_order_of_maps_but_not_lists() {
        let by_script = ExecutionMode::Script
            .wrap_commands(Protocol::V3, vec![parse_command("XINFO GROUPS s")])
            .remove(0);
        let groups = |pairs: [(&str, i64); 2]| {
            Reply::Array(vec![Reply::Map(
                pairs.map(|(name, value)| (bulk_string(name), Reply::Int(value))).into(),
            )])
        };
        let (ours, theirs) =
            (groups([("consumers", 0), ("pending", 1)]), groups([("pending", 1), ("consumers", 0)]));
        assert!(are_equivalent(&by_script, &ours, &theirs));
        assert!(!are_equivalent(&parse_command("XINFO GROUPS s"), &ours, &theirs));
        assert!(!are_equivalent(&by_script, &ours, &groups([("pending", 0), ("consumers", 1)])));
        let list = |items: [i64; 2]| Reply::Array(items.map(Reply::Int).into());
        assert!(!are_equivalent(&by_script, &list([1, 2]), &list([2, 1])));
    }

    #[test]
    fn scanned_members_are_compared_unordered() {
        let scan = |members: [&str; 2]| {
            Reply::Array(vec![bulk_string("0"), Reply::Array(members.map(bulk_string).into())])
        };
        let (ours, theirs) = (scan(["m", "1"]), scan(["1", "m"]));
        for (line, equal) in
            [("ZSCAN z 0 NOSCORES", true), ("HSCAN h 0 NOVALUES", true), ("ZSCAN z 0", false)]
        {
            assert_eq!(are_equivalent(&parse_command(line), &ours, &theirs), equal, "{line}");
        }
    }

    #[test]
    fn keys_are_compared_unordered() {
        let list = |items: &[i64]| Reply::Array(items.iter().map(|item| Reply::Int(*item)).collect());
        assert!(are_equivalent(&parse_command("KEYS *"), &list(&[1, 2]), &list(&[2, 1])));
        assert!(!are_equivalent(&parse_command("KEYS *"), &list(&[1, 2]), &list(&[2, 2])));
        assert!(!are_equivalent(&parse_command("MGET a b"), &list(&[1, 2]), &list(&[2, 1])));
    }
}
