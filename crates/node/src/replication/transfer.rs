//! A snapshot on its way to replicas: it is made once and goes to all that asked together. Its pace is that of the
//! slowest, which loses it if it takes nothing for `repl-timeout`.

use std::io::{self, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use durability::Durability;
use durability::pace::Pace;
use durability::snapshot::{self, Form, Progress};
use durability::stream::random_id;
use persistence::Dialect;
use replication::Contents;
use replication::master::{PeerId, TransferId};
use replication::serving::{Cut, Input};
use tokio::sync::mpsc;

use super::Replication;
use super::serve::Event;

/// The size of a piece of the snapshot on its way, and how many may wait for one replica.
const PIECE: usize = 64 * 1024;
pub(crate) const PIECES_AHEAD: usize = 16;

/// A part of what is sent for a snapshot; the last one says so, so that a break is not taken for the end.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) is_last: bool,
}

/// A snapshot for replicas: its contents, its form and its receivers.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) transfer: TransferId,
    /// With an end mark while it is made; otherwise made first and sent with its length.
    pub(crate) eof: bool,
    pub(crate) dialect: Dialect,
    pub(crate) contents: Contents,
    pub(crate) receivers: Vec<(PeerId, mpsc::Sender<Piece>)>,
    pub(crate) cancelled: Arc<AtomicBool>,
}

/// Makes the snapshot and sends it. Runs on a thread of its own; reports by events.
pub(crate) fn carry_out(durability: &Durability, replication: &Replication, target: Target) {
    let transfer = target.transfer;
    if let Err(error) = try_carry_out(durability, replication, target) {
        tracing::warn!("The snapshot for replicas failed: {error:#}");
        replication.tell(Event::Serve(Input::TransferFailed(transfer)));
    }
}

fn try_carry_out(
    durability: &Durability,
    replication: &Replication,
    mut target: Target,
) -> anyhow::Result<()> {
    let shared = &replication.log;
    let receivers: Vec<PeerId> = target.receivers.iter().map(|(peer, _)| *peer).collect();
    let (mut state, noted) = snapshot::cut(durability, |log| {
        shared.open(log);
        let noted = Cut::note(log, target.transfer, &receivers, replication.applied.db_in(log));
        // The snapshot has the keys of slots that are being imported: its receivers hear of that at once.
        replication.applied.imports.restate(log);
        noted
    })?;
    if !target.contents.data {
        state.drop_data();
    }
    if !target.contents.functions {
        state.drop_functions();
    }
    let keys = state.keys();
    let pace = Pace::behind_commands(replication.engine.keyspace.used_bytes());
    tracing::info!(
        "Starting BGSAVE for SYNC with target: replicas sockets, of which there are {}",
        target.receivers.len()
    );
    let position = Some((noted.position, noted.db.unwrap_or(0)));
    replication.tell(Event::Serve(Input::Cut(noted)));
    // The stream repeats every change of them that comes after the cut.
    let slot_states = match target.contents.data {
        true => replication.cluster_stream.states(&replication.engine),
        false => String::new(),
    };
    let form = Form { dialect: target.dialect, position, aof_base: false, slot_states };
    let cancelled = target.cancelled.clone();
    let shown = durability.saving.show_transfer(keys as u64);
    let is_called_off = || cancelled.load(Ordering::Relaxed);
    let progress = Progress { written: Some(shown.written()), is_called_off: &is_called_off };
    if target.eof {
        let mark = random_id();
        target.send(format!("$EOF:{mark}\r\n").as_bytes())?;
        snapshot::write_rdb(durability, state, &form, progress, pace, &mut target)?;
        target.finish(mark.as_str().as_bytes());
    } else {
        let mut file = tempfile::tempfile_in(".")?;
        snapshot::write_rdb(durability, state, &form, progress, pace, &mut file)?;
        let len = file.stream_position()?;
        file.seek(SeekFrom::Start(0))?;
        target.send(format!("${len}\r\n").as_bytes())?;
        io::copy(&mut file, &mut target)?;
        target.finish(&[]);
    }
    Ok(())
}

impl Target {
    /// Sends to all receivers that are still there.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(io::Error::other("nobody waits for it any more"));
        }
        for piece in bytes.chunks(PIECE) {
            let piece = Piece { bytes: piece.into(), is_last: false };
            let still_there = |receiver: &mpsc::Sender<Piece>| receiver.blocking_send(piece.clone()).is_ok();
            self.receivers.retain(|(_, receiver)| still_there(receiver));
        }
        if self.receivers.is_empty() { Err(io::Error::other("every replica has gone")) } else { Ok(()) }
    }
}

impl Target {
    /// Sends the last bytes, which are short.
    fn finish(self, bytes: &[u8]) {
        let piece = Piece { bytes: bytes.into(), is_last: true };
        for (_, receiver) in self.receivers {
            // A receiver that has gone needs no end.
            let _ = receiver.blocking_send(piece.clone());
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
