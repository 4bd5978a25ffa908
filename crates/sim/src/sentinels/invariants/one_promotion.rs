//! At most one replica is promoted per epoch.

use super::Seen;
use crate::invariant::{Invariant, Once};
use crate::sentinels::MASTER;

#[derive(Debug, Default)]
pub(super) struct OnePromotion {
    promoted: Once<u64, String>,
}

impl Invariant<Seen<'_>> for OnePromotion {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Promotion { leader, server } = seen else { return Ok(()) };
        let status = leader.status(MASTER).ok_or("a promotion without a master")?;
        let epoch = status.failover_epoch.ok_or("a promotion without a failover")?;
        let settled = self.promoted.record(epoch, server);
        settled.map_err(|first| format!("{first} and {server} were both promoted in epoch {epoch}"))
    }
}
