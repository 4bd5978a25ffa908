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
use migration::Establish;
use replication::master::{PeerId, TransferId};
use replication::{ReplId, StreamEpoch};
use slot_routing::SlotSet;

pub(crate) use self::invariants::DataChange;
use self::invariants::{DataObservation, NamedInvariant};
use self::link::Link;
use self::requests::Request;
pub(crate) use self::roles::RoleChange;
pub(crate) use self::store::{Key, ReplicaState};
pub(crate) use self::whole_moves::{Change, source_session};
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
const WALL: i64 = 1_700_000_000_000;
/// Interval at which an operation that needs a locked slot is retried.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_micros(300);

/// A step of one of a process's threads or of the network.
#[derive(Debug, Clone)]
pub(crate) enum DataEvent {
    /// A client's request arrives and tries to lock its slot.
    Begin {
        at: Process,
        request: Box<Request>,
    },
    /// Empties a slot that moved to another node.
    Leave {
        at: Process,
        key: Key,
    },
    /// Ends an import whose keys could not be deleted earlier because writes were paused.
    Imported {
        at: Process,
        import: Box<Establish>,
        outcome: Result<(), String>,
    },
    /// A client's commands finish executing and their effects enter the log.
    End {
        at: Process,
        command: u64,
    },
    /// A new role becomes visible to writes.
    Published {
        at: Process,
    },
    /// The replication thread takes its next message.
    NextMessage {
        at: Process,
    },
    /// Starts to follow a master once running writes have ended.
    Start {
        at: Process,
        stream: StreamEpoch,
        under_way: BTreeSet<u64>,
    },
    /// The applier executes the next commands of the current stream segment.
    Apply {
        at: Process,
    },
    /// The thread of the append-only file looks for its next operation.
    File {
        at: Process,
    },
    /// Checks whether the shutdown of a stopping process can make progress.
    Stop {
        at: Process,
    },
    /// A snapshot has been loaded and has replaced the data.
    Loaded {
        at: Process,
    },
    /// The replication thread takes a snapshot for replicas.
    TakeSnapshot {
        at: Process,
        transfer: TransferId,
        peers: Vec<PeerId>,
        eof: bool,
    },
    /// A snapshot has been written to its file.
    Written {
        at: Process,
        transfer: TransferId,
    },
    /// The log may contain data that was not sent to this replica yet.
    LogGrown {
        at: Process,
        peer: PeerId,
    },
    Tick {
        at: Process,
    },
    Dialled {
        link: u64,
    },
    Arrives {
        link: u64,
        side: usize,
    },
}

/// A process, identified by its host and its incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    host: usize,
    incarnation: u64,
}

impl DataEvent {
    fn process(&self) -> Option<Process> {
        match self {
            Self::Begin { at, .. }
            | Self::Leave { at, .. }
            | Self::Imported { at, .. }
            | Self::End { at, .. }
            | Self::Published { at }
            | Self::NextMessage { at }
            | Self::Start { at, .. }
            | Self::Apply { at }
            | Self::File { at }
            | Self::Stop { at }
            | Self::Loaded { at }
            | Self::TakeSnapshot { at, .. }
            | Self::Written { at, .. }
            | Self::LogGrown { at, .. }
            | Self::Tick { at } => Some(*at),
            Self::Dialled { .. } | Self::Arrives { .. } => None,
        }
    }
}

/// The data of all processes, with the settings of the run.
pub(crate) struct Data {
    pub(crate) stores: Vec<ReplicaState>,
    /// The client address of each process.
    pub(crate) addresses: Vec<String>,
    links: BTreeMap<u64, Link>,
    last_link: u64,
    /// The number of writes so far; each write is identified by its number.
    writes: u64,
    /// The number of started requests, including retries.
    requests_started: u64,
    /// The number of distinct values that client commands have written so far.
    values_issued: u64,
    /// The slots of all keys that clients use.
    slots: SlotSet,
    settings: Settings,
    invariants: Vec<NamedInvariant>,
}

/// Settings shared by all processes of a run.
#[derive(Debug, Clone, Copy)]
struct Settings {
    /// The value of `repl-backlog-size`, in bytes.
    backlog: u64,
    /// The number of bytes by which a replica's cursor may trail the end of the log.
    max_lag: u64,
    /// Whether `repl-diskless-sync` and `dual-channel-replication-enabled` are on.
    diskless: bool,
    dual_channel: bool,
    /// The number of stream bytes that a replica buffers while its snapshot arrives over another
    /// connection; 0 is unlimited.
    replica_buffer_limit: u64,
    /// The largest chunk sent to a replica.
    max_chunk: usize,
    /// The maximum time, in microseconds, from the arrival of a command to the lock of its slot, and from the lock to
    /// the end of the command.
    command: u64,
    /// The maximum time, in microseconds, that it takes to apply some commands of the stream.
    apply: u64,
    /// The value of `appendfsync` on processes with `appendonly yes`; `None` if no process has a file.
    appendfsync: Option<FsyncPolicy>,
    /// Whether replicas accept client writes (`replica-read-only no`).
    writable_replicas: bool,
    /// Whether the processes form a cluster (`cluster-enabled`).
    clustered: bool,
}

impl Data {
    /// Creates the data of processes in a cluster, or of standalone processes. Clients use keys in `slots`.
    pub(crate) fn new(random: &mut RandomSource, slots: SlotSet, clustered: bool) -> Self {
        let settings = Settings {
            backlog: random.pick(&[0, 2000, 12_000, 1 << 20]),
            max_lag: random.pick(&[16_000, 1 << 20]),
            diskless: random.percent(70),
            dual_channel: random.percent(50),
            replica_buffer_limit: random.pick(&[0, 1200]),
            max_chunk: random.pick(&[50, 500, 1 << 16]),
            command: random.pick(&[2000, 2000, 20_000]),
            apply: random.pick(&[100, 100, 3000, 15_000]),
            appendfsync: random.pick(&[
                None,
                None,
                Some(FsyncPolicy::Always),
                Some(FsyncPolicy::EverySecond),
            ]),
            writable_replicas: random.percent(30),
            clustered,
        };
        Self {
            stores: Vec::new(),
            addresses: Vec::new(),
            links: BTreeMap::new(),
            last_link: 0,
            writes: 0,
            requests_started: 0,
            values_issued: 0,
            slots,
            settings,
            invariants: invariants::all(),
        }
    }

    /// Adds a process, which is a master without data.
    pub(crate) fn add(&mut self, random: &mut RandomSource, now: Instant, address: String) {
        self.addresses.push(address);
        self.stores.push(ReplicaState::new(random, &self.settings, &self.slots, now));
    }

    /// Describes a replica whose data differs from its master's although writes have stopped; `None` if there is no
    /// such replica.
    pub(crate) fn disagreement(&self) -> Option<String> {
        let differs = |host: usize| {
            let master = self.stores[host].upstream()?;
            let (one, other) = (&self.stores[host], &self.stores[master]);
            let same = one.position().id == other.position().id
                && one.data_store.digest() == other.data_store.digest();
            (!same).then(|| {
                let (here, there) = (one.position(), other.position());
                format!("host {host} at {here:?} does not hold what host {master} does at {there:?}")
            })
        };
        (0..self.stores.len()).find_map(differs)
    }
}

impl<E: Debug> Simulation<E> {
    pub(crate) fn handle_data_event(&mut self, event: DataEvent) {
        let Some(at) = event.process() else {
            return match event {
                DataEvent::Dialled { link } => self.on_dialled(link),
                DataEvent::Arrives { link, side } => self.deliver_due(link, side),
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
            DataEvent::Begin { request, .. } => self.begin_write(host, request),
            DataEvent::Leave { key, .. } => self.empty_slot(host, key),
            DataEvent::Imported { import, outcome, .. } => self.end_import(host, &import, outcome),
            DataEvent::End { command, .. } => self.end_write(host, command),
            DataEvent::Published { .. } => self.publish_role(host),
            DataEvent::NextMessage { .. } => self.take_messages(host),
            DataEvent::Start { stream, under_way, .. } => self.start_following(host, stream, under_way),
            DataEvent::Apply { .. } => self.apply_command_batch(host),
            DataEvent::File { .. } => self.work_on_file(host),
            DataEvent::Stop { .. } => self.drive_stop(host),
            DataEvent::Loaded { .. } => self.on_loaded(host),
            DataEvent::TakeSnapshot { transfer, peers, eof, .. } => {
                self.take_snapshot(host, transfer, peers, eof);
            }
            DataEvent::Written { transfer, .. } => self.written(host, transfer),
            DataEvent::LogGrown { peer, .. } => self.send_log(host, peer),
            DataEvent::Tick { .. } => self.tick_data(host),
            DataEvent::Dialled { .. } | DataEvent::Arrives { .. } => {}
        }
        self.plan_data_tick(host);
    }

    /// Returns the current incarnation of a process.
    pub(super) fn process(&self, host: usize) -> Process {
        Process { host, incarnation: self.processes[host].incarnation }
    }

    /// Returns whether a client's write to this slot would be accepted now.
    pub(crate) fn takes_writes(&self, host: usize, key: Key) -> bool {
        self.data.stores[host].data_store.takes_writes(key, self.wall_of(host))
    }

    /// Pauses client writes until the given time of the process's clock, or without a time limit.
    pub(crate) fn pause_writes(&self, host: usize, purpose: PausePurpose, until: Option<Instant>) {
        let engine = self.data.stores[host].engine();
        let until = until.map_or(Millis(i64::MAX), |until| Millis(WALL + until.as_millis() as i64));
        engine.pauses.pause(&engine.settings, purpose, PauseMode::Writes, until);
    }

    /// Ends a pause of client writes.
    pub(crate) fn resume_writes(&self, host: usize, purpose: PausePurpose) {
        let engine = self.data.stores[host].engine();
        engine.pauses.unpause(&engine.settings, purpose);
    }

    /// Schedules an event at a random time within the next `micros` microseconds.
    fn data_within(&mut self, micros: u64, event: DataEvent) {
        let at = self.now + Duration::from_micros(self.random.below(micros as usize + 1) as u64);
        self.schedule_data(at, event);
    }

    /// Returns the wall-clock time of a process.
    pub(crate) fn wall_of(&self, host: usize) -> Millis {
        Millis(WALL + self.clock_of(host).as_millis() as i64)
    }

    /// Returns the monotonic time of a process.
    pub(crate) fn clock_of(&self, host: usize) -> Instant {
        self.now + self.processes[host].clock_offset
    }

    /// Ends a process. With `keeps_files`, it can restart from its files. With `notifies_peers`, its host still runs
    /// and closes the connections of the process.
    pub(crate) fn end_data(&mut self, host: usize, kept: bool, told: bool) {
        self.break_links(host, told);
        let now = self.clock_of(host);
        let fresh = ReplicaState::new(&mut self.random, &self.data.settings, &self.data.slots, now);
        let store = &mut self.data.stores[host];
        let file = store.file.take();
        *store = store.restarted(fresh, kept);
        if let Some(file) = file {
            self.find_file(host, file, kept, told);
        }
        self.check_invariants(host, DataChange::Restarted { keeps_data: kept });
    }

    /// Starts a process in its role. A master takes a new replication id, because writes after the end of its file are
    /// lost.
    pub(crate) fn begin_data(&mut self, host: usize) {
        self.publish_role(host);
        let own = self.new_history();
        let store = &mut self.data.stores[host];
        store.set_node_flag(NodeFlags::LOADING, store.load.is_some());
        if store.upstream().is_none() && store.log.is_open() {
            store.log.change_id(own);
        }
        self.tell_file_of_log(host);
        self.plan_data_tick(host);
    }

    /// Occasionally saves RDB files, expires keys and injects disk faults. Lets blocked clients continue.
    pub(crate) fn run_maintenance(&mut self) {
        for host in 0..self.data.stores.len() {
            if self.random.percent(2) && self.is_running(host) {
                self.data.stores[host].save();
            }
            if self.random.percent(10) && self.is_running(host) {
                self.expire(host);
            }
            if self.is_running(host) {
                self.try_disk(host);
            }
            if self.is_running(host) && !self.data.stores[host].is_loading() {
                self.block_client(host);
                self.end_waits_for_copies(host);
                self.break_within_transaction(host);
            }
        }
    }

    /// Records that `master` no longer counts this process as its replica, or that no process does if `master` is
    /// `None`.
    pub(crate) fn remove_replica(&mut self, host: usize, by: Option<usize>) {
        self.check_invariants(host, DataChange::Forgotten { master: by });
    }

    fn trace_data(&mut self, host: usize, text: impl FnOnce(&ReplicaState) -> String) {
        let text = text(&self.data.stores[host]);
        self.trace(|| format!("data of {host}: {text}"));
    }

    fn new_history(&mut self) -> ReplId {
        self.random.history()
    }

    fn has_injected_bug(&self, injected_bug: InjectedBug) -> bool {
        self.plan.injected_bug == Some(injected_bug)
    }

    /// Passes an event about a process's data to the invariants.
    pub(crate) fn check_invariants(&mut self, host: usize, what: DataChange) {
        let Data { stores, invariants, .. } = &mut self.data;
        let seen = DataObservation { host, store: &stores[host], change: what };
        let found: Vec<_> = invariants
            .iter_mut()
            .filter_map(|(rule, invariant)| Some((*rule, invariant.check(&seen).err()?)))
            .collect();
        for (rule, violation) in found {
            self.record_violation(rule, &violation);
        }
    }
}
