//! A small disk for one node, which a test can fill up: a tmpfs mounted over the node's folder.
//!
//! Mounts outlive processes. When a test mounts a disk, it first unmounts the disks of test processes that have ended.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const MOUNT_PREFIX: &str = "redoubt-test-disk-";
/// Name of the file that fills up the disk.
const FILLER_FILE: &str = "filler";
/// Sizes of the writes that fill up the disk. The last one is the page size of tmpfs.
const WRITE_SIZES: [usize; 2] = [64 * 1024, 4096];

/// A tmpfs mounted over a node's folder. Dropping it unmounts it.
#[derive(Debug)]
pub(crate) struct TestDisk {
    folder: PathBuf,
}

impl TestDisk {
    /// Mounts the disk over an empty folder.
    ///
    /// # Errors
    /// This process is not permitted to mount.
    pub(crate) fn mount(folder: &Path, bytes: u64) -> Result<Self, String> {
        remove_leftovers();
        let source = format!("{MOUNT_PREFIX}{}", std::process::id());
        let data = CString::new(format!("size={bytes}")).expect("a number has no zero byte");
        mount(source.as_str(), folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, data.as_c_str())
            .map_err(|error| format!("this machine lets no tmpfs be mounted: {error}"))?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Fills up the disk.
    ///
    /// # Errors
    /// A write failed for another reason than a full disk.
    pub(crate) fn fill_up(&self) -> io::Result<()> {
        let mut file = File::options().create(true).append(true).open(self.folder.join(FILLER_FILE))?;
        for length in WRITE_SIZES {
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

    /// Frees the space taken by [`Self::fill_up`].
    pub(crate) fn free_space(&self) {
        // The file does not exist if the disk was never filled.
        let _ = fs::remove_file(self.folder.join(FILLER_FILE));
    }
}

impl Drop for TestDisk {
    fn drop(&mut self) {
        // If this fails, the next test unmounts the disk.
        let _ = unmount(&self.folder, UnmountFlags::DETACH);
    }
}

/// Unmounts the disks of test processes that have ended.
fn remove_leftovers() {
    let Ok(mounts) = fs::read_to_string("/proc/self/mounts") else { return };
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(source), Some(folder)) = (words.next(), words.next()) else { continue };
        let Some(pid) = source.strip_prefix(MOUNT_PREFIX) else { continue };
        if !Path::new("/proc").join(pid).exists() && unmount(folder, UnmountFlags::DETACH).is_ok() {
            let _ = fs::remove_dir_all(folder);
        }
    }
}
