//! A resource that rejects stale fencing tokens: a file that stores the largest token it has seen.
//!
//! A paused holder does not know that its lease has ended, and writes when it resumes. No lock can prevent this, but
//! the resource can. It stores the largest token beside the data, updates both atomically, and rejects smaller tokens.
//! Reads record the token as well. Otherwise a holder could write back an old value after a later holder has read it.
//!
//! Run with a server's address: `cargo run -p redoubt-lock --example resource redis://127.0.0.1:6379`
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// A file that contains a value and the largest fencing token that it has seen.
#[derive(Debug)]
pub struct FencedFile {
    file: File,
}

/// The error if a token is older than one that the resource has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaleToken {
    /// The largest token that the resource has seen.
    pub newest_token: u64,
}

impl FencedFile {
    /// Opens the file, and creates it if it does not exist.
    ///
    /// # Errors
    /// The file cannot be opened or created.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Self { file })
    }

    /// Reads the value. From then on, holders with older tokens cannot write. The inner error rejects a stale token.
    ///
    /// # Errors
    /// The file cannot be locked, read or written.
    pub fn read(&mut self, token: u64) -> io::Result<Result<u64, StaleToken>> {
        self.replace_content(token, |value| value)
    }

    /// Replaces the value, and returns the previous one. The inner error rejects a stale token.
    ///
    /// # Errors
    /// The file cannot be locked, read or written.
    pub fn write(&mut self, token: u64, value: u64) -> io::Result<Result<u64, StaleToken>> {
        self.replace_content(token, |_| value)
    }

    /// Checks the token, and updates token and value atomically. A real resource would use a database transaction
    /// (`UPDATE ... WHERE token <= $1`) instead of a file lock.
    fn replace_content(
        &mut self,
        token: u64,
        new_value: impl FnOnce(u64) -> u64,
    ) -> io::Result<Result<u64, StaleToken>> {
        self.file.lock()?;
        let outcome = self.replace_under_file_lock(token, new_value);
        self.file.unlock()?;
        outcome
    }

    fn replace_under_file_lock(
        &mut self,
        token: u64,
        new_value: impl FnOnce(u64) -> u64,
    ) -> io::Result<Result<u64, StaleToken>> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_string(&mut text)?;
        let mut numbers = text.split_whitespace().filter_map(|number| number.parse::<u64>().ok());
        let (seen, value) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if token < seen {
            return Ok(Err(StaleToken { newest_token: seen }));
        }
        let value = new_value(value);
        self.file.seek(SeekFrom::Start(0))?;
        // The fixed width ensures that the old content is overwritten completely.
        write!(self.file, "{token:020} {value:020}")?;
        Ok(Ok(value))
    }
}

#[allow(dead_code)]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let locks = redoubt_lock::Locks::connect(&address).await?;
    let path = std::env::temp_dir().join(format!("resource-{}", std::process::id()));
    let mut resource = FencedFile::open(&path)?;

    let slow = locks.lock("resource").acquire().await?;
    let old_token = slow.token();
    slow.release().await?;
    let quick = locks.lock("resource").acquire().await?;
    println!("the holder writes: {:?}", resource.write(quick.token(), 1)?);
    println!("one that slept writes: {:?}", resource.write(old_token, 2)?);
    quick.release().await?;
    std::fs::remove_file(path)?;
    Ok(())
}
