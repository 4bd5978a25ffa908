//! The master's side: the replication thread, which does what the driver ([`replication::Serving`]) orders, and what a
//! replica's connection says.

use std::fmt::Debug;

use gossip::Copies;
use replication::master::{PeerId, TransferId};
use replication::replica;
use replication::serving::{self, Cut, Input, Order};
use replication::{CursorId, Generation, Profile, PsyncRequest, Replconf};
use resp::{Args, Batch, Limits, Parser};

use super::link::Item;
use super::store::Store;
use super::{Event, LOCKED, What};
use crate::Plant;
use crate::lane::Next;
use crate::stage::Stage;

/// The end of every snapshot.
const MARK: &str = "mark5678901234567890mark5678901234567890";

/// The messages to the replication thread.
pub(super) enum Message {
    Follow(Generation),
    Unfollow,
    /// The driver's own.
    Serve(Input),
}

/// A connection that a replica made.
pub(super) struct Peer {
    link: u64,
    pub(super) host: usize,
    /// Which of its lives made it.
    life: u64,
    profile: Profile,
    input: Vec<u8>,
    /// It gets the log from here on.
    streams: Option<CursorId>,
    /// Somebody will look whether there is something for it.
    awaited: bool,
    /// The snapshot that was taken for it, until it is sent.
    snapshot: Option<Vec<u8>>,
}

impl Peer {
    pub(super) fn new(link: u64, host: usize, life: u64) -> Self {
        let (profile, input) = (Profile::default(), Vec::new());
        Self { link, host, life, profile, input, streams: None, awaited: false, snapshot: None }
    }
}

impl<E: Debug> Stage<E> {
    /// Puts a message behind the others.
    pub(super) fn tell(&mut self, host: usize, message: Message) {
        let at = self.now + self.chance.millis(0, 1);
        if let Some(due) = self.data.stores[host].inbox.push(at, message) {
            let at = self.process(host);
            self.data_at(due, Event::Inbox { at });
        }
    }

    /// The replication thread is also the one that applies, so it takes no message in the middle of a piece.
    pub(super) fn take_messages(&mut self, host: usize) {
        loop {
            let store = &mut self.data.stores[host];
            let held = store.piece.is_some().then_some(LOCKED);
            match store.inbox.next(self.now, held) {
                Next::Nothing => return,
                Next::At(at) => {
                    let process = self.process(host);
                    return self.data_at(at, Event::Inbox { at: process });
                }
                Next::Item(message) => self.on_message(host, message),
            }
        }
    }

    fn on_message(&mut self, host: usize, message: Message) {
        match message {
            Message::Follow(stream) => {
                self.serve(host, Input::Demoted);
                self.follow(host, stream);
            }
            Message::Unfollow => {
                if !self.planted(Plant::EndlessStream) {
                    self.stop_following(host);
                }
                self.serve(host, Input::Promoted);
            }
            Message::Serve(Input::Acknowledged { peer, mut offset, synced }) => {
                if self.planted(Plant::CountedEarly) {
                    offset = self.data.stores[host].offset();
                }
                self.serve(host, Input::Acknowledged { peer, offset, synced });
                if let Some(replica) = self.living_replica(host, peer) {
                    self.see(host, What::Confirmed { replica, offset });
                }
            }
            Message::Serve(input) => self.serve(host, input),
        }
        self.release_copies(host);
    }

    /// The process that made a connection, if it is still the one that did.
    fn living_replica(&self, host: usize, peer: PeerId) -> Option<usize> {
        let peer = self.data.stores[host].peers.get(&peer)?;
        (self.processes[peer.host].life == peer.life).then_some(peer.host)
    }

    /// A replica's connection brings something.
    pub(super) fn receive(&mut self, host: usize, id: PeerId, bytes: &[u8]) {
        let Some(peer) = self.data.stores[host].peers.get_mut(&id) else { return };
        peer.input.extend_from_slice(bytes);
        let mut input = std::mem::take(&mut peer.input);
        // A sign of life while it loads.
        let signs = input.iter().take_while(|byte| **byte == b'\n').count();
        input.drain(..signs);
        let mut batch = Batch::default();
        let parsed = Parser::new().parse(&mut input, &mut batch, &Limits::default());
        assert_eq!(parsed.error, None, "a replica makes sense");
        for index in 0..batch.len() {
            self.answer(host, id, batch.args(index, &input));
        }
        if let Some(peer) = self.data.stores[host].peers.get_mut(&id) {
            peer.input = input.split_off(parsed.consumed);
        }
    }

    fn answer(&mut self, host: usize, id: PeerId, args: Args<'_>) {
        let serves = self.can_serve(host, id, &args);
        let hands_over = PsyncRequest::parse(args).is_ok_and(|request| request.failover);
        let Store { serving, peers, .. } = &mut self.data.stores[host];
        let Some(peer) = peers.get_mut(&id) else { return };
        match &args[0] {
            b"REPLCONF" => match peer.profile.replconf(args) {
                Ok(Replconf::Ack(offset)) => {
                    let acknowledged = Input::Acknowledged { peer: id, offset, synced: peer.profile.synced };
                    self.tell(host, Message::Serve(acknowledged));
                }
                Ok(Replconf::SnapshotOver(rdb)) => {
                    let answer = match serving.link_channels(&mut peer.profile, rdb) {
                        Ok(()) => "+OK\r\n".to_owned(),
                        Err(error) => format!("-{error}\r\n"),
                    };
                    self.line(host, id, answer);
                }
                _ => self.line(host, id, "+OK\r\n".to_owned()),
            },
            b"PSYNC" | b"SYNC" if !serves && !hands_over => {
                let error = "-NOMASTERLINK Can't SYNC while not connected with my master\r\n";
                self.line(host, id, error.to_owned());
            }
            b"PSYNC" => {
                let request = PsyncRequest::parse(args).expect("a replica asks for a number");
                if request.failover
                    && let Err(error) = self.take_over(host, &request)
                {
                    return self.line(host, id, format!("-{error}\r\n"));
                }
                let Store { serving, log, peers, .. } = &mut self.data.stores[host];
                let Some(peer) = peers.get(&id) else { return };
                if serving.sends_apart(log, &request, &peer.profile).is_some() {
                    return self.line(host, id, "+DUALCHANNELSYNC\r\n".to_owned());
                }
                let profile = peer.profile.clone();
                let asked = Input::Asked { peer: id, profile, request: Some(request) };
                self.tell(host, Message::Serve(asked));
            }
            b"SYNC" => {
                let profile = peer.profile.clone();
                let asked = Input::Asked { peer: id, profile, request: None };
                self.tell(host, Message::Serve(asked));
            }
            _ => self.line(host, id, "+PONG\r\n".to_owned()),
        }
    }

    /// Whether its data belongs to a history that goes on.
    fn can_serve(&self, host: usize, id: PeerId, asked: &Args<'_>) -> bool {
        let store = &self.data.stores[host];
        // A replica that has fetched its snapshot here has this data.
        let fetched = store.peers.get(&id).is_some_and(|peer| peer.profile.snapshot_over.is_some());
        let has_data = || !fetched && PsyncRequest::parse(*asked).is_ok_and(|request| request.has_data());
        let may = match store.copies {
            Copies::All => true,
            Copies::WithoutData => !has_data(),
            Copies::None => false,
        };
        may && store.following.is_in_sync()
    }

    fn line(&mut self, host: usize, id: PeerId, line: String) {
        self.send(host, id, line.into_bytes());
    }

    fn send(&mut self, host: usize, id: PeerId, bytes: Vec<u8>) {
        if let Some(peer) = self.data.stores[host].peers.get(&id) {
            self.put(peer.link, 0, Item::Bytes(bytes));
        }
    }

    fn serve(&mut self, host: usize, input: Input) {
        let now = self.clock_of(host);
        let Store { serving, log, .. } = &mut self.data.stores[host];
        let mut orders = Vec::new();
        serving.handle(now, input, log, &mut orders);
        self.carry_out(host, orders);
    }

    fn carry_out(&mut self, host: usize, orders: Vec<Order>) {
        for order in orders {
            self.serve_as_ordered(host, order);
        }
    }

    fn serve_as_ordered(&mut self, host: usize, order: Order) {
        match order {
            Order::Answered(peer, answer) => {
                self.note_data(host, |_| format!("is asked by {peer:?} and gives {answer:?}"));
            }
            Order::Snapshot { transfer, peers, eof, .. } => {
                let at = self.process(host);
                self.data_within(3000, Event::Cut { at, transfer, peers, eof });
            }
            // It is made for nobody.
            Order::CancelSnapshot(_) => {}
            Order::Send(peer, bytes) => self.send(host, peer, bytes),
            Order::Continue { peer, id } => {
                let states = self.data.stores[host].slot_states();
                self.send(host, peer, serving::continue_with(id, &states));
            }
            Order::SendSnapshot(peer) => {
                let waiting = self.data.stores[host].peers.get_mut(&peer);
                if let Some(snapshot) = waiting.and_then(|peer| peer.snapshot.take()) {
                    self.send(host, peer, snapshot);
                    self.tell(host, Message::Serve(Input::Sent(peer)));
                }
            }
            Order::SendFile { peers, .. } => {
                let Some(snapshot) = self.data.stores[host].snapshot_file.take() else { return };
                for peer in peers {
                    self.send(host, peer, snapshot.clone());
                    self.tell(host, Message::Serve(Input::Sent(peer)));
                }
            }
            Order::Stream(peer, cursor) => {
                if let Some(peer) = self.data.stores[host].peers.get_mut(&peer) {
                    peer.streams = Some(cursor);
                    self.log_grew(host);
                }
            }
            Order::Append(bytes) => {
                self.data.stores[host].log.append_control(bytes);
                self.log_grew(host);
            }
            Order::Close(peer, reason) => {
                self.note_data(host, |_| format!("closes the link of {peer:?}: {reason}"));
                if let Some(peer) = self.data.stores[host].peers.remove(&peer) {
                    self.hang_up(peer.link, 1);
                }
            }
            Order::CloseLog => {
                let store = &mut self.data.stores[host];
                // The file follows it.
                if store.file.is_none() {
                    store.log.close();
                }
            }
        }
    }

    /// A snapshot: what is held and where the log ends, at one moment at which nobody holds a slot.
    pub(super) fn cut(&mut self, host: usize, transfer: TransferId, peers: Vec<PeerId>, eof: bool) {
        if !self.data.stores[host].is_whole() {
            let at = self.process(host);
            return self.data_at(self.now + LOCKED, Event::Cut { at, transfer, peers, eof });
        }
        let fresh = self.new_history();
        let store = &mut self.data.stores[host];
        store.log.open(fresh);
        // All keys are in one database, which a replica knows from its master.
        let db = store.upstream().map(|_| 0);
        let cut = Cut::note(&mut store.log, transfer, &peers, db);
        let data = store.held.snapshot(store.log.position(), &store.slot_states());
        store.imports.repeat_in_log(&mut store.log);
        let (head, tail) =
            if eof { (format!("$EOF:{MARK}\r\n"), MARK) } else { (format!("${}\r\n", data.len()), "") };
        let snapshot = [head.as_bytes(), &data, tail.as_bytes()].concat();
        if eof {
            for peer in peers {
                if let Some(peer) = store.peers.get_mut(&peer) {
                    peer.snapshot = Some(snapshot.clone());
                }
            }
        } else {
            store.snapshot_file = Some(snapshot);
            let at = self.process(host);
            self.data_within(100_000, Event::Written { at, transfer });
        }
        self.see(host, What::Stands);
        self.tell(host, Message::Serve(Input::Cut(cut)));
    }

    /// The file of a snapshot is there whole.
    pub(super) fn written(&mut self, host: usize, transfer: TransferId) {
        self.tell(host, Message::Serve(Input::Written(transfer)));
    }

    /// Whether a replica of `host` still has the life in which it connected last.
    pub(crate) fn is_replica_alive(&self, host: usize, replica: usize) -> bool {
        let mut peers = self.data.stores[host].peers.values().filter(|peer| peer.host == replica);
        peers.next_back().is_some_and(|peer| self.lives(replica, peer.life))
    }

    /// Asks the replicas how far they are.
    pub(crate) fn ask_for_acknowledgements(&mut self, host: usize) {
        let getack = b"*3\r\n$8\r\nREPLCONF\r\n$6\r\nGETACK\r\n$1\r\n*\r\n";
        self.data.stores[host].log.append_control(getack);
        self.log_grew(host);
    }

    /// Has every replica that has read to the end of the log look again.
    pub(super) fn log_grew(&mut self, host: usize) {
        self.see(host, What::Stands);
        let at = self.process(host);
        let mut woken = Vec::new();
        for (id, peer) in &mut self.data.stores[host].peers {
            if peer.streams.is_some() && !std::mem::replace(&mut peer.awaited, true) {
                woken.push(*id);
            }
        }
        for peer in woken {
            self.data_within(1000, Event::Grown { at, peer });
        }
        self.wake_file(host);
    }

    /// The task of a replica's connection sends what the log has for it.
    pub(super) fn send_log(&mut self, host: usize, id: PeerId) {
        let most = self.data.settings.chunk;
        let store = &mut self.data.stores[host];
        let Some(peer) = store.peers.get_mut(&id) else { return };
        peer.awaited = false;
        let Some(cursor) = peer.streams else { return };
        let mut bytes = Vec::new();
        if store.log.read(cursor, most, &mut bytes).is_err() {
            let link = peer.link;
            self.hang_up(link, 1);
            return self.lose_peer(host, id);
        }
        let more = store.log.pending(cursor).is_ok_and(|pending| pending > 0);
        peer.awaited = more;
        let link = peer.link;
        if !bytes.is_empty() {
            self.put(link, 0, Item::Bytes(bytes));
        }
        if more {
            let at = self.process(host);
            self.data_within(200, Event::Grown { at, peer: id });
        }
    }

    /// The connection of a replica is gone.
    pub(super) fn lose_peer(&mut self, host: usize, id: PeerId) {
        self.data.stores[host].peers.remove(&id);
        self.tell(host, Message::Serve(Input::Closed(id)));
    }

    /// The time that a machine of the process named has come, unless its thread has something in hand.
    pub(super) fn tick_data(&mut self, host: usize) {
        let now = self.clock_of(host);
        self.data.stores[host].tick_at = None;
        if self.data.stores[host].piece.is_some() {
            return;
        }
        if self.data.stores[host].serving.next_deadline().is_some_and(|due| due <= now) {
            self.serve(host, Input::Deadline);
        }
        if self.data.stores[host].next_look().is_some_and(|due| due <= now) {
            let Store { serving, log, .. } = &mut self.data.stores[host];
            let mut orders = Vec::new();
            // Writers take no heed: they are few.
            serving.look(now, log, &mut orders);
            self.carry_out(host, orders);
        }
        if self.follower_is_due(host).is_some_and(|due| due <= now) {
            self.drive(host, replica::Input::Deadline);
        }
    }

    /// Plans the call that the machines of a process want next, unless an earlier one is planned.
    pub(super) fn plan_data_tick(&mut self, host: usize) {
        if !self.processes[host].up {
            return;
        }
        let (now, skew) = (self.now, self.processes[host].skew);
        let follower = self.follower_is_due(host);
        let store = &mut self.data.stores[host];
        let wanted = [store.serving.next_deadline(), store.next_look(), follower];
        let Some(due) = wanted.into_iter().flatten().min() else { return };
        let due = if store.piece.is_some() { now + LOCKED } else { (due - skew).max(now) };
        if store.tick_at.is_none_or(|at| due < at || at < now) {
            store.tick_at = Some(due);
            let at = self.process(host);
            self.data_at(due, Event::Tick { at });
        }
    }
}
