//! HOTKEYS, in two forms: Redis 8.6's sessions between START and STOP, and Valkey 9.2's windows, which `hotkeys-top-k`
//! enables.
//!
//! GET reports the session if there is one, else the last window. The behaviour follows Redis 8.6 and the documentation
//! of Valkey 9.2.

use std::sync::Arc;

use engine::{Command, CommandError, Context, Flags, Group, HotKeyWindow, HotKeysReport, HotKeysRequest};
use resp::Writer;
use slot_routing::{SLOT_COUNT, Slot};

use crate::help::reply_help;
use crate::rows::HELP_FLAGS;

const ADMIN_FLAGS: Flags = Flags::ADMIN.union(Flags::NOSCRIPT);
const SPECIAL_POLICY_TIPS: &[&str] = &["request_policy:special"];

const fn new_command(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Server, since, arity, summary).flags(ADMIN_FLAGS).tips(SPECIAL_POLICY_TIPS)
}

pub(crate) const COMMANDS: &[Command] =
    &[Command::new("hotkeys", Group::Server, "8.6.0", -2, "Tracks the most expensive keys.")
        .subcommands(SUBCOMMANDS)];

const SUBCOMMANDS: &[Command] = &[
    new_command("get", "8.6.0", 2, "Returns the most expensive keys of the session.")
        .tips(&["nondeterministic_output", "request_policy:special", "response_policy:special"])
        .run(get),
    Command::new("help", Group::Server, "8.6.1", 2, "Describes the subcommands.").flags(HELP_FLAGS).run(help),
    new_command("reset", "8.6.0", 2, "Discards the counters.").run(reset),
    new_command("start", "8.6.0", -2, "Starts counting the cost of keys.").run(start),
    new_command("stop", "8.6.0", 2, "Stops counting.").run(stop),
];

/// Maximum duration of a session in seconds.
const MAX_DURATION_SECONDS: i64 = 1_000_000;
const MAX_KEYS: i64 = 64;
const DEFAULT_KEY_COUNT: usize = 10;

/// Parses METRICS, which must come first. Returns the index of the next argument.
fn parse_metrics(context: &Context<'_>, request: &mut HotKeysRequest) -> Result<usize, CommandError> {
    let args = context.args;
    if args.len() < 4 || !context.arg(2).eq_ignore_ascii_case(b"metrics") {
        return Err(CommandError::text("ERR METRICS parameter is required"));
    }
    let count = context.integer_arg(3).ok().filter(|count| (1..=2).contains(count));
    let count = count.ok_or(CommandError::text("ERR METRICS count must be > 0 and <= 2"))? as usize;
    let named: Vec<&[u8]> = args.iter().skip(4).take(count).collect();
    for word in &named {
        let (metric, twice) = match () {
            () if word.eq_ignore_ascii_case(b"cpu") => {
                (&mut request.measures_cpu, "ERR METRICS CPU defined more than once!")
            }
            () if word.eq_ignore_ascii_case(b"net") => {
                (&mut request.measures_net, "ERR METRICS NET defined more than once!")
            }
            // As in Redis, unknown metrics are ignored if at least one is known.
            () => continue,
        };
        if std::mem::replace(metric, true) {
            return Err(CommandError::text(twice));
        }
    }
    if named.len() < count {
        return Err(CommandError::text("ERR METRICS count does not match number of metric types provided"));
    }
    if !(request.measures_cpu || request.measures_net) {
        return Err(CommandError::text("ERR METRICS no valid metrics passed. Supported: CPU|NET"));
    }
    Ok(4 + count)
}

/// Parses the slots after SLOTS. Returns them and the index of the next argument.
fn parse_slots(context: &Context<'_>, index: usize) -> Result<(Vec<Slot>, usize), CommandError> {
    if context.engine.topology.is_none() {
        return Err(CommandError::text("ERR SLOTS parameter cannot be used in non-cluster mode"));
    }
    let rest = context.args.len() - index - 1;
    let count = context.integer_arg(index).ok().and_then(|count| usize::try_from(count).ok());
    let count = count.filter(|count| (1..=SLOT_COUNT).contains(count) && *count <= rest);
    let count = count.ok_or(CommandError::text("ERR SLOTS count must match the number of slots"))?;
    let slot = |index: usize| {
        let number = context.integer_arg(index).ok().and_then(|number| u16::try_from(number).ok());
        number.and_then(Slot::new).ok_or(CommandError::text("ERR Invalid or out of range slot"))
    };
    let mut slots = (index + 1..=index + count).map(slot).collect::<Result<Vec<_>, _>>()?;
    slots.sort_unstable();
    let all = slots.len();
    slots.dedup();
    if slots.len() < all {
        return Err(CommandError::text("ERR duplicate slot number"));
    }
    Ok((slots, index + count + 1))
}

/// Handles `HOTKEYS START METRICS count [CPU] [NET] [COUNT k] [DURATION s] [SAMPLE ratio] [SLOTS count slot [slot
/// ...]]`.
fn start(context: &mut Context<'_>) -> Result<(), CommandError> {
    const ALREADY_ACTIVE_ERROR: CommandError =
        CommandError::text("ERR hotkey tracking session already in progress");
    let hot_keys = &context.engine.diagnostics.hot_keys;
    if hot_keys.is_active(context.now) {
        return Err(ALREADY_ACTIVE_ERROR);
    }
    let mut request = HotKeysRequest {
        measures_cpu: false,
        measures_net: false,
        top_k: DEFAULT_KEY_COUNT,
        duration_secs: 0,
        sample_ratio: 1,
        slots: Vec::new(),
    };
    let mut index = parse_metrics(context, &mut request)?;
    while let Some(word) = context.args.get(index) {
        if index + 1 == context.args.len() {
            return Err(CommandError::Syntax);
        }
        let within = |most: i64, text: &'static str| {
            let value = context.integer_arg(index + 1).ok().filter(|value| (1..=most).contains(value));
            value.map(i64::unsigned_abs).ok_or(CommandError::text(text))
        };
        if word.eq_ignore_ascii_case(b"slots") {
            (request.slots, index) = parse_slots(context, index + 1)?;
            continue;
        }
        match () {
            () if word.eq_ignore_ascii_case(b"count") => {
                request.top_k = within(MAX_KEYS, "ERR COUNT must be between 1 and 64")? as usize;
            }
            () if word.eq_ignore_ascii_case(b"duration") => {
                request.duration_secs =
                    within(MAX_DURATION_SECONDS, "ERR DURATION must be between 1 and 1000000")?;
            }
            () if word.eq_ignore_ascii_case(b"sample") => {
                request.sample_ratio = within(i64::from(i32::MAX), "ERR SAMPLE ratio must be positive")?;
            }
            () => return Err(CommandError::Syntax),
        }
        index += 2;
    }
    hot_keys.start(&context.engine.settings, request, context.now).map_err(|_| ALREADY_ACTIVE_ERROR)?;
    context.reply.ok();
    Ok(())
}

fn stop(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.engine.diagnostics.hot_keys.stop(&context.engine.settings, context.now) {
        context.reply.ok();
    } else {
        context.reply.null();
    }
    Ok(())
}

fn reset(context: &mut Context<'_>) -> Result<(), CommandError> {
    const STILL_ACTIVE_ERROR: CommandError =
        CommandError::text("ERR hotkey tracking session in progress, stop tracking first");
    context.engine.diagnostics.hot_keys.reset(context.now).map_err(|_| STILL_ACTIVE_ERROR)?;
    context.reply.ok();
    Ok(())
}

fn get(context: &mut Context<'_>) -> Result<(), CommandError> {
    let hot_keys = &context.engine.diagnostics.hot_keys;
    match (hot_keys.report(context.now), hot_keys.last_window(context.now)) {
        (Some(report), _) => reply_report(&mut context.reply, &report),
        (None, Some(window)) => reply_window(&mut context.reply, &window),
        (None, None) => context.reply.null(),
    }
    Ok(())
}

fn reply_named_number(reply: &mut Writer<'_>, name: &str, number: u64) {
    reply.bulk(name.as_bytes());
    reply.integer(i64::try_from(number).unwrap_or(i64::MAX));
}

fn reply_report(reply: &mut Writer<'_>, report: &HotKeysReport) {
    const NANOS_PER_MICRO: u64 = 1000;
    const NANOS_PER_MILLI: u64 = 1_000_000;
    let request = &report.request;
    let by_slot = !request.slots.is_empty();
    let sampled = by_slot && request.sample_ratio > 1;
    let fields = 7
        + if request.measures_cpu { 3 + usize::from(by_slot) + usize::from(sampled) } else { 0 }
        + if request.measures_net { 2 + usize::from(by_slot) + usize::from(sampled) } else { 0 };
    reply.array(1);
    reply.map(fields);
    reply_named_number(reply, "tracking-active", u64::from(report.is_active));
    reply_named_number(reply, "sample-ratio", request.sample_ratio);
    reply.bulk(b"selected-slots");
    reply_slots(reply, &request.slots);
    if sampled && request.measures_cpu {
        reply_named_number(
            reply,
            "sampled-commands-selected-slots-us",
            report.sampled_cost.nanos / NANOS_PER_MICRO,
        );
    }
    if by_slot && request.measures_cpu {
        reply_named_number(
            reply,
            "all-commands-selected-slots-us",
            report.selected_cost.nanos / NANOS_PER_MICRO,
        );
    }
    reply_named_number(reply, "all-commands-all-slots-us", report.total_cost.nanos / NANOS_PER_MICRO);
    if sampled && request.measures_net {
        reply_named_number(reply, "net-bytes-sampled-commands-selected-slots", report.sampled_cost.bytes);
    }
    if by_slot && request.measures_net {
        reply_named_number(reply, "net-bytes-all-commands-selected-slots", report.selected_cost.bytes);
    }
    reply_named_number(reply, "net-bytes-all-commands-all-slots", report.total_cost.bytes);
    reply_named_number(reply, "collection-start-time-unix-ms", report.started_at.0.max(0).unsigned_abs());
    reply_named_number(reply, "collection-duration-ms", report.duration_millis);
    if request.measures_cpu {
        // User and system time are not distinguished, so the total time is reported as user time.
        reply_named_number(reply, "total-cpu-time-user-ms", report.total_cost.nanos / NANOS_PER_MILLI);
        reply_named_number(reply, "total-cpu-time-sys-ms", 0);
    }
    if request.measures_net {
        reply_named_number(reply, "total-net-bytes", report.sampled_cost.bytes);
    }
    if request.measures_cpu {
        reply.bulk(b"by-cpu-time-us");
        reply_keys(reply, &report.top_by_nanos, NANOS_PER_MICRO);
    }
    if request.measures_net {
        reply.bulk(b"by-net-bytes");
        reply_keys(reply, &report.top_by_bytes, 1);
    }
}

/// Replies with ranges of slots. A range is an array of its first and last slot; a single slot is an array of one.
fn reply_slots(reply: &mut Writer<'_>, slots: &[Slot]) {
    if slots.is_empty() {
        reply.array(1);
        reply.array(2);
        reply.integer(0);
        reply.integer(SLOT_COUNT as i64 - 1);
        return;
    }
    let ranges: Vec<&[Slot]> =
        slots.chunk_by(|before, after| before.number() + 1 == after.number()).collect();
    reply.array(ranges.len());
    for range in ranges {
        reply.array(range.len().min(2));
        reply.integer(i64::from(range[0].number()));
        if let [_, .., last] = range {
            reply.integer(i64::from(last.number()));
        }
    }
}

fn reply_keys(reply: &mut Writer<'_>, keys: &[(Arc<[u8]>, u64)], divisor: u64) {
    reply.array(2 * keys.len());
    for (key, cost) in keys {
        reply.bulk(key);
        reply.integer(i64::try_from(cost / divisor).unwrap_or(i64::MAX));
    }
}

fn reply_window(reply: &mut Writer<'_>, window: &HotKeyWindow) {
    reply.array(window.keys.len());
    for (db, key, a_second) in &window.keys {
        reply.map(3);
        reply.bulk(b"key");
        reply.bulk(key);
        reply_named_number(reply, "db", u64::from(*db));
        reply_named_number(reply, "qps", *a_second);
    }
}

fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "HOTKEYS",
        &[
            "GET",
            "    Tells which keys cost the most, of the session or of the last window.",
            "RESET",
            "    Forgets what was counted. A session must have been stopped.",
            "START METRICS <count> [CPU] [NET] [option]",
            "    Begins to count the time and the bytes that keys cost. Options are:",
            "    * COUNT <k>",
            "      How many keys are told (10).",
            "    * DURATION <seconds>",
            "      When counting ends by itself.",
            "    * SAMPLE <ratio>",
            "      One of so many commands is counted (1).",
            "    * SLOTS <count> <slot> [<slot> ...]",
            "      Counts keys of these slots alone, in cluster mode.",
            "STOP",
            "    Ends counting.",
        ],
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use engine::HotKeyWindowSettings;

    use crate::testing::Client;

    #[test]
    fn hotkeys_session_counts_between_start_and_stop() {
        let active = "-ERR hotkey tracking session already in progress";
        let mut client = Client::new();
        client.check_replies(&[
            ("hotkeys get", "$-1"),
            ("hotkeys stop", "$-1"),
            ("hotkeys reset", "+OK"),
            ("hotkeys start metrics 1 net count 2 duration 10", "+OK"),
            ("hotkeys start metrics 1 net", active),
            ("hotkeys start", active),
            ("set a 1", "+OK"),
            ("mset b 1 c 1", "+OK"),
            ("get a", "$1|1"),
            ("hotkeys reset", "-ERR hotkey tracking session in progress, stop tracking first"),
        ]);
        let shown = client.run_to_table_text("hotkeys get");
        assert!(shown.starts_with("*1|*18|$15|tracking-active|:1|$12|sample-ratio|:1|"), "{shown}");
        assert!(shown.contains("|$14|selected-slots|*1|*2|:0|:16383|"), "{shown}");
        let (_, keys) = shown.split_once("|$12|by-net-bytes|").expect("bytes were counted");
        assert!(keys.starts_with("*4|$1|a|:"), "{keys}");
        client.now.0 += 10_000;
        assert!(client.run_to_table_text("hotkeys get").contains("|collection-duration-ms|:10000|"));
        client.check_replies(&[("hotkeys stop", "$-1"), ("hotkeys reset", "+OK"), ("hotkeys get", "$-1")]);
    }

    #[test]
    fn hotkeys_start_validates_arguments() {
        let (required, count) =
            ("-ERR METRICS parameter is required", "-ERR METRICS count must be > 0 and <= 2");
        let differs = "-ERR METRICS count does not match number of metric types provided";
        Client::new().check_replies(&[
            ("hotkeys start", required),
            ("hotkeys start metrics", required),
            ("hotkeys start count 5 metrics 1 cpu", required),
            ("hotkeys start metrics 1", differs),
            ("hotkeys start metrics 2 cpu", differs),
            ("hotkeys start metrics 0 cpu", count),
            ("hotkeys start metrics x cpu", count),
            ("hotkeys start metrics 3 cpu net", count),
            ("hotkeys start metrics 1 foo", "-ERR METRICS no valid metrics passed. Supported: CPU|NET"),
            ("hotkeys start metrics 2 cpu cpu", "-ERR METRICS CPU defined more than once!"),
            ("hotkeys start metrics 1 cpu count 0", "-ERR COUNT must be between 1 and 64"),
            ("hotkeys start metrics 1 cpu count 65", "-ERR COUNT must be between 1 and 64"),
            ("hotkeys start metrics 1 cpu count", "-ERR syntax error"),
            ("hotkeys start metrics 1 cpu duration 1000001", "-ERR DURATION must be between 1 and 1000000"),
            ("hotkeys start metrics 1 cpu sample 0", "-ERR SAMPLE ratio must be positive"),
            ("hotkeys start metrics 1 cpu foo", "-ERR syntax error"),
            ("hotkeys start metrics 1 cpu metrics 1 net", "-ERR syntax error"),
            (
                "hotkeys start metrics 1 cpu slots 1 5",
                "-ERR SLOTS parameter cannot be used in non-cluster mode",
            ),
        ]);
    }

    #[test]
    fn hotkeys_selects_slots_in_cluster_mode() {
        let mut client = Client::in_cluster();
        client.check_replies(&[
            ("hotkeys start metrics 1 net slots 1 16384", "-ERR Invalid or out of range slot"),
            ("hotkeys start metrics 1 net slots 2 5 5", "-ERR duplicate slot number"),
            ("hotkeys start metrics 1 net slots 4 5 7 6 15495", "+OK"),
            ("set a 1", "+OK"),
            ("set b 1", "+OK"),
        ]);
        let shown = client.run_to_table_text("hotkeys get");
        assert!(shown.contains("|selected-slots|*2|*2|:5|:7|*1|:15495|"), "{shown}");
        assert!(shown.contains("|by-net-bytes|*2|$1|a|:"), "{shown}");
    }

    #[test]
    fn hotkey_windows_count_accesses() {
        let mut client = Client::new();
        let windows = HotKeyWindowSettings { top_k: 2, sampling_percent: 100, window_secs: 1 };
        client.engine.diagnostics.hot_keys.configure(&client.engine.settings, windows);
        client.check_replies(&[("hotkeys get", "*0")]);
        for _ in 0..5 {
            client.check_replies(&[("get missing", "$-1"), ("exists missing", ":0")]);
            client.call(&["set", "there", "1"]);
            client.call(&["object", "encoding", "there"]);
        }
        client.now.0 += 1000;
        let shown = "*2|*6|$3|key|$7|missing|$2|db|:0|$3|qps|:10|*6|$3|key|$5|there|$2|db|:0|$3|qps|:5";
        client.check_replies(&[("hotkeys get", shown), ("flushall", "+OK"), ("hotkeys get", "*0")]);
    }
}
