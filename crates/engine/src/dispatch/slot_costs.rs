//! Charges commands to their slots ([`crate::slot_costs`]) and keys ([`crate::hot_keys`]).

use clock::Millis;
use resp::{Args, Protocol, Writer};
use slot_routing::Slot;

use super::ExecutedCommand;
use crate::command::{Caller, CommandRunner, Context, RegisteredCommand};
use crate::engine::Engine;
use crate::hot_keys::KeyCost;
use crate::scripting::ChargedSlot;
use crate::session::CommandOrigin;
use crate::settings::Measurements;
use crate::slot_costs::{MULTI_REQUEST_BYTES, SlotCost, request_len, wire_len};

impl Engine {
    /// Charges a command that took `nanos` and whose reply begins at `reply_start`.
    #[cold]
    pub(super) fn charge_command(
        &self,
        context: &mut Context<'_>,
        entry: &'static RegisteredCommand,
        args: Args<'_>,
        reply_start: usize,
        nanos: u64,
    ) {
        if matches!(entry.command.runner, CommandRunner::Exec) {
            // EXEC is charged separately, to the slot of the queued commands (`charge_exec`).
            return;
        }
        let logged = self.take_bytes_sent_to_replicas(context);
        let Some(replied) = self.reply_cost(context, reply_start) else { return };
        if self.topology.is_none() {
            return;
        }
        let charged = match entry.command.runner {
            CommandRunner::Script(_) => std::mem::take(&mut context.worker.scripting.charged_slot),
            _ => ChargedSlot::Declared,
        };
        let slot = match charged {
            ChargedSlot::Declared => self.key_slots(entry, args).first().copied(),
            ChargedSlot::Used(slot) => Some(slot),
            ChargedSlot::SeveralSlots => None,
        };
        if let Some(slot) = slot {
            let bytes_out = replied + logged;
            // The stored request of a blocked client is re-encoded, so its length differs from that of the original
            // input.
            let is_copy = context.caller == Caller::Waiter;
            let bytes_in = if is_copy { wire_len(args) } else { request_len(args) };
            context.worker.stats.slot_costs.add(slot, SlotCost { nanos, bytes_in, bytes_out });
        }
    }

    /// Returns the bytes of the reply that begins at `reply_start`; `None` if the command is not charged, because it
    /// comes from a file or another node.
    fn reply_cost(&self, context: &Context<'_>, reply_start: usize) -> Option<u64> {
        match context.session.origin() {
            CommandOrigin::Client => Some(context.reply.len().saturating_sub(reply_start) as u64),
            // Commands applied from the master's stream cost a replica time and input bytes, but no reply bytes.
            CommandOrigin::Master if self.settings.is_replica() => Some(0),
            CommandOrigin::Master | CommandOrigin::SlotMigrationSource => None,
        }
    }

    /// Charges the reply of a script's call to the slot of the call's first key.
    #[cold]
    pub(super) fn charge_script_call(
        &self,
        context: &Context<'_>,
        entry: &RegisteredCommand,
        args: Args<'_>,
    ) {
        if let (CommandOrigin::Client, Some(slot)) =
            (context.session.origin(), self.key_slots(entry, args).first())
        {
            let cost = SlotCost { bytes_out: context.reply.len() as u64, ..SlotCost::default() };
            context.worker.stats.slot_costs.add(*slot, cost);
        }
    }

    /// Charges a command to its keys. Commands of scripts and transactions are charged individually.
    #[cold]
    pub(super) fn charge_keys(&self, db: u16, now: Millis, executed: &ExecutedCommand<'_>) {
        if matches!(executed.entry.command.runner, CommandRunner::Exec | CommandRunner::Script(_)) {
            return;
        }
        let mut keys: Vec<&[u8]> = Vec::new();
        executed
            .entry
            .command
            .visit_keys(executed.args, &mut |index, _| keys.extend(executed.args.get(index)));
        let bytes = wire_len(executed.args).saturating_add(executed.reply_len as u64);
        let is_access = !executed.entry.full_name.starts_with("object|");
        self.diagnostics.hot_keys.count(db, &keys, is_access, KeyCost { nanos: executed.nanos, bytes }, now);
    }

    /// Returns the slot to which the client's EXEC is charged; `None` if slot statistics are off.
    pub(super) fn charged_slot_of_exec(&self, context: &Context<'_>) -> Option<Slot> {
        if !self.settings.measurements().contains(Measurements::SLOTS) {
            return None;
        }
        self.transaction_slot(context.commands, context.session.transaction()?)
    }

    /// Charges an EXEC, including its MULTI, whose reply begins at `reply_start`. The queued requests are charged
    /// already. An EXEC with a script that may access several slots is not charged, as in Valkey.
    pub(super) fn charge_exec(
        &self,
        context: &mut Context<'_>,
        slot: Slot,
        args: Args<'_>,
        reply_start: usize,
        nanos: u64,
    ) {
        let logged = self.take_bytes_sent_to_replicas(context);
        let replied = self.reply_cost(context, reply_start);
        let has_several =
            std::mem::take(&mut context.worker.scripting.charged_slot) == ChargedSlot::SeveralSlots;
        if let Some(replied) = replied.filter(|_| !has_several) {
            let cost = SlotCost {
                nanos,
                bytes_in: MULTI_REQUEST_BYTES + request_len(args),
                bytes_out: replied + logged,
            };
            context.worker.stats.slot_costs.add(slot, cost);
        }
    }

    /// Returns the bytes sent to replicas for the command's log entries.
    fn take_bytes_sent_to_replicas(&self, context: &mut Context<'_>) -> u64 {
        (context.worker.effects.take_last_effects_len() * self.log.replica_count()) as u64
    }
}

impl Context<'_> {
    /// Charges a shard channel message delivered to `receivers` subscribers, if slot statistics are on.
    pub fn charge_shard_message(&self, channel: &[u8], message: &[u8], receivers: usize) {
        if receivers == 0 || !self.engine.settings.measurements().contains(Measurements::SLOTS) {
            return;
        }
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, Protocol::Resp3);
        writer.push(3);
        [b"smessage", channel, message].into_iter().for_each(|word| writer.bulk(word));
        let bytes_out = (bytes.len() * receivers) as u64;
        self.worker
            .stats
            .slot_costs
            .add(Slot::of_key(channel), SlotCost { bytes_out, ..SlotCost::default() });
    }
}
