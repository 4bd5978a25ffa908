//! Slot locking and routing: locks a command's slots and checks under the locks that they are served here.

use clock::Millis;
use keyspace::{FillLevel, GlobalLock, Key, KeyLookup, LockedSlots};
use resp::Args;
use slot_routing::{ClientTransport, Member, Ownership, RouteDecision, RouteRequest, Slot, Topology, route};
use smallvec::SmallVec;

use super::pipeline::Pipeline;
use super::{Invocation, PrefetchedRequest};
use crate::command::{Command, CommandRunner, Context, Flags, LockScope, Registered};
use crate::engine::Engine;
use crate::error::CommandError;
use crate::keys::KeyFlags;
use crate::notifications::Class;
use crate::session::{CommandOrigin, Session};

/// The slots of a command's keys.
pub(super) type Slots = SmallVec<[Slot; 16]>;

/// Runs an admitted command with locked slots, unless it would add data to a full slot.
#[inline(always)]
pub(super) fn handle<'r, T>(
    context: &mut Context<'r>,
    command: &Command,
    handler: impl FnOnce(&mut Context<'r>) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    if keyspace::was_ever_crowded() {
        check_room(context, command)?;
    }
    if context.writes_on_replica(command) {
        let before = context.key_expiries(command);
        let outcome = handle_new(context, command, handler);
        context.record_key_expiries(before);
        return outcome;
    }
    handle_new(context, command, handler)
}

/// Runs the command and publishes events for new keys.
#[inline(always)]
fn handle_new<'r, T>(
    context: &mut Context<'r>,
    command: &Command,
    handler: impl FnOnce(&mut Context<'r>) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    if context.engine.settings.notified().contains(Class::NEW) {
        context.note_absent(command);
        let outcome = handler(context);
        context.notify_new();
        return outcome;
    }
    handler(context)
}

/// Refuses a client's write if the slot is too full. The address space of one slot's pages is limited to a few
/// gigabytes. Commands that may add data are refused above half of it, so that the rest remains for writes that must
/// not fail: replication and copy-on-write for snapshots. Near the end clients can only delete.
#[cold]
fn check_room(context: &Context<'_>, command: &Command) -> Result<(), CommandError> {
    const GROWS: KeyFlags = KeyFlags::OW.union(KeyFlags::INSERT).union(KeyFlags::UPDATE);
    if context.session.origin != CommandOrigin::Client || !command.flags.contains(Flags::WRITE) {
        return Ok(());
    }
    let (args, mut fill_level, mut grows) = (context.args, FillLevel::Free, false);
    command.visit_keys(args, &mut |index, flags| {
        let key = context.engine.keyspace.key(&args[index]);
        // Commands that the connection runs have no locked slots.
        if context.slots.has(key.slot()) {
            fill_level = fill_level.max(context.slots.slot(key.slot()).fill_level(&key));
        }
        grows |= flags.intersects(GROWS);
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
    fn wait_for<'r>(&'r self, pipeline: &mut Pipeline<'r>, slot: Slot) -> Result<(), CommandError> {
        pipeline.ahead.clear();
        pipeline.release_ended();
        let wanted = [slot];
        let wait = self.slot_wait(&pipeline.context, &wanted);
        match pipeline.context.slots.wait_for(&self.keyspace, slot, &|waited| wait.keeps_waiting(waited)) {
            true => Ok(()),
            false => Err(wait.refusal()),
        }
    }

    /// Locks the slots of the command's keys and checks that they are served here.
    #[inline(always)]
    pub(super) fn lock<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &PrefetchedRequest<'r>,
        entry: &'static Registered,
        asked: bool,
    ) -> Result<(), CommandError> {
        let first = match request.slot() {
            Some(slot) => {
                let touched = pipeline.ahead.get_mut(request.number).and_then(Option::take);
                if !pipeline.context.slots.try_lock_only(&self.keyspace, slot, touched)
                    && !pipeline.take_held_slot(slot)
                {
                    self.wait_for(pipeline, slot)?;
                }
                Some(slot)
            }
            None if entry.is_lock_free => {
                pipeline.ahead.clear();
                pipeline.release_ended();
                pipeline.context.slots.release();
                return Ok(());
            }
            None => {
                pipeline.ahead.clear();
                pipeline.release_ended();
                if self.topology.is_none() && entry.command.has_key_patterns(request.args) {
                    pipeline.context.slots.release();
                    pipeline.context.turn = Some(self.take_global_lock(&pipeline.context)?);
                }
                match entry.command.run {
                    CommandRunner::Engine(_) if entry.command.reach == LockScope::EachSlot => {
                        return self.check_walk(&mut pipeline.context, request.args, entry, asked);
                    }
                    CommandRunner::Script(_) => {
                        self.lock_script(&mut pipeline.context, entry, request.args)?
                    }
                    // The shell locks slots itself.
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
            (&self.topology, first, pipeline.context.session.origin)
            && pipeline.context.slots.slot(slot).ownership() != Ownership::Mine
        {
            let db = pipeline.context.session.db_of_next();
            let call = Invocation { entry, args: request.args, asked, db };
            return self.check_served(&mut pipeline.context, call, slot, &topology.load());
        }
        Ok(())
    }

    /// Checks whether a routed scan may start here. It locks the slots that it visits itself.
    fn check_walk<'r>(
        &'r self,
        context: &mut Context<'r>,
        args: Args<'r>,
        entry: &'static Registered,
        asked: bool,
    ) -> Result<(), CommandError> {
        context.slots.release();
        let (Some(topology), CommandOrigin::Client) = (&self.topology, context.session.origin) else {
            return Ok(());
        };
        let slots = self.slots_of(entry, args);
        let Some(first) = slots.first() else { return Ok(()) };
        context.slots = self.lock_slots(context, &slots)?;
        let call = Invocation { entry, args, asked, db: context.session.db_of_next() };
        let served = self.check_served(context, call, *first, &topology.load());
        context.slots.release();
        served
    }

    #[cold]
    fn check_served(
        &self,
        context: &mut Context<'_>,
        call: Invocation<'_>,
        slot: Slot,
        topology: &Topology,
    ) -> Result<(), CommandError> {
        let Context { session, slots, now, .. } = context;
        let mut access = self.access(session, call, slots, *now);
        if session.in_transaction() {
            // Earlier commands of the queue may create or move the keys, so the missing keys are counted when EXEC
            // runs.
            access.missing_keys = 0;
        }
        let via = session.client.link.via;
        self.check_route(topology, slot, slots.slot(slot).ownership(), access, via)
    }

    /// Locks the slots of a command without a single key at a fixed position; returns the slot used for routing.
    pub(super) fn lock_key_slots<'r>(
        &'r self,
        context: &mut Context<'r>,
        entry: &Registered,
        args: Args<'r>,
    ) -> Result<Option<Slot>, CommandError> {
        context.slots.release();
        if entry.command.reach == LockScope::AllSlots {
            context.slots = self.lock_all(context)?;
            return Ok(None);
        }
        if entry.command.reach == LockScope::NamedSlot {
            let named = args.get(2).and_then(resp::parse_i64).and_then(|number| u16::try_from(number).ok());
            // With an invalid slot number the command fails by itself.
            if let Some(slot) = named.and_then(Slot::new) {
                context.slots = self.lock_slots(context, &[slot])?;
            }
            return Ok(None);
        }
        if entry.command.keys.is_empty() && entry.command.reach != LockScope::FirstArgument {
            return Ok(None);
        }
        let slots = self.hash_keys(context, entry, args);
        if self.topology.is_some() && slots.iter().any(|slot| *slot != slots[0]) {
            return Err(CommandError::CrossSlot);
        }
        let wait = self.slot_wait(context, &slots);
        if !context.slots.lock_while(&self.keyspace, &slots, &|waited| wait.keeps_waiting(waited)) {
            return Err(wait.refusal());
        }
        if context.keys.len() > 1 {
            context.slots.prefetch(context.session.db, &context.keys);
        }
        Ok(slots.first().copied())
    }

    /// Hashes the command's keys and prefetches their slots, which it returns.
    fn hash_keys<'r>(&'r self, context: &mut Context<'r>, entry: &Registered, args: Args<'r>) -> Slots {
        let keys = &mut context.keys;
        keys.clear();
        entry.command.visit_keys(args, &mut |index, _| {
            let key = self.keyspace.key(args.get(index).expect("a key is one of the words"));
            self.keyspace.prefetch_slot(&key);
            keys.push(key);
        });
        if keys.is_empty() { self.slots_of(entry, args) } else { keys.iter().map(Key::slot).collect() }
    }

    /// Locks the given slots.
    pub(super) fn lock_slots(
        &self,
        context: &Context<'_>,
        slots: &[Slot],
    ) -> Result<LockedSlots<'_>, CommandError> {
        let (mut locked, wait) = (LockedSlots::default(), self.slot_wait(context, slots));
        let free = locked.lock_while(&self.keyspace, slots, &|waited| wait.keeps_waiting(waited));
        free.then_some(locked).ok_or_else(|| wait.refusal())
    }

    /// Acquires the global script lock.
    pub(crate) fn take_global_lock(&self, context: &Context<'_>) -> Result<GlobalLock<'_>, CommandError> {
        let wait = self.slot_wait(context, &[]);
        let turn = self.keyspace.acquire_global_lock_while(&|waited| wait.keeps_waiting(waited));
        turn.ok_or_else(|| wait.refusal())
    }

    /// Locks slots together with the script lock, for a command that may need further slots.
    pub(super) fn lock_with_global_lock<'s>(
        &'s self,
        context: &Context<'_>,
        locked: &mut LockedSlots<'s>,
        slots: &[Slot],
    ) -> Result<GlobalLock<'s>, CommandError> {
        let (turn, wait) = (self.take_global_lock(context)?, self.slot_wait(context, slots));
        let all = slots.iter().all(|slot| locked.add(&turn, *slot, &|waited| wait.keeps_waiting(waited)));
        if all { Ok(turn) } else { Err(wait.refusal()) }
    }

    /// Locks every slot.
    pub(super) fn lock_all(&self, context: &Context<'_>) -> Result<LockedSlots<'_>, CommandError> {
        let (turn, wait) = (self.take_global_lock(context)?, self.slot_wait(context, &[]));
        let locked = LockedSlots::all_while(&turn, &|waited| wait.keeps_waiting(waited));
        locked.ok_or_else(|| wait.refusal())
    }

    pub(super) fn slots_of(&self, entry: &Registered, args: Args<'_>) -> Slots {
        let mut slots = Slots::new();
        entry.command.visit_keys(args, &mut |index, _| slots.push(Slot::of_key(&args[index])));
        if entry.command.reach == LockScope::FirstArgument && self.topology.is_none() {
            slots.extend(args.get(1).map(Slot::of_key));
        }
        slots
    }

    /// Collects the inputs of the routing decision. Looks up keys only in a slot that is being migrated.
    pub(super) fn access(
        &self,
        session: &Session,
        call: Invocation<'_>,
        locked: &mut LockedSlots<'_>,
        now: Millis,
    ) -> RouteRequest {
        let Invocation { entry, args, asked, db } = call;
        let flags = entry.command.flags;
        // Shard channels also work on replicas and contain no keys of the slot.
        let channels = flags.contains(Flags::PUBSUB);
        let mut access = RouteRequest {
            asking: asked || flags.contains(Flags::ASKING),
            replica_read: channels || (session.readonly && flags.contains(Flags::READONLY)),
            crosses_databases: entry.command.crosses_databases(args, db),
            ..RouteRequest::default()
        };
        if channels {
            return access;
        }
        entry.command.visit_keys(args, &mut |index, _| {
            let key = self.keyspace.key(&args[index]);
            // Commands that the connection runs have no locked slots.
            if !locked.has(key.slot()) {
                return;
            }
            let found = locked.slot_mut(key.slot()).table(db).find(&key, now);
            access.keys += 1;
            access.missing_keys += usize::from(!matches!(found, KeyLookup::Live(_)));
        });
        access
    }

    /// Checks whether the slot is served here, given the client's READONLY and ASKING state.
    pub(crate) fn check_route(
        &self,
        topology: &Topology,
        slot: Slot,
        ownership: Ownership,
        access: RouteRequest,
        via: ClientTransport,
    ) -> Result<(), CommandError> {
        // A node whose address was taken over by another node cannot be reached by clients.
        let redirect = |ask: bool, target: Option<&Member>| match target.filter(|node| node.is_reachable()) {
            Some(target) => {
                let endpoint = &target.endpoint;
                let host = endpoint.host(self.settings.endpoint(), via).into_owned();
                Err(CommandError::Redirect { ask, slot, host, port: endpoint.client_port(via) })
            }
            None => Err(CommandError::SlotNotServed),
        };
        match route(ownership, access) {
            RouteDecision::Serve => Ok(()),
            RouteDecision::Moved => redirect(false, topology.owner(slot)),
            RouteDecision::Ask => {
                redirect(true, topology.migrating().get(&slot).and_then(|id| topology.member(*id)))
            }
            RouteDecision::TryAgain => Err(CommandError::TryAgain),
            RouteDecision::Unserved => Err(CommandError::SlotNotServed),
        }
    }
}
