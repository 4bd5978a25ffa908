//! CLUSTER SLOT-STATS: key counts and resource usage of the slots that this node's shard serves.

use std::cmp::Reverse;

use engine::{CommandError, Context, Measurements, SlotCost};
use slot_routing::{SLOT_COUNT, Slot};

use super::invalid_subcommand;
use crate::scanning::parse_slot_argument;

const LIMIT_RANGE_ERROR: &str = "ERR Limit has to lie in between 1 and 16384 (maximum number of slots).";

struct SlotStatsRow {
    slot: Slot,
    key_count: usize,
    slot_cost: SlotCost,
}

#[derive(Debug, Clone, Copy)]
enum SlotMetric {
    Keys,
    Micros,
    BytesIn,
    BytesOut,
}

impl SlotMetric {
    const NAMES: [(&'static str, Self); 4] = [
        ("key-count", Self::Keys),
        ("cpu-usec", Self::Micros),
        ("network-bytes-in", Self::BytesIn),
        ("network-bytes-out", Self::BytesOut),
    ];

    /// The available metrics: all of them, or only the key count if `cluster-slot-stats-enabled` is off.
    fn available_metrics(context: &Context<'_>) -> &'static [(&'static str, Self)] {
        let counted = context.engine.settings.measurements().contains(Measurements::SLOTS);
        if counted { &Self::NAMES } else { &Self::NAMES[..1] }
    }

    fn value_in(self, row: &SlotStatsRow) -> u64 {
        match self {
            Self::Keys => row.key_count as u64,
            Self::Micros => row.slot_cost.nanos / 1000,
            Self::BytesIn => row.slot_cost.bytes_in,
            Self::BytesOut => row.slot_cost.bytes_out,
        }
    }
}

/// Handles `CLUSTER SLOT-STATS SLOTSRANGE start end | ORDERBY metric [LIMIT limit] [ASC | DESC]`.
pub(super) fn slot_stats(context: &mut Context<'_>) -> Result<(), CommandError> {
    super::require_cluster_mode(context)?;
    let (args, filter) = (context.args, context.arg(2));
    let rows = if filter.eq_ignore_ascii_case(b"slotsrange") && args.len() == 5 {
        let (first, last) = (parse_slot_argument(context.arg(3))?, parse_slot_argument(context.arg(4))?);
        if first > last {
            let text = format!("ERR Start slot number {first} is greater than end slot number {last}");
            return Err(CommandError::Text(text.into()));
        }
        collect_rows(context, |slot| (first..=last).contains(&slot))
    } else if filter.eq_ignore_ascii_case(b"orderby") {
        let OrderBy { metric, limit, is_ascending: ascending } = OrderBy::parse(context)?;
        let mut rows = collect_rows(context, |_| true);
        match ascending {
            true => rows.sort_by_key(|row| metric.value_in(row)),
            false => rows.sort_by_key(|row| Reverse(metric.value_in(row))),
        }
        rows.truncate(limit);
        rows
    } else {
        return Err(invalid_subcommand(context.arg(1)));
    };
    let metrics = SlotMetric::available_metrics(context);
    context.reply.array(rows.len());
    for row in rows {
        context.reply.array(2);
        context.reply.integer(i64::from(row.slot.number()));
        context.reply.map(metrics.len());
        for (name, metric) in metrics {
            context.reply.bulk(name.as_bytes());
            context.reply.integer(i64::try_from(metric.value_in(&row)).unwrap_or(i64::MAX));
        }
    }
    Ok(())
}

/// The arguments after ORDERBY.
struct OrderBy {
    metric: SlotMetric,
    limit: usize,
    is_ascending: bool,
}

impl OrderBy {
    fn parse(context: &Context<'_>) -> Result<Self, CommandError> {
        let (args, named) = (context.args, context.arg(3));
        let known = SlotMetric::available_metrics(context)
            .iter()
            .find(|(name, _)| named.eq_ignore_ascii_case(name.as_bytes()));
        let (_, metric) = known.ok_or(CommandError::text("ERR Unrecognized sort metric for ORDERBY."))?;
        let (mut limit, mut ascending) = (None, None);
        let twice = Err(CommandError::text("ERR Multiple filters of the same type are disallowed."));
        let mut index = 4;
        while let Some(word) = args.get(index) {
            index += 1;
            let order = [(&b"asc"[..], true), (b"desc", false)];
            if let Some((_, order)) = order.iter().find(|(name, _)| word.eq_ignore_ascii_case(name)) {
                if ascending.replace(*order).is_some() {
                    return twice;
                }
            } else if word.eq_ignore_ascii_case(b"limit")
                && let Some(value) = args.get(index)
            {
                index += 1;
                let number = resp::parse_i64(value).and_then(|number| usize::try_from(number).ok());
                let number = number.filter(|number| (1..=SLOT_COUNT).contains(number));
                if limit.replace(number.ok_or(CommandError::text(LIMIT_RANGE_ERROR))?).is_some() {
                    return twice;
                }
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(Self {
            metric: *metric,
            limit: limit.unwrap_or(SLOT_COUNT),
            is_ascending: ascending.unwrap_or(false),
        })
    }
}

/// Statistics of the slots that this node's shard serves and for which `is_selected` returns true.
fn collect_rows(context: &mut Context<'_>, is_selected: impl Fn(Slot) -> bool) -> Vec<SlotStatsRow> {
    let Some(topology) = context.engine.topology.as_ref().map(|topology| topology.load_full()) else {
        return Vec::new();
    };
    let shard = topology.my_member().shard;
    let is_here = |slot: &Slot| topology.owner(*slot).is_some_and(|owner| owner.shard == shard);
    let slots: Vec<Slot> = Slot::all().filter(|slot| is_selected(*slot)).filter(is_here).collect();
    let (costs, databases) =
        (context.engine.diagnostics.slot_costs(&slots), context.engine.keyspace.database_count());
    let row = |(slot, cost)| SlotStatsRow {
        slot,
        key_count: (0..databases).map(|db| context.slot_key_count_in(db, slot)).sum(),
        slot_cost: cost,
    };
    slots.into_iter().zip(costs).map(row).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use engine::{CommandOrigin, ConnectionInfo, DispatchStatus, Measurements, NodeFlags, Session, SlotCost};
    use slot_routing::Slot;

    use crate::testing::Client;

    fn client_with_slot_stats() -> Client {
        let client = Client::in_cluster();
        client.engine.settings.set_measurements(Measurements::SLOTS, true);
        client
    }

    fn slot_cost(client: &Client, slot: u16) -> SlotCost {
        client.engine.diagnostics.slot_costs(&[Slot::new(slot).expect("a slot")])[0]
    }

    /// Returns the network bytes in and out that were counted for slot 5 while the commands in `lines` ran.
    fn slot_bytes_of_commands(lines: &[&str]) -> (u64, u64) {
        let mut client = client_with_slot_stats();
        client.run_to_text("rpush {460}list a");
        let before = slot_cost(&client, 5);
        for line in lines {
            let parts = line.split('"').enumerate();
            let words = parts.flat_map(|(place, part)| match place % 2 {
                0 => part.split_whitespace().collect(),
                _ => vec![part],
            });
            client.call(&words.collect::<Vec<_>>());
        }
        let after = slot_cost(&client, 5);
        (after.bytes_in - before.bytes_in, after.bytes_out - before.bytes_out)
    }

    #[test]
    fn argument_errors_match_valkey() {
        let range = "-ERR Invalid or out of range slot";
        let limit = "-ERR Limit has to lie in between 1 and 16384 (maximum number of slots).";
        let wrong =
            "-ERR unknown subcommand or wrong number of arguments for 'slot-stats'. Try CLUSTER HELP.";
        let (metric, twice) = (
            "-ERR Unrecognized sort metric for ORDERBY.",
            "-ERR Multiple filters of the same type are disallowed.",
        );
        let mut client = client_with_slot_stats();
        client.check_replies(&[
            ("cluster slot-stats slotsrange 0 x", range),
            ("cluster slot-stats slotsrange x 0", range),
            ("cluster slot-stats slotsrange 0 16384", range),
            ("cluster slot-stats slotsrange -1 0", range),
            (
                "cluster slot-stats slotsrange 5 4",
                "-ERR Start slot number 5 is greater than end slot number 4",
            ),
            ("cluster slot-stats slotsrange 5", wrong),
            ("cluster slot-stats slotsrange 5 5 5", wrong),
            ("cluster slot-stats foo 5", wrong),
            ("cluster slot-stats orderby", "-ERR wrong number of arguments for 'cluster|slot-stats' command"),
            ("cluster slot-stats orderby foo limit x", metric),
            ("cluster slot-stats orderby memory-bytes", metric),
            ("cluster slot-stats orderby key-count limit", "-ERR syntax error"),
            ("cluster slot-stats orderby key-count foo", "-ERR syntax error"),
            ("cluster slot-stats orderby key-count limit x", limit),
            ("cluster slot-stats orderby key-count limit 0", limit),
            ("cluster slot-stats orderby key-count limit 16385", limit),
            ("cluster slot-stats orderby key-count limit 5 limit 1", twice),
            ("cluster slot-stats orderby key-count limit 1 asc desc", twice),
        ]);
        client.engine.settings.set_measurements(Measurements::SLOTS, false);
        client.check_replies(&[
            ("cluster slot-stats orderby cpu-usec", metric),
            ("cluster slot-stats slotsrange 5 5", "*1|*2|:5|*2|$9|key-count|:0"),
        ]);
        let disabled = "-ERR This instance has cluster support disabled";
        Client::new().check_replies(&[("cluster slot-stats foo 5", disabled)]);
    }

    #[test]
    fn slot_stats_are_sorted_as_requested() {
        let mut client = Client::in_cluster_with_databases(2);
        let row = |slot: u16, keys: u16| format!("*2|:{slot}|*2|$9|key-count|:{keys}");
        let most = format!("*3|{}|{}|{}", row(5, 3), row(0, 1), row(1, 0));
        let least = format!("*2|{}|{}", row(1, 0), row(2, 0));
        client.check_replies(&[
            ("mset {460}a 1 {460}b 1", "+OK"),
            ("select 1", "+OK"),
            ("mset {460}a 1", "+OK"),
            ("set {06S} 1", "+OK"),
            ("cluster slot-stats orderby KEY-COUNT limit 3", &most),
            ("cluster slot-stats orderby key-count asc limit 2", &least),
            ("cluster slot-stats slotsrange 5 5", &format!("*1|{}", row(5, 3))),
        ]);
        client.engine.settings.set_measurements(Measurements::SLOTS, true);
        client.check_replies(&[("exists {460}", ":0")]);
        let told = client.run_to_text("cluster slot-stats orderby network-bytes-in limit 1 desc");
        let costs = "$8|cpu-usec|:0|$16|network-bytes-in|:14|$17|network-bytes-out|:4|";
        assert_eq!(told.replace("\r\n", "|"), format!("*1|*2|:5|*8|$9|key-count|:3|{costs}"));
    }

    /// The expected counts are those of Valkey, except that Valkey counts replies within an EXEC more than once.
    #[test]
    fn bytes_are_counted_for_slot_of_first_key() {
        for (lines, expected) in [
            (&["set {460}a 1"][..], (32, 5)),
            (&["get {460}a"], (25, 5)),
            (&["mset {460}a 1 {460}b 2"], (52, 5)),
            // An error of the command itself counts; an error before execution does not.
            (&["get {460}list"], (28, 68)),
            (&["set {460}a 1 2 3"], (46, 19)),
            (&["get"], (0, 0)),
            (&["get {460}a {460}b"], (0, 0)),
            (&["mset {460}a 1 {06S} 2"], (0, 0)),
            (&["ping", "cluster countkeysinslot 5", "publish {460}a hello"], (0, 0)),
            // The request bytes include MULTI; the reply bytes exclude QUEUED.
            (&["multi", "set {460}a 1", "get {460}a", "exec"], (86, 16)),
            (&["multi", "ping", "set {460}a 1", "exec"], (61, 16)),
            (&["multi", "set {460}a 1", "discard"], (32, 0)),
            (&["multi", "ping", "exec"], (0, 0)),
            (&["spublish {460}a hello"], (41, 4)),
        ] {
            assert_eq!(slot_bytes_of_commands(lines), expected, "{lines:?}");
        }
    }

    /// The expected byte counts are those of Valkey.
    #[test]
    fn scripts_and_their_calls_are_counted_for_slots_of_their_keys() {
        const LIBRARY: &str = "function load \"#!lua name=lib\nserver.register_function('put', function(k, a) \
            return server.call('set', k[1] or a[1], 1) end)\"";
        for (lines, expected) in [
            // The first script calls no command, the others do. Only a script with flags is bound to one slot.
            (&["eval \"return 5\" 1 {460}a"][..], (47, 4)),
            (&["eval \"#!lua\nreturn redis.call('set', KEYS[1], 1)\" 1 {460}a"], (82, 5 + 5)),
            (&["eval \"return redis.call('set', KEYS[1], 1)\" 1 {460}a"], (0, 5)),
            (&["eval \"redis.call('set', KEYS[1], 1) return redis.call('get', KEYS[1])\" 1 {460}a"], (0, 12)),
            (&["eval \"return redis.call('ping')\" 1 {460}a"], (0, 0)),
            (&["eval \"redis.call('set', '{460}a', 1) redis.call('set', '{06S}b', 1)\" 0"], (0, 5)),
            (&["eval \"return redis.pcall('lpush', KEYS[1], 1)\" 1 {460}a"], (0, 4)),
            (&["eval \"error('x')\" 1 {460}a"], (50, 50)),
            (&["eval \"redis.call('spublish', KEYS[1], 'hello')\" 1 {460}a"], (0, 4)),
            (&[LIBRARY, "fcall put 1 {460}a"], (43, 5 + 5)),
            // A function without keys is bound to the slot of its first call.
            (&[LIBRARY, "fcall put 0 {460}a"], (43, 5 + 5)),
            // In a transaction with a script, the bytes of SET and EVAL are counted, but not those of MULTI and EXEC.
            (
                &["multi", "set {460}a 1", "eval \"return redis.call('get', KEYS[1])\" 1 {460}a", "exec"],
                (32 + 73, 7),
            ),
            (&["multi", "eval \"return 1\" 1 {460}a", "exec"], (47 + 29, 8)),
        ] {
            assert_eq!(slot_bytes_of_commands(lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn shard_message_bytes_are_counted_per_subscriber() {
        let mut client = client_with_slot_stats();
        let seen = client.engine.clients.connect(ConnectionInfo::default(), client.now, Box::new(|| ()));
        let publisher =
            std::mem::replace(&mut client.session, Session::for_client(seen, CommandOrigin::Client, true));
        client.run_to_text("ssubscribe {460}a");
        let subscribed = slot_cost(&client, 5);
        assert_eq!((subscribed.bytes_in, subscribed.bytes_out), (19, 37));
        let _subscriber = std::mem::replace(&mut client.session, publisher);
        client.run_to_text("spublish {460}a hello");
        assert_eq!(slot_cost(&client, 5).bytes_out - subscribed.bytes_out, 4 + 41);
    }

    #[test]
    fn blocked_command_is_counted_when_served() {
        let mut client = client_with_slot_stats();
        assert_eq!(client.run_status("blpop {460}q 0"), DispatchStatus::Blocked);
        let _waiter = client.detach_blocked_client();
        assert_eq!(slot_cost(&client, 5), SlotCost::default());
        client.run_to_text("rpush {460}q x");
        // The counts include the requests of both clients and the replies to both clients.
        let SlotCost { bytes_in, bytes_out, .. } = slot_cost(&client, 5);
        assert_eq!((bytes_in, bytes_out), (34 + 16, 4 + 23));
    }

    #[test]
    fn inline_request_counts_received_bytes() {
        let mut client = client_with_slot_stats();
        client.run_to_text("set {460}a 12345");
        assert_eq!(slot_cost(&client, 5).bytes_in, 18);
        client.call(&["set", "{460}a", "12345"]);
        assert_eq!(slot_cost(&client, 5).bytes_in, 18 + 36);
        // Quotes and additional blanks of an inline request do not count, as in Valkey.
        client.run_to_text("  set  {460}a \"1 345\" ");
        assert_eq!(slot_cost(&client, 5).bytes_in, 18 + 36 + 18);
        client.run_to_text("multi");
        client.run_to_text("set {460}a 12345");
        client.run_to_text("exec");
        assert_eq!(slot_cost(&client, 5).bytes_in, 18 + 36 + 18 + 15 + 18 + 6);
    }

    #[test]
    fn replica_counts_applied_commands_without_replies() {
        let mut client = client_with_slot_stats();
        let link = client.engine.clients.connect(ConnectionInfo::default(), client.now, Box::new(|| ()));
        client.session = Session::for_client(link, CommandOrigin::Master, true);
        client.call(&["set", "{460}a", "1"]);
        assert_eq!(slot_cost(&client, 5), SlotCost::default(), "a file that is read");
        client.engine.settings.set_node_flag(NodeFlags::REPLICA, true);
        client.call(&["set", "{460}a", "1"]);
        let SlotCost { bytes_in, bytes_out, .. } = slot_cost(&client, 5);
        assert_eq!((bytes_in, bytes_out), (32, 0));
        for words in [&["multi"][..], &["set", "{460}a", "1"], &["set", "{460}b", "1"], &["exec"]] {
            client.call(words);
        }
        let SlotCost { bytes_in, bytes_out, .. } = slot_cost(&client, 5);
        assert_eq!((bytes_in, bytes_out), (32 + 93, 0));
    }

    #[test]
    fn redirected_command_is_counted_as_rejected() {
        let mut client = Client::in_cluster();
        assert!(client.run_to_text("mget {460}a {06S}").starts_with("-CROSSSLOT"));
        client.run_to_text("mget {460}a {460}b");
        let counts = client.worker.stats.commands.iter();
        let counts = counts
            .map(|stats| (&stats.calls, &stats.rejected_calls))
            .map(|(calls, rejected)| (calls.load(Ordering::Relaxed), rejected.load(Ordering::Relaxed)));
        assert_eq!(counts.filter(|counts| *counts != (0, 0)).collect::<Vec<_>>(), [(1, 1)]);
    }

    #[test]
    fn replicated_bytes_are_counted_per_replica() {
        let mut client = client_with_slot_stats();
        client.log.set_replicas(2);
        let lines = ["set {460}a 1", "get {460}a", "flushall", "get {460}a", "multi", "incr {460}a", "exec"];
        let sent = lines.map(|line| {
            let before = slot_cost(&client, 5).bytes_out;
            client.run_to_text(line);
            slot_cost(&client, 5).bytes_out - before
        });
        let (set, incr) = (32, 26);
        assert_eq!(sent, [5 + 2 * set, 7, 0, 5, 0, 0, 8 + 2 * incr]);
    }

    #[test]
    fn slot_stats_are_off_by_default() {
        let mut client = Client::in_cluster();
        client.check_replies(&[
            ("set {460}a 1", "+OK"),
            ("multi", "+OK"),
            ("get {460}a", "+QUEUED"),
            ("exec", "*1|$1|1"),
        ]);
        assert_eq!(slot_cost(&client, 5), SlotCost::default());
    }
}
