//! The append-only directory on the real file system.

use std::fs::File;
use std::io;
use std::path::Path;

use append_only::{History, Place, Told};
use config::{Config, keys};
use persistence::Disk as _;

use crate::disk::SystemDisk;

pub(super) type Folder = append_only::Folder<SystemDisk>;
pub(super) type Open = append_only::Open<File>;

/// The directory that the configuration names.
pub(super) fn folder_of(config: &Config) -> io::Result<Folder> {
    let path = std::path::absolute(&*config.get(keys::APPENDDIRNAME))?;
    let is_kept = config.get(keys::AOF_DISABLE_AUTO_GC);
    let history = if is_kept { History::IsKept } else { History::IsDeleted };
    Ok(Folder::new(SystemDisk::new(path), &config.get(keys::APPENDFILENAME)).with_history(history))
}

impl Place for SystemDisk {
    fn has_beside(&self, name: &str) -> bool {
        Path::new(name).is_file()
    }

    fn move_in(&self, name: &str) -> io::Result<()> {
        std::fs::rename(name, self.path_of(name))
    }

    fn tell(&self, told: Told<'_>) {
        match told {
            Told::TookIn(name) => {
                let folder = self.path().file_name().unwrap_or_default().display();
                tracing::info!(
                    "Successfully migrated an old-style AOF file ({name}) into the AOF directory ({folder})."
                );
            }
            Told::LeftBehind(name, error) => {
                tracing::warn!("Cannot delete the obsolete file {}: {error}", self.path_of(name).display());
            }
            Told::RemovedUnfinished(name) => {
                tracing::warn!("Removed the unfinished file {}.", self.path_of(name).display());
            }
            Told::Begun(name) => tracing::info!("Creating AOF incr file {name}"),
            Told::Based { temporary, name } => {
                tracing::info!("Successfully renamed the temporary AOF base file {temporary} into {name}");
            }
        }
    }
}
