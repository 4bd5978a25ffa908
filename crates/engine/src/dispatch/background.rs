//! Where a command runs: at once, or on a background worker, since it will take long.
//!
//! It is asked under the locks of the command's slots, of those commands whose rows have an estimate
//! ([`crate::Command::long`]), of scripts by how long they took before, and of EXEC by the sum of its commands. The
//! request is then not run: its connection goes to a background worker with it ([`Flow::Long`]), and runs it there by
//! the same way as any other. So whatever may happen to a connection that waits may happen to it on its way.

use std::cell::Cell;
use std::time::Duration;

use clock::Millis;
use resp::Args;
use slot_routing::Slot;

use super::transaction::queued;
use super::{Flow, Prepared};
use crate::command::{Context, Estimated, Reach, Registered, Run};
use crate::engine::{Engine, Worker};
use crate::error::CommandError;
use crate::long_commands::LongSlots;
use crate::scripting::Runnable;
use crate::session::{Background, Origin};
use crate::settings::Gate;
use crate::transaction::Transaction;
use keyspace::LockedSlots;

/// A script that ran for less than this is not noted to take any time.
pub(super) const NOTED_NANOS: u64 = 250_000;

/// A command that waits for a slot for so long waits on in the background.
const LONG_WAIT: Duration = Duration::from_millis(2);

impl Engine {
    /// Whether a request is to run on a background worker, and its connection is not with one.
    #[inline(never)]
    pub(super) fn goes_to_background(
        &self,
        context: &Context<'_>,
        entry: &Registered,
        args: Args<'_>,
        gate: Gate,
    ) -> bool {
        let may_be_long = entry.command.estimate.is_some()
            || matches!(entry.command.run, Run::Script(_))
            || entry.command.reach == Reach::EachSlot
            || gate.contains(Gate::BACKGROUND);
        may_be_long
            && matches!(context.session.background, Background::Elsewhere | Background::Waiting)
            // While a script keeps the server busy, others are told so, and not left to wait behind it.
            && !gate.contains(Gate::BUSY)
            && self.is_long(context, entry, args)
    }

    #[inline(never)]
    fn is_long(&self, context: &Context<'_>, entry: &Registered, args: Args<'_>) -> bool {
        let threshold = self.long_commands.threshold();
        let estimate = match entry.command.run {
            Run::Script(_) => context.worker.scripting.found.as_ref().map_or(0, Runnable::mean_nanos),
            _ => self.estimate(context, &context.slots, entry, args),
        };
        estimate >= threshold
    }

    /// About how many nanoseconds a command takes whose slots are locked.
    fn estimate(
        &self,
        context: &Context<'_>,
        slots: &LockedSlots<'_>,
        entry: &Registered,
        args: Args<'_>,
    ) -> u64 {
        if !entry.command.accepts(args.len()) {
            return 0;
        }
        let (db, now) = (context.session.db, context.now);
        let estimated = Estimated { args, command: entry.command, engine: self, slots, db, now };
        entry.command.estimate.map_or(0, |estimate| estimate(&estimated))
    }

    /// Whether a queue is to run on a background worker, and its connection is not with one.
    pub(super) fn queue_goes_to_background(
        &self,
        context: &Context<'_>,
        slots: &LockedSlots<'_>,
        queue: &Transaction,
    ) -> bool {
        let may_leave = matches!(context.session.background, Background::Elsewhere | Background::Waiting);
        if !may_leave || self.settings.gate().contains(Gate::BUSY) {
            return false;
        }
        let of_one = |(entry, request): (&Registered, &resp::Request)| match entry.command.run {
            Run::Script(_) => {
                let found = self.runnable(&context.worker.scripting, entry.command.name, request.args());
                found.map_or(0, |found| found.mean_nanos())
            }
            _ => self.estimate(context, slots, entry, request.args()),
        };
        let sum = queued(context.commands, queue).map(of_one).fold(0, u64::saturating_add);
        sum >= self.long_commands.threshold()
    }

    /// A request begins on a background worker: others that want its slots are not to wait for them elsewhere.
    #[cold]
    pub(super) fn begin_in_background(&self, context: &Context<'_>, request: &Prepared<'_>) -> LongSlots<'_> {
        let Some(entry) = request.found.filter(|entry| entry.command.accepts(request.args.len())) else {
            return self.long_commands.begin(Vec::new());
        };
        let mut slots = Vec::new();
        match (entry.command.run, &context.session.transaction) {
            (_, None)
                if entry.command.gives_way.is_some_and(|does| does(request.args)) && context.may_let_go() => {
            }
            (Run::Exec, Some(queue)) => {
                for (entry, request) in queued(context.commands, queue) {
                    slots.extend(self.slots_of(entry, request.args()));
                }
            }
            (_, Some(_)) => {}
            (_, None) => slots.extend(self.slots_of(entry, request.args)),
        }
        if let Run::Script(_) = entry.command.run
            && let Some(found) = self.runnable(&context.worker.scripting, entry.command.name, request.args)
        {
            found.forget_some();
        }
        self.long_commands.begin(slots)
    }

    /// A command that ended at `end` took noteworthy long, `nanos` with its wait for slots: notes for how long the
    /// script ran that it was.
    #[cold]
    #[inline(never)]
    pub(super) fn note_time(
        &self,
        worker: &Worker,
        (entry, args): (&Registered, Args<'_>),
        end: u64,
        nanos: u64,
    ) {
        if let Run::Script(_) = entry.command.run
            && let Some(found) = self.runnable(&worker.scripting, entry.command.name, args)
        {
            found.note_nanos(nanos.min(end.saturating_sub(worker.scripting.began)));
        }
    }

    /// The wait for what others hold, of these slots, or of all where these are none.
    pub(crate) fn slot_wait<'s>(&'s self, context: &Context<'_>, slots: &'s [Slot]) -> SlotWait<'s> {
        SlotWait {
            engine: self,
            slots,
            from_client: context.session.origin == Origin::Client,
            background: context.session.background,
            clock: context.worker.nanos,
            now: context.now,
            began: Cell::new(None),
            has_made_way: Cell::new(false),
        }
    }
}

impl CommandError {
    /// Where the request goes that has not run and is run from its beginning there.
    pub(super) fn put_off(&self) -> Option<Flow> {
        match self {
            Self::HeldForLong => Some(Flow::Long),
            Self::Held => Some(Flow::Held),
            _ => None,
        }
    }
}

impl Flow {
    /// Whether the request has not run and will be run from its beginning.
    pub(super) fn is_put_off(self) -> bool {
        matches!(self, Self::Paused | Self::Long | Self::Held)
    }
}

/// A command's wait for slots. Its time counts when it is over, if there was one.
pub(crate) struct SlotWait<'s> {
    engine: &'s Engine,
    slots: &'s [Slot],
    from_client: bool,
    background: Background,
    clock: fn() -> u64,
    now: Millis,
    began: Cell<Option<u64>>,
    has_made_way: Cell<bool>,
}

impl SlotWait<'_> {
    /// Whether to go on waiting. No client waits for what a busy script holds, nor on its worker for what a long command
    /// does, be it known as one or not. What a master did must be done here, too.
    pub(crate) fn goes_on(&self, waited: Duration) -> bool {
        if self.began.get().is_none() {
            self.began.set(Some((self.clock)()));
        }
        self.end_of_patience(waited).is_none()
    }

    /// The error of a client that was not let wait.
    #[cold]
    pub(crate) fn refusal(&self) -> CommandError {
        // The reason may be gone by now.
        self.end_of_patience(LONG_WAIT).unwrap_or_else(|| match self.background {
            Background::Elsewhere | Background::Waiting => CommandError::Held,
            Background::Here | Background::Unavailable => self.engine.busy(),
        })
    }

    fn end_of_patience(&self, waited: Duration) -> Option<CommandError> {
        if self.from_client && self.engine.settings.gate().contains(Gate::BUSY) {
            return Some(self.engine.busy());
        }
        let can_leave = matches!(self.background, Background::Elsewhere | Background::Waiting);
        if can_leave && self.engine.long_commands.hold_any(self.slots) {
            return Some(CommandError::HeldForLong);
        }
        (self.background == Background::Elsewhere && waited >= LONG_WAIT).then_some(CommandError::Held)
    }

    /// The same of a command that has begun and must have what it waits for: where it would not go on waiting, the
    /// thread's other clients are served elsewhere meanwhile.
    pub(crate) fn makes_way(&self, waited: Duration) -> bool {
        if !self.goes_on(waited) && !self.has_made_way.replace(true) {
            (self.engine.script_hooks.busy)();
        }
        true
    }
}

impl Drop for SlotWait<'_> {
    fn drop(&mut self) {
        if let Some(began) = self.began.get() {
            let nanos = (self.clock)().saturating_sub(began);
            self.engine.slot_waits.note(nanos);
            self.engine.latency.sample("slot-wait", self.now, nanos);
        }
    }
}
