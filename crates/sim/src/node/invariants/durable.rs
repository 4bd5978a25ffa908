//! Writes acknowledged under `always` and data reported as synced survive a power failure. Data passed to the kernel
//! survives a kill.

use super::NodeObservation;
use crate::disk::ProcessDeath;
use crate::invariant::Invariant;

#[derive(Debug, Default)]
pub(super) struct DurableInvariant {
    acknowledged_end: u64,
    synced_end: u64,
    written_end: u64,
}

impl Invariant<NodeObservation> for DurableInvariant {
    fn check(&mut self, observation: &NodeObservation) -> Result<(), String> {
        match observation {
            NodeObservation::WritesAcknowledged(offset) => {
                self.acknowledged_end = self.acknowledged_end.max(*offset);
            }
            NodeObservation::LogSynced(offset) => self.synced_end = self.synced_end.max(*offset),
            NodeObservation::LogWritten(offset) => self.written_end = *offset,
            NodeObservation::NodeStarted { death, loaded: Ok(loaded), .. } => {
                let reached = loaded.claimed_offset;
                let (acknowledged, synced, written) =
                    (self.acknowledged_end, self.synced_end, self.written_end);
                *self = Self { acknowledged_end: 0, synced_end: reached, written_end: reached };
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
            NodeObservation::NodeStarted { loaded: Err(_), .. }
            | NodeObservation::SaveFound { .. }
            | NodeObservation::CommandServed { .. }
            | NodeObservation::PipelineAnswered(_)
            | NodeObservation::TransactionExecuted(_)
            | NodeObservation::ClientStuck(_)
            | NodeObservation::DiskRecovered { .. } => {}
        }
        Ok(())
    }
}
