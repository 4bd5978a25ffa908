//! At most one replica is promoted per epoch.

use super::SentinelObservation;
use crate::invariant::{Invariant, SetOnce};
use crate::sentinels::MASTER;

#[derive(Debug, Default)]
pub(super) struct OnePromotion {
    promoted: SetOnce<u64, String>,
}

impl Invariant<SentinelObservation<'_>> for OnePromotion {
    fn check(&mut self, seen: &SentinelObservation<'_>) -> Result<(), String> {
        let SentinelObservation::Promotion { leader, server } = seen else { return Ok(()) };
        let status = leader.status(MASTER).ok_or("a promotion without a master")?;
        let epoch = status.failover_epoch.ok_or("a promotion without a failover")?;
        let settled = self.promoted.record(epoch, server);
        settled.map_err(|first| format!("{first} and {server} were both promoted in epoch {epoch}"))
    }
}
