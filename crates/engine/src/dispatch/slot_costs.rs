//! Counting a command for its slot ([`crate::slot_costs`]) and for its keys ([`crate::hot_keys`]).

use clock::Millis;
use resp::{Args, Protocol, Writer};
use slot_routing::Slot;

use super::Ran;
use super::transaction::queued;
use crate::command::{Caller, Context, Registered, Run};
use crate::engine::Engine;
use crate::hot_keys::KeyCost;
use crate::session::Origin;
use crate::settings::Measures;
use crate::slot_costs::{MULTI_LEN, SlotCost, request_len, wire_len};

impl Engine {
    /// Counts a command that took `nanos` and whose reply began at `start`.
    #[cold]
    pub(super) fn count_slot(
        &self,
        context: &mut Context<'_>,
        (entry, args): (&'static Registered, Args<'_>),
        start: usize,
        nanos: u64,
    ) {
        if matches!(entry.command.run, Run::Exec) {
            // With its queue's slot (`count_exec`).
            return;
        }
        let logged = self.sent_to_replicas(context);
        let replied = match context.session.origin {
            Origin::Client => context.reply.len().saturating_sub(start) as u64,
            // A replica pays for the commands that it applies in time and in bytes that came; it answers none.
            Origin::Master if self.settings.is_replica() => 0,
            Origin::Master | Origin::Source => return,
        };
        if self.topology.is_none() {
            return;
        }
        if let Some(slot) = self.slots_of(entry, args).first() {
            let bytes_out = replied + logged;
            // The words of a client that has waited are a copy, whose form is not what came.
            let is_copy = context.caller == Caller::Waiter;
            let bytes_in = if is_copy { wire_len(args) } else { request_len(args) };
            context.worker.stats.slots.add(*slot, SlotCost { nanos, bytes_in, bytes_out });
        }
    }

    /// Counts a command for its keys. The commands of a script or a transaction count by themselves.
    #[cold]
    pub(super) fn count_keys(&self, db: u16, now: Millis, ran: &Ran<'_>) {
        if matches!(ran.entry.command.run, Run::Exec | Run::Script(_)) {
            return;
        }
        let mut keys: Vec<&[u8]> = Vec::new();
        ran.entry.command.visit_keys(ran.args, &mut |index, _| keys.extend(ran.args.get(index)));
        let bytes = wire_len(ran.args).saturating_add(ran.reply_len as u64);
        let is_access = !ran.entry.full_name.starts_with("object|");
        self.hot_keys.count(db, &keys, is_access, KeyCost { nanos: ran.nanos, bytes }, now);
    }

    /// The slot that the client's EXEC is to be counted for, if slots are.
    pub(super) fn slot_of_queue(&self, context: &Context<'_>) -> Option<Slot> {
        if !self.settings.measures().contains(Measures::SLOTS) || self.topology.is_none() {
            return None;
        }
        let transaction = context.session.transaction.as_ref()?;
        let mut commands = queued(context.commands, transaction);
        commands.find_map(|(entry, request)| self.slots_of(entry, request.args()).first().copied())
    }

    /// Counts an EXEC whose reply began at `start`, with its MULTI. What was queued is counted already.
    pub(super) fn count_exec(
        &self,
        context: &mut Context<'_>,
        (slot, args): (Slot, Args<'_>),
        start: usize,
        nanos: u64,
    ) {
        let bytes_out = context.reply.len().saturating_sub(start) as u64 + self.sent_to_replicas(context);
        let cost = SlotCost { nanos, bytes_in: MULTI_LEN + wire_len(args), bytes_out };
        context.worker.stats.slots.add(slot, cost);
    }

    /// Bytes that replicas get of what the command logged.
    fn sent_to_replicas(&self, context: &mut Context<'_>) -> u64 {
        (context.worker.effects.take_last() * self.log.replicas()) as u64
    }
}

impl Context<'_> {
    /// Counts a message that was given to so many subscribers of a shard channel, if slots are counted.
    pub fn count_shard_message(&self, channel: &[u8], message: &[u8], receivers: usize) {
        if receivers == 0 || !self.engine.settings.measures().contains(Measures::SLOTS) {
            return;
        }
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, Protocol::Resp3);
        writer.push(3);
        [b"smessage", channel, message].into_iter().for_each(|word| writer.bulk(word));
        let bytes_out = (bytes.len() * receivers) as u64;
        self.worker.stats.slots.add(Slot::of_key(channel), SlotCost { bytes_out, ..SlotCost::default() });
    }
}
