//! Simulates a cluster. The `gossip` state machines of masters and replicas are the production code; everything else is
//! simulated.
//!
//! A run begins with a formed cluster whose nodes restart from their `nodes.conf`. The actions of a state machine are
//! carried out in order. Only actions marked `after_persist` wait for a pending disk write; a crash can come before,
//! during or after the write. The replicated data is simulated in [`crate::data`].
//!
//! A link is an ordered stream like TCP. Even so, its packets may be lost, duplicated or delayed, because the bus must
//! tolerate that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use clock::{Instant, Millis};
use driver::Driver;
use engine::{PausePurpose, TopologyChange};
use gossip::wire::{Header, MessageBody, Packet};
use gossip::{
    ClusterAction, ClusterDriver, ClusterDriverEvent, ClusterInput, ElectionEvent, Gossip, LinkId, StepInputs,
};
use slot_routing::{ClientTransport, NodeId, ReplOffset, Slot, Topology};

use self::disk::Disk;
use self::invariants::ClusterObservation;
use self::key_moves::KeyMigration;
use self::takeovers::Takeovers;
use self::whole_moves::AtomicMigration;
use self::wire::BusLink;
use crate::data::{DataSimulation, RoleChange};
use crate::simulation::{RunPhases, SimulatedSystem, Simulation, run_simulation, schedule_tick};
use crate::trace::{START_TIME, to_nanos};
use crate::{InjectedBug, InvariantName, RandomSource, RunPlan, RunResult};

mod data;
mod disk;
mod faults;
mod formation;
mod invariants;
mod key_moves;
mod migration_link;
mod operator;
mod takeovers;
mod whole_moves;
mod wire;

/// Poll interval while a driver thread is busy.
const DRIVER_POLL_INTERVAL: Duration = Duration::from_micros(200);
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
enum ClusterEvent {
    DialArrives {
        wire_id: u64,
    },
    /// An item arrives at one side of a link.
    ItemArrives {
        wire_id: u64,
        side: usize,
    },
    /// A duplicated or delayed packet arrives out of order.
    StrayPacket {
        from: usize,
        to: usize,
        packet: Box<Packet>,
    },
    DiskSynced {
        host: usize,
        incarnation: u64,
    },
    /// Checks whether all writes that were running when the pause began have ended.
    CheckDrained {
        host: usize,
        incarnation: u64,
        running_writes: BTreeSet<u64>,
    },
    /// The new topology takes effect in all slots.
    TopologyPublished {
        host: usize,
        incarnation: u64,
    },
    /// The driver thread tries to process the inputs that were queued while it was busy.
    ProcessQueuedInputs {
        host: usize,
        incarnation: u64,
    },
    /// Checks whether the replicas have acknowledged the slot change.
    CheckSlotChange {
        host: usize,
        incarnation: u64,
        change: data::PendingSlotChange,
    },
    /// A step of an atomic slot migration (CLUSTER MIGRATESLOTS).
    MigrationStep {
        number: u64,
        step: whole_moves::MigrationStep,
    },
    /// Continues the MIGRATE command with this number.
    ContinueMigrate(u64),
    OperatorCommand(operator::OperatorStep),
    ProcessDies {
        host: usize,
        incarnation: u64,
    },
}

/// The state of one process of the cluster.
struct ClusterHost {
    ip: IpAddr,
    /// The node id that the process had before its last restart.
    previous_id: Option<NodeId>,
    /// How far the host's wall clock is ahead of simulated wall time, in milliseconds. May be negative.
    wall_clock_offset: i64,
    gossip: Option<Gossip>,
    driver: ClusterDriver,
    /// When the `gossip` state machine was last called, by the host's own clock.
    last_called_at: Instant,
    disk: Disk,
    /// Actions of the state machine that have not been carried out yet.
    pending_actions: VecDeque<ClusterAction>,
    /// Inputs that arrived while the driver thread was busy.
    pending_inputs: VecDeque<ClusterInput>,
    links: BTreeMap<LinkId, (u64, usize)>,
    accepted_count: u64,
    topology: Option<Arc<Topology>>,
    /// The topology being published, and the running writes that must end before it takes effect.
    topology_being_published: Option<(TopologyChange, BTreeSet<u64>)>,
    /// Once the node has processed the stream up to this offset, the state machine is notified.
    watched_offset: Option<ReplOffset>,
    /// The header data that the state machine most recently processed from each node.
    received_headers: BTreeMap<NodeId, ReceivedHeader>,
    /// The node's rank in the election that it takes part in; `None` for a manual failover.
    election_rank: Option<u32>,
    /// The master that the node tries to replace by its election.
    failed_master: Option<NodeId>,
    last_token: u64,
    /// The operator's follow-up steps, by the token of the command that must succeed first.
    next_steps: BTreeMap<u64, operator::OperatorStep>,
}

/// The header data most recently processed from a node, and when the state machine processed it.
#[derive(Debug, Clone)]
struct ReceivedHeader {
    arrived_at: Instant,
    header: Header,
}

struct ClusterWorld {
    simulation: Simulation<ClusterEvent>,
    hosts: Vec<ClusterHost>,
    bus_links: BTreeMap<u64, BusLink>,
    last_wire_id: u64,
    /// Some slots of each initial master, which represent all of its slots.
    sample_slots: Vec<Slot>,
    /// Slots that are being migrated, each with the time limit of its migration.
    slot_migrations: Vec<(operator::SlotMigration, Instant)>,
    /// The atomic slot migrations in progress, by number.
    atomic_migrations: BTreeMap<u64, AtomicMigration>,
    atomic_migration_count: u64,
    /// The MIGRATE commands in progress, by number.
    key_migrations: BTreeMap<u64, KeyMigration>,
    key_migration_count: u64,
    takeovers: Takeovers,
    /// The node that lost its disk in this run, if any.
    node_with_lost_disk: Option<NodeId>,
    /// Whether a replica must replace the node in `node_with_lost_disk` without an operator; `None` until that is known.
    is_lost_node_replaced: Option<bool>,
    /// Masters whose only replica was moved away by an operator.
    masters_without_replica: BTreeSet<NodeId>,
    /// Slots, each with the master to which an operator assigned it.
    assigned_slots: BTreeSet<(NodeId, Slot)>,
    /// For each slot that two connected nodes serve, those nodes and when the conflict began.
    conflicting_owners: BTreeMap<(Slot, usize, usize), Instant>,
    /// The number of hosts that have changed their address so far.
    address_change_count: u8,
    invariants: Vec<invariants::NamedInvariant>,
}

/// Runs one plan. With `traced`, the result includes the event trace.
pub(crate) fn run(plan: RunPlan, is_traced: bool) -> RunResult {
    run_simulation(ClusterWorld::new(plan, is_traced))
}

impl SimulatedSystem for ClusterWorld {
    const PHASES: RunPhases = RunPhases {
        // Includes the two seconds that masters wait after their start.
        settle_time: Duration::from_millis(2500),
        fault_time: Duration::from_secs(5),
        fault_interval_millis: (50, 1000),
        // Allows for the longest blacklist time plus a repeated election.
        max_convergence_time: Duration::from_secs(60),
        required_agreements: 3,
    };
    const LIVENESS_INVARIANT: InvariantName = InvariantName::Coverage;
    type Event = ClusterEvent;

    fn simulation(&mut self) -> &mut Simulation<ClusterEvent> {
        &mut self.simulation
    }

    fn start_processes(&mut self) {
        (0..self.hosts.len()).for_each(|host| self.start(host));
    }

    fn handle_event(&mut self, event: ClusterEvent) {
        match event {
            ClusterEvent::DialArrives { wire_id: wire } => self.on_dialled(wire),
            ClusterEvent::ItemArrives { wire_id: wire, side } => self.deliver_due(wire, side),
            ClusterEvent::StrayPacket { from, to, packet } => self.deliver_stray(from, to, packet),
            ClusterEvent::DiskSynced { host, incarnation } => {
                if self.simulation.is_incarnation(host, incarnation) {
                    let number = self.hosts[host].disk.sync();
                    self.on_written(host, number);
                    self.perform_queued_writes(host);
                }
            }
            ClusterEvent::CheckDrained { host, incarnation, running_writes: under_way } => {
                if self.simulation.is_incarnation(host, incarnation) {
                    self.on_writes_drained(host, under_way);
                }
            }
            ClusterEvent::TopologyPublished { host, incarnation } => {
                if self.simulation.is_incarnation(host, incarnation) {
                    self.on_published(host);
                }
            }
            ClusterEvent::ProcessQueuedInputs { host, incarnation } => {
                if self.simulation.is_incarnation(host, incarnation) {
                    self.process_queued_inputs(host);
                }
            }
            ClusterEvent::CheckSlotChange { host, incarnation, change: told } => {
                if self.simulation.is_incarnation(host, incarnation) {
                    self.check_slot_change_acks(host, told);
                }
            }
            ClusterEvent::OperatorCommand(step) => self.run_step(step),
            ClusterEvent::ContinueMigrate(number) => self.continue_key_migration(number),
            ClusterEvent::MigrationStep { number, step } => self.perform_migration_step(number, step),
            ClusterEvent::ProcessDies { host, incarnation } => {
                if self.simulation.is_incarnation(host, incarnation) {
                    self.crash(host, 40);
                }
            }
        }
    }

    fn after_event(&mut self) {
        self.wake_migrations();
    }

    fn write_data(&mut self) {
        self.write_and_check_hosts();
        self.check_claims();
    }

    fn inject_fault(&mut self) {
        self.inject_random_fault();
    }

    fn next_deadline(&mut self, host: usize) -> Option<Instant> {
        let ClusterHost { gossip, driver, .. } = &self.hosts[host];
        let machine = gossip.as_ref()?.next_deadline();
        machine.into_iter().chain(driver.next_deadline()).min()
    }

    fn on_deadline(&mut self, host: usize) {
        let now = self.simulation.now + self.simulation.processes[host].clock_offset;
        self.hosts[host].report_to_driver(now, ClusterDriverEvent::Deadline);
        self.handle_input(host, ClusterInput::Deadline);
    }

    fn restart_process(&mut self, host: usize) {
        if !self.simulation.is_healed && self.simulation.random.random_bool(25) {
            self.change_address(host);
        }
        self.simulation.mark_running(host);
        self.start(host);
    }

    fn continue_process(&mut self, host: usize) {
        // A resumed process first notices how much time has passed.
        self.handle_input(host, ClusterInput::Deadline);
    }

    fn find_disagreement(&mut self) -> Option<String> {
        invariants::coverage::disagreement(self)
    }

    fn repair_as_operator(&mut self) {
        self.repair_cluster();
    }

    fn trace_views(&mut self) {
        for (host, seer) in self.hosts.iter().enumerate() {
            let text = seer
                .gossip
                .as_ref()
                .map(|gossip| gossip.nodes_text(ClientTransport::default()))
                .unwrap_or_default();
            text.lines().for_each(|line| self.simulation.trace(|| format!("host {host} sees {line}")));
        }
    }
}

impl ClusterWorld {
    /// Creates the hosts of a cluster that has formed already.
    fn new(plan: RunPlan, is_traced: bool) -> Self {
        let mut random = RandomSource::new(plan.seed);
        let formation = formation::form_cluster(plan.nodes, &mut random);
        let slots = formation.sample_slots.iter().copied().collect();
        let data = DataSimulation::new(&mut random, slots, true);
        let mut simulation = Simulation::new(plan, random, data, is_traced);
        (0..formation.nodes_confs.len()).for_each(|number| simulation.add_process(address_of(ip_of(number))));
        let host = |(number, nodes_conf)| ClusterHost::new(ip_of(number), Disk::with_content(nodes_conf));
        Self {
            simulation,
            hosts: formation.nodes_confs.into_iter().enumerate().map(host).collect(),
            bus_links: BTreeMap::new(),
            last_wire_id: 0,
            sample_slots: formation.sample_slots,
            slot_migrations: Vec::new(),
            atomic_migrations: BTreeMap::new(),
            atomic_migration_count: 0,
            key_migrations: BTreeMap::new(),
            key_migration_count: 0,
            takeovers: Takeovers::default(),
            node_with_lost_disk: None,
            is_lost_node_replaced: None,
            masters_without_replica: BTreeSet::new(),
            assigned_slots: BTreeSet::new(),
            conflicting_owners: BTreeMap::new(),
            address_change_count: 0,
            invariants: invariants::all_invariants(),
        }
    }

    fn check_invariants(&mut self, observation: &ClusterObservation<'_>) {
        for (rule, invariant) in &mut self.invariants {
            if let Err(violation) = invariant.check(observation) {
                self.simulation.record_violation(*rule, &violation);
            }
        }
    }

    /// Returns whether a write to `slot` would be accepted if the process were running.
    fn accepts_writes(&self, host: usize, slot: Slot) -> bool {
        self.simulation.accepts_writes(host, slot.number())
    }

    /// Returns the `gossip` state machine of a running host.
    fn gossip(&self, host: usize) -> &Gossip {
        self.hosts[host].gossip.as_ref().expect("a host that is up has its machine")
    }

    /// Starts a node with the `nodes.conf` on its disk.
    fn start(&mut self, host: usize) {
        let rng = self.simulation.random.split_generator();
        let config = formation::cluster_config(self.hosts[host].ip);
        let gossip = match self.hosts[host].disk.load() {
            Some(text) => match Gossip::restore(config, rng, text) {
                Ok(gossip) => gossip,
                Err(error) => {
                    return self.simulation.abort_run(&format!("a node cannot read what it wrote: {error}"));
                }
            },
            None => Gossip::new(config, rng),
        };
        let id = gossip.id();
        (self.hosts[host].gossip, self.hosts[host].previous_id) = (Some(gossip), Some(id));
        self.simulation.trace(|| format!("host {host} starts as {id}"));
        if self.simulation.plan.injected_bug != Some(InjectedBug::EmptyMasterServes) {
            let upto = self.simulation.data.process_states[host].offset();
            self.record_forgotten(host);
            self.handle_input(host, ClusterInput::DatasetLoaded { offset: upto });
        }
        self.handle_input(host, ClusterInput::NodeStarted);
        self.simulation.start_process_data(host);
    }

    /// Restarts the host at an address that was never used before.
    fn change_address(&mut self, host: usize) {
        self.address_change_count += 1;
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 2, self.address_change_count));
        self.simulation.trace(|| format!("host {host} has the address {ip} from now on"));
        self.hosts[host].ip = ip;
        self.simulation.data.addresses[host] = address_of(ip);
    }

    /// Records that an operator made a node forget its replica. From then on the replica does not count as a copy of
    /// the node's data.
    fn record_forgotten(&mut self, host: usize) {
        let gossip = self.gossip(host);
        let own = |other: &ClusterHost| {
            let mut nodes = gossip.nodes().filter(|node| node.master() == Some(gossip.id()));
            nodes.any(|node| Some(node.id) == other.previous_id)
        };
        let others = (0..self.hosts.len()).filter(|other| !own(&self.hosts[*other]));
        for other in others.collect::<Vec<_>>() {
            self.simulation.remove_replica(other, Some(host));
        }
    }

    /// Passes an input to the state machine, or queues it while the driver thread is busy.
    fn handle_input(&mut self, host: usize, input: ClusterInput) {
        if !self.is_driver_busy(host) && self.hosts[host].pending_inputs.is_empty() {
            return self.call_machine(host, input);
        }
        let pending_inputs = &mut self.hosts[host].pending_inputs;
        let is_known = matches!(input, ClusterInput::Deadline)
            && matches!(pending_inputs.back(), Some(ClusterInput::Deadline));
        pending_inputs.extend((!is_known).then_some(input));
        if pending_inputs.len() == 1 {
            self.schedule_queued_inputs(host);
        }
    }

    /// Returns whether the driver thread is publishing a topology or changing the node's role.
    fn is_driver_busy(&self, host: usize) -> bool {
        self.hosts[host].topology_being_published.is_some()
            || self.simulation.data.process_states[host].is_changing_role()
    }

    fn schedule_queued_inputs(&mut self, host: usize) {
        let incarnation = self.simulation.processes[host].incarnation;
        self.simulation
            .schedule_after(DRIVER_POLL_INTERVAL, ClusterEvent::ProcessQueuedInputs { host, incarnation });
    }

    /// Passes queued inputs to the state machine, in order, until the driver thread becomes busy.
    fn process_queued_inputs(&mut self, host: usize) {
        if let Some(until) = self.simulation.frozen_until(host) {
            let incarnation = self.simulation.processes[host].incarnation;
            return self
                .simulation
                .schedule_at(until, ClusterEvent::ProcessQueuedInputs { host, incarnation });
        }
        while !self.is_driver_busy(host)
            && let Some(input) = self.hosts[host].pending_inputs.pop_front()
        {
            self.call_machine(host, input);
        }
        if !self.hosts[host].pending_inputs.is_empty() {
            self.schedule_queued_inputs(host);
        }
    }

    /// Passes the replication state and then an input to the state machine, and carries out the resulting actions.
    fn call_machine(&mut self, host: usize, mut input: ClusterInput) {
        if let (ClusterInput::Packet { packet, .. }, Some(_)) = (&mut input, &self.hosts[host].gossip) {
            self.process_received_packet(host, packet);
        }
        let (now, skew) = (self.simulation.now, self.simulation.processes[host].clock_offset);
        let facts = self.replication_state(host);
        let ClusterHost { gossip, driver, wall_clock_offset: wall_skew, .. } = &mut self.hosts[host];
        let Some(gossip) = gossip else { return };
        let wall = Millis(WALL_CLOCK_ORIGIN_MILLIS + now.as_millis() as i64 + *wall_skew);
        let heard = self.simulation.data.process_states[host].slot_changes.take_received();
        let news = StepInputs { replication: facts, stream_events: heard, ..StepInputs::default() };
        let step = driver.run_machine(gossip, now + skew, wall, news, input);
        self.watch_candidacy(host, &step.actions);
        self.hosts[host].last_called_at = now + skew;
        self.hosts[host].report_to_driver(now + skew, ClusterDriverEvent::MachineStepped(step));
        self.run_pending_actions(host);
        schedule_tick(self, host);
    }

    /// Carries out actions one by one like the driver thread: while a topology is being published,
    /// all later actions wait.
    fn run_pending_actions(&mut self, host: usize) {
        while self.hosts[host].topology_being_published.is_none() {
            let Some(action) = self.hosts[host].pending_actions.pop_front() else {
                return self.renew_lease(host);
            };
            self.perform_action(host, action);
        }
    }

    /// Extends the lease that allows the node to serve clients under its published topology.
    fn renew_lease(&mut self, host: usize) {
        let ClusterHost { gossip: Some(gossip), last_called_at, .. } = &self.hosts[host] else { return };
        let until = gossip.serving_lease().map_or(u64::MAX, |lease| to_nanos(*last_called_at + lease));
        self.simulation.data.process_states[host].engine().renew_lease(until);
    }

    fn perform_action(&mut self, host: usize, action: ClusterAction) {
        match action {
            ClusterAction::Connect { link, ip, .. } => self.dial(host, link, ip),
            ClusterAction::Close { link } => self.close_link(host, link),
            ClusterAction::Send { link, packet, .. } => self.send(host, link, packet),
            ClusterAction::Persist { nodes_conf: text, must_sync: sync } => {
                self.hosts[host].disk.queue_write(text, sync);
                self.perform_queued_writes(host);
            }
            ClusterAction::Publish(mut topology) => {
                self.check_invariants(&ClusterObservation::TopologyPublished { topology: &topology });
                let before = self.hosts[host].topology.as_ref();
                topology.is_serving |= self.simulation.plan.injected_bug
                    == Some(InjectedBug::ServingWhenDown)
                    && before.is_some_and(|before| before.is_serving);
                self.publish(host, *topology);
            }
            ClusterAction::RestrictReplicas(copies) => {
                self.simulation.data.process_states[host].replica_admission = copies;
            }
            ClusterAction::BecomeMaster => {
                assert_ne!(self.simulation.plan.injected_bug, Some(InjectedBug::Panic), "injected panic");
                self.simulation.trace(|| format!("host {host} becomes a master"));
                self.simulation.queue_role_change(host, RoleChange::BecomeMaster);
            }
            ClusterAction::BecomeReplica { ip, is_data_foreign: foreign, .. } => {
                self.simulation.trace(|| format!("host {host} follows {ip}"));
                self.follow(host, ip, foreign);
            }
            ClusterAction::PauseWrites { until } => self.pause_writes_until(host, until),
            ClusterAction::ReplicateSlotChange { slot, change, confirmation: confirm } => {
                self.send_slot_change(host, slot, &change, confirm);
            }
            ClusterAction::ResumeWrites => self.simulation.resume_writes(host, PausePurpose::Failover),
            ClusterAction::WatchOffset(offset) => self.hosts[host].watched_offset = offset,
            ClusterAction::DeleteSlotKeys(slots) => self.delete_slot_keys(host, &slots),
            ClusterAction::Reply { token, result } => {
                self.simulation.data.process_states[host].slot_changes.remove_announced(token);
                self.on_command_reply(host, token, &result);
            }
            ClusterAction::Log(told) => self.on_slot_change(host, &told),
            ClusterAction::DeleteDataset => {
                let id = self.gossip(host).id();
                self.check_invariants(&ClusterObservation::NodeReset { id });
                self.simulation.queue_role_change(host, RoleChange::DropData);
                let now = self.simulation.clock_of(host);
                self.hosts[host].report_to_driver(now, ClusterDriverEvent::DatasetDeleted);
            }
            // No client is subscribed, so the message is dropped.
            ClusterAction::DeliverPublication(_) => {}
        }
    }

    /// Performs queued `nodes.conf` writes until the disk is busy.
    fn perform_queued_writes(&mut self, host: usize) {
        while self.simulation.processes[host].is_up
            && let Some((number, mut text, sync)) = self.hosts[host].disk.next_queued_write()
        {
            let disk = &mut self.hosts[host].disk;
            match self.simulation.plan.injected_bug {
                Some(InjectedBug::UnsavedVotes) => text = disk::without_last_vote_epoch(&text),
                Some(InjectedBug::LostDiskWrites) => text = disk.load().map_or(text, str::to_owned),
                _ => {}
            }
            disk.write(number, text, sync);
            if sync {
                let (incarnation, time) =
                    (self.simulation.processes[host].incarnation, self.simulation.draw_sync_time());
                self.simulation.schedule_after(time, ClusterEvent::DiskSynced { host, incarnation });
            } else {
                self.on_written(host, number);
            }
        }
    }

    fn on_written(&mut self, host: usize, number: u64) {
        let now = self.simulation.clock_of(host);
        self.hosts[host].report_to_driver(now, ClusterDriverEvent::Written(number));
        let is_persisted = self.hosts[host].driver.take_persisted();
        self.run_pending_actions(host);
        if is_persisted {
            self.handle_input(host, ClusterInput::Persisted);
        }
    }

    fn on_slot_change(&mut self, host: usize, event: &gossip::ClusterEvent) {
        self.simulation.trace(|| format!("host {host}: {event}"));
        self.simulation.promotion_count +=
            usize::from(matches!(event, gossip::ClusterEvent::Election(ElectionEvent::Won(_))));
    }

    /// Checks invariants on a packet that a host sends.
    fn check_packet(&mut self, packet: &Packet, from: usize, to: usize) {
        if packet.header.replica_of.is_none() {
            let (id, epoch) = (packet.header.sender, packet.header.config_epoch);
            self.check_invariants(&ClusterObservation::EpochClaimed { id, epoch });
        }
        if matches!(packet.body, MessageBody::AuthAck) {
            let candidate = self.hosts[to].gossip.as_ref().map(|gossip| gossip.id());
            let (voter, epoch) = (packet.header.sender, packet.header.current_epoch);
            self.simulation.trace(|| format!("{voter} votes for host {to} in epoch {epoch}"));
            if let Some(candidate) = candidate {
                self.takeovers.record_vote(voter, candidate);
                self.check_invariants(&ClusterObservation::VoteSent { voter, epoch, candidate });
            }
            // A crash right after a vote and a restart before the election ends is the worst case. It is made frequent
            // when `UnsavedVotes` is injected, because the test of that bug only has to show that it is detected.
            let often =
                if self.simulation.plan.injected_bug == Some(InjectedBug::UnsavedVotes) { 50 } else { 5 };
            if !self.simulation.is_healed && self.simulation.random.random_bool(often) {
                let incarnation = self.simulation.processes[from].incarnation;
                let soon = self.simulation.random.random_millis(0, 5);
                self.simulation.schedule_after(soon, ClusterEvent::ProcessDies { host: from, incarnation });
            }
        }
    }
}

impl ClusterHost {
    /// Reports an event to the driver and queues the resulting actions.
    fn report_to_driver(&mut self, now: Instant, event: ClusterDriverEvent) {
        let mut actions = Vec::new();
        self.driver.handle(now, event, &mut actions);
        self.pending_actions.extend(actions);
    }

    fn new(ip: IpAddr, disk: Disk) -> Self {
        Self {
            ip,
            previous_id: None,
            wall_clock_offset: 0,
            gossip: None,
            driver: ClusterDriver::default(),
            last_called_at: START_TIME,
            disk,
            pending_actions: VecDeque::new(),
            pending_inputs: VecDeque::new(),
            links: BTreeMap::new(),
            accepted_count: 0,
            topology: None,
            topology_being_published: None,
            watched_offset: None,
            received_headers: BTreeMap::new(),
            election_rank: None,
            failed_master: None,
            last_token: 0,
            next_steps: BTreeMap::new(),
        }
    }
}

/// The wall-clock time when the simulated monotonic clock is zero, a date in 2026.
const WALL_CLOCK_ORIGIN_MILLIS: i64 = 1_790_000_000_000;

fn address_of(ip: IpAddr) -> String {
    format!("{ip}:{}", formation::CLIENT_PORT)
}

fn ip_of(number: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 1, u8::try_from(number + 1).expect("a small cluster")))
}
