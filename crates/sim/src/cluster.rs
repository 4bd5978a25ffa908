//! A cluster: masters and replicas whose `gossip` machines are real, and everything else simulated.
//!
//! A run begins with a cluster that stands, each node restarted from its `nodes.conf`. The machine's
//! actions are carried out in their order, and what follows a write that must reach the disk waits for
//! it; a crash may come before, after or in the middle. Data is an offset that grows while a master takes
//! writes and that its replicas follow.
//!
//! A link is a stream, as with TCP. Packets on it may be lost, come twice or late all the same: the bus
//! must bear it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use clock::{Instant, Millis};
use gossip::wire::{Body, Packet};
use gossip::{Action, Event as Told, Gossip, Input, LinkId};
use slot_routing::{NodeId, Slot, Topology};

use self::data::Data;
use self::disk::Disk;
use self::invariants::{Invariant, Seen};
use self::wire::Wire;
use crate::trace::{START, Trace, micros};
use crate::{Chance, Outcome, Plan, Plant, caught};

mod data;
mod disk;
mod faults;
mod formation;
mod invariants;
mod operator;
mod wire;

const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// Until the masters serve: they wait two seconds after their start.
const SETTLE: Duration = Duration::from_millis(2500);
const FAULTS: Duration = Duration::from_secs(5);
/// After healing: the longest blacklist, then an election that had to be repeated.
const CONVERGE: Duration = Duration::from_secs(60);
const CHECK: Duration = Duration::from_millis(500);
/// So many checks in a row must find agreement.
const STABLE: usize = 3;
/// How often the data moves, and how often it is looked at who takes writes.
const BEAT: Duration = Duration::from_millis(50);

/// More than this at one moment is no coincidence.
const MOST_AT_ONCE: usize = 10_000;

#[derive(Debug, Clone)]
enum Event {
    Begin,
    Tick {
        host: usize,
        life: u64,
    },
    Dialled {
        wire: u64,
    },
    /// Something arrives at that side of a wire.
    Arrives {
        wire: u64,
        side: usize,
    },
    /// A packet on its own way: doubled, or late.
    Stray {
        from: usize,
        to: usize,
        packet: Box<Packet>,
    },
    Synced {
        host: usize,
        life: u64,
    },
    /// The writes that were under way when they were paused are through.
    Drained {
        host: usize,
        life: u64,
    },
    Beat,
    Fault,
    Operate(operator::Step),
    Heal,
    Check,
    Die {
        host: usize,
        life: u64,
    },
    Restart {
        host: usize,
        life: u64,
    },
}

/// A process and the machine that it runs on.
struct Host {
    ip: IpAddr,
    up: bool,
    /// Without power a host does not even refuse connections.
    powered: bool,
    /// Stopped, as by SIGSTOP, until then.
    frozen: Option<Instant>,
    slow: Duration,
    /// Counts restarts.
    life: u64,
    /// How far its clocks have jumped ahead: the one that only grows, and the wall's.
    skew: Duration,
    wall_skew: i64,
    gossip: Option<Gossip>,
    disk: Disk,
    /// Actions behind a write that has not reached the disk.
    waiting: VecDeque<Action>,
    tick_at: Option<Instant>,
    links: BTreeMap<LinkId, (u64, usize)>,
    accepted: u64,
    topology: Option<Topology>,
    data: Data,
    /// When each node was last heard.
    heard: BTreeMap<NodeId, Instant>,
    tokens: u64,
    /// What the operator does next, once a command has been answered well.
    next_steps: BTreeMap<u64, operator::Step>,
}

struct World {
    now: Instant,
    plan: Plan,
    chance: Chance,
    queue: BTreeMap<(Instant, u64), Event>,
    events: u64,
    hosts: Vec<Host>,
    wires: BTreeMap<u64, Wire>,
    dialled: u64,
    /// From whom to whom nothing gets through.
    cuts: BTreeSet<(usize, usize)>,
    longest_latency: u64,
    /// How much has happened at the present moment.
    stuck: (Instant, usize),
    /// Packets lost, in a hundred.
    loss: u32,
    /// Slots that stand for all: some of each first master.
    samples: Vec<Slot>,
    disks_lost: usize,
    /// A slot is on its way until then.
    moving_until: Instant,
    healed: bool,
    agreed: usize,
    disagreement: Option<String>,
    invariants: Vec<Box<dyn Invariant>>,
    violation: Option<String>,
    promotions: usize,
    trace: Trace,
}

/// Runs one plan; with `traced`, the outcome holds all that happened.
pub(crate) fn run(plan: Plan, traced: bool) -> Outcome {
    let mut world = World::new(plan, traced);
    world.at(START, Event::Begin);
    world.at(START + SETTLE, Event::Fault);
    world.at(START + SETTLE + FAULTS, Event::Heal);
    while let Some(((at, _), event)) = world.queue.pop_first() {
        world.now = at;
        if let Err(panic) = caught(|| world.happen(event)) {
            world.violate(&panic);
        }
        if at > START + SETTLE + FAULTS + CONVERGE {
            let why = world.disagreement.clone().unwrap_or_default();
            world.note_views();
            world.violate(&format!("no agreement {CONVERGE:?} after healing: {why}"));
        }
        if world.violation.is_some() || world.agreed >= STABLE {
            break;
        }
    }
    Outcome {
        violation: world.violation,
        digest: world.trace.digest,
        trace: world.trace.take_lines(),
        promotions: world.promotions,
    }
}

impl World {
    fn new(plan: Plan, traced: bool) -> Self {
        let mut chance = Chance::new(plan.seed);
        let longest_latency = chance.pick(&[1, 3, 10, 30]);
        let loss = chance.pick(&[0, 0, 2, 8]);
        let formation = formation::form(plan.nodes, &mut chance);
        let host = |(number, nodes_conf)| Host::new(ip_of(number), Disk::holding(nodes_conf));
        Self {
            now: START,
            plan,
            chance,
            queue: BTreeMap::new(),
            events: 0,
            hosts: formation.nodes_confs.into_iter().enumerate().map(host).collect(),
            wires: BTreeMap::new(),
            dialled: 0,
            cuts: BTreeSet::new(),
            longest_latency,
            stuck: (START, 0),
            loss,
            samples: formation.samples,
            disks_lost: 0,
            moving_until: START,
            healed: false,
            agreed: 0,
            disagreement: None,
            invariants: invariants::all(),
            violation: None,
            promotions: 0,
            trace: Trace::new(traced),
        }
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.events += 1;
        self.queue.insert((at, self.events), event);
    }

    fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now + delay, event);
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        self.trace.note(self.now, &text());
    }

    /// How everybody sees the cluster.
    fn note_views(&mut self) {
        for host in 0..self.hosts.len() {
            if let Some(gossip) = &self.hosts[host].gossip {
                let text = gossip.nodes_text();
                text.lines().for_each(|line| self.note(|| format!("host {host} sees {line}")));
            }
        }
    }

    /// Something that must not happen did. The first of it is what counts.
    fn violate(&mut self, what: &str) {
        let at = micros(self.now);
        self.violation.get_or_insert_with(|| format!("at {at} us: {what}"));
    }

    fn tell(&mut self, seen: &Seen<'_>) {
        let found = self.invariants.iter_mut().find_map(|invariant| invariant.check(seen).err());
        if let Some(violation) = found {
            self.violate(&violation);
        }
    }

    fn happen(&mut self, event: Event) {
        self.check_progress(&event);
        match event {
            Event::Begin => {
                (0..self.hosts.len()).for_each(|host| self.start(host));
                self.beat();
            }
            Event::Tick { host, life } => self.on_tick(host, life),
            Event::Dialled { wire } => self.on_dialled(wire),
            Event::Arrives { wire, side } => self.pump(wire, side),
            Event::Stray { from, to, packet } => self.deliver_stray(from, to, packet),
            Event::Synced { host, life } => {
                if self.lives(host, life) {
                    self.hosts[host].disk.sync();
                    self.release(host);
                }
            }
            Event::Drained { host, life } => self.on_drained(host, life),
            Event::Beat => self.beat(),
            Event::Fault => self.fault(),
            Event::Operate(step) => self.operate(step),
            Event::Heal => self.heal(),
            Event::Check => self.check_agreement(),
            Event::Die { host, life } => {
                if self.lives(host, life) {
                    self.crash(host, 40);
                }
            }
            Event::Restart { host, life } => {
                if self.hosts[host].life == life && !self.hosts[host].up {
                    self.restart(host);
                }
            }
        }
    }

    /// A machine whose deadline stays due although it was called would stop time.
    fn check_progress(&mut self, event: &Event) {
        if self.now > self.stuck.0 {
            self.stuck = (self.now, 0);
        }
        self.stuck.1 += 1;
        if self.stuck.1 > MOST_AT_ONCE {
            self.violate(&format!("time stands still, with {event:?}"));
        }
    }

    fn lives(&self, host: usize, life: u64) -> bool {
        self.hosts[host].life == life && self.hosts[host].up
    }

    /// Whether a host takes in anything now.
    fn runs(&self, host: usize) -> bool {
        let host = &self.hosts[host];
        host.up && host.frozen.is_none_or(|until| until <= self.now)
    }

    fn latency(&mut self, from: usize, to: usize) -> Duration {
        let slow = self.hosts[from].slow + self.hosts[to].slow;
        self.chance.millis(0, self.longest_latency) + slow
    }

    /// The machine of a host that is up.
    fn gossip(&self, host: usize) -> &Gossip {
        self.hosts[host].gossip.as_ref().expect("a host that is up has its machine")
    }

    /// Starts a node from what its disk holds.
    fn start(&mut self, host: usize) {
        let rng = self.chance.split();
        let config = formation::config(self.hosts[host].ip);
        let gossip = match self.hosts[host].disk.load() {
            Some(text) => match Gossip::restore(config, rng, text) {
                Ok(gossip) => gossip,
                Err(error) => return self.violate(&format!("a node cannot read what it wrote: {error}")),
            },
            None => Gossip::new(config, rng),
        };
        let id = gossip.id();
        self.hosts[host].gossip = Some(gossip);
        self.note(|| format!("host {host} starts as {id}"));
        self.feed(host, Input::Start);
    }

    fn plan_tick(&mut self, host: usize) {
        let (now, life) = (self.now, self.hosts[host].life);
        let host_now = &mut self.hosts[host];
        let Some(due) = host_now.gossip.as_ref().and_then(Gossip::next_deadline) else { return };
        let due = (due - host_now.skew).max(now);
        if host_now.tick_at.is_none_or(|at| due < at || at < now) {
            host_now.tick_at = Some(due);
            self.at(due, Event::Tick { host, life });
        }
    }

    fn on_tick(&mut self, host: usize, life: u64) {
        if !self.lives(host, life) {
            return;
        }
        if let Some(until) = self.hosts[host].frozen.filter(|&until| until > self.now) {
            return self.at(until, Event::Tick { host, life });
        }
        let host_now = &mut self.hosts[host];
        if host_now.tick_at.is_some_and(|at| at > self.now) {
            return;
        }
        host_now.tick_at = None;
        let due = host_now.gossip.as_ref().and_then(Gossip::next_deadline);
        if due.is_some_and(|due| due - host_now.skew <= self.now) {
            self.feed(host, Input::Deadline);
        } else {
            self.plan_tick(host);
        }
    }

    /// Gives a machine an input, after what replication has to say, and carries out its answer.
    fn feed(&mut self, host: usize, input: Input) {
        let now = self.now;
        let host_now = &mut self.hosts[host];
        let Some(gossip) = &mut host_now.gossip else { return };
        let wall = Millis(WALL + now.as_millis() as i64 + host_now.wall_skew);
        let mut out = Vec::new();
        if let Some(facts) = host_now.data.news(host_now.skew) {
            gossip.handle(now + host_now.skew, wall, Input::Replication(facts), &mut out);
        }
        gossip.handle(now + host_now.skew, wall, input, &mut out);
        host_now.waiting.extend(out);
        self.release(host);
        self.plan_tick(host);
    }

    /// Carries out, in order, what does not wait for the disk.
    fn release(&mut self, host: usize) {
        while self.hosts[host].up && !self.hosts[host].disk.is_busy() {
            let Some(action) = self.hosts[host].waiting.pop_front() else { return };
            self.carry_out(host, action);
        }
    }

    fn carry_out(&mut self, host: usize, action: Action) {
        match action {
            Action::Connect { link, ip, .. } => self.dial(host, link, ip),
            Action::Close { link } => self.hang_up(host, link),
            Action::Send { link, packet, .. } => self.send(host, link, packet),
            Action::Persist { text, sync } => self.persist(host, text, sync),
            Action::Publish(topology) => {
                self.tell(&Seen::Published { topology: &topology });
                self.hosts[host].topology = Some(*topology);
            }
            Action::BecomeMaster => {
                assert_ne!(self.plan.plant, Some(Plant::Panic), "planted");
                self.note(|| format!("host {host} becomes a master"));
                self.hosts[host].data.lead();
            }
            Action::BecomeReplica { ip, .. } => {
                self.note(|| format!("host {host} follows {ip}"));
                self.hosts[host].data.follow(ip);
            }
            Action::PauseWrites { until } => {
                let (life, until) = (self.hosts[host].life, until - self.hosts[host].skew);
                self.hosts[host].data.paused = Some(until);
                let drained = self.chance.millis(0, 20);
                self.after(drained, Event::Drained { host, life });
            }
            Action::ResumeWrites => self.hosts[host].data.paused = None,
            Action::WatchOffset(offset) => self.hosts[host].data.watched = offset,
            Action::DropEverything => self.hosts[host].data = Data::default(),
            Action::Reply { token, result } => self.on_answer(host, token, &result),
            Action::Log(told) => self.on_told(host, &told),
            // What is in a slot is not simulated, nor are clients.
            Action::DropSlots(_) | Action::Deliver(_) => {}
        }
    }

    fn persist(&mut self, host: usize, mut text: String, sync: bool) {
        if self.plan.plant == Some(Plant::ForgottenVotes) {
            text = disk::without_votes(&text);
        }
        self.hosts[host].disk.write(text, sync);
        if sync {
            let (life, time) = (self.hosts[host].life, self.chance.millis(0, 4));
            self.after(time, Event::Synced { host, life });
        }
    }

    fn on_told(&mut self, host: usize, told: &Told) {
        self.note(|| format!("host {host}: {told}"));
        if let Told::ElectionWon(epoch) = *told {
            self.promotions += 1;
            let winner = self.gossip(host).id();
            self.tell(&Seen::Won { winner, epoch });
        }
    }

    /// A packet leaves a host.
    fn examine(&mut self, packet: &Packet, from: usize, to: usize) {
        if matches!(packet.body, Body::AuthAck) {
            let candidate = self.hosts[to].gossip.as_ref().map(Gossip::id);
            let (voter, epoch) = (packet.header.sender, packet.header.current_epoch);
            self.note(|| format!("{voter} votes for host {to} in epoch {epoch}"));
            if let Some(candidate) = candidate {
                self.tell(&Seen::Voted { voter, epoch, candidate });
            }
            // The worst moment to die, and to be back before the election is over.
            if !self.healed && self.chance.percent(5) {
                let life = self.hosts[from].life;
                let soon = self.chance.millis(0, 5);
                self.after(soon, Event::Die { host: from, life });
            }
        }
    }

    fn check_agreement(&mut self) {
        self.disagreement = invariants::coverage::disagreement(&self.hosts, &self.samples, self.now);
        self.agreed = if self.disagreement.is_none() { self.agreed + 1 } else { 0 };
        self.repair();
        self.after(CHECK, Event::Check);
    }
}

impl Host {
    fn new(ip: IpAddr, disk: Disk) -> Self {
        Self {
            ip,
            up: true,
            powered: true,
            frozen: None,
            slow: Duration::ZERO,
            life: 0,
            skew: Duration::ZERO,
            wall_skew: 0,
            gossip: None,
            disk,
            waiting: VecDeque::new(),
            tick_at: None,
            links: BTreeMap::new(),
            accepted: 0,
            topology: None,
            data: Data::default(),
            heard: BTreeMap::new(),
            tokens: 0,
            next_steps: BTreeMap::new(),
        }
    }

    /// Whether a write to `slot` would be taken now, were the process running.
    fn takes_writes(&self, slot: Slot, now: Instant) -> bool {
        let routed = |topology: &Topology| {
            topology.serving && topology.ownership(slot) == slot_routing::Ownership::Mine
        };
        self.up
            && self.topology.as_ref().is_some_and(routed)
            && self.data.paused.is_none_or(|until| until <= now)
    }
}

/// The wall clock at the simulated origin: some day in 2026.
const WALL: i64 = 1_790_000_000_000;

fn ip_of(number: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 1, u8::try_from(number + 1).expect("a small cluster")))
}

#[cfg(test)]
mod tests;
