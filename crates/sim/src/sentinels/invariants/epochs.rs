//! The configuration epoch of a sentinel never decreases while the process runs. After a restart it is not lower than
//! an epoch that the sentinel announced before, unless the configuration file could not be written. Each configuration
//! epoch means the same master address at every sentinel.

use std::collections::BTreeMap;

use sentinel::Addr;

use super::SentinelObservation;
use crate::invariant::{Invariant, NonDecreasing, SetOnce};

const EPOCH_NAME: &str = "configuration epoch";

#[derive(Debug, Default)]
pub(super) struct Epochs {
    current: NonDecreasing<String, u64>,
    announced: BTreeMap<String, u64>,
    addresses: SetOnce<u64, Addr>,
}

impl Invariant<SentinelObservation<'_>> for Epochs {
    fn check(&mut self, seen: &SentinelObservation<'_>) -> Result<(), String> {
        match seen {
            SentinelObservation::Start { sentinel } => {
                let id = (*sentinel).to_owned();
                self.current.remove(&id);
                let announced = self.announced.get(&id).copied().unwrap_or(0);
                self.current.check_next(&id, announced, EPOCH_NAME)
            }
            SentinelObservation::Announcement { sentinel, config_epoch } => {
                let announced = self.announced.entry((*sentinel).to_owned()).or_default();
                *announced = (*announced).max(*config_epoch);
                Ok(())
            }
            SentinelObservation::Step { sentinel, status } => {
                let id = sentinel.my_id().to_string();
                let epoch = status.config_epoch;
                self.current.check_next(&id, epoch, EPOCH_NAME)?;
                self.addresses.record(epoch, &status.addr).map_err(|known| {
                    format!("configuration epoch {epoch} means {known} and for {id} {}", status.addr)
                })
            }
            SentinelObservation::Ballot { .. }
            | SentinelObservation::VoteGiven { .. }
            | SentinelObservation::Promotion { .. } => Ok(()),
        }
    }
}
