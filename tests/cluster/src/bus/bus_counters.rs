//! Compares the bus counters in CLUSTER INFO with Valkey: after the same traffic, every counter that Valkey reports
//! must be present, because exporters look the counters up by name. Also tests CLUSTER LINKS while a peer does not
//! read.

use std::collections::BTreeSet;

use harness::{Node, Program, Reply, cluster_info_field, eventually};

const SECOND_MASTER_INDEX: usize = 1;
const REPLICA_INDEX: usize = 2;

/// Starts two masters and a replica of the first, fails over to the replica and publishes messages, so that every kind
/// of bus message has been sent.
fn start_nodes_and_send_traffic(program: &Program) -> [Node; 3] {
    let nodes = [(); 3].map(|()| Node::start_clustered(program));
    nodes[0].run("CLUSTER ADDSLOTSRANGE 0 8191").expect_ok();
    nodes[SECOND_MASTER_INDEX].run("CLUSTER ADDSLOTSRANGE 8192 16383").expect_ok();
    for (epoch, node) in (1..).zip(&nodes) {
        node.run(&format!("CLUSTER SET-CONFIG-EPOCH {epoch}")).expect_ok();
        nodes[0].run(&format!("CLUSTER MEET 127.0.0.1 {}", node.port));
    }
    for node in &nodes {
        wait_for_info_line(node, "cluster_known_nodes:3");
        wait_for_info_line(node, "cluster_state:ok");
    }
    let first = nodes[0].run("CLUSTER MYID").text();
    eventually("the replica knows its master", || {
        (nodes[REPLICA_INDEX].run(&format!("CLUSTER REPLICATE {first}")).text() == "OK").then_some(())
    });
    eventually("the replica is linked", || {
        (nodes[REPLICA_INDEX].info("replication", "master_link_status")? == "up").then_some(())
    });
    for node in &nodes {
        eventually("all know of the replica", || {
            node.run("CLUSTER NODES").text().contains("slave").then_some(())
        });
    }
    nodes[0].run("PUBLISH channel message");
    // The slot belongs to the first node, so its replica receives the message.
    nodes[0].run("SPUBLISH {bar} message");
    for kind in ["publish", "publishshard"] {
        wait_for_info_line(&nodes[REPLICA_INDEX], &format!("cluster_stats_messages_{kind}_received:1"));
    }
    nodes[REPLICA_INDEX].run("CLUSTER FAILOVER").expect_ok();
    eventually("the replica is a master", || {
        (nodes[REPLICA_INDEX].info("replication", "role")? == "master").then_some(())
    });
    eventually("the first is its replica", || {
        (nodes[0].info("replication", "master_link_status")? == "up").then_some(())
    });
    nodes
}

fn wait_for_info_line(node: &Node, line: &str) {
    eventually(&format!("{} shows {line}", node.port), || {
        node.run("CLUSTER INFO").text().contains(line).then_some(())
    });
}

/// The names of the counters, without those of UPDATE messages, because timing decides whether a node sends any.
fn counter_names(node: &Node) -> BTreeSet<String> {
    let text = node.run("CLUSTER INFO").text();
    let names = text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.to_owned());
    names.filter(|name| !name.starts_with("cluster_stats_messages_update_")).collect()
}

#[test]
fn cluster_info_has_all_bus_counters_of_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let (theirs, ours) =
        (start_nodes_and_send_traffic(&valkey), start_nodes_and_send_traffic(&Program::redoubt()));
    let wanted = theirs.each_ref().map(counter_names);
    for (node, kinds) in [
        (0, ["ping_sent", "pong_received", "publish_sent", "publishshard_sent", "mfstart_received"]),
        (
            SECOND_MASTER_INDEX,
            ["ping_received", "pong_sent", "meet_received", "auth-req_received", "auth-ack_sent"],
        ),
        (
            REPLICA_INDEX,
            ["ping_sent", "publish_received", "mfstart_sent", "auth-req_sent", "auth-ack_received"],
        ),
    ] {
        for kind in kinds {
            let name = format!("cluster_stats_messages_{kind}");
            assert!(wanted[node].contains(&name), "{node}: the story had no {name}: {:?}", wanted[node]);
        }
        eventually(&format!("node {node} has what Valkey's has: {:?}", wanted[node]), || {
            wanted[node].is_subset(&counter_names(&ours[node])).then_some(())
        });
    }
}

/// The fields of a link, as pairs of name and value.
type LinkFields = Vec<(String, Reply)>;

fn read_links(node: &Node) -> Vec<LinkFields> {
    let pairs = |link: &Reply| link.items().chunks(2).map(|pair| (pair[0].text(), pair[1].clone())).collect();
    node.run("CLUSTER LINKS").items().iter().map(pairs).collect()
}

fn link_field<'a>(link: &'a LinkFields, name: &str) -> &'a Reply {
    let found = link.iter().find(|(known, _)| known == name);
    &found.unwrap_or_else(|| panic!("no {name} in {link:?}")).1
}

/// The outgoing link of a node; `None` while the node has none.
fn outgoing_link(node: &Node) -> Option<LinkFields> {
    read_links(node).into_iter().find(|link| link_field(link, "direction").text() == "to")
}

/// The fields of a link to or from `other`, with each number replaced by a placeholder.
fn describe_link(link: &LinkFields, peer_id: &str) -> String {
    let kind = |value: &Reply| match value {
        Reply::Int(_) => "a number".to_owned(),
        text => text.text().replace(peer_id, "the other"),
    };
    let fields: Vec<String> = link.iter().map(|(name, value)| format!("{name}: {}", kind(value))).collect();
    fields.join(", ")
}

/// Publishes to a node that does not read, until the send buffer limit closes the link. Returns the links before that,
/// and the outgoing link while its buffer was in use.
fn links_to_stalled_peer(program: &Program) -> (Vec<String>, String) {
    let options = "--save  --cluster-enabled yes --cluster-node-timeout 60000";
    let nodes = [(); 2].map(|()| Node::start(program, options));
    let [first, frozen] = &nodes;
    first.run(&format!("CLUSTER MEET 127.0.0.1 {}", frozen.port)).expect_ok();
    let id = frozen.run("CLUSTER MYID").text();
    eventually("each has a link to the other and one from it", || {
        nodes.iter().all(|node| read_links(node).len() == 2).then_some(())
    });
    let mut idle_links: Vec<String> = read_links(first).iter().map(|link| describe_link(link, &id)).collect();
    idle_links.sort();
    frozen.freeze();
    let mut client = first.connect();
    let message = "x".repeat(256 << 10);
    let waiting = eventually("two megabytes are buffered", || {
        client.call(&["PUBLISH", "channel", &message]);
        let link = outgoing_link(first)?;
        let [used, allocated] =
            ["send-buffer-used", "send-buffer-allocated"].map(|name| link_field(&link, name).int());
        (used > 2 << 20 && allocated >= used).then_some(link)
    });
    let ended = || {
        let count = cluster_info_field(&mut first.connect(), "total_cluster_links_buffer_limit_exceeded");
        count.expect("a counter").parse::<u64>().expect("a number")
    };
    assert_eq!(ended(), 0);
    first.run("CONFIG SET cluster-link-sendbuf-limit 1mb").expect_ok();
    eventually("the link is closed", || {
        client.call(&["PUBLISH", "channel", &message]);
        (ended() > 0).then_some(())
    });
    frozen.thaw();
    eventually("there is a new link", || {
        let used = link_field(&outgoing_link(first)?, "send-buffer-used").int();
        (used < 1 << 20 && read_links(first).len() == 2).then_some(())
    });
    (idle_links, describe_link(&waiting, &id))
}

#[test]
fn cluster_links_report_send_buffer_and_limit_like_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let wanted = links_to_stalled_peer(&valkey);
    assert!(wanted.1.contains("direction: to") && wanted.1.contains("events: rw"), "{wanted:?}");
    assert_eq!(links_to_stalled_peer(&Program::redoubt()), wanted);
}

/// The value of a field of CLUSTER INFO.
fn info_counter(node: &Node, field: &str) -> u64 {
    cluster_info_field(&mut node.connect(), field).and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// The bug: nodes with a `cluster-node-timeout` below half a second failed to connect. The test also checks what DEBUG
/// and CONFIG RESETSTAT do to the counters of two such nodes.
#[test]
fn nodes_with_short_timeout_join_and_count_dropped_packets() {
    let options = "--save  --cluster-enabled yes --cluster-node-timeout 100 --loglevel debug \
                   --enable-debug-command yes";
    let nodes = [(); 2].map(|()| Node::start(&Program::redoubt(), options));
    nodes[0].run(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[1].port)).expect_ok();
    for node in &nodes {
        eventually("both are linked", || {
            let text = node.run("CLUSTER NODES").text();
            let linked = text.lines().filter(|line| line.contains(" connected")).count();
            (linked == 2 && !text.contains("handshake")).then_some(())
        });
    }
    let (received, sent) = ("cluster_stats_messages_received", "cluster_stats_messages_sent");
    eventually("they exchange messages", || {
        (info_counter(&nodes[0], received).min(info_counter(&nodes[0], sent)) > 200).then_some(())
    });
    nodes[0].run("DEBUG DROP-CLUSTER-PACKET-FILTER -2").expect_ok();
    nodes[0].run("CONFIG RESETSTAT").expect_ok();
    assert!(info_counter(&nodes[0], received) < 200 && info_counter(&nodes[0], sent) < 200);
    eventually("dropped packets are counted", || (info_counter(&nodes[0], received) > 0).then_some(()));
    let other = nodes[1].run("CLUSTER MYID").text();
    let log = nodes[0].log();
    assert!(log.contains(" that matches debug drop filter"), "{log}");
    assert!(log.contains(&format!("Sending ping packet to node {other} (127.0.0.1:")), "{log}");
    nodes[0].run("DEBUG DROP-CLUSTER-PACKET-FILTER -1").expect_ok();
    // A node in handshake has a random id until it replies.
    nodes[0].run("CLUSTER MEET 127.0.0.1 1 2").expect_ok();
    let text = nodes[0].run("CLUSTER NODES").text();
    let stand_in =
        text.lines().find(|line| line.contains("handshake")).and_then(|line| line.split(' ').next());
    let stand_in = stand_in.expect("it is being met");
    nodes[0].run(&format!("DEBUG CLUSTERLINK KILL ALL {stand_in}")).expect_ok();
}
