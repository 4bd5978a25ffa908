//! What MIGRATE needs of the keyspace: a key as it is now, and to let go of it if it is still so.
//!
//! No slot is held while another server is spoken to, so a key may change between the two. Who migrates
//! captures the key, has it restored elsewhere, and releases it; if that says that the key is another by
//! now, it begins again with what is there.

use clock::Millis;
use keyspace::{Found, LockedSlots};

use crate::dispatch::{Engine, Worker};
use crate::stats::add;

/// A key's value and time, taken at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// As DUMP gives it.
    pub payload: Vec<u8>,
    pub expiry: Option<Millis>,
}

impl Engine {
    /// The key as it is now, if it is there.
    #[must_use]
    pub fn capture(&self, db: u16, key: &[u8], now: Millis) -> Option<Captured> {
        self.captured(&mut self.keyspace.lock_many(&[self.keyspace.key(key).slot()]), db, key, now)
    }

    /// Deletes the key, and logs that, if it is still as it was captured.
    pub fn release(&self, worker: &Worker, db: u16, key: &[u8], now: Millis, captured: &Captured) -> bool {
        let handle = self.keyspace.key(key);
        let mut locked = self.keyspace.lock_many(&[handle.slot()]);
        if self.captured(&mut locked, db, key, now).as_ref() != Some(captured) {
            return false;
        }
        let table = locked.slot(handle.slot()).table(db);
        let Found::Live(place) = table.find(&handle, now) else { return false };
        let dropped = table.remove(place, &handle);
        add(&worker.stats.changes, 1);
        self.key_gone(db, handle.slot(), key);
        drop(locked);
        self.bin.discard(dropped);
        true
    }

    fn captured(&self, locked: &mut LockedSlots<'_>, db: u16, key: &[u8], now: Millis) -> Option<Captured> {
        let handle = self.keyspace.key(key);
        let table = locked.slot(handle.slot()).table(db);
        match table.find(&handle, now) {
            Found::Live(place) => {
                let payload = persistence::dump(&table.value(place), true);
                Some(Captured { payload, expiry: table.expiry(place) })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn a_key_is_released_as_it_was_captured_and_not_otherwise() {
        let mut client = Client::logged();
        client.table(&[("set k v px 5000", "+OK")]);
        let now = client.now;
        let captured = client.engine.capture(0, b"k", now).unwrap();
        assert_eq!(captured.expiry.unwrap().0, now.0 + 5000);
        client.table(&[("append k w", ":2")]);
        assert!(!client.engine.release(&client.worker, 0, b"k", now, &captured));
        let captured = client.engine.capture(0, b"k", now).unwrap();
        client.table(&[("pexpire k 6000", ":1")]);
        assert!(!client.engine.release(&client.worker, 0, b"k", now, &captured), "its time counts too");
        let captured = client.engine.capture(0, b"k", now).unwrap();
        assert!(client.engine.release(&client.worker, 0, b"k", now, &captured));
        assert!(!client.engine.release(&client.worker, 0, b"k", now, &captured));
        client.table(&[("exists k", ":0")]);
        assert_eq!(client.log().last().map(String::as_str), Some("0 DEL k"));
        assert_eq!(client.engine.capture(0, b"k", now), None);
    }
}
