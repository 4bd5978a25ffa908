//! The replica that a leader selects is not behind another that it could have selected.
//!
//! In the leader's eyes: what each replica told it last. Another that is ahead is passed over rightly if it
//! may be unfit: if the leader has not been able to talk to it for a while (it is down, or has just come
//! back), if it has not told of itself, or if it copies somebody else or has lost its master for long. And
//! a master that is to be replaced is no choice, also if it calls itself a replica, or did so a moment ago.

use std::time::Duration;

use sentinel::Addr;

use crate::Rule;
use crate::sentinels::World;
use crate::sentinels::server::Told;

/// Without contact for that long a replica may be held for down, or still be.
const CONTACT: Duration = Duration::from_secs(3);
/// A replica tells of itself every second while its master is down.
const FRESH: Duration = Duration::from_millis(1500);
const ORPHANED_SECS: u64 = 5;

impl World {
    /// `text` is the event of the selection, with the address of the one that was selected in the place of
    /// `replaced`.
    pub(in crate::sentinels) fn check_choice(&mut self, leader: usize, replaced: Option<&Addr>, text: &str) {
        let Some(watcher) = self.watchers.get(leader) else { return };
        let named = |host: &usize| text.contains(&format!("{}:", self.ips[*host]));
        let Some(chosen) = (0..self.ips.len()).find(named) else { return };
        // It may have told of itself as a master, and have been made a replica since.
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
