//! Orders the inputs of the state machine and the execution of its actions.
//!
//! The node and the simulator share this logic: they pass all new events ([`StepInputs`]) to the machine, report its
//! output and the results of earlier actions ([`ClusterDriverEvent`]), and execute the resulting actions one after the
//! other. Three kinds of action come last in each step, in this order:
//! becoming a replica (a node that gives up slots must first redirect clients to the new owner), deleting keys of lost
//! slots (no writes can reach them by then), and replies (a client may query the new state as soon as it has the
//! reply).
//!
//! Packets and replies that depend on `nodes.conf` wait until the file is written ([`awaiting_write`]). Changes that
//! other nodes would gossip again are written with a delay.

mod awaiting_write;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use clock::{Instant, Millis};
use driver::Driver;

use self::awaiting_write::{QueueEntry, WriteBarrierQueue};
use crate::wire::Packet;
use crate::{
    ClusterAction, ClusterConfig, ClusterInput, Gossip, LinkId, OperatorError, OperatorReply,
    ReplicationStatus,
};

/// Write delay for facts learned from other nodes, so that one write covers many facts. Losing them in a crash is
/// harmless because the nodes gossip them again.
const SAVE_DELAY: Duration = Duration::from_millis(100);

/// Token and result of an operator command whose reply is delayed.
type PendingReply = (u64, Result<OperatorReply, OperatorError>);

/// The events since the last step.
#[derive(Debug, Default)]
pub struct StepInputs {
    /// The replication state. The driver must sample it before it collects `stream_events`, so that an offset is never
    /// reported before the stream events up to that offset.
    pub replication: ReplicationStatus,
    /// Events from the master's replication stream, such as [`ClusterInput::SlotChanged`](crate::ClusterInput), in
    /// stream order.
    pub stream_events: Vec<ClusterInput>,
    /// When this node accepted its first write after its last promotion; `None` if there was none in this step.
    pub first_write: Option<Millis>,
    /// The new configuration; `None` if it did not change.
    pub config: Option<Box<ClusterConfig>>,
}

/// The actions of one step of the machine, which the driver has not ordered yet.
#[derive(Debug)]
pub struct StepOutput {
    /// Whether an operator waits for the result, in which case `nodes.conf` must be written without delay.
    is_operator_waiting: bool,
    /// The actions in the order in which the machine produced them.
    pub actions: Vec<ClusterAction>,
}

/// An event that the process reports to the driver.
#[derive(Debug)]
pub enum ClusterDriverEvent {
    /// The machine made a step ([`ClusterDriver::run_machine`]).
    MachineStepped(StepOutput),
    /// All writes of `nodes.conf` up to this number are complete. Each [`ClusterAction::Persist`] is one write; writes
    /// are numbered from 1.
    Written(u64),
    /// The dataset of the oldest pending [`ClusterAction::DeleteDataset`] has been deleted.
    DatasetDeleted,
    /// The time of [`Driver::next_deadline`] has come.
    Deadline,
    /// The process stops, so a delayed write must not wait any longer.
    Stopping,
}

/// Orders the actions of the cluster's state machine, and withholds those that must wait for a write of `nodes.conf`.
///
/// Two deviations from other drivers: the process owns the machine, because other threads query it under a lock and
/// tests inspect its output before it is ordered; and the driver itself withholds actions until a write is complete
/// instead of marking them as [`driver::PersistedActions`], because later packets must not overtake a withheld packet on
/// the same link.
#[derive(Debug)]
pub struct ClusterDriver {
    write_queue: WriteBarrierQueue<LinkId, Box<Packet>, PendingReply>,
    /// Replies that wait for the deletion of the dataset, one per pending deletion. `None` marks a deletion without a
    /// reply.
    replies_awaiting_deletion: VecDeque<Option<PendingReply>>,
    /// Content for `nodes.conf` whose write was delayed, and the time at which it must be written.
    delayed_save: Option<(String, Instant)>,
    /// The replication state that was last passed to the machine.
    last_replication: ReplicationStatus,
    /// Whether all `sync` writes have become complete since [`ClusterDriver::take_persisted`] was called.
    is_persisted: bool,
}

impl Default for ClusterDriver {
    fn default() -> Self {
        Self {
            write_queue: WriteBarrierQueue::new(),
            replies_awaiting_deletion: VecDeque::new(),
            delayed_save: None,
            last_replication: ReplicationStatus::default(),
            is_persisted: false,
        }
    }
}

impl ClusterDriver {
    /// Passes all new events and then `input` to the machine. The process reports the output as
    /// [`ClusterDriverEvent::MachineStepped`] before it runs the machine again.
    pub fn run_machine(
        &mut self,
        machine: &mut Gossip,
        now: Instant,
        wall: Millis,
        step_inputs: StepInputs,
        input: ClusterInput,
    ) -> StepOutput {
        if let ClusterInput::Closed { link } | ClusterInput::ConnectFailed { link, .. } = &input {
            self.write_queue.drop_link(*link);
        }
        let StepInputs { replication, stream_events, first_write, config } = step_inputs;
        let operator_waits = !stream_events.is_empty() || is_operator_request(&input);
        let mut inputs: Vec<ClusterInput> = config.into_iter().map(ClusterInput::Configure).collect();
        inputs.extend(stream_events);
        inputs.extend(first_write.map(|at| ClusterInput::FirstWrite { written_at: at }));
        if std::mem::replace(&mut self.last_replication, replication) != replication {
            inputs.push(ClusterInput::ReplicationChanged(replication));
        }
        inputs.push(input);
        let mut actions = Vec::new();
        inputs.into_iter().for_each(|input| machine.handle(now, wall, input, &mut actions));
        StepOutput { is_operator_waiting: operator_waits, actions }
    }

    /// Returns whether all `sync` writes have become complete since the last call. The process must then run the
    /// machine with [`ClusterInput::Persisted`].
    pub fn take_persisted(&mut self) -> bool {
        std::mem::take(&mut self.is_persisted)
    }

    /// Orders the actions of a step and queues those that must wait for a write.
    fn order_actions(&mut self, now: Instant, step: StepOutput, out: &mut Vec<ClusterAction>) {
        let StepOutput { is_operator_waiting: operator_waits, mut actions } = step;
        let stage = |action: &ClusterAction| match action {
            ClusterAction::BecomeReplica { .. } => 1,
            ClusterAction::DeleteSlotKeys(_) => 2,
            ClusterAction::DeleteDataset => 3,
            ClusterAction::Reply { .. } => 4,
            _ => 0,
        };
        actions.sort_by_key(stage);
        let mut empties = false;
        for action in actions {
            match action {
                ClusterAction::Send { link, packet, after_persist } => {
                    let packet = self.write_queue.admit_packet(link, packet, after_persist);
                    out.extend(packet.map(|packet| ClusterAction::Send { link, packet, after_persist }));
                }
                ClusterAction::Close { link } => {
                    self.write_queue.drop_link(link);
                    out.push(action);
                }
                ClusterAction::Persist { nodes_conf: text, must_sync: sync } if sync || operator_waits => {
                    self.delayed_save = None;
                    out.push(self.persist(text, sync));
                }
                ClusterAction::Persist { nodes_conf: text, .. } => {
                    let at = self.delayed_save.take().map_or(now + SAVE_DELAY, |(_, at)| at);
                    self.delayed_save = Some((text, at));
                }
                ClusterAction::BecomeReplica { is_data_foreign: foreign, .. } => {
                    if foreign {
                        // The state machine resets its replication state in the same step.
                        self.last_replication = ReplicationStatus::default();
                    }
                    out.push(action);
                }
                ClusterAction::DeleteDataset => empties = true,
                ClusterAction::Reply { token, result } if empties => {
                    self.replies_awaiting_deletion.push_back(Some((token, result)));
                    out.push(ClusterAction::DeleteDataset);
                    empties = false;
                }
                ClusterAction::Reply { token, result } => {
                    out.extend(self.write_queue.admit_reply((token, result)).map(reply_action));
                }
                other => out.push(other),
            }
        }
        if empties {
            self.replies_awaiting_deletion.push_back(None);
            out.push(ClusterAction::DeleteDataset);
        }
    }

    fn persist(&mut self, text: String, must_sync: bool) -> ClusterAction {
        self.write_queue.count_write(must_sync);
        ClusterAction::Persist { nodes_conf: text, must_sync }
    }

    fn on_written(&mut self, number: u64, out: &mut Vec<ClusterAction>) {
        self.is_persisted |= self.write_queue.on_written(number);
        out.extend(std::iter::from_fn(|| self.write_queue.pop_ready()).map(|entry| match entry {
            QueueEntry::Packet(link, packet) => ClusterAction::Send { link, packet, after_persist: false },
            QueueEntry::Reply(answer) => reply_action(answer),
        }));
    }

    /// Sends the reply that waited for the deletion of the dataset.
    fn on_dataset_deleted(&mut self, out: &mut Vec<ClusterAction>) {
        let answer = self.replies_awaiting_deletion.pop_front().flatten();
        out.extend(answer.and_then(|answer| self.write_queue.admit_reply(answer)).map(reply_action));
    }
}

impl Driver for ClusterDriver {
    type Event = ClusterDriverEvent;
    type Actions = Vec<ClusterAction>;

    fn handle(&mut self, now: Instant, event: ClusterDriverEvent, out: &mut Vec<ClusterAction>) {
        let delayed = match event {
            ClusterDriverEvent::MachineStepped(step) => return self.order_actions(now, step, out),
            ClusterDriverEvent::Written(number) => return self.on_written(number, out),
            ClusterDriverEvent::DatasetDeleted => return self.on_dataset_deleted(out),
            ClusterDriverEvent::Deadline => self.delayed_save.take_if(|(_, at)| now >= *at),
            ClusterDriverEvent::Stopping => self.delayed_save.take(),
        };
        out.extend(delayed.map(|(text, _)| self.persist(text, false)));
    }

    /// Returns when the delayed write is due. The machine has a deadline of its own ([`Gossip::next_deadline`]).
    fn next_deadline(&self) -> Option<Instant> {
        self.delayed_save.as_ref().map(|(_, at)| *at)
    }
}

fn is_operator_request(input: &ClusterInput) -> bool {
    matches!(
        input,
        ClusterInput::Command { .. }
            | ClusterInput::Configure(_)
            | ClusterInput::NodeStarted
            | ClusterInput::ReplicasAcknowledged { .. }
    )
}

fn reply_action((token, result): PendingReply) -> ClusterAction {
    ClusterAction::Reply { token, result }
}
