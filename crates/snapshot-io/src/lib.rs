//! An engine's data on its way from files, and into them.
//!
//! A snapshot is loaded by [`Loader`]: one thread reads and decodes it, others store the keys. [`Loader::check`] decodes
//! it alone. An append-only file's
//! commands are run one after the other ([`Loader::run_files`]). A snapshot is cut and written by [`cut`],
//! [`write_rdb`] and [`write_commands`].
//!
//! Bytes come from a `Read` and go to a `Write`, and an append-only file is in a [`append_only::AofStorage`], so that a
//! simulated node loads and saves with the same code as a real one. The time comes from a [`Host`], which is told of
//! whatever users are to hear.
#![forbid(unsafe_code)]

mod aof;
mod check;
mod host;
mod rdb;
mod skipped_keys;
mod snapshot;
mod store_queue;

pub use aof::{AofError, LoadedFiles, position_of};
pub use host::{Host, Told};
pub use rdb::{LoadError, Loaded, Loader, clear};
pub use skipped_keys::LeftOut;
pub use snapshot::{State, Steps, cut, write_commands, write_rdb};
