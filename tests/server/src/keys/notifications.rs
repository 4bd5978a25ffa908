//! Tests of keyspace notifications (`notify-keyspace-events`).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::{Cluster, Connection, Node, Program, Reply, eventually, slot_of};

/// The longest accepted delay of an `expired` event, in milliseconds.
const MAX_DELAY_MILLIS: i64 = 100;

fn unix_time_millis() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("later than 1970").as_millis() as i64
}

/// Opens a connection that is subscribed to `pattern`.
fn subscribe(node: &Node, pattern: &str) -> Connection {
    let mut connection = node.connect();
    connection.set_timeout(Duration::from_secs(5));
    connection.call(&["PSUBSCRIBE", pattern]);
    connection
}

/// Reads the next message; returns its channel and its payload.
fn next_message(listener: &mut Connection) -> (String, String) {
    let message = listener.read().expect("a message");
    let [_, _, channel, text] = message.items() else { panic!("{message:?}") };
    (channel.text(), text.text())
}

/// Many keys expire at different times, and no client accesses them. Each key's `expired` event must arrive on both
/// channels within `MAX_DELAY_MILLIS`.
fn check_expired_events_arrive_in_time(node: &Node, keys: &[String]) {
    assert!(node.run("CONFIG SET notify-keyspace-events xKE").text() == "OK");
    let mut by_event = subscribe(node, "__keyevent@0__:*");
    let mut by_key = subscribe(node, "__keyspace@0__:*");
    let begin = unix_time_millis() + 300;
    let due: Vec<(i64, &String)> = (0..).zip(keys).map(|(number, key)| (begin + number * 7, key)).collect();
    let mut client = node.connect();
    for (at, key) in &due {
        client.call(&["SET", key, "call mother", "PXAT", &at.to_string()]).expect_ok();
    }
    let mut left: BTreeMap<&str, i64> = due.iter().map(|(at, key)| (key.as_str(), *at)).collect();
    while !left.is_empty() {
        let (event, key) = next_message(&mut by_event);
        assert_eq!(event, "__keyevent@0__:expired");
        let late = unix_time_millis() - left.remove(key.as_str()).expect("one event per key");
        assert!((0..=MAX_DELAY_MILLIS).contains(&late), "{key} was reported {late} ms after its expiry");
        assert_eq!(next_message(&mut by_key), (format!("__keyspace@0__:{key}"), "expired".to_owned()));
    }
    assert_eq!(node.run("DBSIZE").int(), 0);
}

#[test]
fn expired_events_arrive_within_100_ms() {
    let node = Node::start(&Program::redoubt(), "--save ");
    let keys: Vec<String> = (0..200).map(|number| format!("reminder:{number}")).collect();
    check_expired_events_arrive_in_time(&node, &keys);
}

#[test]
fn expired_events_in_a_cluster_come_only_from_the_owner_of_the_key() {
    let cluster = Cluster::start(&Program::redoubt(), 2, 0);
    let own = |node: usize, count: usize| -> Vec<String> {
        let here = |key: &String| (slot_of(key) < 8192) == (node == 0);
        (0..).map(|number| format!("reminder:{number}")).filter(here).take(count).collect()
    };
    cluster.nodes[1].run("CONFIG SET notify-keyspace-events AKE");
    let mut elsewhere = subscribe(&cluster.nodes[1], "*");
    check_expired_events_arrive_in_time(&cluster.nodes[0], &own(0, 100));
    // An event from the other node would arrive before this message.
    cluster.nodes[1].run("PUBLISH end x");
    assert_eq!(next_message(&mut elsewhere).0, "end");
}

#[test]
fn events_of_a_transaction_arrive_in_order() {
    let node = Node::start(&Program::redoubt(), "--save  --notify-keyspace-events AKEmn");
    assert_eq!(node.run("CONFIG GET notify-keyspace-events").items()[1].text(), "AnKEm");
    let Reply::Error(refused) = node.run("CONFIG SET notify-keyspace-events Kq") else {
        panic!("'q' names a class")
    };
    assert!(refused.ends_with("Invalid event class character. Use 'Ag$lshzxeKEtmdn'."), "{refused}");
    let mut listener = subscribe(&node, "__key*__:*");
    let mut client = node.connect();
    for line in ["MULTI", "SET a 1", "INCR a", "HSET h f v", "DEL a", "GET a", "EXPIRE h 100", "EXEC"] {
        client.call_line(line);
    }
    let mut expected = Vec::new();
    for (event, key) in [
        ("new", "a"),
        ("set", "a"),
        ("incrby", "a"),
        ("new", "h"),
        ("hset", "h"),
        ("del", "a"),
        ("keymiss", "a"),
        ("expire", "h"),
    ] {
        expected.push((format!("__keyspace@0__:{key}"), event.to_owned()));
        expected.push((format!("__keyevent@0__:{event}"), key.to_owned()));
    }
    let heard: Vec<(String, String)> = expected.iter().map(|_| next_message(&mut listener)).collect();
    assert_eq!(heard, expected);
}

/// A replica publishes the events of the commands that its master replicates; an expired key arrives as a `del`.
#[test]
fn replica_publishes_events_of_replicated_commands() {
    let master = Node::start(&Program::redoubt(), "--save ");
    let options = format!("--replicaof 127.0.0.1 {} --notify-keyspace-events AE", master.port);
    let replicas = [Node::start(&Program::redoubt(), &options), Node::start(&Program::redis(), &options)];
    let mut listeners: Vec<Connection> = replicas
        .iter()
        .map(|replica| {
            eventually("the replica is linked", || {
                (replica.info("replication", "master_link_status")? == "up").then_some(())
            });
            subscribe(replica, "__keyevent@*")
        })
        .collect();
    master.run("SET a 1 PX 50");
    eventually("the key expires", || (master.run("DBSIZE") == Reply::Int(0)).then_some(()));
    master.run("HSET h f v");
    for listener in &mut listeners {
        let heard: Vec<String> = (0..4).map(|_| next_message(listener).0).collect();
        let names = ["set", "expire", "del", "hset"].map(|event| format!("__keyevent@0__:{event}"));
        assert_eq!(heard, names);
    }
}
