//! Fifty tasks in five processes increment a number that only the lock protects, while holders are killed and paused
//! and masters die. No increment may be lost, no two owners may hold the lock at once, and progress must continue.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use harness::{Cluster, MASTER_NAME, Node, Program, SentinelGroup, eventually};
use lock_tests::FencedFile;
use rustix::process::{Pid, Signal, kill_process};

const PROCESS_COUNT: usize = 5;
const TASKS_PER_PROCESS: usize = 10;

type OutputLines = Arc<Mutex<Vec<String>>>;

/// The processes that count, with their output.
struct CountingProcesses {
    address: String,
    replicas: usize,
    folder: tempfile::TempDir,
    processes: Vec<Child>,
    output_lines: OutputLines,
    readers: Vec<JoinHandle<()>>,
}

impl CountingProcesses {
    fn start(address: String, replicas: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lines = OutputLines::default();
        let mut counters = Self {
            address,
            replicas,
            folder,
            processes: Vec::new(),
            output_lines: lines,
            readers: Vec::new(),
        };
        for _ in 0..PROCESS_COUNT {
            let member = counters.spawn();
            counters.processes.push(member);
        }
        counters.wait_for_more_increments("the processes count");
        counters
    }

    fn counter_file(&self) -> PathBuf {
        self.folder.path().join("counter")
    }

    fn spawn(&mut self) -> Child {
        let mut child = Command::new(env!("CARGO_BIN_EXE_count-under-lock"))
            .arg(&self.address)
            .arg(self.counter_file())
            .args([TASKS_PER_PROCESS.to_string(), self.replicas.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (out, lines) = (child.stdout.take().unwrap(), self.output_lines.clone());
        self.readers.push(std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        }));
        child
    }

    fn reported_count(&self) -> usize {
        self.output_lines.lock().unwrap().len()
    }

    /// Waits for twenty more increments. This fails if there is a deadlock.
    fn wait_for_more_increments(&self, description: &str) {
        let before = self.reported_count();
        eventually(description, || (self.reported_count() >= before + 20).then_some(()));
    }

    /// Kills one process at a random point, and starts a replacement.
    fn kill_and_replace_process(&mut self, index: usize) {
        let newcomer = self.spawn();
        let mut victim = std::mem::replace(&mut self.processes[index], newcomer);
        victim.kill().unwrap();
        victim.wait().unwrap();
    }

    fn signal(&self, index: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.processes[index]), signal).unwrap();
    }

    /// Ends all processes, and checks that every reported increment is in the file and no client saw two holders.
    fn stop_and_check(mut self) {
        for member in &mut self.processes {
            drop(member.stdin.take());
        }
        for member in &mut self.processes {
            let status = eventually("a process ends", || member.try_wait().unwrap());
            assert!(status.success(), "{status}");
        }
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let lines = self.output_lines.lock().unwrap();
        let violations: Vec<_> = lines.iter().filter(|line| !line.starts_with('+')).collect();
        assert!(violations.is_empty(), "two clients held the lock at once: {violations:?}");
        let mut values: Vec<u64> = lines.iter().map(|line| line[1..].parse().unwrap()).collect();
        values.sort_unstable();
        let reported = values.len();
        values.dedup();
        assert_eq!(values.len(), reported, "an increment was lost");
        let total = read_counter(&self.counter_file());
        // A killed process may have written without reporting it.
        assert!(values.last().is_some_and(|last| *last <= total), "{total}");
        assert!(total as usize >= reported, "{reported} increments, {total} in the file");
    }
}

impl Drop for CountingProcesses {
    fn drop(&mut self) {
        for member in &mut self.processes {
            // The process may have ended already.
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

fn read_counter(file: &Path) -> u64 {
    FencedFile::open(file).unwrap().read(u64::MAX).unwrap().unwrap()
}

fn kill_and_pause_holders(counters: &mut CountingProcesses) {
    for index in 0..2 {
        counters.kill_and_replace_process(index);
        counters.wait_for_more_increments("a holder was killed");
    }
    // One process is paused beyond its lease: the others continue, and its writes after waking are rejected.
    counters.signal(3, Signal::STOP);
    counters.wait_for_more_increments("a holder is paused");
    std::thread::sleep(Duration::from_millis(4100));
    counters.signal(3, Signal::CONT);
    counters.wait_for_more_increments("the holder runs again");
}

#[test]
fn no_increment_is_lost_while_cluster_masters_die() {
    let mut cluster = Cluster::start(&Program::redoubt(), 3, 1);
    let hosts: Vec<String> = cluster.nodes.iter().map(Node::address).collect();
    let mut counters = CountingProcesses::start(format!("redis+cluster://{}", hosts.join(",")), 1);
    kill_and_pause_holders(&mut counters);
    // A promoted master has no replica to confirm writes until the dead node is back, so wait for it before each
    // failover.
    let slot = cluster.nodes[0].run("CLUSTER KEYSLOT counter").int() as u16;
    for _ in 0..2 {
        let owner = cluster.wait_for_owner(slot, |_| true);
        let index = cluster.nodes.iter().position(|node| node.port == owner).unwrap();
        cluster.nodes[index].kill();
        cluster.wait_for_owner(slot, |port| port != owner);
        cluster.nodes[index].launch();
        counters.wait_for_more_increments("a master died");
    }
    counters.stop_and_check();
}

#[test]
fn no_increment_is_lost_while_masters_under_sentinel_die() {
    let mut group =
        SentinelGroup::start(&Program::redoubt(), &std::array::from_fn::<_, 3, _>(|_| Program::redoubt()));
    group.shorten_timeouts();
    let sentinels: Vec<String> = group.sentinels.iter().map(Node::address).collect();
    let counters =
        CountingProcesses::start(format!("redis+sentinel://{}/{MASTER_NAME}", sentinels.join(",")), 2);
    for _ in 0..2 {
        let master = group.wait_for_master();
        group.servers[master].kill();
        group.wait_for_successor(master);
        group.servers[master].launch();
        counters.wait_for_more_increments("a master died");
        group.wait_until_healthy();
    }
    counters.stop_and_check();
}
