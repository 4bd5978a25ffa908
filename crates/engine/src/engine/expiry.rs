//! Active expiry: keys and fields of hashes go when their time comes, also if no command asks for them.
//!
//! Each slot knows when its next key or field expires, so nothing is sampled and nothing is searched: a cycle
//! visits the slots that have something due and takes out what is. It holds a slot's lock for a few keys
//! at a time, so that no client waits long even if a million keys are due in one second, and it stops
//! when its time is used up; the next cycle goes on with the slot where it stopped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clock::Millis;
use keyspace::KeyLookup;
use slot_routing::Slot;
use smallvec::SmallVec;

use super::{Engine, Worker};
use crate::notifications::Class;
use crate::settings::{Gate, Lazy};
use crate::stats::add;

/// Keys and fields taken out of a slot before its lock is given to others: some ten microseconds.
const KEYS_PER_LOCK: usize = 32;
/// The buffers for the names of keys and fields keep at most this room.
const KEEP_NAME: usize = 16 * 1024;

/// Where the last cycle stopped.
#[derive(Debug, Default)]
pub(super) struct ExpiryCursor(AtomicUsize);

impl Engine {
    /// Deletes the keys and fields whose time has come, for about as long as `budget`, and logs that. Says whether
    /// there is more to do. Does nothing while loading and while writes are paused: then keys are only hidden. A replica
    /// deletes the keys whose times its own clients set ([`super::local_expiry`]).
    pub fn expire_cycle(&self, worker: &mut Worker, now: Millis, budget: Duration) -> bool {
        let active = self.settings.active_expire.load(Ordering::Relaxed);
        let stopped = self.settings.gate().intersection(Gate::NOT_BY_ITSELF);
        if !active || !Gate::REPLICA.contains(stopped) {
            return false;
        }
        let end = (worker.nanos)().saturating_add(u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX));
        let more = self.expire_local(worker, now, |worker| (worker.nanos)() >= end);
        if more || stopped == Gate::REPLICA {
            self.tell_of_changes();
            return more;
        }
        let mut due = self.keyspace.due_slots(now);
        let start = self.expiry_cursor.0.load(Ordering::Relaxed);
        let first = due.partition_point(|slot| slot.index() < start);
        due.rotate_left(first);
        for slot in due {
            loop {
                let more = self.expire_some(worker, slot, now);
                // After every slot, however few of its keys were due: there may be many slots.
                if (worker.nanos)() >= end {
                    self.tell_of_changes();
                    self.expiry_cursor.0.store(slot.index() + usize::from(!more), Ordering::Relaxed);
                    return true;
                }
                if !more {
                    break;
                }
            }
        }
        self.tell_of_changes();
        false
    }

    /// Takes a few keys and fields out of a slot; says whether it may have more that are due.
    fn expire_some(&self, worker: &mut Worker, slot: Slot, now: Millis) -> bool {
        let mut dropped: SmallVec<[_; KEYS_PER_LOCK]> = SmallVec::new();
        let mut fields = 0;
        let (mut key, mut name) = (std::mem::take(&mut worker.key), std::mem::take(&mut worker.name));
        // A script may hold it for long: this thread has more to do than that.
        let Some(mut guard) = self.keyspace.try_lock(slot) else {
            (worker.key, worker.name) = (key, name);
            return false;
        };
        // Asked again under the lock: a pause, or a change to a replica, waits for each slot once.
        let stopped = self.settings.gate().intersects(Gate::NOT_BY_ITSELF);
        let wanted = self.log.wanted();
        let deletion = self.settings.deletion(Lazy::EXPIRE);
        for (db, table) in guard.tables().filter(|_| !stopped) {
            worker.effects.start(wanted);
            while dropped.len() < KEYS_PER_LOCK {
                let Some(value) = table.remove_expired(now, &mut key) else { break };
                dropped.push(value);
                self.lost(db, slot, &key);
                self.notify(Class::EXPIRED, "expired", db, &key);
                worker.effects.push([deletion, &key]);
            }
            // One event for all fields of a hash that go together.
            let mut hashes: SmallVec<[Vec<u8>; 1]> = SmallVec::new();
            while dropped.len() < KEYS_PER_LOCK {
                let Some(value) = table.remove_expired_field(now, &mut key, &mut name) else { break };
                dropped.push(value);
                fields += 1;
                self.changed(db, slot, &key, None);
                worker.effects.push([&b"HDEL"[..], &key, &name]);
                if self.settings.notified().intersects(Class::HASH | Class::GENERIC) && !hashes.contains(&key)
                {
                    hashes.push(key.clone());
                }
            }
            for hash in hashes {
                self.notify(Class::HASH, "hexpired", db, &hash);
                if table.find(&self.keyspace.key_in(slot, &hash), Millis(i64::MIN)) == KeyLookup::Missing {
                    self.notify(Class::GENERIC, "del", db, &hash);
                }
            }
            worker.effects.seal_each();
            worker.effects.append(&*self.log, db);
        }
        drop(guard);
        key.shrink_to(KEEP_NAME);
        name.shrink_to(KEEP_NAME);
        (worker.key, worker.name) = (key, name);
        let full = dropped.len() == KEYS_PER_LOCK;
        add(&worker.stats.expired_keys, (dropped.len() - fields) as u64);
        add(&worker.stats.expired_fields, fields as u64);
        let lazy = self.settings.is_lazy(Lazy::EXPIRE);
        dropped.into_iter().for_each(|value| self.lazy_free.discard(value, lazy));
        full
    }
}
