//! Every event of every command (`notify-keyspace-events`), beside Valkey: the same commands, and a subscriber on each side
//! that hears the same, in the same order.

use std::collections::BTreeMap;

use differential::{Command, Generator, Grammar, Pair, Peer, show};
use harness::{Connection, Node, Program, Value};

const SEEDS: u64 = 80;
const LENGTH: usize = 300;
/// Commands in flight at once.
const BATCH: usize = 50;
/// Says that all events of the command before it have been told.
const MARK: &str = "mark";

/// The commands that change who gets which events, or pick by chance, so that the two sides would go on with other
/// data.
const LEFT_OUT: &[&str] = &[
    "ACL",
    // Commands that wait give keys the time to expire.
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

/// Events of commands that the two tell of differently, each with its reason.
const WAIVED: &[(&str, &str, &str)] = &[
    ("BITFIELD", "setbit", "a key that was made is told of as set, also if no bits of it were"),
    ("LCS", "keymiss", "what is of the wrong type ends the command before the second key is looked for"),
    ("MIGRATE", "keymiss", "a key that is not there is no miss of a reader"),
    ("XAUTOCLAIM", "keymiss", "a COUNT that cannot be ends the command before its key is looked for"),
    ("XREAD", "keymiss", "a key is missed once, however often Valkey looks for it"),
];

/// Whether a waiver of this command is about an event.
fn is_waived(command: &str, event: &str) -> bool {
    let is = |name: &str| {
        let by_key = event.starts_with("__keyspace@") && event.ends_with(&format!(" \"{name}\""));
        by_key || event.starts_with("__keyevent@") && event.contains(&format!("__:{name} \""))
    };
    WAIVED.iter().any(|(known, name, _)| *known == command && is(name))
}

/// A server, a client and a listener to all events.
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

    /// A new client of an empty server.
    fn begin(&mut self) {
        self.client = self.node.connect();
        // Keys go when a command finds them gone: when else they go is up to the server.
        self.client.run("DEBUG SET-ACTIVE-EXPIRE 0").expect_ok();
        self.client.run("FLUSHALL").expect_ok();
        self.client.call(&["PUBLISH", MARK, ""]);
        self.heard();
    }

    /// The events that each of these commands made.
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

    /// The events that are told up to the next mark.
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
fn every_command_tells_what_valkeys_tells() {
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
