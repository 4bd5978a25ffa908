//! Tests of masters that die, freeze or return, and of manual failovers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::{
    Cluster, Connection, Node, Program, Reply, cluster_info_field, eventually, fill_cluster, find_lost_keys,
    keys_for_all_slots, never_within, slot_owner_index,
};

fn start_cluster() -> Cluster {
    Cluster::start(&Program::redoubt(), 3, 1)
}

fn wait_until_replica_of(cluster: &Cluster, node: usize, master: usize) {
    let port = cluster.nodes[master].port.to_string();
    eventually(&format!("{} follows {port}", cluster.nodes[node].port), || {
        let node = &cluster.nodes[node];
        let role = node.run("ROLE");
        let role = role.items();
        let follows = role[0].text() == "slave" && role[2].int().to_string() == port;
        (follows && node.info("replication", "master_link_status")? == "up").then_some(())
    });
}

/// Waits until the first node reports `successor` as the owner of the slot.
fn wait_until_replaced(cluster: &Cluster, slot: u16, successor: usize) {
    eventually("the replica takes over", || {
        let owner = harness::slot_owner(&mut cluster.nodes[0].connect(), slot)?;
        (owner == cluster.nodes[successor].port).then_some(())
    });
}

/// The replica takes over with every key, and the old master comes back as its replica.
#[test]
fn killed_master_is_replaced_and_returns_as_replica() {
    let mut cluster = start_cluster();
    let keys = fill_cluster(&cluster, "before", 5000);

    cluster.nodes[0].kill();
    let successor = cluster.wait_for_owner(0, |port| port == cluster.nodes[3].port);
    assert_eq!(successor, cluster.nodes[3].port);
    cluster.wait_until_ok();
    assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());
    let more = fill_cluster(&cluster, "between", 1000);

    cluster.nodes[0].launch();
    wait_until_replica_of(&cluster, 0, 3);
    cluster.wait_until_ok();
    let expected = cluster.nodes[3].run("DBSIZE");
    eventually("the old master has its successor's keys", || {
        (cluster.nodes[0].run("DBSIZE") == expected).then_some(())
    });
    assert_eq!(find_lost_keys(&cluster, &more), Vec::<String>::new());
}

/// A frozen process refuses no connections, so it is replaced after the node timeout. It must not accept writes when it
/// resumes.
#[test]
fn frozen_master_is_replaced_and_resumes_as_replica() {
    let cluster = start_cluster();
    let keys = fill_cluster(&cluster, "key", 1000);
    let frozen = &cluster.nodes[1];
    let slot = 8000;
    let key = &keys_for_all_slots()[usize::from(slot)];

    frozen.freeze();
    wait_until_replaced(&cluster, slot, 4);
    frozen.thaw();
    wait_until_replica_of(&cluster, 1, 4);
    let reply = frozen.run(&format!("SET {key} late"));
    assert_eq!(reply, Reply::Error(format!("MOVED {slot} 127.0.0.1:{}", cluster.nodes[4].port)));
    cluster.wait_until_ok();
    assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());
}

/// The threads of a resumed process wake in any order. A worker that wakes first finds requests and must not serve them
/// before the bus thread has noticed the pause.
#[test]
fn resumed_master_detects_its_pause_before_serving_clients() {
    let cluster = start_cluster();
    let frozen = &cluster.nodes[1];
    let key = &keys_for_all_slots()[8000];
    let mut clients: Vec<Connection> = (0..100).map(|_| frozen.connect()).collect();
    clients.iter_mut().for_each(|client| client.call_line(&format!("SET {key} before")).expect_ok());

    frozen.freeze();
    let request = format!("SET {key} late\r\n");
    clients.iter_mut().for_each(|client| client.send_raw(request.as_bytes()).expect("sent"));
    wait_until_replaced(&cluster, 8000, 4);
    frozen.thaw();
    let is_served = |client: &mut Connection| client.read().expect("an answer") == Reply::Simple("OK".into());
    let served = clients.iter_mut().map(is_served).filter(|is_served| *is_served).count();
    assert_eq!(served, 0, "of the acknowledged writes");
    cluster.wait_until_ok();
}

/// A manual failover pauses the master's writes for the handover: a client that writes all the time loses no
/// acknowledged write.
#[test]
fn manual_failover_loses_no_acknowledged_write() {
    let cluster = start_cluster();
    let key = &keys_for_all_slots()[100];
    let ports: Vec<u16> = cluster.nodes.iter().map(|node| node.port).collect();
    let over = AtomicBool::new(false);

    let acknowledged = thread::scope(|scope| {
        let writer = scope.spawn(|| increment_counter(ports[0], key, &over));
        eventually("the counter increases", || {
            let value = cluster.nodes[0].run(&format!("GET {key}"));
            (value != Reply::NullBulk && value.text().parse::<u64>().ok()? > 200).then_some(())
        });
        cluster.nodes[3].run("CLUSTER FAILOVER").expect_ok();
        cluster.wait_for_owner(100, |port| port == ports[3]);
        wait_until_replica_of(&cluster, 0, 3);
        // Further increments show that the counter continues on the new master.
        let reached: u64 = cluster.nodes[3].run(&format!("GET {key}")).text().parse().expect("a number");
        eventually("the counter increases", || {
            let value: u64 = cluster.nodes[3].run(&format!("GET {key}")).text().parse().ok()?;
            (value > reached + 200).then_some(())
        });
        over.store(true, Ordering::Relaxed);
        writer.join().expect("the writer ends well")
    });
    let value = cluster.nodes[3].run(&format!("GET {key}")).text();
    assert_eq!(value.parse::<u64>(), Ok(acknowledged), "every acknowledged increment is there, once");
}

/// With `shutdown-on-sigterm failover` a master hands over before it exits, so that its clients are redirected and no
/// write is lost. Valkey is also tested, once as the master and once as its replica.
#[test]
fn master_hands_over_before_shutdown() {
    let ours = Program::redoubt();
    let pairs = [
        (Some(ours.clone()), Some(ours.clone())),
        (Some(ours.clone()), Program::valkey()),
        (Program::valkey(), Some(ours.clone())),
    ];
    for (which, pair) in pairs.into_iter().enumerate() {
        let (Some(master), Some(replica)) = pair else { continue };
        // The node timeout is so long that failure detection cannot cause the failover.
        let options = "--cluster-enabled yes --cluster-node-timeout 20000 --shutdown-on-sigterm failover";
        let programs = [&master, &ours, &ours, &replica, &ours, &ours];
        let mut cluster =
            Cluster::join_nodes(programs.map(|program| Node::start(program, options)).into(), 3);
        let key = &keys_for_all_slots()[100];
        let (first, last) = (cluster.nodes[0].port, cluster.nodes[3].port);
        let over = AtomicBool::new(false);
        let acknowledged = thread::scope(|scope| {
            let writer = scope.spawn(|| increment_counter_on_any_node(&[first, last], key, &over));
            eventually("the counter increases", || {
                let value = cluster.nodes[0].run(&format!("GET {key}"));
                (value != Reply::NullBulk && value.text().parse::<u64>().ok()? > 200).then_some(())
            });
            assert!(cluster.nodes[0].terminate().success());
            cluster.wait_for_owner(100, |port| port == last);
            over.store(true, Ordering::Relaxed);
            writer.join().expect("the writer ends well")
        });
        let value: u64 = cluster.nodes[3].run(&format!("GET {key}")).text().parse().expect("a number");
        assert!(value >= acknowledged, "{value} of {acknowledged} in pair {which}");
        let log = cluster.nodes[0].log();
        assert!(log.contains("Perform auto failover to replica "), "{log}");
        assert!(cluster.nodes[3].log().contains("Forced failover "), "{}", cluster.nodes[3].log());
    }
}

/// Increments the key on whichever node accepts it until `is_over` is set. Returns the highest acknowledged count.
fn increment_counter_on_any_node(ports: &[u16], key: &str, should_stop: &AtomicBool) -> u64 {
    let (mut highest, mut turn) = (0, 0);
    while !should_stop.load(Ordering::Relaxed) {
        let Ok(mut connection) = Connection::open(("127.0.0.1", ports[turn % ports.len()])) else {
            turn += 1;
            continue;
        };
        while !should_stop.load(Ordering::Relaxed)
            && let Ok(Reply::Int(count)) = connection.try_call(&["INCR", key])
        {
            highest = count.unsigned_abs();
        }
        turn += 1;
    }
    highest
}

/// Increments the key, following redirections, until `is_over` is set. Returns the number of acknowledged increments.
fn increment_counter(port: u16, key: &str, should_stop: &AtomicBool) -> u64 {
    let mut connection = Connection::open(("127.0.0.1", port)).expect("the master takes connections");
    let mut acknowledged = 0;
    while !should_stop.load(Ordering::Relaxed) {
        match connection.call(&["INCR", key]) {
            Reply::Int(_) => acknowledged += 1,
            Reply::Error(text) if text.starts_with("MOVED") => {
                let address = text.rsplit(' ').next().expect("an address");
                connection = Connection::open(address).expect("the new master takes connections");
            }
            other => panic!("INCR gave {other:?}"),
        }
    }
    acknowledged
}

/// A replica takes over by FORCE without its master's help, and by TAKEOVER without any votes.
#[test]
fn replica_takes_over_with_force_and_takeover() {
    let mut cluster = start_cluster();
    let keys = fill_cluster(&cluster, "key", 500);

    cluster.nodes[3].run("CLUSTER FAILOVER FORCE").expect_ok();
    cluster.wait_for_owner(0, |port| port == cluster.nodes[3].port);
    wait_until_replica_of(&cluster, 0, 3);

    // With two of three masters and the replica of the third down, no majority is left to vote.
    for index in [1, 2, 5] {
        cluster.nodes[index].kill();
    }
    cluster.nodes[4].run("CLUSTER FAILOVER TAKEOVER").expect_ok();
    eventually("the replica serves its master's slots", || {
        let owner = harness::slot_owner(&mut cluster.nodes[4].connect(), 8000)?;
        (owner == cluster.nodes[4].port).then_some(())
    });
    // The node restarts without its keys, and its replica is down, so it serves the empty dataset after this time.
    cluster.nodes[2].add_options("--empty-master-timeout 2000");
    cluster.nodes[2].launch();
    cluster.wait_until_ok();
    assert_eq!(slot_owner_index(&cluster, 0, 8000), 4);
    let kept: Vec<String> = keys.into_iter().filter(|key| harness::slot_of(key) < 10_923).collect();
    assert_eq!(find_lost_keys(&cluster, &kept), Vec::<String>::new());
}

#[test]
fn invalid_cluster_failover_requests_are_refused() {
    let cluster = start_cluster();
    let refusal = |node: usize, line: &str| cluster.nodes[node].run(line);
    assert_eq!(
        refusal(0, "CLUSTER FAILOVER"),
        Reply::Error("ERR You should send CLUSTER FAILOVER to a replica".into())
    );
    assert_eq!(refusal(3, "CLUSTER FAILOVER NOSUCH"), Reply::Error("ERR syntax error".into()));
    let empty = cluster.nodes[0].run("CLUSTER REPLICATE 0123456789012345678901234567890123456789");
    assert!(empty.is_error("ERR Unknown node"), "{empty:?}");
}

/// With two of three masters down, the last one stops accepting writes and the error gives the reason.
#[test]
fn master_in_minority_stops_accepting_writes() {
    let mut cluster = Cluster::start(&Program::redoubt(), 3, 0);
    let key = &keys_for_all_slots()[0];
    cluster.nodes[0].run(&format!("SET {key} 1")).expect_ok();
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    eventually("the last master reports the cluster as down", || {
        (cluster_info_field(&mut cluster.nodes[0].connect(), "cluster_state")? == "fail").then_some(())
    });
    assert_eq!(
        cluster.nodes[0].run(&format!("SET {key} 2")),
        Reply::Error("CLUSTERDOWN The cluster is down".into())
    );
    cluster.nodes[1].launch();
    cluster.nodes[2].launch();
    cluster.wait_until_ok();
    cluster.nodes[0].run(&format!("SET {key} 3")).expect_ok();
}

/// Ids, slots and roles are on disk: if all nodes are killed at once, the same cluster comes back.
#[test]
fn cluster_state_survives_kill_of_all_nodes() {
    let mut cluster = start_cluster();
    let ids: Vec<String> = (0..6).map(|node| cluster.node_id(node)).collect();
    for node in &mut cluster.nodes {
        node.kill();
    }
    for node in &mut cluster.nodes {
        node.launch();
    }
    cluster.wait_until_ok();
    assert_eq!((0..6).map(|node| cluster.node_id(node)).collect::<Vec<_>>(), ids);
    for (slot, first_owner) in [(0, 0), (8000, 1), (16_000, 2)] {
        let owner = slot_owner_index(&cluster, 5, slot);
        assert!(owner == first_owner || owner == first_owner + 3, "slot {slot} is served by its shard");
    }
}

/// A power failure takes down five of eleven masters: their replicas replace them concurrently, within about half a
/// second.
#[test]
fn five_of_eleven_masters_killed_together_are_replaced_concurrently() {
    let mut cluster = Cluster::start(&Program::redoubt(), 11, 1);
    let keys = fill_cluster(&cluster, "key", 2000);
    cluster.wait_until_synchronised();
    for master in 0..5 {
        let offset = |node: &Node, field: &str| node.info("replication", field)?.parse::<u64>().ok();
        let (replica, port) = (&cluster.nodes[11 + master], cluster.nodes[master].port);
        let wanted = offset(&cluster.nodes[master], "master_repl_offset");
        eventually(&format!("the replica of {port} has caught up"), || {
            (offset(replica, "slave_repl_offset") >= wanted).then_some(())
        });
    }
    let killed = Instant::now();
    cluster.nodes[..5].iter_mut().for_each(Node::kill);
    for master in 0..5 {
        let slot = u16::try_from(16_384 * master / 11 + 1).expect("a slot");
        cluster.wait_for_owner(slot, |port| port == cluster.nodes[11 + master].port);
    }
    cluster.wait_until_ok();
    let took = killed.elapsed();
    println!("all slots are served again after {took:?}");
    assert!(took < Duration::from_secs(6), "{took:?}");
    assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());
}

/// The bug: a replica was moved to another shard, whose master died before it had sent anything. The replica stood for
/// election with the offset of its former history, which was higher than the shard's own, won, and the data of the
/// shard was lost.
#[test]
fn replica_from_another_shard_is_not_elected_by_its_old_offset() {
    let options = "--cluster-enabled yes --cluster-node-timeout 2000 --cluster-replica-validity-factor 0";
    let nodes = (0..6).map(|_| Node::start(&Program::redoubt(), options)).collect();
    let cluster = Cluster::join_nodes(nodes, 3);
    let keys = keys_for_all_slots();
    let (long, short) = (&keys[100], &keys[8000]);
    let value = "x".repeat(10_000);
    for _ in 0..20 {
        cluster.nodes[0].run(&format!("SET {long} {value}")).expect_ok();
    }
    cluster.nodes[1].run(&format!("SET {short} kept")).expect_ok();
    assert_eq!(cluster.nodes[1].run("WAIT 1 10000"), Reply::Int(1));
    let join_it = format!("CLUSTER REPLICATE {}", cluster.node_id(1));
    cluster.nodes[1].freeze();
    cluster.nodes[3].run(&join_it).expect_ok();
    eventually("its offset is that of no data", || {
        (cluster.nodes[3].info("replication", "slave_repl_offset")? == "0").then_some(())
    });
    let witness = &cluster.nodes[0];
    let owner = eventually("a replica takes over", || {
        let owner = harness::slot_owner(&mut witness.connect(), 8000)?;
        (owner != cluster.nodes[1].port).then_some(owner)
    });
    assert_eq!(owner, cluster.nodes[4].port);
    assert_eq!(cluster.nodes[4].run(&format!("GET {short}")).text(), "kept");
    cluster.nodes[1].thaw();
}

/// No replica fails over in a healthy cluster, even if its master seems slow to that one replica.
#[test]
fn healthy_cluster_starts_no_failover() {
    let cluster = start_cluster();
    let epoch =
        cluster_info_field(&mut cluster.nodes[0].connect(), "cluster_current_epoch").expect("an epoch");
    never_within(Duration::from_secs(5), "a failover without a failure", || {
        let nodes = cluster.nodes[1].run("CLUSTER NODES").text();
        nodes.lines().any(|line| line.split(' ').nth(2).is_some_and(|flags| flags.contains("fail")))
    });
    assert_eq!(cluster_info_field(&mut cluster.nodes[0].connect(), "cluster_current_epoch"), Some(epoch));
    assert!(
        (0..3).all(|master| cluster.nodes[master].info("replication", "role").as_deref() == Some("master"))
    );
}

/// When a node returns at another address, all other nodes connect to the new address and redirect clients to it.
#[test]
fn nodes_and_clients_find_restarted_node_at_new_address() {
    let mut cluster = start_cluster();
    let keys = fill_cluster(&cluster, "key", 500);
    // First a master moves to another address, then a replica.
    for number in [0, 3] {
        let id = cluster.node_id(number);
        // A prepared node that is never started reserves a free port.
        let elsewhere = Node::prepare(&Program::redoubt(), "");
        let node = &mut cluster.nodes[number];
        assert!(node.terminate().success());
        node.add_options(&format!("--port {}", elsewhere.port));
        node.port = elsewhere.port;
        node.launch();
        assert_eq!(cluster.node_id(number), id);
        let address = format!("{id} 127.0.0.1:{}@", elsewhere.port);
        for other in &cluster.nodes {
            eventually(&format!("{} knows the new address", other.port), || {
                let nodes = other.run("CLUSTER NODES").text();
                nodes
                    .lines()
                    .any(|line| line.starts_with(&address) && line.contains(" connected"))
                    .then_some(())
            });
        }
        cluster.wait_until_ok();
        // Timing decides whether the node was replaced before it came back, so either node may be the master.
        eventually("each replica has its master's data", || {
            let field = |node: &Node, name| node.info("replication", name);
            let is_in_sync = |node: &Node| {
                field(node, "role").as_deref() == Some("master")
                    || field(node, "master_link_status").as_deref() == Some("up")
            };
            cluster.nodes.iter().all(is_in_sync).then_some(())
        });
        assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());
        // The node is leaked, so that its port stays reserved until the test process ends.
        std::mem::forget(elsewhere);
    }
}
