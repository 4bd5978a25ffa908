//! Runs the real protocol state machines on a simulated network, with simulated clocks and disks.
//!
//! One seed decides everything: latency, loss, duplication and reordering of messages, partitions (also one-way),
//! crashes with and without loss of the disk, restarts, clock jumps, slow nodes, and operator actions. A failure is
//! therefore reproduced by its seed.
//!
//! The data is managed by the real state machines: client writes, their replication, and the data that survives a
//! failover.
//!
//! A run has two phases. The first phase injects faults and checks **safety**: the invariants, one file each, after
//! every event. In the second phase the network heals and dead processes are restarted. This phase checks **liveness**:
//! within a time limit all nodes must agree. A panic inside a state machine is also a violation.
//!
//! References: TigerBeetle's VOPR for the two phases; FoundationDB's simulation for the rest.
#![forbid(unsafe_code)]

mod append_file;
mod clients;
mod cluster;
mod data;
mod delivery_queue;
mod disk;
mod environment;
mod executor;
mod explore;
mod injected_bug;
mod invariant;
mod invariant_name;
mod node;
mod random;
mod scale;
mod sentinels;
mod simulation;
mod trace;
mod waiting;

#[cfg(test)]
mod tests;

use clap::ValueEnum;

pub(crate) use explore::catch_panic;
pub use explore::{SearchResult, explore};
pub use injected_bug::InjectedBug;
pub use invariant_name::InvariantName;
pub(crate) use random::RandomSource;
pub use scale::{ClusterMeasurements, scale};

/// The plan of a run, which determines all of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunPlan {
    /// The part of the system that the run simulates.
    pub machine: SimulationTarget,
    /// The seed from which all random decisions are drawn.
    pub seed: u64,
    /// The total number of simulated processes.
    pub nodes: usize,
    /// A bug to inject, with which tests show that the simulator detects it.
    pub injected_bug: Option<InjectedBug>,
    /// Checks only this invariant, so that earlier violations do not hide it.
    pub only_invariant: Option<InvariantName>,
}

/// The parts of the system that can be simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SimulationTarget {
    /// Simulates the masters and replicas of a cluster (crate `gossip`).
    Cluster,
    /// Simulates sentinels that monitor a master and its replicas (crates `sentinel` and `consensus`).
    Sentinel,
    /// Simulates a node whose data is on an unreliable disk (crates `engine`, `append-only` and `snapshot-io`).
    Node,
}

/// The result of a run, and the evidence that the run is reproducible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunResult {
    /// The first violation and its time; `None` if all invariants hold.
    pub violation: Option<String>,
    /// A digest of all events. Equal plans must give equal digests.
    pub digest: u64,
    /// The text of the event trace; empty unless requested.
    pub trace: Vec<String>,
    /// The number of promotions, or of node starts if a single node is simulated. Tells how much was tested.
    pub promotion_count: usize,
}

/// Runs one plan. With `traced`, the result includes the text of the event trace.
#[must_use]
pub fn run(plan: RunPlan, is_traced: bool) -> RunResult {
    match plan.machine {
        SimulationTarget::Cluster => cluster::run(plan, is_traced),
        SimulationTarget::Sentinel => sentinels::run(plan, is_traced),
        SimulationTarget::Node => node::run(plan, is_traced),
    }
}
