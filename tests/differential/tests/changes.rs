//! Compares with Valkey how many changes (`rdb_changes_since_last_save`) each command counts, so that `save` rules fire
//! after the same commands on both servers.

use std::collections::BTreeMap;

use differential::{Command, Generator, Grammar, ReferenceServer, ServerPair, format_command};
use harness::{Connection, Node, Program};

const SEED_COUNT: u64 = 150;
const SEQUENCE_LENGTH: usize = 300;
/// The number of commands sent to each server at once.
const PIPELINE_SIZE: usize = 50;
const MAX_SHOWN_PER_COMMAND: usize = 3;

/// Commands that save, change later commands of the client, block, or choose at random, so that the data of the two
/// servers would diverge.
const EXCLUDED_COMMANDS: &[&str] = &[
    "AUTH",
    "BGREWRITEAOF",
    "BGSAVE",
    "CLIENT",
    "CONFIG",
    "DEBUG",
    "DISCARD",
    "EVAL",
    "EVALSHA",
    "EXEC",
    "FAILOVER",
    "HELLO",
    "MONITOR",
    "MULTI",
    "PSUBSCRIBE",
    "PSYNC",
    "QUIT",
    "REPLICAOF",
    "RESET",
    "SAVE",
    "SHUTDOWN",
    "SLAVEOF",
    "SPOP",
    "SSUBSCRIBE",
    "SUBSCRIBE",
    "SYNC",
    "WATCH",
];

/// Commands that may count one change where Valkey counts none, each with its reason.
const COMMANDS_COUNTING_ONE_MORE: &[(&str, &str)] = &[
    ("BITFIELD", "a string that was made or has grown has changed, also if no value fitted"),
    ("HDEL", "a field whose time is past is removed, though not counted as deleted"),
];

fn is_accepted_count(name: &str, our_count: i64, valkey_count: i64) -> bool {
    our_count == valkey_count
        || (our_count, valkey_count) == (1, 0)
            && COMMANDS_COUNTING_ONE_MORE.iter().any(|(waived, _)| *waived == name)
}

/// A server and its client.
struct CountingServer {
    node: Node,
    client: Connection,
}

impl CountingServer {
    fn start(program: &Program) -> Self {
        let node = Node::start(program, "--save  --enable-debug-command yes");
        let client = node.connect();
        Self { node, client }
    }

    /// Connects a new client to the emptied server.
    fn connect_to_empty_server(&mut self) {
        self.client = self.node.connect();
        // Keys must expire only on access, because each server decides when active expiry runs.
        self.client.call_line("DEBUG SET-ACTIVE-EXPIRE 0").expect_ok();
        self.client.call_line("FLUSHALL").expect_ok();
    }

    /// Returns the number of changes that each command counted.
    fn count_changes(&mut self, commands: &[Command]) -> Vec<i64> {
        self.client.send(&["INFO", "persistence"]).expect("it reads");
        for command in commands {
            self.client.send(command).expect("it reads");
            self.client.send(&["INFO", "persistence"]).expect("it reads");
        }
        let mut before = self.read_counter();
        let count = |command: &Command| {
            self.client.read().unwrap_or_else(|error| panic!("{}: {error}", format_command(command)));
            let now = self.read_counter();
            now - std::mem::replace(&mut before, now)
        };
        commands.iter().map(count).collect()
    }

    fn read_counter(&mut self) -> i64 {
        let text = self.client.read().expect("INFO").text();
        let line = text.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        line.and_then(|count| count.parse().ok()).expect("a number of changes")
    }
}

fn command_name(command: &Command) -> String {
    command.first().map(|word| String::from_utf8_lossy(word).to_uppercase()).unwrap_or_default()
}

#[test]
fn change_count_of_every_command_matches_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let payloads = ServerPair::start(&Program::redoubt(), &valkey).dump_payloads();
    let (mut ours, mut theirs) = (CountingServer::start(&Program::redoubt()), CountingServer::start(&valkey));
    let grammar = Grammar::for_reference_server(ReferenceServer::Valkey);
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut counted = 0;
    for seed in 1..=SEED_COUNT {
        let mut commands = Generator::new(&grammar, &payloads, seed).generate_sequence(SEQUENCE_LENGTH);
        commands.retain(|command| !EXCLUDED_COMMANDS.contains(&command_name(command).as_str()));
        ours.connect_to_empty_server();
        theirs.connect_to_empty_server();
        for batch in commands.chunks(PIPELINE_SIZE) {
            let (own, other) = (ours.count_changes(batch), theirs.count_changes(batch));
            for (command, (own, other)) in batch.iter().zip(own.into_iter().zip(other)) {
                counted += other;
                let name = command_name(command);
                if !is_accepted_count(&name, own, other) {
                    let shown =
                        format!("seed {seed}: {}\n  here {own}, there {other}", format_command(command));
                    found.entry(name).or_default().push(shown);
                }
            }
        }
    }
    assert!(counted > 10_000, "{counted} changes are few");
    let report: Vec<String> =
        found.into_values().flat_map(|shown| shown.into_iter().take(MAX_SHOWN_PER_COMMAND)).collect();
    assert!(report.is_empty(), "{}", report.join("\n"));
}
