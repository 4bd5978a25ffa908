//! Drives a simulation: simulated time and the event queue, processes and their network, the phases of a run, and its
//! result.
//!
//! Each simulated system implements [`SimulatedSystem`], which defines its processes, their communication and its
//! faults. A run first injects faults. It then ends all faults and requires that several consecutive checks find the
//! nodes in agreement.
//!
//! Invariant: simultaneous events happen in the order in which they were scheduled, so that a seed always gives the
//! same run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use clock::Instant;

use crate::data::{self, DataSimulation};
use crate::environment::{DiskBehavior, NetworkBehavior};
use crate::trace::{START_TIME, Trace, micros_since_start};
use crate::{InvariantName, RandomSource, RunPlan, RunResult, catch_panic};

/// Interval between client writes.
const WRITE_INTERVAL: Duration = Duration::from_millis(50);
/// Interval between agreement checks.
const AGREEMENT_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Clients keep writing for this long after healing.
const WRITE_TIME_AFTER_HEALING: Duration = Duration::from_secs(1);
/// If more events than this happen at one simulated time, the run is in an endless loop.
const MAX_SIMULTANEOUS_EVENTS: usize = 10_000;

/// The durations of a run's phases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunPhases {
    /// The initial time without faults, in which the processes connect.
    pub(crate) settle_time: Duration,
    pub(crate) fault_time: Duration,
    /// The range of the time between two faults, in milliseconds.
    pub(crate) fault_interval_millis: (u64, u64),
    /// The maximum time from healing to agreement.
    pub(crate) max_convergence_time: Duration,
    /// The number of consecutive checks that must find the nodes in agreement.
    pub(crate) required_agreements: usize,
}

/// A system that can be simulated, such as a cluster.
pub(crate) trait SimulatedSystem {
    const PHASES: RunPhases;
    /// The invariant that requires agreement after healing.
    const LIVENESS_INVARIANT: InvariantName;
    /// The events of this system, in addition to those that every simulation has.
    type Event: Debug;

    fn simulation(&mut self) -> &mut Simulation<Self::Event>;
    fn start_processes(&mut self);
    fn handle_event(&mut self, event: Self::Event);
    /// Wakes the threads that were waiting for the event just processed. Called after every event.
    fn after_event(&mut self) {}
    /// Issues client writes.
    fn write_data(&mut self);
    /// Injects one random fault or operator action.
    fn inject_fault(&mut self);
    /// Returns when the state machine of a process must next be called, by the process's own clock.
    fn next_deadline(&mut self, host: usize) -> Option<Instant>;
    /// Calls the state machine of a process whose deadline has come.
    fn on_deadline(&mut self, host: usize);
    /// Starts a process that has died.
    fn restart_process(&mut self, host: usize);
    /// Called when all faults end, for a process that is running.
    fn continue_process(&mut self, host: usize);
    /// Returns a description of the first disagreement after healing, or `None` if all nodes agree.
    fn find_disagreement(&mut self) -> Option<String>;
    /// Makes repairs that only an operator can make. Called after each check for agreement.
    fn repair_as_operator(&mut self) {}
    /// Adds each node's view of the others to the trace. Called if the nodes do not reach agreement.
    fn trace_views(&mut self) {}
}

#[derive(Debug)]
enum SimulationEvent<E> {
    Begin,
    Tick {
        host: usize,
        incarnation: u64,
    },
    WriteData,
    Fault,
    /// A partition between these pairs of hosts ends.
    Reconnect(Vec<(usize, usize)>),
    Heal,
    Check,
    Restart {
        host: usize,
        incarnation: u64,
    },
    Data(data::DataEvent),
    System(E),
}

/// A simulated process and its host.
#[derive(Debug)]
pub(crate) struct SimulatedProcess {
    pub(crate) is_up: bool,
    /// Whether the host has power. A host without power does not even refuse connections.
    pub(crate) has_power: bool,
    /// The time until which the process is frozen, as if by SIGSTOP; `None` if it is not frozen.
    frozen_until: Option<Instant>,
    pub(crate) extra_latency: Duration,
    /// The number of the current incarnation, incremented by each restart.
    pub(crate) incarnation: u64,
    /// How far the process's clock is ahead of simulated time.
    pub(crate) clock_offset: Duration,
    next_tick_at: Option<Instant>,
}

pub(crate) struct Simulation<E> {
    pub(crate) now: Instant,
    pub(crate) plan: RunPlan,
    pub(crate) random: RandomSource,
    queue: BTreeMap<(Instant, u64), SimulationEvent<E>>,
    last_sequence: u64,
    /// The current time, and the number of events that have been processed at this time.
    event_count_at_time: (Instant, usize),
    pub(crate) processes: Vec<SimulatedProcess>,
    /// Pairs of a sending and a receiving host between which no data arrives.
    pub(crate) partitions: BTreeSet<(usize, usize)>,
    /// For each pair of hosts, lower index first, the time since which they have been able to communicate.
    contact_since: BTreeMap<(usize, usize), Instant>,
    pub(crate) network_behavior: NetworkBehavior,
    pub(crate) disk_behavior: DiskBehavior,
    pub(crate) lost_disk_count: usize,
    pub(crate) is_healed: bool,
    healed_at: Option<Instant>,
    consecutive_agreements: usize,
    disagreement: Option<(InvariantName, String)>,
    pub(crate) data: DataSimulation,
    violation: Option<String>,
    is_over: bool,
    pub(crate) promotion_count: usize,
    trace: Trace,
}

/// Executes a run, from its first event to its result.
pub(crate) fn run_simulation<P: SimulatedSystem>(mut system: P) -> RunResult {
    let phases = P::PHASES;
    let faults = START_TIME + phases.settle_time;
    let heal = faults + phases.fault_time;
    let simulation = system.simulation();
    simulation.schedule(START_TIME, SimulationEvent::Begin);
    simulation.schedule(faults, SimulationEvent::Fault);
    simulation.schedule(heal, SimulationEvent::Heal);
    while let Some(((at, _), event)) = system.simulation().queue.pop_first() {
        system.simulation().now = at;
        system.simulation().check_progress(&event);
        let handled = catch_panic(|| {
            handle_event(&mut system, event);
            system.after_event();
        });
        if let Err(panic) = handled {
            system.simulation().abort_run(&panic);
        }
        if at > heal + phases.max_convergence_time {
            system.trace_views();
            let simulation = system.simulation();
            let (rule, why) =
                simulation.disagreement.clone().unwrap_or((P::LIVENESS_INVARIANT, String::new()));
            let what = format!("no agreement {:?} after healing: {why}", phases.max_convergence_time);
            simulation.record_violation(rule, &what);
            simulation.is_over = true;
        }
        let simulation = system.simulation();
        if simulation.violation.is_some()
            || simulation.is_over
            || simulation.consecutive_agreements >= phases.required_agreements
        {
            break;
        }
    }
    let simulation = system.simulation();
    RunResult {
        violation: simulation.violation.take(),
        digest: simulation.trace.digest,
        trace: simulation.trace.take_lines(),
        promotion_count: simulation.promotion_count,
    }
}

fn handle_event<P: SimulatedSystem>(system: &mut P, event: SimulationEvent<P::Event>) {
    match event {
        SimulationEvent::Begin => {
            system.start_processes();
            write_data(system);
        }
        SimulationEvent::Tick { host, incarnation } => on_tick(system, host, incarnation),
        SimulationEvent::WriteData => write_data(system),
        SimulationEvent::Fault => inject_fault(system),
        SimulationEvent::Reconnect(separated) => system.simulation().reconnect(&separated),
        SimulationEvent::Heal => end_faults(system),
        SimulationEvent::Check => check(system),
        SimulationEvent::Restart { host, incarnation } => {
            let process = &system.simulation().processes[host];
            if process.incarnation == incarnation && !process.is_up {
                system.restart_process(host);
            }
        }
        SimulationEvent::Data(event) => system.simulation().handle_data_event(event),
        SimulationEvent::System(event) => system.handle_event(event),
    }
}

fn write_data<P: SimulatedSystem>(system: &mut P) {
    system.simulation().record_contacts();
    system.write_data();
    let simulation = system.simulation();
    simulation.schedule(simulation.now + WRITE_INTERVAL, SimulationEvent::WriteData);
}

/// Injects one fault and schedules the next one.
fn inject_fault<P: SimulatedSystem>(system: &mut P) {
    if system.simulation().is_healed {
        return;
    }
    system.inject_fault();
    let simulation = system.simulation();
    let (shortest, longest) = P::PHASES.fault_interval_millis;
    let next = simulation.now + simulation.random.random_millis(shortest, longest);
    simulation.schedule(next, SimulationEvent::Fault);
}

/// Ends all faults. From then on, all nodes must reach agreement.
fn end_faults<P: SimulatedSystem>(system: &mut P) {
    let simulation = system.simulation();
    simulation.trace(|| "everything heals".into());
    simulation.is_healed = true;
    simulation.healed_at = Some(simulation.now);
    simulation.partitions.clear();
    simulation.network_behavior.heal();
    simulation.disk_behavior.heal();
    for host in 0..system.simulation().processes.len() {
        let simulation = system.simulation();
        simulation.resume(host);
        let process = &mut simulation.processes[host];
        process.extra_latency = Duration::ZERO;
        if process.is_up { system.continue_process(host) } else { system.restart_process(host) }
    }
    let simulation = system.simulation();
    simulation.schedule(simulation.now + AGREEMENT_CHECK_INTERVAL, SimulationEvent::Check);
}

fn check<P: SimulatedSystem>(system: &mut P) {
    let disagreement = system.find_disagreement().map(|why| (P::LIVENESS_INVARIANT, why));
    let simulation = system.simulation();
    let disagreement =
        disagreement.or_else(|| Some((InvariantName::SameData, simulation.data.disagreement()?)));
    simulation.consecutive_agreements =
        if disagreement.is_none() { simulation.consecutive_agreements + 1 } else { 0 };
    simulation.disagreement = disagreement;
    system.repair_as_operator();
    let simulation = system.simulation();
    simulation.schedule(simulation.now + AGREEMENT_CHECK_INTERVAL, SimulationEvent::Check);
}

/// Schedules the next call of a process's state machine, unless an earlier call is scheduled.
pub(crate) fn schedule_tick<P: SimulatedSystem>(system: &mut P, host: usize) {
    let Some(due) = system.next_deadline(host) else { return };
    let simulation = system.simulation();
    let (now, process) = (simulation.now, &mut simulation.processes[host]);
    let due = (due - process.clock_offset).max(now);
    if process.next_tick_at.is_none_or(|at| due < at || at < now) {
        process.next_tick_at = Some(due);
        let incarnation = process.incarnation;
        simulation.schedule(due, SimulationEvent::Tick { host, incarnation });
    }
}

fn on_tick<P: SimulatedSystem>(system: &mut P, host: usize, incarnation: u64) {
    let simulation = system.simulation();
    if !simulation.is_incarnation(host, incarnation) {
        return;
    }
    let (now, process) = (simulation.now, &mut simulation.processes[host]);
    if let Some(until) = process.frozen_until.filter(|&until| until > now) {
        return simulation.schedule(until, SimulationEvent::Tick { host, incarnation });
    }
    if process.next_tick_at.is_some_and(|at| at > now) {
        return;
    }
    process.next_tick_at = None;
    let skew = process.clock_offset;
    if system.next_deadline(host).is_some_and(|due| due - skew <= now) {
        system.on_deadline(host);
    } else {
        schedule_tick(system, host);
    }
}

impl<E: Debug> Simulation<E> {
    /// Creates a simulation without processes, whose network and disks are drawn from `random`.
    pub(crate) fn new(
        plan: RunPlan,
        mut random: RandomSource,
        data: DataSimulation,
        is_traced: bool,
    ) -> Self {
        let (network, disks) = (NetworkBehavior::draw(&mut random), DiskBehavior::draw(&mut random));
        Self {
            now: START_TIME,
            plan,
            random,
            data,
            queue: BTreeMap::new(),
            last_sequence: 0,
            event_count_at_time: (START_TIME, 0),
            processes: Vec::new(),
            partitions: BTreeSet::new(),
            contact_since: BTreeMap::new(),
            network_behavior: network,
            disk_behavior: disks,
            lost_disk_count: 0,
            is_healed: false,
            healed_at: None,
            consecutive_agreements: 0,
            disagreement: None,
            violation: None,
            is_over: false,
            promotion_count: 0,
            trace: Trace::new(is_traced),
        }
    }

    /// Adds a running process, whose clients use this address.
    pub(crate) fn add_process(&mut self, address: String) {
        self.processes.push(SimulatedProcess {
            is_up: true,
            has_power: true,
            frozen_until: None,
            extra_latency: Duration::ZERO,
            incarnation: 0,
            clock_offset: Duration::ZERO,
            next_tick_at: None,
        });
        self.data.add_process(&mut self.random, self.now, address);
        self.enable_file_at_random(self.processes.len() - 1);
    }

    fn schedule(&mut self, at: Instant, event: SimulationEvent<E>) {
        self.last_sequence += 1;
        self.queue.insert((at, self.last_sequence), event);
    }

    pub(crate) fn schedule_at(&mut self, at: Instant, event: E) {
        self.schedule(at, SimulationEvent::System(event));
    }

    pub(crate) fn schedule_after(&mut self, delay: Duration, event: E) {
        self.schedule_at(self.now + delay, event);
    }

    pub(crate) fn schedule_data(&mut self, at: Instant, event: data::DataEvent) {
        self.schedule(at, SimulationEvent::Data(event));
    }

    /// Returns whether clients still write. They stop some time after healing, so that replicas can be compared.
    pub(crate) fn are_clients_writing(&self) -> bool {
        self.healed_at.is_none_or(|healed| self.now.since(healed) < WRITE_TIME_AFTER_HEALING)
    }

    pub(crate) fn trace(&mut self, text: impl FnOnce() -> String) {
        self.trace.record(self.now, &text());
    }

    /// Records a violation. Only the first violation of a run is reported.
    pub(crate) fn record_violation(&mut self, invariant: InvariantName, description: &str) {
        if self.plan.only_invariant.is_none_or(|only| only == invariant) {
            let at = micros_since_start(self.now);
            self.violation.get_or_insert_with(|| format!("at {at} us: {}: {description}", invariant.name()));
        }
    }

    /// Ends the run and records a violation, unless only one invariant is to be checked.
    pub(crate) fn abort_run(&mut self, reason: &str) {
        self.is_over = true;
        if self.plan.only_invariant.is_none() {
            let at = micros_since_start(self.now);
            self.violation.get_or_insert_with(|| format!("at {at} us: {reason}"));
        }
    }

    /// Aborts the run if time does not advance, as when the deadline of a state machine remains due after each call.
    fn check_progress(&mut self, event: &SimulationEvent<E>) {
        if self.now > self.event_count_at_time.0 {
            self.event_count_at_time = (self.now, 0);
        }
        self.event_count_at_time.1 += 1;
        if self.event_count_at_time.1 > MAX_SIMULTANEOUS_EVENTS {
            self.abort_run(&format!("time stands still, with {event:?}"));
        }
    }

    /// Returns whether this incarnation of the process is still running.
    pub(crate) fn is_incarnation(&self, host: usize, incarnation: u64) -> bool {
        self.processes[host].incarnation == incarnation && self.processes[host].is_up
    }

    /// Returns whether the process is running and not frozen.
    pub(crate) fn is_running(&self, host: usize) -> bool {
        let process = &self.processes[host];
        process.is_up && process.frozen_until.is_none_or(|until| until <= self.now)
    }

    /// Returns the time until which a process is frozen, if it is frozen.
    pub(crate) fn frozen_until(&self, host: usize) -> Option<Instant> {
        self.processes[host].frozen_until.filter(|until| *until > self.now)
    }

    pub(crate) fn draw_latency(&mut self, from: usize, to: usize) -> Duration {
        let slow = self.processes[from].extra_latency + self.processes[to].extra_latency;
        self.network_behavior.draw_latency(&mut self.random) + slow
    }

    /// Draws the duration of a sync of a disk.
    pub(crate) fn draw_sync_time(&mut self) -> Duration {
        self.disk_behavior.draw_sync_time(&mut self.random)
    }

    /// Returns whether data from one host does not reach the other.
    pub(crate) fn is_blocked(&self, from: usize, to: usize) -> bool {
        self.partitions.contains(&(from, to))
    }

    /// Returns whether data cannot pass between two hosts in at least one direction.
    pub(crate) fn cannot_communicate(&self, first_host: usize, second_host: usize) -> bool {
        self.is_blocked(first_host, second_host) || self.is_blocked(second_host, first_host)
    }

    fn can_communicate(&self, first_host: usize, second_host: usize) -> bool {
        self.is_running(first_host)
            && self.is_running(second_host)
            && !self.cannot_communicate(first_host, second_host)
    }

    fn record_contacts(&mut self) {
        let hosts = 0..self.processes.len();
        for (one, other) in hosts.flat_map(|one| (0..one).map(move |other| (other, one))) {
            if self.can_communicate(one, other) {
                self.contact_since.entry((one, other)).or_insert(self.now);
            } else {
                self.contact_since.remove(&(one, other));
            }
        }
    }

    /// Returns how long two hosts have been able to communicate, even if slowly. The duration is sampled at regular
    /// intervals.
    pub(crate) fn contact_duration(&self, first_host: usize, second_host: usize) -> Duration {
        let since = self
            .contact_since
            .get(&(first_host.min(second_host), first_host.max(second_host)))
            .filter(|_| self.can_communicate(first_host, second_host));
        since.map_or(Duration::ZERO, |since| self.now.since(*since))
    }

    /// Partitions the network, with randomly drawn sides.
    pub(crate) fn start_partition(&mut self) {
        let separated = self.network_behavior.draw_partition(self.processes.len(), &mut self.random);
        self.trace(|| format!("cut {separated:?}"));
        self.partitions.extend(&separated);
        if let Some(duration) = self.network_behavior.draw_partition_duration(&mut self.random) {
            self.schedule(self.now + duration, SimulationEvent::Reconnect(separated));
        }
    }

    /// Ends a partition between these pairs of hosts.
    fn reconnect(&mut self, separated: &[(usize, usize)]) {
        self.trace(|| format!("reconnect {separated:?}"));
        self.partitions.retain(|pair| !separated.contains(pair));
    }

    pub(crate) fn end_partition(&mut self) {
        self.trace(|| "the network heals".into());
        self.partitions.clear();
    }

    /// Freezes a process for a random time between `min_millis` and `max_millis` milliseconds.
    pub(crate) fn freeze(&mut self, host: usize, min_millis: u64, max_millis: u64) {
        if self.is_running(host) {
            let until = self.now + self.random.random_millis(min_millis, max_millis);
            self.trace(|| format!("host {host} stops until {}", micros_since_start(until)));
            self.processes[host].frozen_until = Some(until);
        }
    }

    /// Resumes a frozen process. It then handles everything that arrived while it was frozen.
    fn resume(&mut self, host: usize) {
        let Some(until) = self.processes[host].frozen_until.take().filter(|until| *until > self.now) else {
            return;
        };
        let mut waiting = self.queue.split_off(&(until, 0));
        let mut later = waiting.split_off(&(until, u64::MAX));
        self.queue.append(&mut later);
        self.queue.extend(waiting.into_iter().map(|((_, number), event)| ((self.now, number), event)));
    }

    /// Kills a process. If `keeps_power` is false, its host also loses power.
    pub(crate) fn kill(&mut self, host: usize, keeps_power: bool) {
        let process = &mut self.processes[host];
        (process.is_up, process.has_power) = (false, keeps_power);
        (process.frozen_until, process.next_tick_at) = (None, None);
        process.incarnation += 1;
    }

    /// Schedules the restart of a dead process after a random time between `min_millis` and `max_millis` milliseconds.
    pub(crate) fn schedule_restart(&mut self, host: usize, min_millis: u64, max_millis: u64) {
        let at = self.now + self.random.random_millis(min_millis, max_millis);
        let incarnation = self.processes[host].incarnation;
        self.schedule(at, SimulationEvent::Restart { host, incarnation });
    }

    /// Marks a process as running and its machine as having power.
    pub(crate) fn mark_running(&mut self, host: usize) {
        let process = &mut self.processes[host];
        (process.is_up, process.has_power) = (true, true);
    }
}
