//! Orders the inputs of the state machine and the execution of its actions.
//!
//! The node's cluster driver and the simulator share this logic: they pass in all new events ([`StepInputs`]) and
//! execute the returned actions one after the other. Three kinds of action come last in each step, in this order:
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

/// The actions of one step in the order in which the machine produced them, for tests that inspect them.
#[derive(Debug)]
pub struct StepOutput {
    now: Instant,
    /// Whether an operator waits for the result, in which case `nodes.conf` must be written without delay.
    is_operator_waiting: bool,
    /// The actions in the order in which the machine produced them.
    pub actions: Vec<ClusterAction>,
}

/// The part of the cluster driver that needs no sockets, threads and files.
#[derive(Debug)]
pub struct ClusterDriver {
    write_queue: WriteBarrierQueue<LinkId, Box<Packet>, PendingReply>,
    /// Replies that wait for the deletion of the dataset, one per pending deletion. `None` marks a deletion without a
    /// reply.
    awaiting_deletion: VecDeque<Option<PendingReply>>,
    /// Content for `nodes.conf` whose write was delayed, and the time at which it must be written.
    delayed_save: Option<(String, Instant)>,
    /// The replication state that was last passed to the machine.
    last_replication: ReplicationStatus,
}

impl Default for ClusterDriver {
    fn default() -> Self {
        Self {
            write_queue: WriteBarrierQueue::new(),
            awaiting_deletion: VecDeque::new(),
            delayed_save: None,
            last_replication: ReplicationStatus::default(),
        }
    }
}

impl ClusterDriver {
    /// Passes all new events and then `input` to the state machine. Returns the actions to execute now, in order.
    ///
    /// Each [`ClusterAction::Persist`] is one write of `nodes.conf`; writes are numbered from 1. Each returned
    /// [`ClusterAction::Send`] can be sent at once. The driver must acknowledge each [`ClusterAction::DeleteDataset`]
    /// with [`ClusterDriver::on_dataset_deleted`].
    pub fn feed(
        &mut self,
        machine: &mut Gossip,
        now: Instant,
        wall: Millis,
        step_inputs: StepInputs,
        input: ClusterInput,
    ) -> Vec<ClusterAction> {
        let decided = self.run_machine(machine, now, wall, step_inputs, input);
        self.order_actions(decided)
    }

    /// Runs the machine without ordering its actions; [`ClusterDriver::order_actions`] completes the step.
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
        StepOutput { now, is_operator_waiting: operator_waits, actions }
    }

    /// Orders the actions of [`ClusterDriver::run_machine`] and queues those that must wait for a write.
    pub fn order_actions(&mut self, step: StepOutput) -> Vec<ClusterAction> {
        let StepOutput { now, is_operator_waiting: operator_waits, mut actions } = step;
        let stage = |action: &ClusterAction| match action {
            ClusterAction::BecomeReplica { .. } => 1,
            ClusterAction::DeleteSlotKeys(_) => 2,
            ClusterAction::DeleteDataset => 3,
            ClusterAction::Reply { .. } => 4,
            _ => 0,
        };
        actions.sort_by_key(stage);
        let (mut out, mut empties) = (Vec::with_capacity(actions.len()), false);
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
                ClusterAction::Persist { nodes_conf: text, sync } if sync || operator_waits => {
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
                    self.awaiting_deletion.push_back(Some((token, result)));
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
            self.awaiting_deletion.push_back(None);
            out.push(ClusterAction::DeleteDataset);
        }
        out
    }

    fn persist(&mut self, text: String, sync: bool) -> ClusterAction {
        self.write_queue.count_write(sync);
        ClusterAction::Persist { nodes_conf: text, sync }
    }

    /// Records that all writes up to `number` are complete. Returns the actions that waited for them, and whether all
    /// `sync` writes are now complete, in which case the caller must feed [`ClusterInput::Persisted`].
    pub fn on_written(&mut self, number: u64) -> (Vec<ClusterAction>, bool) {
        let is_all = self.write_queue.on_written(number);
        let released = std::iter::from_fn(|| self.write_queue.pop_ready()).map(|entry| match entry {
            QueueEntry::Packet(link, packet) => ClusterAction::Send { link, packet, after_persist: false },
            QueueEntry::Reply(answer) => reply_action(answer),
        });
        (released.collect(), is_all)
    }

    /// Records that the dataset has been deleted. Returns the reply that waited for the deletion.
    pub fn on_dataset_deleted(&mut self) -> Option<ClusterAction> {
        let answer = self.awaiting_deletion.pop_front().flatten()?;
        self.write_queue.admit_reply(answer).map(reply_action)
    }

    /// When to call [`ClusterDriver::take_due_save`] next; `None` if no write is delayed.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.delayed_save.as_ref().map(|(_, at)| *at)
    }

    /// Returns the delayed write if it is due.
    pub fn take_due_save(&mut self, now: Instant) -> Option<ClusterAction> {
        let (text, _) = self.delayed_save.take_if(|(_, at)| now >= *at)?;
        Some(self.persist(text, false))
    }

    /// Returns the delayed write even if it is not due yet. Called at shutdown.
    pub fn take_final_save(&mut self) -> Option<ClusterAction> {
        let (text, _) = self.delayed_save.take()?;
        Some(self.persist(text, false))
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
