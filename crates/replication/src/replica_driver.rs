//! Drives the replica side of replication: combines the [`Replica`] state machine with the log and with role changes.
//! The node and the simulator run this same driver.
//!
//! The process owns the connections, the threads that load and apply data, and the clock. It performs each
//! [`ReplicaDriverAction`] in sequence:
//!
//! | | the process | the driver |
//! | --- | --- | --- |
//! | 1 | learns its master, calls [`ReplicaDriver::follow`] | starts a new stream in the log; new writes are refused |
//! | 2 | publishes the role; sends [`ReplicaDriverEvent::WritesDrained`] once running writes have finished | records the position of the data |
//! | 3 | sends [`ReplicaDriverEvent::LinkEvent`] for events of the connections, the snapshot and the stream | returns [`ReplicaDriverAction::LinkAction`] |
//! | 4 | is promoted, calls [`ReplicaDriver::promote`] | gives the history a new id; later data of the stream is dropped |
//!
//! Invariants: a node follows one master at a time. Late events of an earlier master (an applied batch, a loaded
//! snapshot, a broken link) have no effect. While the process applies a batch of the stream, the state machine reads
//! nothing else and its timers are stopped.

#[cfg(test)]
mod tests;

use clock::Instant;
use slot_routing::ReplOffset;

use crate::id::ReplId;
use crate::log::{Log, StreamSupersededError};
use crate::master_driver::LogLock;
use crate::replica::{self, LinkState, Replica, ReplicaAction, ReplicaConfig};
use crate::write_authority::StreamEpoch;

/// An event of one stream that the process reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaDriverEvent {
    /// Every write admitted before the stream started is in the log, and no snapshot is being loaded.
    WritesDrained,
    /// An event of the connections to the master, the snapshot or the stream.
    LinkEvent(replica::ReplicaEvent),
}

/// An action for the process to perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaDriverAction {
    /// The stream was superseded: close the connections to its master.
    StreamSuperseded,
    /// The history of this node was replaced, so its replicas must resynchronise.
    HistoryReplaced,
    /// Perform an action of the [`Replica`] state machine.
    LinkAction(ReplicaAction),
}

/// Drives the replica side of replication. Idle on a master. `M` identifies a master.
///
/// This type does not implement [`driver::Driver`], for two reasons. [`ReplicaDriver::handle`] takes the log as a
/// further argument, because a role change, the acceptance of a stream and a new replication id must take effect under
/// the lock of the log, which other threads share. And a role change need not wait for the task that follows the earlier
/// master: that task names its stream with each event and deadline, so that a late one has no effect.
#[derive(Debug)]
pub struct ReplicaDriver<M> {
    /// The followed master; `None` if this node is a master.
    followed_master: Option<Upstream<M>>,
}

#[derive(Debug)]
struct Upstream<M> {
    master: M,
    stream: StreamEpoch,
    replica: Replica,
    pending_work: PendingWork,
    /// Whether the data belongs to a history other than the master's. Cleared once the master has sent its own data.
    is_data_foreign: bool,
}

/// Work of the process that must finish before the state machine continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PendingWork {
    /// The process finishes writes that it admitted as a master, or loads a snapshot of an earlier master.
    FinishEarlierRole,
    None,
    /// The process applies a batch of the stream.
    ApplyBatch,
}

impl<M> Default for ReplicaDriver<M> {
    /// A node starts as a master.
    fn default() -> Self {
        Self { followed_master: None }
    }
}

impl<M: PartialEq> ReplicaDriver<M> {
    /// Returns the followed master, if this node is a replica.
    #[must_use]
    pub fn master(&self) -> Option<&M> {
        self.followed_master.as_ref().map(|upstream| &upstream.master)
    }

    /// Returns the state machine of the link, if this node is a replica.
    #[must_use]
    pub fn replica(&self) -> Option<&Replica> {
        self.followed_master.as_ref().map(|upstream| &upstream.replica)
    }

    /// Returns the master and the state machine of the link to it, if this node is a replica.
    #[must_use]
    pub fn followed_master(&self) -> Option<(&M, &Replica)> {
        self.followed_master.as_ref().map(|upstream| (&upstream.master, &upstream.replica))
    }

    /// Returns the current stream. It may not have been admitted by the log yet.
    #[must_use]
    pub fn stream(&self) -> Option<StreamEpoch> {
        self.followed_master.as_ref().map(|upstream| upstream.stream)
    }

    /// Returns whether this node receives every change of its master. A master counts as in sync.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        self.replica().is_none_or(|replica| replica.link_state() == LinkState::Connected)
    }

    /// Returns whether the data is a possibly old state of this master. False while a snapshot is being loaded and
    /// after a failed load, which leaves no data.
    #[must_use]
    pub fn has_data(&self, log: &Log) -> bool {
        log.is_open() && self.replica().is_some_and(Replica::was_ever_up)
    }

    /// Returns the offset that ranks this node in a failover. It is zero if the data belongs to no history or to a
    /// history other than its master's; otherwise an incomparable larger offset could win the election.
    #[must_use]
    pub fn failover_offset(&self, log: &Log) -> ReplOffset {
        let has_none = self
            .followed_master
            .as_ref()
            .is_some_and(|upstream| !log.is_open() || upstream.has_foreign_data());
        if has_none { ReplOffset(0) } else { log.position().offset }
    }

    /// Records that the data belongs to a history other than the master's, because the replica came from another shard.
    /// [`ReplicaDriver::failover_offset`] is zero until the master has sent its own data. As in Valkey, a restart
    /// clears this mark.
    pub fn mark_data_foreign(&mut self) {
        if let Some(upstream) = &mut self.followed_master {
            upstream.is_data_foreign = true;
        }
    }

    /// Changes the configuration. Timeouts apply at once, the other options with the next handshake.
    pub fn set_config(&mut self, config: ReplicaConfig) {
        if let Some(upstream) = &mut self.followed_master {
            upstream.replica.set_config(config);
        }
    }

    /// Sets the offset up to which the append-only file is on disk, for the next acknowledgement.
    pub fn set_fsynced_offset(&mut self, synced_offset: Option<ReplOffset>) {
        if let Some(upstream) = &mut self.followed_master {
            upstream.replica.set_fsynced_offset(synced_offset);
        }
    }

    /// Returns whether the process should read from the main connection. Unread data stays in the master's output
    /// buffer.
    #[must_use]
    pub fn should_read(&self, stream_epoch: StreamEpoch) -> bool {
        self.idle_upstream(stream_epoch).is_some_and(|upstream| upstream.replica.should_read())
    }

    /// Returns whether the process should read from the connection that transfers the snapshot.
    #[must_use]
    pub fn should_read_rdb_channel(&self, stream_epoch: StreamEpoch) -> bool {
        self.idle_upstream(stream_epoch).is_some()
    }

    /// Returns the time of the next `Deadline` event; `None` while the process finishes pending work.
    #[must_use]
    pub fn next_deadline(&self, stream_epoch: StreamEpoch) -> Option<Instant> {
        self.idle_upstream(stream_epoch)?.replica.next_deadline()
    }

    fn idle_upstream(&self, stream_epoch: StreamEpoch) -> Option<&Upstream<M>> {
        self.followed_master
            .as_ref()
            .filter(|upstream| upstream.stream == stream_epoch && upstream.pending_work == PendingWork::None)
    }

    /// Starts to follow `master` and returns the new stream. The caller then publishes the role and sends
    /// [`ReplicaDriverEvent::WritesDrained`] once running writes have finished. Returns `None` if this node already follows
    /// `master`.
    pub fn follow(
        &mut self,
        now: Instant,
        master: M,
        config: ReplicaConfig,
        log: &mut impl LogLock,
    ) -> Option<StreamEpoch> {
        if self.master() == Some(&master) {
            return None;
        }
        let stream = log.with_log(Log::demote);
        let replica = Replica::new(config, None, now);
        let foreign = self.followed_master.as_ref().is_some_and(Upstream::has_foreign_data);
        self.followed_master = Some(Upstream {
            master,
            stream,
            replica,
            pending_work: PendingWork::FinishEarlierRole,
            is_data_foreign: foreign,
        });
        Some(stream)
    }

    /// Makes this node a master whose history continues under the replication id `new_id`. Must not be called while a
    /// batch of the stream is being applied. Returns false if the node already was a master.
    pub fn promote(&mut self, new_id: ReplId, log: &mut impl LogLock) -> bool {
        let was_replica = self.followed_master.take().is_some();
        if was_replica {
            log.with_log(|log| log.promote(new_id));
        }
        was_replica
    }

    /// Handles an event of `stream` and appends the resulting actions to `out`.
    pub fn handle(
        &mut self,
        now: Instant,
        stream: StreamEpoch,
        input: ReplicaDriverEvent,
        log: &mut impl LogLock,
        out: &mut Vec<ReplicaDriverAction>,
    ) {
        let current = self.followed_master.as_mut().filter(|upstream| upstream.stream == stream);
        match (current, input) {
            (None, _) => out.push(ReplicaDriverAction::StreamSuperseded),
            (Some(upstream), ReplicaDriverEvent::WritesDrained) => upstream.start_link(log, out),
            (Some(upstream), ReplicaDriverEvent::LinkEvent(input)) => {
                upstream.on_link_event(now, input, log, out);
            }
        }
    }
}

impl<M> Upstream<M> {
    fn has_foreign_data(&self) -> bool {
        self.is_data_foreign && !self.replica.was_ever_up()
    }

    /// Starts the link to the master with the final position of the data, from which the master should continue.
    fn start_link(&mut self, log: &mut impl LogLock, out: &mut Vec<ReplicaDriverAction>) {
        match log.with_log(|log| log.accept_stream(self.stream)) {
            Ok(position) => {
                self.replica.set_initial_position(position);
                self.pending_work = PendingWork::None;
            }
            Err(StreamSupersededError) => out.push(ReplicaDriverAction::StreamSuperseded),
        }
    }

    fn on_link_event(
        &mut self,
        now: Instant,
        event: replica::ReplicaEvent,
        log: &mut impl LogLock,
        out: &mut Vec<ReplicaDriverAction>,
    ) {
        match &event {
            replica::ReplicaEvent::Applied { .. }
            | replica::ReplicaEvent::InvalidStream(_)
            | replica::ReplicaEvent::Closed => {
                self.pending_work = PendingWork::None;
            }
            replica::ReplicaEvent::ReplacingData => out.push(ReplicaDriverAction::HistoryReplaced),
            _ => {}
        }
        let mut actions = Vec::new();
        self.replica.handle(now, event, &mut actions);
        for action in actions {
            match &action {
                ReplicaAction::StreamBytes(_) => self.pending_work = PendingWork::ApplyBatch,
                ReplicaAction::LoadSnapshot { .. } => out.push(ReplicaDriverAction::HistoryReplaced),
                ReplicaAction::Resume { id, .. } => {
                    let renamed = log.with_log(|log| {
                        let renamed = log.position().id != *id;
                        if renamed {
                            log.change_id(*id);
                        }
                        renamed
                    });
                    out.extend(renamed.then_some(ReplicaDriverAction::HistoryReplaced));
                }
                _ => {}
            }
            out.push(ReplicaDriverAction::LinkAction(action));
        }
    }
}
