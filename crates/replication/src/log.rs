//! The replication log: all changes in order, as commands in wire form.
//!
//! An offset counts the bytes of the stream since its history began. Offsets continue across replication ids: a
//! promoted replica takes a new id and retains the old one as its second id, valid up to the offset of the promotion,
//! so that replicas of the old master can continue with a partial synchronisation.
//!
//! As in Redis, no bytes are retained or counted until the log has a reader ([`Log::open`]). From then on the log
//! retains the newest [`Log::set_capacity`] bytes (`repl-backlog-size`), plus older bytes that a cursor has not read
//! yet. A cursor that falls too far behind is dropped.
//!
//! On the wire, a replica requests the first byte that it lacks by its number, counted from one. In this module a
//! position is the number of bytes before it, which is one less. Only [`Log::resume_offset`] and [`Log::retained_range`] use
//! wire offsets.

mod chunks;
mod file_version;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use slot_routing::ReplOffset;

use crate::id::ReplId;
use crate::write_authority::{StreamEpoch, WriteAuthority, WriteMode};
use chunks::Chunks;
pub use file_version::{FileVersion, FileVersions, StreamRange};

/// How many bytes a cursor of this node itself, rather than of a replica, may fall behind.
const LOCAL_CURSOR_BOUND_BYTES: u64 = 1 << 30;

/// A position in a replication history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplPosition {
    /// The history that the offset refers to.
    pub id: ReplId,
    /// The number of bytes of the stream before this position.
    pub offset: ReplOffset,
}

/// Identifies a reader of the log; ids are not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CursorId(u64);

/// The bytes that the cursor would read next are no longer retained: the cursor was too slow, or the history was
/// replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what the cursor would read next is no longer kept")]
pub struct CursorLostError;

/// The stream is no longer current: this node was promoted or follows another master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this node does not follow that master any more")]
pub struct StreamSupersededError;

/// Why a replica needs a full synchronisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FullSyncReason {
    /// The replica requested a full synchronisation.
    #[error("it asks for a full resynchronisation")]
    Requested,
    /// The replica's replication id is neither the current nor the second one.
    #[error("its replication id belongs to neither history")]
    OtherHistory,
    /// The replica has the second replication id, but its offset is past the end of that history.
    #[error("the offset it asks for lies after the end of the older history")]
    PastSecondHistory,
    /// The log is closed, so there is no backlog.
    #[error("no backlog is kept")]
    NoBacklog,
    /// The replica's offset is not in the backlog: it is too old or beyond the end.
    #[error("the offset it asks for is outside of the backlog")]
    OutsideBacklog,
}

/// The replication log. It is shared behind a lock; appending only copies bytes.
#[derive(Debug)]
pub struct Log {
    id: ReplId,
    /// The previous replication id, and the last offset at which its history equals the current one.
    second_history: Option<ReplPosition>,
    end_offset: ReplOffset,
    /// The retained bytes; `None` while the log is closed.
    retained_bytes: Option<Chunks>,
    capacity: u64,
    /// How many bytes a cursor may fall behind before it is dropped; zero means no bound.
    cursor_bound_bytes: u64,
    cursors: BTreeMap<CursorId, ReplOffset>,
    /// Cursors of this node itself, such as that of the append-only file. They have a bound of their own.
    local_cursors: BTreeSet<CursorId>,
    /// The cursor of the append-only file, if it has one.
    file_cursor: Option<CursorId>,
    file_versions: FileVersions,
    /// Whether a cursor has been dropped since the last call of [`Log::take_lost_cursor_flag`].
    has_lost_cursor: bool,
    next_cursor_id: u64,
    /// The database selected in the stream, if known.
    selected_db: Option<u16>,
    authority: WriteAuthority,
}

impl Log {
    /// Creates a closed log at offset zero of a new history.
    #[must_use]
    pub fn new(id: ReplId, capacity: u64) -> Self {
        Self {
            id,
            second_history: None,
            end_offset: ReplOffset(0),
            retained_bytes: None,
            capacity,
            cursor_bound_bytes: 0,
            cursors: BTreeMap::new(),
            local_cursors: BTreeSet::new(),
            file_cursor: None,
            file_versions: FileVersions::default(),
            has_lost_cursor: false,
            next_cursor_id: 0,
            selected_db: None,
            authority: WriteAuthority::default(),
        }
    }

    /// Returns the authority that decides who may write to the data and the log.
    #[must_use]
    pub fn authority(&self) -> &WriteAuthority {
        &self.authority
    }

    /// Starts a new stream of a master and refuses local writes; see [`WriteAuthority::demote`].
    pub fn demote(&mut self) -> StreamEpoch {
        self.authority.demote()
    }

    /// Accepts the data of this stream from now on ([`WriteAuthority::admit_stream`]). Returns the position from which
    /// the master should continue, or `None` if the data belongs to no history.
    ///
    /// # Errors
    /// A newer stream has replaced this one.
    pub fn accept_stream(
        &mut self,
        stream_epoch: StreamEpoch,
    ) -> Result<Option<ReplPosition>, StreamSupersededError> {
        if !self.authority.admit_stream(stream_epoch) {
            return Err(StreamSupersededError);
        }
        Ok(self.is_open().then(|| self.position()))
    }

    /// Makes this node a master ([`WriteAuthority::promote`]) whose history continues under the new id. The next append
    /// selects its database again. Returns false if the node already was a master.
    pub fn promote(&mut self, id: ReplId) -> bool {
        let promoted = self.authority.promote();
        if promoted && self.is_open() {
            self.change_id(id);
        }
        promoted
    }

    /// Refuses all writes before an exit; see [`WriteAuthority::seal`].
    pub fn seal(&mut self) {
        self.authority.seal();
    }

    /// Accepts writes again after a cancelled exit; see [`WriteAuthority::unseal`].
    pub fn unseal(&mut self) {
        self.authority.unseal();
    }

    /// Returns the end of the log.
    #[must_use]
    pub fn position(&self) -> ReplPosition {
        ReplPosition { id: self.id, offset: self.end_offset }
    }

    /// Returns the second replication id and the offset up to which the id is valid.
    #[must_use]
    pub fn second_history(&self) -> Option<ReplPosition> {
        self.second_history
    }

    /// Returns the size of the backlog in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Sets the size of the backlog in bytes.
    pub fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
        self.trim();
    }

    /// Sets how many bytes a cursor may fall behind before it is dropped; zero means no bound. Smaller bounds than the
    /// capacity have no effect.
    pub fn set_cursor_bound(&mut self, bytes: u64) {
        self.cursor_bound_bytes = bytes;
    }

    /// Returns whether the log retains bytes and counts offsets.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.retained_bytes.is_some()
    }

    /// Returns the number of the first retained byte, counted from one, and the number of retained bytes.
    #[must_use]
    pub fn retained_range(&self) -> Option<(u64, u64)> {
        let kept = self.retained_bytes.as_ref()?;
        Some((kept.start_offset() + 1, kept.len()))
    }

    /// Returns the number of bytes that are retained beyond the capacity for slow cursors.
    #[must_use]
    pub fn len_beyond_capacity(&self) -> u64 {
        // Only whole chunks are freed, so up to one chunk more than the capacity is normal.
        let capacity = self.capacity.saturating_add(chunks::CHUNK_SIZE as u64);
        self.retained_bytes.as_ref().map_or(0, |kept| kept.len().saturating_sub(capacity))
    }

    /// Returns the memory allocated beyond the capacity, in bytes.
    #[must_use]
    pub fn memory_beyond_capacity(&self) -> u64 {
        let kept = self
            .retained_bytes
            .as_ref()
            .map_or(0, |kept| kept.allocated_bytes().saturating_sub(self.capacity));
        kept + self.file_versions.command_bytes()
    }

    /// Opens the log. Changes made while it was closed were not counted, so the history gets a new id. Must not run
    /// concurrently with writes.
    pub fn open(&mut self, id: ReplId) {
        if self.retained_bytes.is_none() {
            self.id = id;
            self.second_history = None;
            self.retained_bytes = Some(Chunks::new(self.end_offset.0));
            self.file_versions.clear();
            self.selected_db = None;
        }
    }

    /// Closes the log after it had no reader for `repl-backlog-ttl`.
    pub fn close(&mut self) {
        self.retained_bytes = None;
        self.drop_cursors();
    }

    fn drop_cursors(&mut self) {
        self.cursors.clear();
        self.local_cursors.clear();
        self.file_cursor = None;
        self.file_versions.clear();
    }

    /// Appends the effects of local commands that ran in database `db`, and returns the end of the log. Does nothing
    /// while the log is closed or local effects are not logged ([`WriteAuthority::logs_local_effects`]).
    pub fn append(&mut self, db: u16, commands: &[u8]) -> ReplOffset {
        self.append_with_file_versions(db, commands, &[])
    }

    /// Appends like [`Log::append`], but the append-only file gets other commands in place of some ranges of
    /// `commands`. The ranges must be in ascending order and end at command boundaries.
    pub fn append_with_file_versions(
        &mut self,
        db: u16,
        commands: &[u8],
        ranges: &[StreamRange],
    ) -> ReplOffset {
        if !self.authority.logs_local_effects() {
            return self.end_offset;
        }
        if self.retained_bytes.is_some() && self.selected_db != Some(db) {
            self.selected_db = Some(db);
            let mut select = Vec::with_capacity(32);
            let number = db.to_string();
            resp::encode_request(&mut select, [&b"SELECT"[..], number.as_bytes()]);
            self.push(&select);
        }
        if self.file_cursor.is_some() {
            self.file_versions.add_ranges(self.end_offset, ranges);
        }
        self.push(commands);
        self.end_offset
    }

    /// Returns the commands that the append-only file has in place of ranges beginning at `from` or later. Versions
    /// that the file has already synced are dropped.
    pub fn file_versions(&self, from: ReplOffset) -> impl Iterator<Item = &FileVersion> {
        self.file_versions.versions_from(from)
    }

    /// Appends a command that changes no data (PING, REPLCONF GETACK), for the replicas.
    pub fn append_control(&mut self, bytes: &[u8]) -> ReplOffset {
        if self.authority.logs_local_effects() {
            self.push(bytes);
        }
        self.end_offset
    }

    /// Appends bytes of the master's stream unchanged, so that this replica's log equals the master's. Returns false
    /// and drops the bytes if the stream was superseded or is not accepted yet.
    pub fn append_stream(&mut self, stream_epoch: StreamEpoch, bytes: &[u8]) -> bool {
        let taken = self.authority.accepts_stream(stream_epoch);
        if taken {
            self.push(bytes);
        }
        taken
    }

    fn push(&mut self, bytes: &[u8]) {
        if let Some(kept) = &mut self.retained_bytes {
            kept.push(bytes);
            self.end_offset.0 += bytes.len() as u64;
            self.trim();
        }
    }

    /// Makes the next append start with a SELECT, for a new reader that does not know the selected database.
    pub fn reset_selected_db(&mut self) {
        self.selected_db = None;
    }

    /// Returns the oldest offset at which a cursor may be without exceeding the bound in bytes; a bound of zero allows
    /// every offset.
    fn oldest_allowed_offset(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.end_offset.0.saturating_sub(bound.max(self.capacity)) }
    }

    /// Frees the bytes that are beyond the capacity and that no cursor within its bound needs.
    fn trim(&mut self) {
        let (farthest, own) = (
            self.oldest_allowed_offset(self.cursor_bound_bytes),
            self.oldest_allowed_offset(LOCAL_CURSOR_BOUND_BYTES),
        );
        let Some(kept) = &mut self.retained_bytes else { return };
        let mut from = self.end_offset.0.saturating_sub(self.capacity);
        if from <= kept.start_offset() {
            return;
        }
        for (cursor, position) in &self.cursors {
            let bound = if self.local_cursors.contains(cursor) { own } else { farthest };
            from = from.min(position.0.max(bound));
        }
        let start = kept.start_offset();
        kept.trim(from);
        // Cursors that an earlier call dropped are not reported again.
        let lost = start..kept.start_offset();
        self.has_lost_cursor |=
            !lost.is_empty() && self.cursors.values().any(|position| lost.contains(&position.0));
    }

    /// Returns the offset from which a replica with this replication id continues if its first missing byte is
    /// `first_byte`.
    ///
    /// # Errors
    /// The replica needs a full synchronisation.
    pub fn resume_offset(&self, id: &[u8], first_byte: i64) -> Result<ReplOffset, FullSyncReason> {
        if id == b"?" {
            return Err(FullSyncReason::Requested);
        }
        let id = ReplId::parse(id).map_err(|_| FullSyncReason::OtherHistory)?;
        let offset = first_byte.checked_sub(1).and_then(|offset| u64::try_from(offset).ok());
        let offset = offset.ok_or(FullSyncReason::OutsideBacklog)?;
        if id != self.id {
            let second =
                self.second_history.filter(|second| second.id == id).ok_or(FullSyncReason::OtherHistory)?;
            if offset > second.offset.0 {
                return Err(FullSyncReason::PastSecondHistory);
            }
        }
        let kept = self.retained_bytes.as_ref().ok_or(FullSyncReason::NoBacklog)?;
        // The log may retain more bytes than the cursor bound allows. A cursor beyond the bound would be dropped at
        // once, and the replica would reconnect for ever.
        let from = kept.start_offset().max(self.oldest_allowed_offset(self.cursor_bound_bytes));
        if offset < from || offset > self.end_offset.0 {
            return Err(FullSyncReason::OutsideBacklog);
        }
        Ok(ReplOffset(offset))
    }

    /// Adds a cursor at `offset`. The log retains the bytes from there on, up to the cursor bound.
    pub fn add_cursor(&mut self, offset: ReplOffset) -> CursorId {
        self.next_cursor_id += 1;
        let cursor = CursorId(self.next_cursor_id);
        self.cursors.insert(cursor, offset);
        cursor
    }

    /// Adds the cursor of the append-only file at `offset`, and retains the file's versions of later ranges.
    pub fn add_file_cursor(&mut self, offset: ReplOffset) -> CursorId {
        let cursor = self.add_local_cursor(offset);
        self.file_cursor = Some(cursor);
        cursor
    }

    /// Adds a cursor for this node itself (its append-only file). Its bound is larger than a replica's, because a lost
    /// cursor costs a rewrite of the append-only file instead of a resynchronisation.
    pub fn add_local_cursor(&mut self, offset: ReplOffset) -> CursorId {
        let cursor = self.add_cursor(offset);
        self.local_cursors.insert(cursor);
        cursor
    }

    /// Moves a cursor forward and frees the bytes that no cursor needs any more.
    pub fn move_cursor(&mut self, cursor: CursorId, offset: ReplOffset) {
        if let Some(position) = self.cursors.get_mut(&cursor) {
            *position = offset;
            if self.file_cursor == Some(cursor) {
                self.file_versions.forget_before(offset);
            }
            self.trim();
        }
    }

    /// Removes a cursor. Removing it twice is harmless.
    pub fn remove_cursor(&mut self, cursor: CursorId) {
        self.cursors.remove(&cursor);
        self.local_cursors.remove(&cursor);
        if self.file_cursor == Some(cursor) {
            self.file_cursor = None;
            self.file_versions.clear();
        }
        self.trim();
    }

    /// Reads up to `max` bytes into `out` and advances the cursor. Reads nothing at the end of the log.
    ///
    /// # Errors
    /// The bytes are no longer retained: the cursor was too slow, or the history was replaced.
    pub fn read(
        &mut self,
        cursor: CursorId,
        max_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), CursorLostError> {
        let position = self.cursors.get_mut(&cursor).ok_or(CursorLostError)?;
        let kept = self
            .retained_bytes
            .as_ref()
            .filter(|kept| position.0 >= kept.start_offset())
            .ok_or(CursorLostError)?;
        if position.0 > self.end_offset.0 {
            return Err(CursorLostError);
        }
        position.0 += kept.read(position.0, max_bytes, out) as u64;
        self.trim();
        Ok(())
    }

    /// Reads exactly `len` bytes at offset `from` into `out`. The caller must have a cursor at or before `from`.
    ///
    /// # Errors
    /// The bytes are no longer retained.
    pub fn read_exact_at(
        &self,
        from: ReplOffset,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), CursorLostError> {
        let kept = self
            .retained_bytes
            .as_ref()
            .filter(|kept| from.0 >= kept.start_offset())
            .ok_or(CursorLostError)?;
        let before = out.len();
        if from <= self.end_offset {
            kept.read(from.0, len, out);
        }
        if out.len() - before == len { Ok(()) } else { Err(CursorLostError) }
    }

    /// Returns the offset of a cursor; `None` if its history was replaced.
    #[must_use]
    pub fn cursor_offset(&self, cursor: CursorId) -> Option<ReplOffset> {
        self.cursors.get(&cursor).copied()
    }

    /// Returns whether the bytes from `offset` on are still retained.
    #[must_use]
    pub fn retains(&self, offset: ReplOffset) -> bool {
        self.retained_bytes.as_ref().is_some_and(|kept| kept.start_offset() <= offset.0)
    }

    /// Returns whether a cursor was dropped since the last call. The reader of an idle cursor would not notice
    /// otherwise.
    pub fn take_lost_cursor_flag(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_cursor)
    }

    /// Returns the number of bytes that the cursor has not read yet.
    ///
    /// # Errors
    /// The cursor was dropped.
    pub fn unread_bytes(&self, cursor: CursorId) -> Result<u64, CursorLostError> {
        let position = self.cursors.get(&cursor).ok_or(CursorLostError)?;
        self.end_offset.0.checked_sub(position.0).ok_or(CursorLostError)
    }

    /// Adopts a master's replication id and offset after a full synchronisation. Drops all cursors, because the
    /// retained bytes belong to another history.
    pub fn adopt_history(&mut self, position: ReplPosition) {
        self.id = position.id;
        self.second_history = None;
        self.end_offset = position.offset;
        self.retained_bytes = Some(Chunks::new(position.offset.0));
        self.drop_cursors();
        self.selected_db = None;
    }

    /// Adopts a master's history ([`Log::adopt_history`]) after its snapshot was loaded. If this node was promoted
    /// during the load, the history continues under the new id `new_id`.
    pub fn adopt_loaded_history(&mut self, position: ReplPosition, new_id: ReplId) {
        self.adopt_history(position);
        if self.authority.mode() == WriteMode::Master {
            self.change_id(new_id);
        }
    }

    /// Continues the history under another id: that of a promoted master after a partial synchronisation, or a new id
    /// where later writes may differ from those of other nodes. The old id stays valid up to the current end of the
    /// log. Cursors are dropped, because replicas would count later bytes under the old id.
    pub fn change_id(&mut self, id: ReplId) {
        if id != self.id {
            self.second_history = Some(self.position());
            self.id = id;
            self.cursors.retain(|cursor, _| self.local_cursors.contains(cursor));
        }
        self.selected_db = None;
    }

    /// Starts a new history from which no replica can continue, because this node lacks data that other nodes with the
    /// old id have.
    pub fn start_new_history(&mut self, id: ReplId) {
        self.change_id(id);
        self.second_history = None;
    }
}
