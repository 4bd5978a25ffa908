//! Clients that wait, listen, watch or cache when their slot moves in one piece (CLUSTER MIGRATESLOTS): each is told as
//! by Valkey.

use std::time::Duration;

use harness::{Cluster, Connection, Node, Program, Value, eventually_within, key_for_every_slot};

/// A move has ended within this.
const MOVED: Duration = Duration::from_secs(30);

/// The replies of clients at the source of a move of slot 0, port numbers left out.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    /// BLPOP of a key of the slot.
    blocked: String,
    /// SSUBSCRIBE to a channel of the slot.
    subscriber: String,
    /// WATCH of a key of the slot, then a transaction about another slot.
    watcher: String,
    /// A transaction about the slot that was begun before.
    transaction: Vec<String>,
    /// CLIENT TRACKING of a key of the slot.
    tracking: String,
    /// FCALL of a function that the target does not have.
    function: String,
    /// Keyspace events at the source, and at the target, where the keys are told of when they come.
    events: [Vec<String>; 2],
}

/// A client that hears of all keyspace events of a node from now on.
fn listen(node: &Node) -> Connection {
    node.run("CONFIG SET notify-keyspace-events KEA").expect_ok();
    let mut listener = node.connect();
    listener.call(&["PSUBSCRIBE", "__keyevent*"]);
    listener
}

/// The events that it has heard of, sorted: a snapshot has its keys in no order.
fn events(listener: &mut Connection) -> Vec<String> {
    listener.send(&["PING", "last"]).expect("a client");
    let next = || {
        let event = format!("{:?}", listener.read().expect("a listener is told"));
        (!event.contains("last")).then_some(event)
    };
    let mut events: Vec<String> = std::iter::from_fn(next).collect();
    events.sort();
    events
}

/// Slot 0 moves from node 0 to node 1, and node 0 deletes all that it had.
fn move_slot_0(cluster: &Cluster) {
    let source = &cluster.nodes[0];
    source.run(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 0 0 NODE {}", cluster.id(1))).expect_ok();
    eventually_within(MOVED, "the slot has moved and the source has deleted it", || {
        let jobs = source.run("CLUSTER GETSLOTMIGRATIONS");
        let fields = jobs.items().first()?.items().to_vec();
        let state = fields.chunks(2).find(|pair| pair[0].text() == "state")?[1].text();
        (state == "success" && source.run("DBSIZE").int() == 0).then_some(())
    });
}

fn clients_at_a_move(program: &Program) -> Told {
    let cluster = Cluster::start(program, 3, 0);
    let tags = key_for_every_slot();
    let (tag, elsewhere) = (format!("{{{}}}", tags[0]), format!("{{{}}}", tags[500]));
    let key = |name: &str| format!("{name}:{tag}");
    let source = &cluster.nodes[0];
    let open = || source.connect();
    open().call(&["SET", &key("watched"), "1"]).expect_ok();
    open().call(&["SET", &key("cached"), "1"]).expect_ok();
    let library =
        "#!lua name=l\nredis.register_function('f', function(keys) return redis.call('GET', keys[1]) end)";
    open().call(&["FUNCTION", "LOAD", library]);

    let (mut blocked, mut subscriber) = (open(), open());
    let (mut watcher, mut transaction, mut tracking) = (open(), open(), open());
    blocked.send(&["BLPOP", &key("list"), "0"]).expect("a client");
    subscriber.call(&["SSUBSCRIBE", &key("channel")]);
    watcher.call(&["WATCH", &key("watched")]).expect_ok();
    transaction.call(&["MULTI"]).expect_ok();
    transaction.call(&["SET", &key("watched"), "2"]);
    tracking.call(&["HELLO", "3"]);
    tracking.call(&["CLIENT", "TRACKING", "ON"]).expect_ok();
    tracking.call(&["GET", &key("cached")]);
    eventually_within(MOVED, "BLPOP waits", || {
        (source.info("clients", "blocked_clients")? == "1").then_some(())
    });

    let mut listeners = [0, 1].map(|node: usize| listen(&cluster.nodes[node]));
    move_slot_0(&cluster);
    let ports: Vec<String> = cluster.nodes.iter().map(|node| node.port.to_string()).collect();
    let plain = |reply: Value| {
        let text = format!("{reply:?}");
        ports.iter().fold(text, |text, port| text.replace(port.as_str(), "PORT"))
    };
    let read = |connection: &mut Connection| plain(connection.read().expect("a client is told"));
    let events = listeners.each_mut().map(events);
    watcher.call(&["MULTI"]).expect_ok();
    watcher.call(&["SET", &elsewhere, "1"]);
    Told {
        blocked: read(&mut blocked),
        subscriber: read(&mut subscriber),
        watcher: plain(watcher.call(&["EXEC"])),
        transaction: [&["GET", &key("watched")][..], &["EXEC"]]
            .map(|words| plain(transaction.call(words)))
            .to_vec(),
        tracking: read(&mut tracking),
        function: plain(cluster.nodes[1].connect().call(&["FCALL", "f", "1", &key("watched")])),
        events,
    }
}

#[test]
fn clients_of_a_slot_that_moves_are_told_as_by_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let ours = clients_at_a_move(&Program::redoubt());
    assert!(ours.blocked.contains("MOVED 0 127.0.0.1:PORT"), "{ours:?}");
    assert!(ours.subscriber.contains("sunsubscribe"), "{ours:?}");
    assert_eq!(ours.events.each_ref().map(Vec::len), [0, 2], "{ours:?}");
    assert_eq!(ours, clients_at_a_move(&valkey));
}
