//! Events of keys (`notify-keyspace-events`) as subscribers hear them.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::{Cluster, Connection, Node, Program, Value, eventually, slot_of};

/// How late a subscriber may hear that a key's time has come.
const SOON: i64 = 100;

fn millis() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("later than 1970").as_millis() as i64
}

/// A connection that hears of everything that matches.
fn listen(node: &Node, pattern: &str) -> Connection {
    let mut connection = node.connect();
    connection.set_timeout(Duration::from_secs(5));
    connection.call(&["PSUBSCRIBE", pattern]);
    connection
}

/// The next message's channel and text.
fn hear(listener: &mut Connection) -> (String, String) {
    let message = listener.read().expect("a message");
    let [_, _, channel, text] = message.items() else { panic!("{message:?}") };
    (channel.text(), text.text())
}

/// Many people are to be reminded, each at a time of their own, and no client asks for their keys: each is told of on
/// both channels within a tenth of a second.
fn reminders_come_in_time(node: &Node, keys: &[String]) {
    assert!(node.run("CONFIG SET notify-keyspace-events xKE").text() == "OK");
    let mut by_event = listen(node, "__keyevent@0__:*");
    let mut by_key = listen(node, "__keyspace@0__:*");
    let begin = millis() + 300;
    let due: Vec<(i64, &String)> = (0..).zip(keys).map(|(number, key)| (begin + number * 7, key)).collect();
    let mut client = node.connect();
    for (at, key) in &due {
        client.call(&["SET", key, "call mother", "PXAT", &at.to_string()]).expect_ok();
    }
    let mut left: BTreeMap<&str, i64> = due.iter().map(|(at, key)| (key.as_str(), *at)).collect();
    while !left.is_empty() {
        let (event, key) = hear(&mut by_event);
        assert_eq!(event, "__keyevent@0__:expired");
        let late = millis() - left.remove(key.as_str()).expect("each once");
        assert!((0..=SOON).contains(&late), "{key} was told of {late} ms after its time");
        assert_eq!(hear(&mut by_key), (format!("__keyspace@0__:{key}"), "expired".to_owned()));
    }
    assert_eq!(node.run("DBSIZE").int(), 0);
}

#[test]
fn reminders_come_within_a_tenth_of_a_second() {
    let node = Node::start(&Program::redoubt(), "--save ");
    let keys: Vec<String> = (0..200).map(|number| format!("reminder:{number}")).collect();
    reminders_come_in_time(&node, &keys);
}

#[test]
fn reminders_come_in_time_in_a_cluster_and_from_their_own_node_alone() {
    let cluster = Cluster::start(&Program::redoubt(), 2, 0);
    let own = |node: usize, count: usize| -> Vec<String> {
        let here = |key: &String| (slot_of(key) < 8192) == (node == 0);
        (0..).map(|number| format!("reminder:{number}")).filter(here).take(count).collect()
    };
    cluster.nodes[1].run("CONFIG SET notify-keyspace-events AKE");
    let mut elsewhere = listen(&cluster.nodes[1], "*");
    reminders_come_in_time(&cluster.nodes[0], &own(0, 100));
    // Had the other node said something, it would come before this.
    cluster.nodes[1].run("PUBLISH end x");
    assert_eq!(hear(&mut elsewhere).0, "end");
}

/// The events of a transaction are told in their order, and to the client that ran it behind its reply.
#[test]
fn events_come_in_the_order_in_which_things_happened() {
    let node = Node::start(&Program::redoubt(), "--save  --notify-keyspace-events AKEmn");
    assert_eq!(node.run("CONFIG GET notify-keyspace-events").items()[1].text(), "AnKEm");
    let Value::Error(refused) = node.run("CONFIG SET notify-keyspace-events Kq") else {
        panic!("'q' names a class")
    };
    assert!(refused.ends_with("Invalid event class character. Use 'Ag$lshzxeKEtmdn'."), "{refused}");
    let mut listener = listen(&node, "__key*__:*");
    let mut client = node.connect();
    for line in ["MULTI", "SET a 1", "INCR a", "HSET h f v", "DEL a", "GET a", "EXPIRE h 100", "EXEC"] {
        client.run(line);
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
    let heard: Vec<(String, String)> = expected.iter().map(|_| hear(&mut listener)).collect();
    assert_eq!(heard, expected);
}

/// A replica tells of what its master does: a key whose time came was deleted.
#[test]
fn a_replica_tells_of_what_its_master_does() {
    let master = Node::start(&Program::redoubt(), "--save ");
    let options = format!("--replicaof 127.0.0.1 {} --notify-keyspace-events AE", master.port);
    let replicas = [Node::start(&Program::redoubt(), &options), Node::start(&Program::redis(), &options)];
    let mut listeners: Vec<Connection> = replicas
        .iter()
        .map(|replica| {
            eventually("the replica is linked", || {
                (replica.info("replication", "master_link_status")? == "up").then_some(())
            });
            listen(replica, "__keyevent@*")
        })
        .collect();
    master.run("SET a 1 PX 50");
    eventually("it expires", || (master.run("DBSIZE") == Value::Int(0)).then_some(()));
    master.run("HSET h f v");
    for listener in &mut listeners {
        let heard: Vec<String> = (0..4).map(|_| hear(listener).0).collect();
        let names = ["set", "expire", "del", "hset"].map(|event| format!("__keyevent@0__:{event}"));
        assert_eq!(heard, names);
    }
}
