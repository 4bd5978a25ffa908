//! The replica that a leader selects is not behind another eligible replica.
//!
//! The comparison uses the leader's last INFO reply of each replica. A replica with a larger offset may be ineligible:
//! the leader could not reach it for a while, it has sent no INFO, or it follows another server or lost its master long
//! ago. The replaced master is never eligible, whichever role it reports.

use std::time::Duration;

use sentinel::Addr;

use crate::InvariantName;
use crate::sentinels::SentinelWorld;
use crate::sentinels::server::ReplicaInfo;

/// A replica without contact for this long may be considered down.
const MIN_CONTACT: Duration = Duration::from_secs(3);
/// The maximum age of an INFO reply: replicas send INFO every second while their master is down.
const MAX_INFO_AGE: Duration = Duration::from_millis(1500);
const MAX_ORPHANED_SECS: u64 = 5;

impl SentinelWorld {
    /// Checks a selection. `text` is the selection event, which contains the address of the selected replica;
    /// `replaced` is the old master.
    pub(in crate::sentinels) fn check_choice(&mut self, leader: usize, replaced: Option<&Addr>, text: &str) {
        let Some(sentinel) = self.sentinels.get(leader) else { return };
        let named = |host: &usize| text.contains(&format!("{}:", self.ips[*host]));
        let Some(chosen) = (0..self.ips.len()).find(named) else { return };
        // A server that has never reported the replica role has no offset to compare.
        let Some(best) = sentinel.last_info.get(&chosen) else { return };
        let fit = |host: usize, told: &ReplicaInfo| {
            self.simulation.contact_duration(leader, host) > MIN_CONTACT
                && self.simulation.now.since(told.at) < MAX_INFO_AGE
                && told.orphaned_secs < MAX_ORPHANED_SECS
                && told.master == best.master
                && replaced.is_some_and(|replaced| self.ips[host] != replaced.host)
        };
        let better =
            sentinel.last_info.iter().find(|&(&host, told)| fit(host, told) && told.offset > best.offset);
        if let Some((other, told)) = better {
            let (theirs, its) = (told.offset, best.offset);
            self.simulation.record_violation(
                InvariantName::Freshness,
                &format!("{leader} selects {chosen} at {its}, and {other} is at {theirs}"),
            );
        }
    }
}
