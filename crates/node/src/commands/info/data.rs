//! The INFO sections Persistence, Replication and Keyspace.

use clock::Millis;
use keyspace::{DatabaseSize, Keyspace, SlotData};
use process::info::InfoText;
use slot_routing::{SLOT_COUNT, Slot};

use super::DataAccess;
use crate::server::Server;

/// The maximum number of keys sampled for the mean time to live, in total and per slot.
const MAX_TTL_SAMPLES: usize = 128;
const SAMPLES_PER_SLOT: usize = 8;
const SLOT_STEP: usize = 7919;

pub(super) fn write_persistence_section(server: &Server, text: &mut InfoText) {
    durability::saving::write_persistence_info(&server.durability, text.text_mut());
    // Nothing forks here, so the fields about child processes are constant.
    for name in ["module_fork_in_progress", "module_fork_last_cow_size", "slot_migration_fork_in_progress"] {
        text.write_line(name, 0);
    }
}

pub(super) fn write_replication_section(server: &Server, text: &mut InfoText) {
    crate::replication::write_replication_info(&server.replication, &server.failover, text.text_mut());
}

pub(super) fn write_keyspace_section(data: &mut DataAccess<'_, '_>, text: &mut InfoText) {
    let sizes = match data {
        DataAccess::Command(context) => context.database_sizes(),
        DataAccess::Unlocked(keyspace) => keyspace.sizes(),
        DataAccess::MaybeLocked => return,
    };
    for (db, size) in sizes.into_iter().enumerate().filter(|(_, size)| size.keys > 0) {
        let DatabaseSize { keys, volatile, keys_with_element_expiry: timed } = size;
        let ttl = if volatile == 0 { 0 } else { estimate_average_ttl(data, db as u16) };
        let line = format!("keys={keys},expires={volatile},avg_ttl={ttl},keys_with_volatile_items={timed}");
        text.write_line(&format!("db{db}"), line);
    }
}

/// Returns the mean time to live in milliseconds, over a sample of keys in slots that are not locked.
fn estimate_average_ttl(data: &mut DataAccess<'_, '_>, db: u16) -> i64 {
    let mut sample = TtlSample { db, now: process::time::now(), total_ms: 0, key_count: 0 };
    // The step is coprime to the number of slots, so the loop visits all slots.
    let mut slot = 0;
    for _ in 0..SLOT_COUNT {
        slot = (slot + SLOT_STEP) % SLOT_COUNT;
        let Some(number) = u16::try_from(slot).ok().and_then(Slot::new) else { continue };
        match data {
            DataAccess::Command(context)
                if context.holds_all_slots() || has_expiring_keys(&context.engine.keyspace, number) =>
            {
                context.try_with_slot(number, |slot| sample.sample_slot(slot));
            }
            DataAccess::Unlocked(keyspace) if has_expiring_keys(keyspace, number) => {
                if let Some(slot) = keyspace.try_lock(number) {
                    sample.sample_slot(&slot);
                }
            }
            DataAccess::Command(_) | DataAccess::Unlocked(_) | DataAccess::MaybeLocked => {}
        }
        if sample.key_count >= MAX_TTL_SAMPLES {
            break;
        }
    }
    i64::try_from(sample.total_ms / sample.key_count.max(1) as i128).unwrap_or(i64::MAX)
}

/// The sum and number of the sampled times to live.
struct TtlSample {
    db: u16,
    now: Millis,
    total_ms: i128,
    key_count: usize,
}

impl TtlSample {
    fn sample_slot(&mut self, slot: &SlotData) {
        let Some(table) = slot.existing_table(self.db) else { return };
        table.scan(0, SAMPLES_PER_SLOT, &mut |item| {
            if let Some(at) = item.expiry.filter(|at| *at > self.now) {
                self.total_ms += i128::from(at.0) - i128::from(self.now.0);
                self.key_count += 1;
            }
        });
    }
}

fn has_expiring_keys(keyspace: &Keyspace, slot: Slot) -> bool {
    keyspace.volatile_keys_in_slot(slot) > 0
}
