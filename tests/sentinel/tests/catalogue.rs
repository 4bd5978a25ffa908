//! Checks that every SENTINEL command, event and flag of Valkey occurs in a scenario or query, or in a list of
//! exceptions with the reason.

use std::collections::BTreeSet;

use harness::{Node, Program, Reply};
use sentinel_tests::catalogue::{
    FAILOVER_EVENTS, INSTANCE_FLAGS, KNOWN_EVENTS, UNCOVERED_COMMANDS, UNCOVERED_EVENTS,
};
use sentinel_tests::queries::{EQUAL_REPLY_QUERIES, FIELD_QUERIES, SAME_FORMAT_QUERIES};
use sentinel_tests::scenario::{Scenario, ScenarioStep};
use sentinel_tests::scenarios::SCENARIO_GROUPS;

fn all_scenarios() -> impl Iterator<Item = &'static Scenario> {
    SCENARIO_GROUPS.iter().flat_map(|(_, _, stories)| stories.iter())
}

/// Starts a Valkey sentinel that monitors an unreachable master.
fn start_sentinel(valkey: &Program) -> Node {
    let mut node = Node::prepare(valkey, "");
    let file = node.folder().join("sentinel.conf");
    std::fs::write(&file, "sentinel monitor mymaster 127.0.0.1 1 1\n").expect("the folder can be written to");
    node.set_configuration(&file);
    node.add_options("--sentinel");
    node.launch();
    node
}

/// The commands in a HELP reply: the upper-case words at the start of each line.
fn commands_in_help(help: &Reply) -> Vec<String> {
    let lines = help.items().iter().map(Reply::text).filter(|line| !line.starts_with(' '));
    let is_name = |word: &&str| word.chars().all(|letter| letter.is_ascii_uppercase() || letter == '-');
    // The first line describes the general syntax and names no command.
    lines.skip(1).map(|line| line.split(' ').take_while(is_name).collect::<Vec<_>>().join(" ")).collect()
}

/// Whether a request uses this command.
fn uses_command(request: &str, command: &str) -> bool {
    let named = request.strip_prefix("SENTINEL ").and_then(|rest| rest.strip_prefix(command));
    named.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// All requests of the scenarios and queries, except those that Valkey's sentinel rejects.
fn covered_requests(node: &Node) -> Vec<&'static str> {
    let steps = all_scenarios().flat_map(|story| story.steps);
    let asked = steps.filter_map(|step| match step {
        ScenarioStep::CommandSentinel(request) | ScenarioStep::CommandAllSentinels(request) => Some(*request),
        _ => None,
    });
    let answered = |request: &&&str| request.starts_with("SENTINEL ") && !node.run(request).is_error("ERR");
    let answered = EQUAL_REPLY_QUERIES.iter().filter(answered);
    asked.chain(FIELD_QUERIES.iter().chain(SAME_FORMAT_QUERIES).chain(answered).copied()).collect()
}

#[test]
fn scenarios_cover_every_command() {
    let Some(valkey) = Program::valkey() else { return };
    let node = start_sentinel(&valkey);
    let commands = commands_in_help(&node.run("SENTINEL HELP"));
    assert!(commands.len() > 20, "{commands:?}");
    let covered_requests = covered_requests(&node);
    let left_out = |command: &str| UNCOVERED_COMMANDS.iter().any(|(name, _)| *name == command);
    let is_played = |command: &str| covered_requests.iter().any(|request| uses_command(request, command));
    let missing: Vec<&String> =
        commands.iter().filter(|command| is_played(command) == left_out(command)).collect();
    assert_eq!(missing, Vec::<&String>::new(), "neither played nor left out, or both");
    let stale: Vec<&str> = UNCOVERED_COMMANDS.iter().map(|(name, _)| *name).collect();
    assert!(stale.iter().all(|name| commands.iter().any(|command| command == name)), "{stale:?}");
}

#[test]
fn scenarios_cover_every_event() {
    let in_stories = all_scenarios().flat_map(|story| story.expected_lines);
    let named = in_stories.filter_map(|line| line.split(' ').nth(1));
    let told: BTreeSet<&str> = named.chain(FAILOVER_EVENTS).collect();
    let left_out: BTreeSet<&str> = UNCOVERED_EVENTS.iter().map(|(name, _)| *name).collect();
    let both = told.intersection(&left_out).collect::<Vec<_>>();
    assert!(both.is_empty(), "told and left out: {both:?}");
    let known: BTreeSet<&str> = told.union(&left_out).copied().collect();
    let all: BTreeSet<&str> = KNOWN_EVENTS.iter().copied().collect();
    let one_sided: Vec<&&str> = known.symmetric_difference(&all).collect();
    assert_eq!(one_sided, Vec::<&&str>::new(), "without a story, or not in the list");
}

#[test]
fn scenarios_cover_every_flag() {
    let shown = all_scenarios().flat_map(|story| story.expected_flags);
    let shown: BTreeSet<&str> = shown.flat_map(|(_, flags)| flags.split(',')).collect();
    assert_eq!(shown, INSTANCE_FLAGS.iter().copied().collect());
}
