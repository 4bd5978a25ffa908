//! Loads the append-only file at startup. Later changes are appended to the loaded files.

use std::sync::Arc;

use append_only::{AofFilesError, FileExecutor};
use config::keys;
use engine::NodeFlags;
use persistence::aof::Manifest;
use snapshot_io::{AofError, AofLoadResult, LoadResult};

use super::directory::{AofDirectory, configured_directory};
use crate::Durability;
use crate::loading::with_loader;

/// Replaces all data by that of the append-only file, to which later changes are appended. Returns `None` if there is
/// no file.
pub(crate) fn load(durability: &Arc<Durability>) -> Result<Option<LoadResult>, AofError> {
    let folder = configured_directory(&durability.config).map_err(AofFilesError::from)?;
    let Some(manifest) = folder.find_manifest()? else { return Ok(None) };
    let loaded = load_files(durability, &folder, &manifest)?;
    durability.applied_stream.select_db(loaded.selected_db);
    if let Some(position) = loaded.position {
        durability.log.adopt_position(position);
    }
    continue_files(durability, folder, manifest, loaded.selected_db)?;
    Ok(Some(loaded.base))
}

/// Replaces all data by that of the append-only file (DEBUG LOADAOF), after writing the rest of the log to the file.
/// The replication history continues, since clients cannot write meanwhile. If the file is disabled, it is loaded, but
/// later changes are not appended to it. Returns `false` if there is no file.
///
/// # Errors
/// The files are invalid, or cannot be read or appended to.
pub fn reload(durability: &Arc<Durability>) -> Result<bool, AofError> {
    let (shared, engine) = (&durability.append_only, &durability.engine);
    // Wait for a running rewrite, because its base would contain the old data.
    shared.wait_for_rewrite();
    let is_on = shared.is_enabled();
    engine.settings.set_node_flag(NodeFlags::LOADING, true);
    engine.wait_for_admitted_commands();
    if is_on {
        shared.disable();
        durability.log.set_kept_open(true);
    }
    let outcome = load_and_continue(durability, is_on);
    engine.invalidate_all_watches();
    engine.settings.set_node_flag(NodeFlags::LOADING, false);
    outcome
}

/// Loads the files. If `continues_files` is set, later changes are appended to them. Returns `false` if there are no
/// files.
fn load_and_continue(durability: &Arc<Durability>, continues_files: bool) -> Result<bool, AofError> {
    let folder = configured_directory(&durability.config).map_err(AofFilesError::from)?;
    let Some(manifest) = folder.find_manifest()? else { return Ok(false) };
    let db = load_files(durability, &folder, &manifest)?.selected_db;
    if !continues_files {
        return Ok(true);
    }
    continue_files(durability, folder, manifest, db).map(|()| true)
}

/// Replaces all data by the contents of the files.
fn load_files(
    durability: &Durability,
    folder: &AofDirectory,
    manifest: &Manifest,
) -> Result<AofLoadResult, AofError> {
    let truncates = durability.config.get(keys::AOF_LOAD_TRUNCATED);
    durability.applied_stream.imports.end_all_imports(&durability.engine);
    with_loader(durability, |loader| loader.run_files(folder, manifest, truncates))
}

/// Makes the writer append later changes to the loaded files. `db` is the database that the stream has selected.
fn continue_files(
    durability: &Arc<Durability>,
    folder: AofDirectory,
    manifest: Manifest,
    db: u16,
) -> Result<(), AofError> {
    {
        let turn = durability.engine.keyspace.acquire_global_lock();
        let _all = keyspace::LockedSlots::lock_all(&turn);
        let mut log = durability.log.lock();
        durability.log.open(&mut log);
    }
    let (executor, position) = FileExecutor::open(folder, &manifest, db).map_err(AofFilesError::from)?;
    if let Some(last) = manifest.increments.last() {
        tracing::info!("Opening AOF incr file {} on server start", last.name);
    }
    Ok(durability.append_only.start(executor, manifest, position).map_err(AofFilesError::from)?)
}
