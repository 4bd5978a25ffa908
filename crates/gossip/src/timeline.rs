//! The last failovers, as this node saw them: the material of a flight recorder.
//!
//! A record opens when a node is suspected and takes what happens to it until it answers again or is
//! replaced. Times are the wall clock's, since records of several nodes will be laid side by side.

use std::collections::VecDeque;

use clock::Millis;
use slot_routing::{Epoch, NodeId};

use crate::event::{Denial, Hindrance};
use crate::node::Cause;

/// How many records are kept.
const KEPT: usize = 100;
/// How many suspicions and votes one record keeps; more than that tells nothing new.
const KEPT_PER_RECORD: usize = 64;

/// The failures that this node saw, the newest hundred of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Timeline {
    records: VecDeque<FailoverRecord>,
}

/// One node's failure, as seen from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailoverRecord {
    /// The failed node.
    pub node: NodeId,
    /// The replica that is to take its place at an operator's request, and when that was heard.
    pub requested: Option<(NodeId, Millis)>,
    /// The suspicions of other nodes and our own, in the order in which this node heard of them.
    pub suspicions: Vec<Suspicion>,
    /// When the failure was agreed on, here or elsewhere.
    pub agreed: Option<Millis>,
    /// The replicas that might take its place, as this node knew them last, and when that was.
    pub candidates: Vec<Candidate>,
    /// When the candidates were looked at.
    pub compared: Option<Millis>,
    /// Our own candidacies in its place.
    pub ballots: Vec<Ballot>,
    /// Why we did not stand, or not succeed.
    pub hindered: Vec<(Hindrance, Millis)>,
    /// Our votes: the node voted for, the epoch, and when.
    pub voted: Vec<(NodeId, Epoch, Millis)>,
    /// Votes that we refused: to the node, in the epoch, why, and when.
    pub denied: Vec<(NodeId, Epoch, Denial, Millis)>,
    /// The node that took over its slots, under which epoch, and when.
    pub replaced: Option<(NodeId, Epoch, Millis)>,
    /// When we accepted the first write, having taken its place.
    pub first_write: Option<Millis>,
    /// When it answered again.
    pub returned: Option<Millis>,
    /// When the operator's request was given up.
    pub given_up: Option<Millis>,
}

/// A replica that might take a failed master's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The replica.
    pub node: NodeId,
    /// How far it said to be, last.
    pub offset: u64,
    /// How many of those that may stand come before it; `None` if it may not.
    pub rank: Option<u32>,
    /// Why it may not stand.
    pub unfit: Option<Unfit>,
}

/// Why a replica may not take its master's place, as other nodes see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// It is suspected or failed.
    Down,
    /// Its operator does not want it to be a master (`cluster-replica-no-failover`).
    NoFailover,
    /// It has nothing, and its master resigned to one that has.
    Empty,
}

/// One node's opinion that another is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspicion {
    /// The node whose opinion it is.
    pub by: NodeId,
    /// When it was heard here.
    pub at: Millis,
    /// Known for our own suspicions.
    pub cause: Option<Cause>,
}

/// One attempt to be elected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ballot {
    /// When the election was put on the agenda.
    pub scheduled: Millis,
    /// How many replicas had more data.
    pub rank: u32,
    /// The replication offset it stood with.
    pub offset: u64,
    /// The epoch in which votes were asked for, and when.
    pub asked: Option<(Epoch, Millis)>,
    /// The nodes that voted for this one, and when.
    pub votes: Vec<(NodeId, Millis)>,
}

impl Timeline {
    /// The records, oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &FailoverRecord> {
        self.records.iter()
    }

    /// The open record about `node`; a new one if there is none.
    pub(crate) fn open(&mut self, node: NodeId) -> &mut FailoverRecord {
        let open = self.records.iter().rposition(|record| record.node == node && record.is_open());
        let place = open.unwrap_or_else(|| {
            if self.records.len() == KEPT {
                self.records.pop_front();
            }
            self.records.push_back(FailoverRecord::new(node));
            self.records.len() - 1
        });
        &mut self.records[place]
    }

    pub(crate) fn suspected(&mut self, node: NodeId, suspicion: Suspicion) {
        let record = self.open(node);
        let known = record.suspicions.iter().any(|other| other.by == suspicion.by);
        if !known && record.suspicions.len() < KEPT_PER_RECORD {
            record.suspicions.push(suspicion);
        }
    }

    pub(crate) fn agreed(&mut self, node: NodeId, at: Millis) {
        self.open(node).agreed.get_or_insert(at);
    }

    pub(crate) fn voted(&mut self, master: NodeId, candidate: NodeId, epoch: Epoch, at: Millis) {
        let record = self.open(master);
        if record.voted.len() < KEPT_PER_RECORD {
            record.voted.push((candidate, epoch, at));
        }
    }

    pub(crate) fn denied(
        &mut self,
        master: NodeId,
        candidate: NodeId,
        epoch: Epoch,
        why: Denial,
        at: Millis,
    ) {
        // Without a failure or a request there is no failover of which to tell.
        let Some(record) = self.last_of(master).filter(|record| record.is_open()) else { return };
        let known =
            record.denied.iter().any(|(other, in_epoch, ..)| (*other, *in_epoch) == (candidate, epoch));
        if !known && record.denied.len() < KEPT_PER_RECORD {
            record.denied.push((candidate, epoch, why, at));
        }
    }

    pub(crate) fn hindered(&mut self, master: NodeId, why: Hindrance, at: Millis) {
        let record = self.open(master);
        if record.hindered.len() < KEPT_PER_RECORD {
            record.hindered.push((why, at));
        }
    }

    pub(crate) fn requested(&mut self, master: NodeId, by: NodeId, at: Millis) {
        self.open(master).requested = Some((by, at));
    }

    /// The operator's request came to nothing.
    pub(crate) fn given_up(&mut self, master: NodeId, at: Millis) {
        let asked = |record: &&mut FailoverRecord| record.is_open() && record.requested.is_some();
        if let Some(record) = self.last_of(master).filter(asked) {
            record.given_up = Some(at);
        }
    }

    pub(crate) fn compared(&mut self, master: NodeId, candidates: Vec<Candidate>, at: Millis) {
        let record = self.open(master);
        (record.candidates, record.compared) = (candidates, Some(at));
    }

    /// This node, which took the place of another last, accepts its first write.
    pub(crate) fn first_write(&mut self, me: NodeId, at: Millis) {
        let ours = |record: &&mut FailoverRecord| record.replaced.is_some_and(|(by, ..)| by == me);
        if let Some(record) = self.records.iter_mut().rev().find(ours) {
            record.first_write.get_or_insert(at);
        }
    }

    pub(crate) fn returned(&mut self, node: NodeId, at: Millis) {
        if let Some(record) = self.last_of(node).filter(|record| record.given_up.is_none()) {
            record.returned.get_or_insert(at);
        }
    }

    /// `by` serves slots of `node` now; only told if there was a failure to be replaced for.
    pub(crate) fn replaced(&mut self, node: NodeId, by: NodeId, epoch: Epoch, at: Millis) {
        if let Some(record) = self.last_of(node).filter(|record| record.is_open()) {
            record.replaced = Some((by, epoch, at));
        }
    }

    fn last_of(&mut self, node: NodeId) -> Option<&mut FailoverRecord> {
        self.records.iter_mut().rev().find(|record| record.node == node)
    }
}

impl FailoverRecord {
    fn new(node: NodeId) -> Self {
        Self {
            node,
            requested: None,
            suspicions: Vec::new(),
            agreed: None,
            candidates: Vec::new(),
            compared: None,
            ballots: Vec::new(),
            hindered: Vec::new(),
            voted: Vec::new(),
            denied: Vec::new(),
            replaced: None,
            first_write: None,
            returned: None,
            given_up: None,
        }
    }

    fn is_open(&self) -> bool {
        self.replaced.is_none() && self.returned.is_none() && self.given_up.is_none()
    }

    pub(crate) fn ballot(&mut self, ballot: Ballot) {
        if self.ballots.len() < KEPT_PER_RECORD {
            self.ballots.push(ballot);
        }
    }
}
