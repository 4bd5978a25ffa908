//! How a client tracks the keys that it may have copies of.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::Client;
use super::inbox::bytes_of;

/// Which of the keys that it reads a client is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All.
    Default,
    /// Those of commands after CLIENT CACHING YES.
    OptIn,
    /// All but those of commands after CLIENT CACHING NO.
    OptOut,
    /// Those with its prefixes, whether it reads them or not.
    Broadcast,
}

/// How a client tracks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracking {
    /// Of which keys it is told.
    pub mode: Mode,
    /// It is not told of its own changes.
    pub noloop: bool,
    /// The number of the client that is told in its place.
    pub redirect: Option<u64>,
    /// The prefixes of the keys that it is told of ([`Mode::Broadcast`]).
    pub prefixes: BTreeSet<Vec<u8>>,
    /// CLIENT CACHING was said: the next command is an exception from the mode.
    pub caching: bool,
}

/// The memory of prefixes, here and in the table of all prefixes.
fn bytes_of_all(prefixes: &BTreeSet<Vec<u8>>) -> usize {
    prefixes.iter().map(|prefix| bytes_of(prefix)).sum()
}

impl Client {
    /// Counts the memory of prefixes that it tracks from now on.
    pub(crate) fn count_prefixes(&self, prefixes: &BTreeSet<Vec<u8>>) {
        self.subscription_bytes.fetch_add(bytes_of_all(prefixes), Ordering::Relaxed);
    }

    /// The opposite of [`Self::count_prefixes`].
    pub(crate) fn uncount_prefixes(&self, prefixes: &BTreeSet<Vec<u8>>) {
        self.subscription_bytes.fetch_sub(bytes_of_all(prefixes), Ordering::Relaxed);
    }

    /// Whether what it reads now is to be noted.
    pub(crate) fn notes_reads(&self) -> bool {
        match &*self.tracking.lock() {
            None => false,
            Some(Tracking { mode, caching, .. }) => match mode {
                Mode::Default => true,
                Mode::OptIn => *caching,
                Mode::OptOut => !*caching,
                Mode::Broadcast => false,
            },
        }
    }
}
