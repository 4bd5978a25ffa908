//! `redoubt capacity`: estimates the memory that data will need, and reports what uses it now.

mod chart;
mod describe;
mod plan;
mod quantity;
mod sample;

use anyhow::Result;
use clap::Subcommand;
use tikv_jemalloc_ctl::thread;

/// Subcommands of `redoubt capacity`.
#[derive(Debug, Subcommand)]
pub(crate) enum CapacityCommand {
    /// Estimate the memory and the number of nodes for a data set, here and with Redis and Valkey.
    Plan(Box<plan::PlanOptions>),
    /// Report which keys use the memory of a running server, a cluster or an RDB file.
    Sample(sample::SampleOptions),
}

/// Runs a subcommand of `redoubt capacity`.
///
/// # Errors
/// The file or the server cannot be read.
pub(crate) fn run_capacity(command: &CapacityCommand) -> Result<()> {
    match command {
        CapacityCommand::Plan(options) => plan::run_plan(options),
        CapacityCommand::Sample(options) => sample::run_sample(options),
    }
}

/// Returns the heap bytes that this thread has allocated and not freed.
fn thread_heap_bytes() -> i64 {
    let read = || Some((thread::allocatedp::read().ok()?.get(), thread::deallocatedp::read().ok()?.get()));
    read().map_or(0, |(given, returned)| given.cast_signed() - returned.cast_signed())
}
