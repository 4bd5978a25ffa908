//! Clients that increment counters, and remember the last acknowledged values.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::{Connection, Node, Reply, eventually};

/// Number of requests that a client sends before it reads their replies.
const PIPELINE_LENGTH: usize = 50;

/// Clients that each increment a separate key, until they are stopped or receive an error.
#[derive(Debug)]
pub struct CounterClients {
    clients: Vec<JoinHandle<i64>>,
    should_stop: Arc<AtomicBool>,
    acknowledged_count: Arc<AtomicU64>,
}

impl CounterClients {
    /// Starts `clients` clients, and waits for the first 10,000 acknowledgements.
    #[must_use]
    pub fn start(node: &Node, client_count: usize) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let clients = (0..client_count).map(|number| {
            let (connection, stop, acknowledged) = (node.connect(), stop.clone(), acknowledged.clone());
            std::thread::spawn(move || run_counter(connection, &counter_key(number), &stop, &acknowledged))
        });
        let counters =
            Self { clients: clients.collect(), should_stop: stop, acknowledged_count: acknowledged };
        counters.wait_for_acknowledgements(10_000);
        counters
    }

    /// Waits for `additional` more acknowledgements, or until all clients have ended.
    pub fn wait_for_acknowledgements(&self, additional_count: u64) {
        let enough = self.acknowledged_count.load(Ordering::Relaxed) + additional_count;
        eventually("the clients count", || {
            (self.acknowledged_count.load(Ordering::Relaxed) >= enough
                || self.clients.iter().all(JoinHandle::is_finished))
            .then_some(())
        });
    }

    /// Stops the clients and returns the last acknowledged value of each.
    ///
    /// # Panics
    /// A client panicked.
    #[must_use]
    pub fn stop(self) -> Vec<i64> {
        self.should_stop.store(true, Ordering::Relaxed);
        self.clients.into_iter().map(|client| client.join().expect("a client that counts")).collect()
    }
}

/// Returns the key that client `number` increments.
#[must_use]
pub fn counter_key(number: usize) -> String {
    format!("counter:{number}")
}

fn run_counter(
    mut connection: Connection,
    key: &str,
    should_stop: &AtomicBool,
    acknowledged_count: &AtomicU64,
) -> i64 {
    let batch = format!("INCR {key}\r\n").into_bytes().repeat(PIPELINE_LENGTH);
    let mut reached = 0;
    while !should_stop.load(Ordering::Relaxed) && connection.send_raw(&batch).is_ok() {
        for _ in 0..PIPELINE_LENGTH {
            match connection.read() {
                Ok(Reply::Int(number)) => reached = number,
                _ => return reached,
            }
        }
        acknowledged_count.fetch_add(PIPELINE_LENGTH as u64, Ordering::Relaxed);
    }
    reached
}

/// Asserts that no counter on the node is lower than the last value acknowledged to its client.
///
/// # Panics
/// A counter is lower.
pub fn assert_counters_kept(node: &Node, acknowledged: &[i64], context: &str) {
    eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
    for (number, acknowledged) in acknowledged.iter().enumerate() {
        let kept: i64 = match node.run(&format!("GET {}", counter_key(number))) {
            Reply::NullBulk => 0,
            value => value.text().parse().expect("a number"),
        };
        assert!(kept >= *acknowledged, "{context}: {acknowledged} acknowledged, {kept} kept");
    }
}
