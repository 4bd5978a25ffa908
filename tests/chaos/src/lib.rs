//! Chaos: real servers, faults drawn from a seed, clients that remember what they were told, and checkers that compare
//! it with what the servers have in the end.
//!
//! A run goes in rounds. Each round draws up to three faults of [`Fault`], injects them one after another so that they
//! overlap, ends them, and waits until all nodes agree again; the clients of [`workload`] go on all the time. After the
//! last round every key is read, and each checker of [`check`] gets the [`History`] of what the clients saw, the
//! [`Timeline`] of what was done to the servers, and the final state. A finding is either a loss that asynchronous
//! replication explains, or a violation.
#![forbid(unsafe_code)]

pub mod beside;
pub mod check;
mod cli;
mod client;
mod deployment;
mod fault;
mod history;
mod machine;
mod nemesis;
mod observer;
pub mod report;
mod run;
mod schedule;
mod timeline;
pub mod workload;

pub use cli::{Arguments, run_as_told};
pub use client::{Client, Failure};
pub use deployment::{Deployment, Mode};
pub use fault::Fault;
pub use history::{History, Op, Outcome};
pub use run::{Options, Verdict, run};
pub use schedule::{Planned, Round, Schedule};
pub use timeline::{Injected, Reign, Timeline, Timeouts};
