//! Two processes that stand at the same place of the same history hold the same data.
//!
//! That is what a replication id promises, and what every partial resynchronisation rests on. After healing, every
//! replica must also come to hold what its master holds: the stage asks for that with everything else that must be
//! agreed on.

use replication::ReplId;
use slot_routing::ReplOffset;

use super::{Seen, What};
use crate::invariant::{Invariant, Once};

/// One place of so many is looked at, the same ones of each process: what differs goes on to.
const LOOKED_AT: u64 = 128;

#[derive(Debug, Default)]
pub(super) struct SameData {
    /// The digest of the data at each place of each history.
    held: Once<(ReplId, ReplOffset), Vec<u8>>,
}

impl Invariant<Seen<'_>> for SameData {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let store = seen.store;
        // In the middle of a piece or a command, data and log are apart for a moment.
        if seen.what != What::Stands || !store.log.is_open() || !store.is_whole() {
            return Ok(());
        }
        let position = store.position();
        if !position.offset.0.is_multiple_of(LOOKED_AT) {
            return Ok(());
        }
        let settled = self.held.record((position.id, position.offset), &store.held.digest());
        settled.map_err(|_| {
            format!(
                "host {} holds other data than another did at {} of {}",
                seen.host, position.offset, position.id
            )
        })
    }
}
