//! Parses stories: commands that run on both servers, from a text file.
//!
//! A paragraph is a story and its lines are commands; arguments with spaces are in double quotes. Some lines have a
//! prefix:
//!
//! | line | meaning |
//! | --- | --- |
//! | `waits: BLPOP l 0` | another client sends the command; the story continues once it is blocked |
//! | `served` | waits for the reply to the client that has been blocked longest |
//! | `until 0: EXISTS k` | repeats the command until it gets this reply |
//! | `here: SET k v`, `there: ...` | effects that differ: in Redoubt, and in Valkey |
//! | `because: ...` | the reason for the difference |
//!
//! A story without a reason has equal effects on both servers.

use std::collections::VecDeque;

use harness::{Connection, Node, Reply, eventually};

use crate::effects::CommandWords;

/// A story, which is one paragraph of the text file.
pub(crate) struct Story {
    pub(crate) text: String,
    steps: Vec<StoryStep>,
    pub(crate) our_effects: Vec<CommandWords>,
    pub(crate) valkey_effects: Vec<CommandWords>,
    pub(crate) difference_reason: Option<String>,
}

enum StoryStep {
    Run(CommandWords),
    RunBlocked(CommandWords),
    ReadBlockedReply,
    RunUntil { reply: String, command: CommandWords },
}

impl Story {
    pub(crate) fn parse_all(text: &str) -> Vec<Self> {
        let paragraphs = text.split("\n\n").map(str::trim);
        paragraphs.filter(|paragraph| !paragraph.is_empty()).map(Self::parse).collect()
    }

    fn parse(text: &str) -> Self {
        let (mut steps, mut here, mut there, mut reason) = (Vec::new(), Vec::new(), Vec::new(), None);
        for line in text.lines() {
            match line.split_once(": ") {
                Some(("waits", command)) => steps.push(StoryStep::RunBlocked(split_words(command))),
                Some(("here", command)) => here.push(split_words(command)),
                Some(("there", command)) => there.push(split_words(command)),
                Some(("because", text)) => reason = Some(text.to_owned()),
                Some((until, command)) if until.starts_with("until ") => {
                    steps.push(StoryStep::RunUntil {
                        reply: until[6..].to_owned(),
                        command: split_words(command),
                    });
                }
                _ if line == "served" => steps.push(StoryStep::ReadBlockedReply),
                _ => steps.push(StoryStep::Run(split_words(line))),
            }
        }
        assert_eq!(reason.is_some(), here != there, "a difference has a reason: {text}");
        Self {
            text: text.to_owned(),
            steps,
            our_effects: here,
            valkey_effects: there,
            difference_reason: reason,
        }
    }

    pub(crate) fn commands(&self) -> impl Iterator<Item = &CommandWords> {
        self.steps.iter().filter_map(|step| match step {
            StoryStep::Run(command) | StoryStep::RunBlocked(command) => Some(command),
            StoryStep::ReadBlockedReply | StoryStep::RunUntil { .. } => None,
        })
    }

    /// Runs the story on a server.
    pub(crate) fn run_on(&self, node: &Node) {
        let mut connection = node.connect();
        let mut waiting: VecDeque<Connection> = VecDeque::new();
        for step in &self.steps {
            match step {
                StoryStep::Run(command) => {
                    connection.try_call(command).expect("it answers");
                }
                StoryStep::RunBlocked(command) => {
                    let mut client = node.connect();
                    client.send(command).expect("it is read");
                    waiting.push_back(client);
                    let count = waiting.len().to_string();
                    eventually("it waits", || {
                        (node.info("clients", "blocked_clients")? == count).then_some(())
                    });
                }
                StoryStep::ReadBlockedReply => {
                    let mut client = waiting.pop_front().expect("somebody waits");
                    client.read().expect("it is served");
                }
                StoryStep::RunUntil { reply, command } => eventually("the reply is that", || {
                    let came = connection.try_call(command).expect("it answers");
                    let came = if let Reply::Int(number) = came { number.to_string() } else { came.text() };
                    (came == *reply).then_some(())
                }),
            }
        }
    }
}

/// Splits a line into arguments; `\n` in quotes is a newline.
fn split_words(line: &str) -> CommandWords {
    let mut words = CommandWords::new();
    for (number, part) in line.split('"').enumerate() {
        if number % 2 == 1 {
            words.push(part.replace("\\n", "\n"));
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}
