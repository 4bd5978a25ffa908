//! Compares with Valkey the effects of commands in the replication stream and in the append-only file, word by word.
//! The same commands run on both servers, and a fake replica and a file reader collect their effects. The stories
//! contain the intended differences with their reasons.

#[path = "stream/effects.rs"]
mod effects;
#[path = "stream/story.rs"]
mod story;

use differential::{CommandCaller, ExecutedCommands};
use effects::{CommandWords, FakeReplica, read_files};
use harness::{Node, Program};
use story::Story;

const STORIES: &str = include_str!("stream/stories.txt");
const SERVER_OPTIONS: &str = "--save  --appendonly yes --appendfsync no --auto-aof-rewrite-percentage 0 --databases 16 \
                       --repl-diskless-sync no --enable-debug-command yes --maxmemory-policy allkeys-random";

/// A command whose effect separates the effects of two stories.
fn marker_command(number: usize) -> [String; 3] {
    ["SET".to_owned(), "mark".to_owned(), number.to_string()]
}

/// Returns the effects of each story in the stream, and those in the files.
fn record_effects(program: &Program, stories: &[Story]) -> (Vec<Vec<CommandWords>>, Vec<Vec<CommandWords>>) {
    let mut node = Node::start(program, SERVER_OPTIONS);
    let mut replica = FakeReplica::connect(&node);
    let mut streamed = Vec::new();
    let mark_now = |number| {
        let mut connection = node.connect();
        for database in [1, 0] {
            connection.call_line(&format!("SELECT {database}")).expect_ok();
            connection.call_line("FLUSHDB").expect_ok();
        }
        connection.try_call(&marker_command(number)).expect("it answers").expect_ok();
    };
    let until = |replica: &mut FakeReplica, number| {
        let mark = marker_command(number);
        replica.read_until(&mark.each_ref().map(String::as_str))
    };
    for (number, story) in stories.iter().enumerate() {
        mark_now(2 * number);
        until(&mut replica, 2 * number);
        story.run_on(&node);
        node.connect().try_call(&marker_command(2 * number + 1)).expect("it answers").expect_ok();
        streamed.push(until(&mut replica, 2 * number + 1).iter().map(normalize_effect).collect());
    }
    // After the server has exited, its files contain all acknowledged writes.
    let folder = node.folder().join("appendonlydir");
    node.connect().send(&["SHUTDOWN", "NOSAVE"]).expect("it is read");
    node.wait_for_exit_before_relaunch();
    let commands = read_files(&folder);
    let mut filed = Vec::new();
    for number in 0..stories.len() {
        let at = |number| {
            let mark = marker_command(number).to_vec();
            commands.iter().position(|words| *words == mark).expect("each mark is in the files")
        };
        filed.push(commands[at(2 * number) + 1..at(2 * number + 1)].iter().map(normalize_effect).collect());
    }
    (streamed, filed)
}

/// Removes parts that differ between runs: times, and entry ids made from the clock.
fn normalize_effect(words: &CommandWords) -> CommandWords {
    let is_time = |word: &str| word.len() == 13 && word.bytes().all(|byte| byte.is_ascii_digit());
    let word = |word: &String| match word.split_once('-') {
        _ if is_time(word) => "(time)".to_owned(),
        Some((time, _)) if is_time(time) => "(id)".to_owned(),
        _ => word.clone(),
    };
    words.iter().map(word).collect()
}

/// Removes SELECT and the effects that only the stream contains, so that the rest can be compared with the files.
fn file_effects(effects: &[CommandWords]) -> Vec<CommandWords> {
    effects
        .iter()
        .filter(|words| !["SELECT", "PUBLISH", "SPUBLISH"].contains(&words[0].as_str()))
        .cloned()
        .collect()
}

fn format_effects(effects: &[CommandWords]) -> String {
    effects.iter().map(|words| format!("\n      {}", words.join(" "))).collect()
}

/// The mismatch between the effects of a story, if there is one.
fn find_mismatch(story: &Story, ours: &[CommandWords], theirs: &[CommandWords]) -> Option<String> {
    let right = match story.difference_reason {
        Some(_) => ours == story.our_effects && theirs == story.valkey_effects,
        None => ours == theirs,
    };
    (!right).then(|| {
        format!("{}\n    here:{}\n    there:{}\n", story.text, format_effects(ours), format_effects(theirs))
    })
}

#[test]
fn replicated_effects_match_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let stories = Story::parse_all(STORIES);
    let (here, files_here) = record_effects(&Program::redoubt(), &stories);
    let (there, files_there) = record_effects(&valkey, &stories);
    let mut wrong = Vec::new();
    for (number, story) in stories.iter().enumerate() {
        wrong.extend(find_mismatch(story, &here[number], &there[number]));
        let (ours, theirs) = (&files_here[number], &files_there[number]);
        if file_effects(ours) != file_effects(&here[number]) {
            wrong.push(format!("In our file:\n{}{}", story.text, format_effects(ours)));
        }
        if file_effects(theirs) != file_effects(&there[number]) {
            wrong.push(format!("In Valkey's file:\n{}{}", story.text, format_effects(theirs)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn stories_cover_every_write_command() {
    let mut executed = ExecutedCommands::for_server(&Node::start(&Program::redoubt(), ""));
    for command in Story::parse_all(STORIES).iter().flat_map(Story::commands) {
        let words: Vec<Vec<u8>> = command.iter().map(|word| word.clone().into_bytes()).collect();
        executed.add(CommandCaller::Master, &words);
    }
    let missing_commands = executed.missing_commands(CommandCaller::Master);
    assert!(missing_commands.is_empty(), "{}", missing_commands.join("\n"));
}
