//! Compares with Valkey the keyspace events (`notify-keyspace-events`) of every command: a subscriber to each server
//! must receive the same events in the same order.

use std::collections::BTreeMap;

use differential::{Command, Generator, Grammar, ReferenceServer, ServerPair, format_command};
use harness::{Connection, Node, Program, Reply};

const SEED_COUNT: u64 = 80;
const SEQUENCE_LENGTH: usize = 300;
/// The number of commands sent to each server at once.
const PIPELINE_SIZE: usize = 50;
/// The text of a message that marks the end of a command's events.
const END_MARKER_KEY: &str = "mark";

/// Commands that the test does not generate: some change which events are sent, others choose at random, so the two
/// servers would diverge.
const EXCLUDED_COMMANDS: &[&str] = &[
    "ACL",
    // Keys could expire while one of these commands blocks.
    "BLMOVE",
    "BLMPOP",
    "BLPOP",
    "BRPOP",
    "BRPOPLPUSH",
    "BZMPOP",
    "BZPOPMAX",
    "BZPOPMIN",
    "AUTH",
    "BGREWRITEAOF",
    "BGSAVE",
    "CLIENT",
    "CLUSTER",
    "CONFIG",
    "DEBUG",
    "DISCARD",
    "EVAL",
    "EVALSHA",
    "EXEC",
    "FAILOVER",
    "FCALL",
    "FUNCTION",
    "HELLO",
    "LATENCY",
    "MEMORY",
    "MODULE",
    "MONITOR",
    "MULTI",
    "PSUBSCRIBE",
    "PUBLISH",
    "PUNSUBSCRIBE",
    "QUIT",
    "REPLICAOF",
    "RESET",
    "SAVE",
    "SCRIPT",
    "SHUTDOWN",
    "SLAVEOF",
    "SPOP",
    "SPUBLISH",
    "SSUBSCRIBE",
    "SUBSCRIBE",
    "SUNSUBSCRIBE",
    "SWAPDB",
    "SYNC",
    "PSYNC",
    "UNSUBSCRIBE",
    "UNWATCH",
    "WATCH",
    "WAIT",
    "WAITAOF",
];

/// Commands whose events differ intentionally, each with its reason.
const WAIVED_EVENTS: &[(&str, &str, &str)] = &[
    ("BITFIELD", "setbit", "a key that was made is told of as set, also if no bits of it were"),
    ("LCS", "keymiss", "what is of the wrong type ends the command before the second key is looked for"),
    ("MIGRATE", "keymiss", "a key that is not there is no miss of a reader"),
    ("XAUTOCLAIM", "keymiss", "a COUNT that cannot be ends the command before its key is looked for"),
    ("XREAD", "keymiss", "a key is missed once, however often Valkey inspections for it"),
];

/// Whether a waiver of this command covers an event.
fn is_waived(command: &str, event: &str) -> bool {
    let is = |name: &str| {
        let by_key = event.starts_with("__keyspace@") && event.ends_with(&format!(" \"{name}\""));
        by_key || event.starts_with("__keyevent@") && event.contains(&format!("__:{name} \""))
    };
    WAIVED_EVENTS.iter().any(|(known, name, _)| *known == command && is(name))
}

/// A server with a client and with a subscriber to all events.
struct ListeningServer {
    node: Node,
    client: Connection,
    listener: Connection,
}

impl ListeningServer {
    fn start(program: &Program) -> Self {
        let node = Node::start(program, "--save  --notify-keyspace-events AKEmn --enable-debug-command yes");
        let (client, mut listener) = (node.connect(), node.connect());
        listener.call(&["PSUBSCRIBE", "*"]);
        Self { node, client, listener }
    }

    /// Connects a new client to the emptied server.
    fn connect_to_empty_server(&mut self) {
        self.client = self.node.connect();
        // Keys must expire only on access, because each server decides when active expiry runs.
        self.client.call_line("DEBUG SET-ACTIVE-EXPIRE 0").expect_ok();
        self.client.call_line("FLUSHALL").expect_ok();
        self.client.call(&["PUBLISH", END_MARKER_KEY, ""]);
        self.read_events_until_marker();
    }

    /// Runs the commands and returns the events of each one.
    fn run_and_collect_events(&mut self, commands: &[Command]) -> Vec<Vec<String>> {
        for command in commands {
            self.client.send(command).expect("it reads");
            self.client.send(&["PUBLISH", END_MARKER_KEY, ""]).expect("it reads");
        }
        for command in commands {
            for _ in 0..2 {
                self.client.read().unwrap_or_else(|error| panic!("{}: {error}", format_command(command)));
            }
        }
        commands.iter().map(|_| self.read_events_until_marker()).collect()
    }

    /// Returns the events up to the next mark.
    fn read_events_until_marker(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        loop {
            let message = self.listener.read().expect("a message");
            let [_, _, channel, Reply::Bulk(text)] = message.items() else { panic!("{message:?}") };
            let channel = channel.text();
            if channel == END_MARKER_KEY {
                return events;
            }
            events.push(format!("{channel} \"{}\"", text.escape_ascii()));
        }
    }
}

fn is_excluded(command: &Command) -> bool {
    let name = command.first().map(|word| String::from_utf8_lossy(word).to_uppercase()).unwrap_or_default();
    EXCLUDED_COMMANDS.contains(&name.as_str())
}

#[test]
fn keyspace_events_match_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let payloads = ServerPair::start(&Program::redoubt(), &valkey).dump_payloads();
    let (mut ours, mut theirs) =
        (ListeningServer::start(&Program::redoubt()), ListeningServer::start(&valkey));
    let grammar = Grammar::for_reference_server(ReferenceServer::Valkey);
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut told = 0;
    for seed in 1..=SEED_COUNT {
        let mut commands = Generator::new(&grammar, &payloads, seed).generate_sequence(SEQUENCE_LENGTH);
        commands.retain(|command| !is_excluded(command));
        ours.connect_to_empty_server();
        theirs.connect_to_empty_server();
        for batch in commands.chunks(PIPELINE_SIZE) {
            let (own, other) = (ours.run_and_collect_events(batch), theirs.run_and_collect_events(batch));
            for (command, (own, other)) in batch.iter().zip(own.into_iter().zip(other)) {
                told += other.len();
                let name = String::from_utf8_lossy(&command[0]).to_uppercase();
                let told_of = |events: &[String]| {
                    events.iter().filter(|event| !is_waived(&name, event)).cloned().collect::<Vec<_>>()
                };
                if told_of(&own) != told_of(&other) {
                    let shown = format!(
                        "seed {seed}: {}\n  here {own:?}\n  there {other:?}",
                        format_command(command)
                    );
                    found.entry(name).or_insert(shown);
                }
            }
        }
    }
    assert!(told > 5000, "{told} events are few");
    assert!(found.is_empty(), "{}", found.into_values().collect::<Vec<_>>().join("\n"));
}
