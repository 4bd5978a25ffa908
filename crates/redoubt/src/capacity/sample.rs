//! `redoubt capacity sample`: reports which keys use the memory of a server, a cluster or an RDB file.
//!
//! Keys are grouped by pattern (`user:*:profile`). A server is scanned with SCAN at a limited rate; type, size, encoding,
//! TTL and access frequency of the keys of a page are requested in one pipeline. A state file lets an interrupted scan
//! resume, and a later scan compare itself with the previous one.

mod groups;
mod savings;
mod scan;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::rdb::keys::{KeyFilter, KeyReader};
use groups::{KeyGroups, SampledKey};

/// Arguments of `redoubt capacity sample`.
#[derive(Debug, Args)]
pub(crate) struct SampleOptions {
    /// redis://[user:password@]host:port of a server or of any cluster node, or an RDB file.
    #[arg(long, value_name = "URL|FILE")]
    from: String,
    /// Maximum number of keys per second.
    #[arg(long, default_value_t = 5000)]
    rate: u64,
    /// File that stores the scan, to resume it or to compare the next one with it.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Number of patterns, big keys and hot keys to show.
    #[arg(long, default_value_t = 20)]
    top: usize,
    /// Separator between the parts of a key.
    #[arg(long, default_value = ":")]
    separator: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Do not show progress.
    #[arg(long)]
    no_progress: bool,
}

/// The progress and the result of a scan, which the state file stores as JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
struct ScanState {
    /// Nodes that are not scanned completely, each with its SCAN cursor.
    nodes: Vec<(String, u64)>,
    finished: bool,
    groups: KeyGroups,
    /// Keys and bytes per pattern of the previous scan.
    before: Option<groups::PatternTotals>,
}

impl ScanState {
    /// Reads the state file, if it exists. A finished scan becomes the base of comparison; an unfinished one is resumed.
    fn read_state_file(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path.filter(|path| path.exists()) else { return Ok(Self::default()) };
        let shown = path.display();
        let file = File::open(path).with_context(|| format!("Cannot open file {shown}"))?;
        let state: Self = serde_json::from_reader(io::BufReader::new(file))
            .with_context(|| format!("{shown} is not a state file of this command"))?;
        if state.finished {
            return Ok(Self { before: Some(state.groups.pattern_sums()), ..Self::default() });
        }
        Ok(state)
    }

    /// Writes a temporary file and renames it, so that a crash leaves a complete state file.
    fn write_state_file(&self, path: Option<&Path>) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let text = serde_json::to_vec(self)?;
        std::fs::write(&beside, text)
            .and_then(|()| std::fs::rename(&beside, path))
            .with_context(|| format!("Cannot write {}", path.display()))
    }
}

/// Runs the scan and prints the report.
///
/// # Errors
/// The scan failed. The state file then records the progress made so far.
pub(super) fn run_sample(options: &SampleOptions) -> Result<()> {
    let mut state = ScanState::read_state_file(options.state.as_deref())?;
    state.groups.separator.clone_from(&options.separator);
    if options.from.contains("://") {
        scan::scan_server(options, &mut state)?;
    } else {
        sample_file(options, &mut state)?;
    }
    state.finished = true;
    state.write_state_file(options.state.as_deref())?;
    let mut out = io::stdout().lock();
    if options.json {
        serde_json::to_writer_pretty(&mut out, &state.groups.to_json(state.before.as_ref(), options.top))?;
        writeln!(out)?;
    } else {
        state.groups.write_report(state.before.as_ref(), options.top, &mut out)?;
    }
    Ok(())
}

fn sample_file(options: &SampleOptions, state: &mut ScanState) -> Result<()> {
    let path = &options.from;
    let file = File::open(path).with_context(|| format!("Cannot open file {path}"))?;
    let mut reader = KeyReader::new(io::BufReader::new(file), KeyFilter::default())?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis() as i64;
    let separator = options.separator.as_bytes();
    reader.for_each_key(&mut |key| {
        state.groups.add_key(
            separator,
            &SampledKey {
                key: &key.key,
                kind: key.kind.name(),
                encoding: key.encoding,
                elements: key.elements,
                bytes: key.memory_bytes,
                ttl: key.expiry.map(|expiry| expiry.0.saturating_sub(now).max(0) as u64),
                frequency: None,
                string_bytes: None,
                field_name_bytes: None,
            },
        );
        Ok(())
    })
}
