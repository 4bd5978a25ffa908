//! Clients that are blocked, subscribed, watching or tracking keys when their slot is migrated atomically (CLUSTER
//! MIGRATESLOTS): each must get the same replies as from Valkey.

use std::time::Duration;

use harness::{Cluster, Connection, Node, Program, Reply, eventually_within, keys_for_all_slots};

/// Time limit for a migration.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(30);

/// The replies that clients of the source receive while slot 0 migrates, without port numbers.
#[derive(Debug, PartialEq, Eq)]
struct MigrationReplies {
    /// The reply to BLPOP on a key of the slot.
    blocked_client: String,
    /// The messages to a subscriber (SSUBSCRIBE) of a channel of the slot.
    subscriber: String,
    /// The reply to a transaction on another slot after WATCH on a key of the slot.
    watcher: String,
    /// The replies to a transaction on the slot that began before the migration.
    transaction: Vec<String>,
    /// The invalidation message to a client that tracks a key of the slot.
    tracking_client: String,
    /// The reply to FCALL of a function that the target does not have.
    function_call: String,
    /// The keyspace events at the source and at the target, which publishes events for the arriving keys.
    events: [Vec<String>; 2],
}

/// Subscribes a client to all keyspace events of a node.
fn subscribe_to_events(node: &Node) -> Connection {
    node.run("CONFIG SET notify-keyspace-events KEA").expect_ok();
    let mut listener = node.connect();
    listener.call(&["PSUBSCRIBE", "__keyevent*"]);
    listener
}

/// The received events, sorted because a snapshot has no order of keys.
fn received_events(listener: &mut Connection) -> Vec<String> {
    listener.send(&["PING", "last"]).expect("a client");
    let next = || {
        let event = format!("{:?}", listener.read().expect("a listener is told"));
        (!event.contains("last")).then_some(event)
    };
    let mut events: Vec<String> = std::iter::from_fn(next).collect();
    events.sort();
    events
}

/// Migrates slot 0 from node 0 to node 1, and waits until node 0 has deleted the slot's keys.
fn migrate_slot_0(cluster: &Cluster) {
    let source = &cluster.nodes[0];
    source.run(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 0 0 NODE {}", cluster.node_id(1))).expect_ok();
    eventually_within(MIGRATION_TIMEOUT, "the slot has moved and the source has deleted it", || {
        let jobs = source.run("CLUSTER GETSLOTMIGRATIONS");
        let fields = jobs.items().first()?.items().to_vec();
        let state = fields.chunks(2).find(|pair| pair[0].text() == "state")?[1].text();
        (state == "success" && source.run("DBSIZE").int() == 0).then_some(())
    });
}

fn collect_client_replies(program: &Program) -> MigrationReplies {
    let cluster = Cluster::start(program, 3, 0);
    let tags = keys_for_all_slots();
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
    eventually_within(MIGRATION_TIMEOUT, "BLPOP waits", || {
        (source.info("clients", "blocked_clients")? == "1").then_some(())
    });

    let mut listeners = [0, 1].map(|node: usize| subscribe_to_events(&cluster.nodes[node]));
    migrate_slot_0(&cluster);
    let ports: Vec<String> = cluster.nodes.iter().map(|node| node.port.to_string()).collect();
    let plain = |reply: Reply| {
        let text = format!("{reply:?}");
        ports.iter().fold(text, |text, port| text.replace(port.as_str(), "PORT"))
    };
    let read = |connection: &mut Connection| plain(connection.read().expect("a client is told"));
    let events = listeners.each_mut().map(received_events);
    watcher.call(&["MULTI"]).expect_ok();
    watcher.call(&["SET", &elsewhere, "1"]);
    MigrationReplies {
        blocked_client: read(&mut blocked),
        subscriber: read(&mut subscriber),
        watcher: plain(watcher.call(&["EXEC"])),
        transaction: [&["GET", &key("watched")][..], &["EXEC"]]
            .map(|words| plain(transaction.call(words)))
            .to_vec(),
        tracking_client: read(&mut tracking),
        function_call: plain(cluster.nodes[1].connect().call(&["FCALL", "f", "1", &key("watched")])),
        events,
    }
}

#[test]
fn clients_of_migrating_slot_get_replies_of_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let ours = collect_client_replies(&Program::redoubt());
    assert!(ours.blocked_client.contains("MOVED 0 127.0.0.1:PORT"), "{ours:?}");
    assert!(ours.subscriber.contains("sunsubscribe"), "{ours:?}");
    assert_eq!(ours.events.each_ref().map(Vec::len), [0, 2], "{ours:?}");
    assert_eq!(ours, collect_client_replies(&valkey));
}
