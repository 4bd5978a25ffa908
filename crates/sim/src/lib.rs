//! The real protocol machines on a simulated network, with simulated clocks and disks.
//!
//! One seed decides everything: latency, loss, duplication and order of messages, partitions (one-way
//! ones, too), crashes with and without their disk, restarts, clock jumps, slow nodes, and what an
//! operator does meanwhile. So a failure is a number, and the number is the failure's replay.
//!
//! Data is simulated with the machines that decide over it: what clients write, its way into logs and replicas, and
//! what of it is there after a failover.
//!
//! A run has two phases. In the first, faults happen and only **safety** is asked for: the invariants,
//! one file each, are checked at every step. Then the network heals, everybody is restarted, and within
//! a bounded time everything must agree: **liveness**. A panic inside a machine is a violation, too.
//!
//! From: TigerBeetle's VOPR, for the two phases; FoundationDB's simulation, for the rest.
#![forbid(unsafe_code)]

mod append_file;
mod chance;
mod clients;
mod cluster;
mod data;
mod disk;
mod executor;
mod explore;
mod invariant;
mod lane;
mod node;
mod plant;
mod rule;
mod scale;
mod sentinels;
mod stage;
mod trace;
mod waiting;

#[cfg(test)]
mod tests;

use clap::ValueEnum;

pub(crate) use chance::Chance;
pub(crate) use explore::caught;
pub use explore::{Explored, explore};
pub use plant::Plant;
pub use rule::Rule;
pub use scale::{Figures, scale};

/// The plan of one run, which decides everything in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Which half is tried.
    pub machine: Machine,
    /// The seed of every chance in it.
    pub seed: u64,
    /// Processes of all kinds.
    pub nodes: usize,
    /// A known fault, built in to show that the simulator finds it.
    pub plant: Option<Plant>,
    /// Asks for this alone, so that what a fault breaks first does not hide what else it breaks.
    pub only: Option<Rule>,
}

/// The half whose processes are simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Machine {
    /// `gossip`: masters and replicas of a cluster.
    Cluster,
    /// `sentinel` with `consensus`: sentinels that watch a master and its replicas.
    Sentinel,
    /// `engine` with `append-only` and `loading`: a node with its data on a disk that fails.
    Node,
}

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The violation, and when it was.
    pub violation: Option<String>,
    /// A digest of all that happened: equal for equal plans.
    pub digest: u64,
    /// All that happened, if it was asked for.
    pub trace: Vec<String>,
    /// Replicas promoted, or starts of a node: how much there was to go wrong.
    pub promotions: usize,
}

/// Runs one plan; with `traced`, the outcome holds all that happened.
#[must_use]
pub fn run(plan: Plan, traced: bool) -> Outcome {
    match plan.machine {
        Machine::Cluster => cluster::run(plan, traced),
        Machine::Sentinel => sentinels::run(plan, traced),
        Machine::Node => node::run(plan, traced),
    }
}
