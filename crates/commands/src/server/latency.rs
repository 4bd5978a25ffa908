//! LATENCY: the latency monitor and command histograms.

use std::fmt::Write as _;

use engine::{
    Command, CommandError, Context, Distribution, Flags, Group, LatencyEvent, RegisteredCommand, quote,
};

use crate::help::reply_help;

const ADMIN_FLAGS: Flags = Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE);
const LATENCY_TIPS: &[&str] =
    &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"];
/// Size of the graph of LATENCY GRAPH, in characters.
const GRAPH_WIDTH: usize = 80;
const GRAPH_HEIGHT: u64 = 4;

const fn new_command(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Server, since, arity, summary).flags(ADMIN_FLAGS).tips(LATENCY_TIPS)
}

pub(crate) const COMMANDS: &[Command] =
    &[Command::new("latency", Group::Server, "2.8.13", -2, "Reports slow events and commands.")
        .subcommands(LATENCY_SUBCOMMANDS)];

const LATENCY_SUBCOMMANDS: &[Command] = &[
    new_command("doctor", "2.8.13", 2, "Returns a report on recorded latency with advice.").run(doctor),
    new_command("graph", "2.8.13", 3, "Draws the samples of an event as a graph.").run(graph),
    Command::new("help", Group::Server, "2.8.13", 2, "Lists the subcommands.")
        .flags(Flags::LOADING.union(Flags::STALE))
        .run(help),
    new_command("histogram", "7.0.0", -2, "Returns latency histograms of commands.").run(histogram),
    new_command("history", "2.8.13", 3, "Returns the samples of an event.").run(reply_event_history),
    new_command("latest", "2.8.13", 2, "Returns the last sample of every event.").run(reply_latest_samples),
    new_command("reset", "2.8.13", -2, "Resets recorded events.")
        .tips(&["request_policy:all_nodes", "response_policy:agg_sum"])
        .run(reset),
];

fn reply_latest_samples(context: &mut Context<'_>) -> Result<(), CommandError> {
    let events = context.engine.diagnostics.latency.events();
    let reply = &mut context.reply;
    reply.array(events.len());
    for (name, event) in events {
        let (at, millis) = event.samples.back().copied().unwrap_or_default();
        reply.array(6);
        reply.bulk(name.as_bytes());
        let numbers = [millis, event.max_millis, event.total_millis, event.count].map(|number| number as i64);
        reply.integer(at);
        numbers.into_iter().for_each(|number| reply.integer(number));
    }
    Ok(())
}

fn reply_event_history(context: &mut Context<'_>) -> Result<(), CommandError> {
    let event = context.engine.diagnostics.latency.event(context.arg(2)).unwrap_or_default();
    context.reply.array(event.samples.len());
    for (at, millis) in event.samples {
        context.reply.array(2);
        context.reply.integer(at);
        context.reply.integer(millis as i64);
    }
    Ok(())
}

/// Handles `LATENCY RESET [event ...]`.
fn reset(context: &mut Context<'_>) -> Result<(), CommandError> {
    let names: Vec<&[u8]> = context.args.skip(2).iter().collect();
    let count = context.engine.diagnostics.latency.reset(&names);
    context.reply.integer(count as i64);
    Ok(())
}

/// Handles `LATENCY HISTOGRAM [command ...]`.
fn histogram(context: &mut Context<'_>) -> Result<(), CommandError> {
    let registry = context.commands.registry();
    let chosen: Vec<&RegisteredCommand> = if context.args.len() == 2 {
        registry.commands().to_vec()
    } else {
        // A container command stands for all of its subcommands.
        let named = context.args.skip(2).iter().filter_map(|name| registry.find_by_full_name(name));
        named.flat_map(|entry| std::iter::once(entry).chain(entry.subcommands().iter().copied())).collect()
    };
    let mut called: Vec<(&str, Distribution)> = Vec::new();
    for entry in chosen {
        let times = context.engine.diagnostics.command_latency(entry.index);
        if times.calls() > 0 {
            called.push((&entry.full_name, times));
        }
    }
    let reply = &mut context.reply;
    reply.map(called.len());
    for (name, times) in called {
        let points = times.cumulative_counts();
        reply.bulk(name.as_bytes());
        reply.map(2);
        reply.bulk(b"calls");
        reply.integer(times.calls() as i64);
        reply.bulk(b"histogram_usec");
        reply.map(points.len());
        for (micros, calls) in points {
            reply.integer(micros as i64);
            reply.integer(calls as i64);
        }
    }
    Ok(())
}

/// Handles `LATENCY GRAPH event`.
fn graph(context: &mut Context<'_>) -> Result<(), CommandError> {
    let name = context.arg(2);
    let event = context.engine.diagnostics.latency.event(name).filter(|event| !event.samples.is_empty());
    let Some(event) = event else {
        let text = format!("ERR No samples available for event '{}'", quote(name, name.len()));
        return Err(CommandError::Text(text.into()));
    };
    let text = draw_graph(&String::from_utf8_lossy(name), &event, context.now.secs());
    context.reply.verbatim(b"txt", text.as_bytes());
    Ok(())
}

/// Draws one column per sample: the height is the latency, the label below is the sample's age.
fn draw_graph(name: &str, event: &LatencyEvent, now: i64) -> String {
    let skipped = event.samples.len().saturating_sub(GRAPH_WIDTH);
    let samples: Vec<(i64, u64)> = event.samples.iter().skip(skipped).copied().collect();
    let low = samples.iter().map(|(_, millis)| *millis).min().unwrap_or(0);
    let high = samples.iter().map(|(_, millis)| *millis).max().unwrap_or(0);
    let mut text = format!("{name} - high {high} ms, low {low} ms (all time high {} ms)\n", event.max_millis);
    text.push_str(&"-".repeat(GRAPH_WIDTH));
    text.push('\n');
    for row in (0..GRAPH_HEIGHT).rev() {
        for (_, millis) in &samples {
            let height = (millis - low) * (GRAPH_HEIGHT - 1) / (high - low).max(1);
            text.push(match height.cmp(&row) {
                std::cmp::Ordering::Less => ' ',
                std::cmp::Ordering::Equal => '_',
                std::cmp::Ordering::Greater => '|',
            });
        }
        text.push('\n');
    }
    text.push('\n');
    let labels: Vec<Vec<char>> =
        samples.iter().map(|(at, _)| format_age(now - at).chars().collect()).collect();
    for line in 0..labels.iter().map(Vec::len).max().unwrap_or(0) {
        text.extend(labels.iter().map(|label| label.get(line).copied().unwrap_or(' ')));
        text.push('\n');
    }
    text
}

fn format_age(seconds: i64) -> String {
    match seconds.max(0) {
        seconds @ ..60 => format!("{seconds}s"),
        seconds @ ..3600 => format!("{}m", seconds / 60),
        seconds @ ..86400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86400),
    }
}

fn doctor(context: &mut Context<'_>) -> Result<(), CommandError> {
    let monitor = &context.engine.diagnostics.latency;
    let events = monitor.events();
    let mut text = String::new();
    if !monitor.is_enabled() && events.is_empty() {
        text.push_str(
            "Latency monitoring is off. \"CONFIG SET latency-monitor-threshold <milliseconds>\" turns it on.\n",
        );
    } else if events.is_empty() {
        text.push_str("Nothing took longer than latency-monitor-threshold.\n");
    }
    for (number, (name, event)) in events.iter().enumerate() {
        let count = event.samples.len() as u64;
        let mean = event.samples.iter().map(|(_, millis)| millis).sum::<u64>() / count.max(1);
        let _ = writeln!(
            text,
            "{}. {name}: {count} latency spikes (average {mean}ms). Worst all time event {}ms.",
            number + 1,
            event.max_millis
        );
    }
    let advice = [
        ("command", "A slow command keeps its own thread and its own slots busy: see SLOWLOG GET."),
        (
            "background-command",
            "Slow commands ran in the background: only who wants the same slots waits for them.",
        ),
        ("fast-command", "Fast commands were slow: the machine may lack CPU or memory."),
        (
            "slot-wait",
            "Commands waited for slots that others held: see the slow ones of the same keys in SLOWLOG.",
        ),
        ("expire-cycle", "Very many keys expire at the same time."),
    ];
    for (_, line) in advice.iter().filter(|(name, _)| events.contains_key(name)) {
        let _ = writeln!(text, "- {line}");
    }
    context.reply.verbatim(b"txt", text.as_bytes());
    Ok(())
}

fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "LATENCY",
        &[
            "DOCTOR",
            "    Return a human readable latency analysis report.",
            "GRAPH <event>",
            "    Return an ASCII latency graph for the <event> class.",
            "HISTORY <event>",
            "    Return time-latency samples for the <event> class.",
            "LATEST",
            "    Return the latest latency samples for all events.",
            "RESET [<event> ...]",
            "    Reset latency data of one or more <event> classes.",
            "    (default: reset all data for all event classes)",
            "HISTOGRAM [COMMAND ...]",
            "    Return a cumulative distribution of latencies in the format of a histogram for the specified \
             command names.",
            "    If no commands are specified then all histograms are replied.",
        ],
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use clock::Millis;

    use crate::testing::Client;

    #[test]
    fn latency_events_are_reported_in_every_format() {
        let mut client = Client::new();
        assert!(client.run_to_text("latency doctor").contains("Latency monitoring is off"));
        client.check_replies(&[
            ("latency latest", "*0"),
            ("latency history command", "*0"),
            ("latency graph command", "-ERR No samples available for event 'command'"),
            ("latency reset", ":0"),
        ]);
        client.engine.diagnostics.latency.configure(5);
        for (at, millis) in [(1_699_999_990_000, 7), (1_699_999_995_000, 20), (1_699_999_999_000, 10)] {
            client.engine.diagnostics.latency.record_if_slow("command", Millis(at), millis * 1_000_000);
        }
        client.check_replies(&[
            ("latency latest", "*1|*6|$7|command|:1699999999|:10|:20|:37|:3"),
            ("latency history COMMAND", "*3|*2|:1699999990|:7|*2|:1699999995|:20|*2|:1699999999|:10"),
        ]);
        let graph = client.run_to_text("latency graph command");
        assert!(graph.contains("command - high 20 ms, low 7 ms (all time high 20 ms)\n"), "{graph}");
        assert!(graph.contains("\n _ \n | \n | \n_|_\n\n151\n0ss\ns"), "{graph}");
        let doctor = client.run_to_text("latency doctor");
        assert!(
            doctor.contains("1. command: 3 latency spikes (average 12ms). Worst all time event 20ms."),
            "{doctor}"
        );
        client.check_replies(&[("latency reset nosuch", ":0"), ("latency reset command", ":1")]);
    }

    #[test]
    fn latency_histogram_is_kept_per_command() {
        let mut client = Client::new();
        client.check_replies(&[
            ("set k v", "+OK"),
            ("get k", "$1|v"),
            ("get k", "$1|v"),
            ("latency histogram get nosuch", "*2|$3|get|*4|$5|calls|:2|$14|histogram_usec|*2|:1|:2"),
        ]);
        client.engine.settings.set_measurements(engine::Measurements::LATENCY, false);
        client.check_replies(&[("get k", "$1|v"), ("latency histogram incr", "*0")]);
        assert!(client.run_to_text("latency histogram get").contains(":2\r\n$14"));
    }
}
