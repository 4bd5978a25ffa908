//! Simulates a cluster: the `gossip` machines of masters and replicas are real, everything else is
//! simulated.
//!
//! A run begins with a formed cluster whose nodes restart from their `nodes.conf`. The machine's
//! actions are carried out in order. Only actions marked `after_persist` wait for a pending disk
//! write; a crash can come before, during or after it. The replicated data is simulated in
//! [`crate::data`].
//!
//! A link is an ordered stream like TCP. Even so, its packets may be lost, duplicated or delayed,
//! because the bus must tolerate that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use clock::{Instant, Millis};
use engine::{PausePurpose, TopologyChange};
use gossip::wire::{Header, MessageBody, Packet};
use gossip::{ClusterAction, ClusterDriver, ClusterInput, ElectionEvent, Gossip, LinkId, StepInputs};
use slot_routing::{ClientTransport, NodeId, ReplOffset, Slot, Topology};

use self::disk::Disk;
use self::invariants::Seen;
use self::key_moves::KeyMove;
use self::takeovers::Takeovers;
use self::whole_moves::WholeMove;
use self::wire::Wire;
use crate::data::{Data, Order};
use crate::stage::{Phases, Play, Stage, plan_tick, play};
use crate::trace::{START, nanos};
use crate::{Chance, Outcome, Plan, Plant, Rule};

mod data;
mod disk;
mod faults;
mod formation;
mod invariants;
mod key_moves;
mod operator;
mod takeovers;
mod whole_moves;
mod wire;

/// Poll interval while a driver thread is busy.
const BUSY: Duration = Duration::from_micros(200);
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
enum Event {
    Dialled {
        wire: u64,
    },
    /// Something arrives at one side of a link.
    Arrives {
        wire: u64,
        side: usize,
    },
    /// A duplicated or delayed packet arrives.
    Stray {
        from: usize,
        to: usize,
        packet: Box<Packet>,
    },
    Synced {
        host: usize,
        life: u64,
    },
    /// Checks whether the writes that were running at a pause have ended.
    Drained {
        host: usize,
        life: u64,
        under_way: BTreeSet<u64>,
    },
    /// A topology becomes visible to all slots.
    Published {
        host: usize,
        life: u64,
    },
    /// The driver thread may be free again.
    Hear {
        host: usize,
        life: u64,
    },
    /// Checks whether the replicas acknowledged a slot change.
    Told {
        host: usize,
        life: u64,
        told: data::Told,
    },
    /// A step of an atomic slot migration.
    Move {
        number: u64,
        step: whole_moves::MoveStep,
    },
    /// Continues a MIGRATE.
    MoveKeys(u64),
    Operate(operator::Step),
    Die {
        host: usize,
        life: u64,
    },
}

/// The state of one process of the cluster.
struct Host {
    ip: IpAddr,
    /// The node id of the previous run of this process.
    id: Option<NodeId>,
    /// The wall clock's offset.
    wall_skew: i64,
    gossip: Option<Gossip>,
    driving: ClusterDriver,
    /// The time of the last call of its machine, by its own clock.
    fed_at: Instant,
    disk: Disk,
    /// Actions that are still to be carried out.
    decided: VecDeque<ClusterAction>,
    /// Inputs that arrived while the driver was busy.
    unheard: VecDeque<ClusterInput>,
    links: BTreeMap<LinkId, (u64, usize)>,
    accepted: u64,
    topology: Option<Arc<Topology>>,
    /// The topology being published, and the writes that must end first.
    publishing: Option<(TopologyChange, BTreeSet<u64>)>,
    /// The machine is notified when this offset is processed.
    watched: Option<ReplOffset>,
    /// The latest information received from each node.
    heard: BTreeMap<NodeId, Heard>,
    /// The rank of its candidacy; `None` for a manual failover.
    rank: Option<u32>,
    /// The master that it wants to replace.
    contested: Option<NodeId>,
    tokens: u64,
    /// The operator's follow-up steps, by the token of the command that must succeed first.
    next_steps: BTreeMap<u64, operator::Step>,
}

/// The latest information received from a node.
#[derive(Debug, Clone)]
struct Heard {
    at: Instant,
    header: Header,
}

struct World {
    stage: Stage<Event>,
    hosts: Vec<Host>,
    wires: BTreeMap<u64, Wire>,
    dialled: u64,
    /// Packet loss in percent.
    loss: u32,
    /// Representative slots of each initial master.
    samples: Vec<Slot>,
    /// Slots in migration, each with its deadline.
    moves: Vec<(operator::Move, Instant)>,
    /// Atomic slot migrations in progress, and the number started so far.
    whole_moves: BTreeMap<u64, WholeMove>,
    whole_moved: u64,
    /// Key migrations in progress, and the number started so far.
    key_moves: BTreeMap<u64, KeyMove>,
    moved_keys: u64,
    takeovers: Takeovers,
    /// The node that lost its disk.
    lost: Option<NodeId>,
    /// Whether the lost node must be replaced without an operator, once that is known.
    lost_is_replaced: Option<bool>,
    /// Masters whose replica was moved away by an operator.
    deserted: BTreeSet<NodeId>,
    /// Slots that an operator assigned to masters.
    given: BTreeSet<(NodeId, Slot)>,
    /// When two nodes that can communicate began to serve one slot.
    rivals: BTreeMap<(Slot, usize, usize), Instant>,
    /// The number of address changes of a machine so far.
    moved: u8,
    invariants: Vec<invariants::Named>,
}

/// Runs one plan. With `traced`, the result includes the event trace.
pub(crate) fn run(plan: Plan, traced: bool) -> Outcome {
    play(World::new(plan, traced))
}

impl Play for World {
    const PHASES: Phases = Phases {
        // Masters wait two seconds after their start.
        settle: Duration::from_millis(2500),
        faults: Duration::from_secs(5),
        fault_gap: (50, 1000),
        // The longest blacklist time plus a repeated election.
        converge: Duration::from_secs(60),
        stable: 3,
    };
    const LIVENESS: Rule = Rule::Coverage;
    type Event = Event;

    fn stage(&mut self) -> &mut Stage<Event> {
        &mut self.stage
    }

    fn begin(&mut self) {
        (0..self.hosts.len()).for_each(|host| self.start(host));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Dialled { wire } => self.on_dialled(wire),
            Event::Arrives { wire, side } => self.pump(wire, side),
            Event::Stray { from, to, packet } => self.deliver_stray(from, to, packet),
            Event::Synced { host, life } => {
                if self.stage.lives(host, life) {
                    let number = self.hosts[host].disk.sync();
                    self.on_written(host, number);
                    self.write_next(host);
                }
            }
            Event::Drained { host, life, under_way } => {
                if self.stage.lives(host, life) {
                    self.on_drained(host, under_way);
                }
            }
            Event::Published { host, life } => {
                if self.stage.lives(host, life) {
                    self.on_published(host);
                }
            }
            Event::Hear { host, life } => {
                if self.stage.lives(host, life) {
                    self.hear(host);
                }
            }
            Event::Told { host, life, told } => {
                if self.stage.lives(host, life) {
                    self.look_who_has_it(host, told);
                }
            }
            Event::Operate(step) => self.operate(step),
            Event::MoveKeys(number) => self.go_on_moving(number),
            Event::Move { number, step } => self.step_move(number, step),
            Event::Die { host, life } => {
                if self.stage.lives(host, life) {
                    self.crash(host, 40);
                }
            }
        }
    }

    fn beat(&mut self) {
        self.replicate();
        self.check_claims();
    }

    fn fault(&mut self) {
        self.go_wrong();
    }

    fn deadline(&mut self, host: usize) -> Option<Instant> {
        let Host { gossip, driving, .. } = &self.hosts[host];
        let machine = gossip.as_ref()?.next_deadline();
        machine.into_iter().chain(driving.next_deadline()).min()
    }

    fn on_deadline(&mut self, host: usize) {
        let now = self.stage.now + self.stage.processes[host].skew;
        let save = self.hosts[host].driving.take_due_save(now);
        self.hosts[host].decided.extend(save);
        self.feed(host, ClusterInput::Deadline);
    }

    fn restart(&mut self, host: usize) {
        if !self.stage.healed && self.stage.chance.percent(25) {
            self.change_address(host);
        }
        self.stage.revive(host);
        self.start(host);
    }

    fn go_on(&mut self, host: usize) {
        // A resumed process notices the elapsed time first.
        self.feed(host, ClusterInput::Deadline);
    }

    fn disagreement(&mut self) -> Option<String> {
        invariants::coverage::disagreement(self)
    }

    fn repair(&mut self) {
        self.set_right();
    }

    fn note_views(&mut self) {
        for (host, seer) in self.hosts.iter().enumerate() {
            let text = seer
                .gossip
                .as_ref()
                .map(|gossip| gossip.nodes_text(ClientTransport::default()))
                .unwrap_or_default();
            text.lines().for_each(|line| self.stage.note(|| format!("host {host} sees {line}")));
        }
    }
}

impl World {
    /// Creates a formed cluster.
    fn new(plan: Plan, traced: bool) -> Self {
        let mut chance = Chance::new(plan.seed);
        let longest_latency = chance.pick(&[1, 3, 10, 30]);
        let loss = chance.pick(&[0, 0, 2, 8]);
        let formation = formation::form(plan.nodes, &mut chance);
        let slots = formation.samples.iter().copied().collect();
        let data = Data::new(&mut chance, slots, true);
        let mut stage = Stage::new(plan, chance, data, longest_latency, traced);
        (0..formation.nodes_confs.len()).for_each(|number| stage.add_process(address_of(ip_of(number))));
        let host = |(number, nodes_conf)| Host::new(ip_of(number), Disk::holding(nodes_conf));
        Self {
            stage,
            hosts: formation.nodes_confs.into_iter().enumerate().map(host).collect(),
            wires: BTreeMap::new(),
            dialled: 0,
            loss,
            samples: formation.samples,
            moves: Vec::new(),
            whole_moves: BTreeMap::new(),
            whole_moved: 0,
            key_moves: BTreeMap::new(),
            moved_keys: 0,
            takeovers: Takeovers::default(),
            lost: None,
            lost_is_replaced: None,
            deserted: BTreeSet::new(),
            given: BTreeSet::new(),
            rivals: BTreeMap::new(),
            moved: 0,
            invariants: invariants::all(),
        }
    }

    fn tell(&mut self, seen: &Seen<'_>) {
        for (rule, invariant) in &mut self.invariants {
            if let Err(violation) = invariant.check(seen) {
                self.stage.violate(*rule, &violation);
            }
        }
    }

    /// Returns whether a write to `slot` would be accepted if the process were running.
    fn takes_writes(&self, host: usize, slot: Slot) -> bool {
        self.stage.takes_writes(host, slot.number())
    }

    /// Returns the machine of a running host.
    fn gossip(&self, host: usize) -> &Gossip {
        self.hosts[host].gossip.as_ref().expect("a host that is up has its machine")
    }

    /// Starts a node from its disk.
    fn start(&mut self, host: usize) {
        let rng = self.stage.chance.split();
        let config = formation::config(self.hosts[host].ip);
        let gossip = match self.hosts[host].disk.load() {
            Some(text) => match Gossip::restore(config, rng, text) {
                Ok(gossip) => gossip,
                Err(error) => {
                    return self.stage.break_off(&format!("a node cannot read what it wrote: {error}"));
                }
            },
            None => Gossip::new(config, rng),
        };
        let id = gossip.id();
        (self.hosts[host].gossip, self.hosts[host].id) = (Some(gossip), Some(id));
        self.stage.note(|| format!("host {host} starts as {id}"));
        if self.stage.plan.plant != Some(Plant::EmptyMasters) {
            let upto = self.stage.data.stores[host].offset();
            self.note_forgotten(host);
            self.feed(host, ClusterInput::Loaded { upto });
        }
        self.feed(host, ClusterInput::Start);
        self.stage.begin_data(host);
    }

    /// Restarts a machine at a new address. Old addresses are never reused.
    fn change_address(&mut self, host: usize) {
        self.moved += 1;
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 2, self.moved));
        self.stage.note(|| format!("host {host} has the address {ip} from now on"));
        self.hosts[host].ip = ip;
        self.stage.data.addresses[host] = address_of(ip);
    }

    /// Records that an operator made a node forget its replica, so the replica's copy no longer
    /// counts.
    fn note_forgotten(&mut self, host: usize) {
        let gossip = self.gossip(host);
        let own = |other: &Host| {
            let mut nodes = gossip.nodes().filter(|node| node.master() == Some(gossip.id()));
            nodes.any(|node| Some(node.id) == other.id)
        };
        let others = (0..self.hosts.len()).filter(|other| !own(&self.hosts[*other]));
        for other in others.collect::<Vec<_>>() {
            self.stage.forget_copy(other, Some(host));
        }
    }

    /// Passes an input to the machine once the driver thread is free.
    fn feed(&mut self, host: usize, input: ClusterInput) {
        if !self.is_driver_busy(host) && self.hosts[host].unheard.is_empty() {
            return self.feed_now(host, input);
        }
        let unheard = &mut self.hosts[host].unheard;
        let is_known =
            matches!(input, ClusterInput::Deadline) && matches!(unheard.back(), Some(ClusterInput::Deadline));
        unheard.extend((!is_known).then_some(input));
        if unheard.len() == 1 {
            self.hear_later(host);
        }
    }

    /// Returns whether the driver is publishing a topology or changing the role.
    fn is_driver_busy(&self, host: usize) -> bool {
        self.hosts[host].publishing.is_some() || self.stage.data.stores[host].is_changing_role()
    }

    fn hear_later(&mut self, host: usize) {
        let life = self.stage.processes[host].life;
        self.stage.after(BUSY, Event::Hear { host, life });
    }

    /// Passes the queued inputs to the machine.
    fn hear(&mut self, host: usize) {
        if let Some(until) = self.stage.frozen_until(host) {
            let life = self.stage.processes[host].life;
            return self.stage.at(until, Event::Hear { host, life });
        }
        while !self.is_driver_busy(host)
            && let Some(input) = self.hosts[host].unheard.pop_front()
        {
            self.feed_now(host, input);
        }
        if !self.hosts[host].unheard.is_empty() {
            self.hear_later(host);
        }
    }

    /// Passes an input to the machine, preceded by the replication state, and carries out the
    /// resulting actions.
    fn feed_now(&mut self, host: usize, input: ClusterInput) {
        let (now, skew) = (self.stage.now, self.stage.processes[host].skew);
        let facts = self.facts(host);
        let Host { gossip, driving, wall_skew, .. } = &mut self.hosts[host];
        let Some(gossip) = gossip else { return };
        let wall = Millis(WALL + now.as_millis() as i64 + *wall_skew);
        let heard = self.stage.data.stores[host].moves.take();
        let news = StepInputs { replication: facts, stream_events: heard, ..StepInputs::default() };
        let decided = driving.run_machine(gossip, (now + skew, wall), news, input);
        self.watch_candidacy(host, &decided.actions);
        self.hosts[host].fed_at = now + skew;
        let out = self.hosts[host].driving.order_actions(decided);
        self.hosts[host].decided.extend(out);
        self.take_steps(host);
        plan_tick(self, host);
    }

    /// Carries out actions one by one like the driver thread: while a topology is being published,
    /// all later actions wait.
    fn take_steps(&mut self, host: usize) {
        while self.hosts[host].publishing.is_none() {
            let Some(action) = self.hosts[host].decided.pop_front() else { return self.renew_lease(host) };
            self.carry_out(host, action);
        }
    }

    /// Extends the lease for the state published so far.
    fn renew_lease(&mut self, host: usize) {
        let Host { gossip: Some(gossip), fed_at, .. } = &self.hosts[host] else { return };
        let until = gossip.lease().map_or(u64::MAX, |lease| nanos(*fed_at + lease));
        self.stage.data.stores[host].engine().renew_lease(until);
    }

    fn carry_out(&mut self, host: usize, action: ClusterAction) {
        match action {
            ClusterAction::Connect { link, ip, .. } => self.dial(host, link, ip),
            ClusterAction::Close { link } => self.hang_up(host, link),
            ClusterAction::Send { link, packet, .. } => self.send(host, link, packet),
            ClusterAction::Persist { text, sync } => {
                self.hosts[host].disk.order(text, sync);
                self.write_next(host);
            }
            ClusterAction::Publish(mut topology) => {
                self.tell(&Seen::Published { topology: &topology });
                let before = self.hosts[host].topology.as_ref();
                topology.serving |= self.stage.plan.plant == Some(Plant::ServingWhenDown)
                    && before.is_some_and(|before| before.serving);
                self.publish(host, *topology);
            }
            ClusterAction::AllowReplicas(copies) => self.stage.data.stores[host].copies = copies,
            ClusterAction::BecomeMaster => {
                assert_ne!(self.stage.plan.plant, Some(Plant::Panic), "planted");
                self.stage.note(|| format!("host {host} becomes a master"));
                self.stage.order(host, Order::Lead);
            }
            ClusterAction::BecomeReplica { ip, foreign, .. } => {
                self.stage.note(|| format!("host {host} follows {ip}"));
                self.follow(host, ip, foreign);
            }
            ClusterAction::PauseWrites { until } => self.pause(host, until),
            ClusterAction::TellReplicas { slot, change, confirm } => {
                self.tell_replicas(host, slot, &change, confirm);
            }
            ClusterAction::ResumeWrites => self.stage.let_write(host, PausePurpose::Failover),
            ClusterAction::WatchOffset(offset) => self.hosts[host].watched = offset,
            ClusterAction::DropSlots(slots) => self.drop_slots(host, &slots),
            ClusterAction::Reply { token, result } => {
                self.stage.data.stores[host].moves.carried_out(token);
                self.on_answer(host, token, &result);
            }
            ClusterAction::Log(told) => self.on_told(host, &told),
            ClusterAction::DropEverything => {
                let id = self.gossip(host).id();
                self.tell(&Seen::Reset { id });
                self.stage.order(host, Order::Empty);
                let reply = self.hosts[host].driving.note_emptied();
                self.hosts[host].decided.extend(reply);
            }
            // There are no subscribers.
            ClusterAction::Deliver(_) => {}
        }
    }

    /// The writer thread performs the queued writes until the disk is busy.
    fn write_next(&mut self, host: usize) {
        while self.stage.processes[host].up
            && let Some((number, mut text, sync)) = self.hosts[host].disk.next_order()
        {
            let disk = &mut self.hosts[host].disk;
            match self.stage.plan.plant {
                Some(Plant::ForgottenVotes) => text = disk::without_votes(&text),
                Some(Plant::ForgottenWrites) => text = disk.load().map_or(text, str::to_owned),
                _ => {}
            }
            disk.write(number, text, sync);
            if sync {
                let (life, time) = (self.stage.processes[host].life, self.stage.chance.millis(0, 4));
                self.stage.after(time, Event::Synced { host, life });
            } else {
                self.on_written(host, number);
            }
        }
    }

    fn on_written(&mut self, host: usize, number: u64) {
        let (released, is_all) = self.hosts[host].driving.note_written(number);
        self.hosts[host].decided.extend(released);
        self.take_steps(host);
        if is_all {
            self.feed(host, ClusterInput::Persisted);
        }
    }

    fn on_told(&mut self, host: usize, told: &gossip::ClusterEvent) {
        self.stage.note(|| format!("host {host}: {told}"));
        self.stage.promotions +=
            usize::from(matches!(told, gossip::ClusterEvent::Election(ElectionEvent::Won(_))));
    }

    /// Checks a packet that a host sends.
    fn examine(&mut self, packet: &Packet, from: usize, to: usize) {
        if packet.header.replica_of.is_none() {
            let (id, epoch) = (packet.header.sender, packet.header.config_epoch);
            self.tell(&Seen::Claimed { id, epoch });
        }
        if matches!(packet.body, MessageBody::AuthAck) {
            let candidate = self.hosts[to].gossip.as_ref().map(Gossip::id);
            let (voter, epoch) = (packet.header.sender, packet.header.current_epoch);
            self.stage.note(|| format!("{voter} votes for host {to} in epoch {epoch}"));
            if let Some(candidate) = candidate {
                self.takeovers.vote(voter, candidate);
                self.tell(&Seen::Voted { voter, epoch, candidate });
            }
            // Crashing right after a vote and restarting before the election ends is the worst
            // case. It happens often when the bug that it reveals is injected, because that test
            // checks detection, not rarity.
            let often = if self.stage.plan.plant == Some(Plant::ForgottenVotes) { 50 } else { 5 };
            if !self.stage.healed && self.stage.chance.percent(often) {
                let life = self.stage.processes[from].life;
                let soon = self.stage.chance.millis(0, 5);
                self.stage.after(soon, Event::Die { host: from, life });
            }
        }
    }
}

impl Host {
    fn new(ip: IpAddr, disk: Disk) -> Self {
        Self {
            ip,
            id: None,
            wall_skew: 0,
            gossip: None,
            driving: ClusterDriver::default(),
            fed_at: START,
            disk,
            decided: VecDeque::new(),
            unheard: VecDeque::new(),
            links: BTreeMap::new(),
            accepted: 0,
            topology: None,
            publishing: None,
            watched: None,
            heard: BTreeMap::new(),
            rank: None,
            contested: None,
            tokens: 0,
            next_steps: BTreeMap::new(),
        }
    }
}

/// Wall-clock time at the simulated origin, a date in 2026.
const WALL: i64 = 1_790_000_000_000;

/// Returns a node's client address.
fn address_of(ip: IpAddr) -> String {
    format!("{ip}:{}", formation::PORT)
}

fn ip_of(number: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 1, u8::try_from(number + 1).expect("a small cluster")))
}
