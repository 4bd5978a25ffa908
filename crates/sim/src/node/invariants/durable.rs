//! Writes acknowledged under `always` and data reported as synced survive a power failure. Data passed to the kernel
//! survives a kill.

use super::NodeObservation;
use crate::disk::ProcessDeath;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct Durable {
    acknowledged: u64,
    synced: u64,
    written: u64,
}

impl Invariant<NodeObservation> for Durable {
    fn check(&mut self, seen: &NodeObservation) -> Result<(), String> {
        match seen {
            NodeObservation::Acknowledged(offset) => self.acknowledged = self.acknowledged.max(*offset),
            NodeObservation::Synced(offset) => self.synced = self.synced.max(*offset),
            NodeObservation::Written(offset) => self.written = *offset,
            NodeObservation::Started { death, loaded: Ok(loaded), .. } => {
                let reached = loaded.claimed_offset;
                let (acknowledged, synced, written) = (self.acknowledged, self.synced, self.written);
                *self = Self { acknowledged: 0, synced: reached, written: reached };
                if reached < acknowledged {
                    return Err(format!("{acknowledged} was acknowledged, {reached} is there"));
                }
                if reached < synced {
                    return Err(format!("{synced} was called synced, {reached} is there"));
                }
                if *death == ProcessDeath::Killed && reached < written {
                    return Err(format!("{written} was given to the system, {reached} is there"));
                }
            }
            NodeObservation::Started { loaded: Err(_), .. }
            | NodeObservation::SaveFound { .. }
            | NodeObservation::Served { .. }
            | NodeObservation::Answered(_)
            | NodeObservation::Executed(_)
            | NodeObservation::Waits(_)
            | NodeObservation::DiskRecovered { .. } => {}
        }
        Ok(())
    }
}
