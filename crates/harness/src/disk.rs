//! A small disk for one node, which a test can fill: a tmpfs over the node's folder.
//!
//! Mounts outlive processes, so those whose test is gone are removed by the next test that makes one.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const PREFIX: &str = "redoubt-test-disk-";
/// The file that fills the rest of the disk.
const FILLER: &str = "filler";
/// Large pieces first; the last is the least that a tmpfs gives.
const PIECES: [usize; 2] = [64 * 1024, 4096];

/// The disk. Dropping it unmounts it.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// Mounts it over an empty folder.
    ///
    /// # Errors
    /// If this machine does not let this process mount anything.
    pub(crate) fn mount(folder: &Path, bytes: u64) -> Result<Self, String> {
        remove_leftovers();
        let source = format!("{PREFIX}{}", std::process::id());
        let data = CString::new(format!("size={bytes}")).expect("a number has no zero byte");
        mount(source.as_str(), folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, data.as_c_str())
            .map_err(|error| format!("this machine lets no tmpfs be mounted: {error}"))?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Takes all that is left of it.
    ///
    /// # Errors
    /// If that fails for another reason than that there is no more.
    pub(crate) fn fill(&self) -> io::Result<()> {
        let mut file = File::options().create(true).append(true).open(self.folder.join(FILLER))?;
        for length in PIECES {
            let piece = vec![0; length];
            loop {
                match file.write(&piece) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Gives it back.
    pub(crate) fn free(&self) {
        // A disk that was never filled has none.
        let _ = fs::remove_file(self.folder.join(FILLER));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Whatever is left is removed by the next test.
        let _ = unmount(&self.folder, UnmountFlags::DETACH);
    }
}

/// Removes the disks of tests whose process is gone.
fn remove_leftovers() {
    let Ok(mounts) = fs::read_to_string("/proc/self/mounts") else { return };
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(source), Some(folder)) = (words.next(), words.next()) else { continue };
        let Some(pid) = source.strip_prefix(PREFIX) else { continue };
        if !Path::new("/proc").join(pid).exists() && unmount(folder, UnmountFlags::DETACH).is_ok() {
            let _ = fs::remove_dir_all(folder);
        }
    }
}
