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

use self::awaiting_write::{AwaitingWrite, QueueEntry};
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
    operator_waits: bool,
    /// The actions in the order in which the machine produced them.
    pub actions: Vec<ClusterAction>,
}

/// The part of the cluster driver that needs no sockets, threads and files.
#[derive(Debug)]
pub struct ClusterDriver {
    held: AwaitingWrite<LinkId, Box<Packet>, PendingReply>,
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
            held: AwaitingWrite::new(),
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
    /// [`ClusterAction::Send`] can be sent at once. The driver must acknowledge each [`ClusterAction::DropEverything`]
    /// with [`ClusterDriver::note_emptied`].
    pub fn feed(
        &mut self,
        machine: &mut Gossip,
        times: (Instant, Millis),
        new: StepInputs,
        input: ClusterInput,
    ) -> Vec<ClusterAction> {
        let decided = self.run_machine(machine, times, new, input);
        self.order_actions(decided)
    }

    /// Runs the machine without ordering its actions; [`ClusterDriver::order_actions`] completes the step.
    pub fn run_machine(
        &mut self,
        machine: &mut Gossip,
        (now, wall): (Instant, Millis),
        new: StepInputs,
        input: ClusterInput,
    ) -> StepOutput {
        if let ClusterInput::Closed { link } | ClusterInput::ConnectFailed { link, .. } = &input {
            self.held.drop_link(*link);
        }
        let StepInputs { replication, stream_events, first_write, config } = new;
        let operator_waits = !stream_events.is_empty() || is_operator_request(&input);
        let mut inputs: Vec<ClusterInput> = config.into_iter().map(ClusterInput::Configure).collect();
        inputs.extend(stream_events);
        inputs.extend(first_write.map(|at| ClusterInput::FirstWrite { at }));
        if std::mem::replace(&mut self.last_replication, replication) != replication {
            inputs.push(ClusterInput::Replication(replication));
        }
        inputs.push(input);
        let mut actions = Vec::new();
        inputs.into_iter().for_each(|input| machine.handle(now, wall, input, &mut actions));
        StepOutput { now, operator_waits, actions }
    }

    /// Orders the actions of [`ClusterDriver::run_machine`] and queues those that must wait for a write.
    pub fn order_actions(&mut self, decided: StepOutput) -> Vec<ClusterAction> {
        let StepOutput { now, operator_waits, mut actions } = decided;
        let stage = |action: &ClusterAction| match action {
            ClusterAction::BecomeReplica { .. } => 1,
            ClusterAction::DropSlots(_) => 2,
            ClusterAction::DropEverything => 3,
            ClusterAction::Reply { .. } => 4,
            _ => 0,
        };
        actions.sort_by_key(stage);
        let (mut out, mut empties) = (Vec::with_capacity(actions.len()), false);
        for action in actions {
            match action {
                ClusterAction::Send { link, packet, after_persist } => {
                    let packet = self.held.admit_packet(link, packet, after_persist);
                    out.extend(packet.map(|packet| ClusterAction::Send { link, packet, after_persist }));
                }
                ClusterAction::Close { link } => {
                    self.held.drop_link(link);
                    out.push(action);
                }
                ClusterAction::Persist { text, sync } if sync || operator_waits => {
                    self.delayed_save = None;
                    out.push(self.persist(text, sync));
                }
                ClusterAction::Persist { text, .. } => {
                    let at = self.delayed_save.take().map_or(now + SAVE_DELAY, |(_, at)| at);
                    self.delayed_save = Some((text, at));
                }
                ClusterAction::BecomeReplica { foreign, .. } => {
                    if foreign {
                        // The state machine resets its replication state in the same step.
                        self.last_replication = ReplicationStatus::default();
                    }
                    out.push(action);
                }
                ClusterAction::DropEverything => empties = true,
                ClusterAction::Reply { token, result } if empties => {
                    self.awaiting_deletion.push_back(Some((token, result)));
                    out.push(ClusterAction::DropEverything);
                    empties = false;
                }
                ClusterAction::Reply { token, result } => {
                    out.extend(self.held.admit_reply((token, result)).map(reply));
                }
                other => out.push(other),
            }
        }
        if empties {
            self.awaiting_deletion.push_back(None);
            out.push(ClusterAction::DropEverything);
        }
        out
    }

    fn persist(&mut self, text: String, sync: bool) -> ClusterAction {
        self.held.count_write(sync);
        ClusterAction::Persist { text, sync }
    }

    /// Records that all writes up to `number` are complete. Returns the actions that waited for them, and whether all
    /// `sync` writes are now complete, in which case the caller must feed [`ClusterInput::Persisted`].
    pub fn note_written(&mut self, number: u64) -> (Vec<ClusterAction>, bool) {
        let is_all = self.held.note_written(number);
        let released = std::iter::from_fn(|| self.held.pop_ready()).map(|entry| match entry {
            QueueEntry::Packet(link, packet) => ClusterAction::Send { link, packet, after_persist: false },
            QueueEntry::Answer(answer) => reply(answer),
        });
        (released.collect(), is_all)
    }

    /// Records that the dataset has been deleted. Returns the reply that waited for the deletion.
    pub fn note_emptied(&mut self) -> Option<ClusterAction> {
        let answer = self.awaiting_deletion.pop_front().flatten()?;
        self.held.admit_reply(answer).map(reply)
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
            | ClusterInput::Start
            | ClusterInput::ReplicasAcknowledged { .. }
    )
}

fn reply((token, result): PendingReply) -> ClusterAction {
    ClusterAction::Reply { token, result }
}
