//! `redoubt check-rdb` and `redoubt check-aof`: check whether files can be loaded, and repair append-only files.
//!
//! The output follows redis-check-rdb and redis-check-aof, since scripts parse it.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use persistence::aof::{AofCheckResult, Manifest, check_aof};
use persistence::{RdbItem, RdbLoader, ReadLimits};

use crate::rdb::escape_key;

/// Statistics of an RDB file, as redis-check-rdb prints them.
#[derive(Debug, Default)]
struct RdbStats {
    key_count: u64,
    expiring_keys: u64,
    expired_keys: u64,
    /// Number of keys with empty collections, which a load skips.
    empty_keys: u64,
}

/// Checks an RDB file and prints the result; returns the offset of its end.
///
/// # Errors
/// The file cannot be read or is damaged.
pub(crate) fn check_rdb(path: &Path) -> Result<u64> {
    println!("[offset 0] Checking RDB file {}", path.display());
    let file = File::open(path).with_context(|| format!("Cannot open file {}", path.display()))?;
    let mut loader = RdbLoader::new(io::BufReader::new(file), ReadLimits::default())?;
    let mut counted = RdbStats::default();
    let now = now_millis();
    let outcome = loop {
        let offset = loader.offset();
        match loader.next_item() {
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
            Ok(Some(RdbItem::Aux { name, value })) => println!(
                "[offset {offset}] AUX FIELD {} = '{}'",
                String::from_utf8_lossy(name),
                String::from_utf8_lossy(value)
            ),
            Ok(Some(RdbItem::KeyCounts { db, .. })) => println!("[offset {offset}] Selecting DB ID {db}"),
            Ok(Some(RdbItem::Entry(entry))) => {
                counted.key_count += 1;
                counted.expiring_keys += u64::from(entry.expiry.is_some());
                counted.expired_keys += u64::from(entry.expiry.is_some_and(|expiry| expiry.0 < now));
            }
            Ok(Some(RdbItem::Empty(key))) => {
                counted.empty_keys += 1;
                println!("[offset {offset}] Skipping empty key: {}", escape_key(key.key));
            }
            Ok(Some(RdbItem::NextPart { .. } | RdbItem::Function(_))) => {}
        }
    };
    match &outcome {
        Ok(()) => println!("[offset {}] \\o/ RDB looks OK! \\o/", loader.offset()),
        Err(error) => println!("--- RDB ERROR DETECTED ---\n[offset {}] {}", error.offset, error.reason),
    }
    println!("[info] {} keys read", counted.key_count);
    println!("[info] {} expires", counted.expiring_keys);
    println!("[info] {} already expired", counted.expired_keys);
    if counted.empty_keys > 0 {
        println!("[info] {} empty keys skipped", counted.empty_keys);
    }
    outcome?;
    Ok(loader.offset())
}

fn now_millis() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The repairs of an append-only file that the command line requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RepairOptions {
    /// Whether to truncate an incomplete command at the end.
    pub(crate) truncates_tail: bool,
    /// The Unix time after which everything is truncated, if requested.
    pub(crate) truncate_after: Option<i64>,
}

/// Checks an append-only file, given its manifest or a single file, and repairs it if requested.
///
/// # Errors
/// The file cannot be read, is damaged, or cannot be repaired.
pub(crate) fn check_aof_file(path: &Path, repair: RepairOptions) -> Result<()> {
    let files = list_files(path)?;
    let last = files.len().saturating_sub(1);
    for (index, (file, name)) in files.iter().enumerate() {
        let mut begin = 0;
        let mut input = File::open(file).with_context(|| format!("Cannot open file {}", file.display()))?;
        if is_rdb(file)? {
            begin = check_rdb(file)?;
            if input.metadata()?.len() <= begin {
                println!("{name} is valid");
                continue;
            }
            println!("RDB preamble is OK, proceeding with AOF tail...");
        }
        input.seek(SeekFrom::Start(begin))?;
        let checked = check_aof(io::BufReader::new(input), repair.truncate_after)?.shift_offsets(begin);
        println!(
            "AOF analyzed: filename={}, size={}, ok_up_to={}, commands={}, diff={}",
            file.display(),
            checked.len,
            checked.complete_bytes,
            checked.commands,
            checked.len - checked.complete_bytes
        );
        truncate_if_requested(file, name, &checked, repair, index == last)?;
    }
    println!("All AOF files and manifest are valid");
    Ok(())
}

/// Truncates a file if it is damaged and a repair was requested.
fn truncate_if_requested(
    file: &Path,
    name: &str,
    check_result: &AofCheckResult,
    repair: RepairOptions,
    is_last: bool,
) -> Result<()> {
    let to = match check_result.past_limit_offset {
        Some(past) if past < check_result.complete_bytes => past,
        _ if check_result.is_complete() => {
            println!("{name} is valid");
            return Ok(());
        }
        _ => check_result.complete_bytes,
    };
    if let Some(error) = &check_result.error {
        println!("{:#x}: {error}", check_result.complete_bytes);
    }
    if !is_last {
        bail!(
            "{name} is truncated but is not the last file; cutting it would lose the files after it. Repair it manually"
        );
    }
    if !repair.truncates_tail && repair.truncate_after.is_none() {
        bail!("{name} is not valid. Use the --fix option to try fixing it.");
    }
    println!(
        "This will shrink the AOF {name} from {} bytes, with {} bytes, to {to} bytes",
        check_result.len,
        check_result.len - to
    );
    print!("Continue? [y/N]: ");
    io::Write::flush(&mut io::stdout())?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if !answer.trim().eq_ignore_ascii_case("y") {
        bail!("Aborting...");
    }
    let file = OpenOptions::new().write(true).open(file)?;
    file.set_len(to)?;
    file.sync_all()?;
    println!("Successfully truncated AOF {name}");
    Ok(())
}

/// Returns the files to check, each with a label.
fn list_files(path: &Path) -> Result<Vec<(PathBuf, String)>> {
    let in_path = || format!("Cannot open file {}", path.display());
    let mut head = Vec::new();
    File::open(path).with_context(in_path)?.take(5).read_to_end(&mut head)?;
    if head != b"file " {
        return Ok(vec![(path.to_owned(), format!("AOF {}", path.display()))]);
    }
    println!("Start checking Multi Part AOF");
    let manifest = Manifest::parse(&std::fs::read_to_string(path).with_context(in_path)?)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let base = manifest.base.iter().map(|file| (folder.join(&file.name), format!("BASE AOF {}", file.name)));
    let increments = manifest.increments.iter();
    let increments = increments.map(|file| (folder.join(&file.name), format!("INCR AOF {}", file.name)));
    Ok(base.chain(increments).collect())
}

fn is_rdb(path: &Path) -> Result<bool> {
    let mut head = Vec::new();
    let file = File::open(path).with_context(|| format!("Cannot open file {}", path.display()))?;
    file.take(6).read_to_end(&mut head)?;
    Ok(head.starts_with(b"REDIS") || head.starts_with(b"VALKEY"))
}
