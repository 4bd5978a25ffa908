//! The replica selected by a leader is not behind another eligible one.
//!
//! What counts is the latest INFO reply of each replica at the leader. Another replica may be ahead
//! but ineligible: the leader could not communicate with it for a while, it has sent no INFO, or it
//! follows another server or lost its master long ago. The master being replaced is never eligible,
//! even if it reports or reported the role of a replica.

use std::time::Duration;

use sentinel::Addr;

use crate::Rule;
use crate::sentinels::World;
use crate::sentinels::server::Told;

/// A replica without contact for this long may be considered down, now or still.
const CONTACT: Duration = Duration::from_secs(3);
/// Replicas send INFO every second while their master is down.
const FRESH: Duration = Duration::from_millis(1500);
const ORPHANED_SECS: u64 = 5;

impl World {
    /// `text` is the selection event; it contains the address of the selected replica in place of
    /// `replaced`.
    pub(in crate::sentinels) fn check_choice(&mut self, leader: usize, replaced: Option<&Addr>, text: &str) {
        let Some(watcher) = self.watchers.get(leader) else { return };
        let named = |host: &usize| text.contains(&format!("{}:", self.ips[*host]));
        let Some(chosen) = (0..self.ips.len()).find(named) else { return };
        // It may have last reported as a master and have become a replica since.
        let Some(best) = watcher.told.get(&chosen) else { return };
        let fit = |host: usize, told: &Told| {
            self.stage.in_touch(leader, host) > CONTACT
                && self.stage.now.since(told.at) < FRESH
                && told.orphaned_secs < ORPHANED_SECS
                && told.master == best.master
                && replaced.is_some_and(|replaced| self.ips[host] != replaced.host)
        };
        let better = watcher.told.iter().find(|&(&host, told)| fit(host, told) && told.offset > best.offset);
        if let Some((other, told)) = better {
            let (theirs, its) = (told.offset, best.offset);
            self.stage.violate(
                Rule::Freshness,
                &format!("{leader} selects {chosen} at {its}, and {other} is at {theirs}"),
            );
        }
    }
}
