//! Statistics counters: one set per worker thread, summed on demand.
//!
//! Only the owning thread writes a counter, so no atomic read-modify-write is needed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

pub(crate) use crate::counter::add;
use crate::histogram::Histogram;
use crate::slot_costs::SlotCostCounters;

/// Number of error codes up to which a new code gets a counter of its own. As in Valkey, codes that scripts invent
/// beyond it are counted together.
const MAX_ERROR_CODES: usize = 128;
/// Error code under which the codes beyond [`MAX_ERROR_CODES`] are counted.
const OVERFLOW_CODE: &str = "ERRORSTATS_OVERFLOW";
/// Maximum length of an error code; a text with a longer first word counts as a plain `ERR`.
const MAX_CODE_LEN: usize = 30;

/// The error codes seen so far.
pub(crate) type ErrorCodes = Mutex<BTreeSet<String>>;

/// Statistics of one command, as shown by `INFO commandstats`.
#[derive(Debug, Default)]
pub struct CommandStats {
    /// Number of completed calls.
    pub calls: AtomicU64,
    /// Total execution time in nanoseconds.
    pub nanos: AtomicU64,
    /// Distribution of the execution times.
    pub latency: Histogram,
    /// Number of calls refused before execution.
    pub rejected_calls: AtomicU64,
    /// Number of calls that failed during execution.
    pub failed_calls: AtomicU64,
}

/// The counters of one worker thread.
#[derive(Debug)]
pub struct WorkerStats {
    /// Statistics per command, indexed by [`crate::RegisteredCommand::index`].
    pub commands: Box<[CommandStats]>,
    /// Number of reads that found their key.
    pub keyspace_hits: AtomicU64,
    /// Number of reads that did not find their key.
    pub keyspace_misses: AtomicU64,
    /// Number of keys deleted because they expired.
    pub expired_keys: AtomicU64,
    /// Number of hash fields deleted because they expired.
    pub expired_fields: AtomicU64,
    /// Number of keys evicted to free memory.
    pub evicted_keys: AtomicU64,
    /// Number of error replies sent.
    pub error_replies: AtomicU64,
    /// Number of replies per error code (`ERR`, `WRONGTYPE`).
    error_counts: Mutex<BTreeMap<String, u64>>,
    /// The error codes of all workers; shared because their total number is limited.
    error_codes: Arc<ErrorCodes>,
    /// Number of changes to the data set, as counted in `rdb_changes_since_last_save`.
    pub change_count: AtomicU64,
    /// Cost counters per slot.
    pub(crate) slot_costs: SlotCostCounters,
}

impl WorkerStats {
    /// Returns the number of commands that have run.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.commands.iter().map(|command| command.calls.load(Ordering::Relaxed)).sum()
    }

    /// Counts an error reply of a command that the engine does not run itself.
    pub fn count_failure(&self, index: usize, text: &str) {
        add(&self.commands[index].failed_calls, 1);
        self.count_error(text);
    }

    /// Counts a blocked command that ended with an error that does not concern its keys, such as UNBLOCKED.
    pub fn count_rejection(&self, index: usize, text: &str) {
        add(&self.commands[index].rejected_calls, 1);
        self.count_error(text);
    }

    /// Resets the latency distributions and the error codes.
    pub fn reset(&self) {
        self.commands.iter().for_each(|command| command.latency.reset());
        self.error_counts.lock().clear();
        self.error_codes.lock().clear();
    }

    /// Counts an error reply.
    pub fn count_error(&self, text: &str) {
        add(&self.error_replies, 1);
        let (code, mut errors) = (error_code(text.as_bytes()), self.error_counts.lock());
        if !errors.contains_key(&*code) {
            self.error_codes.lock().insert(code.clone().into_owned());
        }
        *errors.entry(code.into_owned()).or_default() += 1;
    }

    /// Counts an error that a script returned, whether the script created the error or passed it on.
    pub fn count_script_error(&self, text: &[u8]) {
        add(&self.error_replies, 1);
        let (code, mut errors) = (error_code(text), self.error_counts.lock());
        let is_room = errors.contains_key(&*code) || {
            let mut codes = self.error_codes.lock();
            codes.contains(&*code) || codes.len() < MAX_ERROR_CODES && codes.insert(code.clone().into_owned())
        };
        let code = if is_room { code.into_owned() } else { OVERFLOW_CODE.to_owned() };
        *errors.entry(code).or_default() += 1;
    }

    /// Returns the number of replies per error code.
    #[must_use]
    pub fn error_counts(&self) -> BTreeMap<String, u64> {
        self.error_counts.lock().clone()
    }

    pub(crate) fn new(command_count: usize, error_codes: Arc<ErrorCodes>) -> Self {
        Self {
            error_codes,
            commands: (0..command_count).map(|_| CommandStats::default()).collect(),
            keyspace_hits: AtomicU64::new(0),
            keyspace_misses: AtomicU64::new(0),
            expired_keys: AtomicU64::new(0),
            expired_fields: AtomicU64::new(0),
            evicted_keys: AtomicU64::new(0),
            error_replies: AtomicU64::new(0),
            error_counts: Mutex::default(),
            change_count: AtomicU64::new(0),
            slot_costs: SlotCostCounters::default(),
        }
    }
}

/// Returns the error code: the text up to the first space.
fn error_code(text: &[u8]) -> Cow<'_, str> {
    let len = text.iter().take(MAX_CODE_LEN + 1).position(|byte| *byte == b' ');
    len.map_or(Cow::Borrowed("ERR"), |len| String::from_utf8_lossy(&text[..len]))
}
