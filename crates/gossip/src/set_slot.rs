//! SETSLOT requests, which the replicas must acknowledge before they are executed.
//!
//! A replica must know its master's marks. A promoted replica without them would treat migrated keys as missing, accept
//! writes for them, and refuse the keys that its master imported. As in Valkey since version 8, a SETSLOT is therefore
//! written into the replication stream first ([`ClusterAction::ReplicateSlotChange`]), and executed and answered once the
//! replicas have acknowledged it ([`ClusterInput::ReplicasAcknowledged`](crate::ClusterInput)); all keys migrated
//! afterwards follow it in the stream. A master without known replicas does not wait, but writes the change as well.
//! Snapshots contain the marks ([`ClusterInput::SlotMarksLoaded`](crate::ClusterInput)), and so does `nodes.conf` on
//! masters and replicas. During a manual failover the stream must not grow, so a SETSLOT waits until the failover has
//! ended. A restarted master that is still comparing its data with its replicas' ([`self_fail`](crate::self_fail))
//! accepts no replicas yet, and one of them may take over without the mark, so this master refuses SETSLOT.

use std::collections::VecDeque;

use slot_routing::{NodeId, Slot};

use crate::commands::{OperatorError, OperatorReply, SlotChange};
use crate::contract::{ClusterAction, ReplicaConfirmation};
use crate::effect::Effect;
use crate::manual_failover::StreamState;
use crate::slot_moves::{apply_replicated_change, check_set_slot, set_slot};
use crate::state::ClusterState;

/// SETSLOT requests that have not been answered, in order of arrival and execution.
///
/// The replication stream contains the requests in this order. If a request fails, the actual state of its slot is
/// written to the stream again ([`SetSlotQueue::finish`]). A later request for the same slot may already be in the
/// stream at that time, so it is no longer the last change there, and the slot's state is resent once more after that
/// request is executed.
#[derive(Debug, Default)]
pub(crate) struct SetSlotQueue(VecDeque<(SetSlotRequest, RequestProgress)>);

/// A SETSLOT command of an operator that has not been answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetSlotRequest {
    pub(crate) confirmation: ReplicaConfirmation,
    pub(crate) slot: Slot,
    pub(crate) change: SlotChange,
    /// Number of keys that this node has in the slot, as last reported by the driver.
    pub(crate) keys_in_slot: u64,
}

/// The progress of a SETSLOT request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestProgress {
    /// The request has not been written to the replication stream.
    New,
    /// The request has been written to the stream. `is_resent` means that the slot's state was written again
    /// afterwards.
    Written { is_resent: bool },
    /// All replicas have acknowledged the request (`is_acknowledged`), or have failed to do so in time.
    Confirmed { is_acknowledged: bool, is_resent: bool },
}

/// A request whose acknowledgement has succeeded or failed.
#[derive(Debug)]
pub(crate) struct ConfirmedRequest {
    request: SetSlotRequest,
    is_acknowledged: bool,
    is_resent: bool,
}

impl SetSlotQueue {
    /// Starts a SETSLOT. Executes it at once if there are no replicas to wait for.
    pub(crate) fn start(
        &mut self,
        state: &mut ClusterState,
        request: SetSlotRequest,
        stream: StreamState,
    ) -> Vec<Effect> {
        let token = request.confirmation.token;
        if let Err(refusal) = check_set_slot(state, request.slot, &request.change, request.keys_in_slot) {
            return vec![Effect::Reply { token, result: Err(refusal) }];
        }
        let alone = !state.nodes().any(|node| node.master() == Some(state.id()));
        if !alone || !self.0.is_empty() || stream == StreamState::Frozen {
            self.0.push_back((request, RequestProgress::New));
            return Vec::new();
        }
        let SetSlotRequest { slot, change, keys_in_slot, .. } = request;
        match set_slot(state, slot, &change, keys_in_slot) {
            Err(error) => vec![Effect::Reply { token, result: Err(error) }],
            Ok(mut effects) => {
                // Replicas unknown to the bus, such as forgotten or new ones, may receive the stream as well.
                effects.push(Effect::ReplicateSlotChange { slot, change });
                effects.push(Effect::Reply { token, result: Ok(OperatorReply::Ok) });
                effects
            }
        }
    }

    /// Writes new requests to the replication stream, if the stream may grow.
    pub(crate) fn write_to_stream(&mut self, state: &ClusterState, stream: StreamState) -> Vec<Effect> {
        let mut effects = Vec::new();
        if stream == StreamState::Frozen {
            return effects;
        }
        self.0.retain_mut(|(request, progress)| {
            if *progress != RequestProgress::New {
                return true;
            }
            let SetSlotRequest { confirmation: confirm, slot, change, keys_in_slot } = &*request;
            // This node's role may have changed since the request arrived.
            if let Err(refusal) = check_set_slot(state, *slot, change, *keys_in_slot) {
                effects.push(Effect::Reply { token: confirm.token, result: Err(refusal) });
                return false;
            }
            *progress = RequestProgress::Written { is_resent: false };
            let (slot, change, confirm) = (*slot, change.clone(), Some(*confirm));
            effects.push(Effect::DriverAction(ClusterAction::ReplicateSlotChange {
                slot,
                change,
                confirmation: confirm,
            }));
            true
        });
        effects
    }

    /// Records the result of an acknowledgement, and the current number of keys that this node has in the slot.
    pub(crate) fn record_acknowledgement(&mut self, token: u64, is_acknowledged: bool, keys_in_slot: u64) {
        let entry = self.0.iter_mut().find(|(request, _)| request.confirmation.token == token);
        let Some((request, progress)) = entry else { return };
        let resent = matches!(progress, RequestProgress::Written { is_resent: true });
        *progress = RequestProgress::Confirmed { is_acknowledged, is_resent: resent };
        request.keys_in_slot = keys_in_slot;
    }

    /// Removes and returns the next request to execute. Requests are executed in stream order.
    pub(crate) fn pop_confirmed(&mut self) -> Option<ConfirmedRequest> {
        let &(_, RequestProgress::Confirmed { is_acknowledged: held, is_resent: resent }) = self.0.front()?
        else {
            return None;
        };
        self.0.pop_front().map(|(request, _)| ConfirmedRequest {
            request,
            is_acknowledged: held,
            is_resent: resent,
        })
    }

    /// Answers an executed request. If the replicas may have applied a change that failed, or that is not the last one
    /// in the stream, also writes the actual state of the slot to the stream.
    pub(crate) fn finish(
        &mut self,
        state: &ClusterState,
        confirmed_request: &ConfirmedRequest,
        result: Result<(), OperatorError>,
        stream: StreamState,
    ) -> Vec<Effect> {
        let slot = confirmed_request.request.slot;
        let mut effects = Vec::new();
        if state.myself().is_master()
            && (confirmed_request.is_resent || result.is_err())
            && stream == StreamState::Open
        {
            effects = slot_state_effects(state, slot);
            for (_, progress) in self.0.iter_mut().filter(|(request, _)| request.slot == slot) {
                match progress {
                    RequestProgress::New => {}
                    RequestProgress::Written { is_resent: resent }
                    | RequestProgress::Confirmed { is_resent: resent, .. } => {
                        *resent = true;
                    }
                }
            }
        }
        let (token, result) =
            (confirmed_request.request.confirmation.token, result.map(|()| OperatorReply::Ok));
        effects.push(Effect::Reply { token, result });
        effects
    }

    /// Refuses all requests because this node is now a replica and has loaded a snapshot. The requests that it accepted
    /// as a master are either contained in the snapshot or lost.
    pub(crate) fn refuse_all(&mut self) -> Vec<Effect> {
        let refused = |(request, _): (SetSlotRequest, RequestProgress)| Effect::Reply {
            token: request.confirmation.token,
            result: Err(OperatorError::SetSlotOnReplica),
        };
        self.0.drain(..).map(refused).collect()
    }

    /// Whether any request for `slot` has not been answered yet.
    pub(crate) fn is_pending(&self, slot: Slot) -> bool {
        self.0.iter().any(|(request, _)| request.slot == slot)
    }
}

impl ConfirmedRequest {
    /// Executes the request if all replicas have acknowledged it; otherwise returns the error.
    pub(crate) fn execute(&self, state: &mut ClusterState) -> (Result<(), OperatorError>, Vec<Effect>) {
        let SetSlotRequest { slot, change, keys_in_slot, .. } = &self.request;
        if !state.myself().is_master() {
            // This node was demoted, but the new master has the change as well, because all replicas acknowledged it.
            let effects =
                if self.is_acknowledged { apply_replicated_change(state, *slot, change) } else { Vec::new() };
            return (Err(OperatorError::SetSlotOnReplica), effects);
        }
        if !self.is_acknowledged {
            return (Err(OperatorError::NoReplicas), Vec::new());
        }
        let checked = check_set_slot(state, *slot, change, *keys_in_slot);
        match checked.and_then(|()| set_slot(state, *slot, change, *keys_in_slot)) {
            Ok(effects) => (Ok(()), effects),
            Err(error) => (Err(error), Vec::new()),
        }
    }
}

/// Returns the changes that set the replicas' state of the slot to the actual one, for the replication stream.
fn slot_state_effects(state: &ClusterState, slot: Slot) -> Vec<Effect> {
    let name = |id: &NodeId| id.to_string();
    let owner = state.slot_owner(slot).as_ref().map(name).map(SlotChange::AssignTo);
    let to = state.marks.migrating().get(&slot).map(name).map(|to| SlotChange::Migrating { target: to });
    let from =
        state.marks.importing().get(&slot).map(name).map(|from| SlotChange::Importing { source: from });
    let changes = owner.into_iter().chain([SlotChange::Stable]).chain(to).chain(from);
    changes
        .map(|change| {
            Effect::DriverAction(ClusterAction::ReplicateSlotChange { slot, change, confirmation: None })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::test_state::{TestCluster, id};

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    fn set_slot_request(token: u64, change: SlotChange) -> SetSlotRequest {
        let confirm = ReplicaConfirmation { token, timeout: Duration::from_secs(2) };
        SetSlotRequest { confirmation: confirm, slot: slot(0), change, keys_in_slot: 0 }
    }

    fn migrating_change() -> SlotChange {
        SlotChange::Migrating { target: id(1).to_string() }
    }

    fn reply_effect(token: u64, result: Result<OperatorReply, OperatorError>) -> Effect {
        Effect::Reply { token, result }
    }

    #[test]
    fn master_without_replicas_executes_at_once_and_still_writes_to_the_stream() {
        let (mut cluster, mut part) = (TestCluster::new(2, &[]), SetSlotQueue::default());
        let effects =
            part.start(&mut cluster.state, set_slot_request(7, migrating_change()), StreamState::Open);
        let tell = Effect::ReplicateSlotChange { slot: slot(0), change: migrating_change() };
        assert_eq!(effects, [Effect::ConfigChanged, tell, reply_effect(7, Ok(OperatorReply::Ok))]);
        assert_eq!(cluster.state.marks.migrating()[&slot(0)], id(1));
    }

    #[test]
    fn request_waits_for_the_replicas_and_for_the_end_of_a_failover() {
        let (mut cluster, mut part) = (TestCluster::new(2, &[(2, 0)]), SetSlotQueue::default());
        assert_eq!(
            part.start(&mut cluster.state, set_slot_request(7, migrating_change()), StreamState::Frozen),
            []
        );
        assert_eq!(part.write_to_stream(&cluster.state, StreamState::Frozen), []);
        assert_eq!(part.write_to_stream(&cluster.state, StreamState::Open).len(), 1);
        assert_eq!(part.write_to_stream(&cluster.state, StreamState::Open), []);
        assert!(part.is_pending(slot(0)) && part.pop_confirmed().is_none());
        part.record_acknowledgement(7, true, 0);
        let confirmed = part.pop_confirmed().unwrap();
        let (result, effects) = confirmed.execute(&mut cluster.state);
        assert_eq!((result, effects), (Ok(()), vec![Effect::ConfigChanged]));
        let answered = part.finish(&cluster.state, &confirmed, Ok(()), StreamState::Open);
        assert_eq!(answered, [reply_effect(7, Ok(OperatorReply::Ok))]);
        assert!(!part.is_pending(slot(0)));
    }

    #[test]
    fn requests_are_executed_in_stream_order() {
        let (mut cluster, mut part) = (TestCluster::new(2, &[(2, 0)]), SetSlotQueue::default());
        part.start(&mut cluster.state, set_slot_request(7, migrating_change()), StreamState::Open);
        part.start(&mut cluster.state, set_slot_request(8, SlotChange::Stable), StreamState::Open);
        part.write_to_stream(&cluster.state, StreamState::Open);
        part.record_acknowledgement(8, true, 0);
        assert!(part.pop_confirmed().is_none());
        part.record_acknowledgement(7, true, 0);
        assert!(part.pop_confirmed().is_some() && part.pop_confirmed().is_some());
    }

    #[test]
    fn failed_request_resends_the_slot_state_even_after_later_requests() {
        let (mut cluster, mut part) = (TestCluster::new(2, &[(2, 0)]), SetSlotQueue::default());
        part.start(&mut cluster.state, set_slot_request(7, migrating_change()), StreamState::Open);
        part.start(&mut cluster.state, set_slot_request(8, SlotChange::Stable), StreamState::Open);
        part.write_to_stream(&cluster.state, StreamState::Open);
        part.record_acknowledgement(7, false, 0);
        part.record_acknowledgement(8, true, 0);
        let failed = part.pop_confirmed().unwrap();
        let (result, _) = failed.execute(&mut cluster.state);
        assert_eq!(result, Err(OperatorError::NoReplicas));
        let effects = part.finish(&cluster.state, &failed, result, StreamState::Open);
        assert_eq!(effects.len(), 3, "owner, no marks, and the reply: {effects:?}");
        let second = part.pop_confirmed().unwrap();
        let (result, _) = second.execute(&mut cluster.state);
        assert_eq!(part.finish(&cluster.state, &second, result, StreamState::Open).len(), 3);
    }

    #[test]
    fn demoted_master_refuses_its_pending_requests() {
        let (mut cluster, mut part) = (TestCluster::new(2, &[(2, 0)]), SetSlotQueue::default());
        part.start(&mut cluster.state, set_slot_request(7, migrating_change()), StreamState::Open);
        assert_eq!(part.refuse_all(), [reply_effect(7, Err(OperatorError::SetSlotOnReplica))]);
    }
}
