//! The data of one process.

use std::cell::Ref;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use clock::{Instant, Millis};
use durability::stream::imports::Imports;
use engine::{CapturedKey, CommandError, Engine, Gate, Release, Session};
use gossip::Copies;
use replication::master::{self, OutputLimit, PeerId};
use replication::replica::Replica;
use replication::serving::NextLook;
use replication::wait::OnDisk;
use replication::{Following, Log, Position, ReplId, Serving};
use resp::Value;
use slot_routing::{NodeId, ReplOffset, Slot, SlotSet, SlotsToEmpty};

use super::Settings;
use super::copies::WaitingForCopies;
use super::file::DataFile;
use super::following::{Follower, Load, Piece};
use super::held::Held;
use super::requests::{self, Next, Request};
use super::roles::Order;
use super::serving::{Message, Peer};
use super::slot_moves::SlotMoves;
use super::stopping::Stopping;
use super::waits::Waits;
use crate::Chance;
use crate::clients::Words;
use crate::lane::Lane;

/// The slot of some keys, which stands for them.
pub(crate) type Key = u16;

/// Commands that have run and still hold their slot.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) key: Key,
    /// The changes that go into the log, in two parts: those of the last command are the second.
    pub(super) effects: [Vec<u8>; 2],
    /// The number of the write that is done.
    pub(super) write: Option<u64>,
    /// The rest of the request, and where it is to be done.
    pub(super) rest: Option<(Box<Request>, Next)>,
}

/// A process's data, and the threads that work on it.
pub(crate) struct Store {
    pub(super) held: Held,
    pub(super) log: Log,
    /// The slots that are others' by now.
    pub(super) leaving: SlotsToEmpty,
    /// The slots that are on their way here, or to the master.
    pub(super) imports: Imports,
    pub(super) running: BTreeMap<u64, Running>,
    pub(super) waits: Option<Waits>,
    pub(super) copies_wanted: WaitingForCopies,
    pub(super) stopping: Option<Stopping>,
    pub(super) orders: VecDeque<Order>,
    /// An order has been carried out in the log and is not published yet.
    pub(super) changing: Option<Message>,
    pub(super) following: Following<usize>,
    pub(super) follower: Option<Follower>,
    /// The piece that the applier has in hand: it holds the stream's turn.
    pub(super) piece: Option<Piece>,
    pub(super) load: Option<Load>,
    /// A snapshot that goes to replicas once it is whole.
    pub(super) snapshot_file: Option<Vec<u8>>,
    pub(super) serving: Serving,
    pub(super) peers: BTreeMap<PeerId, Peer>,
    pub(super) inbox: Lane<Message>,
    pub(crate) moves: SlotMoves,
    /// The processes that may copy it.
    pub(crate) copies: Copies,
    /// Its master has asked it to be the master, and it has done so.
    pub(crate) took_over: bool,
    /// The file on disk, and where in a history it stands.
    saved: Option<(Vec<u8>, Position)>,
    /// `appendonly yes`
    pub(super) file: Option<DataFile>,
    pub(super) tick_at: Option<Instant>,
}

impl Store {
    pub(super) fn new(chance: &mut Chance, settings: &Settings, slots: &SlotSet, now: Instant) -> Self {
        let mut log = Log::new(chance.history(), settings.backlog);
        log.set_cursor_bound(settings.behind);
        Self {
            held: Held::nothing(slots, settings.clustered),
            log,
            leaving: SlotsToEmpty::default(),
            imports: Imports::default(),
            running: BTreeMap::new(),
            waits: None,
            copies_wanted: WaitingForCopies::default(),
            stopping: None,
            orders: VecDeque::new(),
            changing: None,
            following: Following::default(),
            follower: None,
            piece: None,
            load: None,
            snapshot_file: None,
            serving: Serving::new(master_config(settings), now),
            peers: BTreeMap::new(),
            inbox: Lane::default(),
            moves: SlotMoves::default(),
            copies: Copies::All,
            took_over: false,
            saved: None,
            file: None,
            tick_at: None,
        }
    }

    /// A process that starts from this one's file, if it has kept it.
    pub(super) fn restarted(&self, mut fresh: Self, kept: bool) -> Self {
        fresh.saved = self.saved.clone().filter(|_| kept);
        if let Some((snapshot, position)) = &fresh.saved {
            fresh.held.load(snapshot);
            fresh.log.adopt(*position);
        }
        fresh
    }

    /// Writes the file, at a cut.
    pub(super) fn save(&mut self) {
        if self.file.is_none() && self.is_whole() && self.log.is_open() {
            let position = self.log.position();
            self.saved = Some((self.held.snapshot(position, ""), position));
        }
    }

    /// Whether its file has all before this offset.
    pub(super) fn is_saved_at(&self, end: ReplOffset) -> bool {
        self.saved.as_ref().is_some_and(|(_, position)| position.offset >= end)
    }

    /// Whether a cut could be made: no command holds a slot, nothing is being applied or loaded.
    pub(super) fn is_whole(&self) -> bool {
        self.running.is_empty() && self.piece.is_none() && self.load.is_none()
    }

    /// When it is looked how far the replicas are behind, by the clock of the process; nothing is due before the log
    /// grows.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let NextLook { past, at } = self.serving.next_look()?;
        past.is_none_or(|end| self.offset() != end).then_some(at)
    }

    pub(super) fn position(&self) -> Position {
        self.log.position()
    }

    pub(crate) fn offset(&self) -> ReplOffset {
        self.position().offset
    }

    /// The part of the log that is on its disk.
    pub(super) fn on_disk(&self) -> OnDisk {
        let synced = |file: &DataFile| file.synced().map_or(OnDisk::Nothing, OnDisk::Upto);
        self.file.as_ref().map_or(OnDisk::NoFile, synced)
    }

    /// How far its data reaches, as others are told.
    pub(crate) fn reach(&self) -> ReplOffset {
        self.following.reach(&self.log)
    }

    /// A replica whose data is a state of no master's.
    pub(crate) fn is_void(&self) -> bool {
        self.upstream().is_some() && !self.log.is_open()
    }

    /// A change of the role has been ordered, and not been carried out.
    pub(crate) fn is_changing_role(&self) -> bool {
        !self.orders.is_empty() || self.changing.is_some()
    }

    /// Returns the master, if this is a replica.
    pub(crate) fn upstream(&self) -> Option<usize> {
        self.following.master().copied()
    }

    /// Whether the master's stream comes.
    pub(crate) fn is_in_sync(&self) -> bool {
        self.upstream().is_some() && self.following.is_in_sync()
    }

    /// Since when the link to the master has been down, by the clock of the process; none while it is up, and on a
    /// master.
    pub(crate) fn down_since(&self) -> Option<Instant> {
        self.following.replica()?.down_since()
    }

    /// The machine that follows the master, if this is a replica.
    pub(crate) fn replica(&self) -> Option<&Replica> {
        self.following.replica()
    }

    /// When the master was last heard; once that is over, since when.
    pub(crate) fn source(&self) -> gossip::Source {
        let Some(machine) = self.following.replica() else { return gossip::Source::Never };
        match machine.down_since() {
            None => gossip::Source::Streaming { last_heard: machine.last_heard() },
            Some(since) if self.following.has_data(&self.log) => gossip::Source::Lost { since },
            Some(_) => gossip::Source::Never,
        }
    }

    /// The replicas that get the stream, and how far each has acknowledged it. Of one that has come again, the last
    /// connection counts.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = (usize, ReplOffset)> + '_ {
        let mut each = BTreeMap::new();
        for (id, peer) in self.serving.master().peers() {
            if let Some(replica) = self.peers.get(&id) {
                each.insert(replica.host, peer.acknowledged.filter(|_| peer.is_online()));
            }
        }
        each.into_iter().filter_map(|(host, acknowledged)| Some((host, acknowledged?)))
    }

    /// Returns the replicas, in step or not yet.
    pub(crate) fn followers(&self) -> impl Iterator<Item = usize> + '_ {
        self.serving.master().peers().filter_map(|(id, _)| Some(self.peers.get(&id)?.host))
    }

    /// The engine, by whose gates and slots commands run here.
    pub(crate) fn engine(&self) -> Ref<'_, Engine> {
        self.held.engine()
    }

    /// Its name in its cluster.
    pub(super) fn me(&self) -> Option<NodeId> {
        self.engine().topology.as_ref().map(|topology| topology.load().myself)
    }

    /// Says that a state of the node holds, or no longer holds.
    pub(crate) fn set_gate(&self, state: Gate, holds: bool) {
        self.engine().settings.set_gate(state, holds);
    }

    pub(super) fn is_loading(&self) -> bool {
        self.engine().settings.gate().contains(Gate::LOADING)
    }

    /// A replica outside of a cluster, where clients may write.
    pub(super) fn writes_for_itself(&self) -> bool {
        let engine = self.engine();
        let gate = engine.settings.gate();
        engine.topology.is_none() && gate.contains(Gate::REPLICA) && !gate.contains(Gate::READ_ONLY_REPLICA)
    }

    /// Runs what a client sends at once, behind ASKING if that is said. Returns what the client does next, if it was not
    /// served, and the effects.
    pub(super) fn serve(
        &mut self,
        session: &mut Session,
        wall: Millis,
        unit: &[Words],
        asking: bool,
    ) -> (Option<Next>, Vec<u8>) {
        let asking = asking.then(|| vec!["ASKING".to_owned()]);
        let sent: Vec<Words> = asking.into_iter().chain(unit.iter().cloned()).collect();
        let (replies, effects) = self.held.serve(session, wall, &sent);
        (requests::next(&replies, sent.len()), effects)
    }

    /// The names of a slot's keys.
    pub(crate) fn names(&self, slot: Slot) -> Vec<Vec<u8>> {
        self.held.names(slot.number())
    }

    pub(crate) fn keys_in_slot(&self, slot: Slot) -> u64 {
        self.engine().keyspace.keys_in_slot(slot) as u64
    }

    pub(crate) fn is_paused(&self, wall: Millis) -> bool {
        let engine = self.engine();
        engine.pauses.end_overdue(&engine.settings, wall).is_some()
    }

    /// Runs what another node sends as a client; returns the replies, and the effects.
    pub(crate) fn receive(&mut self, wall: Millis, requests: Vec<u8>) -> (Vec<Value>, Vec<u8>) {
        self.held.receive(wall, requests)
    }

    /// Has a key go whose value another node has; returns the outcome, and the effects.
    pub(crate) fn release(
        &mut self,
        name: &[u8],
        wall: Millis,
        captured: &CapturedKey,
    ) -> (Result<Release, CommandError>, Vec<u8>) {
        self.held.release(name, wall, captured)
    }

    /// Whether a command holds this slot.
    pub(crate) fn is_locked(&self, key: Key) -> bool {
        self.running.values().any(|running| running.key == key)
    }

    /// The name of its history.
    pub(crate) fn history(&self) -> ReplId {
        self.position().id
    }

    /// The history of the snapshot that is being loaded.
    pub(crate) fn loads(&self) -> Option<ReplId> {
        self.load.as_ref().map(|load| load.position.id)
    }

    /// The commands that hold a slot now. Once they have ended, each slot has been free.
    pub(crate) fn under_way(&self) -> BTreeSet<u64> {
        self.running.keys().copied().collect()
    }

    pub(crate) fn has_drained(&self, under_way: &BTreeSet<u64>) -> bool {
        !under_way.iter().any(|write| self.running.contains_key(write))
    }
}

fn master_config(settings: &Settings) -> master::Config {
    master::Config {
        ping_period: Duration::from_secs(1),
        timeout: Duration::from_secs(4),
        diskless: settings.diskless,
        diskless_delay: Duration::from_millis(20),
        diskless_max_replicas: 0,
        dual_channel: settings.dual_channel,
        backlog_ttl: Duration::from_secs(3600),
        max_lag: Duration::from_secs(10),
        output_limit: OutputLimit { hard: settings.behind, soft: 0, soft_for: Duration::ZERO },
        backlog: settings.backlog,
    }
}
