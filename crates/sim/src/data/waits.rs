//! Simulates clients that block on keys, one per server.

use std::fmt::Debug;

use super::Key;
use super::held::name_of;
use crate::stage::Stage;
use crate::waiting::WaitingClient;
use crate::{Plant, clients};

/// A server's client, and the slot of its last command's keys.
pub(super) struct Waits {
    pub(super) client: WaitingClient,
    pub(super) key: Key,
}

impl<E: Debug> Stage<E> {
    /// Lets the client continue or block, then checks that it does not block in vain.
    pub(super) fn let_wait(&mut self, host: usize) {
        let wall = self.wall_of(host);
        let slots: Vec<Key> = self.data.slots.iter().map(|slot| slot.number()).collect();
        let wanted = self.chance.percent(20).then(|| self.chance.pick(&slots));
        let endless = self.planted(Plant::EndlessWaits);
        let store = &mut self.data.stores[host];
        let Waits { mut client, key } = store
            .waits
            .take()
            .unwrap_or_else(|| Waits { client: WaitingClient::new(store.held.connect()), key: slots[0] });
        let key = if client.waits() { key } else { wanted.unwrap_or(key) };
        let is_free = !store.is_locked(key);
        // A replica's local write would remain in its data.
        let begins = !client.waits() && wanted.is_some() && is_free && !store.writes_for_itself();
        let (told, effects) = store.held.with(|data| match client.waits() {
            true if is_free && !endless => client.end(data, wall),
            false if begins => {
                let wait = clients::wait(name_of(key), &mut self.chance);
                Some(client.send(data, (0, wall), wait))
            }
            _ => None,
        });
        if client.is_closed() {
            store.held.disconnect(&client);
        } else {
            store.waits = Some(Waits { client, key });
        }
        if let Some(told) = told {
            self.note(|| format!("at host {host}: {}", told.escape_debug()));
        }
        self.log_effects(host, &effects);
        self.check_waits(host);
    }
}
