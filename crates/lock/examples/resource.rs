//! A resource that refuses old tokens: a file whose writers were once asked for their fencing token.
//!
//! A holder that is paused does not know that its lease ended, and writes when it runs again, however late. No lock can
//! prevent that; the resource can. It keeps the largest token it has seen, beside the data and changed together with
//! it, and refuses smaller ones. Reading is registered as well, so that what was read under a token cannot be written
//! back once a later holder has come.
//!
//! Run with a server's address: `cargo run -p redoubt-lock --example resource redis://127.0.0.1:6379`
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// A file with the largest token that was seen, and a value.
#[derive(Debug)]
pub struct Resource {
    file: File,
}

/// An older token than one that was seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The token that was seen.
    pub seen: u64,
}

impl Resource {
    /// The resource in this file, which is made if it is not there.
    ///
    /// # Errors
    /// An error of the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Self { file })
    }

    /// The value; a holder with an older token can no longer write from here on.
    ///
    /// # Errors
    /// An error of the file.
    pub fn read(&mut self, token: u64) -> io::Result<Result<u64, Refused>> {
        self.exchange(token, |value| value)
    }

    /// Replaces the value.
    ///
    /// # Errors
    /// An error of the file.
    pub fn write(&mut self, token: u64, value: u64) -> io::Result<Result<u64, Refused>> {
        self.exchange(token, |_| value)
    }

    /// Looks at the token, and changes token and value as one: the file's own lock stands for what a database does in
    /// a transaction (`UPDATE ... WHERE token <= $1`).
    fn exchange(&mut self, token: u64, new: impl FnOnce(u64) -> u64) -> io::Result<Result<u64, Refused>> {
        self.file.lock()?;
        let outcome = self.exchange_alone(token, new);
        self.file.unlock()?;
        outcome
    }

    fn exchange_alone(
        &mut self,
        token: u64,
        new: impl FnOnce(u64) -> u64,
    ) -> io::Result<Result<u64, Refused>> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_string(&mut text)?;
        let mut numbers = text.split_whitespace().filter_map(|number| number.parse::<u64>().ok());
        let (seen, value) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if token < seen {
            return Ok(Err(Refused { seen }));
        }
        let value = new(value);
        self.file.seek(SeekFrom::Start(0))?;
        // Of one width, so that nothing of what stood there stays.
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
    let mut resource = Resource::open(&path)?;

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
