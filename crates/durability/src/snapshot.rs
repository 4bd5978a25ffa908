//! Takes snapshots, and writes them to files, replicas and migration targets.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use config::keys;
use persistence::{Dialect, RdbInfo, UsageFormat, WriteOptions};
use process::time;
use replication::{Log, ReplPosition};
use slot_routing::SlotSet;
use snapshot_io::{SnapshotState, WriteObserver};

use crate::Durability;
use crate::pace::YieldPace;

/// How often a delayed write of a snapshot checks for cancellation.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Takes a snapshot of all data. `at_snapshot` runs at that moment, for instance to read the log's position.
///
/// # Errors
/// Too many snapshots exist.
pub fn take_snapshot<R>(
    durability: &Durability,
    at_snapshot: impl FnOnce(&mut Log) -> R,
) -> anyhow::Result<(SnapshotState, R)> {
    let _apply_guard = durability.applied_stream.apply_lock.lock();
    let at_cut = || at_snapshot(&mut durability.log.lock());
    let (cut, nanos) = snapshot_io::take_snapshot(&durability.engine, time::nanos, at_cut);
    durability.rdb_saves.count_snapshot(nanos / 1000);
    cut.context("too many snapshots are under way")
}

/// The dialect and the auxiliary fields of an RDB file.
#[derive(Debug, Clone)]
pub struct RdbOptions {
    /// The dialect of the servers that will read the file.
    pub dialect: Dialect,
    /// The replication position at the snapshot, and the database that the stream had selected. `None` if the file must
    /// not claim a position.
    pub position: Option<(ReplPosition, u16)>,
    /// Whether the file is the base of an append-only file.
    pub is_aof_base: bool,
    /// The slots that are being migrated, for a replica's cluster state machine; empty for other files.
    pub slot_states: String,
}

/// How to report progress while a snapshot is written, and when to stop.
#[derive(Clone, Copy)]
pub struct WriteProgress<'a> {
    /// Counts the keys written so far.
    pub written_keys: Option<&'a AtomicU64>,
    /// Returns true if writing should stop early.
    pub is_cancelled: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for WriteProgress<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteProgress").field("written", &self.written_keys).finish_non_exhaustive()
    }
}

impl WriteProgress<'_> {
    /// Like [`delay_key`], but ends early on cancellation.
    fn delay_key(&self, micros: i64, keys: u64) {
        let mut left = delay_duration(micros, keys);
        while !left.is_zero() && !(self.is_cancelled)() {
            let now = left.min(CANCEL_CHECK_INTERVAL);
            std::thread::sleep(now);
            left -= now;
        }
    }
}

/// Writes the snapshot as an RDB file. No slot is locked while bytes are written.
///
/// # Errors
/// The output failed, or the operation was cancelled.
pub fn write_rdb(
    durability: &Durability,
    state: SnapshotState,
    rdb_options: &RdbOptions,
    progress: WriteProgress<'_>,
    pace: YieldPace,
    out: &mut impl Write,
) -> io::Result<()> {
    let options = WriteOptions {
        compress: durability.config.get(keys::RDBCOMPRESSION),
        checksum: durability.config.get(keys::RDBCHECKSUM),
        usage_format: usage_format(durability),
        dialect: rdb_options.dialect,
    };
    let replication = rdb_options
        .position
        .as_ref()
        .map(|(at, stream_db)| (at.id.as_str().as_bytes(), at.offset.0, u32::from(*stream_db)));
    let created = time::now();
    let (aof_base, slot_states) = (rdb_options.is_aof_base, rdb_options.slot_states.as_str());
    let info = RdbInfo {
        version: resp::REDIS_VERSION,
        created_at: created,
        used_memory: 0,
        replication_position: replication,
        is_aof_base: aof_base,
        slot_states,
    };
    let mut walk = SnapshotWalk { durability, progress, pace };
    snapshot_io::write_rdb(state, options, &info, &mut walk, out)
}

/// Writes the snapshot as commands that recreate it.
pub(crate) fn write_commands(
    durability: &Durability,
    state: SnapshotState,
    progress: WriteProgress<'_>,
    pace: YieldPace,
    out: &mut impl Write,
) -> io::Result<()> {
    snapshot_io::write_commands(state, &mut SnapshotWalk { durability, progress, pace }, out)
}

/// Writes commands that recreate the contents of these slots, for a migration target.
///
/// # Errors
/// The output failed, or the operation was cancelled.
pub fn write_slots(
    durability: &Durability,
    mut state: SnapshotState,
    slots: &SlotSet,
    progress: WriteProgress<'_>,
    out: &mut impl Write,
) -> io::Result<()> {
    state.retain_slots(slots);
    state.drop_functions();
    let pace = YieldPace::yielding(durability.engine.keyspace.used_bytes());
    write_commands(durability, state, progress, pace, out)
}

/// Reports progress, checks for cancellation and yields while a snapshot is read.
struct SnapshotWalk<'a> {
    durability: &'a Durability,
    progress: WriteProgress<'a>,
    pace: YieldPace,
}

impl WriteObserver for SnapshotWalk<'_> {
    fn on_keys_written(&mut self, keys: u64) -> io::Result<()> {
        if let Some(written) = self.progress.written_keys {
            written.fetch_add(keys, Ordering::Relaxed);
        }
        if keys > 0 {
            self.progress.delay_key(self.durability.config.get(keys::RDB_KEY_SAVE_DELAY), keys);
        }
        if (self.progress.is_cancelled)() {
            return Err(io::Error::other("cancelled"));
        }
        self.pace.yield_if_due();
        Ok(())
    }
}

/// Sleeps `micros` microseconds per key. A negative value means one microsecond per that many keys.
pub(crate) fn delay_key(micros: i64, keys: u64) {
    let rest = delay_duration(micros, keys);
    if !rest.is_zero() {
        std::thread::sleep(rest);
    }
}

fn delay_duration(micros: i64, keys: u64) -> Duration {
    Duration::from_micros(match micros {
        0 => 0,
        1.. => keys.saturating_mul(micros.unsigned_abs()),
        // A delay of less than a microsecond is dropped.
        _ => keys / micros.unsigned_abs(),
    })
}

/// Returns which usage information to store for each key. As in Redis, this depends on the eviction policy.
fn usage_format(durability: &Durability) -> UsageFormat {
    let now = time::now();
    match durability.engine.settings.eviction.lfu() {
        Some(settings) => UsageFormat::Frequency(now, settings),
        None if durability.config.get(keys::MAXMEMORY_POLICY).evicts_by_age() => UsageFormat::Idle(now),
        None => UsageFormat::None,
    }
}
