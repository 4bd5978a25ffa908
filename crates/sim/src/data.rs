//! Simulates the data of processes and its replication. The state machines of `replication` are the production code;
//! they take their orders from the state machines that decide each node's role.
//!
//! The log, both sides of PSYNC, the master's driver ([`replication::MasterDriver`]) and
//! [`replication::WriteAuthority`] are the production code. The surrounding threads are simulated: workers that execute
//! client commands ([`writes`]), the applier of a master's stream ([`following`]), replica connections and snapshots
//! ([`serving`]), and role changes ([`roles`]). Each step whose intermediate state other threads can observe is an
//! event of its own, so that the seed decides the interleaving: a write is admitted, starts while its slot is locked,
//! and ends; a role changes in the log, is published, and reaches the replication thread; the stream is applied command
//! by command.
//!
//! The keyspace is a real engine ([`data_store`]), whose effects and snapshots are replicated. Client requests use
//! commands of all types and follow redirections ([`requests`]). Each request ends with a write of a unique number,
//! which the invariants check.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use append_only::FsyncPolicy;
use clock::{Instant, Millis};
use engine::{NodeFlags, PauseMode, PausePurpose};
use migration::EstablishMessage;
use replication::master::{PeerId, TransferId};
use replication::{ReplId, StreamEpoch};
use slot_routing::SlotSet;

pub(crate) use self::invariants::DataChange;
use self::invariants::{DataObservation, NamedInvariant};
use self::link::ReplicaLink;
use self::requests::ClientRequest;
pub(crate) use self::roles::RoleChange;
pub(crate) use self::store::{KeyGroup, ProcessState};
pub(crate) use self::whole_moves::{EncodedCommand, source_session};
use crate::simulation::Simulation;
use crate::{InjectedBug, RandomSource};

mod copies;
mod data_store;
mod file;
mod following;
mod invariants;
mod link;
mod requests;
mod roles;
mod serving;
mod slot_moves;
mod stopping;
mod store;
mod waits;
mod whole_moves;
mod writes;

/// The wall-clock time when the simulated monotonic clock is zero.
const WALL_CLOCK_ORIGIN_MILLIS: i64 = 1_700_000_000_000;
/// Interval at which an operation that needs a locked slot is retried.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_micros(300);

/// A step of one of a process's threads or of the network.
#[derive(Debug, Clone)]
pub(crate) enum DataEvent {
    /// A client's request arrives and tries to lock its slot.
    RequestArrives {
        process_id: ProcessId,
        request: Box<ClientRequest>,
    },
    /// Empties a slot that moved to another node.
    EmptySlot {
        process_id: ProcessId,
        key_group: KeyGroup,
    },
    /// Ends an import whose keys could not be deleted earlier because writes were paused.
    EndImport {
        process_id: ProcessId,
        import: Box<EstablishMessage>,
        outcome: Result<(), String>,
    },
    /// A client's commands finish executing and their effects enter the log.
    CommandsEnd {
        process_id: ProcessId,
        command: u64,
    },
    /// A new role becomes visible to writes.
    RolePublished {
        process_id: ProcessId,
    },
    /// The replication thread takes its next message.
    NextMessage {
        process_id: ProcessId,
    },
    /// Starts to follow a master once running writes have ended.
    StartFollowing {
        process_id: ProcessId,
        stream: StreamEpoch,
        running_commands: BTreeSet<u64>,
    },
    /// The applier executes the next commands of the current stream segment.
    ApplyCommands {
        process_id: ProcessId,
    },
    /// The writer thread of the append-only file requests its next operation.
    RunFileThread {
        process_id: ProcessId,
    },
    /// Checks whether the shutdown of a stopping process can make progress.
    CheckShutdown {
        process_id: ProcessId,
    },
    /// A snapshot has been loaded and has replaced the data.
    SnapshotLoaded {
        process_id: ProcessId,
    },
    /// The replication thread takes a snapshot for replicas.
    TakeSnapshot {
        process_id: ProcessId,
        transfer: TransferId,
        peers: Vec<PeerId>,
        uses_eof_mark: bool,
    },
    /// A snapshot has been written to its file.
    SnapshotWritten {
        process_id: ProcessId,
        transfer: TransferId,
    },
    /// The log may contain data that was not sent to this replica yet.
    LogGrown {
        process_id: ProcessId,
        peer: PeerId,
    },
    Tick {
        process_id: ProcessId,
    },
    DialArrives {
        link: u64,
    },
    ItemArrives {
        link: u64,
        side: usize,
    },
}

/// A process, identified by its host and its incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessId {
    host: usize,
    incarnation: u64,
}

impl DataEvent {
    fn process_id(&self) -> Option<ProcessId> {
        match self {
            Self::RequestArrives { process_id: at, .. }
            | Self::EmptySlot { process_id: at, .. }
            | Self::EndImport { process_id: at, .. }
            | Self::CommandsEnd { process_id: at, .. }
            | Self::RolePublished { process_id: at }
            | Self::NextMessage { process_id: at }
            | Self::StartFollowing { process_id: at, .. }
            | Self::ApplyCommands { process_id: at }
            | Self::RunFileThread { process_id: at }
            | Self::CheckShutdown { process_id: at }
            | Self::SnapshotLoaded { process_id: at }
            | Self::TakeSnapshot { process_id: at, .. }
            | Self::SnapshotWritten { process_id: at, .. }
            | Self::LogGrown { process_id: at, .. }
            | Self::Tick { process_id: at } => Some(*at),
            Self::DialArrives { .. } | Self::ItemArrives { .. } => None,
        }
    }
}

/// The data of all processes, with the settings of the run.
pub(crate) struct DataSimulation {
    pub(crate) process_states: Vec<ProcessState>,
    /// The client address of each process.
    pub(crate) addresses: Vec<String>,
    links: BTreeMap<u64, ReplicaLink>,
    last_link_id: u64,
    /// The number of writes so far; each write is identified by its number.
    write_count: u64,
    /// The number of started requests, including retries.
    started_request_count: u64,
    /// The number of distinct values that client commands have written so far.
    issued_value_count: u64,
    /// The slots of all keys that clients use.
    slots: SlotSet,
    settings: DataSettings,
    invariants: Vec<NamedInvariant>,
}

/// Settings shared by all processes of a run.
#[derive(Debug, Clone, Copy)]
struct DataSettings {
    /// The value of `repl-backlog-size`, in bytes.
    backlog_size: u64,
    /// The number of bytes by which a replica's cursor may trail the end of the log.
    max_lag: u64,
    /// Whether `repl-diskless-sync` and `dual-channel-replication-enabled` are on.
    is_diskless: bool,
    dual_channel: bool,
    /// The number of stream bytes that a replica buffers while its snapshot arrives over another
    /// connection; 0 is unlimited.
    replica_buffer_limit: u64,
    /// The largest chunk sent to a replica.
    max_chunk: usize,
    /// The maximum time, in microseconds, from the arrival of a command to the lock of its slot, and from the lock to
    /// the end of the command.
    max_command_micros: u64,
    /// The maximum time, in microseconds, that it takes to apply some commands of the stream.
    max_apply_micros: u64,
    /// The value of `appendfsync` on processes with `appendonly yes`; `None` if no process has a file.
    appendfsync: Option<FsyncPolicy>,
    /// Whether replicas accept client writes (`replica-read-only no`).
    are_replicas_writable: bool,
    /// Whether the processes form a cluster (`cluster-enabled`).
    is_cluster_enabled: bool,
}

impl DataSimulation {
    /// Creates the data of processes in a cluster, or of standalone processes. Clients use keys in `slots`.
    pub(crate) fn new(random: &mut RandomSource, slots: SlotSet, is_cluster_enabled: bool) -> Self {
        let settings = DataSettings {
            backlog_size: random.pick_random(&[0, 2000, 12_000, 1 << 20]),
            max_lag: random.pick_random(&[16_000, 1 << 20]),
            is_diskless: random.random_bool(70),
            dual_channel: random.random_bool(50),
            replica_buffer_limit: random.pick_random(&[0, 1200]),
            max_chunk: random.pick_random(&[50, 500, 1 << 16]),
            max_command_micros: random.pick_random(&[2000, 2000, 20_000]),
            max_apply_micros: random.pick_random(&[100, 100, 3000, 15_000]),
            appendfsync: random.pick_random(&[
                None,
                None,
                Some(FsyncPolicy::Always),
                Some(FsyncPolicy::EverySecond),
            ]),
            are_replicas_writable: random.random_bool(30),
            is_cluster_enabled,
        };
        Self {
            process_states: Vec::new(),
            addresses: Vec::new(),
            links: BTreeMap::new(),
            last_link_id: 0,
            write_count: 0,
            started_request_count: 0,
            issued_value_count: 0,
            slots,
            settings,
            invariants: invariants::all_invariants(),
        }
    }

    /// Adds a process, which is a master without data.
    pub(crate) fn add_process(&mut self, random: &mut RandomSource, now: Instant, address: String) {
        self.addresses.push(address);
        self.process_states.push(ProcessState::new(random, &self.settings, &self.slots, now));
    }

    /// Describes a replica whose data differs from its master's although writes have stopped; `None` if there is no
    /// such replica.
    pub(crate) fn disagreement(&self) -> Option<String> {
        let differs = |host: usize| {
            let master = self.process_states[host].upstream()?;
            let (one, other) = (&self.process_states[host], &self.process_states[master]);
            let same = one.position().id == other.position().id
                && one.data_store.digest() == other.data_store.digest();
            (!same).then(|| {
                let (here, there) = (one.position(), other.position());
                format!("host {host} at {here:?} does not hold what host {master} does at {there:?}")
            })
        };
        (0..self.process_states.len()).find_map(differs)
    }
}

impl<E: Debug> Simulation<E> {
    pub(crate) fn handle_data_event(&mut self, event: DataEvent) {
        let Some(at) = event.process_id() else {
            return match event {
                DataEvent::DialArrives { link } => self.on_dialled(link),
                DataEvent::ItemArrives { link, side } => self.deliver_due(link, side),
                _ => {}
            };
        };
        if !self.is_incarnation(at.host, at.incarnation) {
            return;
        }
        if let Some(until) = self.frozen_until(at.host) {
            return self.schedule_data(until, event);
        }
        let host = at.host;
        match event {
            DataEvent::RequestArrives { request, .. } => self.begin_write(host, request),
            DataEvent::EmptySlot { key_group: key, .. } => self.empty_slot(host, key),
            DataEvent::EndImport { import, outcome, .. } => self.end_import(host, &import, outcome),
            DataEvent::CommandsEnd { command, .. } => self.end_write(host, command),
            DataEvent::RolePublished { .. } => self.publish_role(host),
            DataEvent::NextMessage { .. } => self.process_messages(host),
            DataEvent::StartFollowing { stream, running_commands: under_way, .. } => {
                self.start_following(host, stream, under_way);
            }
            DataEvent::ApplyCommands { .. } => self.apply_command_batch(host),
            DataEvent::RunFileThread { .. } => self.run_file_writer(host),
            DataEvent::CheckShutdown { .. } => self.advance_shutdown(host),
            DataEvent::SnapshotLoaded { .. } => self.on_snapshot_loaded(host),
            DataEvent::TakeSnapshot { transfer, peers, uses_eof_mark: eof, .. } => {
                self.take_snapshot(host, transfer, peers, eof);
            }
            DataEvent::SnapshotWritten { transfer, .. } => self.on_snapshot_written(host, transfer),
            DataEvent::LogGrown { peer, .. } => self.send_log(host, peer),
            DataEvent::Tick { .. } => self.run_due_data_timers(host),
            DataEvent::DialArrives { .. } | DataEvent::ItemArrives { .. } => {}
        }
        self.schedule_data_tick(host);
    }

    /// Returns the current incarnation of a process.
    pub(super) fn process_id(&self, host: usize) -> ProcessId {
        ProcessId { host, incarnation: self.processes[host].incarnation }
    }

    /// Returns whether a client's write to this slot would be accepted now.
    pub(crate) fn accepts_writes(&self, host: usize, key_group: KeyGroup) -> bool {
        self.data.process_states[host].data_store.accepts_writes(key_group, self.wall_clock_of(host))
    }

    /// Pauses client writes until the given time of the process's clock, or without a time limit.
    pub(crate) fn pause_writes(&self, host: usize, purpose: PausePurpose, until: Option<Instant>) {
        let engine = self.data.process_states[host].engine();
        let until = until
            .map_or(Millis(i64::MAX), |until| Millis(WALL_CLOCK_ORIGIN_MILLIS + until.as_millis() as i64));
        engine.scheduling.pauses.pause(&engine.settings, purpose, PauseMode::Writes, until);
    }

    /// Ends a pause of client writes.
    pub(crate) fn resume_writes(&self, host: usize, purpose: PausePurpose) {
        let engine = self.data.process_states[host].engine();
        engine.scheduling.pauses.unpause(&engine.settings, purpose);
    }

    /// Schedules an event at a random time within the next `micros` microseconds.
    fn schedule_data_within(&mut self, micros: u64, event: DataEvent) {
        let at = self.now + Duration::from_micros(self.random.random_below(micros as usize + 1) as u64);
        self.schedule_data(at, event);
    }

    /// Returns the wall-clock time of a process.
    pub(crate) fn wall_clock_of(&self, host: usize) -> Millis {
        Millis(WALL_CLOCK_ORIGIN_MILLIS + self.clock_of(host).as_millis() as i64)
    }

    /// Returns the monotonic time of a process.
    pub(crate) fn clock_of(&self, host: usize) -> Instant {
        self.now + self.processes[host].clock_offset
    }

    /// Ends a process. With `keeps_files`, it can restart from its files. With `notifies_peers`, its host still runs
    /// and closes the connections of the process.
    pub(crate) fn end_process_data(&mut self, host: usize, keeps_files: bool, notifies_peers: bool) {
        self.break_links(host, notifies_peers);
        let now = self.clock_of(host);
        let fresh = ProcessState::new(&mut self.random, &self.data.settings, &self.data.slots, now);
        let store = &mut self.data.process_states[host];
        let file = store.data_file.take();
        *store = store.state_after_restart(fresh, keeps_files);
        if let Some(file) = file {
            self.restart_file(host, file, keeps_files, notifies_peers);
        }
        self.check_invariants(host, DataChange::Restarted { keeps_data: keeps_files });
    }

    /// Starts a process in its role. A master takes a new replication id, because writes after the end of its file are
    /// lost.
    pub(crate) fn start_process_data(&mut self, host: usize) {
        self.publish_role(host);
        let own = self.new_history();
        let store = &mut self.data.process_states[host];
        store.set_node_flag(NodeFlags::LOADING, store.snapshot_load.is_some());
        if store.upstream().is_none() && store.log.is_open() {
            store.log.change_id(own);
        }
        self.notify_file_of_log(host);
        self.schedule_data_tick(host);
    }

    /// Occasionally saves RDB files, expires keys and injects disk faults. Lets blocked clients continue.
    pub(crate) fn run_maintenance(&mut self) {
        for host in 0..self.data.process_states.len() {
            if self.random.random_bool(2) && self.is_running(host) {
                self.data.process_states[host].save_rdb();
            }
            if self.random.random_bool(10) && self.is_running(host) {
                self.delete_expired_keys(host);
            }
            if self.is_running(host) {
                self.disturb_disk(host);
            }
            if self.is_running(host) && !self.data.process_states[host].is_loading() {
                self.block_client(host);
                self.end_overdue_copy_waits(host);
                self.break_link_within_transaction(host);
            }
        }
    }

    /// Records that `master` no longer counts this process as its replica, or that no process does if `master` is
    /// `None`.
    pub(crate) fn remove_replica(&mut self, host: usize, master: Option<usize>) {
        self.check_invariants(host, DataChange::ReplicaForgotten { master });
    }

    fn trace_data(&mut self, host: usize, text: impl FnOnce(&ProcessState) -> String) {
        let text = text(&self.data.process_states[host]);
        self.trace(|| format!("data of {host}: {text}"));
    }

    fn new_history(&mut self) -> ReplId {
        self.random.random_replication_id()
    }

    fn has_injected_bug(&self, injected_bug: InjectedBug) -> bool {
        self.plan.injected_bug == Some(injected_bug)
    }

    /// Passes an event about a process's data to the invariants.
    pub(crate) fn check_invariants(&mut self, host: usize, change: DataChange) {
        let DataSimulation { process_states: stores, invariants, .. } = &mut self.data;
        let seen = DataObservation { host, process_state: &stores[host], change };
        let found: Vec<_> = invariants
            .iter_mut()
            .filter_map(|(rule, invariant)| Some((*rule, invariant.check(&seen).err()?)))
            .collect();
        for (rule, violation) in found {
            self.record_violation(rule, &violation);
        }
    }
}
