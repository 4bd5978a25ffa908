//! The commands that real servers run, as MONITOR tells.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Connection, Endpoint, Node, Value};

use crate::log::{Entry, Happened};
use crate::stage::{Executed, shown, waits};

/// A word of the judge's own: all that came before it has been seen once it is seen.
pub(super) const MARK: &str = "the-judge-has-seen-enough";
/// A node may be idle for as long as a scenario takes.
const IDLE: Duration = Duration::from_secs(3600);

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All that was seen.
pub(super) struct Record {
    began: Instant,
    names: Vec<String>,
    /// The ports of all nodes: commands from there are replication.
    ports: Vec<u16>,
    /// How many steps have begun.
    steps: AtomicUsize,
    log: Mutex<Vec<Entry>>,
    executed: Mutex<Vec<Executed>>,
    /// The ports of the judge's own clients, which are not to be judged.
    own: Mutex<BTreeSet<u16>>,
    /// The nodes whose MONITOR is on, or was.
    watched: Mutex<BTreeSet<usize>>,
    marked: Mutex<BTreeSet<usize>>,
    another_mark: Condvar,
}

impl Record {
    pub(super) fn new(began: Instant, names: Vec<String>, ports: Vec<u16>) -> Self {
        Self {
            began,
            names,
            ports,
            steps: AtomicUsize::new(0),
            log: Mutex::default(),
            executed: Mutex::default(),
            own: Mutex::default(),
            watched: Mutex::default(),
            marked: Mutex::default(),
            another_mark: Condvar::new(),
        }
    }

    pub(super) fn note(&self, entry: Entry) {
        if matches!(entry.what, Happened::Step(_)) {
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        lock(&self.log).push(entry);
    }

    /// A client at this port is the judge's own.
    pub(super) fn is_own(&self, port: u16) {
        lock(&self.own).insert(port);
    }

    pub(super) fn is_watched(&self, node: usize) -> bool {
        lock(&self.watched).contains(&node)
    }

    pub(super) fn forget_marks(&self) {
        lock(&self.marked).clear();
    }

    /// Waits until the mark of each of these nodes has been seen, or for so long; gives those whose mark has not.
    pub(super) fn without_mark(&self, nodes: &[usize], timeout: Duration) -> Vec<usize> {
        let missing = |marked: &BTreeSet<usize>| -> Vec<usize> {
            nodes.iter().copied().filter(|node| !marked.contains(node)).collect()
        };
        let waited = self
            .another_mark
            .wait_timeout_while(lock(&self.marked), timeout, |marked| !missing(marked).is_empty());
        missing(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// The log in order, and the commands that took effect.
    pub(super) fn take(&self) -> (Vec<Entry>, Vec<Executed>) {
        let mut log = std::mem::take(&mut *lock(&self.log));
        log.sort_by_key(|entry| entry.ms);
        (log, std::mem::take(&mut *lock(&self.executed)))
    }

    fn handle_line(&self, node: usize, line: &str) {
        let Some((from, args)) = monitored(line) else { return };
        if args.last().is_some_and(|word| word == MARK) {
            lock(&self.marked).insert(node);
            self.another_mark.notify_all();
            return;
        }
        let is_ours = args.first().is_some_and(|name| {
            ["PING", "INFO", "REPLCONF", "PSYNC", "MONITOR"]
                .iter()
                .any(|word| name.eq_ignore_ascii_case(word))
        });
        if is_of_sentinels(&args) {
            self.is_own(from);
        }
        if self.ports.contains(&from) || is_ours || lock(&self.own).contains(&from) {
            return;
        }
        let ms = self.began.elapsed().as_millis() as u64;
        let what = Happened::Asked(shown(&args));
        self.note(Entry { ms, node: self.names[node].clone(), connection: from.into(), what });
        // A blocking command is told of when it comes, not when it takes effect.
        if !waits(&args) {
            let step = self.steps.load(Ordering::Relaxed);
            lock(&self.executed).push(Executed { ms, step, node, args });
        }
    }
}

/// Has a node's MONITOR noted for as long as the node lives; returns once it is on. Valkey's sentinels have none.
pub(super) fn watch(index: usize, node: &Node, record: &Arc<Record>) {
    let endpoint = node.endpoint();
    let Some(mut connection) = monitor(&endpoint) else { return };
    lock(&record.watched).insert(index);
    let record = Arc::clone(record);
    thread::spawn(move || {
        loop {
            while let Ok(Value::Simple(line)) = connection.read() {
                record.handle_line(index, &line);
            }
            // A server that gets another role by sentinels ends this connection with those of clients.
            match monitor(&endpoint) {
                Some(another) => connection = another,
                None => return,
            }
        }
    });
}

fn monitor(endpoint: &Endpoint) -> Option<Connection> {
    let mut connection = endpoint.connect().ok()?;
    connection.set_timeout(IDLE);
    matches!(connection.try_call(&["MONITOR"]), Ok(Value::Simple(_))).then_some(connection)
}

/// Sentinels give their connections names, and tell each other of themselves on a channel.
fn is_of_sentinels(args: &[String]) -> bool {
    let is = |place: usize, word: &str| args.get(place).is_some_and(|arg| arg.eq_ignore_ascii_case(word));
    let is_named = is(0, "client") && is(1, "setname");
    is(1, "__sentinel__:hello") || is_named && args.get(2).is_some_and(|name| name.starts_with("sentinel-"))
}

/// The client's port and the words of a line of MONITOR: `1.5 [0 127.0.0.1:7] "GET" "k"`. A command that a script calls
/// has none.
fn monitored(line: &str) -> Option<(u16, Vec<String>)> {
    let (_, rest) = line.split_once(" [")?;
    let (from, words) = rest.split_once("] ")?;
    let port = if from.ends_with(" lua") { 0 } else { from.rsplit_once(':')?.1.parse().ok()? };
    resp::split_words(words).map(|words| (port, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_monitor_has_its_client_and_its_words() {
        let line = r#"1700000000.5 [0 127.0.0.1:4711] "SET" "a key" "x\"y""#;
        assert_eq!(monitored(line), Some((4711, ["SET", "a key", "x\"y"].map(str::to_owned).to_vec())));
        let line = r#"1700000000.5 [0 lua] "INCR" "n""#;
        assert_eq!(monitored(line), Some((0, ["INCR", "n"].map(str::to_owned).to_vec())));
        assert_eq!(monitored("OK"), None);
    }

    #[test]
    fn sentinels_are_told_from_clients() {
        let of_sentinels =
            |line: &str| is_of_sentinels(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(of_sentinels("client setname sentinel-7e5edce8-cmd"));
        assert!(of_sentinels("PUBLISH __sentinel__:hello 127.0.0.1,1"));
        assert!(!of_sentinels("CLIENT SETNAME worker"));
        assert!(!of_sentinels("SET key sentinel-1"));
    }
}
