//! Collects the output of one step of the state machine: actions, pending writes and publications, and timeline
//! entries.

use std::sync::Arc;

use clock::Millis;
use slot_routing::{Epoch, NodeId, Slot, SlotSet, Topology};

use crate::commands::SlotChange;
use crate::contract::{ClusterAction, LinkId};
use crate::event::ClusterEvent;
use crate::state::ClusterState;
use crate::stats::MessageStats;
use crate::timeline::{FailoverTimeline, TimelineEntry};
use crate::wire::Packet;

/// The output of a step while it is being processed.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    actions: Vec<ClusterAction>,
    pending_work: PendingWork,
    claim_durability: ClaimDurability,
    published_topology: Option<Topology>,
    stats: MessageStats,
    /// Shared with published views, and copied by the first change after a publication.
    timeline: Arc<FailoverTimeline>,
    /// The slots in this node's headers, cached with their claimant and the version of the slot table.
    claimed_slots: Option<(NodeId, u64, SlotSet)>,
}

/// Work that is postponed to the end of the step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct PendingWork {
    save: SaveUrgency,
    /// Whether the published topology may be outdated.
    needs_publish: bool,
    /// Whether to resume writes after the topology with the new slot owners has been published.
    resumes_writes: bool,
    /// Slot changes to write into the replication stream after the topology has been published, so that a snapshot
    /// taken in between includes the changes as well.
    slot_changes: Vec<(Slot, SlotChange)>,
}

/// When the changed state must be written to `nodes.conf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum SaveUrgency {
    /// The file is up to date.
    #[default]
    NotNeeded,
    /// The file is outdated, but other nodes would gossip the changes again after a crash.
    Later,
    /// The file must be durable before the packets of this step are sent.
    BeforeSending,
    /// The file must be durable before any further packet is sent, because every header carries the new claim.
    BeforeClaiming,
}

/// Whether the claim in this node's headers is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ClaimDurability {
    #[default]
    Durable,
    Unsaved,
}

impl Outbox {
    pub(crate) fn push(&mut self, action: ClusterAction) {
        self.actions.push(action);
    }

    pub(crate) fn log(&mut self, event: impl Into<ClusterEvent>) {
        self.actions.push(ClusterAction::Log(event.into()));
    }

    pub(crate) fn send(&mut self, link: LinkId, packet: Packet) {
        self.stats.count_sent(&packet.body);
        self.actions.push(ClusterAction::Send { link, packet: Box::new(packet), after_persist: false });
    }

    /// Adds an entry to the failover timeline.
    pub(crate) fn record_timeline_entry(&mut self, node: NodeId, entry: TimelineEntry, at: Millis) {
        Arc::make_mut(&mut self.timeline).record_entry(node, entry, at);
    }

    pub(crate) fn save(&mut self, urgency: SaveUrgency) {
        self.pending_work.save = self.pending_work.save.max(urgency);
    }

    /// Publishes the topology if it has changed.
    pub(crate) fn publish(&mut self) {
        self.pending_work.needs_publish = true;
    }

    pub(crate) fn resume_writes(&mut self, resume: bool) {
        self.pending_work.resumes_writes = resume;
    }

    pub(crate) fn replicate_slot_change(&mut self, slot: Slot, change: SlotChange) {
        self.pending_work.slot_changes.push((slot, change));
    }

    /// Records that all claims are durable.
    pub(crate) fn on_persisted(&mut self) {
        self.claim_durability = ClaimDurability::Durable;
    }

    /// Returns the slots of `claimant` for a header. The set is cached, because headers are frequent and the slot table
    /// rarely changes.
    pub(crate) fn claimed_slots(&mut self, state: &ClusterState, claimant: NodeId) -> SlotSet {
        let version = state.slots.version();
        match &self.claimed_slots {
            Some((whose, when, slots)) if (*whose, *when) == (claimant, version) => slots.clone(),
            _ => {
                let slots = state.slots.slots_of(claimant);
                self.claimed_slots = Some((claimant, version, slots.clone()));
                slots
            }
        }
    }

    /// Ends the step: publishes and saves what has changed, and moves the actions to `out`.
    pub(crate) fn finish_step(
        &mut self,
        state: &ClusterState,
        last_vote_epoch: Epoch,
        out: &mut Vec<ClusterAction>,
    ) {
        let PendingWork { save, needs_publish: publish, resumes_writes: resume, slot_changes: tell_replicas } =
            std::mem::take(&mut self.pending_work);
        if publish {
            let topology = state.topology();
            if self.published_topology.as_ref() != Some(&topology) {
                self.published_topology = Some(topology.clone());
                self.push(ClusterAction::Publish(Box::new(topology)));
            }
        }
        for (slot, change) in tell_replicas {
            self.push(ClusterAction::ReplicateSlotChange { slot, change, confirmation: None });
        }
        if resume {
            self.push(ClusterAction::ResumeWrites);
        }
        if save == SaveUrgency::BeforeClaiming {
            self.claim_durability = ClaimDurability::Unsaved;
        }
        if save >= SaveUrgency::BeforeSending || self.claim_durability == ClaimDurability::Unsaved {
            for action in &mut self.actions {
                if let ClusterAction::Send { after_persist, .. } = action {
                    *after_persist = true;
                }
            }
        }
        if save > SaveUrgency::NotNeeded {
            let (text, sync) = (state.nodes_conf_text(last_vote_epoch), save >= SaveUrgency::BeforeSending);
            out.push(ClusterAction::Persist { nodes_conf: text, must_sync: sync });
        }
        out.append(&mut self.actions);
    }

    pub(crate) fn stats(&self) -> &MessageStats {
        &self.stats
    }

    pub(crate) fn stats_mut(&mut self) -> &mut MessageStats {
        &mut self.stats
    }

    pub(crate) fn timeline(&self) -> &Arc<FailoverTimeline> {
        &self.timeline
    }

    /// Records in the timeline the first write after this node's last takeover.
    pub(crate) fn record_first_write(&mut self, my_id: NodeId, at: Millis) {
        Arc::make_mut(&mut self.timeline).record_first_write(my_id, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_state::TestCluster;
    use crate::wire::MessageBody;

    fn test_packet(cluster: &TestCluster) -> Packet {
        Packet { header: cluster.header_of(0), body: MessageBody::AuthAck }
    }

    fn finish(outbox: &mut Outbox, cluster: &TestCluster) -> Vec<ClusterAction> {
        let mut out = Vec::new();
        outbox.finish_step(&cluster.state, Epoch(0), &mut out);
        out
    }

    fn is_waiting_for_persist(actions: &[ClusterAction]) -> bool {
        actions.iter().any(|action| matches!(action, ClusterAction::Send { after_persist: true, .. }))
    }

    #[test]
    fn vote_waits_for_its_own_save_and_a_claim_holds_back_all_packets() {
        let (cluster, mut outbox) = (TestCluster::new(3, &[]), Outbox::default());
        // Columns: the pending save, whether packets of this step wait for it, whether packets of the next step wait as
        // well
        for (save, now, next) in [
            (SaveUrgency::NotNeeded, false, false),
            (SaveUrgency::Later, false, false),
            (SaveUrgency::BeforeSending, true, false),
            (SaveUrgency::BeforeClaiming, true, true),
        ] {
            outbox.save(save);
            outbox.save(SaveUrgency::NotNeeded);
            outbox.send(LinkId::Outbound(1), test_packet(&cluster));
            let actions = finish(&mut outbox, &cluster);
            let persists = matches!(actions[0], ClusterAction::Persist { must_sync, .. } if must_sync == now);
            assert_eq!(
                (persists, is_waiting_for_persist(&actions)),
                (save != SaveUrgency::NotNeeded, now),
                "{save:?}"
            );
            outbox.send(LinkId::Outbound(1), test_packet(&cluster));
            assert_eq!(is_waiting_for_persist(&finish(&mut outbox, &cluster)), next, "{save:?}");
        }
        outbox.on_persisted();
        outbox.send(LinkId::Outbound(1), test_packet(&cluster));
        assert!(!is_waiting_for_persist(&finish(&mut outbox, &cluster)));
    }

    #[test]
    fn topology_is_published_before_slot_changes_are_replicated_and_writes_resume() {
        let (cluster, mut outbox) = (TestCluster::new(3, &[]), Outbox::default());
        let slot = Slot::new(0).unwrap();
        outbox.resume_writes(true);
        outbox.replicate_slot_change(slot, SlotChange::Stable);
        outbox.publish();
        let actions = finish(&mut outbox, &cluster);
        assert!(matches!(
            actions[..],
            [
                ClusterAction::Publish(_),
                ClusterAction::ReplicateSlotChange { .. },
                ClusterAction::ResumeWrites
            ]
        ));
        outbox.publish();
        assert_eq!(finish(&mut outbox, &cluster), [], "the topology is the same");
    }
}
