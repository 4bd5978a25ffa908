//! At most one replica is promoted in an epoch.

use std::collections::BTreeMap;

use super::{Invariant, Seen};
use crate::sentinels::MASTER;

#[derive(Debug, Default)]
pub(super) struct OnePromotion {
    promoted: BTreeMap<u64, String>,
}

impl Invariant for OnePromotion {
    fn check(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Seen::Promotion { leader, server } = seen else { return Ok(()) };
        let status = leader.status(MASTER).ok_or("a promotion without a master")?;
        let epoch = status.failover_epoch.ok_or("a promotion without a failover")?;
        let first = self.promoted.entry(epoch).or_insert_with(|| server.clone());
        if first == server {
            return Ok(());
        }
        Err(format!("{first} and {server} were both promoted in epoch {epoch}"))
    }
}
