//! Drives a simulation: simulated time and the event queue, processes and their network, the phases
//! of a run, and the result.
//!
//! Each simulated part implements [`Play`], which defines its processes, their communication and
//! its faults. A run injects faults, then heals everything, and then requires agreement in several
//! consecutive checks.
//!
//! Invariant: simultaneous events happen in the order in which they were scheduled, so that a seed
//! always gives the same run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use clock::Instant;

use crate::data::{self, Data};
use crate::trace::{START, Trace, micros};
use crate::{Chance, Outcome, Plan, Rule, caught};

/// Interval between client writes.
const BEAT: Duration = Duration::from_millis(50);
/// Interval between agreement checks.
const CHECK: Duration = Duration::from_millis(500);
/// Clients keep writing for this long after healing.
const WRITTEN: Duration = Duration::from_secs(1);
/// More events than this at one moment indicate an endless loop.
const MOST_AT_ONCE: usize = 10_000;

/// The durations of a run's phases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phases {
    /// Initial time without faults, in which the processes connect.
    pub(crate) settle: Duration,
    pub(crate) faults: Duration,
    /// The range of the time between two faults, in milliseconds.
    pub(crate) fault_gap: (u64, u64),
    /// The longest time from healing to agreement.
    pub(crate) converge: Duration,
    /// The number of consecutive checks that must find agreement.
    pub(crate) stable: usize,
}

/// A simulated part of the system.
pub(crate) trait Play {
    const PHASES: Phases;
    /// The invariant that requires agreement after healing.
    const LIVENESS: Rule;
    /// The events specific to this part.
    type Event: Debug;

    fn stage(&mut self) -> &mut Stage<Self::Event>;
    fn begin(&mut self);
    fn happen(&mut self, event: Self::Event);
    /// Issues client writes.
    fn beat(&mut self);
    /// Injects a fault or an operator action.
    fn fault(&mut self);
    /// Returns when the machine of a process wants to be called, by its own clock.
    fn deadline(&mut self, host: usize) -> Option<Instant>;
    /// Calls the machine at its deadline.
    fn on_deadline(&mut self, host: usize);
    /// Starts a dead process.
    fn restart(&mut self, host: usize);
    /// Continues a process that was running when everything healed.
    fn go_on(&mut self, host: usize);
    /// Returns the first disagreement after healing.
    fn disagreement(&mut self) -> Option<String>;
    /// Repairs what only an operator can, after each check.
    fn repair(&mut self) {}
    /// Adds each node's view of the others to the trace, because they did not reach agreement.
    fn note_views(&mut self) {}
}

#[derive(Debug)]
enum Event<E> {
    Begin,
    Tick { host: usize, life: u64 },
    Beat,
    Fault,
    Heal,
    Check,
    Restart { host: usize, life: u64 },
    Data(data::Event),
    Own(E),
}

/// A process and its machine.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) up: bool,
    /// Without power a host does not even refuse connections.
    pub(crate) powered: bool,
    /// Frozen until this time, as by SIGSTOP and SIGCONT.
    frozen: Option<Instant>,
    pub(crate) slow: Duration,
    /// The incarnation number, incremented by restarts.
    pub(crate) life: u64,
    /// The offset of its clock.
    pub(crate) skew: Duration,
    tick_at: Option<Instant>,
}

pub(crate) struct Stage<E> {
    pub(crate) now: Instant,
    pub(crate) plan: Plan,
    pub(crate) chance: Chance,
    queue: BTreeMap<(Instant, u64), Event<E>>,
    planned: u64,
    /// The number of events at the current time.
    at_once: (Instant, usize),
    pub(crate) processes: Vec<Process>,
    /// Partitioned pairs (sender, receiver).
    pub(crate) cuts: BTreeSet<(usize, usize)>,
    /// Since when each pair of hosts, lower index first, can communicate.
    contacts: BTreeMap<(usize, usize), Instant>,
    longest_latency: u64,
    pub(crate) disks_lost: usize,
    pub(crate) healed: bool,
    healed_at: Option<Instant>,
    agreed: usize,
    disagreement: Option<(Rule, String)>,
    pub(crate) data: Data,
    violation: Option<String>,
    /// The run has ended.
    over: bool,
    pub(crate) promotions: usize,
    trace: Trace,
}

/// Executes a whole run.
pub(crate) fn play<P: Play>(mut play: P) -> Outcome {
    let phases = P::PHASES;
    let faults = START + phases.settle;
    let heal = faults + phases.faults;
    let stage = play.stage();
    stage.plan(START, Event::Begin);
    stage.plan(faults, Event::Fault);
    stage.plan(heal, Event::Heal);
    while let Some(((at, _), event)) = play.stage().queue.pop_first() {
        play.stage().now = at;
        play.stage().check_progress(&event);
        if let Err(panic) = caught(|| happen(&mut play, event)) {
            play.stage().break_off(&panic);
        }
        if at > heal + phases.converge {
            play.note_views();
            let stage = play.stage();
            let (rule, why) = stage.disagreement.clone().unwrap_or((P::LIVENESS, String::new()));
            let what = format!("no agreement {:?} after healing: {why}", phases.converge);
            stage.violate(rule, &what);
            stage.over = true;
        }
        let stage = play.stage();
        if stage.violation.is_some() || stage.over || stage.agreed >= phases.stable {
            break;
        }
    }
    let stage = play.stage();
    Outcome {
        violation: stage.violation.take(),
        digest: stage.trace.digest,
        trace: stage.trace.take_lines(),
        promotions: stage.promotions,
    }
}

fn happen<P: Play>(play: &mut P, event: Event<P::Event>) {
    match event {
        Event::Begin => {
            play.begin();
            beat(play);
        }
        Event::Tick { host, life } => on_tick(play, host, life),
        Event::Beat => beat(play),
        Event::Fault => fault(play),
        Event::Heal => heal(play),
        Event::Check => check(play),
        Event::Restart { host, life } => {
            let process = &play.stage().processes[host];
            if process.life == life && !process.up {
                play.restart(host);
            }
        }
        Event::Data(event) => play.stage().happen_to_data(event),
        Event::Own(event) => play.happen(event),
    }
}

fn beat<P: Play>(play: &mut P) {
    play.stage().note_contacts();
    play.beat();
    let stage = play.stage();
    stage.plan(stage.now + BEAT, Event::Beat);
}

/// Injects one fault and schedules the next.
fn fault<P: Play>(play: &mut P) {
    if play.stage().healed {
        return;
    }
    play.fault();
    let stage = play.stage();
    let (shortest, longest) = P::PHASES.fault_gap;
    let next = stage.now + stage.chance.millis(shortest, longest);
    stage.plan(next, Event::Fault);
}

/// Ends all faults; from now on everything must reach agreement.
fn heal<P: Play>(play: &mut P) {
    let stage = play.stage();
    stage.note(|| "everything heals".into());
    stage.healed = true;
    stage.healed_at = Some(stage.now);
    stage.cuts.clear();
    for host in 0..play.stage().processes.len() {
        let stage = play.stage();
        stage.thaw(host);
        let process = &mut stage.processes[host];
        process.slow = Duration::ZERO;
        if process.up { play.go_on(host) } else { play.restart(host) }
    }
    let stage = play.stage();
    stage.plan(stage.now + CHECK, Event::Check);
}

fn check<P: Play>(play: &mut P) {
    let disagreement = play.disagreement().map(|why| (P::LIVENESS, why));
    let stage = play.stage();
    let disagreement = disagreement.or_else(|| Some((Rule::SameData, stage.data.disagreement()?)));
    stage.agreed = if disagreement.is_none() { stage.agreed + 1 } else { 0 };
    stage.disagreement = disagreement;
    play.repair();
    let stage = play.stage();
    stage.plan(stage.now + CHECK, Event::Check);
}

/// Schedules the next call of a host's machine unless an earlier one is scheduled.
pub(crate) fn plan_tick<P: Play>(play: &mut P, host: usize) {
    let Some(due) = play.deadline(host) else { return };
    let stage = play.stage();
    let (now, process) = (stage.now, &mut stage.processes[host]);
    let due = (due - process.skew).max(now);
    if process.tick_at.is_none_or(|at| due < at || at < now) {
        process.tick_at = Some(due);
        let life = process.life;
        stage.plan(due, Event::Tick { host, life });
    }
}

fn on_tick<P: Play>(play: &mut P, host: usize, life: u64) {
    let stage = play.stage();
    if !stage.lives(host, life) {
        return;
    }
    let (now, process) = (stage.now, &mut stage.processes[host]);
    if let Some(until) = process.frozen.filter(|&until| until > now) {
        return stage.plan(until, Event::Tick { host, life });
    }
    if process.tick_at.is_some_and(|at| at > now) {
        return;
    }
    process.tick_at = None;
    let skew = process.skew;
    if play.deadline(host).is_some_and(|due| due - skew <= now) {
        play.on_deadline(host);
    } else {
        plan_tick(play, host);
    }
}

impl<E: Debug> Stage<E> {
    /// Creates a simulation of this data without processes; `longest_latency` is in milliseconds.
    pub(crate) fn new(plan: Plan, chance: Chance, data: Data, longest_latency: u64, traced: bool) -> Self {
        Self {
            now: START,
            plan,
            chance,
            data,
            queue: BTreeMap::new(),
            planned: 0,
            at_once: (START, 0),
            processes: Vec::new(),
            cuts: BTreeSet::new(),
            contacts: BTreeMap::new(),
            longest_latency,
            disks_lost: 0,
            healed: false,
            healed_at: None,
            agreed: 0,
            disagreement: None,
            violation: None,
            over: false,
            promotions: 0,
            trace: Trace::new(traced),
        }
    }

    /// Adds a running process with its client address.
    pub(crate) fn add_process(&mut self, address: String) {
        self.processes.push(Process {
            up: true,
            powered: true,
            frozen: None,
            slow: Duration::ZERO,
            life: 0,
            skew: Duration::ZERO,
            tick_at: None,
        });
        self.data.add(&mut self.chance, self.now, address);
        self.choose_file(self.processes.len() - 1);
    }

    fn plan(&mut self, at: Instant, event: Event<E>) {
        self.planned += 1;
        self.queue.insert((at, self.planned), event);
    }

    pub(crate) fn at(&mut self, at: Instant, event: E) {
        self.plan(at, Event::Own(event));
    }

    pub(crate) fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }

    pub(crate) fn data_at(&mut self, at: Instant, event: data::Event) {
        self.plan(at, Event::Data(event));
    }

    /// Returns whether clients still write; writes stop before replicas are compared.
    pub(crate) fn is_written(&self) -> bool {
        self.healed_at.is_none_or(|healed| self.now.since(healed) < WRITTEN)
    }

    pub(crate) fn note(&mut self, text: impl FnOnce() -> String) {
        self.trace.note(self.now, &text());
    }

    /// Records a violation; only the first one counts.
    pub(crate) fn violate(&mut self, rule: Rule, what: &str) {
        if self.plan.only.is_none_or(|only| only == rule) {
            let at = micros(self.now);
            self.violation.get_or_insert_with(|| format!("at {at} us: {}: {what}", rule.name()));
        }
    }

    /// Ends the run with a violation, unless only one invariant is checked.
    pub(crate) fn break_off(&mut self, what: &str) {
        self.over = true;
        if self.plan.only.is_none() {
            let at = micros(self.now);
            self.violation.get_or_insert_with(|| format!("at {at} us: {what}"));
        }
    }

    /// Detects a machine whose deadline stays due after its call, which would stop time.
    fn check_progress(&mut self, event: &Event<E>) {
        if self.now > self.at_once.0 {
            self.at_once = (self.now, 0);
        }
        self.at_once.1 += 1;
        if self.at_once.1 > MOST_AT_ONCE {
            self.break_off(&format!("time stands still, with {event:?}"));
        }
    }

    /// Returns whether a process is still in this incarnation.
    pub(crate) fn lives(&self, host: usize, life: u64) -> bool {
        self.processes[host].life == life && self.processes[host].up
    }

    /// Returns whether a process can receive anything now.
    pub(crate) fn runs(&self, host: usize) -> bool {
        let process = &self.processes[host];
        process.up && process.frozen.is_none_or(|until| until <= self.now)
    }

    /// Returns until when a process is frozen, if it is.
    pub(crate) fn frozen_until(&self, host: usize) -> Option<Instant> {
        self.processes[host].frozen.filter(|until| *until > self.now)
    }

    pub(crate) fn latency(&mut self, from: usize, to: usize) -> Duration {
        let slow = self.processes[from].slow + self.processes[to].slow;
        self.chance.millis(0, self.longest_latency) + slow
    }

    /// Returns whether nothing gets from one host to the other.
    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// Returns whether two hosts cannot communicate; a stream needs both directions.
    pub(crate) fn is_apart(&self, one: usize, other: usize) -> bool {
        self.is_cut(one, other) || self.is_cut(other, one)
    }

    fn can_talk(&self, one: usize, other: usize) -> bool {
        self.runs(one) && self.runs(other) && !self.is_apart(one, other)
    }

    fn note_contacts(&mut self) {
        let hosts = 0..self.processes.len();
        for (one, other) in hosts.flat_map(|one| (0..one).map(move |other| (other, one))) {
            if self.can_talk(one, other) {
                self.contacts.entry((one, other)).or_insert(self.now);
            } else {
                self.contacts.remove(&(one, other));
            }
        }
    }

    /// Returns how long two hosts have been able to communicate, sampled at every beat. Slow hosts
    /// count as able.
    pub(crate) fn in_touch(&self, one: usize, other: usize) -> Duration {
        let since =
            self.contacts.get(&(one.min(other), one.max(other))).filter(|_| self.can_talk(one, other));
        since.map_or(Duration::ZERO, |since| self.now.since(*since))
    }

    /// Partitions the network.
    pub(crate) fn partition(&mut self) {
        let cut = self.chance.partition(self.processes.len());
        self.note(|| format!("cut {cut:?}"));
        self.cuts.extend(cut);
    }

    pub(crate) fn mend(&mut self) {
        self.note(|| "the network heals".into());
        self.cuts.clear();
    }

    /// Freezes a process for a random time in this range of milliseconds.
    pub(crate) fn freeze(&mut self, host: usize, shortest: u64, longest: u64) {
        if self.runs(host) {
            let until = self.now + self.chance.millis(shortest, longest);
            self.note(|| format!("host {host} stops until {}", micros(until)));
            self.processes[host].frozen = Some(until);
        }
    }

    /// Resumes a frozen process, with everything that arrived meanwhile.
    fn thaw(&mut self, host: usize) {
        let Some(until) = self.processes[host].frozen.take().filter(|until| *until > self.now) else {
            return;
        };
        let mut waiting = self.queue.split_off(&(until, 0));
        let mut later = waiting.split_off(&(until, u64::MAX));
        self.queue.append(&mut later);
        self.queue.extend(waiting.into_iter().map(|((_, number), event)| ((self.now, number), event)));
    }

    /// Kills a process, and cuts the power of its machine unless `powered`.
    pub(crate) fn kill(&mut self, host: usize, powered: bool) {
        let process = &mut self.processes[host];
        (process.up, process.powered) = (false, powered);
        (process.frozen, process.tick_at) = (None, None);
        process.life += 1;
    }

    /// Schedules the restart of a dead process within this range of milliseconds.
    pub(crate) fn restart_within(&mut self, host: usize, shortest: u64, longest: u64) {
        let at = self.now + self.chance.millis(shortest, longest);
        let life = self.processes[host].life;
        self.plan(at, Event::Restart { host, life });
    }

    /// Marks a dead process as running on a machine with power.
    pub(crate) fn revive(&mut self, host: usize) {
        let process = &mut self.processes[host];
        (process.up, process.powered) = (true, true);
    }
}
