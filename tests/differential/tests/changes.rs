//! Compares the change counter (`rdb_changes_since_last_save`) of every command with Valkey, so that `save` rules count
//! the same changes on both.

use std::collections::BTreeMap;

use differential::{Command, Generator, Grammar, Pair, Peer, show};
use harness::{Connection, Node, Program};

const SEEDS: u64 = 150;
const LENGTH: usize = 300;
/// The number of pipelined commands.
const BATCH: usize = 50;
const SHOWN_PER_COMMAND: usize = 3;

/// Commands that save, change later commands of the client, block, or choose at random: the data of the two servers
/// would diverge.
const LEFT_OUT: &[&str] = &[
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
const ONE_MORE: &[(&str, &str)] = &[
    ("BITFIELD", "a string that was made or has grown has changed, also if no value fitted"),
    ("HDEL", "a field whose time is past is removed, though not counted as deleted"),
];

fn is_same(name: &str, own: i64, other: i64) -> bool {
    own == other || (own, other) == (1, 0) && ONE_MORE.iter().any(|(waived, _)| *waived == name)
}

/// A server and its client.
struct Side {
    node: Node,
    client: Connection,
}

impl Side {
    fn start(program: &Program) -> Self {
        let node = Node::start(program, "--save  --enable-debug-command yes");
        let client = node.connect();
        Self { node, client }
    }

    /// Connects a new client to the emptied server.
    fn begin(&mut self) {
        self.client = self.node.connect();
        // Keys expire only on access: when active expiry runs is up to each server.
        self.client.run("DEBUG SET-ACTIVE-EXPIRE 0").expect_ok();
        self.client.run("FLUSHALL").expect_ok();
    }

    /// The number of changes that each command counted.
    fn changes(&mut self, commands: &[Command]) -> Vec<i64> {
        self.client.send(&["INFO", "persistence"]).expect("it reads");
        for command in commands {
            self.client.send(command).expect("it reads");
            self.client.send(&["INFO", "persistence"]).expect("it reads");
        }
        let mut before = self.count();
        let count = |command: &Command| {
            self.client.read().unwrap_or_else(|error| panic!("{}: {error}", show(command)));
            let now = self.count();
            now - std::mem::replace(&mut before, now)
        };
        commands.iter().map(count).collect()
    }

    fn count(&mut self) -> i64 {
        let text = self.client.read().expect("INFO").text();
        let line = text.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        line.and_then(|count| count.parse().ok()).expect("a number of changes")
    }
}

fn name_of(command: &Command) -> String {
    command.first().map(|word| String::from_utf8_lossy(word).to_uppercase()).unwrap_or_default()
}

#[test]
fn dirty_counter_of_every_command_matches_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let payloads = Pair::start(&Program::redoubt(), &valkey).payloads();
    let (mut ours, mut theirs) = (Side::start(&Program::redoubt()), Side::start(&valkey));
    let grammar = Grammar::of(Peer::Valkey);
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut counted = 0;
    for seed in 1..=SEEDS {
        let mut commands = Generator::new(&grammar, &payloads, seed).sequence(LENGTH);
        commands.retain(|command| !LEFT_OUT.contains(&name_of(command).as_str()));
        ours.begin();
        theirs.begin();
        for batch in commands.chunks(BATCH) {
            let (own, other) = (ours.changes(batch), theirs.changes(batch));
            for (command, (own, other)) in batch.iter().zip(own.into_iter().zip(other)) {
                counted += other;
                let name = name_of(command);
                if !is_same(&name, own, other) {
                    let shown = format!("seed {seed}: {}\n  here {own}, there {other}", show(command));
                    found.entry(name).or_default().push(shown);
                }
            }
        }
    }
    assert!(counted > 10_000, "{counted} changes are few");
    let report: Vec<String> =
        found.into_values().flat_map(|shown| shown.into_iter().take(SHOWN_PER_COMMAND)).collect();
    assert!(report.is_empty(), "{}", report.join("\n"));
}
