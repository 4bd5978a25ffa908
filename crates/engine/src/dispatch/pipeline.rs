//! Pipelined requests of one read: the dispatcher's state across commands.
//!
//! While the log has readers, a slot changed by a command stays locked until the effects of several commands are
//! appended together ([`Pipeline::release_completed`]): at the end of the batch, and before anything that waits or may
//! be slow. This takes the log's mutex once per group and keeps the log in execution order within each slot.

use keyspace::SlotGuard;
use slot_routing::Slot;
use smallvec::SmallVec;

use super::{MAX_BATCH_BYTES_WITH_PREFETCH_LOCKS, PREFETCH_BATCH, PrefetchedSlots};
use crate::command::Context;
use crate::transaction::BatchTransactions;

/// Maximum capacity in bytes that the push message buffer retains after use.
const MAX_RETAINED_PUSH_CAPACITY: usize = 16 * 1024;

/// State across the commands of a batch.
pub(super) struct Pipeline<'a> {
    pub(super) context: Context<'a>,
    /// Slots that were locked for prefetching and stay locked for later commands.
    pub(super) prefetched_slots: PrefetchedSlots<'a>,
    /// Time at which the previous command finished, on the worker's clock.
    pub(super) last_finish_nanos: u64,
    /// Slots changed by commands whose effects are not appended yet.
    changed_slots: SmallVec<[SlotGuard<'a>; PREFETCH_BATCH]>,
    /// Whether the running command changed slots that must stay locked until its effects are appended.
    pub(super) has_changed_slots: bool,
    /// Whether the command was already fed to MONITOR clients.
    pub(super) was_fed_to_monitors: bool,
    /// The transactions of the batch.
    pub(super) transactions: &'a BatchTransactions,
}

impl<'a> Pipeline<'a> {
    #[inline(always)]
    pub(super) fn new(context: Context<'a>, transactions: &'a BatchTransactions) -> Self {
        Self {
            last_finish_nanos: (context.worker.clock_nanos)(),
            context,
            prefetched_slots: SmallVec::new(),
            changed_slots: SmallVec::new(),
            has_changed_slots: false,
            was_fed_to_monitors: false,
            transactions,
        }
    }

    /// Releases the slots of the completed command, or leaves them locked until its effects are appended.
    #[inline(always)]
    pub(super) fn release_or_retain_slots(&mut self) {
        if self.has_changed_slots {
            self.retain_slots();
        }
        self.context.slots.release();
        self.context.global_lock = None;
    }

    fn retain_slots(&mut self) {
        match self.context.slots.take_single_guard() {
            Some(guard)
                if self.context.worker.effects.completed_len() < MAX_BATCH_BYTES_WITH_PREFETCH_LOCKS =>
            {
                self.changed_slots.push(guard);
                self.has_changed_slots = false;
            }
            guard => {
                self.release_completed();
                drop(guard);
            }
        }
    }

    /// Reuses a slot that is still locked for an earlier command; returns whether there was one.
    #[cold]
    pub(super) fn reuse_changed_slot(&mut self, slot: Slot) -> bool {
        let Some(place) = self.changed_slots.iter().position(|guard| guard.slot() == slot) else {
            return false;
        };
        self.context.slots.put_single_guard(self.changed_slots.swap_remove(place));
        self.has_changed_slots = true;
        true
    }

    /// Appends the effects of completed commands and releases their slots.
    #[inline]
    pub(super) fn release_completed(&mut self) {
        if self.context.worker.effects.completed_len() > 0 {
            self.context.append_effects(self.context.session.db());
        }
        self.changed_slots.clear();
        self.has_changed_slots = false;
    }

    /// Releases all locks, of completed and of later commands.
    pub(super) fn release_all(&mut self) {
        self.release_completed();
        self.context.slots.release();
        self.prefetched_slots.clear();
    }

    /// Returns the nanoseconds since the previous command finished, and restarts the measurement.
    #[inline(always)]
    pub(super) fn nanos_since_last_command(&mut self) -> u64 {
        let end = (self.context.worker.clock_nanos)();
        let nanos = end.saturating_sub(self.last_finish_nanos);
        self.last_finish_nanos = end;
        nanos
    }

    /// Returns whether the session's time slice was over when the last measured command finished.
    #[inline(always)]
    pub(super) fn is_time_slice_over(&self) -> bool {
        self.last_finish_nanos >= self.context.session.time_slice_end()
    }

    /// Waits, without locks, until no affected client still runs requests with its old permissions. Returns whether
    /// this client may continue.
    #[cold]
    pub(super) fn await_revoked_clients(&mut self) -> bool {
        self.release_all();
        let Context { engine, worker, session, .. } = &mut self.context;
        let revoked = std::mem::take(&mut worker.revoked_clients);
        // Mark this client as not running: another thread that revokes permissions may be waiting for it, which would
        // deadlock.
        session.end_requests();
        engine.await_revoked_clients(&revoked);
        session.begin_requests();
        engine.check_session(session)
    }

    /// Drops the reply that begins at `reply_start` if the client suppressed it (CLIENT REPLY), but not push messages.
    pub(super) fn apply_reply_suppression(&mut self, reply_start: usize) {
        let Context { session, reply, worker, .. } = &mut self.context;
        if session.is_reply_suppressed() {
            reply.truncate(reply_start);
        }
        reply.raw(&worker.push_messages);
        worker.push_messages.clear();
        worker.push_messages.shrink_to(MAX_RETAINED_PUSH_CAPACITY);
        session.end_suppression();
    }
}

/// Logs changes before their slots are unlocked, on every exit path.
impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        self.release_completed();
    }
}
