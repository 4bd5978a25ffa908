//! Tests real servers under random faults and checks that acknowledged writes survive.
//!
//! A run consists of rounds. Each round injects up to three overlapping faults ([`FaultKind`]), ends them, and waits
//! until all nodes agree again, while the clients of [`workload`] keep running. After the last round every key is read,
//! and the checkers of [`check`] compare the [`OpHistory`] of the clients, the [`Timeline`] of faults and masters, and
//! the final state. Each finding is either a loss that asynchronous replication explains, or a violation.
#![forbid(unsafe_code)]

pub mod check;
mod cli;
mod client;
pub mod comparison;
mod deployment;
mod fault;
mod history;
mod nemesis;
mod observer;
pub mod report;
mod run;
mod schedule;
mod stalls;
mod timeline;
pub mod workload;

pub use cli::{ChaosArguments, run_command};
pub use client::{CallError, ChaosClient};
pub use deployment::{Deployment, DeploymentMode};
pub use fault::FaultKind;
pub use history::{OpHistory, OpOutcome, Operation};
pub use run::{ChaosOptions, RunResult, run};
pub use schedule::{FaultRound, FaultSchedule, ScheduledFault};
pub use timeline::{InjectedFault, LossTimeouts, MasterPeriod, Timeline};
