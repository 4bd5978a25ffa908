//! The stage of every half: the time and the queue of events, the processes and the network between
//! them, the phases of a run, and the verdict.
//!
//! A half is a [`Play`]: it says what its processes are, how they talk and what goes wrong among them. The
//! stage drives it: faults first, then everything heals, then all must agree several times in a row.
//!
//! Invariant: events of one moment happen in the order in which they were planned, so that a seed
//! always makes the same run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use clock::Instant;

use crate::data::{self, Data};
use crate::trace::{START, Trace, micros};
use crate::{Chance, Outcome, Plan, Rule, caught};

/// How often the data moves.
const BEAT: Duration = Duration::from_millis(50);
/// How often it is looked for agreement.
const CHECK: Duration = Duration::from_millis(500);
/// After healing, clients write for so long.
const WRITTEN: Duration = Duration::from_secs(1);
/// More than this at one moment is no coincidence.
const MOST_AT_ONCE: usize = 10_000;

/// How long the phases of a run last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phases {
    /// Without faults, until the processes have found each other.
    pub(crate) settle: Duration,
    pub(crate) faults: Duration,
    /// Between two faults, in milliseconds.
    pub(crate) fault_gap: (u64, u64),
    /// After healing, the longest until all agree.
    pub(crate) converge: Duration,
    /// So many checks in a row must find agreement.
    pub(crate) stable: usize,
}

/// One half of the simulator.
pub(crate) trait Play {
    const PHASES: Phases;
    /// The rule that asks that all agree after healing.
    const LIVENESS: Rule;
    /// The events of this half only.
    type Event: Debug;

    fn stage(&mut self) -> &mut Stage<Self::Event>;
    fn begin(&mut self);
    fn happen(&mut self, event: Self::Event);
    /// Data moves: masters take writes, replicas copy.
    fn beat(&mut self);
    /// Something goes wrong, or an operator does something.
    fn fault(&mut self);
    /// When the machine of a process wants to be called again, by its own clock.
    fn deadline(&mut self, host: usize) -> Option<Instant>;
    /// That time has come.
    fn on_deadline(&mut self, host: usize);
    /// Starts a dead process.
    fn restart(&mut self, host: usize);
    /// A process that was up when everything healed goes on.
    fn go_on(&mut self, host: usize);
    /// Returns the first thing that is not agreed on yet, after healing.
    fn disagreement(&mut self) -> Option<String>;
    /// Sets right, after each look, the things that only an operator can.
    fn repair(&mut self) {}
    /// Puts into the trace how everybody sees the others: they did not come to agree.
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

/// A process, and the machine that it runs on.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) up: bool,
    /// Without power a host does not even refuse connections.
    pub(crate) powered: bool,
    /// Stopped, as by SIGSTOP, until then.
    frozen: Option<Instant>,
    pub(crate) slow: Duration,
    /// Counts restarts.
    pub(crate) life: u64,
    /// How far its clock has jumped ahead.
    pub(crate) skew: Duration,
    tick_at: Option<Instant>,
}

pub(crate) struct Stage<E> {
    pub(crate) now: Instant,
    pub(crate) plan: Plan,
    pub(crate) chance: Chance,
    queue: BTreeMap<(Instant, u64), Event<E>>,
    planned: u64,
    /// How much has happened at the present moment.
    at_once: (Instant, usize),
    pub(crate) processes: Vec<Process>,
    /// Pairs, sender first, between which nothing gets through.
    pub(crate) cuts: BTreeSet<(usize, usize)>,
    /// Since when each pair, the lower first, has been able to talk.
    contacts: BTreeMap<(usize, usize), Instant>,
    longest_latency: u64,
    pub(crate) disks_lost: usize,
    pub(crate) healed: bool,
    healed_at: Option<Instant>,
    agreed: usize,
    disagreement: Option<(Rule, String)>,
    pub(crate) data: Data,
    violation: Option<String>,
    /// There is nothing more to be seen.
    over: bool,
    pub(crate) promotions: usize,
    trace: Trace,
}

/// Plays a whole run.
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

/// One fault, and the time of the next.
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

/// Everything works again; from now on everybody must come to agree.
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

/// Plans the call that the machine of `host` wants next, unless an earlier one is planned.
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
    /// An empty stage for this data; `longest_latency` in milliseconds.
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

    /// One more process, which is up and which clients reach here.
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

    /// Whether clients still write: not when all that they wrote is to be everywhere.
    pub(crate) fn is_written(&self) -> bool {
        self.healed_at.is_none_or(|healed| self.now.since(healed) < WRITTEN)
    }

    pub(crate) fn note(&mut self, text: impl FnOnce() -> String) {
        self.trace.note(self.now, &text());
    }

    /// Something that must not happen did. The first of it is what counts.
    pub(crate) fn violate(&mut self, rule: Rule, what: &str) {
        if self.plan.only.is_none_or(|only| only == rule) {
            let at = micros(self.now);
            self.violation.get_or_insert_with(|| format!("at {at} us: {}: {what}", rule.name()));
        }
    }

    /// The run cannot go on, which is a violation unless something else is asked for.
    pub(crate) fn break_off(&mut self, what: &str) {
        self.over = true;
        if self.plan.only.is_none() {
            let at = micros(self.now);
            self.violation.get_or_insert_with(|| format!("at {at} us: {what}"));
        }
    }

    /// A machine whose deadline stays due although it was called would stop time.
    fn check_progress(&mut self, event: &Event<E>) {
        if self.now > self.at_once.0 {
            self.at_once = (self.now, 0);
        }
        self.at_once.1 += 1;
        if self.at_once.1 > MOST_AT_ONCE {
            self.break_off(&format!("time stands still, with {event:?}"));
        }
    }

    /// Whether a process is still the one that it was.
    pub(crate) fn lives(&self, host: usize, life: u64) -> bool {
        self.processes[host].life == life && self.processes[host].up
    }

    /// Whether a process takes in anything now.
    pub(crate) fn runs(&self, host: usize) -> bool {
        let process = &self.processes[host];
        process.up && process.frozen.is_none_or(|until| until <= self.now)
    }

    /// Until when a process takes in nothing, if it is stopped.
    pub(crate) fn frozen_until(&self, host: usize) -> Option<Instant> {
        self.processes[host].frozen.filter(|until| *until > self.now)
    }

    pub(crate) fn latency(&mut self, from: usize, to: usize) -> Duration {
        let slow = self.processes[from].slow + self.processes[to].slow;
        self.chance.millis(0, self.longest_latency) + slow
    }

    /// Whether nothing gets from one to the other.
    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// Whether two cannot talk: a stream needs both directions.
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

    /// For how long two have been able to talk, as looked at with every beat; slow hosts talk, too.
    pub(crate) fn in_touch(&self, one: usize, other: usize) -> Duration {
        let since =
            self.contacts.get(&(one.min(other), one.max(other))).filter(|_| self.can_talk(one, other));
        since.map_or(Duration::ZERO, |since| self.now.since(*since))
    }

    /// Cuts the network.
    pub(crate) fn partition(&mut self) {
        let cut = self.chance.partition(self.processes.len());
        self.note(|| format!("cut {cut:?}"));
        self.cuts.extend(cut);
    }

    pub(crate) fn mend(&mut self) {
        self.note(|| "the network heals".into());
        self.cuts.clear();
    }

    /// Stops a process for a while, between these milliseconds.
    pub(crate) fn freeze(&mut self, host: usize, shortest: u64, longest: u64) {
        if self.runs(host) {
            let until = self.now + self.chance.millis(shortest, longest);
            self.note(|| format!("host {host} stops until {}", micros(until)));
            self.processes[host].frozen = Some(until);
        }
    }

    /// A process that was stopped goes on now, with all that has waited for that.
    fn thaw(&mut self, host: usize) {
        let Some(until) = self.processes[host].frozen.take().filter(|until| *until > self.now) else {
            return;
        };
        let mut waiting = self.queue.split_off(&(until, 0));
        let mut later = waiting.split_off(&(until, u64::MAX));
        self.queue.append(&mut later);
        self.queue.extend(waiting.into_iter().map(|((_, number), event)| ((self.now, number), event)));
    }

    /// A process ends, its machine with it if that loses power.
    pub(crate) fn kill(&mut self, host: usize, powered: bool) {
        let process = &mut self.processes[host];
        (process.up, process.powered) = (false, powered);
        (process.frozen, process.tick_at) = (None, None);
        process.life += 1;
    }

    /// A dead process comes back after so many milliseconds.
    pub(crate) fn restart_within(&mut self, host: usize, shortest: u64, longest: u64) {
        let at = self.now + self.chance.millis(shortest, longest);
        let life = self.processes[host].life;
        self.plan(at, Event::Restart { host, life });
    }

    /// A dead process is there again, on a machine that has power.
    pub(crate) fn revive(&mut self, host: usize) {
        let process = &mut self.processes[host];
        (process.up, process.powered) = (true, true);
    }
}
