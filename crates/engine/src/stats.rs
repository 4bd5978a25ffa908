//! Counters, one set for each thread that runs commands, summed when they are asked for.
//!
//! A counter is written by its own thread only.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

pub(crate) use crate::counter::add;
use crate::histogram::Histogram;
use crate::slot_costs::CountedSlots;

/// With this many codes of errors, further ones that scripts make up are counted together, as in Valkey.
const MAX_ERROR_CODES: usize = 128;
/// The name under which they are counted then.
const OVERFLOW: &str = "ERRORSTATS_OVERFLOW";
/// A longer code is none: the text is counted as a plain `ERR`.
const MAX_CODE_LEN: usize = 30;

/// Codes of errors.
pub(crate) type ErrorCodes = Mutex<BTreeSet<String>>;

/// The statistics of one command, as `INFO commandstats` shows them.
#[derive(Debug, Default)]
pub struct CommandStats {
    /// How often it ran.
    pub calls: AtomicU64,
    /// Time spent in it, in nanoseconds.
    pub nanos: AtomicU64,
    /// How those times are spread.
    pub times: Histogram,
    /// Refused before it ran.
    pub rejected: AtomicU64,
    /// Failed while it ran.
    pub failed: AtomicU64,
}

/// One thread's counters.
#[derive(Debug)]
pub struct WorkerStats {
    /// By the commands' numbers ([`crate::Registered::index`]).
    pub commands: Box<[CommandStats]>,
    /// Reads that found their key.
    pub keyspace_hits: AtomicU64,
    /// Reads that did not.
    pub keyspace_misses: AtomicU64,
    /// Keys deleted because their time had come.
    pub expired_keys: AtomicU64,
    /// Fields deleted because their time had come.
    pub expired_fields: AtomicU64,
    /// Keys that went to make room.
    pub evicted_keys: AtomicU64,
    /// Errors replied.
    pub error_replies: AtomicU64,
    /// How often each code of an error (`ERR`, `WRONGTYPE`) was replied.
    errors: Mutex<BTreeMap<String, u64>>,
    /// The codes that there are at any worker: so many are bounded, whoever counts them.
    codes: Arc<ErrorCodes>,
    /// Changes to the data, as `rdb_changes_since_last_save` counts them.
    pub changes: AtomicU64,
    /// The cost of each slot.
    pub(crate) slots: CountedSlots,
}

impl WorkerStats {
    /// How many commands have run.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.commands.iter().map(|command| command.calls.load(Ordering::Relaxed)).sum()
    }

    /// Takes note of the error that a command of the shell replied.
    pub fn count_failure(&self, index: usize, text: &str) {
        add(&self.commands[index].failed, 1);
        self.count_error(text);
    }

    /// Takes note of a blocked command that something else than its keys ended with an error.
    pub fn count_rejection(&self, index: usize, text: &str) {
        add(&self.commands[index].rejected, 1);
        self.count_error(text);
    }

    /// Forgets how long commands have taken, and the codes of errors.
    pub fn reset(&self) {
        self.commands.iter().for_each(|command| command.times.reset());
        self.errors.lock().clear();
        self.codes.lock().clear();
    }

    /// Takes note of an error reply.
    pub fn count_error(&self, text: &str) {
        add(&self.error_replies, 1);
        let (code, mut errors) = (code(text.as_bytes()), self.errors.lock());
        if !errors.contains_key(&*code) {
            self.codes.lock().insert(code.clone().into_owned());
        }
        *errors.entry(code.into_owned()).or_default() += 1;
    }

    /// Takes note of an error that a script has made up or passes on.
    pub fn count_scripts_error(&self, text: &[u8]) {
        add(&self.error_replies, 1);
        let (code, mut errors) = (code(text), self.errors.lock());
        let is_room = errors.contains_key(&*code) || {
            let mut codes = self.codes.lock();
            codes.contains(&*code) || codes.len() < MAX_ERROR_CODES && codes.insert(code.clone().into_owned())
        };
        let code = if is_room { code.into_owned() } else { OVERFLOW.to_owned() };
        *errors.entry(code).or_default() += 1;
    }

    /// How often each code of an error was replied.
    #[must_use]
    pub fn errors(&self) -> BTreeMap<String, u64> {
        self.errors.lock().clone()
    }

    pub(crate) fn new(commands: usize, codes: Arc<ErrorCodes>) -> Self {
        Self {
            codes,
            commands: (0..commands).map(|_| CommandStats::default()).collect(),
            keyspace_hits: AtomicU64::new(0),
            keyspace_misses: AtomicU64::new(0),
            expired_keys: AtomicU64::new(0),
            expired_fields: AtomicU64::new(0),
            evicted_keys: AtomicU64::new(0),
            error_replies: AtomicU64::new(0),
            errors: Mutex::default(),
            changes: AtomicU64::new(0),
            slots: CountedSlots::default(),
        }
    }
}

/// The code of an error: what stands before its first blank.
fn code(text: &[u8]) -> Cow<'_, str> {
    let len = text.iter().take(MAX_CODE_LEN + 1).position(|byte| *byte == b' ');
    len.map_or(Cow::Borrowed("ERR"), |len| String::from_utf8_lossy(&text[..len]))
}
