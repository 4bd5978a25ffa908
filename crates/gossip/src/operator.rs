//! Executes operator commands.

use slot_routing::{Epoch, NodeId, Slot, SlotSet};

use crate::commands::{OperatorCommand, OperatorError, OperatorReply, parse_name};
use crate::contract::ReplicaConfirmation;
use crate::event::ClusterEvent;
use crate::machine::Gossip;
use crate::node::{Address, Role};
use crate::set_slot::SetSlotRequest;
use crate::slot_moves::claim_slots;
use crate::votes::Votes;

pub(crate) type Answer = Result<OperatorReply, OperatorError>;

impl Gossip {
    /// Returns `None` if the reply follows later: SETSLOT may wait for the replicas.
    pub(crate) fn on_command(&mut self, token: u64, command: OperatorCommand) -> Option<Answer> {
        Some(match command {
            OperatorCommand::Meet { ip, port, bus_port } => {
                self.start_handshake(Address { ip: Some(ip), port, other_port: 0, bus_port }, true);
                Ok(OperatorReply::Ok)
            }
            OperatorCommand::AddSlots(slots) => self.cmd_add_slots(&slots),
            OperatorCommand::DelSlots(slots) => self.cmd_del_slots(&slots),
            OperatorCommand::FlushSlots { holds_keys } => self.cmd_flush_slots(holds_keys),
            OperatorCommand::SetSlot { slot, change, keys_in_slot, timeout } => {
                let confirm = ReplicaConfirmation { token, timeout };
                let request = SetSlotRequest { confirm, slot, change, keys_in_slot };
                let stream = self.manual_failover.stream_state();
                let effects = self.set_slots.start(&mut self.state, request, stream);
                self.apply(effects);
                return None;
            }
            OperatorCommand::ClaimSlots { slots, from } => {
                let claimed = claim_slots(&mut self.state, &slots, from);
                claimed.map(|effects| self.apply(effects)).map(|()| OperatorReply::Ok)
            }
            OperatorCommand::Replicate { node, holds_keys } => self.cmd_replicate(&node, holds_keys),
            OperatorCommand::Detach => self.cmd_detach(),
            OperatorCommand::Failover(mode) => {
                let started = self.manual_failover.start(&self.state, mode);
                started.map(|effects| self.apply(effects)).map(|()| OperatorReply::Ok)
            }
            OperatorCommand::Forget { node } => self.cmd_forget(&node),
            OperatorCommand::Reset { hard, holds_keys } => self.cmd_reset(hard, holds_keys),
            OperatorCommand::SetConfigEpoch(epoch) => self.cmd_set_config_epoch(epoch),
            OperatorCommand::BumpEpoch => Ok(match self.bump_epoch() {
                Some(epoch) => OperatorReply::Bumped(epoch),
                None => OperatorReply::Still(self.myself().config_epoch),
            }),
            OperatorCommand::SaveConfig => {
                self.save_before_sending();
                Ok(OperatorReply::Ok)
            }
        })
    }

    /// Assigns all slots or, on an error, none.
    fn cmd_add_slots(&mut self, slots: &[Slot]) -> Answer {
        if let Some(busy) = slots.iter().find(|slot| self.state.slots.owner(**slot).is_some()) {
            return Err(OperatorError::SlotBusy(*busy));
        }
        check_no_duplicates(slots)?;
        for &slot in slots {
            self.state.marks.end_importing(slot);
            self.state.slots.assign(slot, self.state.me);
        }
        self.mark_changed()
    }

    fn cmd_del_slots(&mut self, slots: &[Slot]) -> Answer {
        if let Some(free) = slots.iter().find(|slot| self.state.slots.owner(**slot).is_none()) {
            return Err(OperatorError::SlotUnassigned(*free));
        }
        check_no_duplicates(slots)?;
        for &slot in slots {
            self.state.marks.end_migrating(slot);
            self.state.slots.release(slot);
        }
        self.mark_changed()
    }

    fn cmd_flush_slots(&mut self, holds_keys: bool) -> Answer {
        if holds_keys {
            return Err(OperatorError::FlushNotEmpty);
        }
        self.state.slots.release_all(self.state.me);
        self.state.marks.clear_migrating();
        self.mark_changed()
    }

    fn cmd_replicate(&mut self, name: &str, holds_keys: bool) -> Answer {
        let target = self.find_node(name)?;
        if target == self.state.me {
            return Err(OperatorError::ReplicateMyself);
        }
        if !self.state.nodes[&target].is_master() {
            return Err(OperatorError::ReplicateReplica);
        }
        if self.myself().is_master() && (holds_keys || self.state.slots.count(self.state.me) > 0) {
            return Err(OperatorError::ReplicateNotEmpty);
        }
        self.become_replica_of(target);
        self.mark_changed()
    }

    /// Turns a replica into an empty master with a shard of its own. Does nothing on a master.
    fn cmd_detach(&mut self) -> Answer {
        if self.myself().is_master() {
            return Ok(OperatorReply::Ok);
        }
        self.set_role(self.state.me, Role::Master);
        let shard = self.random.node_id();
        self.state.myself_mut().shard = shard;
        self.log(ClusterEvent::Detached { shard });
        self.out.push(crate::contract::ClusterAction::DropEverything);
        self.end_manual_failover();
        self.election.abandon();
        // The migrations belong to the former shard.
        self.state.marks.clear();
        // Tells the other nodes at once that the master has lost this replica.
        self.broadcast_pong();
        self.mark_changed()
    }

    fn cmd_forget(&mut self, name: &str) -> Answer {
        let Some(id) = parse_name(name) else { return Err(OperatorError::unknown(name)) };
        if !self.state.nodes.contains_key(&id) && self.is_blacklisted(id) {
            // Another node has already gossiped the FORGET to this node.
            return Ok(OperatorReply::Ok);
        }
        let id = self.find_node(name)?;
        if id == self.state.me {
            return Err(OperatorError::ForgetMyself);
        }
        if self.myself().master() == Some(id) {
            return Err(OperatorError::ForgetMaster);
        }
        self.blacklist(id, self.state.config.blacklist_ttl);
        self.remove_node(id);
        Ok(OperatorReply::Ok)
    }

    fn cmd_reset(&mut self, hard: bool, holds_keys: bool) -> Answer {
        if self.myself().is_master() && holds_keys {
            return Err(OperatorError::ResetNotEmpty);
        }
        self.log(ClusterEvent::NodeReset);
        if !self.myself().is_master() {
            self.set_role(self.state.me, Role::Master);
            self.out.push(crate::contract::ClusterAction::DropEverything);
        }
        // The node leaves its shard.
        let shard = self.random.node_id();
        self.state.myself_mut().shard = shard;
        self.end_manual_failover();
        self.election.abandon();
        let others: Vec<NodeId> =
            self.state.nodes.keys().copied().filter(|id| *id != self.state.me).collect();
        for id in others {
            self.remove_node(id);
        }
        self.state.slots.release_all(self.state.me);
        self.state.marks.clear();
        if hard {
            self.rename_myself();
        }
        self.save_before_claiming();
        self.mark_changed()
    }

    /// Gives this node a new id and forgets all epochs and votes (RESET HARD).
    fn rename_myself(&mut self) {
        let mut node = self.state.nodes.remove(&self.state.me).expect("a node knows itself");
        self.state.me = self.random.node_id();
        node.id = self.state.me;
        node.shard = self.state.me;
        node.config_epoch = Epoch(0);
        self.state.nodes.insert(self.state.me, node);
        self.state.current_epoch = Epoch(0);
        self.votes = Votes::default();
        self.blacklist.clear();
        self.log(ClusterEvent::NewIdentity(self.state.me));
    }

    fn cmd_set_config_epoch(&mut self, epoch: Epoch) -> Answer {
        if self.state.nodes.len() > 1 {
            return Err(OperatorError::EpochNotAlone);
        }
        if self.myself().config_epoch != Epoch(0) {
            return Err(OperatorError::EpochAlreadySet);
        }
        self.state.myself_mut().config_epoch = epoch;
        self.state.current_epoch = self.state.current_epoch.max(epoch);
        self.log(ClusterEvent::ConfigEpochSet(epoch));
        self.save_before_claiming();
        self.mark_changed()
    }

    pub(crate) fn mark_changed(&mut self) -> Answer {
        self.todo.save = true;
        self.todo.publish = true;
        Ok(OperatorReply::Ok)
    }
}

fn check_no_duplicates(slots: &[Slot]) -> Result<(), OperatorError> {
    let mut seen = SlotSet::new();
    match slots.iter().find(|slot| !seen.insert(**slot)) {
        Some(twice) => Err(OperatorError::SlotTwice(*twice)),
        None => Ok(()),
    }
}
