//! Slot locking and routing: locks a command's slots and then checks that this node serves them.

use clock::Millis;
use keyspace::{FillLevel, GlobalLock, Key, KeyLookup, LockedSlots};
use resp::Args;
use slot_routing::{ClientTransport, Member, Ownership, RouteDecision, RouteRequest, Slot, Topology, route};
use smallvec::SmallVec;

use super::pipeline::Pipeline;
use super::{Invocation, PrefetchedRequest};
use crate::command::{Command, CommandRunner, Context, Flags, LockScope, RegisteredCommand};
use crate::engine::Engine;
use crate::error::CommandError;
use crate::keys::KeyFlags;
use crate::notifications::EventClass;
use crate::outcome::CommandOutcome;
use crate::session::{CommandOrigin, Session};

/// The slots of a command's keys.
pub(super) type KeySlots = SmallVec<[Slot; 16]>;

/// Runs an admitted command with locked slots, unless it would add data to a full slot.
#[inline(always)]
pub(super) fn run_handler<'r, T>(
    context: &mut Context<'r>,
    command: &Command,
    handler: impl FnOnce(&mut Context<'r>) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    if keyspace::was_ever_crowded() {
        check_slot_space(context, command)?;
    }
    if context.is_client_write_on_replica(command) {
        let before = context.key_expiries(command);
        let outcome = run_and_publish_new_keys(context, command, handler);
        context.record_key_expiries(before);
        return outcome;
    }
    run_and_publish_new_keys(context, command, handler)
}

#[inline(always)]
fn run_and_publish_new_keys<'r, T>(
    context: &mut Context<'r>,
    command: &Command,
    handler: impl FnOnce(&mut Context<'r>) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    if context.engine.settings.notified_event_classes().contains(EventClass::NEW) {
        context.record_absent_keys(command);
        let outcome = handler(context);
        context.publish_new_keys();
        return outcome;
    }
    handler(context)
}

/// Refuses a client's write if the slot is too full. The address space for the pages of one slot is limited to a few
/// gigabytes. Commands that may add data are refused above half of it, so that the rest remains for writes that must
/// not fail: replication and copy-on-write for snapshots. Near the end of the address space, clients can only delete.
#[cold]
fn check_slot_space(context: &Context<'_>, command: &Command) -> Result<(), CommandError> {
    const GROWING_USES: KeyFlags = KeyFlags::OW.union(KeyFlags::INSERT).union(KeyFlags::UPDATE);
    if context.session.origin() != CommandOrigin::Client || !command.flags.contains(Flags::WRITE) {
        return Ok(());
    }
    let (args, mut fill_level, mut grows) = (context.args, FillLevel::Free, false);
    command.visit_keys(args, &mut |index, flags| {
        let key = context.engine.keyspace.key(&args[index]);
        // Commands that run on the client's connection lock no slots.
        if context.slots.is_locked(key.slot()) {
            fill_level = fill_level.max(context.slots.slot(key.slot()).fill_level(&key));
        }
        grows |= flags.intersects(GROWING_USES);
    });
    match fill_level {
        FillLevel::Crowded if command.flags.contains(Flags::DENYOOM) => Err(CommandError::SlotFull),
        FillLevel::Full if grows => Err(CommandError::SlotFull),
        FillLevel::Free | FillLevel::Crowded | FillLevel::Full => Ok(()),
    }
}

impl Engine {
    /// Waits for a slot lock held by another thread.
    #[cold]
    fn wait_for_slot<'r>(&'r self, pipeline: &mut Pipeline<'r>, slot: Slot) -> Result<(), CommandOutcome> {
        pipeline.prefetched_slots.clear();
        pipeline.release_completed();
        let wanted = [slot];
        let wait = self.start_slot_wait(&pipeline.context, &wanted);
        match pipeline
            .context
            .slots
            .wait_for_slot(&self.keyspace, slot, &|waited| wait.should_keep_waiting(waited))
        {
            true => Ok(()),
            false => Err(wait.outcome(pipeline.context.session)),
        }
    }

    /// Locks the slots of the command's keys and checks that they are served here.
    #[inline(always)]
    pub(super) fn lock_command_slots<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &PrefetchedRequest<'r>,
        entry: &'static RegisteredCommand,
        asking: bool,
    ) -> Result<(), CommandOutcome> {
        let first = match request.slot() {
            Some(slot) => {
                let touched = pipeline.prefetched_slots.get_mut(request.index).and_then(Option::take);
                if !pipeline.context.slots.try_lock_only(&self.keyspace, slot, touched)
                    && !pipeline.reuse_changed_slot(slot)
                {
                    self.wait_for_slot(pipeline, slot)?;
                }
                Some(slot)
            }
            None if entry.is_lock_free => {
                pipeline.prefetched_slots.clear();
                pipeline.release_completed();
                pipeline.context.slots.release();
                return Ok(());
            }
            None => {
                pipeline.prefetched_slots.clear();
                pipeline.release_completed();
                if self.topology.is_none() && entry.command.has_key_patterns(request.args) {
                    pipeline.context.slots.release();
                    pipeline.context.global_lock = Some(self.take_global_lock(&pipeline.context)?);
                }
                match entry.command.runner {
                    CommandRunner::Engine(_) | CommandRunner::MayBlock(_)
                        if entry.command.lock_scope == LockScope::EachSlot =>
                    {
                        return self.check_routed_scan(&mut pipeline.context, request.args, entry, asking);
                    }
                    CommandRunner::Script(_) => {
                        self.lock_script_slots(&mut pipeline.context, entry, request.args)?
                    }
                    // Commands of the server process and of the client's connection lock their slots themselves.
                    CommandRunner::Shell(_) | CommandRunner::Node(_) => None,
                    CommandRunner::Engine(_)
                    | CommandRunner::MayBlock(_)
                    | CommandRunner::Exec
                    | CommandRunner::Container => {
                        self.lock_key_slots(&mut pipeline.context, entry, request.args)?
                    }
                }
            }
        };
        if let (Some(topology), Some(slot), CommandOrigin::Client) =
            (&self.topology, first, pipeline.context.session.origin())
            && pipeline.context.slots.slot(slot).ownership() != Ownership::Local
        {
            let db = pipeline.context.session.db();
            let call = Invocation { entry, args: request.args, asking, db };
            return Ok(self.check_slot_served(&mut pipeline.context, call, slot, &topology.load())?);
        }
        Ok(())
    }

    /// Checks whether a routed scan may start here. The scan locks each slot itself when it visits the slot.
    fn check_routed_scan<'r>(
        &'r self,
        context: &mut Context<'r>,
        args: Args<'r>,
        entry: &'static RegisteredCommand,
        asking: bool,
    ) -> Result<(), CommandOutcome> {
        context.slots.release();
        let (Some(topology), CommandOrigin::Client) = (&self.topology, context.session.origin()) else {
            return Ok(());
        };
        let slots = self.key_slots(entry, args);
        let Some(first) = slots.first() else { return Ok(()) };
        context.slots = self.lock_slots(context, &slots)?;
        let call = Invocation { entry, args, asking, db: context.session.db() };
        let served = self.check_slot_served(context, call, *first, &topology.load());
        context.slots.release();
        Ok(served?)
    }

    #[cold]
    fn check_slot_served(
        &self,
        context: &mut Context<'_>,
        call: Invocation<'_>,
        slot: Slot,
        topology: &Topology,
    ) -> Result<(), CommandError> {
        let (flags, _) = self.effective_flags(context.worker, call.entry, call.args);
        let Context { session, slots, now, .. } = context;
        let mut access = self.route_request(session, call, flags, slots, *now);
        if session.in_transaction() {
            // Earlier commands of the queue may create or move the keys, so missing keys are counted when EXEC runs.
            // Whether a queued command crosses databases is decided here by the database that was selected before
            // MULTI, as in Valkey; EXEC decides again by the database selected then.
            access.missing_key_count = 0;
        }
        let via = session.client().connection.transport;
        self.check_route(topology, slot, slots.slot(slot).ownership(), access, via)
    }

    /// Locks the slots of a command without a single key at a fixed position; returns the slot used for routing.
    pub(super) fn lock_key_slots<'r>(
        &'r self,
        context: &mut Context<'r>,
        entry: &RegisteredCommand,
        args: Args<'r>,
    ) -> Result<Option<Slot>, CommandOutcome> {
        context.slots.release();
        if entry.command.lock_scope == LockScope::AllSlots {
            context.slots = self.lock_all_slots(context)?;
            return Ok(None);
        }
        if entry.command.lock_scope == LockScope::NamedSlot {
            let named = args.get(2).and_then(resp::parse_i64).and_then(|number| u16::try_from(number).ok());
            // A command with an invalid slot number locks nothing and fails in its handler.
            if let Some(slot) = named.and_then(Slot::new) {
                context.slots = self.lock_slots(context, &[slot])?;
            }
            return Ok(None);
        }
        if entry.command.keys.is_empty() && entry.command.lock_scope != LockScope::FirstArgument {
            return Ok(None);
        }
        let slots = self.hash_keys(context, entry, args);
        if self.topology.is_some() && slots.iter().any(|slot| *slot != slots[0]) {
            return Err(CommandError::CrossSlot.into());
        }
        let wait = self.start_slot_wait(context, &slots);
        if !context.slots.lock_while(&self.keyspace, &slots, &|waited| wait.should_keep_waiting(waited)) {
            return Err(wait.outcome(context.session));
        }
        if context.keys.len() > 1 {
            context.slots.prefetch(context.session.db(), &context.keys);
        }
        Ok(slots.first().copied())
    }

    /// Hashes the command's keys, prefetches their slots, and returns these slots.
    fn hash_keys<'r>(
        &'r self,
        context: &mut Context<'r>,
        entry: &RegisteredCommand,
        args: Args<'r>,
    ) -> KeySlots {
        let keys = &mut context.keys;
        keys.clear();
        entry.command.visit_keys(args, &mut |index, _| {
            let key = self.keyspace.key(args.get(index).expect("a key is one of the words"));
            self.keyspace.prefetch_slot(&key);
            keys.push(key);
        });
        if keys.is_empty() { self.key_slots(entry, args) } else { keys.iter().map(Key::slot).collect() }
    }

    pub(super) fn lock_slots(
        &self,
        context: &Context<'_>,
        slots: &[Slot],
    ) -> Result<LockedSlots<'_>, CommandOutcome> {
        let (mut locked, wait) = (LockedSlots::default(), self.start_slot_wait(context, slots));
        let free = locked.lock_while(&self.keyspace, slots, &|waited| wait.should_keep_waiting(waited));
        free.then_some(locked).ok_or_else(|| wait.outcome(context.session))
    }

    /// Acquires the global script lock.
    pub(crate) fn take_global_lock(&self, context: &Context<'_>) -> Result<GlobalLock<'_>, CommandOutcome> {
        let wait = self.start_slot_wait(context, &[]);
        let turn = self.keyspace.acquire_global_lock_while(&|waited| wait.should_keep_waiting(waited));
        turn.ok_or_else(|| wait.outcome(context.session))
    }

    /// Locks slots together with the script lock, for a command that may need further slots.
    pub(super) fn lock_with_global_lock<'s>(
        &'s self,
        context: &Context<'_>,
        locked: &mut LockedSlots<'s>,
        slots: &[Slot],
    ) -> Result<GlobalLock<'s>, CommandOutcome> {
        let (turn, wait) = (self.take_global_lock(context)?, self.start_slot_wait(context, slots));
        let all = slots
            .iter()
            .all(|slot| locked.add_slot(&turn, *slot, &|waited| wait.should_keep_waiting(waited)));
        if all { Ok(turn) } else { Err(wait.outcome(context.session)) }
    }

    pub(super) fn lock_all_slots(&self, context: &Context<'_>) -> Result<LockedSlots<'_>, CommandOutcome> {
        let (turn, wait) = (self.take_global_lock(context)?, self.start_slot_wait(context, &[]));
        let locked = LockedSlots::lock_all_while(&turn, &|waited| wait.should_keep_waiting(waited));
        locked.ok_or_else(|| wait.outcome(context.session))
    }

    pub(super) fn key_slots(&self, entry: &RegisteredCommand, args: Args<'_>) -> KeySlots {
        let mut slots = KeySlots::new();
        entry.command.visit_keys(args, &mut |index, _| slots.push(Slot::of_key(&args[index])));
        if entry.command.lock_scope == LockScope::FirstArgument && self.topology.is_none() {
            slots.extend(args.get(1).map(Slot::of_key));
        }
        slots
    }

    /// Collects the inputs of the routing decision for a command with these flags ([`Engine::effective_flags`]). Keys
    /// are looked up only in a slot that is being migrated.
    pub(super) fn route_request(
        &self,
        session: &Session,
        call: Invocation<'_>,
        flags: Flags,
        locked: &mut LockedSlots<'_>,
        now: Millis,
    ) -> RouteRequest {
        let Invocation { entry, args, asking: asked, db } = call;
        // Commands for shard channels also run on replicas, and their channels are not keys of the slot.
        let channels = flags.contains(Flags::PUBSUB);
        let mut access = RouteRequest {
            is_asking: asked || flags.contains(Flags::ASKING),
            allows_replica_read: channels || (session.is_readonly() && !flags.contains(Flags::WRITE)),
            crosses_databases: entry.command.crosses_databases(args, db),
            ..RouteRequest::default()
        };
        if channels {
            return access;
        }
        entry.command.visit_keys(args, &mut |index, _| {
            let key = self.keyspace.key(&args[index]);
            // Commands that run on the client's connection lock no slots.
            if !locked.is_locked(key.slot()) {
                return;
            }
            let found = locked.slot_mut(key.slot()).table(db).find(&key, now);
            access.key_count += 1;
            access.missing_key_count += usize::from(!matches!(found, KeyLookup::Live(_)));
        });
        access
    }

    /// Checks whether the slot is served here, given the client's READONLY and ASKING state.
    pub(crate) fn check_route(
        &self,
        topology: &Topology,
        slot: Slot,
        ownership: Ownership,
        request: RouteRequest,
        transport: ClientTransport,
    ) -> Result<(), CommandError> {
        // Do not redirect to a node whose address was taken over by another node: clients cannot reach it.
        let redirect = |ask: bool, target: Option<&Member>| match target.filter(|node| node.is_reachable()) {
            Some(target) => {
                let endpoint = &target.endpoint;
                let host = endpoint.host(self.settings.routing.endpoint_type(), transport).into_owned();
                Err(CommandError::Redirect { ask, slot, host, port: endpoint.client_port(transport) })
            }
            None => Err(CommandError::SlotNotServed),
        };
        match route(ownership, request) {
            RouteDecision::Serve => Ok(()),
            RouteDecision::Moved => redirect(false, topology.owner(slot)),
            RouteDecision::Ask => {
                redirect(true, topology.migrating().get(&slot).and_then(|id| topology.member(*id)))
            }
            RouteDecision::TryAgain => Err(CommandError::TryAgain),
            RouteDecision::ClusterDown => Err(CommandError::SlotNotServed),
        }
    }
}
