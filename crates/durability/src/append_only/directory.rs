//! The append-only directory on the real file system.

use std::io;
use std::path::Path;

use append_only::{AofStorage, DirectoryEvent, HistoryPolicy};
use config::{Config, keys};
use persistence::Disk as _;

use crate::disk::SystemDisk;

pub(super) type AofDirectory = append_only::AofDirectory<SystemDisk>;

/// Returns the directory named by `appenddirname`, which need not exist yet.
pub(super) fn configured_directory(config: &Config) -> io::Result<AofDirectory> {
    let path = std::path::absolute(&*config.get(keys::APPENDDIRNAME))?;
    let is_kept = config.get(keys::AOF_DISABLE_AUTO_GC);
    let history = if is_kept { HistoryPolicy::Keep } else { HistoryPolicy::Delete };
    Ok(AofDirectory::new(SystemDisk::new(path), &config.get(keys::APPENDFILENAME))
        .with_history_policy(history))
}

impl AofStorage for SystemDisk {
    fn has_legacy_file(&self, name: &str) -> bool {
        Path::new(name).is_file()
    }

    fn move_in_legacy_file(&self, name: &str) -> io::Result<()> {
        std::fs::rename(name, self.path_of(name))
    }

    fn report(&self, event: DirectoryEvent<'_>) {
        match event {
            DirectoryEvent::AdoptedLegacyFile(name) => {
                let folder = self.path().file_name().unwrap_or_default().display();
                tracing::info!(
                    "Successfully migrated an old-style AOF file ({name}) into the AOF directory ({folder})."
                );
            }
            DirectoryEvent::DeleteFailed(name, error) => {
                tracing::warn!("Cannot delete the obsolete file {}: {error}", self.path_of(name).display());
            }
            DirectoryEvent::RemovedTemporary(name) => {
                tracing::warn!("Removed the unfinished file {}.", self.path_of(name).display());
            }
            DirectoryEvent::IncrementCreated(name) => tracing::info!("Creating AOF incr file {name}"),
            DirectoryEvent::BaseInstalled { temporary, name } => {
                tracing::info!("Successfully renamed the temporary AOF base file {temporary} into {name}");
            }
        }
    }
}
