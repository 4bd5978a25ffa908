//! Executes operator commands.

use slot_routing::{Epoch, NodeId};

use super::Gossip;
use crate::commands::{OperatorCommand, OperatorError, OperatorReply, parse_node_id};
use crate::contract::{ClusterAction, ReplicaConfirmation};
use crate::effect::Effect;
use crate::event::ClusterEvent;
use crate::membership;
use crate::node::{Address, Role};
use crate::outbox::SaveUrgency;
use crate::set_slot::SetSlotRequest;
use crate::slot_commands::{add_slots, delete_slots, flush_slots};
use crate::slot_moves::claim_slots;
use crate::votes::GivenVotes;

type CommandResult = Result<Vec<Effect>, OperatorError>;

impl Gossip {
    pub(super) fn on_command(&mut self, token: u64, command: OperatorCommand) {
        let state = &mut self.state;
        let decision = match command {
            OperatorCommand::Meet { ip, port, bus_port } => {
                let address = Address { ip: Some(ip), port, secondary_port: 0, bus_port };
                membership::start_handshake(state, address, true, &mut self.random);
                Ok(Vec::new())
            }
            OperatorCommand::AddSlots(slots) => add_slots(state, &slots),
            OperatorCommand::DelSlots(slots) => delete_slots(state, &slots),
            OperatorCommand::FlushSlots { holds_keys } => flush_slots(state, holds_keys),
            // A replica that has not received the change may replace this master.
            OperatorCommand::SetSlot { .. } if self.self_fail.blocks_serving() => {
                Err(OperatorError::NoReplicas)
            }
            OperatorCommand::SetSlot { slot, change, keys_in_slot, timeout } => {
                let confirm = ReplicaConfirmation { token, timeout };
                let request = SetSlotRequest { confirmation: confirm, slot, change, keys_in_slot };
                let stream = self.manual_failover.stream_state();
                let effects = self.set_slot_queue.start(state, request, stream);
                // SETSLOT may wait for the replicas, so its effects include the reply.
                return self.apply(effects);
            }
            OperatorCommand::ClaimSlots { slots, source: from } => claim_slots(state, &slots, from),
            OperatorCommand::Replicate { node, holds_keys } => state
                .check_replicate(&node, holds_keys)
                .map(|master| vec![Effect::BecomeReplicaOf(master), Effect::ConfigChanged]),
            OperatorCommand::Detach => Ok(self.detach()),
            OperatorCommand::Failover(mode) => self.manual_failover.start(state, mode),
            OperatorCommand::Forget { node } => self.forget_by_name(&node),
            OperatorCommand::Reset { is_hard: hard, holds_keys } => self.reset(hard, holds_keys),
            OperatorCommand::SetConfigEpoch(epoch) => self.set_config_epoch(epoch),
            OperatorCommand::BumpEpoch => {
                let result = Ok(match self.bump_epoch() {
                    Some(epoch) => OperatorReply::EpochBumped(epoch),
                    None => OperatorReply::EpochUnchanged(self.state.myself().config_epoch),
                });
                return self.apply([Effect::Reply { token, result }]);
            }
            OperatorCommand::SaveConfig => Ok(vec![Effect::SaveBeforeSending]),
        };
        let result = decision.map(|effects| self.apply(effects)).map(|()| OperatorReply::Ok);
        self.apply([Effect::Reply { token, result }]);
    }

    /// Makes a replica an empty master in a new shard of its own. Does nothing on a master.
    fn detach(&mut self) -> Vec<Effect> {
        if self.state.myself().is_master() {
            return Vec::new();
        }
        self.set_role(self.state.id(), Role::Master);
        let shard = self.random.random_node_id();
        self.state.myself_mut().shard = shard;
        self.outbox.log(ClusterEvent::ReplicaDetached { shard });
        self.outbox.push(ClusterAction::DeleteDataset);
        self.end_failover();
        // The migrations belong to the former shard.
        self.state.marks.clear();
        // Inform the other nodes at once that the master has lost this replica.
        vec![Effect::BroadcastPong, Effect::ConfigChanged]
    }

    fn forget_by_name(&mut self, name: &str) -> CommandResult {
        let id = parse_node_id(name).ok_or_else(|| OperatorError::unknown_node(name))?;
        if self.state.node(id).is_none() && self.forget_list.contains(id, self.state.now()) {
            // Another node has already forwarded the FORGET to this node.
            return Ok(Vec::new());
        }
        let id = self.state.find_node(name)?;
        if id == self.state.id() {
            return Err(OperatorError::ForgetMyself);
        }
        if self.state.myself().master() == Some(id) {
            return Err(OperatorError::ForgetMaster);
        }
        self.forget(id, self.state.config().blacklist_ttl);
        Ok(Vec::new())
    }

    fn reset(&mut self, is_hard: bool, holds_keys: bool) -> CommandResult {
        let was_master = self.state.myself().is_master();
        if was_master && holds_keys {
            return Err(OperatorError::ResetNotEmpty);
        }
        self.outbox.log(ClusterEvent::NodeReset);
        if !was_master {
            self.set_role(self.state.id(), Role::Master);
            self.outbox.push(ClusterAction::DeleteDataset);
        }
        // Leave the shard: a reset node starts a new one.
        let shard = self.random.random_node_id();
        self.state.myself_mut().shard = shard;
        self.end_failover();
        let others: Vec<NodeId> = self.state.others().map(|node| node.id).collect();
        for id in others {
            self.remove_node(id);
        }
        self.state.slots.release_all(self.state.id());
        self.state.marks.clear();
        if is_hard {
            self.assign_new_node_id();
        }
        Ok(vec![Effect::SaveBeforeClaiming, Effect::ConfigChanged])
    }

    /// Gives this node a new id and forgets all epochs and votes (RESET HARD).
    fn assign_new_node_id(&mut self) {
        let me = self.random.random_node_id();
        self.state.rename_myself(me);
        self.votes = GivenVotes::default();
        self.forget_list.clear();
        self.outbox.log(ClusterEvent::NewIdentity(me));
    }

    fn set_config_epoch(&mut self, epoch: Epoch) -> CommandResult {
        if self.state.nodes.len() > 1 {
            return Err(OperatorError::KnowsOtherNodes);
        }
        if self.state.myself().config_epoch != Epoch(0) {
            return Err(OperatorError::EpochAlreadySet);
        }
        self.state.myself_mut().config_epoch = epoch;
        self.state.raise_epoch(epoch);
        self.outbox.save(SaveUrgency::BeforeClaiming);
        Ok(vec![Effect::Log(ClusterEvent::ConfigEpochSet(epoch)), Effect::ConfigChanged])
    }
}
