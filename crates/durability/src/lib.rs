//! Durability: snapshots, the append-only file, and loading them at startup.
//!
//! [`snapshot`] takes snapshots of the keyspace for saves and replicas; [`saving`] decides when to save and to which
//! file; [`append_only`] records every change after a snapshot; [`loading`] restores the data. Background work limits
//! its CPU use by [`pace`]. All of these modules refer to the replication log in [`stream`].
#![forbid(unsafe_code)]

pub mod append_only;
mod disk;
pub mod loading;
mod new_file;
pub mod pace;
mod saves;
pub mod saving;
pub mod snapshot;
pub mod stream;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use config::Config;
use engine::{CommandSet, Engine};

use crate::stream::applied::AppliedStream;
use crate::stream::{SharedLog, StreamHandles};
use append_only::AppendOnlyFile;
use saving::RdbSaves;

/// State shared by saving, loading and snapshots: the data and its position in the replication history.
#[derive(Debug)]
pub struct Durability {
    engine: Arc<Engine>,
    commands: Arc<CommandSet>,
    config: Arc<Config>,
    log: Arc<SharedLog>,
    applied_stream: Arc<AppliedStream>,
    /// The running RDB save, and the results of earlier saves.
    pub rdb_saves: RdbSaves,
    /// The append-only file, which may be disabled.
    pub append_only: Arc<AppendOnlyFile>,
}

impl Durability {
    /// Creates the state of a server without data. The append-only file publishes the synced offset of the log through
    /// `sync_progress`.
    pub fn new(
        engine: Arc<Engine>,
        commands: Arc<CommandSet>,
        config: Arc<Config>,
        stream: StreamHandles,
    ) -> Self {
        let append_only = AppendOnlyFile::new(engine.clone(), config.clone(), &stream);
        Self {
            engine,
            commands,
            config,
            log: stream.log,
            applied_stream: stream.applied,
            rdb_saves: RdbSaves::new(),
            append_only,
        }
    }
}
