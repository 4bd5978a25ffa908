//! A master that comes back without its data, or with less than its replicas have, gives its place to one of them.
//!
//! A supervisor starts a dead process again before anybody has missed it. What the new one finds on disk may be old, or
//! nothing; to the others it is the master all the same, and its replicas would copy that. So a master that starts
//! compares: as long as it does not know how far its replicas are, it neither serves nor lets anybody copy. If one is
//! ahead of what was found here, it *resigns*: it tells everybody, by the bus's FAIL message about itself, that it has
//! failed. Nodes of Redis take that as they take any FAIL, their replicas stand for election and their masters vote; it
//! itself votes too, since it knows that it is right. The elected one claims the slots, and this node follows.
//!
//! | what was found | until |
//! | --- | --- |
//! | nothing | every known replica was heard and none is ahead; or `empty-master-timeout` has passed |
//! | data up to some offset | the same, but who is not heard within a master's delay after a start is not waited for |
//!
//! A replica that announces that it never stands (`cluster-replica-no-failover`) could not take the place: that it is
//! ahead is no reason to resign, and it is waited for only as long as a master does not serve anyway.
//!
//! A node that comes with nothing at all, not even its name, is a stranger at the address of the master that it was. A
//! replica that has data and asks to copy it there is refused, until it is known as a replica of this node.
//!
//! Invariant: a master that resigned does not serve before the timeout. The timeout counts while a majority is in
//! reach: without one no replica could be elected.

use std::collections::BTreeMap;
use std::time::Duration;

use clock::Instant;
use slot_routing::{NodeId, ReplOffset};

use crate::contract::{Action, Copies};
use crate::event::FailureEvent;
use crate::machine::Gossip;
use crate::node::{Node, has_data};
use crate::wire::{Body, Header, Packet};

/// How long replicas are waited for that may be gone, if there is data here: as long as a master does not serve anyway.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Where a master stands that has started with less than it may have had.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Resignation {
    /// Its data is what it is.
    #[default]
    None,
    /// It compares, and perhaps has resigned.
    Open(Comparison),
    /// It came with nothing, and nobody is its replica.
    Alone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// How far the data that was found on disk reaches.
    found: ReplOffset,
    until: Instant,
    /// From when on replicas that never stand are not waited for.
    willing_only_from: Instant,
    resigned: bool,
    /// The nodes that were told that this one has failed, and when each is to be told again.
    told: BTreeMap<NodeId, Instant>,
}

impl Resignation {
    /// Whether this node serves nobody yet, neither clients nor replicas.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }
}

impl Gossip {
    /// This node's files hold what it had up to `found`.
    pub(crate) fn on_loaded(&mut self, found: ReplOffset) {
        if self.config.empty_master_timeout.is_zero() {
            return;
        }
        if !self.is_voter(self.me) || self.replicas().next().is_none() {
            return self.note_alone(found);
        }
        let wait = self.timeout(found);
        let (until, willing_only_from) = (self.now + wait, self.now + TIMEOUT);
        let told = BTreeMap::new();
        self.resignation =
            Resignation::Open(Comparison { found, until, willing_only_from, resigned: false, told });
        self.out.push(Action::AllowCopies(Copies::None));
        self.log(FailureEvent::Comparing { found: found.0 });
    }

    /// With nothing, and without replicas: a node that has data is no replica of this one, but perhaps of the former
    /// one.
    fn note_alone(&mut self, found: ReplOffset) {
        if !has_data(found) && self.replicas().next().is_none() {
            self.resignation = Resignation::Alone;
            self.out.push(Action::AllowCopies(Copies::WithoutData));
        }
    }

    fn timeout(&self, found: ReplOffset) -> Duration {
        let longest = self.config.empty_master_timeout;
        if has_data(found) { longest.min(TIMEOUT) } else { longest }
    }

    /// Those of this node, and those of a replica of it: they followed that while it was the master, and have not heard
    /// that it is none any more.
    fn replicas(&self) -> impl Iterator<Item = &Node> {
        let follows_me = |node: &Node| node.master() == Some(self.me);
        let follows_one = move |node: &Node| {
            let master = node.master().and_then(|master| self.nodes.get(&master));
            master.is_some_and(follows_me)
        };
        self.nodes.values().filter(move |node| node.id != self.me && (follows_me(node) || follows_one(node)))
    }

    /// Compares with what the replicas say; resigns, or goes on as a master like any other.
    pub(crate) fn step_resignation(&mut self) {
        if self.resignation == Resignation::Alone {
            let master = self.myself().is_master() && !has_data(self.replication.offset);
            if !master || self.replicas().next().is_some() {
                self.end_resignation();
            }
            return;
        }
        let Resignation::Open(Comparison { found, until, willing_only_from, resigned, .. }) =
            self.resignation
        else {
            return;
        };
        if !self.is_voter(self.me) {
            return self.end_resignation();
        }
        let heard = |node: &Node| node.contact.heard.is_some();
        let is_ahead = |node: &&Node| heard(node) && !node.no_failover && node.offset > found;
        let best = self.replicas().filter(is_ahead).max_by_key(|node| node.offset);
        let best = best.map(|node| (node.id, node.offset.0));
        let willing_only = self.now >= willing_only_from;
        let compared =
            best.is_none() && self.replicas().all(|node| heard(node) || node.no_failover && willing_only);
        if compared || self.now >= until {
            if self.now >= until && (resigned || !has_data(found)) {
                self.log(FailureEvent::NobodyTookOver);
            }
            self.end_resignation();
            return self.note_alone(found);
        }
        if let (Some((replica, offset)), false) = (best, resigned) {
            self.log(FailureEvent::Resigned { replica, offset });
            let until = self.now + self.config.empty_master_timeout;
            if let Resignation::Open(comparison) = &mut self.resignation {
                (comparison.resigned, comparison.until) = (true, until);
            }
        }
        self.tell_of_resignation();
    }

    /// No replica can be elected: one that could be gets its time later.
    pub(crate) fn put_off_resignation(&mut self) {
        let Resignation::Open(Comparison { found, resigned, .. }) = self.resignation else { return };
        let wait = if resigned { self.config.empty_master_timeout } else { self.timeout(found) };
        let until = self.now + wait;
        if let Resignation::Open(comparison) = &mut self.resignation {
            comparison.until = until;
        }
    }

    /// Everybody in reach, again and again: a node of Redis takes this one for well after a while, since it answers,
    /// and must have changed its mind when it is asked for its vote.
    fn tell_of_resignation(&mut self) {
        let (now, again) = (self.now, self.now + self.config.node_timeout / 10);
        let linked = self.linked();
        let Resignation::Open(Comparison { resigned: true, told, .. }) = &mut self.resignation else {
            return;
        };
        told.retain(|id, _| linked.contains(id));
        let due: Vec<NodeId> =
            linked.into_iter().filter(|id| told.get(id).is_none_or(|at| now >= *at)).collect();
        told.extend(due.iter().map(|id| (*id, again)));
        for id in due {
            let packet = Packet { header: self.header(), body: Body::Fail(self.me) };
            self.send_packet(id, packet);
        }
    }

    fn end_resignation(&mut self) {
        self.resignation = Resignation::None;
        self.out.push(Action::AllowCopies(Copies::All));
    }

    /// Whether a candidate is a replica of this node that is to take its place.
    pub(crate) fn yields_to(&self, header: &Header) -> bool {
        let Resignation::Open(Comparison { resigned: true, found, .. }) = self.resignation else {
            return false;
        };
        header.replica_of == Some(self.me) && header.offset > found
    }

    pub(crate) fn resignation_deadline(&self) -> Option<Instant> {
        let Resignation::Open(Comparison { until, willing_only_from, told, .. }) = &self.resignation else {
            return None;
        };
        let willing_only_from = Some(*willing_only_from).filter(|at| *at > self.now);
        told.values().copied().chain([*until]).chain(willing_only_from).min()
    }
}
