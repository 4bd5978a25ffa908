//! Runs the server under test and the reference server side by side.

use std::cell::RefCell;
use std::fmt;
use std::io;

use harness::{Connection, Node, Program, Reply};

use crate::callers::ExecutedCommands;
use crate::compare::CommandQueue;
use crate::data::ServerData;
use crate::execution_mode::called_command;
use crate::{Command, Protocol, format_command};

/// The slow log must stay empty, however slow the machine is. The backlog size is Valkey's default, ten times that of
/// Redis 7.0.
const SERVER_OPTIONS: &str = "--save  --appendonly no --enable-debug-command yes --repl-backlog-size 1mb \
                       --slowlog-log-slower-than -1";

/// The number of pipelined commands, small enough that neither client nor server blocks on a full socket buffer.
const PIPELINE_SIZE: usize = 50;
/// The maximum number of bytes of a reply that a report shows.
const MAX_SHOWN_BYTES: usize = 400;

/// A reply that differs between the two servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyDifference {
    /// The commands of the sequence up to the one whose reply differs.
    pub commands: Vec<Command>,
    /// The reply of the server under test; `None` if it closed the connection.
    pub ours: Option<Reply>,
    /// The reply of the reference server; `None` if it closed the connection.
    pub theirs: Option<Reply>,
}

impl ReplyDifference {
    /// The command whose replies differ, which is the last one.
    ///
    /// # Panics
    /// Never, because a difference has at least one command.
    #[must_use]
    pub fn last_command(&self) -> &Command {
        self.commands.last().expect("a difference has a command")
    }

    /// The name of the command whose replies differ; for a script, that of the command that it called.
    #[must_use]
    pub fn command_name(&self) -> String {
        let name = called_command(self.last_command())
            .first()
            .map(|word| String::from_utf8_lossy(word).to_uppercase());
        name.unwrap_or_default()
    }

    /// A key by which differences with probably the same cause are grouped: the command, and the replies without
    /// numbers and names.
    #[must_use]
    pub fn group_key(&self) -> String {
        let kind = |reply: &Option<Reply>| match reply {
            Some(Reply::Error(text)) => text
                .split_whitespace()
                .filter(|word| word.chars().all(char::is_alphabetic))
                .collect::<Vec<_>>()
                .join(" "),
            Some(reply) => format!("{:?}", std::mem::discriminant(reply)),
            None => "closed".to_owned(),
        };
        format!("{} {} {}", self.command_name(), kind(&self.ours), kind(&self.theirs))
    }
}

impl fmt::Display for ReplyDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for command in &self.commands {
            writeln!(f, "  {}", shorten(&format_command(command)))?;
        }
        let show = |reply: &Option<Reply>| match reply {
            Some(reply) => shorten(&format!("{reply:?}")),
            None => "the link is closed".to_owned(),
        };
        writeln!(f, "    here   {}", show(&self.ours))?;
        writeln!(f, "    there  {}", show(&self.theirs))
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_BYTES) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The server under test and the reference server, both running.
#[derive(Debug)]
pub struct ServerPair {
    ours: Node,
    theirs: Node,
    executed_commands: RefCell<ExecutedCommands>,
}

impl ServerPair {
    /// Starts both servers.
    ///
    /// # Panics
    /// A server does not start.
    #[must_use]
    pub fn start(ours: &Program, theirs: &Program) -> Self {
        let (ours, theirs) = (start_server(ours), start_server(theirs));
        let ran = RefCell::new(ExecutedCommands::for_server(&ours));
        Self { ours, theirs, executed_commands: ran }
    }

    /// Makes the server under test run every command on a background worker.
    ///
    /// # Panics
    /// The server refuses the setting.
    #[must_use]
    pub fn with_background_workers(self) -> Self {
        self.ours.run("CONFIG SET long-command-threshold 0").expect_ok();
        self
    }

    /// The commands that were executed since the start, per caller.
    #[must_use]
    pub fn into_executed_commands(self) -> ExecutedCommands {
        self.executed_commands.into_inner()
    }

    /// Serialized values for RESTORE, made by the reference server: integers of every width, short, long and compressed
    /// strings, hashes in both encodings, and sets.
    ///
    /// # Panics
    /// The reference server does not reply.
    #[must_use]
    pub fn dump_payloads(&self) -> Vec<Vec<u8>> {
        let mut connection = self.theirs.connect();
        let values =
            ["", "1", "-300", "70000", "12345678901", "short", &"long and repeated ".repeat(40), "3.14"];
        let mut dumped = |make: &[&str]| {
            connection.call(&["DEL", "payload"]);
            connection.call(make);
            match connection.call_line("DUMP payload") {
                Reply::Bulk(bytes) => bytes,
                other => panic!("DUMP gave {other:?}"),
            }
        };
        let mut payloads: Vec<_> = values.iter().map(|value| dumped(&["SET", "payload", value])).collect();
        let long = "a value of more than sixty-four bytes ".repeat(3);
        payloads.push(dumped(&[
            "HSET",
            "payload",
            "f",
            "v",
            "n",
            "12",
            "",
            "",
            "-70000",
            &"long ".repeat(12),
        ]));
        payloads.push(dumped(&["HSET", "payload", "f", "v", "n", "12", "long", &long]));
        payloads.push(dumped(&["SADD", "payload", "3", "-1", "70000"]));
        payloads.push(dumped(&["SADD", "payload", "12345678901", "5"]));
        payloads.push(dumped(&["SADD", "payload", "3", "a", "", &long]));
        payloads
    }

    /// Empties both servers, runs the sequence on both, and returns the replies that differ, or else the differences in
    /// the resulting data. Two errors with different texts do not end the sequence, because errors change no data; any
    /// other difference does.
    ///
    /// # Panics
    /// A server cannot be reached.
    #[must_use]
    pub fn compare_servers(&self, protocol: Protocol, commands: &[Command]) -> Vec<ReplyDifference> {
        let (mut differences, ended) = self.compare_replies(protocol, commands);
        if !ended {
            let [mut ours, mut theirs] = [&self.ours, &self.theirs].map(ServerData::connect);
            differences.extend(ours.find_difference(&mut theirs).map(|(last, ours, theirs)| {
                let commands = commands.iter().cloned().chain([last]).collect();
                ReplyDifference { commands, ours: Some(ours), theirs: Some(theirs) }
            }));
        }
        differences
    }

    /// Returns the replies that differ, and whether the sequence ended early, either because of the last difference or
    /// because both servers closed the connection.
    fn compare_replies(&self, protocol: Protocol, commands: &[Command]) -> (Vec<ReplyDifference>, bool) {
        let mut ours = connect_to_empty_server(&self.ours, protocol);
        let mut theirs = connect_to_empty_server(&self.theirs, protocol);
        let mut ran = self.executed_commands.borrow_mut();
        let mut queue = CommandQueue::new(&mut ran);
        let mut differences = Vec::new();
        for (number, batch) in commands.chunks(PIPELINE_SIZE).enumerate() {
            // If sending fails, the reply is missing, which is reported.
            let _ = ours.send_all(batch);
            let _ = theirs.send_all(batch);
            for (index, command) in batch.iter().enumerate() {
                let replies = (read_reply(&mut ours), read_reply(&mut theirs));
                let (equal, both_failed) = match &replies {
                    (Some(ours), Some(theirs)) => {
                        let both_failed = matches!((ours, theirs), (Reply::Error(_), Reply::Error(_)));
                        (queue.compare_next(command, ours, theirs), both_failed)
                    }
                    (None, None) => return (differences, true),
                    _ => (false, false),
                };
                if equal {
                    continue;
                }
                let (here, there) = replies;
                let commands = commands[..=number * PIPELINE_SIZE + index].to_vec();
                differences.push(ReplyDifference { commands, ours: here, theirs: there });
                if !both_failed {
                    // Wait until the pipelined commands have completed, so that none of them affects the next sequence.
                    // A read timeout means that a server has sent all its replies; the servers may have sent different
                    // numbers of replies.
                    for side in [&mut ours, &mut theirs] {
                        let _ = (index + 1..batch.len()).try_for_each(|_| read_reply(side).map(drop));
                    }
                    return (differences, true);
                }
            }
        }
        (differences, false)
    }

    /// Drops commands as long as the same kind of difference remains. Returns `None` if the difference cannot be
    /// reproduced.
    #[must_use]
    pub fn shrink_difference(
        &self,
        protocol: Protocol,
        difference: &ReplyDifference,
    ) -> Option<ReplyDifference> {
        let again = |commands: &[Command]| {
            let found = self.compare_servers(protocol, commands);
            found.into_iter().find(|found| found.group_key() == difference.group_key())
        };
        let mut shortest = again(&difference.commands)?;
        let mut chunk = shortest.commands.len().div_ceil(2);
        loop {
            let mut at = 0;
            while at < shortest.commands.len() {
                let mut fewer = shortest.commands.clone();
                fewer.drain(at..(at + chunk).min(fewer.len()));
                match again(&fewer) {
                    // A difference in data includes the query that shows it, even if it was not in the sequence.
                    Some(still) if still.commands.len() < shortest.commands.len() => shortest = still,
                    _ => at += chunk,
                }
            }
            if chunk == 1 {
                return Some(shortest);
            }
            chunk = chunk.div_ceil(2);
        }
    }

    /// Sends the same bytes to both servers on new connections, closes the sending side, and returns all replies up to
    /// the end of the connections.
    ///
    /// # Errors
    /// A server does not close the connection.
    ///
    /// # Panics
    /// A server cannot be reached.
    pub fn exchange_bytes(&self, bytes: &[u8]) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let answer = |node: &Node| {
            let mut connection = node.connect();
            // The server may close before it has read everything; only its replies are compared.
            let _ = connection.send_raw(bytes);
            let _ = connection.shut_down_sending();
            connection.read_to_end()
        };
        Ok((answer(&self.ours)?, answer(&self.theirs)?))
    }
}

fn start_server(program: &Program) -> Node {
    Node::start(program, SERVER_OPTIONS)
}

/// Empties the server, resets its settings, and opens a new connection.
fn connect_to_empty_server(node: &Node, protocol: Protocol) -> Connection {
    let mut connection = node.connect();
    let lines = [
        "FLUSHALL",
        "CONFIG SET timeout 0 hz 10 maxmemory-policy noeviction hll-sparse-max-bytes 3000",
        "DEBUG SET-ACTIVE-EXPIRE 1",
        if protocol == Protocol::V3 { "HELLO 3" } else { "HELLO 2" },
    ];
    let replies = connection.call_lines(&lines);
    replies[0].expect_ok();
    connection
}

fn read_reply(connection: &mut Connection) -> Option<Reply> {
    connection.read().ok()
}
