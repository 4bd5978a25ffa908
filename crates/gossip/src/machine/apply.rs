//! Applies the effects that the components of the state machine return.

use super::Gossip;
use crate::contract::ClusterAction;
use crate::effect::Effect;
use crate::event::ClusterEvent;
use crate::outbox::Save;
use crate::wire::{Header, MessageBody, MessageFlags};

impl Gossip {
    /// Applies effects in order. Some effects produce further ones, which are applied at once.
    pub(super) fn apply(&mut self, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            self.apply_one(effect);
        }
    }

    fn apply_one(&mut self, effect: Effect) {
        match effect {
            Effect::Log(event) => self.out.log(event),
            Effect::Act(action) => self.out.push(action),
            Effect::Reply { token, result } => self.out.push(ClusterAction::Reply { token, result }),
            Effect::Record { node, entry } => self.out.record(node, entry, self.state.wall()),
            Effect::Publish => self.out.publish(),
            Effect::Save => self.out.save(Save::Later),
            Effect::ConfigChanged => {
                self.out.save(Save::Later);
                self.out.publish();
            }
            Effect::SaveBeforeSending => self.out.save(Save::BeforeSending),
            Effect::SaveBeforeClaiming => self.out.save(Save::BeforeClaiming),
            Effect::TellReplicas { slot, change } => self.out.tell_replicas(slot, change),
            Effect::ResumeWrites => self.out.resume_writes(true),
            Effect::KeepWritesPaused => self.out.resume_writes(false),
            Effect::Send { to, body } => self.send(to, body),
            Effect::Gossip { to, kind } => self.send_gossip(to, kind),
            Effect::BroadcastPong => self.broadcast_pong(),
            Effect::SendOffsetToSiblings => self.send_offset_to_siblings(),
            Effect::RequestVote { to, forced } => {
                let mut header = self.header();
                if forced {
                    header.message_flags |= MessageFlags::FORCE_ACK;
                }
                self.send_with(to, header, MessageBody::AuthRequest);
            }
            Effect::Vote { to, epoch } => {
                let header = Header { current_epoch: epoch, ..self.header() };
                self.send_with(to, header, MessageBody::AuthAck);
            }
            Effect::VoteForMyself { epoch } => {
                self.state.raise_epoch(epoch);
                self.votes.record(epoch, self.state.id());
                self.out.save(Save::BeforeSending);
            }
            Effect::CloseLink(id) => {
                let effect = self.links.close(&mut self.state, id);
                self.apply(effect);
            }
            Effect::Reconnect(id) => self.reconnect(id),
            Effect::RemoveNode(id) => self.remove_node(id),
            Effect::BecomeReplicaOf(master) => self.become_replica_of(master),
            Effect::TakeOver { epoch } => self.take_over(epoch),
            Effect::TakeOverUnelected => {
                self.bump_epoch();
                self.take_over(self.state.myself().config_epoch);
            }
            Effect::ClaimImportedSlots => self.claim_imported_slots(),
        }
    }

    fn claim_imported_slots(&mut self) {
        if let Some(epoch) = self.bump_epoch() {
            self.out.log(ClusterEvent::ImportedEpoch(epoch));
        }
        // The old owner gives the slot away when it sees the claim. If a power failure then erased the claim, the slot
        // would have no owner.
        self.out.save(Save::BeforeClaiming);
        self.broadcast_pong();
    }
}
