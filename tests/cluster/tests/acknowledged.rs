//! What was acknowledged is kept, and one history is not mixed with another: a server is stopped, promoted or demoted
//! while clients write as fast as they can.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use harness::{Connection, Node, Program, Value, eventually};

/// Requests on their way at once.
const PIPELINE: usize = 50;

/// Clients that count, each its own key, until they are told to stop or are refused.
struct Counters {
    clients: Vec<JoinHandle<i64>>,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
}

impl Counters {
    /// Starts so many, and waits until each has been answered.
    fn start(node: &Node, clients: usize) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..clients).map(|number| {
            let (connection, stop, acknowledged) = (node.connect(), stop.clone(), acknowledged.clone());
            std::thread::spawn(move || count(connection, &key(number), &stop, &acknowledged))
        });
        let counters = Self { clients: clients.collect(), stop, acknowledged };
        counters.wait_for(10_000);
        counters
    }

    fn wait_for(&self, more: u64) {
        let enough = self.acknowledged.load(Ordering::Relaxed) + more;
        eventually("the clients count", || {
            (self.acknowledged.load(Ordering::Relaxed) >= enough
                || self.clients.iter().all(JoinHandle::is_finished))
            .then_some(())
        });
    }

    /// How far each was told that it is.
    fn stop(self) -> Vec<i64> {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.into_iter().map(|client| client.join().expect("a client that counts")).collect()
    }
}

fn key(number: usize) -> String {
    format!("counter:{number}")
}

fn count(mut connection: Connection, key: &str, stop: &AtomicBool, acknowledged: &AtomicU64) -> i64 {
    let batch = format!("INCR {key}\r\n").into_bytes().repeat(PIPELINE);
    let mut reached = 0;
    while !stop.load(Ordering::Relaxed) && connection.send_raw(&batch).is_ok() {
        for _ in 0..PIPELINE {
            match connection.read() {
                Ok(Value::Int(number)) => reached = number,
                _ => return reached,
            }
        }
        acknowledged.fetch_add(PIPELINE as u64, Ordering::Relaxed);
    }
    reached
}

/// Asserts that the node has at least what its clients were told.
fn assert_kept(node: &Node, acknowledged: &[i64], how: &str) {
    eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
    for (number, acknowledged) in acknowledged.iter().enumerate() {
        let kept: i64 = match node.run(&format!("GET {}", key(number))) {
            Value::NullBulk => 0,
            value => value.text().parse().expect("a number"),
        };
        assert!(kept >= *acknowledged, "{how}: {acknowledged} acknowledged, {kept} kept");
    }
}

fn fill(node: &Node, count: usize) {
    let mut connection = node.connect();
    let value = "v".repeat(1000);
    for number in 0..count {
        connection.send(&["SET", &format!("filler:{number}"), &value]).expect("it takes commands");
        if number % 500 == 499 {
            (0..500).for_each(|_| connection.read().expect("it answers").expect_ok());
        }
    }
}

const SAVING: &str = "--save 3600 1000000000";

#[test]
fn who_is_acknowledged_before_a_stop_is_in_the_file() {
    for how in ["SIGTERM", "SHUTDOWN", "SHUTDOWN SAVE", "SHUTDOWN NOW"] {
        let mut node = Node::start(&Program::redoubt(), SAVING);
        let counters = Counters::start(&node, 4);
        stop(&mut node, how);
        let acknowledged = counters.stop();
        node.launch();
        assert_kept(&node, &acknowledged, how);
    }
}

/// Stops the server and waits for its end.
fn stop(node: &mut Node, how: &str) {
    if how == "SIGTERM" {
        assert!(node.terminate().success());
    } else {
        // The connection closes without a reply.
        let words: Vec<&str> = how.split(' ').collect();
        let reply = node.connect().try_call(&words);
        assert!(reply.is_err(), "{how}: {reply:?}");
        assert!(node.ended().success());
    }
}

/// The save that is under way holds what was before its cut only.
#[test]
fn a_stop_while_a_save_is_under_way_keeps_what_came_after_its_cut() {
    let mut node = Node::start(&Program::redoubt(), SAVING);
    fill(&node, 20_000);
    let counters = Counters::start(&node, 4);
    node.run("BGSAVE");
    counters.wait_for(1000);
    stop(&mut node, "SIGTERM");
    let acknowledged = counters.stop();
    node.launch();
    assert_kept(&node, &acknowledged, "during BGSAVE");
}

/// A frozen replica is waited for as long as the configuration says, and then no more.
#[test]
fn a_stop_that_waits_in_vain_for_a_replica_acknowledges_nothing_more() {
    let mut node = Node::start(&Program::redoubt(), &format!("{SAVING} --shutdown-timeout 1"));
    let replica = Node::start(&Program::redoubt(), "--save ");
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", node.port)).expect_ok();
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    let counters = Counters::start(&node, 4);
    replica.freeze();
    stop(&mut node, "SHUTDOWN");
    let acknowledged = counters.stop();
    node.launch();
    assert_kept(&node, &acknowledged, "with a frozen replica");
}

/// A stop that is called off lets those go on who waited.
#[test]
fn writes_go_on_after_a_stop_that_was_called_off_or_failed() {
    let node = Node::start(&Program::redoubt(), SAVING);
    let replica = Node::start(&Program::redoubt(), "--save ");
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", node.port)).expect_ok();
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    replica.freeze();
    node.run("SET a 1").expect_ok();
    let mut stopping = node.connect();
    stopping.send(&["SHUTDOWN"]).expect("it takes commands");
    eventually("it waits for its replica", || {
        (node.info("clients", "paused_reason")? == "shutdown_in_progress").then_some(())
    });
    let mut held = node.connect();
    held.send(&["SET", "a", "2"]).expect("it takes commands");
    assert_eq!(node.run("GET a").text(), "1", "reads are answered");
    node.run("SHUTDOWN ABORT").expect_ok();
    assert!(stopping.read().expect("it is told").is_error("ERR Errors trying to SHUTDOWN"));
    held.read().expect("it goes on").expect_ok();

    replica.thaw();
    std::fs::create_dir_all(node.folder().join("dump.rdb").join("in-the-way")).expect("a folder");
    assert!(node.run("SHUTDOWN SAVE").is_error("ERR Errors trying to SHUTDOWN"));
    node.run("CONFIG SET stop-writes-on-bgsave-error no").expect_ok();
    node.run("SET a 3").expect_ok();
    eventually("the replica goes on too", || (replica.run("GET a").text() == "3").then_some(()));
}
