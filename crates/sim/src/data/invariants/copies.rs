//! WAIT and WAITAOF count copies that there are, or have been since.
//!
//! A replica has a copy once its own log in the master's history reaches so far, and on its disk once its file says so:
//! that such a word is true is what `durable` asks.

use std::collections::BTreeMap;

use replication::ReplId;
use replication::wait::Wanted;
use slot_routing::ReplOffset;

use super::{Seen, What};
use crate::invariant::Invariant;

/// A replica's part of a history: the host, and which of its lives. A master of a cluster knows which nodes they are,
/// others count one that has come again twice, as long as they have not noticed that its former connection is lost.
type Copy = (usize, usize, ReplId);

#[derive(Debug, Default)]
pub(super) struct Copies {
    /// How far each has ever had a history.
    held: BTreeMap<Copy, ReplOffset>,
    /// And how far on its disk.
    synced: BTreeMap<Copy, ReplOffset>,
    /// How often each process has begun anew.
    lives: BTreeMap<usize, usize>,
}

impl Invariant<Seen<'_>> for Copies {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let (host, position) = (seen.host, seen.store.position());
        if matches!(seen.what, What::Restarted { .. }) && seen.store.engine().topology.is_none() {
            *self.lives.entry(host).or_default() += 1;
        }
        let copy = (host, self.lives.get(&host).copied().unwrap_or_default(), position.id);
        let raise = |upto: &mut ReplOffset, offset: ReplOffset| *upto = offset.max(*upto);
        match seen.what {
            What::Stands | What::Applied | What::Restarted { .. } => {
                raise(self.held.entry(copy).or_default(), position.offset);
            }
            What::Synced { upto } => raise(self.synced.entry(copy).or_default(), upto),
            What::Copied { upto, wanted, copies } => {
                let ledger = match wanted {
                    Wanted::Acknowledged { .. } => &self.held,
                    Wanted::Synced { .. } => &self.synced,
                };
                let has_it = |((of, _, history), offset): &(&Copy, &ReplOffset)| {
                    *of != host && *history == position.id && **offset >= upto
                };
                let there = ledger.iter().filter(has_it).count();
                if copies.replicas > there {
                    return Err(format!(
                        "host {host} counts {copies:?} of {upto} for {wanted:?}, and {there} replicas have had it"
                    ));
                }
            }
            What::Acknowledged { .. }
            | What::Replaced
            | What::Dropped { .. }
            | What::Confirmed { .. }
            | What::Promoted { .. }
            | What::Demoted
            | What::Forgotten { .. } => {}
        }
        Ok(())
    }
}
