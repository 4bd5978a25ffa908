//! Tests of a full disk that later has free space again. They need permission to mount a small tmpfs.

use harness::{Node, Program, Reply, eventually};

const DISK_SIZE: u64 = 8 << 20;

/// Starts a server whose append-only file is on a small disk. Returns `None`, and prints the reason, if the disk cannot
/// be mounted.
fn start_on_small_disk(options: &str) -> Option<Node> {
    let mut node = Node::prepare(&Program::redoubt(), &format!("--appendonly yes --save  {options}"));
    if let Err(reason) = node.limit_disk(DISK_SIZE) {
        eprintln!("skipped: {reason}");
        return None;
    }
    node.launch();
    Some(node)
}

/// Increments a counter until the server refuses writes; returns the last acknowledged value.
fn write_until_refused(node: &Node) -> i64 {
    let mut connection = node.connect();
    let mut count = 0;
    eventually("the server refuses writes", || match connection.call_line("INCR counter") {
        Reply::Int(number) => {
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
fn writes_are_refused_while_the_disk_is_full_and_accepted_afterwards() {
    let Some(mut node) = start_on_small_disk("") else { return };
    node.fill_disk();
    let count = write_until_refused(&node);
    assert_eq!(node.run("GET counter").text(), count.to_string(), "reads are served");
    node.free_disk();
    let mut client = node.connect();
    let next =
        eventually("the server takes writes again by itself", || match client.call_line("INCR counter") {
            Reply::Int(number) => Some(number),
            _ => None,
        });
    assert_eq!(next, count + 1, "refused writes must not be applied");
    // `WAITAOF` makes sure that the last write is synced: `everysec` alone may lose writes acknowledged just before the
    // kill.
    assert_eq!(client.call_line("WAITAOF 1 0 20000").items()[0].int(), 1, "it is on disk");
    node.kill();
    node.launch();
    assert_eq!(node.run("GET counter").text(), next.to_string());
}

/// The bug: a script could write although writes were refused, and its changes were lost with the next kill.
#[test]
fn scripts_cannot_write_while_the_disk_is_full() {
    let Some(node) = start_on_small_disk("") else { return };
    node.run("SET kept 1").expect_ok();
    node.fill_disk();
    write_until_refused(&node);
    let mut client = node.connect();
    let refused = |reply: Reply| {
        let text = format!("{reply:?}");
        assert!(text.contains("MISCONF Errors writing to the AOF file: No space left"), "{text}");
    };
    // A script that declares its writes is refused before it runs, and when `MULTI` would queue it.
    let writes = "return redis.call('incr',KEYS[1])";
    let declared = format!("#!lua\n{writes}");
    for script in [writes, &declared] {
        refused(client.call(&["EVAL", script, "1", "kept"]));
    }
    client.call_line("MULTI").expect_ok();
    client.call(&["EVAL", writes, "1", "kept"]);
    refused(client.call_line("EXEC"));
    client.call_line("MULTI").expect_ok();
    refused(client.call(&["EVAL", &declared, "1", "kept"]));
    client.call_line("DISCARD").expect_ok();
    let reads = "#!lua flags=no-writes\nreturn redis.call('get',KEYS[1])";
    assert_eq!(client.call(&["EVAL", reads, "1", "kept"]).text(), "1");
}

#[test]
fn cluster_node_postpones_epoch_bump_reply_while_disk_is_full() {
    let Some(mut node) = start_on_small_disk("--cluster-enabled yes") else { return };
    node.run("CLUSTER ADDSLOTSRANGE 0 16383").expect_ok();
    node.fill_disk();
    // `BUMPEPOCH` replies after the new epoch is on disk.
    let mut patient = node.connect();
    patient.send(&["CLUSTER", "BUMPEPOCH"]).expect("the node receives it");
    eventually("the node cannot save nodes.conf", || {
        node.log().contains("can't update cluster config file").then_some(())
    });
    assert_eq!(node.run("PING"), Reply::Simple("PONG".into()));
    node.free_disk();
    let epoch = patient.read().expect("it is answered").text();
    assert!(epoch.starts_with("BUMPED"), "{epoch}");
    assert!(!node.has_exited());
    node.kill();
    node.launch();
    let mine = harness::cluster_info_field(&mut node.connect(), "cluster_my_epoch");
    assert_eq!(mine.as_deref(), epoch.strip_prefix("BUMPED "), "the epoch must be on disk before the reply");
}

/// A published message changes no data, so its reply need not wait for the disk.
#[test]
fn commands_that_change_no_data_get_replies_while_the_disk_is_full() {
    let Some(node) = start_on_small_disk("--appendfsync always") else { return };
    let mut client = node.connect();
    client.call_line("SET k v").expect_ok();
    client.call_line("SET short v PX 1").expect_ok();
    assert_eq!(client.call_line("PFADD sketch a b"), Reply::Int(1));
    node.fill_disk();
    // Writes issued while the disk is full get no reply.
    let mut lost = node.connect();
    eventually("the disk is full", || {
        lost.send(&["INCR", "counter"]).expect("it reads");
        node.log().contains("Error writing to the AOF file").then_some(())
    });
    for line in ["PUBLISH news hi", "EVAL return(redis.call('publish','c','m')) 0"] {
        assert_eq!(client.call_line(line), Reply::Int(0), "{line}");
    }
    assert_eq!(client.call_line("GET short"), Reply::NullBulk);
    // `PFCOUNT` would cache the cardinality in the key.
    assert_eq!(client.call_line("PFCOUNT sketch"), Reply::Int(2));
    client.call_line("MULTI").expect_ok();
    client.call_line("PUBLISH news hi");
    assert_eq!(client.call_line("EXEC").items()[0], Reply::Int(0));
    assert_eq!(client.call_line("GET k").text(), "v");
}
