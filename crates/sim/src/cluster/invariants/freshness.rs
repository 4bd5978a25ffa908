//! A replica that stands for election yields to siblings with newer data.
//!
//! As in Redis, better replicas only get a shorter delay, so a replica may win although a slower or
//! unreachable sibling was ahead. The invariant is about ranks: when a replica requests votes, its
//! rank is at least the number of siblings that it considers healthy and whose latest packet showed
//! a higher offset. Those packets must be recent if the sibling can communicate. A replica whose
//! data was dropped for a snapshot that never loaded must not stand at all.

use std::time::Duration;

use gossip::wire::{MessageBody, MessageFlags};
use gossip::{ClusterAction, ClusterEvent, ElectionEvent, ManualFailoverEvent, Node};

use super::{Seen, voters};
use crate::Rule;
use crate::cluster::{NODE_TIMEOUT, World};

/// Siblings send a packet every half node timeout, and one packet may be lost.
const SILENCE: Duration = Duration::from_millis(3 * NODE_TIMEOUT.as_millis() as u64);

impl World {
    /// Checks a machine's decision to stand for election at the time of the decision.
    pub(in crate::cluster) fn watch_candidacy(&mut self, host: usize, out: &[ClusterAction]) {
        for action in out {
            match action {
                ClusterAction::Log(ClusterEvent::Election(
                    ElectionEvent::Scheduled { rank, .. } | ElectionEvent::RankChanged { rank, .. },
                )) => {
                    self.hosts[host].rank = Some(*rank);
                }
                ClusterAction::Send { packet, .. } if matches!(packet.body, MessageBody::AuthRequest) => {
                    self.hosts[host].contested = self.gossip(host).myself().master();
                    let rank = self.hosts[host].rank.take();
                    let by_operator = packet.header.message_flags.has(MessageFlags::FORCE_ACK);
                    if let Some(rank) = rank.filter(|_| !by_operator) {
                        self.check_rank(host, rank);
                    }
                }
                ClusterAction::Log(ClusterEvent::ManualFailover(ManualFailoverEvent::Ready)) => {
                    if let Some(master) = self.stage.data.stores[host].upstream() {
                        self.stage.check_handover(master, host);
                    }
                }
                ClusterAction::Log(ClusterEvent::ManualFailover(ManualFailoverEvent::Takeover)) => {
                    let id = self.gossip(host).id();
                    self.takeovers.take_over(id);
                }
                ClusterAction::Log(ClusterEvent::Election(ElectionEvent::Won(epoch))) => {
                    let gossip = self.gossip(host);
                    // The state before it was promoted, since the old master may have voted for it.
                    let (winner, contested) = (gossip.id(), self.hosts[host].contested);
                    let voters = voters(gossip).filter(|id| *id != winner).chain(contested).collect();
                    let agreed = self.takeovers.elect(winner);
                    self.tell(&Seen::Won { winner, epoch: *epoch, voters, agreed });
                }
                _ => {}
            }
        }
    }

    fn check_rank(&mut self, host: usize, rank: u32) {
        if self.stage.data.stores[host].is_void() {
            self.stage.violate(Rule::Freshness, &format!("host {host} stands and has no data"));
        }
        let gossip = self.gossip(host);
        let master = gossip.myself().master();
        let mine = self.stage.data.stores[host].offset();
        let sibling = |node: &&Node| {
            node.id != gossip.id() && node.master() == master && node.is_healthy() && node.handshake.is_none()
        };
        let mut ahead = 0;
        let mut unheard = None;
        for node in gossip.nodes().filter(sibling) {
            let heard = self.hosts[host].heard.get(&node.id);
            // Packets from before the sibling followed this master say nothing about this master's
            // data, and a packet that arrives now may be later than the decision.
            let now = self.stage.now;
            let of_master = heard.filter(|heard| heard.header.replica_of == master && heard.at < now);
            ahead += u32::from(of_master.is_some_and(|heard| heard.header.offset > mine));
            let silent = heard.is_none_or(|heard| self.stage.now.since(heard.at) > SILENCE);
            let there = (0..self.hosts.len()).find(|other| {
                self.hosts[*other].gossip.as_ref().is_some_and(|gossip| gossip.id() == node.id)
            });
            let there = there.filter(|other| self.stage.in_touch(host, *other) > SILENCE);
            unheard = unheard.or(there.filter(|_| silent));
        }
        if rank < ahead {
            self.stage.violate(
                Rule::Freshness,
                &format!("host {host} stands with rank {rank} and {ahead} are ahead of it"),
            );
        }
        if let Some(other) = unheard {
            self.stage.violate(
                Rule::Freshness,
                &format!("host {host} stands and has not heard host {other} for {SILENCE:?}"),
            );
        }
    }
}
