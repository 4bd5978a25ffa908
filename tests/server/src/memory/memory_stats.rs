//! Tests of MEMORY STATS and of the memory section of INFO.

use harness::{Node, Program, Reply, eventually};

fn stats_field(stats: &Reply, name: &str) -> Reply {
    let pairs = stats.items().chunks(2).find(|pair| pair[0].text() == name);
    pairs.map(|pair| pair[1].clone()).unwrap_or_else(|| panic!("no {name} in {stats:?}"))
}

#[test]
fn memory_stats_separates_clients_replicas_backlog_and_databases() {
    let program = Program::redoubt();
    let master = Node::start(&program, "--save ");
    let number = |name: &str| info_number(&master, name);
    assert_eq!((number("mem_replication_backlog"), number("mem_clients_slaves")), (0, 0));
    let replica = Node::start(&program, &format!("--save  --replicaof 127.0.0.1 {}", master.port));
    eventually("the replica has its data", || {
        (replica.info("replication", "master_link_status").as_deref() == Some("up")).then_some(())
    });
    let mut connection = master.connect();
    connection.call(&["SELECT", "3"]).expect_ok();
    connection.call(&["SET", "k", "v"]).expect_ok();
    assert!(number("mem_replication_backlog") > 0 && number("mem_clients_slaves") > 0);
    assert!(number("mem_clients_normal") > 0);

    let stats = master.run("MEMORY STATS");
    for name in ["startup.allocated", "replication.backlog", "clients.slaves", "clients.normal"] {
        assert!(stats_field(&stats, name).int() > 0, "{name}");
    }
    assert!(stats_field(&stats_field(&stats, "db.3"), "overhead.hashtable.main").int() > 0);
    assert!(!format!("{stats:?}").contains("db.0"), "an empty database takes nothing");
    assert!(stats_field(&stats, "overhead.total").int() > stats_field(&stats, "startup.allocated").int());
}

/// MEMORY STATS must have Valkey's fields in Valkey's order.
#[test]
fn memory_stats_has_the_fields_of_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let names = [Program::redoubt(), valkey].map(|program| {
        let node = Node::start(&program, "--save ");
        node.run("SET k v").expect_ok();
        let stats = node.run("MEMORY STATS");
        stats.items().chunks(2).map(|pair| pair[0].text()).collect::<Vec<_>>()
    });
    assert_eq!(names[0], names[1]);
}

/// Large values are allocated outside the keyspace's pages. Their size is only reported by the allocator of the release
/// binary.
#[test]
fn memory_stats_counts_large_values_outside_pages() {
    let node = Node::start(&Program::redoubt(), "--save ");
    let used =
        || -> u64 { node.info("memory", "used_memory").and_then(|text| text.parse().ok()).expect("it") };
    let before = used();
    let mut connection = node.connect();
    let value = "x".repeat(20 << 20);
    for key in ["a", "b"] {
        connection.call(&["SET", key, &value]).expect_ok();
    }
    assert!(used() >= before + 2 * value.len() as u64, "two large values in {} to {}", before, used());

    connection.call(&["CONFIG", "SET", "maxmemory", "50mb"]).expect_ok();
    eventually("a value that does not fit is refused", || {
        let reply = format!("{:?}", connection.call(&["APPEND", "c", &value]));
        reply.contains("OOM").then_some(())
    });
}

/// Regression test: a few thousand small keys are spread over as many slots. Each slot had its own page and index
/// bucket, which used five times Valkey's memory.
#[test]
fn few_small_keys_use_little_memory() {
    let Some(valkey) = Program::valkey() else { return };
    let nodes = [Program::redoubt(), valkey].map(|program| Node::start(&program, "--save "));
    for count in [4000, 50_000] {
        let [ours, theirs] = nodes.each_ref().map(|node| {
            let mut connection = node.connect();
            connection.call_line("FLUSHALL").expect_ok();
            // The first commands of a connection make the server allocate memory that it keeps.
            set_keys(&mut connection, "before", 500);
            let before = info_number(node, "used_memory");
            set_keys(&mut connection, "k", count);
            (info_number(node, "used_memory") - before) / count as i64
        });
        assert!(ours * 2 <= theirs * 3, "{count} keys: {ours} bytes each, Valkey {theirs}");
    }
}

fn info_number(node: &Node, name: &str) -> i64 {
    node.info("memory", name).and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
}

fn set_keys(connection: &mut harness::Connection, prefix: &str, count: usize) {
    for key in 0..count {
        connection.send(&["SET", &format!("{prefix}:{key}"), &key.to_string()]).expect("the server runs");
        if key % 100 == 99 {
            (0..100).for_each(|_| connection.read().expect("a reply").expect_ok());
        }
    }
}
