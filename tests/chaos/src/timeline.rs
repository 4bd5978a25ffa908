//! The faults of a run and the masters in time: the evidence that explains a loss.

use std::time::Duration;

use serde::Serialize;

use crate::{Fault, Op};

/// So long after its clock was set a node goes by the old time.
const CLOCK: Duration = Duration::from_millis(1500);

/// A fault that happened.
#[derive(Debug, Clone, Serialize)]
pub struct Injected {
    /// The fault itself.
    pub fault: Fault,
    /// The nodes that it disturbed.
    pub nodes: Vec<usize>,
    /// When it began, since the run did.
    pub begin: Duration,
    /// When it was there in full: the commands that cut a network take seconds where processors are rare.
    pub in_effect: Duration,
    /// When it ended.
    pub end: Duration,
}

/// A node was seen as a master, from its first to its last sight as one.
#[derive(Debug, Clone, Serialize)]
pub struct Reign {
    /// Which node.
    pub node: usize,
    /// Its first sight.
    pub since: Duration,
    /// Its last sight.
    pub until: Duration,
}

/// How long a healing took, and whether it did.
#[derive(Debug, Clone, Serialize)]
pub struct Healing {
    /// When the last fault of the round had ended.
    pub began: Duration,
    /// The time until all nodes agreed.
    pub took: Duration,
    /// The check that still failed at the bound, if it did not heal.
    pub wrong: Option<String>,
}

/// The bounds by which a loss is explained.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// After so long a master that reaches no other node takes no more writes.
    pub deposed: Duration,
    /// The most that a replica may lag behind where nothing is wrong.
    pub lag: Duration,
    /// Scheduling, and what lies between the act and its note.
    pub slack: Duration,
}

/// All of it.
#[derive(Debug, Default, Serialize)]
pub struct Timeline {
    /// Faults in the order of their ends.
    pub faults: Vec<Injected>,
    /// The masters, each with the time that it was one.
    pub reigns: Vec<Reign>,
    /// One for each round.
    pub healings: Vec<Healing>,
    /// The states that must never be, as the observer saw them.
    pub violations: Vec<String>,
    /// How many shards there are: node `n` begins in shard `n % shards`.
    pub shards: usize,
}

impl Timeline {
    /// How many faults were injected.
    #[must_use]
    pub fn injected(&self) -> usize {
        self.faults.iter().filter(|injected| injected.fault != Fault::Stall).count()
    }

    /// For how long the machine itself let processes wait.
    #[must_use]
    pub fn stalled(&self) -> Duration {
        let stalls = self.faults.iter().filter(|injected| injected.fault == Fault::Stall);
        stalls.map(|stall| stall.end - stall.begin).sum()
    }

    /// Whether asynchronous replication explains that this acknowledged write is not there: the node that acknowledged
    /// it was disturbed, the write came before the node could know that it is deposed, and another took its place or
    /// its data was destroyed.
    #[must_use]
    pub fn explains(&self, op: &Op, timeouts: Timeouts) -> bool {
        self.faults.iter().any(|fault| self.explains_by(op, fault, timeouts))
    }

    fn explains_by(&self, op: &Op, fault: &Injected, timeouts: Timeouts) -> bool {
        if !fault.fault.may_lose() || !self.touches_master(op.node, fault) {
            return false;
        }
        let last = match fault.fault {
            Fault::Kill | Fault::Wipe | Fault::Freeze => fault.in_effect + timeouts.slack,
            Fault::Force | Fault::Takeover => fault.end + timeouts.slack,
            // Under sentinels, a master that keeps one of its replicas on its side has enough to go on taking writes.
            Fault::Halves | Fault::Bridge if self.shards == 1 => {
                fault.end + timeouts.deposed + timeouts.slack
            }
            // A line that loses packets, or holds them up, may be as good as cut at any moment.
            bad if bad.impairs_line() => fault.end + timeouts.deposed + timeouts.slack,
            _ => fault.in_effect + timeouts.deposed + timeouts.slack,
        };
        let first = self.last_in_step(op.node, fault, timeouts).saturating_sub(timeouts.lag);
        let replaced = fault.fault == Fault::Wipe || self.is_succeeded(op.node, fault.begin);
        replaced && first <= op.completed && op.invoked <= last
    }

    /// A forced failover is done to the replica and disturbs its master.
    fn touches_master(&self, node: usize, fault: &Injected) -> bool {
        match fault.fault {
            Fault::Force | Fault::Takeover => fault.nodes.iter().any(|each| self.same_shard(*each, node)),
            _ => fault.nodes.contains(&node),
        }
    }

    /// When the master's replicas can have stood still before this fault: they were disturbed themselves.
    fn last_in_step(&self, node: usize, fault: &Injected, timeouts: Timeouts) -> Duration {
        let mut first = fault.begin;
        // A disturbance before a disturbance counts as well.
        for other in self.faults.iter().rev() {
            let disturbs = other.nodes.iter().any(|each| self.same_shard(*each, node));
            let overlaps = other.begin <= first && other.end + timeouts.deposed * 2 >= first;
            if disturbs && overlaps && other.fault.holds_back() {
                first = first.min(other.begin);
            }
        }
        first
    }

    /// Whether a clock of this node's shard was wrong at some moment between these: what has a time to live ends too
    /// early then, or too late.
    #[must_use]
    pub fn is_clock_wrong(&self, node: usize, from: Duration, to: Duration) -> bool {
        self.faults.iter().any(|fault| {
            fault.fault == Fault::ClockJump
                && fault.nodes.iter().any(|each| self.same_shard(*each, node))
                && fault.begin <= to
                && fault.end + CLOCK >= from
        })
    }

    fn same_shard(&self, one: usize, other: usize) -> bool {
        one % self.shards.max(1) == other % self.shards.max(1)
    }

    /// Whether another node of the shard was seen as master after this moment.
    fn is_succeeded(&self, node: usize, after: Duration) -> bool {
        self.reigns
            .iter()
            .any(|reign| reign.node != node && self.same_shard(reign.node, node) && reign.until > after)
    }

    /// The times in which a key of this node's shard may change without a client: no order is asked for across them.
    #[must_use]
    pub fn disturbed(&self, node: usize, timeouts: Timeouts) -> Vec<(Duration, Duration)> {
        let mut spans: Vec<(Duration, Duration)> = self
            .faults
            .iter()
            .filter(|fault| fault.fault.may_lose())
            .filter(|fault| fault.nodes.iter().any(|each| self.same_shard(*each, node)))
            .map(|fault| {
                (fault.begin.saturating_sub(timeouts.lag), fault.end + timeouts.deposed * 2 + timeouts.slack)
            })
            .collect();
        spans.sort();
        let mut merged: Vec<(Duration, Duration)> = Vec::new();
        for (begin, end) in spans {
            match merged.last_mut() {
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((begin, end)),
            }
        }
        merged
    }
}
