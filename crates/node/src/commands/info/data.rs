//! INFO about the data: the sections Persistence, Replication and Keyspace.

use engine::Context;
use keyspace::Size;
use slot_routing::{SLOT_COUNT, Slot};

use super::Text;
use crate::server::Server;

/// The mean time to live is taken from so many keys, so many of them from one slot.
const SAMPLES: usize = 128;
const SAMPLES_A_SLOT: usize = 8;
const SAMPLE_STEP: usize = 7919;

pub(super) fn persistence(server: &Server, text: &mut Text) {
    crate::durability::saving::info(&server.durability, text.raw());
    // Nothing forks.
    for name in ["module_fork_in_progress", "module_fork_last_cow_size", "slot_migration_fork_in_progress"] {
        text.line(name, 0);
    }
}

pub(super) fn replication(server: &Server, text: &mut Text) {
    crate::replication::info(&server.replication, &server.failover, text.raw());
}

pub(super) fn keyspace(context: &mut Context<'_>, text: &mut Text) {
    let sizes = context.database_sizes();
    for (db, size) in sizes.into_iter().enumerate().filter(|(_, size)| size.keys > 0) {
        let Size { keys, volatile, timed } = size;
        let ttl = if volatile == 0 { 0 } else { average_ttl(context, db as u16) };
        let line = format!("keys={keys},expires={volatile},avg_ttl={ttl},keys_with_volatile_items={timed}");
        text.line(&format!("db{db}"), line);
    }
}

/// The mean time to live of keys that expire, in milliseconds, over a sample from slots all over.
fn average_ttl(context: &mut Context<'_>, db: u16) -> i64 {
    let now = crate::process::time::now();
    let (mut sum, mut sampled) = (0i128, 0usize);
    // A step that has no divisor in common with the number of slots visits them all.
    let mut slot = 0;
    for _ in 0..SLOT_COUNT {
        slot = (slot + SAMPLE_STEP) % SLOT_COUNT;
        let Some(number) = u16::try_from(slot).ok().and_then(Slot::new) else { continue };
        if !context.holds_all() && context.engine.keyspace.volatile_in_slot(number) == 0 {
            continue;
        }
        context.with_slot(number, |data| {
            let Some(table) = data.table_if(db) else { return };
            table.scan(0, SAMPLES_A_SLOT, &mut |item| {
                if let Some(at) = item.expiry.filter(|at| *at > now) {
                    sum += i128::from(at.0) - i128::from(now.0);
                    sampled += 1;
                }
            });
        });
        if sampled >= SAMPLES {
            break;
        }
    }
    i64::try_from(sum / sampled.max(1) as i128).unwrap_or(i64::MAX)
}
