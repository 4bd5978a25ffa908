//! Durability: snapshots of the data, the files they become, and loading them.
//!
//! [`snapshot`] cuts and walks the keyspace for all that need a whole copy of it (a save, a replica); [`saving`] is
//! when and where to; [`append_only`] keeps every change since such a copy; [`loading`] brings a copy back. Work that
//! goes on beside the workers keeps their [`pace`]. The log that all of it is about is in [`stream`].
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

use std::sync::Arc;

use config::Config;
use engine::{Commands, Engine};
use replication::wait::OnDisk;
use tokio::sync::watch;

use crate::stream::SharedLog;
use crate::stream::applied::AppliedStream;
use crate::stream::commit_point::CommitPoint;
use append_only::AppendOnly;
use saving::Saving;

/// The state that saving, loading and cutting share: the data, its place in its history, and the progress of saving.
#[derive(Debug)]
pub struct Durability {
    engine: Arc<Engine>,
    commands: Arc<Commands>,
    config: Arc<Config>,
    log: Arc<SharedLog>,
    applied: Arc<AppliedStream>,
    /// How saving stands.
    pub saving: Saving,
    /// Which need not be on.
    pub append_only: Arc<AppendOnly>,
}

impl Durability {
    /// With nothing saved or loaded yet; `told` hears how far the append-only file has the log.
    pub fn new(
        (engine, commands): (Arc<Engine>, Arc<Commands>),
        config: Arc<Config>,
        log: Arc<SharedLog>,
        applied: Arc<AppliedStream>,
        told: (Arc<CommitPoint>, watch::Sender<OnDisk>),
    ) -> Self {
        let append_only = AppendOnly::new(engine.clone(), config.clone(), log.clone(), told);
        Self { engine, commands, config, log, applied, saving: Saving::new(), append_only }
    }
}
