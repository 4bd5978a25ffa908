//! The requests of one read on their way: what the dispatcher keeps from one command to the next.
//!
//! While the log is read, a slot that a command has changed stays locked until the effects of several commands are
//! appended together ([`Pipeline::release_ended`]): at the end of the batch, and before anything is waited for or may
//! take long. So the log's mutex is taken once for them all, and the log's order is each slot's order.

use keyspace::SlotGuard;
use slot_routing::Slot;
use smallvec::SmallVec;

use super::{AHEAD, Ahead, LONG};
use crate::command::Context;
use crate::session::Mute;

/// An empty buffer of push messages keeps at most this room.
const KEEP_PUSHES: usize = 16 * 1024;

/// Commands that run one after another.
pub(super) struct Pipeline<'a> {
    /// The state that handlers work with.
    pub(super) context: Context<'a>,
    /// The slots that are locked for commands to come.
    pub(super) ahead: Ahead<'a>,
    /// When the command before ended, by the worker's clock.
    pub(super) clock: u64,
    /// Slots that were changed by commands whose effects are not appended yet.
    held: SmallVec<[SlotGuard<'a>; AHEAD]>,
    /// The slots that are locked for the command that runs, or has just run, are such slots.
    pub(super) changed: bool,
    /// The command was shown to the monitors.
    pub(super) shown: bool,
}

impl<'a> Pipeline<'a> {
    /// For commands that are run in this context.
    #[inline(always)]
    pub(super) fn new(context: Context<'a>) -> Self {
        Self {
            clock: (context.worker.nanos)(),
            context,
            ahead: SmallVec::new(),
            held: SmallVec::new(),
            changed: false,
            shown: false,
        }
    }

    /// Lets go of the slots of the command that has run, or holds on to them for its effects.
    #[inline(always)]
    pub(super) fn leave_slots(&mut self) {
        if self.changed {
            self.hold_slots();
        }
        self.context.slots.release();
        self.context.turn = None;
    }

    fn hold_slots(&mut self) {
        match self.context.slots.take_single() {
            Some(guard) if self.context.worker.effects.pending() < LONG => {
                self.held.push(guard);
                self.changed = false;
            }
            guard => {
                self.release_ended();
                drop(guard);
            }
        }
    }

    /// Makes a slot that is held on to the one that is locked for the command; says whether it was.
    #[cold]
    pub(super) fn take_held(&mut self, slot: Slot) -> bool {
        let Some(place) = self.held.iter().position(|guard| guard.slot() == slot) else { return false };
        self.context.slots.put_single(self.held.swap_remove(place));
        self.changed = true;
        true
    }

    /// Appends the effects of commands that have ended, and lets go of the slots that are held on to.
    #[inline]
    pub(super) fn release_ended(&mut self) {
        if self.context.worker.effects.pending() > 0 {
            self.context.append_effects(self.context.session.db);
        }
        self.held.clear();
        self.changed = false;
    }

    /// Lets go of everything that is locked, for commands that have run and for commands to come.
    pub(super) fn release_all(&mut self) {
        self.release_ended();
        self.context.slots.release();
        self.ahead.clear();
    }

    /// Nanoseconds since the command before ended; this one has.
    #[inline(always)]
    pub(super) fn lap(&mut self) -> u64 {
        let end = (self.context.worker.nanos)();
        let nanos = end.saturating_sub(self.clock);
        self.clock = end;
        nanos
    }

    /// Whether the session's turn was over when the last command that was counted ended.
    #[inline(always)]
    pub(super) fn is_turn_over(&self) -> bool {
        self.clock >= self.context.session.turn_ends
    }

    /// Waits, with nothing locked, until clients that the command was about do nothing any more by what held before.
    /// Says whether this one may go on itself.
    #[cold]
    pub(super) fn await_revoked(&mut self) -> bool {
        self.release_all();
        let Context { engine, worker, session, .. } = &mut self.context;
        let revoked = std::mem::take(&mut worker.revoked);
        // Another may wait for this one meanwhile.
        session.end_turn();
        engine.await_revoked(&revoked);
        session.begin_turn();
        engine.may_go_on(session)
    }

    /// Takes back a reply that began at `start` if the client does not want it (CLIENT REPLY). What was pushed is none.
    pub(super) fn keep_reply_from(&mut self, start: usize) {
        let Context { session, reply, worker, .. } = &mut self.context;
        if session.is_mute() {
            reply.truncate(start);
        }
        reply.raw(&worker.pushes);
        worker.pushes.clear();
        worker.pushes.shrink_to(KEEP_PUSHES);
        if session.mute == Mute::This {
            session.mute = Mute::Nothing;
        }
    }
}

/// However it ends, nothing of what was changed is free before that is in the log.
impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        self.release_ended();
    }
}
