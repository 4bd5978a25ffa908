//! The slots of a command: locked before it runs, and asked, under their locks, whether they are served here.

use clock::Millis;
use keyspace::{Found, LockedSlots};
use resp::Args;
use slot_routing::{Access, Member, Ownership, Slot, Topology, Verdict, route};
use smallvec::SmallVec;

use super::pipeline::Pipeline;
use super::{Context, Prepared};
use crate::command::{Flags, Reach};
use crate::engine::Engine;
use crate::error::CommandError;
use crate::lookup::Registered;
use crate::session::{Origin, Session};

impl Engine {
    /// Locks the slots of the command's keys and decides, under their locks, whether they are served here.
    #[inline(always)]
    pub(super) fn lock<'r>(
        &'r self,
        pipeline: &mut Pipeline<'r>,
        request: &Prepared<'r>,
        entry: &Registered,
        asked: bool,
    ) -> Result<(), CommandError> {
        let first = match request.slot() {
            Some(slot) => {
                let touched = pipeline.ahead.get_mut(request.number).and_then(Option::take);
                if !pipeline.context.slots.try_lock_only(&self.keyspace, slot, touched) {
                    pipeline.ahead.clear();
                    pipeline.context.slots.wait_for(&self.keyspace, slot);
                }
                Some(slot)
            }
            None => {
                pipeline.ahead.clear();
                self.lock_found(&mut pipeline.context.slots, entry, request.args)?
            }
        };
        if let (Some(topology), Some(slot), Origin::Client) =
            (&self.topology, first, pipeline.context.session.origin)
            && pipeline.context.slots.slot(slot).ownership() != Ownership::Mine
        {
            return self.check_served(
                &mut pipeline.context,
                request.args,
                entry,
                asked,
                slot,
                &topology.load(),
            );
        }
        Ok(())
    }

    #[cold]
    fn check_served(
        &self,
        context: &mut Context<'_>,
        args: Args<'_>,
        entry: &Registered,
        asked: bool,
        slot: Slot,
        topology: &Topology,
    ) -> Result<(), CommandError> {
        let Context { session, slots, now, .. } = context;
        let access = self.access(session, args, entry, asked, slots, *now);
        self.check_route(topology, slot, slots.slot(slot).ownership(), access)
    }

    /// Locks the slots of a command that has not one key at a fixed place; says which of them it is routed by.
    fn lock_found<'r>(
        &'r self,
        locked: &mut LockedSlots<'r>,
        entry: &Registered,
        args: Args<'_>,
    ) -> Result<Option<Slot>, CommandError> {
        locked.release();
        if entry.command.reach == Reach::AllSlots {
            *locked = LockedSlots::all(&self.keyspace.script_turn());
            return Ok(None);
        }
        if entry.command.keys.is_empty() && entry.command.reach != Reach::FirstArgument {
            return Ok(None);
        }
        let slots = self.slots_of(entry, args);
        if self.topology.is_some() && slots.iter().any(|slot| *slot != slots[0]) {
            return Err(CommandError::CrossSlot);
        }
        *locked = self.keyspace.lock_many(&slots);
        Ok(slots.first().copied())
    }

    pub(super) fn slots_of(&self, entry: &Registered, args: Args<'_>) -> SmallVec<[Slot; 4]> {
        let mut slots = SmallVec::new();
        entry.command.visit_keys(args, &mut |index, _| slots.push(Slot::of_key(&args[index])));
        if entry.command.reach == Reach::FirstArgument && self.topology.is_none() {
            slots.extend(args.get(1).map(Slot::of_key));
        }
        slots
    }

    /// What the routing decision needs to know of the command. Looks for its keys only in a slot that
    /// is on the move.
    pub(super) fn access(
        &self,
        session: &Session,
        args: Args<'_>,
        entry: &Registered,
        asked: bool,
        locked: &mut LockedSlots<'_>,
        now: Millis,
    ) -> Access {
        let flags = entry.command.flags;
        // A channel is heard on replicas too, and it does not lie in the slot.
        let channels = flags.contains(Flags::PUBSUB);
        let mut access = Access {
            asking: asked || flags.contains(Flags::ASKING),
            replica_read: channels || (session.readonly && flags.contains(Flags::READONLY)),
            keys: 0,
            missing: 0,
        };
        if channels {
            return access;
        }
        entry.command.visit_keys(args, &mut |index, _| {
            let key = self.keyspace.key(&args[index]);
            let found = locked.slot_mut(key.slot()).table(session.db).find(&key, now);
            access.keys += 1;
            access.missing += usize::from(!matches!(found, Found::Live(_)));
        });
        access
    }

    pub(crate) fn check_route(
        &self,
        topology: &Topology,
        slot: Slot,
        ownership: Ownership,
        access: Access,
    ) -> Result<(), CommandError> {
        let redirect = |ask: bool, target: Option<&Member>| match target {
            Some(target) => {
                let endpoint = &target.endpoint;
                Err(CommandError::Redirect { ask, slot, host: endpoint.ip.clone(), port: endpoint.port })
            }
            None => Err(CommandError::SlotNotServed),
        };
        match route(ownership, access) {
            Verdict::Serve => Ok(()),
            Verdict::Moved => redirect(false, topology.owner(slot)),
            Verdict::Ask => {
                redirect(true, topology.migrating().get(&slot).and_then(|id| topology.member(*id)))
            }
            Verdict::TryAgain => Err(CommandError::TryAgain),
            Verdict::Unserved => Err(CommandError::SlotNotServed),
        }
    }
}
