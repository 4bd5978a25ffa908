//! The master's side: the replication thread, which serves replicas, and what a replica's connection says.

use std::fmt::Debug;

use gossip::Copies;
use replication::master::{Action, Input, PeerId, TransferId};
use replication::replica;
use replication::{CursorId, Position, Profile, PsyncRequest, Replconf};
use resp::{Args, Batch, Limits, Parser};
use slot_routing::ReplOffset;

use super::following::Follower;
use super::link::Item;
use super::{Event, LOCKED, What};
use crate::Plant;
use crate::lane::Next;
use crate::stage::Stage;

/// The end of every snapshot.
const MARK: &str = "mark5678901234567890mark5678901234567890";

/// The messages to the replication thread.
pub(super) enum Message {
    Follow(Box<Follower>),
    Unfollow,
    HistoryReplaced,
    Joined { peer: PeerId, profile: Profile, request: PsyncRequest },
    Acknowledged { peer: PeerId, offset: ReplOffset },
    Closed { peer: PeerId },
    Cut { transfer: TransferId, position: Position, cursors: Vec<(PeerId, CursorId)>, snapshot: String },
    Sent { peer: PeerId },
}

/// A connection that a replica made.
pub(super) struct Peer {
    link: u64,
    pub(super) host: usize,
    profile: Profile,
    input: Vec<u8>,
    cursor: Option<CursorId>,
    /// It gets the log.
    streams: bool,
    /// Somebody will look whether there is something for it.
    awaited: bool,
    /// The snapshot for it, until its first line has gone out.
    snapshot: Option<String>,
}

impl Peer {
    pub(super) fn new(link: u64, host: usize) -> Self {
        Self {
            link,
            host,
            profile: Profile::default(),
            input: Vec::new(),
            cursor: None,
            streams: false,
            awaited: false,
            snapshot: None,
        }
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
            Message::Follow(follower) => {
                self.serve(host, Input::Role { master: false });
                self.follow(host, *follower);
            }
            Message::Unfollow => {
                if !self.planted(Plant::EndlessStream) {
                    self.stop_following(host);
                }
                self.serve(host, Input::Role { master: true });
                self.serve(host, Input::HistoryReplaced);
            }
            Message::HistoryReplaced => self.serve(host, Input::HistoryReplaced),
            Message::Joined { peer, profile, request } => self.join(host, peer, profile, &request),
            Message::Acknowledged { peer, mut offset } => {
                if self.planted(Plant::CountedEarly) {
                    offset = self.data.stores[host].offset();
                }
                self.serve(host, Input::Acknowledged { peer, offset, synced: None });
                if let Some(replica) = self.data.stores[host].peers.get(&peer).map(|peer| peer.host) {
                    self.see(host, What::Confirmed { replica, offset });
                }
            }
            Message::Closed { peer } => self.serve(host, Input::Closed { peer }),
            Message::Cut { transfer, position, cursors, snapshot } => {
                for (peer, cursor) in cursors {
                    let store = &mut self.data.stores[host];
                    match store.peers.get_mut(&peer) {
                        Some(peer) => (peer.cursor, peer.snapshot) = (Some(cursor), Some(snapshot.clone())),
                        None => store.log.remove_cursor(cursor),
                    }
                }
                self.serve(host, Input::Cut { transfer, position, db: None });
            }
            Message::Sent { peer } => self.serve(host, Input::Sent { peer }),
        }
    }

    fn join(&mut self, host: usize, id: PeerId, profile: Profile, request: &PsyncRequest) {
        let store = &mut self.data.stores[host];
        let (Some(peer), log) = (store.peers.get_mut(&id), &mut store.log) else { return };
        let resume = log.resume(&request.id, request.first_byte).ok();
        peer.cursor = resume.map(|offset| log.add_cursor(offset));
        let resume = resume.map(|offset| Position { id: log.position().id, offset });
        self.note_data(host, |_| format!("is asked by {id:?} for {request:?} and gives {resume:?}"));
        self.serve(host, Input::Joined { peer: id, profile, resume });
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
        let serves = self.can_serve(host, &args);
        let Some(peer) = self.data.stores[host].peers.get_mut(&id) else { return };
        match &args[0] {
            b"REPLCONF" => match peer.profile.replconf(args) {
                Ok(Replconf::Ack(offset)) => self.tell(host, Message::Acknowledged { peer: id, offset }),
                _ => self.line(host, id, "+OK\r\n".to_owned()),
            },
            b"PSYNC" if !serves => {
                let error = "-NOMASTERLINK Can't SYNC while not connected with my master\r\n";
                self.line(host, id, error.to_owned());
            }
            b"PSYNC" => {
                let request = PsyncRequest::parse(args).expect("a replica asks for a number");
                let profile = peer.profile.clone();
                self.tell(host, Message::Joined { peer: id, profile, request });
            }
            _ => self.line(host, id, "+PONG\r\n".to_owned()),
        }
    }

    /// Whether its data belongs to a history that goes on.
    fn can_serve(&self, host: usize, asked: &Args<'_>) -> bool {
        let store = &self.data.stores[host];
        let has_data = || PsyncRequest::parse(*asked).is_ok_and(|request| request.has_data());
        let may = match store.copies {
            Copies::All => true,
            Copies::WithoutData => !has_data(),
            Copies::None => false,
        };
        may && (store.role.is_none() || store.is_in_sync())
    }

    fn line(&mut self, host: usize, id: PeerId, line: String) {
        if let Some(peer) = self.data.stores[host].peers.get(&id) {
            self.put(peer.link, 0, Item::Bytes(line.into_bytes()));
        }
    }

    fn serve(&mut self, host: usize, input: Input) {
        let now = self.clock_of(host);
        let mut out = Vec::new();
        self.data.stores[host].master.handle(now, input, &mut out);
        for action in out {
            self.act_as_master(host, action);
        }
    }

    fn act_as_master(&mut self, host: usize, action: Action) {
        let at = self.process(host);
        match action {
            Action::Snapshot { transfer, peers, .. } => {
                self.data_within(3000, Event::Cut { at, transfer, peers });
            }
            // It is made for nobody.
            Action::CancelSnapshot { .. } => {}
            // Nobody here asks for two connections.
            Action::EndOffset { .. } | Action::Release { .. } => {}
            Action::FullResync { peer, position } => {
                let Position { id, offset } = position;
                self.line(host, peer, format!("+FULLRESYNC {id} {offset}\r\n$EOF:{MARK}\r\n"));
                let waiting = self.data.stores[host].peers.get_mut(&peer);
                if let Some(snapshot) = waiting.and_then(|peer| peer.snapshot.take()) {
                    self.line(host, peer, format!("{snapshot}{MARK}"));
                    self.tell(host, Message::Sent { peer });
                }
            }
            Action::Continue { peer, id } => {
                let id = id.map(|id| format!(" {id}")).unwrap_or_default();
                self.line(host, peer, format!("+CONTINUE{id}\r\n"));
            }
            Action::Stream { peer: id, .. } => {
                if let Some(peer) = self.data.stores[host].peers.get_mut(&id) {
                    assert!(
                        peer.cursor.is_some(),
                        "who streams has a cursor since it joined or since the cut"
                    );
                    peer.streams = true;
                    self.log_grew(host);
                }
            }
            Action::ShowLife { peer } => self.line(host, peer, "\n".to_owned()),
            Action::Ping => {
                self.data.stores[host].log.append_control(b"*1\r\n$4\r\nPING\r\n");
                self.log_grew(host);
            }
            Action::Close { peer, reason } => {
                self.note_data(host, |_| format!("closes the link of {peer:?}: {reason}"));
                self.close_peer(host, peer);
            }
            Action::CloseLog => self.data.stores[host].log.close(),
        }
    }

    /// A snapshot: what is held and where the log ends, at one moment at which nobody holds a slot.
    pub(super) fn cut(&mut self, host: usize, transfer: TransferId, peers: Vec<PeerId>) {
        if !self.data.stores[host].is_whole() {
            let at = self.process(host);
            return self.data_at(self.now + LOCKED, Event::Cut { at, transfer, peers });
        }
        let fresh = self.new_history();
        let store = &mut self.data.stores[host];
        store.log.open(fresh);
        if store.role.is_none() {
            store.log.forget_db();
        }
        let position = store.log.position();
        let cursors = peers.into_iter().map(|peer| (peer, store.log.add_cursor(position.offset))).collect();
        let snapshot = store.held.text() + &store.moves.text();
        self.see(host, What::Stands);
        self.tell(host, Message::Cut { transfer, position, cursors, snapshot });
    }

    /// Has every replica that has read to the end of the log look again.
    pub(super) fn log_grew(&mut self, host: usize) {
        self.see(host, What::Stands);
        let at = self.process(host);
        let mut woken = Vec::new();
        for (id, peer) in &mut self.data.stores[host].peers {
            if peer.streams && !std::mem::replace(&mut peer.awaited, true) {
                woken.push(*id);
            }
        }
        for peer in woken {
            self.data_within(1000, Event::Grown { at, peer });
        }
    }

    /// The task of a replica's connection sends what the log has for it.
    pub(super) fn send_log(&mut self, host: usize, id: PeerId) {
        let most = self.data.settings.chunk;
        let store = &mut self.data.stores[host];
        let Some(peer) = store.peers.get_mut(&id) else { return };
        peer.awaited = false;
        let Some(cursor) = peer.cursor else { return };
        let mut bytes = Vec::new();
        if store.log.read(cursor, most, &mut bytes).is_err() {
            self.close_peer(host, id);
            return self.tell(host, Message::Closed { peer: id });
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
        let store = &mut self.data.stores[host];
        if let Some(cursor) = store.peers.remove(&id).and_then(|peer| peer.cursor) {
            store.log.remove_cursor(cursor);
        }
        self.tell(host, Message::Closed { peer: id });
    }

    fn close_peer(&mut self, host: usize, id: PeerId) {
        let store = &mut self.data.stores[host];
        let Some(peer) = store.peers.remove(&id) else { return };
        if let Some(cursor) = peer.cursor {
            store.log.remove_cursor(cursor);
        }
        self.hang_up(peer.link, 1);
    }

    /// The time that a machine of the process named has come, unless its thread has something in hand.
    pub(super) fn tick_data(&mut self, host: usize) {
        let now = self.clock_of(host);
        self.data.stores[host].tick_at = None;
        if self.data.stores[host].piece.is_some() {
            return;
        }
        if self.data.stores[host].master.next_deadline().is_some_and(|due| due <= now) {
            self.serve(host, Input::Deadline);
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
        let Some(due) = store.master.next_deadline().into_iter().chain(follower).min() else { return };
        let due = if store.piece.is_some() { now + LOCKED } else { (due - skew).max(now) };
        if store.tick_at.is_none_or(|at| due < at || at < now) {
            store.tick_at = Some(due);
            let at = self.process(host);
            self.data_at(due, Event::Tick { at });
        }
    }
}
