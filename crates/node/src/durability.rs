//! Durability: snapshots of the data, the files they become, and loading them.
//!
//! [`snapshot`] cuts and walks the keyspace for all that need a whole copy of it (a save, a replica); [`saving`] is
//! when and where to; [`append_only`] keeps every change since such a copy; [`loading`] brings a copy back. Work that
//! goes on beside the workers keeps their [`pace`].

pub(crate) mod append_only;
mod disk;
pub(crate) mod loading;
mod new_file;
pub(crate) mod pace;
mod saves;
pub(crate) mod saving;
pub(crate) mod snapshot;

use std::sync::Arc;

use config::Config;
use engine::{Commands, Engine};
use tokio::sync::Notify;

use crate::stream::SharedLog;
use crate::stream::applied::AppliedStream;
use crate::stream::commit_point::CommitPoint;
use append_only::AppendOnly;
use saving::Saving;

/// The state that saving, loading and cutting share: the data, its place in its history, and the progress of saving.
#[derive(Debug)]
pub(crate) struct Durability {
    engine: Arc<Engine>,
    commands: Arc<Commands>,
    config: Arc<Config>,
    log: Arc<SharedLog>,
    applied: Arc<AppliedStream>,
    pub(crate) saving: Saving,
    pub(crate) append_only: Arc<AppendOnly>,
}

impl Durability {
    pub(crate) fn new(
        (engine, commands): (Arc<Engine>, Arc<Commands>),
        config: Arc<Config>,
        log: Arc<SharedLog>,
        applied: Arc<AppliedStream>,
        told: (Arc<CommitPoint>, Arc<Notify>),
    ) -> Self {
        let append_only = AppendOnly::new(engine.clone(), config.clone(), log.clone(), told);
        Self { engine, commands, config, log, applied, saving: Saving::new(), append_only }
    }
}
