//! A master that restarts without its data, or with less than its replicas have, lets a replica take over.
//!
//! A supervisor restarts a dead process before the other nodes notice. The data on disk may be old or missing, but for
//! the other nodes the process is still the master, and its replicas would resync to the old data. A starting master
//! therefore compares offsets with its replicas before it serves or accepts replicas. If a replica is ahead, the master
//! declares itself FAIL: it sends the bus's FAIL message about itself to all nodes. Redis nodes handle it like any
//! other FAIL: the replicas start an election and the masters vote. This node votes as well. It follows the elected
//! replica once that claims the slots.
//!
//! | data found on disk | the comparison ends when |
//! | --- | --- |
//! | none | all known replicas have been heard and none is ahead, or `empty-master-timeout` has passed |
//! | up to some offset | the same, but replicas that are silent for the start delay of a master are ignored |
//!
//! A replica with `cluster-replica-no-failover` cannot take over. Its larger offset is no reason to step down, and the
//! master waits for it only for the start delay.
//!
//! A node that restarts with neither data nor `nodes.conf` is an unknown node at the address of the former master. It
//! refuses to synchronize replicas that have data until it knows them as its replicas.
//!
//! Invariant: a master that has declared itself FAIL does not serve before the timeout. The timeout restarts while no
//! majority is reachable, because no replica can be elected then.

use std::collections::BTreeMap;
use std::time::Duration;

use clock::Instant;
use slot_routing::{NodeId, ReplOffset};

use crate::contract::{ClusterAction, ReplicaAdmission};
use crate::event::FailureEvent;
use crate::machine::Gossip;
use crate::node::{Node, has_data};
use crate::wire::{Header, MessageBody, Packet};

/// How long to wait for replicas that may be gone if this master has data: the start delay, during which a master does
/// not serve anyway.
const TIMEOUT: Duration = Duration::from_secs(2);

/// State of a master that started with possibly less data than its replicas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum SelfFail {
    /// No comparison is needed, or it is complete.
    #[default]
    None,
    /// The comparison is in progress, or this node has declared itself FAIL.
    Open(Comparison),
    /// The node started without data and without replicas.
    Alone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// Replication offset of the data that was loaded from disk.
    found: ReplOffset,
    until: Instant,
    /// When to stop waiting for replicas that never start an election.
    ignore_ineligible_from: Instant,
    declared_fail: bool,
    /// The nodes that were sent the FAIL, with the time of the next repetition.
    told: BTreeMap<NodeId, Instant>,
}

impl SelfFail {
    /// Whether this node serves neither clients nor replicas yet.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }
}

impl Gossip {
    /// Starts the comparison: the data on disk reaches up to `found`.
    pub(crate) fn on_loaded(&mut self, found: ReplOffset) {
        if self.state.config.empty_master_timeout.is_zero() {
            return;
        }
        if !self.is_voter(self.state.me) || self.replicas().next().is_none() {
            return self.restrict_replicas_if_empty(found);
        }
        let wait = self.timeout(found);
        let (until, ignore_ineligible_from) = (self.state.now + wait, self.state.now + TIMEOUT);
        let told = BTreeMap::new();
        self.self_fail =
            SelfFail::Open(Comparison { found, until, ignore_ineligible_from, declared_fail: false, told });
        self.out.push(ClusterAction::AllowReplicas(ReplicaAdmission::None));
        self.log(FailureEvent::Comparing { found: found.0 });
    }

    /// Without data and without replicas, nodes that have data are not replicas of this node, but may be replicas of a
    /// former one at this address.
    fn restrict_replicas_if_empty(&mut self, found: ReplOffset) {
        if !has_data(found) && self.replicas().next().is_none() {
            self.self_fail = SelfFail::Alone;
            self.out.push(ClusterAction::AllowReplicas(ReplicaAdmission::OnlyEmpty));
        }
    }

    fn timeout(&self, found: ReplOffset) -> Duration {
        let longest = self.state.config.empty_master_timeout;
        if has_data(found) { longest.min(TIMEOUT) } else { longest }
    }

    /// The replicas of this node and the replicas of its replicas. The latter replicated from a replica while it was
    /// the master and do not know yet that it no longer is.
    fn replicas(&self) -> impl Iterator<Item = &Node> {
        let follows_me = |node: &Node| node.master() == Some(self.state.me);
        let follows_one = move |node: &Node| {
            let master = node.master().and_then(|master| self.state.nodes.get(&master));
            master.is_some_and(follows_me)
        };
        self.state
            .nodes
            .values()
            .filter(move |node| node.id != self.state.me && (follows_me(node) || follows_one(node)))
    }

    /// Compares offsets; declares FAIL, ends the comparison, or keeps waiting.
    pub(crate) fn step_self_fail(&mut self) {
        if self.self_fail == SelfFail::Alone {
            let master = self.myself().is_master() && !has_data(self.state.replication.offset);
            if !master || self.replicas().next().is_some() {
                self.end_self_fail();
            }
            return;
        }
        let SelfFail::Open(Comparison { found, until, ignore_ineligible_from, declared_fail, .. }) =
            self.self_fail
        else {
            return;
        };
        if !self.is_voter(self.state.me) {
            return self.end_self_fail();
        }
        let heard = |node: &Node| node.contact.last_message.is_some();
        let is_ahead = |node: &&Node| heard(node) && !node.no_failover && node.offset > found;
        let best = self.replicas().filter(is_ahead).max_by_key(|node| node.offset);
        let best = best.map(|node| (node.id, node.offset.0));
        let ignore_ineligible = self.state.now >= ignore_ineligible_from;
        let compared = best.is_none()
            && self.replicas().all(|node| heard(node) || node.no_failover && ignore_ineligible);
        if compared || self.state.now >= until {
            if self.state.now >= until && (declared_fail || !has_data(found)) {
                self.log(FailureEvent::NoReplicaTookOver);
            }
            self.end_self_fail();
            return self.restrict_replicas_if_empty(found);
        }
        if let (Some((replica, offset)), false) = (best, declared_fail) {
            self.log(FailureEvent::Resigned { replica, offset });
            let until = self.state.now + self.state.config.empty_master_timeout;
            if let SelfFail::Open(comparison) = &mut self.self_fail {
                (comparison.declared_fail, comparison.until) = (true, until);
            }
        }
        self.send_self_fail();
    }

    /// Restarts the timeout while no majority is reachable, because no replica can be elected.
    pub(crate) fn postpone_self_fail_timeout(&mut self) {
        let SelfFail::Open(Comparison { found, declared_fail, .. }) = self.self_fail else { return };
        let wait = if declared_fail { self.state.config.empty_master_timeout } else { self.timeout(found) };
        let until = self.state.now + wait;
        if let SelfFail::Open(comparison) = &mut self.self_fail {
            comparison.until = until;
        }
    }

    /// Repeats the FAIL to all reachable nodes. This node still answers PINGs, so Redis nodes clear the FAIL after a
    /// while, and must have it set again when a candidate requests their vote.
    fn send_self_fail(&mut self) {
        let (now, again) = (self.state.now, self.state.now + self.state.config.node_timeout / 10);
        let linked = self.linked();
        let SelfFail::Open(Comparison { declared_fail: true, told, .. }) = &mut self.self_fail else {
            return;
        };
        told.retain(|id, _| linked.contains(id));
        let due: Vec<NodeId> =
            linked.into_iter().filter(|id| told.get(id).is_none_or(|at| now >= *at)).collect();
        told.extend(due.iter().map(|id| (*id, again)));
        for id in due {
            let packet = Packet { header: self.header(), body: MessageBody::Fail(self.state.me) };
            self.send_packet(id, packet);
        }
    }

    fn end_self_fail(&mut self) {
        self.self_fail = SelfFail::None;
        self.out.push(ClusterAction::AllowReplicas(ReplicaAdmission::All));
    }

    /// Whether the candidate is a replica that should take over from this node.
    pub(crate) fn should_yield_to(&self, header: &Header) -> bool {
        let SelfFail::Open(Comparison { declared_fail: true, found, .. }) = self.self_fail else {
            return false;
        };
        header.replica_of == Some(self.state.me) && header.offset > found
    }

    pub(crate) fn self_fail_deadline(&self) -> Option<Instant> {
        let SelfFail::Open(Comparison { until, ignore_ineligible_from, told, .. }) = &self.self_fail else {
            return None;
        };
        let ignore_ineligible_from = Some(*ignore_ineligible_from).filter(|at| *at > self.state.now);
        told.values().copied().chain([*until]).chain(ignore_ineligible_from).min()
    }
}
