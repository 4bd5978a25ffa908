//! The INFO sections Persistence, Replication and Keyspace.

use clock::Millis;
use keyspace::{DatabaseSize, Keyspace, SlotData};
use process::info::InfoText;
use slot_routing::{SLOT_COUNT, Slot};

use super::Data;
use crate::server::Server;

/// The sample size for the mean time to live, in all and per slot.
const SAMPLES: usize = 128;
const SAMPLES_A_SLOT: usize = 8;
const SAMPLE_STEP: usize = 7919;

pub(super) fn persistence(server: &Server, text: &mut InfoText) {
    durability::saving::info(&server.durability, text.raw());
    // There are no forked child processes.
    for name in ["module_fork_in_progress", "module_fork_last_cow_size", "slot_migration_fork_in_progress"] {
        text.line(name, 0);
    }
}

pub(super) fn replication(server: &Server, text: &mut InfoText) {
    crate::replication::info(&server.replication, &server.failover, text.raw());
}

pub(super) fn keyspace(data: &mut Data<'_, '_>, text: &mut InfoText) {
    let sizes = match data {
        Data::Of(context) => context.database_sizes(),
        Data::Free(keyspace) => keyspace.sizes(),
        Data::Unknown => return,
    };
    for (db, size) in sizes.into_iter().enumerate().filter(|(_, size)| size.keys > 0) {
        let DatabaseSize { keys, volatile, timed } = size;
        let ttl = if volatile == 0 { 0 } else { average_ttl(data, db as u16) };
        let line = format!("keys={keys},expires={volatile},avg_ttl={ttl},keys_with_volatile_items={timed}");
        text.line(&format!("db{db}"), line);
    }
}

/// Returns the mean time to live in milliseconds, over a sample of keys in slots that are not locked.
fn average_ttl(data: &mut Data<'_, '_>, db: u16) -> i64 {
    let mut sample = TimesLeft { db, now: process::time::now(), sum: 0, keys: 0 };
    // A step coprime to the number of slots visits all of them.
    let mut slot = 0;
    for _ in 0..SLOT_COUNT {
        slot = (slot + SAMPLE_STEP) % SLOT_COUNT;
        let Some(number) = u16::try_from(slot).ok().and_then(Slot::new) else { continue };
        match data {
            Data::Of(context)
                if context.holds_all_slots() || has_volatile(&context.engine.keyspace, number) =>
            {
                context.try_with_slot(number, |slot| sample.take(slot));
            }
            Data::Free(keyspace) if has_volatile(keyspace, number) => {
                if let Some(slot) = keyspace.try_lock(number) {
                    sample.take(&slot);
                }
            }
            Data::Of(_) | Data::Free(_) | Data::Unknown => {}
        }
        if sample.keys >= SAMPLES {
            break;
        }
    }
    i64::try_from(sample.sum / sample.keys.max(1) as i128).unwrap_or(i64::MAX)
}

/// The remaining time to live of sampled keys.
struct TimesLeft {
    db: u16,
    now: Millis,
    /// In milliseconds.
    sum: i128,
    keys: usize,
}

impl TimesLeft {
    /// Samples some keys of a slot.
    fn take(&mut self, slot: &SlotData) {
        let Some(table) = slot.table_if(self.db) else { return };
        table.scan(0, SAMPLES_A_SLOT, &mut |item| {
            if let Some(at) = item.expiry.filter(|at| *at > self.now) {
                self.sum += i128::from(at.0) - i128::from(self.now.0);
                self.keys += 1;
            }
        });
    }
}

fn has_volatile(keyspace: &Keyspace, slot: Slot) -> bool {
    keyspace.volatile_in_slot(slot) > 0
}
