//! `redoubt rdb`: lists the keys of an RDB file or reports what uses the memory, without loading the file.
//!
//! The file is streamed, large values in parts, so memory use does not depend on its size. A [`keys::KeyReader`] combines the
//! parts of a key into one [`keys::KeyInfo`], which is passed to a [`listing`] or a [`report`].

pub(crate) mod keys;
mod listing;
pub(crate) mod prefixes;
mod report;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use keys::{KeyFilter, KeyReader};
use listing::KeyListing;
use report::MemoryReport;

use crate::progress::{ProgressUnit, new_progress_bar};

/// Output format of `redoubt rdb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RdbFormat {
    /// Table.
    Text,
    /// One JSON object per line.
    Json,
    /// The columns of redis-rdb-tools' memory report.
    Csv,
}

/// Arguments of `redoubt rdb`.
#[derive(Debug, Args)]
pub(crate) struct RdbOptions {
    /// The RDB file.
    file: PathBuf,
    /// Output format; CSV has the columns of redis-rdb-tools.
    #[arg(long, value_enum, default_value_t = RdbFormat::Text)]
    format: RdbFormat,
    /// Report memory by type and by prefix, and the biggest keys.
    #[arg(long)]
    report: bool,
    /// Number of prefixes and biggest keys in a report.
    #[arg(long, default_value_t = 20, value_name = "COUNT")]
    top: usize,
    /// Separator between the parts of a key.
    #[arg(long, default_value = ":", value_name = "TEXT")]
    separator: String,
    /// Only keys of this database.
    #[arg(long, value_name = "NUMBER")]
    db: Option<u16>,
    /// Only keys of this type (string, list, set, zset, hash, stream).
    #[arg(long = "type", value_name = "NAME")]
    kind: Option<String>,
    /// Only keys that match this glob pattern.
    #[arg(long = "match", value_name = "PATTERN")]
    pattern: Option<String>,
    /// Do not show progress.
    #[arg(long)]
    no_progress: bool,
}

/// Reads the file and prints its content.
///
/// # Errors
/// The file cannot be read or is damaged.
pub(crate) fn run_rdb(options: &RdbOptions) -> Result<()> {
    let path = options.file.display();
    let file = File::open(&options.file).with_context(|| format!("Cannot open file {path}"))?;
    let bar = new_progress_bar(ProgressUnit::Bytes, file.metadata()?.len(), options.no_progress);
    let filter = KeyFilter::new(options.db, options.kind.as_deref(), options.pattern.as_deref())?;
    let mut reader = KeyReader::new(bar.wrap_read(file), filter)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let shown = if options.report {
        let mut report = MemoryReport::new(options.top, options.separator.as_bytes());
        let read = reader.for_each_key(&mut |key| {
            report.add_key(key);
            Ok(())
        });
        bar.finish_and_clear();
        // If the file is damaged, the keys before the damage are reported.
        read.and(report.print(options.format, &mut out).map_err(Into::into))
    } else {
        let mut listing = KeyListing::new(options.format, &mut out)?;
        let read = reader.for_each_key(&mut |key| listing.write_key(key));
        bar.finish_and_clear();
        read.and(listing.finish().map_err(Into::into))
    };
    if reader.skipped_keys() > 0 {
        eprintln!("{} empty keys skipped", reader.skipped_keys());
    }
    match shown.and_then(|()| Ok(out.flush()?)) {
        // The program that reads the output, such as head, has closed the pipe.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        outcome => outcome,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Formats a key as text; invalid UTF-8 and control characters are escaped as in redis-cli.
pub(crate) fn escape_key(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                letter if letter.is_control() => {
                    let mut bytes = [0; 4];
                    letter
                        .encode_utf8(&mut bytes)
                        .bytes()
                        .for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
                }
                letter => text.push(letter),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unprintable_bytes_are_escaped_unambiguously() {
        for (key, text) in [
            (&b"user:1"[..], "user:1"),
            ("gr\u{fc}n".as_bytes(), "gr\u{fc}n"),
            (b"a\nb\x00\xff\\x", "a\\nb\\x00\\xff\\\\x"),
            (b"", ""),
        ] {
            assert_eq!(escape_key(key), text);
        }
    }
}
