//! Data acknowledged under `always` or reported as synced survives a power failure; data passed to
//! the kernel survives a kill.

use super::Seen;
use crate::disk::Death;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct Durable {
    acknowledged: u64,
    synced: u64,
    written: u64,
}

impl Invariant<Seen> for Durable {
    fn check(&mut self, seen: &Seen) -> Result<(), String> {
        match seen {
            Seen::Acknowledged(offset) => self.acknowledged = self.acknowledged.max(*offset),
            Seen::Synced(offset) => self.synced = self.synced.max(*offset),
            Seen::Written(offset) => self.written = *offset,
            Seen::Started { death, loaded: Ok(loaded), .. } => {
                let reached = loaded.reached;
                let (acknowledged, synced, written) = (self.acknowledged, self.synced, self.written);
                *self = Self { acknowledged: 0, synced: reached, written: reached };
                if reached < acknowledged {
                    return Err(format!("{acknowledged} was acknowledged, {reached} is there"));
                }
                if reached < synced {
                    return Err(format!("{synced} was called synced, {reached} is there"));
                }
                if *death == Death::Killed && reached < written {
                    return Err(format!("{written} was given to the system, {reached} is there"));
                }
            }
            Seen::Started { loaded: Err(_), .. }
            | Seen::SaveFound { .. }
            | Seen::Served { .. }
            | Seen::Answered(_)
            | Seen::Executed(_)
            | Seen::Waits(_)
            | Seen::Rested { .. } => {}
        }
        Ok(())
    }
}
