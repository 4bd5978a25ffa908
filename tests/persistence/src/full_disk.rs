//! A disk that is full, and has room again. Needs to be let mount a small tmpfs.

use harness::{Node, Program, Value, eventually};

const SIZE: u64 = 8 << 20;

/// A server with an append-only file on a small disk; none, and the reason said, where none can be mounted.
fn server(options: &str) -> Option<Node> {
    let mut node = Node::prepare(&Program::redoubt(), &format!("--appendonly yes --save  {options}"));
    if let Err(reason) = node.limit_disk(SIZE) {
        eprintln!("left out: {reason}");
        return None;
    }
    node.launch();
    Some(node)
}

/// Writes until the server refuses; gives how often it said yes before.
fn write_until_refused(node: &Node) -> i64 {
    let mut connection = node.connect();
    let mut count = 0;
    eventually("the server refuses writes", || match connection.run("INCR counter") {
        Value::Int(number) => {
            count = number;
            None
        }
        reply => {
            assert!(reply.is_error("MISCONF Errors writing to the AOF file: No space left"), "{reply:?}");
            Some(count)
        }
    })
}

#[test]
fn writes_are_refused_while_the_disk_is_full_and_taken_again_and_kept_afterwards() {
    let Some(mut node) = server("") else { return };
    node.fill_disk();
    let count = write_until_refused(&node);
    assert_eq!(node.run("GET counter").text(), count.to_string(), "reads are served");
    node.free_disk();
    let mut client = node.connect();
    let next = eventually("the server takes writes again by itself", || match client.run("INCR counter") {
        Value::Int(number) => Some(number),
        _ => None,
    });
    assert_eq!(next, count + 1, "what was refused was not done");
    // The promise of `everysec` for a write that was answered just before the kill.
    assert_eq!(client.run("WAITAOF 1 0 20000").items()[0].int(), 1, "it is on disk");
    node.kill();
    node.launch();
    assert_eq!(node.run("GET counter").text(), next.to_string());
}

/// A script was let change what a client could not, and what it did was lost with the next kill.
#[test]
fn a_script_writes_no_more_than_a_client_while_the_disk_is_full() {
    let Some(node) = server("") else { return };
    node.run("SET kept 1").expect_ok();
    node.fill_disk();
    write_until_refused(&node);
    let mut client = node.connect();
    let refused = |reply: Value| {
        let text = format!("{reply:?}");
        assert!(text.contains("MISCONF Errors writing to the AOF file: No space left"), "{text}");
    };
    // One that says that it writes is refused before it begins, also where it would be queued.
    let writes = "return redis.call('incr',KEYS[1])";
    let declared = format!("#!lua\n{writes}");
    for script in [writes, &declared] {
        refused(client.call(&["EVAL", script, "1", "kept"]));
    }
    client.run("MULTI").expect_ok();
    client.call(&["EVAL", writes, "1", "kept"]);
    refused(client.run("EXEC"));
    client.run("MULTI").expect_ok();
    refused(client.call(&["EVAL", &declared, "1", "kept"]));
    client.run("DISCARD").expect_ok();
    let reads = "#!lua flags=no-writes\nreturn redis.call('get',KEYS[1])";
    assert_eq!(client.call(&["EVAL", reads, "1", "kept"]).text(), "1");
}

#[test]
fn a_node_of_a_cluster_survives_a_full_disk_and_promises_nothing_meanwhile() {
    let Some(mut node) = server("--cluster-enabled yes") else { return };
    node.run("CLUSTER ADDSLOTSRANGE 0 16383").expect_ok();
    node.fill_disk();
    // The answer waits for the disk.
    let mut patient = node.connect();
    patient.send(&["CLUSTER", "BUMPEPOCH"]).expect("it listens");
    eventually("it cannot write down what it knows", || {
        node.log().contains("can't update cluster config file").then_some(())
    });
    assert_eq!(node.run("PING"), Value::Simple("PONG".into()));
    node.free_disk();
    let epoch = patient.read().expect("it is answered").text();
    assert!(epoch.starts_with("BUMPED"), "{epoch}");
    assert!(!node.has_ended());
    node.kill();
    node.launch();
    let mine = harness::cluster_field(&mut node.connect(), "cluster_my_epoch");
    assert_eq!(mine.as_deref(), epoch.strip_prefix("BUMPED "), "it was on disk before it was told");
}

/// A message is no change of data: nothing of it has to be on the disk before the publisher is answered.
#[test]
fn what_changes_no_data_is_answered_while_the_disk_is_full() {
    let Some(node) = server("--appendfsync always") else { return };
    let mut client = node.connect();
    client.run("SET k v").expect_ok();
    client.run("SET short v PX 1").expect_ok();
    assert_eq!(client.run("PFADD sketch a b"), Value::Int(1));
    node.fill_disk();
    // The writes that find the disk full are never answered.
    let mut lost = node.connect();
    eventually("the disk is full", || {
        lost.send(&["INCR", "counter"]).expect("it reads");
        node.log().contains("Error writing to the AOF file").then_some(())
    });
    for line in ["PUBLISH news hi", "EVAL return(redis.call('publish','c','m')) 0"] {
        assert_eq!(client.run(line), Value::Int(0), "{line}");
    }
    assert_eq!(client.run("GET short"), Value::NullBulk);
    // It would keep the number in the key.
    assert_eq!(client.run("PFCOUNT sketch"), Value::Int(2));
    client.run("MULTI").expect_ok();
    client.run("PUBLISH news hi");
    assert_eq!(client.run("EXEC").items()[0], Value::Int(0));
    assert_eq!(client.run("GET k").text(), "v");
}
