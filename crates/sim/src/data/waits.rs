//! Simulates clients that block on keys, one client per server.

use std::fmt::Debug;

use super::KeyGroup;
use super::data_store::marker_key;
use crate::simulation::Simulation;
use crate::waiting::WaitingClient;
use crate::{InjectedBug, clients};

/// The blocking client of a server, and the slot of the keys in its last command.
pub(super) struct BlockingClient {
    pub(super) client: WaitingClient,
    pub(super) key_group: KeyGroup,
}

impl<E: Debug> Simulation<E> {
    /// Lets the client continue or send a blocking command, then checks that it is not blocked in vain.
    pub(super) fn block_client(&mut self, host: usize) {
        let wall = self.wall_clock_of(host);
        let slots: Vec<KeyGroup> = self.data.slots.iter().map(|slot| slot.number()).collect();
        let wanted = self.random.random_bool(20).then(|| self.random.pick_random(&slots));
        let endless = self.has_injected_bug(InjectedBug::MissedWakeups);
        let store = &mut self.data.process_states[host];
        let BlockingClient { mut client, key_group: key } =
            store.blocking_client.take().unwrap_or_else(|| BlockingClient {
                client: WaitingClient::new(store.data_store.connect()),
                key_group: slots[0],
            });
        let key = if client.awaits_reply() { key } else { wanted.unwrap_or(key) };
        let is_free = !store.is_locked(key);
        // Clients of writable replicas do not block, because their commands would make the data differ from the
        // master's.
        let begins = !client.awaits_reply() && wanted.is_some() && is_free && !store.allows_local_writes();
        let (told, effects) = store.data_store.with_executor(|data| match client.awaits_reply() {
            true if is_free && !endless => client.end_wait_if_due(data, wall),
            false if begins => {
                let (command, length) = clients::blocking_command(marker_key(key), &mut self.random);
                Some(client.send(data, 0, wall, command, length))
            }
            _ => None,
        });
        if client.is_closed() {
            store.data_store.disconnect(&client);
        } else {
            store.blocking_client = Some(BlockingClient { client, key_group: key });
        }
        if let Some(told) = told {
            self.trace(|| format!("at host {host}: {}", told.escape_debug()));
        }
        self.log_effects(host, &effects);
        self.check_waits(host);
    }
}
