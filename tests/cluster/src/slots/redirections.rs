//! Tests of redirections and errors for slots that a node does not serve or is migrating.

use harness::{Cluster, Node, Program, Reply, eventually, keys_for_all_slots};

fn error_reply(text: &str) -> Reply {
    Reply::Error(text.into())
}

#[test]
fn keys_of_other_nodes_are_redirected_and_cross_slot_commands_refused() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 1);
    let keys = keys_for_all_slots();
    let mut first = cluster.nodes[0].connect();
    let second_port = cluster.nodes[1].port;
    assert_eq!(
        first.call(&["GET", &keys[8000]]),
        error_reply(&format!("MOVED 8000 127.0.0.1:{second_port}"))
    );
    assert_eq!(
        first.call(&["MGET", &keys[0], &keys[1]]),
        error_reply("CROSSSLOT Keys in request don't hash to the same slot")
    );
    first.call(&["MSET", "{key:0}a", "1", "{key:0}b", "2"]);
    let tagged = harness::slot_of("key:0");
    assert_eq!(first.call_line("CLUSTER KEYSLOT {key:0}anything").int(), i64::from(tagged));
    assert_eq!(first.call_line("SELECT 1"), error_reply("ERR SELECT is not allowed in cluster mode"));

    // A replica redirects everything to its master unless the client sent READONLY.
    let mut replica = cluster.nodes[3].connect();
    first.call(&["SET", &keys[0], "x"]).expect_ok();
    let moved = error_reply(&format!("MOVED 0 127.0.0.1:{}", cluster.nodes[0].port));
    assert_eq!(replica.call(&["GET", &keys[0]]), moved);
    replica.call_line("READONLY").expect_ok();
    eventually("the replica has the key", || {
        (replica.call(&["GET", &keys[0]]) == Reply::Bulk(b"x".to_vec())).then_some(())
    });
    assert_eq!(replica.call(&["SET", &keys[0], "y"]), moved, "writes still go to the master");
    assert!(replica.call(&["GET", &keys[8000]]).is_error("MOVED 8000"), "and so do other masters' slots");
    replica.call_line("READWRITE").expect_ok();
    assert_eq!(replica.call(&["GET", &keys[0]]), moved);
}

/// Behind a forwarded port a client cannot use any address known to the nodes, so redirections contain only the port.
#[test]
fn redirections_use_preferred_endpoint() {
    let cluster = Cluster::start(&Program::redoubt(), 2, 0);
    let key = &keys_for_all_slots()[16000];
    let (mut first, port) = (cluster.nodes[0].connect(), cluster.nodes[1].port);
    for (kind, host) in [("ip", "127.0.0.1"), ("unknown-endpoint", ""), ("hostname", "?")] {
        first.call(&["CONFIG", "SET", "cluster-preferred-endpoint-type", kind]).expect_ok();
        assert_eq!(first.call(&["GET", key]), error_reply(&format!("MOVED 16000 {host}:{port}")), "{kind}");
    }
    cluster.nodes[1].run("CONFIG SET cluster-announce-hostname two.example").expect_ok();
    eventually("the other node receives the name", || {
        (first.call(&["GET", key]) == error_reply(&format!("MOVED 16000 two.example:{port}"))).then_some(())
    });
}

/// When an announced address or hostname changes, every node redirects clients to the new address at once, not only
/// after the next ping.
#[test]
fn announcements_are_broadcast_immediately() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 0);
    for node in &cluster.nodes {
        // With this timeout nodes ping each other only once a minute.
        node.run("CONFIG SET cluster-node-timeout 600000").expect_ok();
    }
    let (announcing, id) = (&cluster.nodes[1], cluster.node_id(1));
    let (port, bus_port) = (announcing.port, announcing.port + 10_000);
    // Each announcement is broadcast at once. A regular ping could by chance deliver at most one of them.
    let steps = [
        ("hostname", "two.example".to_owned(), format!("127.0.0.1:{port}@{bus_port},two.example")),
        ("port", "6390".to_owned(), format!("127.0.0.1:6390@{bus_port},two.example")),
        ("port", "0".to_owned(), format!("127.0.0.1:{port}@{bus_port},two.example")),
        ("ip", "127.0.0.9".to_owned(), format!("127.0.0.9:{port}@{bus_port},two.example")),
        ("ip", "127.0.0.1".to_owned(), format!("127.0.0.1:{port}@{bus_port},two.example")),
        ("hostname", "2.example".to_owned(), format!("127.0.0.1:{port}@{bus_port},2.example")),
    ];
    for (what, value, shown) in steps {
        announcing.run(&format!("CONFIG SET cluster-announce-{what} {value}")).expect_ok();
        for node in &cluster.nodes {
            eventually(&format!("{what} {value} is known"), || {
                let nodes = node.run("CLUSTER NODES").text();
                let line = nodes.lines().find(|line| line.starts_with(&id))?;
                (line.split(' ').nth(1) == Some(&shown)).then_some(())
            });
        }
    }
    // The human-readable name appears only in `nodes.conf`.
    announcing.run("CONFIG SET cluster-announce-human-nodename rack-2").expect_ok();
    for node in &cluster.nodes {
        eventually("the name is known", || {
            let file = std::fs::read_to_string(node.folder().join("nodes.conf")).expect("it can be read");
            let line = file.lines().find(|line| line.starts_with(&id))?;
            line.contains("nodename=rack-2").then_some(())
        });
    }
}

/// A command with missing keys in a migrating slot gets ASK, or TRYAGAIN if only some of its keys are missing.
#[test]
fn migrating_slot_replies_ask_and_tryagain() {
    let cluster = Cluster::start(&Program::redoubt(), 2, 0);
    let (source, target) = (&cluster.nodes[0], &cluster.nodes[1]);
    let slot = harness::slot_of("bar");
    assert!(slot < 8192, "the slot is served by the first node");
    let mut from = source.connect();
    let mut to = target.connect();
    from.call_line("MSET {bar}1 one {bar}2 two").expect_ok();

    to.call_line(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", cluster.node_id(0))).expect_ok();
    from.call_line(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", cluster.node_id(1))).expect_ok();
    assert_eq!(from.call_line("GET {bar}1").text(), "one", "keys not yet moved are served");
    from.call_line(&format!("MIGRATE 127.0.0.1 {} {{bar}}1 0 5000", target.port)).expect_ok();

    let ask = error_reply(&format!("ASK {slot} 127.0.0.1:{}", target.port));
    assert_eq!(from.call_line("GET {bar}1"), ask);
    assert_eq!(from.call_line("SET {bar}new 1"), ask);
    assert_eq!(
        from.call_line("MGET {bar}1 {bar}2"),
        error_reply("TRYAGAIN Multiple keys request during rehashing of slot")
    );

    assert_eq!(to.call_line("GET {bar}1"), error_reply(&format!("MOVED {slot} 127.0.0.1:{}", source.port)));
    to.call_line("ASKING").expect_ok();
    assert_eq!(to.call_line("GET {bar}1").text(), "one");
    assert!(to.call_line("GET {bar}1").is_error("MOVED"), "asking holds for one command");
    to.call_line("ASKING").expect_ok();
    assert_eq!(
        to.call_line("MGET {bar}1 {bar}2"),
        error_reply("TRYAGAIN Multiple keys request during rehashing of slot")
    );

    from.call_line(&format!("MIGRATE 127.0.0.1 {} {{bar}}2 0 5000", target.port)).expect_ok();
    assert_eq!(from.call_line(&format!("CLUSTER COUNTKEYSINSLOT {slot}")).int(), 0);
    let to_id = cluster.node_id(1);
    to.call_line(&format!("CLUSTER SETSLOT {slot} NODE {to_id}")).expect_ok();
    from.call_line(&format!("CLUSTER SETSLOT {slot} NODE {to_id}")).expect_ok();
    assert_eq!(from.call_line("GET {bar}2"), error_reply(&format!("MOVED {slot} 127.0.0.1:{}", target.port)));
    assert_eq!(to.call_line("MGET {bar}1 {bar}2").items().len(), 2);
    assert_eq!(to.call_line(&format!("CLUSTER GETKEYSINSLOT {slot} 10")).items().len(), 2);
    cluster.wait_until_ok();
}

/// MIGRATE is redirected like any write, uses one connection for many keys, reconnects when the target was down, and
/// counts as a write for WAIT.
#[test]
fn migrate_reuses_one_connection_and_is_redirected() {
    let mut cluster = Cluster::start(&Program::redoubt(), 2, 1);
    let slot = harness::slot_of("bar");
    let mut from = cluster.nodes[0].connect();
    let target = cluster.nodes[1].port;
    let migrate = |key: &str| format!("MIGRATE 127.0.0.1 {target} {key} 0 5000");
    let moved = error_reply(&format!("MOVED {slot} 127.0.0.1:{}", cluster.nodes[0].port));
    assert_eq!(cluster.nodes[1].run(&migrate("{bar}1")), moved);
    assert_eq!(cluster.nodes[2].run(&migrate("{bar}1")), moved, "a replica moves nothing");
    let two_slots = ["MIGRATE", "127.0.0.1", &target.to_string(), "", "0", "5000", "KEYS", "bar", "foo"];
    assert!(from.call(&two_slots).is_error("CROSSSLOT"));
    for key in 0..40 {
        from.call_line(&format!("SET {{bar}}{key} {key}")).expect_ok();
    }
    let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", cluster.node_id(0));
    cluster.nodes[1].run(&importing).expect_ok();
    from.call_line(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", cluster.node_id(1))).expect_ok();
    let received = |cluster: &Cluster| -> i64 {
        cluster.nodes[1]
            .info("stats", "total_connections_received")
            .expect("a field")
            .parse()
            .expect("a number")
    };
    let before = received(&cluster);
    for key in 0..20 {
        from.call_line(&migrate(&format!("{{bar}}{key}"))).expect_ok();
    }
    // One connection transfers the keys and one reads the counter. A few more are allowed, because another thread may
    // have read the counter.
    let made = received(&cluster) - before;
    assert!(made <= 4, "{made} connections for 20 keys");
    assert_eq!(cluster.nodes[0].info("stats", "migrate_cached_sockets").as_deref(), Some("1"));
    assert_eq!(from.call_line("WAIT 1 20000").int(), 1, "the deletions count as this client's writes");
    let replica = &cluster.nodes[2];
    assert_eq!(replica.run(&format!("CLUSTER COUNTKEYSINSLOT {slot}")).int(), 20);

    cluster.nodes[1].kill();
    // The node restarts with less data than its replica, and stays master.
    cluster.nodes[1].add_options("--empty-master-timeout 0");
    cluster.nodes[1].launch();
    cluster.wait_until_ok();
    let mut from = cluster.nodes[0].connect();
    cluster.nodes[1].run(&importing).expect_ok();
    for key in 20..40 {
        from.call_line(&migrate(&format!("{{bar}}{key}"))).expect_ok();
    }
    assert_eq!(from.call_line(&format!("CLUSTER COUNTKEYSINSLOT {slot}")).int(), 0);
}

/// Clients get CLUSTERDOWN from a node without any slots, and from a node of a cluster with incomplete coverage.
#[test]
fn commands_for_unserved_slots_get_clusterdown() {
    let node = Node::start_clustered(&Program::redoubt());
    assert_eq!(node.run("GET a"), error_reply("CLUSTERDOWN Hash slot not served"));
    node.run("CLUSTER ADDSLOTSRANGE 0 16382").expect_ok();
    eventually("a hole takes the cluster down", || {
        (node.run("GET a") == error_reply("CLUSTERDOWN The cluster is down")).then_some(())
    });
    node.run("CONFIG SET cluster-require-full-coverage no").expect_ok();
    eventually("covered slots are served", || (node.run("GET a") == Reply::NullBulk).then_some(()));
    let key = &keys_for_all_slots()[16_383];
    assert_eq!(node.run(&format!("GET {key}")), error_reply("CLUSTERDOWN Hash slot not served"));
    assert_eq!(node.run("CLUSTER ADDSLOTS 5"), error_reply("ERR Slot 5 is already busy"));
    assert_eq!(node.run("CLUSTER ADDSLOTS 16384"), error_reply("ERR Invalid or out of range slot"));
    assert_eq!(node.run("CLUSTER DELSLOTS 16383"), error_reply("ERR Slot 16383 is already unassigned"));
}
