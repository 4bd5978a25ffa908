//! The faults of a run and their times: drawn from a seed before anything starts, so that a seed replays it.

use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{Fault, Mode};

/// The most faults of a round.
const MOST: usize = 3;

/// A fault of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The fault itself.
    pub fault: Fault,
    /// To which node: its place in the deployment.
    pub node: usize,
    /// A number for whatever else is to be drawn when it happens.
    pub draw: u64,
    /// When it begins, after the round did.
    pub after: Duration,
    /// How long it lasts.
    pub lasts: Duration,
}

/// Faults that overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// In the order of their beginnings.
    pub faults: Vec<Planned>,
}

/// An endless sequence of rounds.
#[derive(Debug)]
pub struct Schedule {
    chance: ChaCha8Rng,
    faults: Vec<Fault>,
    nodes: usize,
    servers: usize,
    shards: usize,
}

impl Schedule {
    /// The schedule of a seed, over these faults.
    ///
    /// # Panics
    /// If no fault remains that happens in this mode.
    #[must_use]
    pub fn new(seed: u64, mode: Mode, faults: &[Fault]) -> Self {
        let faults: Vec<Fault> = faults.iter().copied().filter(|fault| fault.is_of(mode)).collect();
        assert!(!faults.is_empty(), "none of these faults happens in this mode");
        let chance = ChaCha8Rng::seed_from_u64(seed);
        Self { chance, faults, nodes: mode.nodes(), servers: mode.servers(), shards: mode.shards() }
    }

    fn fault(&mut self) -> Planned {
        let fault = *self.faults.choose(&mut self.chance).expect("some faults were chosen");
        let places = if fault.is_of_servers() { self.servers } else { self.nodes };
        Planned {
            fault,
            node: self.chance.random_range(0..places),
            draw: self.chance.random(),
            after: Duration::from_millis(self.chance.random_range(0..1500)),
            lasts: Duration::from_millis(self.chance.random_range(300..5000)),
        }
    }
}

impl Iterator for Schedule {
    type Item = Round;

    /// A process has one fault at a time, the network one cut. Where data is destroyed, nothing else happens to the
    /// shard: with both of two copies gone, no server could keep it.
    fn next(&mut self) -> Option<Round> {
        let count = self.chance.random_range(1..=MOST);
        let mut faults: Vec<Planned> = Vec::new();
        for _ in 0..count {
            let new = self.fault();
            let shard = |planned: &Planned| planned.node % self.shards;
            let clashes = |other: &Planned| {
                let wipes = new.fault == Fault::Wipe || other.fault == Fault::Wipe;
                new.node == other.node
                    || (new.fault.cuts_network() && other.fault.cuts_network())
                    || (wipes
                        && (shard(&new) == shard(other)
                            || other.fault.cuts_network()
                            || new.fault.cuts_network()))
            };
            if !faults.iter().any(clashes) {
                faults.push(new);
            }
        }
        faults.sort_by_key(|planned| planned.after);
        Some(Round { faults })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    fn rounds(seed: u64, mode: Mode) -> Vec<Round> {
        Schedule::new(seed, mode, Fault::value_variants()).take(200).collect()
    }

    #[test]
    fn a_seed_replays_its_faults() {
        assert_eq!(rounds(7, Mode::Cluster), rounds(7, Mode::Cluster));
        assert_ne!(rounds(7, Mode::Cluster), rounds(8, Mode::Cluster));
    }

    #[test]
    fn each_fault_of_a_mode_is_drawn_and_no_other() {
        for mode in [Mode::Cluster, Mode::Sentinel] {
            let drawn: Vec<Fault> = rounds(1, mode)
                .iter()
                .flat_map(|round| round.faults.iter().map(|planned| planned.fault))
                .collect();
            for fault in Fault::value_variants() {
                assert_eq!(drawn.contains(fault), fault.is_of(mode), "{fault:?} in {mode:?}");
            }
        }
    }

    #[test]
    fn who_loses_its_data_is_not_alone() {
        for round in rounds(3, Mode::Cluster) {
            let wiped = round.faults.iter().find(|planned| planned.fault == Fault::Wipe);
            let Some(wiped) = wiped else { continue };
            let same = round.faults.iter().filter(|other| other.node % 3 == wiped.node % 3);
            assert_eq!(same.count(), 1, "{round:?}");
        }
    }
}
