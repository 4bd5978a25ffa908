//! Tests of clients blocked on keys while the slot moves, the master is replaced, or the cluster goes down.

use harness::{Cluster, Connection, Node, Program, Reply, eventually, keys_for_all_slots, slot_of};

fn start_cluster(replicas: usize) -> Cluster {
    Cluster::start(&Program::redoubt(), 3, replicas)
}

fn wait_for_blocked(node: &Node, count: usize) {
    eventually(&format!("{count} clients wait"), || {
        (node.info("clients", "blocked_clients")? == count.to_string()).then_some(())
    });
}

fn block_clients(node: &Node, lines: &[String]) -> Vec<Connection> {
    let wait = |line: &String| {
        let mut connection = node.connect();
        connection.send(&line.split(' ').collect::<Vec<_>>()).expect("the node takes commands");
        connection
    };
    let clients = lines.iter().map(wait).collect();
    wait_for_blocked(node, lines.len());
    clients
}

/// Commands that block on `key`, and one that blocks on a consumer group of the stream `{key}s`, which this function
/// creates.
fn blocking_commands(node: &Node, key: &str) -> Vec<String> {
    node.run(&format!("XGROUP CREATE s{{{key}}} g $ MKSTREAM")).expect_ok();
    [
        format!("BLPOP {key} 0"),
        format!("BLMOVE {key} other{{{key}}} LEFT LEFT 0"),
        format!("BZMPOP 0 1 {key} MIN"),
        format!("XREAD BLOCK 0 STREAMS {key} $"),
        format!("XREADGROUP GROUP g me BLOCK 0 STREAMS s{{{key}}} >"),
    ]
    .to_vec()
}

#[test]
fn blocked_clients_are_redirected_when_slot_moves() {
    let cluster = start_cluster(0);
    let key = &keys_for_all_slots()[0];
    let slot = slot_of(key);
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    let mut stays = block_clients(from, &[format!("BLPOP {} 0", keys_for_all_slots()[1])]);
    let mut lines = blocking_commands(from, key);
    from.run(&format!("DEL s{{{key}}}"));
    lines.pop();
    let mut clients = Vec::new();
    for line in &lines {
        let mut client = from.connect();
        client.send(&line.split(' ').collect::<Vec<_>>()).expect("the node takes commands");
        clients.push(client);
    }
    wait_for_blocked(from, 1 + lines.len());
    let (from_id, to_id) = (cluster.node_id(0), cluster.node_id(1));
    to.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")).expect_ok();
    from.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}")).expect_ok();
    to.run(&format!("CLUSTER SETSLOT {slot} NODE {to_id}")).expect_ok();
    from.run(&format!("CLUSTER SETSLOT {slot} NODE {to_id}")).expect_ok();
    for (client, line) in clients.iter_mut().zip(&lines) {
        let reply = client.read().expect("a reply");
        assert_eq!(reply, Reply::Error(format!("MOVED {slot} {}", to.address())), "{line}");
    }
    wait_for_blocked(from, 1);
    let other = &keys_for_all_slots()[1];
    assert_eq!(from.connect().call(&["RPUSH", other, "v"]).int(), 1);
    assert_eq!(stays[0].read().expect("a reply").items()[1].text(), "v", "its slot stayed");
}

#[test]
fn blocked_clients_are_released_when_master_is_demoted() {
    let cluster = start_cluster(1);
    let key = &keys_for_all_slots()[0];
    let lines = blocking_commands(&cluster.nodes[0], key);
    let mut clients = block_clients(&cluster.nodes[0], &lines);
    // A client in READONLY mode stays blocked: the demoted node still serves its reads.
    let mut reader = cluster.nodes[0].connect();
    reader.call_line("READONLY").expect_ok();
    let stream = format!("more{{{key}}}");
    reader.send(&["XREAD", "BLOCK", "0", "STREAMS", &stream, "$"]).expect("the node takes commands");
    wait_for_blocked(&cluster.nodes[0], lines.len() + 1);
    cluster.nodes[3].run("CLUSTER FAILOVER").expect_ok();
    cluster.wait_for_owner(0, |port| port == cluster.nodes[3].port);
    for (client, line) in clients.iter_mut().zip(&lines) {
        let reply = client.read().expect("a reply");
        let told =
            reply.is_error("UNBLOCKED force unblock from blocking operation") || reply.is_error("MOVED 0 ");
        assert!(told, "{line}: {reply:?}");
    }
    wait_for_blocked(&cluster.nodes[0], 1);
    assert_eq!(cluster.nodes[3].run(&format!("XADD {stream} 1-1 f v")).text(), "1-1");
    let entries = format!("{:?}", reader.read().expect("the stream brings it"));
    assert!(entries.contains("1-1"), "{entries}");
    // The client can block again on the new master.
    let mut client = block_clients(&cluster.nodes[3], &[format!("BLPOP {key} 0")]).remove(0);
    assert_eq!(cluster.nodes[3].connect().call(&["RPUSH", key, "v"]).int(), 1);
    assert_eq!(client.read().expect("a reply").items()[1].text(), "v");
}

#[test]
fn blocked_clients_get_error_when_cluster_goes_down() {
    let mut cluster = start_cluster(0);
    let lines = blocking_commands(&cluster.nodes[0], &keys_for_all_slots()[0]);
    let mut clients = block_clients(&cluster.nodes[0], &lines);
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    for (client, line) in clients.iter_mut().zip(&lines) {
        let reply = client.read().expect("a reply");
        assert!(reply.is_error("CLUSTERDOWN "), "{line}: {reply:?}");
    }
    wait_for_blocked(&cluster.nodes[0], 0);
}
