//! The invariants of data, one file each.

use super::{Key, Store};
use crate::Rule;
use crate::invariant::Invariant;
use replication::wait::{Copies, Wanted};
use slot_routing::ReplOffset;

mod copies;
mod durable;
mod handover;
mod no_erasure;
mod no_loss;
mod no_overwrite;
mod same_data;
mod waits;

/// A step in the life of a process's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Data and log belong together now.
    Stands,
    /// A client is told that its write is done.
    Acknowledged {
        key: Key,
        write: u64,
        /// Where it ends in the log.
        end: ReplOffset,
        /// It is said to be on the disk.
        durable: bool,
    },
    /// Its file has the log on the disk, up to here.
    Synced { upto: ReplOffset },
    /// A client that wanted copies of the log before an offset is told how many there are.
    Copied { upto: ReplOffset, wanted: Wanted, copies: Copies },
    /// A command of a master's stream has run.
    Applied,
    /// A snapshot begins to replace the data, or has replaced it.
    Replaced,
    /// A key went with its slot.
    Dropped { key: Key },
    /// A replica has told this process that it has everything before this offset.
    Confirmed { replica: usize, offset: ReplOffset },
    /// It takes writes, until now a replica of that process.
    Promoted { from: Option<usize> },
    /// It follows somebody, or somebody else.
    Demoted,
    /// It starts again, with its disk or with an empty one.
    Restarted { kept: bool },
    /// It is no replica of this process any more, as that knows it; or of nobody, since an operator had it forgotten.
    Forgotten { by: Option<usize> },
}

/// The step that the invariants look at, with the data after it.
pub(super) struct Seen<'a> {
    pub(super) host: usize,
    pub(super) store: &'a Store,
    pub(super) what: What,
}

/// One that looks at data, under its name.
pub(super) type Named = (Rule, Box<dyn for<'a> Invariant<Seen<'a>> + Send>);

/// Returns the invariants of the data; `handover` and `waits` look at states.
pub(super) fn all() -> Vec<Named> {
    vec![
        (Rule::SameData, Box::new(same_data::SameData::default())),
        (Rule::NoOverwrite, Box::new(no_overwrite::NoOverwrite::default())),
        (Rule::NoLoss, Box::new(no_loss::NoLoss::default())),
        (Rule::Copies, Box::new(copies::Copies::default())),
        (Rule::Durable, Box::new(durable::Durable::default())),
        (Rule::NoErasure, Box::new(no_erasure::NoErasure::default())),
    ]
}
