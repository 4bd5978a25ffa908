//! The tracking mode of a client (CLIENT TRACKING).

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::Client;
use super::inbox::subscription_bytes;

/// Which keys a client receives invalidations for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrackingMode {
    /// All keys that the client has read.
    Default,
    /// Only keys that the client reads with the command after CLIENT CACHING YES.
    OptIn,
    /// All keys that the client reads, except with the command after CLIENT CACHING NO.
    OptOut,
    /// All keys that begin with one of the client's prefixes, whether the client has read them or not.
    Broadcast,
}

/// The options of CLIENT TRACKING.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTracking {
    /// Which keys the client receives invalidations for.
    pub mode: TrackingMode,
    /// Whether the client's own changes are left out (NOLOOP).
    pub no_loop: bool,
    /// Id of the client that receives the invalidations in place of this one.
    pub redirect_to: Option<u64>,
    /// Key prefixes of a broadcasting client; used only in [`TrackingMode::Broadcast`].
    pub prefixes: BTreeSet<Vec<u8>>,
    /// Whether CLIENT CACHING makes the next command an exception to the mode.
    pub caching_exception: bool,
}

/// Returns the memory that prefixes use in the client's options and in the prefix table.
fn prefix_bytes(prefixes: &BTreeSet<Vec<u8>>) -> usize {
    prefixes.iter().map(|prefix| subscription_bytes(prefix)).sum()
}

impl Client {
    pub(crate) fn count_prefixes(&self, prefixes: &BTreeSet<Vec<u8>>) {
        self.subscription_bytes.fetch_add(prefix_bytes(prefixes), Ordering::Relaxed);
    }

    /// Subtracts the memory of tracked prefixes from the client.
    pub(crate) fn uncount_prefixes(&self, prefixes: &BTreeSet<Vec<u8>>) {
        self.subscription_bytes.fetch_sub(prefix_bytes(prefixes), Ordering::Relaxed);
    }

    /// Returns whether the keys that the current command reads are recorded.
    pub(crate) fn records_reads(&self) -> bool {
        match &*self.tracking.lock() {
            None => false,
            Some(ClientTracking { mode, caching_exception: caching, .. }) => match mode {
                TrackingMode::Default => true,
                TrackingMode::OptIn => *caching,
                TrackingMode::OptOut => !*caching,
                TrackingMode::Broadcast => false,
            },
        }
    }
}
