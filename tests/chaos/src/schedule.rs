//! Draws faults and their times from a seed before the run, so that the same seed gives the same faults.

use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{DeploymentMode, FaultKind};

/// The maximum number of faults per round.
const MAX_FAULTS_PER_ROUND: usize = 3;

/// A fault with its target node, start and duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledFault {
    /// The fault to inject.
    pub fault: FaultKind,
    /// The index of the node that the fault affects.
    pub node: usize,
    /// A random number from which details are derived when the fault is injected.
    pub random: u64,
    /// When the fault begins, since the beginning of the round.
    pub start_delay: Duration,
    /// How long the fault lasts.
    pub duration: Duration,
}

/// A set of overlapping faults. Once they have ended, all nodes must agree again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultRound {
    /// The faults, ordered by start time.
    pub faults: Vec<ScheduledFault>,
}

/// The endless sequence of rounds that a seed gives.
#[derive(Debug)]
pub struct FaultSchedule {
    rng: ChaCha8Rng,
    faults: Vec<FaultKind>,
    node_count: usize,
    server_count: usize,
    shard_count: usize,
}

impl FaultSchedule {
    /// Creates the schedule of a seed over `faults`.
    ///
    /// # Panics
    /// None of `faults` can occur in this mode.
    #[must_use]
    pub fn new(seed: u64, mode: DeploymentMode, faults: &[FaultKind]) -> Self {
        let faults: Vec<FaultKind> = faults.iter().copied().filter(|fault| fault.occurs_in(mode)).collect();
        assert!(!faults.is_empty(), "none of these faults happens in this mode");
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self {
            rng,
            faults,
            node_count: mode.node_count(),
            server_count: mode.data_node_count(),
            shard_count: mode.shard_count(),
        }
    }

    fn draw_fault(&mut self) -> ScheduledFault {
        let fault = *self.faults.choose(&mut self.rng).expect("some faults were chosen");
        let places = if fault.needs_data_node() { self.server_count } else { self.node_count };
        ScheduledFault {
            fault,
            node: self.rng.random_range(0..places),
            random: self.rng.random(),
            start_delay: Duration::from_millis(self.rng.random_range(0..1500)),
            duration: Duration::from_millis(self.rng.random_range(300..5000)),
        }
    }
}

impl Iterator for FaultSchedule {
    type Item = FaultRound;

    /// Draws the next round. A process has at most one fault at a time, and the network at most one partition. A shard
    /// with a destroyed disk gets no other fault, because no server could keep the data if the second node lost it as
    /// well.
    fn next(&mut self) -> Option<FaultRound> {
        let count = self.rng.random_range(1..=MAX_FAULTS_PER_ROUND);
        let mut faults: Vec<ScheduledFault> = Vec::new();
        for _ in 0..count {
            let new = self.draw_fault();
            let shard = |scheduled: &ScheduledFault| scheduled.node % self.shard_count;
            let clashes = |other: &ScheduledFault| {
                let wipes = new.fault == FaultKind::Wipe || other.fault == FaultKind::Wipe;
                new.node == other.node
                    || (new.fault.partitions_network() && other.fault.partitions_network())
                    || (wipes
                        && (shard(&new) == shard(other)
                            || other.fault.partitions_network()
                            || new.fault.partitions_network()))
            };
            if !faults.iter().any(clashes) {
                faults.push(new);
            }
        }
        faults.sort_by_key(|scheduled| scheduled.start_delay);
        Some(FaultRound { faults })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    fn draw_rounds(seed: u64, mode: DeploymentMode) -> Vec<FaultRound> {
        FaultSchedule::new(seed, mode, FaultKind::value_variants()).take(200).collect()
    }

    #[test]
    fn equal_seeds_draw_equal_faults() {
        assert_eq!(draw_rounds(7, DeploymentMode::Cluster), draw_rounds(7, DeploymentMode::Cluster));
        assert_ne!(draw_rounds(7, DeploymentMode::Cluster), draw_rounds(8, DeploymentMode::Cluster));
    }

    #[test]
    fn every_fault_of_a_mode_is_drawn() {
        for mode in [DeploymentMode::Cluster, DeploymentMode::Sentinel] {
            let drawn: Vec<FaultKind> = draw_rounds(1, mode)
                .iter()
                .flat_map(|round| round.faults.iter().map(|scheduled| scheduled.fault))
                .collect();
            for fault in FaultKind::value_variants() {
                assert_eq!(drawn.contains(fault), fault.occurs_in(mode), "{fault:?} in {mode:?}");
            }
        }
    }

    #[test]
    fn wiped_shard_gets_no_other_fault() {
        for round in draw_rounds(3, DeploymentMode::Cluster) {
            let wiped = round.faults.iter().find(|scheduled| scheduled.fault == FaultKind::Wipe);
            let Some(wiped) = wiped else { continue };
            let same = round.faults.iter().filter(|other| other.node % 3 == wiped.node % 3);
            assert_eq!(same.count(), 1, "{round:?}");
        }
    }
}
