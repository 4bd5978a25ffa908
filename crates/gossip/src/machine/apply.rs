//! Applies the effects that the components of the state machine return.

use super::Gossip;
use crate::contract::ClusterAction;
use crate::effect::Effect;
use crate::event::ClusterEvent;
use crate::outbox::SaveUrgency;
use crate::wire::{Header, MessageBody, MessageFlags};

impl Gossip {
    /// Applies effects in order. Some effects produce further ones, which are applied at once.
    pub(super) fn apply(&mut self, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            self.apply_effect(effect);
        }
    }

    fn apply_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Log(event) => self.outbox.log(event),
            Effect::DriverAction(action) => self.outbox.push(action),
            Effect::Reply { token, result } => self.outbox.push(ClusterAction::Reply { token, result }),
            Effect::RecordTimeline { node, entry } => {
                self.outbox.record_timeline_entry(node, entry, self.state.wall_time());
            }
            Effect::Publish => self.outbox.publish(),
            Effect::Save => self.outbox.save(SaveUrgency::Later),
            Effect::ConfigChanged => {
                self.outbox.save(SaveUrgency::Later);
                self.outbox.publish();
            }
            Effect::SaveBeforeSending => self.outbox.save(SaveUrgency::BeforeSending),
            Effect::SaveBeforeClaiming => self.outbox.save(SaveUrgency::BeforeClaiming),
            Effect::ReplicateSlotChange { slot, change } => self.outbox.replicate_slot_change(slot, change),
            Effect::ResumeWrites => self.outbox.resume_writes(true),
            Effect::KeepWritesPaused => self.outbox.resume_writes(false),
            Effect::Send { to, body } => self.send(to, body),
            Effect::SendGossip { to, kind } => self.send_gossip(to, kind),
            Effect::BroadcastPong => self.broadcast_pong(),
            Effect::SendOffsetToSiblings => self.send_offset_to_siblings(),
            Effect::RequestVote { to, forced } => {
                let mut header = self.compose_header();
                if forced {
                    header.message_flags |= MessageFlags::FORCE_ACK;
                }
                self.send_with_header(to, header, MessageBody::AuthRequest);
            }
            Effect::Vote { to, epoch } => {
                let header = Header { current_epoch: epoch, ..self.compose_header() };
                self.send_with_header(to, header, MessageBody::AuthAck);
            }
            Effect::VoteForMyself { epoch } => {
                self.state.raise_epoch(epoch);
                self.votes.record_vote(epoch, self.state.id());
                self.outbox.save(SaveUrgency::BeforeSending);
            }
            Effect::CloseLink(id) => {
                let effect = self.links.close_outbound(&mut self.state, id);
                self.apply(effect);
            }
            Effect::Reconnect(id) => self.reconnect(id),
            Effect::RemoveNode(id) => self.remove_node(id),
            Effect::BecomeReplicaOf(master) => self.become_replica_of(master),
            Effect::TakeOver { epoch } => self.take_over(epoch),
            Effect::TakeOverWithoutElection => {
                self.bump_epoch();
                self.take_over(self.state.myself().config_epoch);
            }
            Effect::ClaimImportedSlots => self.claim_imported_slots(),
        }
    }

    fn claim_imported_slots(&mut self) {
        if let Some(epoch) = self.bump_epoch() {
            self.outbox.log(ClusterEvent::EpochTakenForImport(epoch));
        }
        // The old owner gives the slot away when it sees the claim. If a power failure then erased the claim, the slot
        // would have no owner.
        self.outbox.save(SaveUrgency::BeforeClaiming);
        self.broadcast_pong();
    }
}
