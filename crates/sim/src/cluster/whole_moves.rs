//! Simulates atomic slot migrations (CLUSTER MIGRATESLOTS). On both sides the driver from the `migration` crate is the
//! production code; the thread around it is simulated. The thread runs when the topology, the log or the slots change,
//! when bytes arrive ([`super::migration_link`]), and at the deadline of the driver.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use clock::Instant;
use driver::Driver;
use engine::Session;
use gossip::{OperatorCommand, OperatorError, OperatorReply};
use migration::{
    EstablishMessage, ExportConfig, ExportDriver, ExportDriverAction, ExportDriverEvent, ExportJob,
    ImportConditions, ImportDriver, ImportDriverAction, ImportDriverEvent, SourceCommands,
};
use replication::CursorId;
use slot_routing::{NodeId, Ownership, Slot, Topology};

use super::migration_link::MigrationLink;
use super::{ClusterEvent, ClusterWorld};
use crate::InjectedBug;
use crate::data::{EncodedCommand, KeyGroup, source_session};

/// The longest delay, in microseconds, between the wakeup of a thread and its run.
const MAX_WAKE_DELAY_MICROS: usize = 1000;
/// The longest time, in milliseconds, that the target waits for its replicas before it claims the slots.
const MAX_REPLICA_WAIT_MS: u64 = 500;
/// The value of `cluster-node-timeout`, which limits the first connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The value of `repl-timeout`, which limits the silence on a connection.
const REPL_TIMEOUT: Duration = Duration::from_secs(4);

pub(super) const SOURCE_SIDE: usize = 0;
pub(super) const TARGET_SIDE: usize = 1;

/// An atomic slot migration in progress.
#[derive(Debug)]
pub(super) struct AtomicMigration {
    /// The hosts of the source and the target.
    pub(super) hosts: [usize; 2],
    pub(super) incarnations: [u64; 2],
    pub(super) keys: Vec<KeyGroup>,
    slots: Vec<Slot>,
    target_id: NodeId,
    pub(super) establish_message: EstablishMessage,
    pub(super) source: Option<MigrationSource>,
    pub(super) target: Option<MigrationTarget>,
    pub(super) link: MigrationLink,
    /// Whether the thread of each side has been woken and will run soon.
    is_run_scheduled: [bool; 2],
    /// For each side, the time of the scheduled wakeup for the driver's deadline.
    wakeups: [Option<Instant>; 2],
}

/// The state of the task that migrates slots away from its node.
#[derive(Debug)]
pub(super) struct MigrationSource {
    driver: ExportDriver,
    last_topology: Option<Arc<Topology>>,
    snapshot: SnapshotTransfer,
    cursor: Option<CursorId>,
    write_block: WriteBlock,
}

/// The progress of sending the slots' snapshot.
#[derive(Debug)]
enum SnapshotTransfer {
    NotWanted,
    Wanted,
    /// The snapshot has been taken. These commands have not been sent yet.
    Taken(VecDeque<EncodedCommand>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteBlock {
    None,
    /// Writes to the slots are blocked, but writes that began earlier are still running.
    Draining,
    Blocked,
}

/// The state of the task that imports slots.
pub(super) struct MigrationTarget {
    pub(super) driver: ImportDriver,
    last_topology: Option<Arc<Topology>>,
    session: Session,
    /// Commands from the source that have not been executed yet.
    commands: Option<SourceCommands>,
    /// Whether bytes on the connection are not read until `commands` have been executed.
    pub(super) has_unread_bytes: bool,
    /// The token of the operator command that claims the slots.
    claim_token: Option<u64>,
}

/// An event of an atomic slot migration.
#[derive(Debug, Clone, Copy)]
pub(super) enum MigrationStep {
    /// Runs the thread of this side.
    Run(usize),
    /// Wakes this side at the deadline of its driver.
    Deadline(usize),
    /// An item arrives at this side of the connection with this number.
    ItemArrives { side: usize, connection: u64 },
    /// The source's connection attempt reaches the target's host.
    DialArrives { connection: u64, until: Instant },
    /// The source's connection attempt fails.
    NotConnected { connection: u64 },
    /// The network breaks the current connection.
    ConnectionBreaks,
    /// The target's replicas have acknowledged the data. With the injected bug `LateClaims`, the target's clock stops
    /// at `granted_at`.
    ReplicasAcknowledged { granted_at: Instant },
}

impl ClusterWorld {
    /// Starts the migration of slots to `to`.
    pub(super) fn begin_atomic_migration(&mut self, slots: Vec<Slot>, from: usize, to: usize) {
        let hosts = [from, to];
        if from == to
            || hosts.iter().any(|host| !self.simulation.is_running(*host))
            || self.simulation.cannot_communicate(from, to)
        {
            return;
        }
        // CLUSTER MIGRATESLOTS rejects slots that a SETSLOT migration is moving.
        let is_at_rest = |slot: &Slot| self.slot_role(from, *slot) == Some(Ownership::Local);
        if !slots.iter().all(is_at_rest) {
            return;
        }
        self.simulation.trace(|| format!("operator: {slots:?} move from {from} to {to} in one piece"));
        let config = ExportConfig {
            connect_timeout: CONNECT_TIMEOUT,
            timeout: REPL_TIMEOUT,
            requires_authentication: false,
            max_remaining_bytes: u64::MAX,
        };
        self.atomic_migration_count += 1;
        let number = self.atomic_migration_count;
        let establish = EstablishMessage {
            source: self.gossip(from).id(),
            name: self.simulation.random.random_job_name(),
            ranges: slots.iter().map(|slot| (*slot, *slot)).collect(),
            is_resumable: false,
        };
        let target_id = self.gossip(to).id();
        let job = ExportJob { establish_message: establish.clone(), target: target_id };
        let commands = self.simulation.data.process_states[from].logged_command_decoder();
        let (driver, actions) = ExportDriver::new(self.simulation.clock_of(from), job, config, commands);
        let one = AtomicMigration {
            hosts,
            incarnations: hosts.map(|host| self.simulation.processes[host].incarnation),
            keys: slots.iter().map(|slot| slot.number()).collect(),
            slots,
            target_id,
            establish_message: establish,
            source: Some(MigrationSource {
                driver,
                last_topology: None,
                snapshot: SnapshotTransfer::NotWanted,
                cursor: None,
                write_block: WriteBlock::None,
            }),
            target: None,
            link: MigrationLink::new(self.simulation.random.random_bool(60)),
            is_run_scheduled: [false; 2],
            wakeups: [None; 2],
        };
        self.atomic_migrations.insert(number, one);
        self.perform_source_actions(number, actions);
        if self.simulation.plan.injected_bug.is_none() && self.simulation.random.random_bool(40) {
            let time = self.simulation.random.random_millis(0, 800);
            self.simulation.schedule_after(
                time,
                ClusterEvent::MigrationStep { number, step: MigrationStep::ConnectionBreaks },
            );
        }
    }

    pub(super) fn slot_role(&self, host: usize, slot: Slot) -> Option<Ownership> {
        self.hosts[host].topology.as_ref().map(|topology| topology.ownership(slot))
    }

    pub(super) fn perform_migration_step(&mut self, number: u64, step: MigrationStep) {
        match step {
            MigrationStep::Run(side) => self.run_side(number, side, step),
            MigrationStep::Deadline(side) => self.on_migration_deadline(number, side, step),
            MigrationStep::ItemArrives { side, connection } => {
                self.receive_migration_items(number, side, connection);
            }
            MigrationStep::DialArrives { connection, until } => {
                self.on_migration_dialled(number, connection, until);
            }
            MigrationStep::NotConnected { connection } => self.on_not_connected(number, connection),
            MigrationStep::ConnectionBreaks => self.break_migration_link(number),
            MigrationStep::ReplicasAcknowledged { granted_at: granted } => {
                self.on_replicas_acknowledged(number, granted);
            }
        }
    }

    /// Wakes every side whose state has changed. Called after every event.
    pub(super) fn wake_migrations(&mut self) {
        for number in self.atomic_migrations.keys().copied().collect::<Vec<_>>() {
            for side in [SOURCE_SIDE, TARGET_SIDE] {
                if self.side_status(number, side).is_none() {
                    self.end_side(number, side);
                    continue;
                }
                let has_work = if side == SOURCE_SIDE {
                    self.source_has_work(number)
                } else {
                    self.target_has_work(number)
                };
                let Some(one) = self.atomic_migrations.get_mut(&number) else { continue };
                if has_work && !std::mem::replace(&mut one.is_run_scheduled[side], true) {
                    let micros = self.simulation.random.random_below(MAX_WAKE_DELAY_MICROS) as u64;
                    let step = MigrationStep::Run(side);
                    self.simulation.schedule_after(
                        Duration::from_micros(micros),
                        ClusterEvent::MigrationStep { number, step },
                    );
                }
            }
            self.schedule_migration_deadlines(number);
            let is_over =
                |one: &AtomicMigration| one.source.is_none() && one.target.is_none() && one.link.is_idle();
            if self.atomic_migrations.get(&number).is_some_and(is_over) {
                self.atomic_migrations.remove(&number);
            }
        }
    }

    /// Schedules wakeups at the deadlines of both sides' drivers.
    fn schedule_migration_deadlines(&mut self, number: u64) {
        for side in [SOURCE_SIDE, TARGET_SIDE] {
            let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
            let deadline = match side {
                SOURCE_SIDE => one.source.as_ref().and_then(|source| source.driver.next_deadline()),
                _ => one.target.as_ref().and_then(|target| target.driver.next_deadline()),
            };
            let Some(deadline) = deadline else { continue };
            let (now, host) = (self.simulation.now, one.hosts[side]);
            let earliest = self.simulation.frozen_until(host).unwrap_or(now);
            let at = (deadline - self.simulation.processes[host].clock_offset).max(earliest);
            if one.wakeups[side].is_none_or(|planned| at < planned || planned < now) {
                one.wakeups[side] = Some(at);
                self.simulation.schedule_at(
                    at,
                    ClusterEvent::MigrationStep { number, step: MigrationStep::Deadline(side) },
                );
            }
        }
    }

    fn on_migration_deadline(&mut self, number: u64, side: usize, step: MigrationStep) {
        if let Some(Some(until)) = self.side_status(number, side) {
            return self.simulation.schedule_at(until, ClusterEvent::MigrationStep { number, step });
        }
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        if one.wakeups[side].is_some_and(|at| at > self.simulation.now) {
            return;
        }
        one.wakeups[side] = None;
        if side == SOURCE_SIDE {
            self.notify_source(number, ExportDriverEvent::Deadline);
        } else {
            self.notify_target(number, ImportDriverEvent::Deadline);
        }
    }

    /// Returns `None` if the process of this side is gone. Otherwise the inner value is the time until which the
    /// process is frozen, if it is frozen.
    pub(super) fn side_status(&self, number: u64, side: usize) -> Option<Option<Instant>> {
        let one = self.atomic_migrations.get(&number)?;
        let host = one.hosts[side];
        self.simulation
            .is_incarnation(host, one.incarnations[side])
            .then(|| self.simulation.frozen_until(host))
    }

    /// Ends the task of a process that died. If the host lost power, nobody closes the connection.
    fn end_side(&mut self, number: u64, side: usize) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        let was_there =
            if side == SOURCE_SIDE { one.source.take().is_some() } else { one.target.take().is_some() };
        if was_there && self.simulation.processes[one.hosts[side]].has_power {
            self.close_migration_link(number, side);
        }
    }

    fn run_side(&mut self, number: u64, side: usize, step: MigrationStep) {
        if let Some(Some(until)) = self.side_status(number, side) {
            return self.simulation.schedule_at(until, ClusterEvent::MigrationStep { number, step });
        }
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        one.is_run_scheduled[side] = false;
        if side == SOURCE_SIDE {
            self.run_source(number);
        } else {
            self.run_target(number);
        }
    }

    fn source_has_work(&self, number: u64) -> bool {
        let Some(one) = self.atomic_migrations.get(&number) else { return false };
        let (Some(source), host) = (&one.source, one.hosts[SOURCE_SIDE]) else { return false };
        let log = source.cursor.and_then(|cursor| self.simulation.unread_log_bytes(host, cursor));
        let accepts_data = source.driver.accepts_data();
        self.has_new_topology(host, source.last_topology.as_ref())
            || matches!(source.snapshot, SnapshotTransfer::Wanted)
            || accepts_data && matches!(source.snapshot, SnapshotTransfer::Taken(_))
            || accepts_data && source.driver.is_sending_log() && source.cursor.is_some() && log != Some(0)
            || source.write_block == WriteBlock::Draining
                && self.simulation.are_slots_unlocked(host, &one.keys)
    }

    fn has_new_topology(&self, host: usize, last_topology: Option<&Arc<Topology>>) -> bool {
        let topology = self.hosts[host].topology.as_ref();
        topology
            .zip(last_topology)
            .map_or(topology.is_some() != last_topology.is_some(), |(one, other)| !Arc::ptr_eq(one, other))
    }

    /// Runs the source's thread once, like one iteration of the node's loop.
    fn run_source(&mut self, number: u64) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        let (Some(source), host) = (&mut one.source, one.hosts[SOURCE_SIDE]) else { return };
        let topology = self.hosts[host].topology.clone();
        source.last_topology.clone_from(&topology);
        let keys = one.keys.clone();
        let accepts_data = source.driver.accepts_data();
        let event = match &mut source.snapshot {
            SnapshotTransfer::Wanted => match self.simulation.snapshot_slots(host, &keys) {
                Some((parts, cursor)) => {
                    (source.snapshot, source.cursor) = (SnapshotTransfer::Taken(parts.into()), Some(cursor));
                    Some(ExportDriverEvent::SnapshotTaken)
                }
                None => {
                    source.snapshot = SnapshotTransfer::NotWanted;
                    Some(ExportDriverEvent::SnapshotUnavailable)
                }
            },
            SnapshotTransfer::Taken(parts) if accepts_data => match parts.pop_front() {
                Some(part) => Some(ExportDriverEvent::SnapshotChunk(part)),
                None => {
                    source.snapshot = SnapshotTransfer::NotWanted;
                    Some(ExportDriverEvent::SnapshotEnd)
                }
            },
            SnapshotTransfer::Taken(_) => None,
            SnapshotTransfer::NotWanted
                if source.write_block == WriteBlock::Draining
                    && self.simulation.are_slots_unlocked(host, &keys) =>
            {
                source.write_block = WriteBlock::Blocked;
                let unread = source.cursor.and_then(|cursor| self.simulation.unread_log_bytes(host, cursor));
                Some(ExportDriverEvent::WritesPaused { unread_bytes: unread.unwrap_or(u64::MAX) })
            }
            SnapshotTransfer::NotWanted => {
                match source.cursor.filter(|_| accepts_data && source.driver.is_sending_log()) {
                    Some(cursor) => Some(match self.simulation.read_log(host, cursor) {
                        Some(bytes) => ExportDriverEvent::LogChunk(bytes),
                        None => ExportDriverEvent::Failed("the log fell off".to_owned()),
                    }),
                    None => None,
                }
            }
        };
        let is_replica = self.simulation.data.process_states[host].upstream().is_some();
        if let Some(topology) = topology {
            self.notify_source(number, ExportDriverEvent::Topology { topology, is_replica });
        }
        if let Some(event) = event {
            self.notify_source(number, event);
        }
    }

    /// Passes an event to the source's driver, followed by the number of log bytes that have not been sent yet.
    pub(super) fn notify_source(&mut self, number: u64, event: ExportDriverEvent) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        let (Some(source), host) = (&mut one.source, one.hosts[SOURCE_SIDE]) else { return };
        let (now, mut actions) = (self.simulation.clock_of(host), Vec::new());
        source.driver.handle(now, event, &mut actions);
        if actions.is_empty()
            && let Some(remaining) =
                source.cursor.and_then(|cursor| self.simulation.unread_log_bytes(host, cursor))
        {
            source.driver.handle(now, ExportDriverEvent::UnreadLogBytes(remaining), &mut actions);
        }
        self.perform_source_actions(number, actions);
    }

    fn perform_source_actions(&mut self, number: u64, actions: Vec<ExportDriverAction>) {
        for action in actions {
            let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
            let (Some(source), host) = (&mut one.source, one.hosts[SOURCE_SIDE]) else { return };
            match action {
                ExportDriverAction::Connect(timeout) => self.dial_target(number, timeout),
                ExportDriverAction::Send(bytes) => self.send_migration_bytes(number, SOURCE_SIDE, bytes),
                // The simulated nodes have no password.
                ExportDriverAction::SendCredentials => {}
                ExportDriverAction::ReportResumed => {
                    self.simulation.trace(|| format!("move {number} is resumed"));
                }
                ExportDriverAction::Close => self.close_migration_link(number, SOURCE_SIDE),
                ExportDriverAction::TakeSnapshot => source.snapshot = SnapshotTransfer::Wanted,
                ExportDriverAction::PauseWrites => {
                    source.write_block = WriteBlock::Draining;
                    let keys = one.keys.clone();
                    if self.simulation.plan.injected_bug == Some(InjectedBug::EarlySlotHandover) {
                        (source.write_block, source.cursor) = (WriteBlock::Blocked, None);
                        self.simulation.set_slot_writes_blocked(host, &keys, true);
                        self.notify_source(number, ExportDriverEvent::WritesPaused { unread_bytes: 0 });
                    } else {
                        self.simulation.set_slot_writes_blocked(host, &keys, true);
                    }
                }
                ExportDriverAction::End(outcome) => {
                    let (keys, cursor) = (one.keys.clone(), source.cursor);
                    one.source = None;
                    self.simulation.trace(|| format!("move {number} ends at its source: {outcome:?}"));
                    self.simulation.set_slot_writes_blocked(host, &keys, false);
                    if let Some(cursor) = cursor {
                        self.simulation.remove_cursor(host, cursor);
                    }
                    self.close_migration_link(number, SOURCE_SIDE);
                }
            }
        }
    }

    /// Handles ESTABLISH: begins the import unless the state of the node forbids it. Returns whether the import began.
    pub(super) fn accept_migration(
        &mut self,
        number: u64,
        establish_message: EstablishMessage,
        remaining_bytes: Vec<u8>,
    ) -> bool {
        let Some(one) = self.atomic_migrations.get(&number) else { return false };
        let host = one.hosts[TARGET_SIDE];
        let marked = |slot: &Slot| self.slot_role(host, *slot) == Some(Ownership::Importing);
        let is_hindered = one.target.is_some()
            || self.import_conditions(host, &establish_message).failure_reason().is_some()
            || self.gossip(host).id() != one.target_id
            || one.slots.iter().any(marked);
        if is_hindered || !self.simulation.begin_import(host, &establish_message) {
            return false;
        }
        let commands = self.simulation.data.process_states[host].logged_command_decoder();
        let now = self.simulation.clock_of(host);
        let (driver, actions) =
            ImportDriver::new(now, establish_message, REPL_TIMEOUT, commands, remaining_bytes);
        let (session, seen) = (source_session(), None);
        let target = MigrationTarget {
            driver,
            last_topology: seen,
            session,
            commands: None,
            has_unread_bytes: false,
            claim_token: None,
        };
        self.atomic_migrations.entry(number).and_modify(|one| one.target = Some(target));
        self.perform_target_actions(number, now, actions);
        true
    }

    fn import_conditions(&self, host: usize, establish_message: &EstablishMessage) -> ImportConditions {
        let is_replica = self.simulation.data.process_states[host].upstream().is_some();
        match &self.hosts[host].topology {
            Some(topology) => ImportConditions::new(topology, is_replica, establish_message, false),
            None => ImportConditions { is_master: false, source_owns_slots: false, was_flushed: false },
        }
    }

    fn target_has_work(&self, number: u64) -> bool {
        let Some(one) = self.atomic_migrations.get(&number) else { return false };
        let (Some(target), host) = (&one.target, one.hosts[TARGET_SIDE]) else { return false };
        self.has_new_topology(host, target.last_topology.as_ref())
            || target.commands.is_some() && !self.simulation.is_import_paused(host)
    }

    fn run_target(&mut self, number: u64) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        let (Some(target), host) = (&mut one.target, one.hosts[TARGET_SIDE]) else { return };
        target.last_topology.clone_from(&self.hosts[host].topology);
        // Commands from the source are not executed during a pause.
        if !self.simulation.is_import_paused(host)
            && let Some(commands) = target.commands.take()
        {
            let applied = self.simulation.import_changes(host, &mut target.session, commands.bytes);
            self.notify_target(number, ImportDriverEvent::CommandsApplied(applied));
            self.resume_reading(number);
        }
        let Some(one) = self.atomic_migrations.get(&number) else { return };
        let Some(target) = &one.target else { return };
        let conditions = self.import_conditions(host, target.driver.job());
        self.notify_target(number, ImportDriverEvent::ConditionsChanged(conditions));
    }

    pub(super) fn notify_target(&mut self, number: u64, event: ImportDriverEvent) {
        let Some(host) = self.atomic_migrations.get(&number).map(|one| one.hosts[TARGET_SIDE]) else {
            return;
        };
        self.send_event_to_target(number, self.simulation.clock_of(host), event);
    }

    fn send_event_to_target(&mut self, number: u64, now: Instant, event: ImportDriverEvent) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        let Some(target) = &mut one.target else { return };
        let mut actions = Vec::new();
        target.driver.handle(now, event, &mut actions);
        self.perform_target_actions(number, now, actions);
    }

    fn perform_target_actions(&mut self, number: u64, now: Instant, actions: Vec<ImportDriverAction>) {
        for action in actions {
            let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
            let (Some(target), host) = (&mut one.target, one.hosts[TARGET_SIDE]) else { return };
            match action {
                ImportDriverAction::Send(bytes) => self.send_migration_bytes(number, TARGET_SIDE, bytes),
                ImportDriverAction::ApplyCommands(commands) => target.commands = Some(commands),
                ImportDriverAction::AwaitReplicas => {
                    let wait = self.simulation.random.random_millis(0, MAX_REPLICA_WAIT_MS);
                    // The target is frozen when `LateClaims` is injected, because the bug shows only in late claims.
                    if self.simulation.plan.injected_bug == Some(InjectedBug::LateClaims)
                        && !self.simulation.is_healed
                    {
                        self.freeze_long(host);
                    }
                    let step = MigrationStep::ReplicasAcknowledged { granted_at: now };
                    self.simulation.schedule_after(wait, ClusterEvent::MigrationStep { number, step });
                }
                ImportDriverAction::ClaimSlots => self.claim_migrated_slots(number),
                ImportDriverAction::End(outcome) => {
                    let establish = target.driver.job().clone();
                    one.target = None;
                    self.simulation.trace(|| format!("move {number} ends at its target: {outcome:?}"));
                    self.simulation.end_import(host, &establish, outcome);
                    self.close_migration_link(number, TARGET_SIDE);
                }
            }
        }
    }

    fn on_replicas_acknowledged(&mut self, number: u64, granted_at: Instant) {
        match self.side_status(number, TARGET_SIDE) {
            None => return self.end_side(number, TARGET_SIDE),
            Some(Some(until)) => {
                let step = MigrationStep::ReplicasAcknowledged { granted_at };
                return self.simulation.schedule_at(until, ClusterEvent::MigrationStep { number, step });
            }
            Some(None) => {}
        }
        let Some(one) = self.atomic_migrations.get(&number) else { return };
        let (Some(target), host) = (&one.target, one.hosts[TARGET_SIDE]) else { return };
        let conditions = self.import_conditions(host, target.driver.job());
        let is_late = self.simulation.plan.injected_bug == Some(InjectedBug::LateClaims);
        let now = if is_late { granted_at } else { self.simulation.clock_of(host) };
        self.send_event_to_target(number, now, ImportDriverEvent::ReplicasCaughtUp(conditions));
    }

    fn claim_migrated_slots(&mut self, number: u64) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        let (Some(target), host) = (&mut one.target, one.hosts[TARGET_SIDE]) else { return };
        let from = one.establish_message.source;
        self.assigned_slots.extend(one.slots.iter().map(|slot| (one.target_id, *slot)));
        let command =
            OperatorCommand::ClaimSlots { slots: one.slots.iter().copied().collect(), source: from };
        target.claim_token = Some(self.hosts[host].last_token + 1);
        self.check_moved(number);
        self.send_command(host, command, None);
    }

    /// Handles the reply to a command. If the command was the claim of a migration, the target's driver learns the
    /// result.
    pub(super) fn on_claim_reply(
        &mut self,
        host: usize,
        token: u64,
        result: &Result<OperatorReply, OperatorError>,
    ) {
        let is_meant = |one: &AtomicMigration| {
            one.hosts[TARGET_SIDE] == host
                && one.target.as_ref().is_some_and(|target| target.claim_token == Some(token))
        };
        let Some(number) =
            self.atomic_migrations.iter().find(|(_, one)| is_meant(one)).map(|(number, _)| *number)
        else {
            return;
        };
        let claimed = result.as_ref().map(|_| ()).map_err(ToString::to_string);
        self.notify_target(number, ImportDriverEvent::ClaimResult(claimed));
    }
}

impl std::fmt::Debug for MigrationTarget {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.driver.fmt(formatter)
    }
}
