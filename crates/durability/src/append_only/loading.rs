//! The append-only file at the start: what there is of it is loaded, and followed by what comes.

use std::sync::Arc;

use append_only::FilesError;
use config::keys;
use engine::Gate;
use loading::{AofError, Loaded, LoadedFiles};
use persistence::aof::Manifest;

use super::StartAt;
use super::folder::{Folder, folder_of};
use crate::Durability;
use crate::loading::with_loader;

/// Replaces all data by that of the append-only file, if there is one, and goes on with it; says what was loaded.
pub(crate) fn load(durability: &Arc<Durability>) -> Result<Option<Loaded>, AofError> {
    let folder = folder_of(&durability.config).map_err(FilesError::from)?;
    let Some(manifest) = folder.find()? else { return Ok(None) };
    let loaded = run_files(durability, &folder, &manifest)?;
    durability.applied.select(loaded.db);
    if let Some(position) = loaded.position {
        durability.log.adopt(position);
    }
    go_on(durability, folder, manifest, loaded.db)?;
    Ok(Some(loaded.base))
}

/// Brings the rest of the log into the file, and replaces all data by the file's (DEBUG LOADAOF). The history goes on:
/// no client writes meanwhile. A file that is off is loaded as it is. `Ok(false)`: there is no such file.
///
/// # Errors
/// The files are not in order, or cannot be read or gone on with.
pub fn reload(durability: &Arc<Durability>) -> Result<bool, AofError> {
    let (shared, engine) = (&durability.append_only, &durability.engine);
    // A base that is being written belongs to the data of before.
    shared.wait_for_rewrite();
    let is_on = shared.is_on();
    engine.settings.set_gate(Gate::LOADING, true);
    engine.drain();
    if is_on {
        shared.stop();
        durability.log.keep_open(true);
    }
    let outcome = load_again(durability, is_on);
    engine.touch_all_watched();
    engine.settings.set_gate(Gate::LOADING, false);
    outcome
}

/// Loads what there is of the file, and `goes_on` with it.
fn load_again(durability: &Arc<Durability>, goes_on: bool) -> Result<bool, AofError> {
    let folder = folder_of(&durability.config).map_err(FilesError::from)?;
    let Some(manifest) = folder.find()? else { return Ok(false) };
    let db = run_files(durability, &folder, &manifest)?.db;
    if !goes_on {
        return Ok(true);
    }
    go_on(durability, folder, manifest, db).map(|()| true)
}

/// Replaces all data by that of the files.
fn run_files(durability: &Durability, folder: &Folder, manifest: &Manifest) -> Result<LoadedFiles, AofError> {
    let truncates = durability.config.get(keys::AOF_LOAD_TRUNCATED);
    durability.applied.imports.forget(&durability.engine);
    with_loader(durability, |loader| loader.run_files(folder, manifest, truncates))
}

/// Follows the log from here on, where the stream has selected `db`.
fn go_on(durability: &Arc<Durability>, folder: Folder, manifest: Manifest, db: u16) -> Result<(), AofError> {
    {
        let turn = durability.engine.keyspace.script_turn();
        let _all = keyspace::LockedSlots::all(&turn);
        let mut log = durability.log.lock();
        durability.log.open(&mut log);
    }
    let last = folder.last_increment(&manifest).map_err(FilesError::from)?;
    if let Some(last) = manifest.increments.last() {
        tracing::info!("Opening AOF incr file {} on server start", last.name);
    }
    let from = last.map_or(StartAt::Base { db }, StartAt::Increment);
    Ok(durability.append_only.start(folder, manifest, from).map_err(FilesError::from)?)
}
