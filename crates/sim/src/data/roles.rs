//! Changing a process's role: in the log first, then where writes ask for it, then in the replication thread.
//!
//! Orders are carried out one after the other, as under the node's lock of the role. A change of the stream waits
//! until the piece that is being applied has been: the stream's turn.

use std::fmt::Debug;
use std::time::Duration;

use replication::replica;

use super::serving::Message;
use super::{Event, Settings, What};
use crate::Plant;
use crate::stage::Stage;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Lead,
    /// Be a replica.
    Follow {
        /// Of this process.
        master: usize,
        /// The data here is of another history.
        foreign: bool,
    },
    /// Have nothing any more.
    Empty,
}

impl<E: Debug> Stage<E> {
    /// A process is told what to be.
    pub(crate) fn order(&mut self, host: usize, order: Order) {
        self.data.stores[host].orders.push_back(order);
        self.change_role(host);
        self.plan_data_tick(host);
    }

    /// Carries out the next order, unless another is being carried out or the stream's turn is taken.
    pub(super) fn change_role(&mut self, host: usize) {
        let mid_piece = self.data.stores[host].piece.is_some() && !self.planted(Plant::EndlessStream);
        if self.data.stores[host].changing.is_some() || mid_piece {
            return;
        }
        let Some(order) = self.data.stores[host].orders.pop_front() else { return };
        let (now, own, settings) = (self.clock_of(host), self.new_history(), self.data.settings);
        let store = &mut self.data.stores[host];
        let from = store.upstream();
        let message = match order {
            Order::Follow { master, .. } if master == host => None,
            Order::Follow { master, foreign } => {
                let stream = store.following.follow(now, master, replica_config(&settings), &mut store.log);
                if foreign && stream.is_some() {
                    store.following.note_foreign();
                }
                stream.map(Message::Follow)
            }
            Order::Empty => {
                self.leave_everything(host);
                return self.change_role(host);
            }
            Order::Lead => store.following.lead(own, &mut store.log).then_some(Message::Unfollow),
        };
        let Some(message) = message else { return self.change_role(host) };
        store.changing = Some(message);
        if order == Order::Lead {
            self.see(host, What::Promoted { from });
        } else {
            self.see(host, What::Demoted);
        }
        self.see(host, What::Stands);
        let at = self.process(host);
        self.data_within(800, Event::Published { at });
    }

    pub(super) fn publish_role(&mut self, host: usize) {
        let store = &mut self.data.stores[host];
        let Some(message) = store.changing.take() else { return };
        store.gates.replica = store.upstream().is_some();
        self.note_data(host, |store| format!("is published as a replica of {:?}", store.upstream()));
        self.tell(host, message);
        self.change_role(host);
    }
}

fn replica_config(settings: &Settings) -> replica::Config {
    replica::Config {
        listening_port: 6379,
        announce_ip: None,
        node: None,
        user: None,
        password: None,
        timeout: Duration::from_secs(4),
        failover: false,
        dual_channel: settings.dual_channel,
        held_limit: settings.held,
    }
}
