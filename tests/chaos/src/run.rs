//! Runs servers, clients and faults once, and checks the result.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use harness::{Endpoint, Program, Reply};

use crate::check::{self, CheckInput, CheckerFindings};
use crate::nemesis::{run_round, wait_for_recovery};
use crate::observer::observe;
use crate::stalls;
use crate::timeline::RoundRecovery;
use crate::workload::{self, FinalData, Workload};
use crate::{
    ChaosClient, Deployment, DeploymentMode, FaultKind, FaultSchedule, LossTimeouts, OpHistory, Operation,
    Timeline,
};

const CLIENT_COUNT: usize = 8;
/// A client's pause between two steps, because clients and servers share a few cores.
const STEP_PAUSE: Duration = Duration::from_millis(2);
/// Time limit for the recovery after the last fault of a round.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit for the replicas to have the same data as their masters.
const MAX_CONVERGENCE_TIME: Duration = Duration::from_secs(10);
/// The pause between rounds, so that a loss is attributed to the right round.
const ROUND_PAUSE: Duration = Duration::from_millis(500);
/// The time limits leave a margin, because a sentinel-monitored master measures replica lag in whole seconds.
const TIMEOUTS: LossTimeouts = LossTimeouts {
    deposed_after: Duration::from_millis(3000),
    max_lag: Duration::from_millis(1500),
    tolerance: Duration::from_millis(1000),
};

/// What a run tests, and for how long.
#[derive(Debug, Clone)]
pub struct ChaosOptions {
    /// Whether to test a cluster or a sentinel group.
    pub mode: DeploymentMode,
    /// The program that the servers run.
    pub program: Program,
    /// The program of the last replica, if it differs from the others.
    pub last_replica_program: Option<Program>,
    /// The seed from which the fault schedule is drawn.
    pub seed: u64,
    /// The time after which no further round begins.
    pub duration: Duration,
    /// The maximum number of rounds, whatever the duration.
    pub rounds: usize,
    /// The faults that may be injected.
    pub faults: Vec<FaultKind>,
    /// The folder to which node logs are copied if there are findings.
    pub log_folder: Option<PathBuf>,
}

/// The recorded history of a run and what the checkers found in it.
#[derive(Debug)]
pub struct RunResult {
    /// The recorded operations of all clients.
    pub ops: Vec<Operation>,
    /// The faults and the masters over time.
    pub timeline: Timeline,
    /// The lost writes and violations that the checkers found.
    pub findings: CheckerFindings,
}

impl RunResult {
    /// Returns whether there are no violations and every recovery finished in time.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.findings.violation_count == 0
            && self.timeline.recoveries.iter().all(|healing| healing.wrong.is_none())
    }
}

/// Runs the test.
///
/// # Errors
/// The servers do not start.
///
/// # Panics
/// A client thread panics.
pub fn run(options: &ChaosOptions) -> Result<RunResult> {
    let mut deployment = Deployment::start(
        options.mode,
        &options.program,
        options.last_replica_program.as_ref(),
        &options.faults,
    )?;
    let endpoints = deployment.endpoints();
    let mut faults = options.faults.clone();
    faults.retain(|fault| deployment.supports(*fault));
    let schedule = FaultSchedule::new(options.seed, options.mode, &faults);
    let history = OpHistory::new();
    let mut timeline = Timeline { shards: options.mode.shard_count(), ..Timeline::default() };
    let (stop, enough) = (AtomicBool::new(false), AtomicBool::new(false));
    let (seen, stalls, final_data) = thread::scope(|scope| {
        let servers = &endpoints[..options.mode.data_node_count()];
        let observer = scope.spawn(|| observe(servers, &history, &stop));
        let machine = scope.spawn(|| stalls::detect_core_stalls(options.mode.node_count(), &history, &stop));
        let clients: Vec<_> = (0..CLIENT_COUNT)
            .map(|id| ChaosClient::new(id, options.seed, options.mode, &endpoints, &history))
            .map(|client| {
                let enough = &enough;
                scope.spawn(move || run_client(client, enough))
            })
            .collect();
        let began = Instant::now();
        for round in schedule.take(options.rounds) {
            if began.elapsed() > options.duration {
                break;
            }
            timeline.faults.extend(run_round(&mut deployment, &round, &history));
            let since = history.now();
            let (took, wrong) = wait_for_recovery(&mut deployment, RECOVERY_TIMEOUT);
            let broken = wrong.is_some();
            timeline.recoveries.push(RoundRecovery { began: since, took, wrong });
            if broken {
                break;
            }
            thread::sleep(ROUND_PAUSE);
        }
        enough.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("a client that only asks");
        }
        let final_data = read_final_data(options, &endpoints, &history);
        stop.store(true, Ordering::Relaxed);
        let stalls = machine.join().expect("an observer that only looks");
        (observer.join().expect("an observer that only looks"), stalls, final_data)
    });
    timeline.faults.extend(stalls);
    timeline.faults.sort_by_key(|injected| injected.end);
    timeline.master_periods = seen.master_periods;
    timeline.violations = seen.violations;
    timeline.violations.extend(diverged_replicas(&deployment));
    let ops = history.into_ops();
    let findings = run_checks(&ops, final_data, &timeline);
    let result = RunResult { ops, timeline, findings };
    if let Some(folder) = options.log_folder.as_deref().filter(|_| !result.is_success()) {
        deployment.copy_logs(folder)?;
    }
    Ok(result)
}

fn run_checks(
    ops: &[Operation],
    final_data: Result<BTreeMap<&'static str, FinalData>, String>,
    timeline: &Timeline,
) -> CheckerFindings {
    match final_data {
        Ok(final_data) => {
            check::check(&CheckInput { ops, final_data: &final_data, timeline, timeouts: TIMEOUTS })
        }
        Err(key) => {
            let violations = vec![format!("in the end, {key} cannot be read")];
            CheckerFindings { violation_count: 1, violations, ..CheckerFindings::default() }
        }
    }
}

/// Runs random steps of random workloads until `stop` is set.
fn run_client(mut client: ChaosClient<'_>, should_stop: &AtomicBool) {
    let workloads = workload::all_workloads();
    while !should_stop.load(Ordering::Relaxed) {
        let chosen = client.random_below(workloads.len());
        workloads[chosen].run_operation(&mut client);
        thread::sleep(STEP_PAUSE);
    }
}

/// Reads the final data of every key, or returns the first key that cannot be read.
fn read_final_data(
    options: &ChaosOptions,
    endpoints: &[Endpoint],
    history: &OpHistory,
) -> Result<BTreeMap<&'static str, FinalData>, String> {
    let mut client = ChaosClient::new(CLIENT_COUNT, options.seed, options.mode, endpoints, history);
    let mut final_data = BTreeMap::new();
    for workload in workload::all_workloads() {
        let mut held = FinalData::new();
        for key in workload.keys() {
            let value = read_with_retries(&*workload, &mut client, &key).ok_or_else(|| key.clone())?;
            held.insert(key, value);
        }
        final_data.insert(workload.name(), held);
    }
    Ok(final_data)
}

/// Reads a key with retries, since the client may have to find its owner first.
fn read_with_retries(workload: &dyn Workload, client: &mut ChaosClient<'_>, key: &str) -> Option<Vec<u64>> {
    (0..50).find_map(|_| {
        let read = workload.read_elements(client, key);
        if read.is_err() {
            thread::sleep(Duration::from_millis(20));
        }
        match read {
            // A missing key is one that no client has written.
            Err(crate::CallError::NotExecuted(reply)) if reply == "no entries" => Some(Vec::new()),
            other => other.ok(),
        }
    })
}

/// Returns the replicas whose data differs from their master's.
fn diverged_replicas(deployment: &Deployment) -> Vec<String> {
    let mut found = Vec::new();
    for node in &deployment.nodes[..deployment.mode.data_node_count()] {
        let Some(port) = node.try_connect().ok().and_then(|_| node.info("replication", "master_port")) else {
            continue;
        };
        let Some(master) = deployment.node_on_port(&port) else { continue };
        let digest = |node: &harness::Node| match node.run("DEBUG DIGEST") {
            Reply::Error(error) => panic!("{error}"),
            digest => digest.text(),
        };
        // Locks still expire and replication is still in progress.
        let deadline = Instant::now() + MAX_CONVERGENCE_TIME;
        let is_equal = || digest(node) == digest(&deployment.nodes[master]);
        while !is_equal() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
        }
        if !is_equal() {
            found.push(format!("the replica on {} has other data than its master on {port}", node.port));
        }
    }
    found
}
