//! The files of one folder, as a driver offers them.
//!
//! Any call may fail, having done nothing, a part or all of it. What a file's name stands for is on the disk when the
//! folder is synced, its content when the file is.

use std::fmt::Debug;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;

/// The files of a folder, which may not be there yet.
#[expect(clippy::missing_errors_doc, reason = "each may bring the error that the system reports")]
pub trait Disk: Debug {
    /// A file that is appended to.
    type File: Write + Debug;
    /// A file that has no lasting name yet.
    type Temporary: Write + Debug;
    /// A file that is read.
    type Reader: Read + Seek;

    /// Whether the folder is there.
    fn is_there(&self) -> bool;

    /// Makes the folder, unless it is there.
    fn make(&self) -> io::Result<()>;

    /// Makes an empty file, in the place of one that has the name.
    fn create(&self, name: &str) -> io::Result<()>;

    /// Opens a file to append to it.
    fn append(&self, name: &str) -> io::Result<Self::File>;

    /// Brings an open file's bytes to the disk.
    fn sync_file(&self, file: &Self::File) -> io::Result<()>;

    /// Writes the last bytes of a file once more, as they are read. Those that a sync of an earlier process could not bring
    /// to the disk are in the system's memory alone, and the next sync would call them written.
    fn write_again(&self, name: &str) -> io::Result<()>;

    /// Cuts an open file back to so many bytes.
    fn cut_file(&self, file: &Self::File, len: u64) -> io::Result<()>;

    /// Opens a file to read it from its beginning.
    fn read(&self, name: &str) -> io::Result<Self::Reader>;

    /// Makes an empty file that is to get its name later. It has one of its own until then, which ends in `suffix`.
    fn temporary(&self, suffix: &str) -> io::Result<Self::Temporary>;

    /// Its name for now.
    fn temporary_name(&self, file: &Self::Temporary) -> String;

    /// Brings its bytes to the disk.
    fn sync_temporary(&self, file: &Self::Temporary) -> io::Result<()>;

    /// Gives a file its name, in the place of one that has it.
    fn rename(&self, file: Self::Temporary, name: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// How many bytes a file has.
    fn len(&self, name: &str) -> io::Result<u64>;

    /// Cuts a file that nobody appends to back to so many bytes, and brings that to the disk.
    fn cut_back(&self, name: &str, len: u64) -> io::Result<()>;

    /// Brings the names to the disk.
    fn sync(&self) -> io::Result<()>;

    /// Whether nobody writes this file, which has no lasting name: the process that made it is gone.
    fn is_abandoned(&self, name: &str) -> bool;

    /// The path of a file, as users are told of it.
    fn path_of(&self, name: &str) -> PathBuf;
}
