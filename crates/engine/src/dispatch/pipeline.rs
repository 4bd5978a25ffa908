//! Pipelined requests of one read: the dispatcher's state across commands.
//!
//! While the log has readers, a slot changed by a command stays locked until the effects of several commands are
//! appended together ([`Pipeline::release_completed`]): at the end of the batch, and before anything that waits or may
//! be slow. This takes the log's mutex once per group and keeps the log in execution order within each slot.

use keyspace::SlotGuard;
use slot_routing::Slot;
use smallvec::SmallVec;

use super::{LockedAhead, MAX_BYTES_LOCKED_AHEAD, PREFETCH_BATCH};
use crate::command::Context;

/// Maximum capacity in bytes that the push message buffer retains after use.
const MAX_KEPT_PUSH_CAPACITY: usize = 16 * 1024;

/// State across the commands of a batch.
pub(super) struct Pipeline<'a> {
    pub(super) context: Context<'a>,
    /// Slots that were locked for prefetching and stay locked for later commands.
    pub(super) locked_ahead: LockedAhead<'a>,
    /// When the previous command finished, on the worker's clock.
    pub(super) last_finish: u64,
    /// Slots changed by commands whose effects are not appended yet.
    held_slots: SmallVec<[SlotGuard<'a>; PREFETCH_BATCH]>,
    /// Whether the running command changed slots that must stay locked until its effects are appended.
    pub(super) holds_changed_slots: bool,
    /// Whether the command was already fed to MONITOR clients.
    pub(super) is_shown: bool,
}

impl<'a> Pipeline<'a> {
    #[inline(always)]
    pub(super) fn new(context: Context<'a>) -> Self {
        Self {
            last_finish: (context.worker.clock_nanos)(),
            context,
            locked_ahead: SmallVec::new(),
            held_slots: SmallVec::new(),
            holds_changed_slots: false,
            is_shown: false,
        }
    }

    /// Releases the slots of the completed command, or leaves them locked until its effects are appended.
    #[inline(always)]
    pub(super) fn release_or_keep_slots(&mut self) {
        if self.holds_changed_slots {
            self.keep_slots_locked();
        }
        self.context.slots.release();
        self.context.global_lock = None;
    }

    fn keep_slots_locked(&mut self) {
        match self.context.slots.take_single() {
            Some(guard) if self.context.worker.effects.completed_len() < MAX_BYTES_LOCKED_AHEAD => {
                self.held_slots.push(guard);
                self.holds_changed_slots = false;
            }
            guard => {
                self.release_completed();
                drop(guard);
            }
        }
    }

    /// Reuses a slot that is still locked for an earlier command; returns whether there was one.
    #[cold]
    pub(super) fn take_held_slot(&mut self, slot: Slot) -> bool {
        let Some(place) = self.held_slots.iter().position(|guard| guard.slot() == slot) else { return false };
        self.context.slots.put_single(self.held_slots.swap_remove(place));
        self.holds_changed_slots = true;
        true
    }

    /// Appends the effects of completed commands and releases their slots.
    #[inline]
    pub(super) fn release_completed(&mut self) {
        if self.context.worker.effects.completed_len() > 0 {
            self.context.append_effects(self.context.session.db());
        }
        self.held_slots.clear();
        self.holds_changed_slots = false;
    }

    /// Releases all locks, of completed and of later commands.
    pub(super) fn release_all(&mut self) {
        self.release_completed();
        self.context.slots.release();
        self.locked_ahead.clear();
    }

    /// Returns the nanoseconds since the previous command finished, and restarts the measurement.
    #[inline(always)]
    pub(super) fn lap_nanos(&mut self) -> u64 {
        let end = (self.context.worker.clock_nanos)();
        let nanos = end.saturating_sub(self.last_finish);
        self.last_finish = end;
        nanos
    }

    /// Returns whether the session's time slice was over when the last measured command finished.
    #[inline(always)]
    pub(super) fn is_time_slice_over(&self) -> bool {
        self.last_finish >= self.context.session.time_slice_end()
    }

    /// Waits, without locks, until no affected client still runs requests with its old permissions. Returns whether
    /// this client may continue.
    #[cold]
    pub(super) fn await_revoked(&mut self) -> bool {
        self.release_all();
        let Context { engine, worker, session, .. } = &mut self.context;
        let revoked = std::mem::take(&mut worker.revoked_clients);
        // Mark this client as not running: another thread that revokes permissions may be waiting for it, which would
        // deadlock.
        session.end_requests();
        engine.await_revoked(&revoked);
        session.begin_turn();
        engine.check_session(session)
    }

    /// Drops the reply that begins at `reply_start` if the client suppressed it (CLIENT REPLY), but not push messages.
    pub(super) fn apply_reply_suppression(&mut self, start: usize) {
        let Context { session, reply, worker, .. } = &mut self.context;
        if session.is_mute() {
            reply.truncate(start);
        }
        reply.raw(&worker.push_messages);
        worker.push_messages.clear();
        worker.push_messages.shrink_to(MAX_KEPT_PUSH_CAPACITY);
        session.end_suppression();
    }
}

/// Logs changes before their slots are unlocked, on every exit path.
impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        self.release_completed();
    }
}
