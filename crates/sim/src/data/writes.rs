//! The workers: what clients write.

use std::fmt::Debug;

use super::held::name_of;
use super::store::Running;
use super::{Event, Key, LOCKED, What};
use crate::stage::Stage;
use crate::{Plant, clients};

impl<E: Debug> Stage<E> {
    /// Clients write to some of these keys in the next so many microseconds, wherever they are let in.
    pub(crate) fn clients_write(&mut self, keys: impl Iterator<Item = Key>, micros: u64) {
        for key in keys {
            if !self.chance.percent(30) {
                continue;
            }
            for host in 0..self.data.stores.len() {
                let lets_in = self.lets_in(host, key);
                if lets_in && self.runs(host) {
                    let at = self.process(host);
                    self.data_within(micros, Event::Admit { at, key });
                }
            }
        }
    }

    /// Whether a client's write is let in: as one that counts, or as a replica's own.
    fn lets_in(&self, host: usize, key: Key) -> bool {
        let store = &self.data.stores[host];
        let own = self.data.settings.writable_replicas && store.gates.replica && !store.gates.loading;
        store.admits(key, self.now) || (own && store.gates.served.is_none())
    }

    pub(super) fn admit(&mut self, host: usize, key: Key) {
        if self.lets_in(host, key) {
            let at = self.process(host);
            let logged = !self.data.stores[host].gates.replica;
            self.data_within(self.data.settings.command, Event::Begin { at, key, logged });
        }
    }

    /// A command has its slot's lock, and asks once more whether it may run.
    pub(super) fn begin_write(&mut self, host: usize, key: Key, logged: bool) {
        let at = self.process(host);
        if self.data.stores[host].running.values().any(|other| other.key == key) {
            return self.data_at(self.now + LOCKED, Event::Begin { at, key, logged });
        }
        let asked_once = self.planted(Plant::AskedOnce);
        if !asked_once && !self.lets_in(host, key) {
            return;
        }
        self.data.writes += 1;
        let write = self.data.writes;
        let store = &mut self.data.stores[host];
        let logged = if asked_once { logged } else { !store.gates.replica };
        store.running.insert(write, Running { key, logged });
        self.data_within(self.data.settings.command, Event::End { at, write });
    }

    /// A command changes its key, appends its effect, lets go of the slot and is acknowledged.
    pub(super) fn end_write(&mut self, host: usize, write: u64) {
        let careless = self.planted(Plant::LoggedByReplica);
        let store = &mut self.data.stores[host];
        let Some(Running { key, logged }) = store.running.remove(&write) else { return };
        let note = ["SET", name_of(key), &write.to_string()].map(str::to_owned).to_vec();
        if !logged {
            store.own.insert(key, write);
            if careless && let Some(stream) = store.following.stream() {
                let mut effect = Vec::new();
                resp::encode_request(&mut effect, note.iter().map(String::as_bytes));
                store.log.append_stream(stream, &effect);
                self.log_grew(host);
            }
            return;
        }
        let others = clients::batch_of(name_of(key), &mut self.chance, &mut self.data.issued);
        let (wall, unlogged) = (self.wall_of(host), self.planted(Plant::UnloggedEffects));
        let store = &mut self.data.stores[host];
        let mut effects = store.held.write(wall, &others);
        if unlogged {
            effects.clear();
        }
        effects.extend(store.held.write(wall, &[note]));
        assert_eq!(store.held.get(key), Some(write), "a client's write is done");
        store.log.append(0, &effects);
        self.log_grew(host);
        self.see(host, What::Acknowledged { key, write });
    }

    /// Slots that are others' now are left, one after the other.
    pub(crate) fn leave_slots(&mut self, host: usize, keys: &[Key]) {
        let at = self.process(host);
        keys.iter().for_each(|key| self.data_within(3000, Event::Leave { at, key: *key }));
    }

    /// An operator has reset this process.
    pub(super) fn leave_everything(&mut self, host: usize) {
        let keys: Vec<Key> = self.data.slots.iter().map(|slot| slot.number()).collect();
        self.leave_slots(host, &keys);
    }

    /// Drops the data of a slot and tells the replicas; not if it is served here again, nor on a replica.
    pub(super) fn leave(&mut self, host: usize, key: Key) {
        let (now, at) = (self.now, self.process(host));
        let store = &mut self.data.stores[host];
        let served = store.served().is_some_and(|served| served.contains(&key));
        if store.gates.replica || served {
            return;
        }
        let paused = store.gates.paused.is_some_and(|until| until > now);
        if paused || store.running.values().any(|running| running.key == key) {
            return self.data_at(now + LOCKED * 10, Event::Leave { at, key });
        }
        let effects = store.held.leave(key);
        if !effects.is_empty() {
            store.log.append(0, &effects);
            self.log_grew(host);
            self.see(host, What::Dropped { key });
        }
    }

    /// Keys that are past their time go, where nothing keeps the data as it is.
    pub(super) fn expire(&mut self, host: usize) {
        let (now, wall) = (self.now, self.wall_of(host));
        let store = &mut self.data.stores[host];
        if !store.may_expire(now) {
            return;
        }
        let effects = store.held.expire(wall);
        if !effects.is_empty() {
            store.log.append(0, &effects);
            self.log_grew(host);
        }
    }
}
