//! `redoubt capacity sample`: what takes the memory of a server or a cluster, or what an RDB file will take.
//!
//! Keys are grouped by their pattern (`user:*:profile`). A server is walked by SCAN, not faster than is said; each key is
//! asked for its type, bytes, encoding, time and use in one round trip with its neighbours. With a state file a walk that
//! was broken off goes on where it was, and one that was finished is what the next is compared with.

mod groups;
mod live;
mod what_ifs;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::rdb::keys::{Filter, Reader};
use groups::{Groups, Seen};

/// The arguments of `sample`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// redis://[user:password@]host:port of a server or of a node of a cluster, or an RDB file.
    #[arg(long, value_name = "URL|FILE")]
    from: String,
    /// Keys a second, at most.
    #[arg(long, default_value_t = 5000)]
    rate: u64,
    /// Where the walk is remembered, to go on with it or to compare the next with it.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// How many patterns, big and hot keys are shown.
    #[arg(long, default_value_t = 20)]
    top: usize,
    /// The separator between the parts of a key.
    #[arg(long, default_value = ":")]
    separator: String,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// Do not show how far it is.
    #[arg(long)]
    no_progress: bool,
}

/// The state of a walk, which a file keeps.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// The nodes that are still to be walked, each with its cursor.
    nodes: Vec<(String, u64)>,
    finished: bool,
    groups: Groups,
    /// Of the walk before: keys and bytes of each pattern.
    before: Option<groups::Sums>,
}

impl State {
    /// Reads the file, if there is one: the walk to go on with, or the one to compare a new one with.
    fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path.filter(|path| path.exists()) else { return Ok(Self::default()) };
        let shown = path.display();
        let file = File::open(path).with_context(|| format!("Cannot open file {shown}"))?;
        let state: Self = serde_json::from_reader(io::BufReader::new(file))
            .with_context(|| format!("{shown} is no state of a walk"))?;
        if state.finished {
            return Ok(Self { before: Some(state.groups.sums()), ..Self::default() });
        }
        Ok(state)
    }

    /// Writes it beside the file and puts it in its place, so that a crash leaves one or the other.
    fn write(&self, path: Option<&Path>) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let text = serde_json::to_vec(self)?;
        std::fs::write(&beside, text)
            .and_then(|()| std::fs::rename(&beside, path))
            .with_context(|| format!("Cannot write {}", path.display()))
    }
}

/// Walks and reports.
///
/// # Errors
/// It cannot be read to its end; a state file then has the walk so far.
pub(super) fn run(options: &Options) -> Result<()> {
    let mut state = State::read(options.state.as_deref())?;
    state.groups.separator.clone_from(&options.separator);
    if options.from.contains("://") {
        live::walk(options, &mut state)?;
    } else {
        file(options, &mut state)?;
    }
    state.finished = true;
    state.write(options.state.as_deref())?;
    let mut out = io::stdout().lock();
    if options.json {
        serde_json::to_writer_pretty(&mut out, &state.groups.report(state.before.as_ref(), options.top))?;
        writeln!(out)?;
    } else {
        state.groups.show(state.before.as_ref(), options.top, &mut out)?;
    }
    Ok(())
}

fn file(options: &Options, state: &mut State) -> Result<()> {
    let path = &options.from;
    let file = File::open(path).with_context(|| format!("Cannot open file {path}"))?;
    let mut reader = Reader::new(io::BufReader::new(file), Filter::default())?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis() as i64;
    let separator = options.separator.as_bytes();
    reader.each(&mut |key| {
        state.groups.add(
            separator,
            &Seen {
                key: &key.key,
                kind: key.kind.name(),
                encoding: key.encoding,
                elements: key.elements,
                bytes: key.size,
                ttl: key.expiry.map(|expiry| expiry.0.saturating_sub(now).max(0) as u64),
                frequency: None,
                length: None,
                field: None,
            },
        );
        Ok(())
    })
}
