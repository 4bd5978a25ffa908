//! Records faults and masters over time and decides whether they explain a loss.

use std::time::Duration;

use serde::Serialize;

use crate::{FaultKind, Operation};

/// After a clock jump the faked clock takes this long to reach the node.
const CLOCK_JUMP_DELAY: Duration = Duration::from_millis(1500);

/// A fault that was injected, with the times at which it could take effect.
#[derive(Debug, Clone, Serialize)]
pub struct InjectedFault {
    /// The kind of fault.
    pub fault: FaultKind,
    /// The indexes of the affected nodes.
    pub nodes: Vec<usize>,
    /// When the injection began, since the beginning of the run.
    pub begin: Duration,
    /// When the fault was fully active: the commands that partition a network can take seconds on a
    /// loaded machine.
    pub in_effect: Duration,
    /// When the fault ended, since the beginning of the run.
    pub end: Duration,
}

/// A period during which a node was observed as master.
#[derive(Debug, Clone, Serialize)]
pub struct MasterPeriod {
    /// The index of the node.
    pub node: usize,
    /// When the node was first observed as master.
    pub since: Duration,
    /// When the node was last observed as master.
    pub until: Duration,
}

/// The recovery of the servers after a round.
#[derive(Debug, Clone, Serialize)]
pub struct RoundRecovery {
    /// When the last fault of the round ended, since the beginning of the run.
    pub began: Duration,
    /// The time from the end of the last fault until all nodes agreed.
    pub took: Duration,
    /// The check that still failed at the time limit; `None` after a complete recovery.
    pub wrong: Option<String>,
}

/// Time limits for explaining a loss.
#[derive(Debug, Clone, Copy)]
pub struct LossTimeouts {
    /// The time after which a master without contact to other nodes must reject writes.
    pub deposed_after: Duration,
    /// The maximum replica lag without faults.
    pub max_lag: Duration,
    /// Tolerance for scheduling delays and for the time between an event and its recording.
    pub tolerance: Duration,
}

/// Everything that happened to the servers during a run.
#[derive(Debug, Default, Serialize)]
pub struct Timeline {
    /// The faults, ordered by their end.
    pub faults: Vec<InjectedFault>,
    /// The observed masters with their periods.
    pub master_periods: Vec<MasterPeriod>,
    /// The recoveries, one per round.
    pub recoveries: Vec<RoundRecovery>,
    /// The forbidden states that the observer has seen.
    pub violations: Vec<String>,
    /// The number of shards. Node `n` begins in shard `n % shards`.
    pub shards: usize,
}

impl Timeline {
    /// Returns the number of injected faults.
    #[must_use]
    pub fn fault_count(&self) -> usize {
        self.faults.iter().filter(|injected| injected.fault != FaultKind::Stall).count()
    }

    /// Returns the total time of machine stalls.
    #[must_use]
    pub fn total_stall(&self) -> Duration {
        let stalls = self.faults.iter().filter(|injected| injected.fault == FaultKind::Stall);
        stalls.map(|stall| stall.end - stall.begin).sum()
    }

    /// Returns whether asynchronous replication explains the loss of the acknowledged write `op`. It does if a fault
    /// disturbed the node, the write happened before the node could notice that it was deposed, and another node was
    /// promoted or the node's data was destroyed.
    #[must_use]
    pub fn explains_loss_of(&self, op: &Operation, loss_timeouts: LossTimeouts) -> bool {
        self.faults.iter().any(|fault| self.fault_explains_loss(op, fault, loss_timeouts))
    }

    fn fault_explains_loss(
        &self,
        op: &Operation,
        fault: &InjectedFault,
        loss_timeouts: LossTimeouts,
    ) -> bool {
        if !fault.fault.may_lose_writes() || !self.affects_master(op.node, fault) {
            return false;
        }
        let last = match fault.fault {
            FaultKind::Kill | FaultKind::Wipe | FaultKind::Freeze => {
                fault.in_effect + loss_timeouts.tolerance
            }
            FaultKind::Force | FaultKind::Takeover => fault.end + loss_timeouts.tolerance,
            // Under sentinels, a master that can reach one replica has enough replicas to accept writes.
            FaultKind::Halves | FaultKind::Bridge if self.shards == 1 => {
                fault.end + loss_timeouts.deposed_after + loss_timeouts.tolerance
            }
            // A lossy or slow link can behave like a broken one at any moment.
            bad if bad.degrades_link() => fault.end + loss_timeouts.deposed_after + loss_timeouts.tolerance,
            _ => fault.in_effect + loss_timeouts.deposed_after + loss_timeouts.tolerance,
        };
        let first =
            self.last_time_in_sync(op.node, fault, loss_timeouts).saturating_sub(loss_timeouts.max_lag);
        let replaced = fault.fault == FaultKind::Wipe || self.has_successor(op.node, fault.begin);
        replaced && first <= op.completed && op.invoked <= last
    }

    /// Returns whether the fault affects `node` as a master. A forced failover targets the replica
    /// but disturbs its master.
    fn affects_master(&self, node: usize, fault: &InjectedFault) -> bool {
        match fault.fault {
            FaultKind::Force | FaultKind::Takeover => {
                fault.nodes.iter().any(|each| self.are_in_same_shard(*each, node))
            }
            _ => fault.nodes.contains(&node),
        }
    }

    /// Returns the last time before this fault at which the master's replicas were certainly in
    /// sync. Earlier faults may have delayed them.
    fn last_time_in_sync(&self, node: usize, fault: &InjectedFault, loss_timeouts: LossTimeouts) -> Duration {
        let mut first = fault.begin;
        // If replicas were lagging because of an earlier disturbance, they may have lagged since its beginning.
        for other in self.faults.iter().rev() {
            let disturbs = other.nodes.iter().any(|each| self.are_in_same_shard(*each, node));
            let overlaps = other.begin <= first && other.end + loss_timeouts.deposed_after * 2 >= first;
            if disturbs && overlaps && other.fault.delays_replicas() {
                first = first.min(other.begin);
            }
        }
        first
    }

    /// Returns whether the clock of a node in the shard was wrong between `from` and `to`, so that keys may have
    /// expired too early or too late.
    #[must_use]
    pub fn is_clock_wrong(&self, node: usize, from: Duration, to: Duration) -> bool {
        self.faults.iter().any(|fault| {
            fault.fault == FaultKind::ClockJump
                && fault.nodes.iter().any(|each| self.are_in_same_shard(*each, node))
                && fault.begin <= to
                && fault.end + CLOCK_JUMP_DELAY >= from
        })
    }

    fn are_in_same_shard(&self, node: usize, other_node: usize) -> bool {
        node % self.shards.max(1) == other_node % self.shards.max(1)
    }

    /// Returns whether another node of the shard was observed as master after this time.
    fn has_successor(&self, node: usize, after: Duration) -> bool {
        self.master_periods.iter().any(|reign| {
            reign.node != node && self.are_in_same_shard(reign.node, node) && reign.until > after
        })
    }

    /// Returns the periods in which keys of the node's shard may change without a client. Linearizability is not
    /// checked across these periods.
    #[must_use]
    pub fn disturbed_periods(&self, node: usize, loss_timeouts: LossTimeouts) -> Vec<(Duration, Duration)> {
        let mut spans: Vec<(Duration, Duration)> = self
            .faults
            .iter()
            .filter(|fault| fault.fault.may_lose_writes())
            .filter(|fault| fault.nodes.iter().any(|each| self.are_in_same_shard(*each, node)))
            .map(|fault| {
                (
                    fault.begin.saturating_sub(loss_timeouts.max_lag),
                    fault.end + loss_timeouts.deposed_after * 2 + loss_timeouts.tolerance,
                )
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
