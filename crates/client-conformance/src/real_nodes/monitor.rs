//! Follows the commands that real servers execute, using MONITOR.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Connection, Endpoint, Node, Reply};

use crate::event_log::{LogEntry, LogEvent};
use crate::simulation::{ExecutedCommand, format_command, may_block};

/// The argument of the marker command. Once MONITOR shows it, all earlier commands of the node have arrived.
pub(super) const END_MARKER: &str = "the-judge-has-seen-enough";
/// Read timeout of a MONITOR connection; nodes may be idle for a whole scenario.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The commands recorded from MONITOR on all nodes.
pub(super) struct MonitorRecord {
    started_at: Instant,
    names: Vec<String>,
    /// The ports of all nodes. Commands from these ports are replication traffic and are not recorded.
    ports: Vec<u16>,
    /// The number of scenario steps started so far. It is recorded with each command.
    steps: AtomicUsize,
    log: Mutex<Vec<LogEntry>>,
    executed_commands: Mutex<Vec<ExecutedCommand>>,
    /// The ports of the test program's own connections, whose commands are not graded.
    harness_ports: Mutex<BTreeSet<u16>>,
    /// The indexes of the nodes on which MONITOR was started.
    monitored_nodes: Mutex<BTreeSet<usize>>,
    marked_nodes: Mutex<BTreeSet<usize>>,
    marker_seen: Condvar,
}

impl MonitorRecord {
    pub(super) fn new(started_at: Instant, names: Vec<String>, ports: Vec<u16>) -> Self {
        Self {
            started_at,
            names,
            ports,
            steps: AtomicUsize::new(0),
            log: Mutex::default(),
            executed_commands: Mutex::default(),
            harness_ports: Mutex::default(),
            monitored_nodes: Mutex::default(),
            marked_nodes: Mutex::default(),
            marker_seen: Condvar::new(),
        }
    }

    pub(super) fn log_event(&self, entry: LogEntry) {
        if matches!(entry.event, LogEvent::RequestSent(_)) {
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        lock(&self.log).push(entry);
    }

    /// Marks a client port as the test program's own, so that its commands are not graded.
    pub(super) fn add_harness_port(&self, port: u16) {
        lock(&self.harness_ports).insert(port);
    }

    pub(super) fn is_monitored(&self, node: usize) -> bool {
        lock(&self.monitored_nodes).contains(&node)
    }

    pub(super) fn clear_markers(&self) {
        lock(&self.marked_nodes).clear();
    }

    /// Waits until every node has shown the marker. Returns the nodes that had not shown it when `timeout` passed.
    pub(super) fn nodes_without_marker(&self, nodes: &[usize], timeout: Duration) -> Vec<usize> {
        let missing = |marked: &BTreeSet<usize>| -> Vec<usize> {
            nodes.iter().copied().filter(|node| !marked.contains(node)).collect()
        };
        let waited = self
            .marker_seen
            .wait_timeout_while(lock(&self.marked_nodes), timeout, |marked| !missing(marked).is_empty());
        missing(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Returns the log entries in order, and the commands that took effect.
    pub(super) fn take_commands(&self) -> (Vec<LogEntry>, Vec<ExecutedCommand>) {
        let mut log = std::mem::take(&mut *lock(&self.log));
        log.sort_by_key(|entry| entry.ms);
        (log, std::mem::take(&mut *lock(&self.executed_commands)))
    }

    fn handle_line(&self, node: usize, line: &str) {
        let Some((from, args)) = parse_monitor_line(line) else { return };
        if args.last().is_some_and(|word| word == END_MARKER) {
            lock(&self.marked_nodes).insert(node);
            self.marker_seen.notify_all();
            return;
        }
        let is_ours = args.first().is_some_and(|name| {
            ["PING", "INFO", "REPLCONF", "PSYNC", "MONITOR"]
                .iter()
                .any(|word| name.eq_ignore_ascii_case(word))
        });
        if is_sentinel_command(&args) {
            self.add_harness_port(from);
        }
        if self.ports.contains(&from) || is_ours || lock(&self.harness_ports).contains(&from) {
            return;
        }
        let ms = self.started_at.elapsed().as_millis() as u64;
        let event = LogEvent::CommandReceived(format_command(&args));
        self.log_event(LogEntry { ms, node: self.names[node].clone(), connection: from.into(), event });
        // MONITOR shows a blocking command when it arrives, not when it pops an element.
        if !may_block(&args) {
            let step = self.steps.load(Ordering::Relaxed);
            lock(&self.executed_commands).push(ExecutedCommand { ms, step, node, args });
        }
    }
}

/// Records the MONITOR output of a node until the node dies. Returns once MONITOR is active. Valkey's sentinels do not
/// support MONITOR, so nothing is recorded on them.
pub(super) fn monitor_node(index: usize, node: &Node, record: &Arc<MonitorRecord>) {
    let endpoint = node.endpoint();
    let Some(mut connection) = open_monitor(&endpoint) else { return };
    lock(&record.monitored_nodes).insert(index);
    let record = Arc::clone(record);
    thread::spawn(move || {
        loop {
            while let Ok(Reply::Simple(line)) = connection.read() {
                record.handle_line(index, &line);
            }
            // When sentinels change the role of a server, the server closes this connection along with those of
            // clients.
            match open_monitor(&endpoint) {
                Some(another) => connection = another,
                None => return,
            }
        }
    });
}

fn open_monitor(endpoint: &Endpoint) -> Option<Connection> {
    let mut connection = endpoint.connect().ok()?;
    connection.set_timeout(IDLE_TIMEOUT);
    matches!(connection.try_call(&["MONITOR"]), Ok(Reply::Simple(_))).then_some(connection)
}

/// Recognizes commands from sentinels, which name their connections and announce themselves on a channel.
fn is_sentinel_command(args: &[String]) -> bool {
    let is = |deployment: usize, word: &str| {
        args.get(deployment).is_some_and(|arg| arg.eq_ignore_ascii_case(word))
    };
    let is_named = is(0, "client") && is(1, "setname");
    is(1, "__sentinel__:hello") || is_named && args.get(2).is_some_and(|name| name.starts_with("sentinel-"))
}

/// Parses the client port and the words of a MONITOR line such as `1.5 [0 127.0.0.1:7] "GET" "k"`.
/// Commands called by scripts have no port and are skipped.
fn parse_monitor_line(line: &str) -> Option<(u16, Vec<String>)> {
    let (_, rest) = line.split_once(" [")?;
    let (from, words) = rest.split_once("] ")?;
    let port = if from.ends_with(" lua") { 0 } else { from.rsplit_once(':')?.1.parse().ok()? };
    resp::split_words(words).map(|words| (port, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_client_and_words_of_monitor_line() {
        let line = r#"1700000000.5 [0 127.0.0.1:4711] "SET" "a key" "x\"y""#;
        assert_eq!(
            parse_monitor_line(line),
            Some((4711, ["SET", "a key", "x\"y"].map(str::to_owned).to_vec()))
        );
        let line = r#"1700000000.5 [0 lua] "INCR" "n""#;
        assert_eq!(parse_monitor_line(line), Some((0, ["INCR", "n"].map(str::to_owned).to_vec())));
        assert_eq!(parse_monitor_line("OK"), None);
    }

    #[test]
    fn recognizes_sentinel_commands() {
        let of_sentinels =
            |line: &str| is_sentinel_command(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(of_sentinels("client setname sentinel-7e5edce8-cmd"));
        assert!(of_sentinels("PUBLISH __sentinel__:hello 127.0.0.1,1"));
        assert!(!of_sentinels("CLIENT SETNAME worker"));
        assert!(!of_sentinels("SET key sentinel-1"));
    }
}
