//! Simulates the connections of an atomic slot migration. A connection carries ordered bytes or its end. A new
//! connection replaces the old one, whose bytes in flight are lost.
//!
//! At the target the listener reads the first commands of a connection, as in a real node. ESTABLISH or RESUME then
//! hands the connection over to the driver.

use std::time::Duration;

use clock::Instant;
use migration::{ControlCommand, ExportDriverEvent, ImportDriverEvent, SyncSlotsCommand};
use resp::{Batch, ParseLimits, Parser};

use super::whole_moves::{MigrationStep, SOURCE_SIDE, TARGET_SIDE};
use super::{ClusterEvent, ClusterWorld};
use crate::delivery_queue::{DeliveryPoll, DeliveryQueue};

/// Bytes delayed by the network are sent again after this time.
const RESEND_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct MigrationLink {
    /// The number of the current connection, the last one that was opened.
    connection_number: u64,
    state: ConnectionState,
    /// Bytes and the end of the connection, in flight to each side.
    queues: [DeliveryQueue<LinkItem>; 2],
    /// Whether the target supports RESUME, which Valkey does not.
    is_resumable: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionState {
    Closed,
    Dialling,
    /// The target's listener reads the connection.
    AtListener,
    /// The target's driver reads the connection.
    AtDriver,
}

#[derive(Debug, Clone)]
enum LinkItem {
    Connected,
    Bytes(Vec<u8>),
    Closed,
}

impl MigrationLink {
    pub(super) fn new(is_resumable: bool) -> Self {
        let queues = [DeliveryQueue::default(), DeliveryQueue::default()];
        Self { connection_number: 0, state: ConnectionState::Closed, queues, is_resumable }
    }

    /// Returns whether no bytes and no connection end are in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.queues.iter().all(DeliveryQueue::is_empty)
    }
}

impl ClusterWorld {
    /// Opens a new connection from the source to the target.
    pub(super) fn dial_target(&mut self, number: u64, timeout: Duration) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        one.link.connection_number += 1;
        one.link.state = ConnectionState::Dialling;
        one.link.queues = [DeliveryQueue::default(), DeliveryQueue::default()];
        let (connection, [from, to]) = (one.link.connection_number, one.hosts);
        let time = self.simulation.draw_latency(from, to);
        let step = MigrationStep::DialArrives { connection, until: self.simulation.now + timeout };
        self.simulation.schedule_after(time, ClusterEvent::MigrationStep { number, step });
    }

    /// Handles a connection attempt that reaches its host. A frozen process still accepts connections.
    pub(super) fn on_migration_dialled(&mut self, number: u64, connection: u64, until: Instant) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        if one.link.connection_number != connection || one.link.state != ConnectionState::Dialling {
            return;
        }
        let [from, to] = one.hosts;
        let not_connected =
            ClusterEvent::MigrationStep { number, step: MigrationStep::NotConnected { connection } };
        if self.simulation.cannot_communicate(from, to) || !self.simulation.processes[to].has_power {
            return self.simulation.schedule_at(until, not_connected);
        }
        // The process at this address has restarted and does not know the migration.
        if !self.simulation.is_incarnation(to, one.incarnations[TARGET_SIDE]) {
            return self.simulation.schedule_at(self.simulation.now, not_connected);
        }
        one.link.state = ConnectionState::AtListener;
        self.enqueue_migration_item(number, SOURCE_SIDE, LinkItem::Connected);
    }

    pub(super) fn on_not_connected(&mut self, number: u64, connection: u64) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        if one.link.connection_number == connection && one.link.state == ConnectionState::Dialling {
            one.link.state = ConnectionState::Closed;
            self.notify_source(number, ExportDriverEvent::ConnectFailed("refused".to_owned()));
        }
    }

    /// Breaks the connection as a network fault does: each side learns of the end, and all items in flight are lost.
    pub(super) fn break_migration_link(&mut self, number: u64) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        if matches!(one.link.state, ConnectionState::AtListener | ConnectionState::AtDriver) {
            self.simulation.trace(|| format!("the link of move {number} breaks"));
            let link = &mut one.link;
            link.state = ConnectionState::Closed;
            link.connection_number += 1;
            link.queues = [DeliveryQueue::default(), DeliveryQueue::default()];
            for side in [SOURCE_SIDE, TARGET_SIDE] {
                self.enqueue_migration_item(number, side, LinkItem::Closed);
            }
        }
    }

    /// Closes the connection at one side.
    pub(super) fn close_migration_link(&mut self, number: u64, side: usize) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        let state = std::mem::replace(&mut one.link.state, ConnectionState::Closed);
        if matches!(state, ConnectionState::AtListener | ConnectionState::AtDriver) {
            self.enqueue_migration_item(number, 1 - side, LinkItem::Closed);
        }
    }

    /// Sends bytes from one side to the other.
    pub(super) fn send_migration_bytes(&mut self, number: u64, side: usize, bytes: Vec<u8>) {
        let state = self.atomic_migrations.get(&number).map(|one| one.link.state);
        if matches!(state, Some(ConnectionState::AtListener | ConnectionState::AtDriver)) {
            self.enqueue_migration_item(number, 1 - side, LinkItem::Bytes(bytes));
        }
    }

    fn enqueue_migration_item(&mut self, number: u64, to: usize, item: LinkItem) {
        let Some(one) = self.atomic_migrations.get(&number) else { return };
        let at = self.simulation.now + self.simulation.draw_latency(one.hosts[1 - to], one.hosts[to]);
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        let connection = one.link.connection_number;
        if let Some(at) = one.link.queues[to].push(at, item) {
            let step = MigrationStep::ItemArrives { side: to, connection };
            self.simulation.schedule_at(at, ClusterEvent::MigrationStep { number, step });
        }
    }

    /// Resumes reading the target's connection after pending commands have been executed.
    pub(super) fn resume_reading(&mut self, number: u64) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        if let Some(target) = &mut one.target
            && target.driver.can_read()
            && std::mem::take(&mut target.has_unread_bytes)
        {
            let step =
                MigrationStep::ItemArrives { side: TARGET_SIDE, connection: one.link.connection_number };
            self.simulation.schedule_at(self.simulation.now, ClusterEvent::MigrationStep { number, step });
        }
    }

    pub(super) fn receive_migration_items(&mut self, number: u64, side: usize, connection: u64) {
        let frozen = self.side_status(number, side).flatten().map(|until| until.since(self.simulation.now));
        let now = self.simulation.now;
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        if one.link.connection_number != connection {
            return;
        }
        if side == TARGET_SIDE
            && let Some(target) = &mut one.target
            && !target.driver.can_read()
        {
            target.has_unread_bytes = true;
            return;
        }
        let [from, to] = one.hosts;
        let apart = self.simulation.cannot_communicate(from, to).then_some(RESEND_INTERVAL);
        let again =
            ClusterEvent::MigrationStep { number, step: MigrationStep::ItemArrives { side, connection } };
        match one.link.queues[side].next(now, frozen.or(apart)) {
            DeliveryPoll::Empty => {}
            DeliveryPoll::RetryAt(at) => self.simulation.schedule_at(at, again),
            DeliveryPoll::Item(item) => {
                self.simulation.schedule_at(now, again);
                let more = !one.link.queues[side].is_empty();
                if self.side_status(number, side).is_none() {
                    return;
                }
                if side == SOURCE_SIDE {
                    self.on_item_for_source(number, item);
                } else {
                    self.on_item_for_target(number, item, more);
                }
            }
        }
    }

    fn on_item_for_source(&mut self, number: u64, item: LinkItem) {
        let event = match item {
            LinkItem::Connected => ExportDriverEvent::Connected,
            LinkItem::Bytes(bytes) => ExportDriverEvent::Received(bytes),
            LinkItem::Closed => ExportDriverEvent::Closed,
        };
        self.notify_source(number, event);
    }

    fn on_item_for_target(&mut self, number: u64, item: LinkItem, has_more: bool) {
        let Some(one) = self.atomic_migrations.get(&number) else { return };
        match (item, one.link.state) {
            (LinkItem::Bytes(bytes), ConnectionState::AtListener) => {
                self.handle_first_commands(number, bytes);
            }
            (LinkItem::Bytes(bytes), _) => {
                self.notify_target(number, ImportDriverEvent::Received { bytes, has_more });
            }
            (LinkItem::Closed, _) => self.notify_target(number, ImportDriverEvent::Closed),
            (LinkItem::Connected, _) => {}
        }
    }

    /// Handles the first commands on a connection, before they assign it to a migration.
    fn handle_first_commands(&mut self, number: u64, mut bytes: Vec<u8>) {
        let Some(one) = self.atomic_migrations.get_mut(&number) else { return };
        let limits = ParseLimits { max_requests: 1, ..ParseLimits::default() };
        let mut batch = Batch::default();
        let parsed = Parser::new().parse(&mut bytes, &mut batch, &limits);
        assert!(parsed.error.is_none() && batch.len() == 1, "a source begins with whole commands");
        let rest = bytes.split_off(parsed.consumed_bytes);
        let reply: &[u8] = match ControlCommand::decode(batch.args(0, &bytes)) {
            Ok(Some(ControlCommand::SyncSlots(SyncSlotsCommand::QueryResumable)))
                if one.link.is_resumable =>
            {
                b"+OK\r\n"
            }
            Ok(Some(ControlCommand::SyncSlots(SyncSlotsCommand::Establish(establish)))) => {
                one.link.state = ConnectionState::AtDriver;
                if self.accept_migration(number, establish, rest) {
                    return;
                }
                b"-ERR\r\n"
            }
            Ok(Some(ControlCommand::SyncSlots(SyncSlotsCommand::Resume(_)))) if one.target.is_some() => {
                one.link.state = ConnectionState::AtDriver;
                return self.notify_target(number, ImportDriverEvent::Resumed(rest));
            }
            _ => b"-ERR\r\n",
        };
        self.send_migration_bytes(number, TARGET_SIDE, reply.to_vec());
    }
}
