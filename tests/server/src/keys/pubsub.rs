//! Tests of pub/sub between connections, over replication and over the cluster bus.

use std::time::Duration;

use harness::{Cluster, Connection, Node, Program, Reply, eventually, slot_of};

fn bulk_string(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

fn message_reply(words: &[&str]) -> Reply {
    Reply::Array(words.iter().map(|word| bulk_string(word)).collect())
}

fn subscription_confirmation(kind: &str, channel: &str, count: i64) -> Reply {
    Reply::Array(vec![bulk_string(kind), bulk_string(channel), Reply::Int(count)])
}

fn subscribe(node: &Node, command: &str, channel: &str) -> Connection {
    let mut connection = node.connect();
    assert_eq!(
        connection.call(&[command, channel]),
        subscription_confirmation(&command.to_lowercase(), channel, 1)
    );
    connection
}

/// Subscribers on every worker and on replicas get each message once.
#[test]
fn messages_reach_subscribers_of_the_master_and_its_replicas() {
    let master = Node::start(&Program::redoubt(), "--save  --io-threads 4");
    let replica = Node::start(&Program::redoubt(), &format!("--replicaof 127.0.0.1 {}", master.port));
    let real = Node::start(&Program::redis(), &format!("--replicaof 127.0.0.1 {}", master.port));
    for node in [&replica, &real] {
        eventually("the replica is linked", || {
            (node.info("replication", "master_link_status")? == "up").then_some(())
        });
    }
    let mut here: Vec<Connection> = (0..8).map(|_| subscribe(&master, "SUBSCRIBE", "news")).collect();
    let mut far = [subscribe(&replica, "SUBSCRIBE", "news"), subscribe(&real, "SUBSCRIBE", "news")];
    let mut fan = subscribe(&master, "PSUBSCRIBE", "n*");
    for number in 0..100 {
        assert_eq!(master.run(&format!("PUBLISH news {number}")).int(), 9);
    }
    for number in 0..100 {
        let text = number.to_string();
        for connection in here.iter_mut().chain(&mut far) {
            assert_eq!(connection.read().expect("a message"), message_reply(&["message", "news", &text]));
        }
        assert_eq!(fan.read().expect("a message"), message_reply(&["pmessage", "n*", "news", &text]));
    }
    assert_eq!(master.info("stats", "pubsub_channels").as_deref(), Some("1"));
    assert_eq!(master.info("clients", "pubsub_clients").as_deref(), Some("9"));
    drop(here);
    drop(fan);
    eventually("the subscribers are gone", || {
        (master.info("clients", "pubsub_clients")? == "0").then_some(())
    });
    assert_eq!(master.run("PUBLISH news x").int(), 0);
}

/// A subscriber that does not read is disconnected at the limit of its client class. The publisher never waits, and
/// other subscribers get every message.
#[test]
fn slow_subscriber_is_disconnected() {
    let node = Node::start(&Program::redoubt(), "--save ");
    let mut publisher = node.connect();
    publisher.call(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 8000000 0 0"]).expect_ok();
    let slow = subscribe(&node, "SUBSCRIBE", "news");
    let mut quick = subscribe(&node, "SUBSCRIBE", "news");
    let text = "x".repeat(100_000);
    let mut published = 0;
    eventually("the slow subscriber is disconnected", || {
        published += 1;
        let receivers = publisher.call(&["PUBLISH", "news", &text]).int();
        assert_eq!(quick.read().expect("a message"), message_reply(&["message", "news", &text]));
        (receivers == 1).then_some(())
    });
    assert!(published > 8, "not before its limit: {published}");
    let cut = node.info("stats", "client_output_buffer_limit_disconnections");
    assert_eq!(cut.as_deref(), Some("1"));
    drop(slow);
}

/// A message reaches every node of a cluster. A sharded message reaches its shard only, and sharded subscriptions end
/// when their slot moves away.
#[test]
fn messages_reach_all_cluster_nodes() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 1);
    let mut listeners: Vec<Connection> =
        cluster.nodes.iter().map(|node| subscribe(node, "SUBSCRIBE", "news")).collect();
    assert_eq!(cluster.nodes[4].run("PUBLISH news hi").int(), 1, "only the node's own subscriber is counted");
    for listener in &mut listeners {
        assert_eq!(listener.read().expect("a message"), message_reply(&["message", "news", "hi"]));
    }

    let slot = slot_of("bar");
    assert!(slot < 8192);
    let owner = usize::from(slot / 5461);
    let mut shard = [
        subscribe(&cluster.nodes[owner], "SSUBSCRIBE", "bar"),
        subscribe(&cluster.nodes[owner + 3], "SSUBSCRIBE", "bar"),
    ];
    let elsewhere = &cluster.nodes[(owner + 1) % 3];
    let moved = format!("MOVED {slot} 127.0.0.1:{}", cluster.nodes[owner].port);
    assert_eq!(elsewhere.run("SSUBSCRIBE bar"), Reply::Error(moved.clone()));
    assert_eq!(elsewhere.run("SPUBLISH bar x"), Reply::Error(moved));
    assert_eq!(cluster.nodes[owner].run("SPUBLISH bar hi").int(), 1);
    for listener in &mut shard {
        assert_eq!(listener.read().expect("a message"), message_reply(&["smessage", "bar", "hi"]));
    }
    let target = (owner + 1) % 3;
    for node in [target, owner] {
        let line = format!("CLUSTER SETSLOT {slot} NODE {}", cluster.node_id(target));
        cluster.nodes[node].run(&line).expect_ok();
    }
    for listener in &mut shard {
        listener.set_timeout(Duration::from_secs(30));
        assert_eq!(
            listener.read().expect("an unsubscribe message"),
            subscription_confirmation("sunsubscribe", "bar", 0)
        );
    }
}

/// The bus carries messages of up to 64 MB; longer messages are refused, and the links between nodes stay up.
#[test]
fn messages_too_long_for_the_bus_are_refused() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 0);
    let mut listener = subscribe(&cluster.nodes[1], "SUBSCRIBE", "news");
    let mut publisher = cluster.nodes[0].connect();
    let long = "x".repeat(70 << 20);
    for word in ["PUBLISH", "SPUBLISH"] {
        // Slot 0, to which this channel belongs, is served by node 0.
        let channel = &harness::keys_for_all_slots()[0];
        let reply = publisher.call(&[word, channel, &long]);
        assert_eq!(reply, Reply::Error("ERR message is too long for the cluster bus".into()), "{word}");
    }
    publisher.call(&["PUBLISH", "news", "short"]);
    assert_eq!(listener.read().expect("a message"), message_reply(&["message", "news", "short"]));
    for node in &cluster.nodes {
        assert!(!node.log().contains("the link is closed"), "{}", node.log());
    }
}

/// A long message that waits for 40 slow subscribers must be in memory only once.
#[test]
fn message_for_many_slow_subscribers_is_stored_once() {
    let node = Node::start(&Program::redoubt(), "--save ");
    let mut publisher = node.connect();
    publisher.call(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 0 0"]).expect_ok();
    let mut slow: Vec<Connection> = (0..40).map(|_| subscribe(&node, "SUBSCRIBE", "news")).collect();
    let used = || node.info("memory", "used_memory").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let before = used();
    let text = "x".repeat(7_000_000);
    assert_eq!(publisher.call(&["PUBLISH", "news", &text]).int(), 40);
    let grown = || used().saturating_sub(before);
    eventually("one copy is left", || (grown() < 12_000_000).then_some(()));
    eventually("each subscriber's output buffer counts the message", || {
        let list = publisher.call_line("CLIENT LIST TYPE pubsub").text();
        (list.matches(" omem=6").count() + list.matches(" omem=7").count() == 40).then_some(())
    });
    for subscriber in &mut slow {
        assert_eq!(subscriber.read().expect("a message"), message_reply(&["message", "news", &text]));
    }
    eventually("the memory is released", || (grown() < 2_000_000).then_some(()));
}
