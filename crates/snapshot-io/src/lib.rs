//! Loads an engine's data from files and writes it to files.
//!
//! [`Loader`] loads a snapshot: one thread reads and decodes it, other threads store the keys. [`Loader::check`] only
//! decodes it. [`Loader::run_files`] executes the commands of an append-only file. [`take_snapshot`], [`write_rdb`] and
//! [`write_commands`] take and write a snapshot.
//!
//! Input and output are `Read` and `Write`, and an append-only file is accessed through [`append_only::AofStorage`], so
//! a simulated node runs the same code as a real one. Clocks and progress reports are provided by a [`LoadHost`].
#![forbid(unsafe_code)]

mod aof;
mod check;
mod host;
mod rdb;
mod skipped_keys;
mod snapshot;
mod store_queue;
#[cfg(test)]
mod testing;

pub use aof::{AofError, AofLoadResult, replication_position};
pub use host::{LoadEvent, LoadHost};
pub use rdb::{LoadError, LoadResult, Loader, clear_for_loading};
pub use skipped_keys::SkippedKeyDeletions;
pub use snapshot::{SnapshotState, WriteObserver, take_snapshot, write_commands, write_rdb};
