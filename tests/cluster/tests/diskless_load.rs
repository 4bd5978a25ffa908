//! A replica that loads its master's snapshot as it comes (`repl-diskless-load`).

use harness::{Node, Program, Value, eventually};

fn start(options: &str) -> Node {
    Node::start(&Program::redoubt(), &format!("--repl-diskless-sync-delay 0 {options}"))
}

fn fill(node: &Node, value: &str) {
    let script = "for i = 1, 500 do redis.call('set', 'key:' .. i, ARGV[1]) end return 500";
    assert_eq!(node.connect().call(&["EVAL", script, "0", value]), Value::Int(500));
}

fn info(node: &Node, section: &str, name: &str) -> String {
    node.info(section, name).unwrap_or_default()
}

fn follow(replica: &Node, master: &Node) {
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    wait_for_link(replica);
}

fn wait_for_link(replica: &Node) {
    eventually("the link is up", || {
        (info(replica, "replication", "master_link_status") == "up").then_some(())
    });
}

/// Data of every way ends up the same, whatever was here before, and whatever the master sends its snapshot as.
#[test]
fn every_way_takes_over_the_masters_data() {
    for diskless in ["yes", "no"] {
        let master = start(&format!("--repl-diskless-sync {diskless}"));
        fill(&master, "new");
        for way in ["disabled", "on-empty-db", "swapdb", "flush-before-load"] {
            let replica = start(&format!("--repl-diskless-load {way}"));
            replica.run("SET own value").expect_ok();
            follow(&replica, &master);
            assert_eq!(replica.run("DBSIZE"), Value::Int(500), "{way}");
            assert_eq!(replica.run("GET key:7").text(), "new", "{way}");
            master.run("SET later value").expect_ok();
            eventually("the stream follows", || (replica.run("DBSIZE") == Value::Int(501)).then_some(()));
            master.run("DEL later");
        }
    }
}

/// Cuts the replica off until its master's backlog has lost what it needs.
fn fall_behind(replica: &Node, master: &Node, value: &str) {
    replica.freeze();
    master.run("CLIENT KILL TYPE replica");
    fill(master, value);
    // More than the backlog holds.
    master.connect().call(&["SET", "large", &"x".repeat(100_000)]).expect_ok();
    master.run("DEL large");
    replica.thaw();
}

/// The replica's old data is an older state of the same data, and is served until the newer one is there.
#[test]
fn the_old_data_is_served_while_the_new_is_loaded_beside_it() {
    let master = start("--repl-backlog-size 16kb");
    fill(&master, "old");
    let replica = start("--repl-diskless-load swapdb --key-load-delay 10000");
    follow(&replica, &master);
    fall_behind(&replica, &master, "new");
    eventually("the snapshot is loaded beside", || {
        (info(&replica, "persistence", "async_loading") == "1").then_some(())
    });
    assert_eq!(info(&replica, "persistence", "loading"), "0");
    assert_eq!(replica.run("GET key:7").text(), "old");
    assert_eq!(replica.run("DBSIZE"), Value::Int(500));
    assert!(replica.run("BGSAVE").is_error("LOADING"));
    replica.run("CONFIG SET key-load-delay 0").expect_ok();
    wait_for_link(&replica);
    assert_eq!(replica.run("GET key:7").text(), "new");
    assert_eq!(info(&replica, "persistence", "async_loading"), "0");
    assert_eq!(info(&master, "stats", "sync_full"), "2");
}

/// A link that breaks on the way takes the old data only where it had to go first.
#[test]
fn a_broken_transfer_leaves_the_old_data_unless_that_was_dropped_first() {
    for (way, left) in [("disabled", 500), ("swapdb", 500), ("flush-before-load", 0)] {
        let mut master = start("--repl-backlog-size 16kb --rdb-key-save-delay 20000");
        fill(&master, "old");
        let replica = start(&format!("--repl-diskless-load {way}"));
        master.run("CONFIG SET rdb-key-save-delay 0").expect_ok();
        follow(&replica, &master);
        master.run("CONFIG SET rdb-key-save-delay 20000").expect_ok();
        fall_behind(&replica, &master, "new");
        eventually("a snapshot comes", || {
            (info(&replica, "replication", "master_sync_in_progress") == "1").then_some(())
        });
        if way == "flush-before-load" {
            eventually("the old data is gone", || {
                (info(&replica, "persistence", "loading") == "1").then_some(())
            });
        }
        master.kill();
        eventually("the replica has noticed", || {
            (info(&replica, "replication", "master_sync_in_progress") == "0"
                && info(&replica, "persistence", "loading") == "0"
                && info(&replica, "persistence", "async_loading") == "0")
                .then_some(())
        });
        assert_eq!(replica.run("DBSIZE"), Value::Int(left), "{way}");
        master.add_options("--rdb-key-save-delay 0");
        master.launch();
        fill(&master, "newest");
        wait_for_link(&replica);
        eventually("it has everything again", || {
            (replica.run("GET key:7") == Value::Bulk(b"newest".to_vec())).then_some(())
        });
    }
}

/// A master of Redis sends both forms of a snapshot.
#[test]
fn a_snapshot_of_redis_is_loaded_as_it_comes() {
    for diskless in ["yes", "no"] {
        let options = format!("--repl-diskless-sync {diskless} --repl-diskless-sync-delay 0");
        let master = Node::start(&Program::redis(), &options);
        fill(&master, "new");
        let replica = start("--repl-diskless-load swapdb");
        follow(&replica, &master);
        assert_eq!(replica.run("DBSIZE"), Value::Int(500));
        assert_eq!(replica.run("DBSIZE"), master.run("DBSIZE"));
    }
}
