//! One run: servers, clients, faults, and what is found.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use harness::{Endpoint, Program, Value};

use crate::check::{self, Case, Findings};
use crate::machine;
use crate::nemesis::{carry_out, heal};
use crate::observer::observe;
use crate::timeline::Healing;
use crate::workload::{self, Final, Workload};
use crate::{Client, Deployment, Fault, History, Mode, Op, Schedule, Timeline, Timeouts};

const CLIENTS: usize = 8;
/// The rest of a client between two steps: servers, clients and observer share few processors.
const REST: Duration = Duration::from_millis(2);
/// Everything is well again so soon after the last fault of a round.
const HEALED: Duration = Duration::from_secs(15);
/// Between rounds, so that what follows is not explained by what was before.
const QUIET: Duration = Duration::from_millis(500);
/// A master that is watched by sentinels counts its replicas' silence in whole seconds.
const TIMEOUTS: Timeouts = Timeouts {
    deposed: Duration::from_millis(3000),
    lag: Duration::from_millis(1500),
    slack: Duration::from_millis(1000),
};

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// In which mode.
    pub mode: Mode,
    /// The servers.
    pub program: Program,
    /// One of another kind among them.
    pub other: Option<Program>,
    /// The seed that faults are drawn from.
    pub seed: u64,
    /// After so long no further round begins.
    pub lasting: Duration,
    /// At the latest after so many.
    pub rounds: usize,
    /// The faults to draw from.
    pub faults: Vec<Fault>,
    /// Where what the nodes logged is kept if something is found.
    pub logs: Option<PathBuf>,
}

/// The result of a run.
#[derive(Debug)]
pub struct Verdict {
    /// The operations of the clients.
    pub ops: Vec<Op>,
    /// The faults and the masters in time.
    pub timeline: Timeline,
    /// The findings of the checkers.
    pub findings: Findings,
}

impl Verdict {
    /// Whether nothing was found that must not be, and everything healed in time.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.findings.violated == 0 && self.timeline.healings.iter().all(|healing| healing.wrong.is_none())
    }
}

/// Runs it.
///
/// # Errors
/// If the servers do not start.
///
/// # Panics
/// If a client does.
pub fn run(options: &Options) -> Result<Verdict> {
    let mut deployment =
        Deployment::start(options.mode, &options.program, options.other.as_ref(), &options.faults)?;
    let endpoints = deployment.endpoints();
    let mut faults = options.faults.clone();
    faults.retain(|fault| deployment.can(*fault));
    let schedule = Schedule::new(options.seed, options.mode, &faults);
    let history = History::new();
    let mut timeline = Timeline { shards: options.mode.shards(), ..Timeline::default() };
    let (stop, enough) = (AtomicBool::new(false), AtomicBool::new(false));
    let (seen, stalls, finals) = thread::scope(|scope| {
        let servers = &endpoints[..options.mode.servers()];
        let observer = scope.spawn(|| observe(servers, &history, &stop));
        let machine = scope.spawn(|| machine::watch(options.mode.nodes(), &history, &stop));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|id| Client::new(id, options.seed, options.mode, &endpoints, &history))
            .map(|client| {
                let enough = &enough;
                scope.spawn(move || work(client, enough))
            })
            .collect();
        let began = Instant::now();
        for round in schedule.take(options.rounds) {
            if began.elapsed() > options.lasting {
                break;
            }
            timeline.faults.extend(carry_out(&mut deployment, &round, &history));
            let since = history.now();
            let (took, wrong) = heal(&mut deployment, HEALED);
            let broken = wrong.is_some();
            timeline.healings.push(Healing { began: since, took, wrong });
            if broken {
                break;
            }
            thread::sleep(QUIET);
        }
        enough.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("a client that only asks");
        }
        let finals = read_all(options, &endpoints, &history);
        stop.store(true, Ordering::Relaxed);
        let stalls = machine.join().expect("an observer that only looks");
        (observer.join().expect("an observer that only looks"), stalls, finals)
    });
    timeline.faults.extend(stalls);
    timeline.faults.sort_by_key(|injected| injected.end);
    timeline.reigns = seen.reigns;
    timeline.violations = seen.violations;
    timeline.violations.extend(unequal(&deployment));
    let ops = history.into_ops();
    let findings = judge(&ops, finals, &timeline);
    let verdict = Verdict { ops, timeline, findings };
    if let Some(folder) = options.logs.as_deref().filter(|_| !verdict.is_good()) {
        deployment.keep_logs(folder)?;
    }
    Ok(verdict)
}

fn judge(ops: &[Op], finals: Result<BTreeMap<&'static str, Final>, String>, timeline: &Timeline) -> Findings {
    match finals {
        Ok(finals) => check::check(&Case { ops, finals: &finals, timeline, timeouts: TIMEOUTS }),
        Err(key) => {
            let violations = vec![format!("in the end, {key} cannot be read")];
            Findings { violated: 1, violations, ..Findings::default() }
        }
    }
}

/// A client's life: one step of one workload after another.
fn work(mut client: Client<'_>, stop: &AtomicBool) {
    let workloads = workload::all();
    while !stop.load(Ordering::Relaxed) {
        let chosen = client.below(workloads.len());
        workloads[chosen].step(&mut client);
        thread::sleep(REST);
    }
}

/// Reads every key; gives the one that cannot be read.
fn read_all(
    options: &Options,
    endpoints: &[Endpoint],
    history: &History,
) -> Result<BTreeMap<&'static str, Final>, String> {
    let mut client = Client::new(CLIENTS, options.seed, options.mode, endpoints, history);
    let mut finals = BTreeMap::new();
    for workload in workload::all() {
        let mut held = Final::new();
        for key in workload.keys() {
            let value = read(&*workload, &mut client, &key).ok_or_else(|| key.clone())?;
            held.insert(key, value);
        }
        finals.insert(workload.name(), held);
    }
    Ok(finals)
}

/// A value, asked for more than once: the client may have to find its way first.
fn read(workload: &dyn Workload, client: &mut Client<'_>, key: &str) -> Option<Vec<u64>> {
    (0..50).find_map(|_| {
        let read = workload.read(client, key);
        if read.is_err() {
            thread::sleep(Duration::from_millis(20));
        }
        match read {
            // A key that is not there: nothing was ever written to it.
            Err(crate::Failure::Refused(reply)) if reply == "no entries" => Some(Vec::new()),
            other => other.ok(),
        }
    })
}

/// Replicas whose data differ from their master's.
fn unequal(deployment: &Deployment) -> Vec<String> {
    let mut found = Vec::new();
    for node in &deployment.nodes[..deployment.mode.servers()] {
        let Some(port) = node.try_connect().ok().and_then(|_| node.info("replication", "master_port")) else {
            continue;
        };
        let Some(master) = deployment.on_port(&port) else { continue };
        let digest = |node: &harness::Node| match node.run("DEBUG DIGEST") {
            Value::Error(error) => panic!("{error}"),
            digest => digest.text(),
        };
        // Locks still expire, and what is under way arrives.
        let equal = (0..200).any(|_| {
            let same = digest(node) == digest(&deployment.nodes[master]);
            if !same {
                thread::sleep(Duration::from_millis(50));
            }
            same
        });
        if !equal {
            found.push(format!("the replica on {} has other data than its master on {port}", node.port));
        }
    }
    found
}
