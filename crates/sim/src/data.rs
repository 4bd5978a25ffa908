//! The data of the processes, and its way from one to the other: the real machines of `replication` under the machines
//! that decide the role of each node.
//!
//! The log and its bytes, both sides of PSYNC, the driver of the master's side ([`replication::Serving`]) and
//! [`replication::Authority`] are the node's own. The shell around them is simulated, thread by thread: workers that
//! execute what clients write ([`writes`]), the applier of a master's stream ([`following`]), the connections of
//! replicas and their snapshots ([`serving`]), and the change of the role ([`roles`]). Each step of a thread that others
//! can see half done is an event of its own, so that a seed decides what comes in between: a write is admitted, begins
//! under its slot's lock, and ends; a role is changed in the log, then published, then told to the replication thread; a
//! piece of the stream is applied command by command.
//!
//! The keyspace is a real engine's ([`held`]), and what goes over the wire are its effects and its snapshots. A client's
//! requests are of commands of any type, and go where its answers send them ([`requests`]); the number of the write that
//! comes last is what the invariants look at.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use append_only::FsyncPolicy;
use clock::{Instant, Millis};
use engine::{Gate, PauseMode, PausePurpose};
use migration::Establish;
use replication::master::{PeerId, TransferId};
use replication::{Generation, ReplId};
use slot_routing::SlotSet;

pub(crate) use self::invariants::What;
use self::invariants::{Named, Seen};
use self::link::Link;
use self::requests::Request;
pub(crate) use self::roles::Order;
pub(crate) use self::store::{Key, Store};
pub(crate) use self::whole_moves::Change;
use crate::stage::Stage;
use crate::{Chance, Plant};

mod copies;
mod file;
mod following;
mod held;
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

/// The time of day at which a run begins.
const WALL: i64 = 1_700_000_000_000;
/// A lock that somebody else holds is tried again after this long.
const LOCKED: Duration = Duration::from_micros(300);

/// A step of one of a process's threads, or of the network.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A client's request is here, and takes the lock of its slot.
    Begin {
        at: Process,
        request: Box<Request>,
    },
    /// A slot that is another's is to be left.
    Leave {
        at: Process,
        key: Key,
    },
    /// An import has ended, and a pause kept its keys from being deleted.
    Imported {
        at: Process,
        import: Box<Establish>,
        outcome: Result<(), String>,
    },
    /// Commands that began have been executed.
    End {
        at: Process,
        command: u64,
    },
    /// A new role stands where writes ask for it.
    Published {
        at: Process,
    },
    /// The replication thread takes its next message.
    Inbox {
        at: Process,
    },
    /// A new follower waits for the writes that were under way.
    Start {
        at: Process,
        stream: Generation,
        under_way: BTreeSet<u64>,
    },
    /// The applier applies something of the piece in hand.
    Apply {
        at: Process,
    },
    /// The thread of the append-only file looks for something to do.
    File {
        at: Process,
    },
    /// A process that is to stop is looked at.
    Stop {
        at: Process,
    },
    /// A snapshot has replaced the data.
    Loaded {
        at: Process,
    },
    /// A snapshot is to be cut.
    Cut {
        at: Process,
        transfer: TransferId,
        peers: Vec<PeerId>,
        eof: bool,
    },
    /// A snapshot is in its file.
    Written {
        at: Process,
        transfer: TransferId,
    },
    /// The log may have something for a replica.
    Grown {
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

/// A process and which of its lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    host: usize,
    life: u64,
}

impl Event {
    fn process(&self) -> Option<Process> {
        match self {
            Self::Begin { at, .. }
            | Self::Leave { at, .. }
            | Self::Imported { at, .. }
            | Self::End { at, .. }
            | Self::Published { at }
            | Self::Inbox { at }
            | Self::Start { at, .. }
            | Self::Apply { at }
            | Self::File { at }
            | Self::Stop { at }
            | Self::Loaded { at }
            | Self::Cut { at, .. }
            | Self::Written { at, .. }
            | Self::Grown { at, .. }
            | Self::Tick { at } => Some(*at),
            Self::Dialled { .. } | Self::Arrives { .. } => None,
        }
    }
}

/// The data of all processes.
pub(crate) struct Data {
    pub(crate) stores: Vec<Store>,
    /// Where clients reach each process.
    pub(crate) addresses: Vec<String>,
    links: BTreeMap<u64, Link>,
    linked: u64,
    /// How many writes there have been; each is known by its number.
    writes: u64,
    /// How many requests have begun, again and again.
    begun: u64,
    /// How many different values clients have written beside.
    issued: u64,
    /// The slots that are written to.
    slots: SlotSet,
    settings: Settings,
    invariants: Vec<Named>,
}

/// The settings that are the same for all processes of a run.
#[derive(Debug, Clone, Copy)]
struct Settings {
    /// `repl-backlog-size`.
    backlog: u64,
    /// How far a cursor may fall behind.
    behind: u64,
    /// `repl-diskless-sync`, `dual-channel-replication-enabled`.
    diskless: bool,
    dual_channel: bool,
    /// How much of a stream a replica holds while its snapshot comes over another connection; 0 is no bound.
    held: u64,
    /// The most that goes to a replica at once.
    chunk: usize,
    /// How long a command may take, from its arrival to its slot and from there to its end, in microseconds.
    command: u64,
    /// How long some commands of the stream may take.
    apply: u64,
    /// `appendonly yes` on some, with this `appendfsync`.
    appendfsync: Option<FsyncPolicy>,
    /// `replica-read-only no`.
    writable_replicas: bool,
    /// `cluster-enabled`.
    clustered: bool,
}

impl Data {
    /// Data in these slots, of a cluster or not.
    pub(crate) fn new(chance: &mut Chance, slots: SlotSet, clustered: bool) -> Self {
        let settings = Settings {
            backlog: chance.pick(&[0, 2000, 12_000, 1 << 20]),
            behind: chance.pick(&[16_000, 1 << 20]),
            diskless: chance.percent(70),
            dual_channel: chance.percent(50),
            held: chance.pick(&[0, 1200]),
            chunk: chance.pick(&[50, 500, 1 << 16]),
            command: chance.pick(&[2000, 2000, 20_000]),
            apply: chance.pick(&[100, 100, 3000, 15_000]),
            appendfsync: chance.pick(&[
                None,
                None,
                Some(FsyncPolicy::Always),
                Some(FsyncPolicy::EverySecond),
            ]),
            writable_replicas: chance.percent(30),
            clustered,
        };
        Self {
            stores: Vec::new(),
            addresses: Vec::new(),
            links: BTreeMap::new(),
            linked: 0,
            writes: 0,
            begun: 0,
            issued: 0,
            slots,
            settings,
            invariants: invariants::all(),
        }
    }

    /// One more process, a master that holds nothing.
    pub(crate) fn add(&mut self, chance: &mut Chance, now: Instant, address: String) {
        self.addresses.push(address);
        self.stores.push(Store::new(chance, &self.settings, &self.slots, now));
    }

    /// A replica that does not hold what its master holds, now that nothing is written any more.
    pub(crate) fn disagreement(&self) -> Option<String> {
        let differs = |host: usize| {
            let master = self.stores[host].upstream()?;
            let (one, other) = (&self.stores[host], &self.stores[master]);
            let same = one.position().id == other.position().id && one.held.digest() == other.held.digest();
            (!same).then(|| {
                let (here, there) = (one.position(), other.position());
                format!("host {host} at {here:?} does not hold what host {master} does at {there:?}")
            })
        };
        (0..self.stores.len()).find_map(differs)
    }
}

impl<E: Debug> Stage<E> {
    pub(crate) fn happen_to_data(&mut self, event: Event) {
        let Some(at) = event.process() else {
            return match event {
                Event::Dialled { link } => self.on_dialled(link),
                Event::Arrives { link, side } => self.pump(link, side),
                _ => {}
            };
        };
        if !self.lives(at.host, at.life) {
            return;
        }
        if let Some(until) = self.frozen_until(at.host) {
            return self.data_at(until, event);
        }
        let host = at.host;
        match event {
            Event::Begin { request, .. } => self.begin_write(host, request),
            Event::Leave { key, .. } => self.leave(host, key),
            Event::Imported { import, outcome, .. } => self.end_import(host, &import, outcome),
            Event::End { command, .. } => self.end_write(host, command),
            Event::Published { .. } => self.publish_role(host),
            Event::Inbox { .. } => self.take_messages(host),
            Event::Start { stream, under_way, .. } => self.start_following(host, stream, under_way),
            Event::Apply { .. } => self.apply_some(host),
            Event::File { .. } => self.work_on_file(host),
            Event::Stop { .. } => self.drive_stop(host),
            Event::Loaded { .. } => self.on_loaded(host),
            Event::Cut { transfer, peers, eof, .. } => self.cut(host, transfer, peers, eof),
            Event::Written { transfer, .. } => self.written(host, transfer),
            Event::Grown { peer, .. } => self.send_log(host, peer),
            Event::Tick { .. } => self.tick_data(host),
            Event::Dialled { .. } | Event::Arrives { .. } => {}
        }
        self.plan_data_tick(host);
    }

    /// The present life of a process.
    pub(super) fn process(&self, host: usize) -> Process {
        Process { host, life: self.processes[host].life }
    }

    /// Whether a client's write to this slot would be taken now.
    pub(crate) fn takes_writes(&self, host: usize, key: Key) -> bool {
        self.data.stores[host].held.takes_writes(key, self.wall_of(host))
    }

    /// Has clients' writes wait until this time by the clock of the process.
    pub(crate) fn hold_writes(&self, host: usize, purpose: PausePurpose, until: Option<Instant>) {
        let engine = self.data.stores[host].engine();
        let until = until.map_or(Millis(i64::MAX), |until| Millis(WALL + until.as_millis() as i64));
        engine.pauses.pause(&engine.settings, purpose, PauseMode::Writes, until);
    }

    /// They wait no longer.
    pub(crate) fn let_write(&self, host: usize, purpose: PausePurpose) {
        let engine = self.data.stores[host].engine();
        engine.pauses.unpause(&engine.settings, purpose);
    }

    /// Plans a step for some time within so many microseconds.
    fn data_within(&mut self, micros: u64, event: Event) {
        let at = self.now + Duration::from_micros(self.chance.below(micros as usize + 1) as u64);
        self.data_at(at, event);
    }

    /// The time of day by the clock of a process.
    pub(crate) fn wall_of(&self, host: usize) -> Millis {
        Millis(WALL + self.clock_of(host).as_millis() as i64)
    }

    /// By the clock of a process.
    pub(crate) fn clock_of(&self, host: usize) -> Instant {
        self.now + self.processes[host].skew
    }

    /// A process has ended, and will start again from its file, if that is kept. `told`: its machine lives, and says so
    /// to the processes that it was connected to.
    pub(crate) fn end_data(&mut self, host: usize, kept: bool, told: bool) {
        self.break_links(host, told);
        let now = self.clock_of(host);
        let fresh = Store::new(&mut self.chance, &self.data.settings, &self.data.slots, now);
        let store = &mut self.data.stores[host];
        let file = store.file.take();
        *store = store.restarted(fresh, kept);
        if let Some(file) = file {
            self.find_file(host, file, kept, told);
        }
        self.see(host, What::Restarted { kept });
    }

    /// A process has started and knows what it is, so that it serves. A master takes a new name, since what it wrote
    /// after its file is lost.
    pub(crate) fn begin_data(&mut self, host: usize) {
        self.publish_role(host);
        let own = self.new_history();
        let store = &mut self.data.stores[host];
        store.set_gate(Gate::LOADING, store.load.is_some());
        if store.upstream().is_none() && store.log.is_open() {
            store.log.rename(own);
        }
        self.tell_file(host, None);
        self.plan_data_tick(host);
    }

    /// Now and then a file is written, and keys go that are past their time.
    pub(crate) fn keep_house(&mut self) {
        for host in 0..self.data.stores.len() {
            if self.chance.percent(2) && self.runs(host) {
                self.data.stores[host].save();
            }
            if self.chance.percent(10) && self.runs(host) {
                self.expire(host);
            }
            if self.runs(host) {
                self.try_disk(host);
            }
            if self.runs(host) && !self.data.stores[host].is_loading() {
                self.let_wait(host);
                self.end_waits_for_copies(host);
                self.break_within_transaction(host);
            }
        }
    }

    /// A process, or everybody, knows another as its replica no longer.
    pub(crate) fn forget_copy(&mut self, host: usize, by: Option<usize>) {
        self.see(host, What::Forgotten { by });
    }

    fn note_data(&mut self, host: usize, text: impl FnOnce(&Store) -> String) {
        let text = text(&self.data.stores[host]);
        self.note(|| format!("data of {host}: {text}"));
    }

    fn new_history(&mut self) -> ReplId {
        self.chance.history()
    }

    fn planted(&self, plant: Plant) -> bool {
        self.plan.plant == Some(plant)
    }

    /// Shows the invariants what has become of a process's data.
    pub(crate) fn see(&mut self, host: usize, what: What) {
        let Data { stores, invariants, .. } = &mut self.data;
        let seen = Seen { host, store: &stores[host], what };
        let found: Vec<_> = invariants
            .iter_mut()
            .filter_map(|(rule, invariant)| Some((*rule, invariant.check(&seen).err()?)))
            .collect();
        for (rule, violation) in found {
            self.violate(rule, &violation);
        }
    }
}
