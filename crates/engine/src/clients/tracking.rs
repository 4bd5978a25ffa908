//! How a client tracks the keys that it may have copies of.

use std::collections::BTreeSet;

use super::Client;

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

impl Client {
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
