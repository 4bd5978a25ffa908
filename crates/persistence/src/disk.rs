//! File operations on one directory, implemented by the caller.
//!
//! A call that fails may have had no effect, or a part of its effect, or all of it. The content of a file is durable
//! once the file is synced, its name once the directory is synced.

use std::fmt::Debug;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;

/// A directory, which may not exist yet, and its files.
#[expect(clippy::missing_errors_doc, reason = "each may bring the error that the system reports")]
pub trait Disk: Debug {
    /// A file opened for appending.
    type File: Write + Debug;
    /// A file that is written under a temporary name.
    type TempFile: Write + Debug;
    /// A file opened for reading.
    type Reader: Read + Seek;

    /// Returns whether the directory exists.
    fn exists(&self) -> bool;

    /// Creates the directory unless it exists.
    fn create_directory(&self) -> io::Result<()>;

    /// Creates an empty file, replacing any file with this name.
    fn create(&self, name: &str) -> io::Result<()>;

    /// Opens a file for appending.
    fn open_append(&self, name: &str) -> io::Result<Self::File>;

    /// Makes the contents of an open file durable (fsync).
    fn sync_file(&self, file: &Self::File) -> io::Result<()>;

    /// Rewrites the last bytes of a file with their current content. Pages whose write-back failed in an earlier
    /// process may exist only in the page cache, and the next fsync would wrongly report them as written; after the
    /// rewrite, fsync writes them to disk.
    fn rewrite_tail(&self, name: &str) -> io::Result<()>;

    /// Truncates an open file to `len` bytes.
    fn truncate_file(&self, file: &Self::File, len: u64) -> io::Result<()>;

    /// Opens a file for reading from the start.
    fn read(&self, name: &str) -> io::Result<Self::Reader>;

    /// Creates an empty file under a temporary name that ends in `suffix`.
    fn create_temp_file(&self, suffix: &str) -> io::Result<Self::TempFile>;

    /// Returns the name of a temporary file.
    fn temp_file_name(&self, file: &Self::TempFile) -> String;

    /// Makes the contents of a temporary file durable (fsync).
    fn sync_temp_file(&self, file: &Self::TempFile) -> io::Result<()>;

    /// Renames a temporary file to `name`, replacing an existing file.
    fn rename(&self, file: Self::TempFile, name: &str) -> io::Result<()>;

    /// Deletes a file. The deletion becomes durable with [`Disk::sync_directory`].
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Lists the names of all files in the directory.
    fn list_names(&self) -> io::Result<Vec<String>>;

    /// Returns the file size in bytes.
    fn len(&self, name: &str) -> io::Result<u64>;

    /// Truncates a file that is not open for appending to `len` bytes, durably.
    fn truncate(&self, name: &str, len: u64) -> io::Result<()>;

    /// Makes the creation, renaming and deletion of files durable (fsync of the directory).
    fn sync_directory(&self) -> io::Result<()>;

    /// Returns whether this is the name of a temporary file whose creating process has ended.
    fn is_abandoned_temp_file(&self, name: &str) -> bool;

    /// Returns the path of a file, for messages to users.
    fn path_of(&self, name: &str) -> PathBuf;
}
