//! Writes acknowledged under `appendfsync always` survive a restart, whether the process was killed
//! or lost power, unless its disk is lost.

use std::collections::BTreeMap;

use slot_routing::ReplOffset;

use super::{Seen, What};
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct Durable {
    /// The log end of the last such write on each master.
    acknowledged: BTreeMap<usize, ReplOffset>,
}

impl Invariant<Seen<'_>> for Durable {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let host = seen.host;
        match seen.what {
            What::Acknowledged { end, durable: true, .. } if seen.store.upstream().is_none() => {
                let acknowledged = self.acknowledged.entry(host).or_default();
                *acknowledged = end.max(*acknowledged);
            }
            What::Synced { upto } => {
                let acknowledged = self.acknowledged.entry(host).or_default();
                *acknowledged = upto.max(*acknowledged);
            }
            What::Restarted { kept: true } => {
                let reached = seen.store.offset();
                let acknowledged = self.acknowledged.get(&host).copied().unwrap_or_default();
                if reached < acknowledged {
                    return Err(format!(
                        "host {host} has acknowledged {acknowledged}, and starts again at {reached}"
                    ));
                }
            }
            What::Promoted { .. } | What::Demoted | What::Replaced | What::Restarted { kept: false } => {
                self.acknowledged.remove(&host);
            }
            What::Acknowledged { .. }
            | What::Copied { .. }
            | What::Stands
            | What::Applied
            | What::Dropped { .. }
            | What::Confirmed { .. }
            | What::Forgotten { .. } => {}
        }
        Ok(())
    }
}
