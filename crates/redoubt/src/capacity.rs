//! `redoubt capacity`: how much memory data will take, and what takes it.

mod chart;
mod describe;
mod plan;
mod quantity;
mod sample;

use anyhow::Result;
use clap::Subcommand;
use tikv_jemalloc_ctl::thread;

/// The subcommands about memory.
#[derive(Debug, Subcommand)]
pub(crate) enum Question {
    /// Say what data will take in memory, here and in Redis and Valkey, and how many nodes that is.
    Plan(Box<plan::Options>),
    /// Say what takes the memory of a running server, a cluster, or what an RDB file will take.
    Sample(sample::Options),
}

/// Answers it.
///
/// # Errors
/// The file or server cannot be read.
pub(crate) fn run(question: &Question) -> Result<()> {
    match question {
        Question::Plan(options) => plan::run(options),
        Question::Sample(options) => sample::run(options),
    }
}

/// Bytes of the heap that this thread has.
fn heap() -> i64 {
    let read = || Some((thread::allocatedp::read().ok()?.get(), thread::deallocatedp::read().ok()?.get()));
    read().map_or(0, |(given, returned)| given.cast_signed() - returned.cast_signed())
}
