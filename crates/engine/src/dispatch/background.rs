//! Background execution: decides whether a command runs here or, being slow, on a background worker.
//!
//! The decision is made while the command's slots are locked: by its estimate ([`crate::Command::with_estimate`]), for
//! scripts by the duration of earlier runs, and for EXEC by the sum of its commands. A slow request does not run here:
//! its connection moves to a background worker ([`DispatchStatus::Offload`]) and runs it there like any other request.
//! Everything that can happen to a waiting connection can therefore also happen during the move.

use std::cell::Cell;
use std::time::Duration;

use clock::Millis;
use resp::Args;
use slot_routing::Slot;

use super::transaction::queued_commands;
use super::{DispatchStatus, PrefetchedRequest};
use crate::command::{CommandRunner, Context, EstimateInput, LockScope, RegisteredCommand};
use crate::engine::{Engine, Worker};
use crate::long_commands::LongCommandSlots;
use crate::outcome::{CommandOutcome, OffloadReason};
use crate::scripting::Runnable;
use crate::session::{BackgroundMode, CommandOrigin, Session};
use crate::settings::NodeFlags;
use crate::transaction::Transaction;
use keyspace::LockedSlots;

/// Scripts that run for less than this are not recorded as slow.
pub(super) const MIN_RECORDED_NANOS: u64 = 250_000;

/// A command that waits longer than this for a slot lock lets its worker serve other connections: it continues to wait
/// in the background, after the connections that are there already.
const MAX_UNINTERRUPTED_WAIT: Duration = Duration::from_millis(2);

impl Engine {
    /// Returns whether a request must move to a background worker and is not on one yet.
    #[inline(never)]
    pub(super) fn must_move_to_background(
        &self,
        context: &Context<'_>,
        entry: &RegisteredCommand,
        args: Args<'_>,
        node_flags: NodeFlags,
    ) -> bool {
        let may_be_long = entry.command.estimate.is_some()
            || matches!(entry.command.runner, CommandRunner::Script(_))
            || entry.command.lock_scope == LockScope::EachSlot
            || node_flags.contains(NodeFlags::BACKGROUND);
        may_be_long
            && context.session.background().can_be_offloaded()
            // While a script blocks the server, clients get the busy error and do not wait behind the script.
            && !node_flags.contains(NodeFlags::BUSY)
            && self.exceeds_slow_threshold(context, entry, args)
    }

    #[inline(never)]
    fn exceeds_slow_threshold(
        &self,
        context: &Context<'_>,
        entry: &RegisteredCommand,
        args: Args<'_>,
    ) -> bool {
        let threshold = self.scheduling.long_commands.threshold();
        let estimate = match entry.command.runner {
            CommandRunner::Script(_) => {
                context.worker.scripting.next_script.as_ref().map_or(0, Runnable::mean_nanos)
            }
            _ => self.estimate_nanos(context, &context.slots, entry, args),
        };
        estimate >= threshold
    }

    /// Estimates the duration of a command with locked slots, in nanoseconds.
    fn estimate_nanos(
        &self,
        context: &Context<'_>,
        slots: &LockedSlots<'_>,
        entry: &RegisteredCommand,
        args: Args<'_>,
    ) -> u64 {
        if !entry.command.accepts_word_count(args.len()) {
            return 0;
        }
        let (db, now) = (context.session.db(), context.now);
        let estimated = EstimateInput { args, command: entry.command, engine: self, slots, db, now };
        entry.command.estimate.map_or(0, |estimate| estimate(&estimated))
    }

    /// Returns whether a transaction must move to a background worker and is not on one yet.
    pub(super) fn transaction_must_move_to_background(
        &self,
        context: &Context<'_>,
        slots: &LockedSlots<'_>,
        queue: &Transaction,
    ) -> bool {
        if !context.session.background().can_be_offloaded()
            || self.settings.node_flags().contains(NodeFlags::BUSY)
        {
            return false;
        }
        let of_one = |(entry, request): (&RegisteredCommand, &resp::Request)| match entry.command.runner {
            CommandRunner::Script(_) => {
                let found =
                    self.find_cached_script(&context.worker.scripting, entry.command.name, request.args());
                found.map_or(0, |found| found.mean_nanos())
            }
            _ => self.estimate_nanos(context, slots, entry, request.args()),
        };
        let sum = queued_commands(context.commands, queue).map(of_one).fold(0, u64::saturating_add);
        sum >= self.scheduling.long_commands.threshold()
    }

    /// Registers a request that runs on a background worker, so that other requests for the same slots move to the
    /// background and do not block their own workers.
    #[cold]
    pub(super) fn begin_in_background(
        &self,
        context: &Context<'_>,
        request: &PrefetchedRequest<'_>,
    ) -> LongCommandSlots<'_> {
        let Some(entry) =
            request.command.filter(|entry| entry.command.accepts_word_count(request.args.len()))
        else {
            return self.scheduling.long_commands.register(Vec::new());
        };
        let mut slots = Vec::new();
        match (entry.command.runner, context.session.transaction()) {
            (_, None)
                if entry.command.releases_locks.is_some_and(|does| does(request.args))
                    && context.may_release_slots() => {}
            (CommandRunner::Exec, Some(queue)) => {
                for (entry, request) in queued_commands(context.commands, queue) {
                    slots.extend(self.key_slots(entry, request.args()));
                }
            }
            (_, Some(_)) => {}
            (_, None) => slots.extend(self.key_slots(entry, request.args)),
        }
        if let CommandRunner::Script(_) = entry.command.runner
            && let Some(found) =
                self.find_cached_script(&context.worker.scripting, entry.command.name, request.args)
        {
            found.decay_mean();
        }
        self.scheduling.long_commands.register(slots)
    }

    /// Records the duration of a slow script run that finished at `end`; `nanos` includes the time spent waiting for
    /// slots.
    #[cold]
    #[inline(never)]
    pub(super) fn record_script_time(
        &self,
        worker: &Worker,
        entry: &RegisteredCommand,
        args: Args<'_>,
        end: u64,
        nanos: u64,
    ) {
        if let CommandRunner::Script(_) = entry.command.runner
            && let Some(found) = self.find_cached_script(&worker.scripting, entry.command.name, args)
        {
            found.record_run(nanos.min(end.saturating_sub(worker.scripting.started_at)));
        }
    }

    /// Starts to measure a wait for the locks of these slots; an empty list means all slots.
    pub(crate) fn start_slot_wait<'s>(&'s self, context: &Context<'_>, slots: &'s [Slot]) -> SlotWait<'s> {
        SlotWait {
            engine: self,
            slots,
            is_from_client: context.session.origin() == CommandOrigin::Client,
            background_mode: context.session.background(),
            clock: context.worker.clock_nanos,
            now: context.now,
            wait_start_nanos: Cell::new(context.session.take_slot_wait_start()),
            has_offloaded_clients: Cell::new(false),
        }
    }
}

impl DispatchStatus {
    /// Returns whether the request has not run and will start again.
    pub(super) fn is_deferred(self) -> bool {
        matches!(self, Self::Paused | Self::Offload(_))
    }
}

/// A wait for slot locks, recorded in the statistics when it ends.
pub(crate) struct SlotWait<'s> {
    engine: &'s Engine,
    /// The slots; an empty list means all slots.
    slots: &'s [Slot],
    is_from_client: bool,
    background_mode: BackgroundMode,
    clock: fn() -> u64,
    now: Millis,
    /// When the wait began, perhaps on another worker. `None` while no slot was found locked.
    wait_start_nanos: Cell<Option<u64>>,
    has_offloaded_clients: Cell<bool>,
}

impl SlotWait<'_> {
    /// Returns whether to keep waiting. Clients never wait for a busy script, nor on their own worker behind a slow
    /// command, whether or not that command was expected to be slow. A master's commands always wait.
    pub(crate) fn should_keep_waiting(&self, waited: Duration) -> bool {
        if self.wait_start_nanos.get().is_none() {
            self.wait_start_nanos.set(Some((self.clock)()));
        }
        self.reason_to_give_up(waited).is_none()
    }

    /// Returns what becomes of a command of `session` whose wait was given up.
    #[cold]
    pub(crate) fn outcome(&self, session: &Session) -> CommandOutcome {
        // The reason to give up may have disappeared since the last check.
        let outcome = self.reason_to_give_up(MAX_UNINTERRUPTED_WAIT).unwrap_or_else(|| {
            if self.background_mode.can_be_offloaded() {
                CommandOutcome::Offload(self.lock_reason())
            } else {
                self.engine.busy_error().into()
            }
        });
        if let CommandOutcome::Offload(_) = outcome {
            session.set_slot_wait_start(self.wait_start_nanos.take());
        }
        outcome
    }

    fn reason_to_give_up(&self, waited: Duration) -> Option<CommandOutcome> {
        if self.is_from_client && self.engine.settings.node_flags().contains(NodeFlags::BUSY) {
            return Some(self.engine.busy_error().into());
        }
        let reason = self.lock_reason();
        match self.background_mode {
            BackgroundMode::Unavailable => return None,
            // Commands that need all slots run one after the other anyway. Here they keep their place in the queue for
            // a lock, so that they make progress beside an endless series of slow commands.
            BackgroundMode::Offloaded(OffloadReason::AllSlotsLocked)
                if reason == OffloadReason::AllSlotsLocked =>
            {
                return None;
            }
            BackgroundMode::Offloaded(OffloadReason::SlowCommand)
                if reason != OffloadReason::AllSlotsLocked =>
            {
                return None;
            }
            BackgroundMode::Offloadable | BackgroundMode::Offloaded(_) => {}
        }
        let reason = match reason {
            OffloadReason::AllSlotsLocked => reason,
            _ if self.engine.scheduling.long_commands.uses_any_slot(self.slots) => {
                return Some(CommandOutcome::Offload(OffloadReason::SlowCommand));
            }
            _ => reason,
        };
        (waited >= MAX_UNINTERRUPTED_WAIT).then_some(CommandOutcome::Offload(reason))
    }

    /// Returns the reason for which a command with these slots leaves its worker if a slot stays locked.
    fn lock_reason(&self) -> OffloadReason {
        if self.slots.is_empty() { OffloadReason::AllSlotsLocked } else { OffloadReason::SlotsLocked }
    }

    /// Keeps waiting for a command that has already started and needs the lock. If other commands would give up at this
    /// point, the thread's other clients are moved to another worker.
    pub(crate) fn wait_or_offload(&self, waited: Duration) -> bool {
        if !self.should_keep_waiting(waited) && !self.has_offloaded_clients.replace(true) {
            (self.engine.scripting.hooks.on_busy)();
        }
        true
    }
}

impl Drop for SlotWait<'_> {
    fn drop(&mut self) {
        if let Some(began) = self.wait_start_nanos.get() {
            let nanos = (self.clock)().saturating_sub(began);
            self.engine.diagnostics.slot_waits.record_wait(nanos);
            self.engine.diagnostics.latency.record_if_slow("slot-wait", self.now, nanos);
        }
    }
}
