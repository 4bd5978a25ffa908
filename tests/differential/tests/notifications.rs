//! Compares the keyspace events (`notify-keyspace-events`) of every command with Valkey: a subscriber on each side must
//! receive the same events in the same order.

use std::collections::BTreeMap;

use differential::{Command, Generator, Grammar, Pair, Peer, show};
use harness::{Connection, Node, Program, Value};

const SEEDS: u64 = 80;
const LENGTH: usize = 300;
/// The number of pipelined commands.
const BATCH: usize = 50;
/// A message that marks the end of a command's events.
const MARK: &str = "mark";

/// Commands that change which events are sent or choose at random: the data of the two servers would diverge.
const LEFT_OUT: &[&str] = &[
    "ACL",
    // While a command blocks, keys could expire.
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
const WAIVED: &[(&str, &str, &str)] = &[
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
    WAIVED.iter().any(|(known, name, _)| *known == command && is(name))
}

/// A server, a client, and a subscriber to all events.
struct Side {
    node: Node,
    client: Connection,
    listener: Connection,
}

impl Side {
    fn start(program: &Program) -> Self {
        let node = Node::start(program, "--save  --notify-keyspace-events AKEmn --enable-debug-command yes");
        let (client, mut listener) = (node.connect(), node.connect());
        listener.call(&["PSUBSCRIBE", "*"]);
        Self { node, client, listener }
    }

    /// Connects a new client to the emptied server.
    fn begin(&mut self) {
        self.client = self.node.connect();
        // Keys expire only on access: when active expiry runs is up to each server.
        self.client.run("DEBUG SET-ACTIVE-EXPIRE 0").expect_ok();
        self.client.run("FLUSHALL").expect_ok();
        self.client.call(&["PUBLISH", MARK, ""]);
        self.heard();
    }

    /// The events of each command.
    fn events(&mut self, commands: &[Command]) -> Vec<Vec<String>> {
        for command in commands {
            self.client.send(command).expect("it reads");
            self.client.send(&["PUBLISH", MARK, ""]).expect("it reads");
        }
        for command in commands {
            for _ in 0..2 {
                self.client.read().unwrap_or_else(|error| panic!("{}: {error}", show(command)));
            }
        }
        commands.iter().map(|_| self.heard()).collect()
    }

    /// The events up to the next mark.
    fn heard(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        loop {
            let message = self.listener.read().expect("a message");
            let [_, _, channel, Value::Bulk(text)] = message.items() else { panic!("{message:?}") };
            let channel = channel.text();
            if channel == MARK {
                return events;
            }
            events.push(format!("{channel} \"{}\"", text.escape_ascii()));
        }
    }
}

fn is_left_out(command: &Command) -> bool {
    let name = command.first().map(|word| String::from_utf8_lossy(word).to_uppercase()).unwrap_or_default();
    LEFT_OUT.contains(&name.as_str())
}

#[test]
fn keyspace_events_match_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let payloads = Pair::start(&Program::redoubt(), &valkey).payloads();
    let (mut ours, mut theirs) = (Side::start(&Program::redoubt()), Side::start(&valkey));
    let grammar = Grammar::of(Peer::Valkey);
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut told = 0;
    for seed in 1..=SEEDS {
        let mut commands = Generator::new(&grammar, &payloads, seed).sequence(LENGTH);
        commands.retain(|command| !is_left_out(command));
        ours.begin();
        theirs.begin();
        for batch in commands.chunks(BATCH) {
            let (own, other) = (ours.events(batch), theirs.events(batch));
            for (command, (own, other)) in batch.iter().zip(own.into_iter().zip(other)) {
                told += other.len();
                let name = String::from_utf8_lossy(&command[0]).to_uppercase();
                let told_of = |events: &[String]| {
                    events.iter().filter(|event| !is_waived(&name, event)).cloned().collect::<Vec<_>>()
                };
                if told_of(&own) != told_of(&other) {
                    let shown = format!("seed {seed}: {}\n  here {own:?}\n  there {other:?}", show(command));
                    found.entry(name).or_insert(shown);
                }
            }
        }
    }
    assert!(told > 5000, "{told} events are few");
    assert!(found.is_empty(), "{}", found.into_values().collect::<Vec<_>>().join("\n"));
}
