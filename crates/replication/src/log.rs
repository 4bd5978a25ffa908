//! The log: what changed, in the order in which it changed, as commands in wire form.
//!
//! An offset counts the bytes of the stream since its history began. Offsets go on from one identifier
//! to the next: a promoted replica takes a new identifier and keeps the old one beside it, good up to
//! the offset of its promotion, so that replicas of the old master can go on from where they are.
//!
//! Nothing is kept and nothing counted until somebody reads ([`Log::open`]), as in Redis. Then the log
//! keeps the newest [`Log::set_capacity`] bytes (`repl-backlog-size`), and beyond them what a cursor has
//! still to read, up to a bound after which the cursor falls off.
//!
//! Wire offsets: a replica asks for the number of the first byte that it wants, counted from one. Here
//! a position is the number of bytes before it, so the two differ by one; only [`Log::resume`] and
//! [`Log::first_byte`] speak of the wire's.

mod chunks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use slot_routing::ReplOffset;

use crate::authority::{Authority, Generation, Mode};
use crate::id::ReplId;
use chunks::Chunks;

/// How far behind the end a cursor of this node's own may fall.
const OWN_BOUND: u64 = 1 << 30;

/// A place in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The history.
    pub id: ReplId,
    /// How far into it.
    pub offset: ReplOffset,
}

/// One reader of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CursorId(u64);

/// The cursor was too slow: what it would read next is gone. Or the history it read was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what the cursor would read next is no longer kept")]
pub struct FellOff;

/// The stream is over: this node has been promoted, or follows another master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this node does not follow that master any more")]
pub struct StreamOver;

/// Why a replica cannot go on from where it is and needs everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It asks for everything.
    #[error("it asks for a full resynchronisation")]
    NothingAsked,
    /// Its history is not ours.
    #[error("its replication id belongs to neither history")]
    OtherHistory,
    /// It is past the point where our older history ended.
    #[error("the offset it asks for lies after the end of the older history")]
    PastSecondHistory,
    /// No backlog is kept.
    #[error("no backlog is kept")]
    NoBacklog,
    /// The backlog does not reach back that far, or not yet.
    #[error("the offset it asks for is outside of the backlog")]
    OutsideBacklog,
}

/// The stream of effects. The caller guards it by a lock; an append under it copies bytes and no more.
#[derive(Debug)]
pub struct Log {
    id: ReplId,
    /// The identifier before this one, and the offset up to which both are the same.
    second: Option<Position>,
    end: ReplOffset,
    /// The part of the log that is kept; `None` while nobody reads.
    kept: Option<Chunks>,
    capacity: u64,
    /// How far behind the end a cursor may fall before it is given up; zero for no bound.
    cursor_bound: u64,
    cursors: BTreeMap<CursorId, ReplOffset>,
    /// The cursors of this node itself: their bound is another.
    own: BTreeSet<CursorId>,
    /// A cursor fell off since somebody asked.
    fell_off: bool,
    next_cursor: u64,
    /// The database that the stream has selected, as far as this node knows.
    db: Option<u16>,
    authority: Authority,
}

impl Log {
    /// A log at offset zero of a new history.
    #[must_use]
    pub fn new(id: ReplId, capacity: u64) -> Self {
        Self {
            id,
            second: None,
            end: ReplOffset(0),
            kept: None,
            capacity,
            cursor_bound: 0,
            cursors: BTreeMap::new(),
            own: BTreeSet::new(),
            fell_off: false,
            next_cursor: 0,
            db: None,
            authority: Authority::default(),
        }
    }

    /// Returns the authority: the source whose changes this log, and the data, take.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// [`Authority::demote`]
    pub fn demote(&mut self) -> Generation {
        self.authority.demote()
    }

    /// [`Authority::drained`]: takes what this stream brings from now on. Gives where this node stands, if in a
    /// history at all, from where to ask the master to go on; an error if the stream is over already.
    ///
    /// # Errors
    /// The stream is over already.
    pub fn follow(&mut self, stream: Generation) -> Result<Option<Position>, StreamOver> {
        if !self.authority.drained(stream) {
            return Err(StreamOver);
        }
        Ok(self.is_open().then(|| self.position()))
    }

    /// [`Authority::promote`]: the history goes on under a name of this node's own, and the next effect says which
    /// database it is in. Says whether that changes anything.
    pub fn promote(&mut self, id: ReplId) -> bool {
        let promoted = self.authority.promote();
        if promoted && self.is_open() {
            self.rename(id);
        }
        promoted
    }

    /// [`Authority::seal`]
    pub fn seal(&mut self) {
        self.authority.seal();
    }

    /// [`Authority::unseal`]
    pub fn unseal(&mut self) {
        self.authority.unseal();
    }

    /// Where the stream ends now.
    #[must_use]
    pub fn position(&self) -> Position {
        Position { id: self.id, offset: self.end }
    }

    /// The older identifier, and the offset up to which it is good.
    #[must_use]
    pub fn second(&self) -> Option<Position> {
        self.second
    }

    /// How many bytes are kept for replicas that come back.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// How many bytes are kept for replicas that come back.
    pub fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
        self.trim();
    }

    /// How many bytes a cursor may be behind before it falls off; zero for no bound. It is never below
    /// the capacity, since that much is kept anyway.
    pub fn set_cursor_bound(&mut self, bytes: u64) {
        self.cursor_bound = bytes;
    }

    /// Whether the stream is kept and its offset counts.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.kept.is_some()
    }

    /// The number of the first kept byte, counted from one, and how many are kept.
    #[must_use]
    pub fn first_byte(&self) -> Option<(u64, u64)> {
        let kept = self.kept.as_ref()?;
        Some((kept.start() + 1, kept.len()))
    }

    /// How many bytes are kept beyond the capacity, since a cursor has not read them yet.
    #[must_use]
    pub fn len_beyond_capacity(&self) -> u64 {
        // It is let go of chunk by chunk.
        let capacity = self.capacity.saturating_add(chunks::CHUNK as u64);
        self.kept.as_ref().map_or(0, |kept| kept.len().saturating_sub(capacity))
    }

    /// The memory of the log beyond its capacity, in bytes.
    #[must_use]
    pub fn memory_beyond_capacity(&self) -> u64 {
        self.kept.as_ref().map_or(0, |kept| kept.memory().saturating_sub(self.capacity))
    }

    /// Starts to keep the stream. What changed while it was closed was not counted, so the history
    /// gets the new identifier. Must happen while nothing is being changed.
    pub fn open(&mut self, id: ReplId) {
        if self.kept.is_none() {
            self.id = id;
            self.second = None;
            self.kept = Some(Chunks::new(self.end.0));
            self.db = None;
        }
    }

    /// Stops to keep the stream, since nobody has read it for long.
    pub fn close(&mut self) {
        self.kept = None;
        self.cursors.clear();
        self.own.clear();
    }

    /// Appends commands of this node's own in wire form that ran in database `db`; returns where they end. While
    /// nobody reads, or the log is not this node's own to write ([`Authority::logs_own`]), nothing happens.
    pub fn append(&mut self, db: u16, commands: &[u8]) -> ReplOffset {
        if !self.authority.logs_own() {
            return self.end;
        }
        if self.kept.is_some() && self.db != Some(db) {
            self.db = Some(db);
            let mut select = Vec::with_capacity(32);
            let number = db.to_string();
            resp::encode_request(&mut select, [&b"SELECT"[..], number.as_bytes()]);
            self.push(&select);
        }
        self.push(commands);
        self.end
    }

    /// Appends what this node as a master says to its replicas and what is no effect (PING, REPLCONF GETACK).
    pub fn append_control(&mut self, bytes: &[u8]) -> ReplOffset {
        if self.authority.logs_own() {
            self.push(bytes);
        }
        self.end
    }

    /// Appends what the own master sent, byte by byte, so that a replica's log is its master's. What a stream brings
    /// that is over, or not yet taken, is dropped; says whether it was taken.
    pub fn append_stream(&mut self, stream: Generation, bytes: &[u8]) -> bool {
        let taken = self.authority.applies(stream);
        if taken {
            self.push(bytes);
        }
        taken
    }

    fn push(&mut self, bytes: &[u8]) {
        if let Some(kept) = &mut self.kept {
            kept.push(bytes);
            self.end.0 += bytes.len() as u64;
            self.trim();
        }
    }

    /// Says that a reader joins that does not know which database is selected: the next effect will say.
    pub fn forget_db(&mut self) {
        self.db = None;
    }

    /// Where a cursor stands that is as far behind as this bound lets it be; zero is no bound.
    fn farthest(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.end.0.saturating_sub(bound.max(self.capacity)) }
    }

    /// Lets go of what lies before the capacity and before every cursor within the bound.
    fn trim(&mut self) {
        let (farthest, own) = (self.farthest(self.cursor_bound), self.farthest(OWN_BOUND));
        let Some(kept) = &mut self.kept else { return };
        let mut from = self.end.0.saturating_sub(self.capacity);
        if from <= kept.start() {
            return;
        }
        for (cursor, position) in &self.cursors {
            let bound = if self.own.contains(cursor) { own } else { farthest };
            from = from.min(position.0.max(bound));
        }
        let start = kept.start();
        kept.trim(from);
        // Those that fell off before are not told of again.
        let lost = start..kept.start();
        self.fell_off |= !lost.is_empty() && self.cursors.values().any(|position| lost.contains(&position.0));
    }

    /// Where a replica that holds `id` and wants to go on with byte number `first_byte` is to read, if
    /// it can go on at all.
    ///
    /// # Errors
    /// Why it needs everything.
    pub fn resume(&self, id: &[u8], first_byte: i64) -> Result<ReplOffset, Refusal> {
        if id == b"?" {
            return Err(Refusal::NothingAsked);
        }
        let id = ReplId::parse(id).map_err(|_| Refusal::OtherHistory)?;
        let offset = first_byte.checked_sub(1).and_then(|offset| u64::try_from(offset).ok());
        let offset = offset.ok_or(Refusal::OutsideBacklog)?;
        if id != self.id {
            let second = self.second.filter(|second| second.id == id).ok_or(Refusal::OtherHistory)?;
            if offset > second.offset.0 {
                return Err(Refusal::PastSecondHistory);
            }
        }
        let kept = self.kept.as_ref().ok_or(Refusal::NoBacklog)?;
        // More may be kept than a cursor may be behind: who began there would be given up at once, and come back.
        let from = kept.start().max(self.farthest(self.cursor_bound));
        if offset < from || offset > self.end.0 {
            return Err(Refusal::OutsideBacklog);
        }
        Ok(ReplOffset(offset))
    }

    /// A cursor that reads from `at` on. From now on nothing after `at` is let go of, up to the bound.
    pub fn add_cursor(&mut self, at: ReplOffset) -> CursorId {
        self.next_cursor += 1;
        let cursor = CursorId(self.next_cursor);
        self.cursors.insert(cursor, at);
        cursor
    }

    /// A cursor of this node itself (its append-only file). It may be behind by more than a replica's, since what falls
    /// off is a part of this node's memory that nobody else has.
    pub fn add_own_cursor(&mut self, at: ReplOffset) -> CursorId {
        let cursor = self.add_cursor(at);
        self.own.insert(cursor);
        cursor
    }

    /// Moves a cursor; what it leaves behind is let go of.
    pub fn move_cursor(&mut self, cursor: CursorId, to: ReplOffset) {
        if let Some(position) = self.cursors.get_mut(&cursor) {
            *position = to;
            self.trim();
        }
    }

    /// Forgets a cursor. Removing twice does no harm.
    pub fn remove_cursor(&mut self, cursor: CursorId) {
        self.cursors.remove(&cursor);
        self.own.remove(&cursor);
        self.trim();
    }

    /// Appends to `out` up to `max` bytes from the cursor on and moves it past them. Nothing is appended
    /// at the end of the log.
    ///
    /// # Errors
    /// The bytes to be read are gone: the cursor was too slow, or its history was replaced.
    pub fn read(&mut self, cursor: CursorId, max: usize, out: &mut Vec<u8>) -> Result<(), FellOff> {
        let position = self.cursors.get_mut(&cursor).ok_or(FellOff)?;
        let kept = self.kept.as_ref().filter(|kept| position.0 >= kept.start()).ok_or(FellOff)?;
        if position.0 > self.end.0 {
            return Err(FellOff);
        }
        position.0 += kept.read(position.0, max, out) as u64;
        self.trim();
        Ok(())
    }

    /// Appends to `out` the `len` bytes from `from` on, which some cursor keeps.
    ///
    /// # Errors
    /// They are gone.
    pub fn peek(&self, from: ReplOffset, len: usize, out: &mut Vec<u8>) -> Result<(), FellOff> {
        let kept = self.kept.as_ref().filter(|kept| from.0 >= kept.start()).ok_or(FellOff)?;
        let before = out.len();
        if from <= self.end {
            kept.read(from.0, len, out);
        }
        if out.len() - before == len { Ok(()) } else { Err(FellOff) }
    }

    /// Where a cursor stands; `None` if the history that it read was replaced.
    #[must_use]
    pub fn position_of(&self, cursor: CursorId) -> Option<ReplOffset> {
        self.cursors.get(&cursor).copied()
    }

    /// Whether what comes after `at` is still kept.
    #[must_use]
    pub fn keeps(&self, at: ReplOffset) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.start() <= at.0)
    }

    /// Whether a cursor has fallen off since this was asked last: its owner may not notice by itself.
    pub fn take_fell_off(&mut self) -> bool {
        std::mem::take(&mut self.fell_off)
    }

    /// How many bytes the cursor has still to read.
    ///
    /// # Errors
    /// The bytes to be read are gone.
    pub fn pending(&self, cursor: CursorId) -> Result<u64, FellOff> {
        let position = self.cursors.get(&cursor).ok_or(FellOff)?;
        self.end.0.checked_sub(position.0).ok_or(FellOff)
    }

    /// Takes over a master's history after a full synchronisation: its identifier and offset. Nothing
    /// that was kept belongs to it, so every cursor falls off.
    pub fn adopt(&mut self, position: Position) {
        self.id = position.id;
        self.second = None;
        self.end = position.offset;
        self.kept = Some(Chunks::new(position.offset.0));
        self.cursors.clear();
        self.own.clear();
        self.db = None;
    }

    /// [`Log::adopt`] when a master's snapshot has been loaded. If this node was promoted meanwhile, the history goes
    /// on at once under `own`, a name of its own.
    pub fn adopt_loaded(&mut self, position: Position, own: ReplId) {
        self.adopt(position);
        if self.authority.mode() == Mode::Master {
            self.rename(own);
        }
    }

    /// Goes on under another identifier: after a partial resynchronisation the one that the promoted master took, or
    /// one of our own if what follows may differ from what others know. The old one stays good up to here: a replica
    /// that reads on would count what follows under the old name, so every cursor but this node's own falls off.
    pub fn rename(&mut self, id: ReplId) {
        if id != self.id {
            self.second = Some(self.position());
            self.id = id;
            self.cursors.retain(|cursor, _| self.own.contains(cursor));
        }
        self.db = None;
    }

    /// Goes on under a name of this node's own that no other history leads to: the data lacks something that nodes with
    /// the old name have, and they cannot be told what.
    pub fn part(&mut self, id: ReplId) {
        self.rename(id);
        self.second = None;
    }
}
