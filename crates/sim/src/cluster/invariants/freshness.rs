//! A replica that stands for election yields to other replicas of its master that have newer data.
//!
//! As in Redis, replicas with newer data only get a shorter delay, so a replica may win although a slower or
//! unreachable sibling had newer data. The invariant is therefore about ranks: when a replica requests votes, its rank
//! is at least the number of siblings that it considers healthy and whose latest packet showed a higher offset. That
//! packet must be recent if the sibling can communicate. A replica that dropped its data for a snapshot and never
//! loaded the snapshot must not stand for election at all.

use std::time::Duration;

use gossip::wire::{MessageBody, MessageFlags};
use gossip::{ClusterAction, ClusterEvent, ElectionEvent, ManualFailoverEvent, Node};

use super::{ClusterObservation, voters};
use crate::InvariantName;
use crate::cluster::{ClusterWorld, NODE_TIMEOUT};

/// Siblings send a packet every half node timeout. The limit allows for one lost packet.
const MAX_SILENCE: Duration = Duration::from_millis(3 * NODE_TIMEOUT.as_millis() as u64);

impl ClusterWorld {
    /// Checks the actions of a state machine that decides to stand for election.
    pub(in crate::cluster) fn watch_candidacy(&mut self, host: usize, out: &[ClusterAction]) {
        for action in out {
            match action {
                ClusterAction::Log(ClusterEvent::Election(
                    ElectionEvent::Scheduled { rank, .. } | ElectionEvent::RankChanged { rank, .. },
                )) => {
                    self.hosts[host].election_rank = Some(*rank);
                }
                ClusterAction::Send { packet, .. } if matches!(packet.body, MessageBody::AuthRequest) => {
                    // The current state may no longer show the failed master: the actions may come from several steps,
                    // and a later step may have promoted this node.
                    self.hosts[host].failed_master = packet.header.replica_of;
                    let rank = self.hosts[host].election_rank.take();
                    let by_operator = packet.header.message_flags.contains(MessageFlags::FORCE_ACK);
                    if let Some(rank) = rank.filter(|_| !by_operator) {
                        self.check_rank(host, rank);
                    }
                }
                ClusterAction::Log(ClusterEvent::ManualFailover(ManualFailoverEvent::Ready)) => {
                    if let Some(master) = self.simulation.data.process_states[host].upstream() {
                        self.simulation.check_handover(master, host);
                    }
                }
                ClusterAction::Log(ClusterEvent::ManualFailover(ManualFailoverEvent::Takeover)) => {
                    let id = self.gossip(host).id();
                    self.takeovers.record_takeover(id);
                }
                ClusterAction::Log(ClusterEvent::Election(ElectionEvent::Won(epoch))) => {
                    let gossip = self.gossip(host);
                    // The failed master is added because it may have voted for the winner, but the promotion has
                    // removed its slots.
                    let (winner, failed_master) = (gossip.id(), self.hosts[host].failed_master);
                    let voters = voters(gossip).filter(|id| *id != winner).chain(failed_master).collect();
                    let agreed = self.takeovers.record_election(winner);
                    self.check_invariants(&ClusterObservation::ElectionWon {
                        winner,
                        epoch: *epoch,
                        voters,
                        has_only_elected_voters: agreed,
                    });
                }
                _ => {}
            }
        }
    }

    fn check_rank(&mut self, host: usize, rank: u32) {
        if self.simulation.data.process_states[host].has_invalid_data() {
            self.simulation
                .record_violation(InvariantName::Freshness, &format!("host {host} stands and has no data"));
        }
        let gossip = self.gossip(host);
        let master = gossip.myself().master();
        let mine = self.simulation.data.process_states[host].offset();
        let sibling = |node: &&Node| {
            node.id != gossip.id() && node.master() == master && node.is_healthy() && node.handshake.is_none()
        };
        let mut ahead = 0;
        let mut pending_inputs = None;
        for node in gossip.nodes().filter(sibling) {
            let received_headers = self.hosts[host].received_headers.get(&node.id);
            // Packets that a sibling sent before it followed this master say nothing about this master's data. A packet
            // that arrives at this moment may have arrived after the decision.
            let now = self.simulation.now;
            let of_master = received_headers.filter(|received_headers| {
                received_headers.header.replica_of == master && received_headers.arrived_at < now
            });
            ahead +=
                u32::from(of_master.is_some_and(|received_headers| received_headers.header.offset > mine));
            let silent = received_headers.is_none_or(|received_headers| {
                self.simulation.now.since(received_headers.arrived_at) > MAX_SILENCE
            });
            let there = (0..self.hosts.len()).find(|other| {
                self.hosts[*other].gossip.as_ref().is_some_and(|gossip| gossip.id() == node.id)
            });
            let there = there.filter(|other| self.simulation.contact_duration(host, *other) > MAX_SILENCE);
            pending_inputs = pending_inputs.or(there.filter(|_| silent));
        }
        if rank < ahead {
            self.simulation.record_violation(
                InvariantName::Freshness,
                &format!("host {host} stands with rank {rank} and {ahead} are ahead of it"),
            );
        }
        if let Some(other) = pending_inputs {
            self.simulation.record_violation(
                InvariantName::Freshness,
                &format!("host {host} stands and has not heard host {other} for {MAX_SILENCE:?}"),
            );
        }
    }
}
