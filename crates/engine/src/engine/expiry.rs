//! Active expiry: deletes expired keys and hash fields that no command touches.
//!
//! Each slot knows when its next key or field expires, so no sampling is needed: a cycle visits the slots with due
//! entries and removes them. The cycle holds a slot lock only for a few keys at a time, so that clients do not wait
//! long even if a million keys expire in one second. When its time budget is used up, the cycle stops, and the next
//! cycle continues at the same slot.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clock::Millis;
use keyspace::KeyLookup;
use slot_routing::Slot;
use smallvec::SmallVec;

use super::{Engine, Worker};
use crate::notifications::EventClass;
use crate::settings::{LazyFreeReason, NodeFlags};
use crate::stats::add;

/// Number of keys and fields that are removed before the slot lock is released: about ten microseconds of work.
const KEYS_PER_LOCK: usize = 32;
/// Maximum capacity in bytes that the buffers for key and field names retain.
const MAX_RETAINED_NAME_CAPACITY: usize = 16 * 1024;

/// The slot at which the last cycle stopped.
#[derive(Debug, Default)]
pub(super) struct ExpiryCursor(AtomicUsize);

impl Engine {
    /// Deletes and logs expired keys and fields for about as long as `budget`; returns whether more are due. While
    /// loading or while writes are paused, expired keys are only hidden and nothing is deleted. A replica deletes only
    /// keys whose expiry its own clients set ([`super::local_expiry`]).
    pub fn run_expiry_cycle(&self, worker: &mut Worker, now: Millis, budget: Duration) -> bool {
        let active = self.settings.debug.active_expire.load(Ordering::Relaxed);
        let stopped = self.settings.node_flags().intersection(NodeFlags::NO_OWN_CHANGES);
        if !active || !NodeFlags::REPLICA.contains(stopped) {
            return false;
        }
        let end = (worker.clock_nanos)().saturating_add(u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX));
        let more = self.delete_locally_expired(worker, now, |worker| (worker.clock_nanos)() >= end);
        if more || stopped == NodeFlags::REPLICA {
            self.send_invalidations();
            return more;
        }
        let mut due = self.keyspace.slots_with_expiries_due(now);
        let start = self.memory.expiry_cursor.0.load(Ordering::Relaxed);
        let first = due.partition_point(|slot| slot.index() < start);
        due.rotate_left(first);
        for slot in due {
            loop {
                let more = self.expire_batch(worker, slot, now);
                // Check the time after every slot, since there may be many slots with few due keys each.
                if (worker.clock_nanos)() >= end {
                    self.send_invalidations();
                    self.memory.expiry_cursor.0.store(slot.index() + usize::from(!more), Ordering::Relaxed);
                    return true;
                }
                if !more {
                    break;
                }
            }
        }
        self.send_invalidations();
        false
    }

    /// Removes a few keys and fields of a slot; returns whether more may be due.
    fn expire_batch(&self, worker: &mut Worker, slot: Slot, now: Millis) -> bool {
        let mut dropped: SmallVec<[_; KEYS_PER_LOCK]> = SmallVec::new();
        let mut fields = 0;
        let (mut key, mut name) =
            (std::mem::take(&mut worker.key_buffer), std::mem::take(&mut worker.name_buffer));
        // Skip a locked slot: a script may hold the lock for long, and this thread must not block.
        let Some(mut guard) = self.keyspace.try_lock(slot) else {
            (worker.key_buffer, worker.name_buffer) = (key, name);
            return false;
        };
        // Check again while the slot is locked: a thread that starts a pause or a demotion sets the flag and then locks
        // each slot once.
        let stopped = self.settings.node_flags().intersects(NodeFlags::NO_OWN_CHANGES);
        let wanted = self.log.has_readers();
        let deletion = self.settings.lazy_free.deletion_command(LazyFreeReason::EXPIRE);
        for (db, table) in guard.tables().filter(|_| !stopped) {
            worker.effects.begin(wanted);
            while dropped.len() < KEYS_PER_LOCK {
                let Some(value) = table.remove_expired(now, &mut key) else { break };
                dropped.push(value);
                self.report_removed(db, slot, &key);
                self.notify(EventClass::EXPIRED, "expired", db, &key);
                worker.effects.push([deletion, &key]);
            }
            // Fields of one hash that expire together cause only one event.
            let mut hashes: SmallVec<[Vec<u8>; 1]> = SmallVec::new();
            while dropped.len() < KEYS_PER_LOCK {
                let Some(value) = table.remove_expired_field(now, &mut key, &mut name) else { break };
                dropped.push(value);
                fields += 1;
                self.report_changed(db, slot, &key, None);
                worker.effects.push([&b"HDEL"[..], &key, &name]);
                if self.settings.notified_event_classes().intersects(EventClass::HASH | EventClass::GENERIC)
                    && !hashes.contains(&key)
                {
                    hashes.push(key.clone());
                }
            }
            for hash in hashes {
                self.notify(EventClass::HASH, "hexpired", db, &hash);
                if table.find(&self.keyspace.key_in_slot(slot, &hash), Millis(i64::MIN)) == KeyLookup::Missing
                {
                    self.notify(EventClass::GENERIC, "del", db, &hash);
                }
            }
            worker.effects.finish_without_multi();
            worker.effects.append(&*self.log, db);
        }
        drop(guard);
        key.shrink_to(MAX_RETAINED_NAME_CAPACITY);
        name.shrink_to(MAX_RETAINED_NAME_CAPACITY);
        (worker.key_buffer, worker.name_buffer) = (key, name);
        let full = dropped.len() == KEYS_PER_LOCK;
        add(&worker.stats.expired_keys, (dropped.len() - fields) as u64);
        add(&worker.stats.expired_fields, fields as u64);
        let lazy = self.settings.lazy_free.is_enabled(LazyFreeReason::EXPIRE);
        dropped.into_iter().for_each(|value| self.memory.lazy_free.discard(value, lazy));
        full
    }
}
