//! A master that cannot reach a majority of the masters stops accepting writes within a time limit.
//!
//! The limit is the node timeout, plus the time until an unanswered PING counts as silence, plus
//! network delay.

use std::time::Duration;

use super::voters;
use crate::Rule;
use crate::cluster::{NODE_TIMEOUT, World};

const LIMIT: Duration = Duration::from_millis(2 * NODE_TIMEOUT.as_millis() as u64 + 300);

impl World {
    pub(in crate::cluster) fn check_reach(&mut self, host: usize) {
        let (now, looked_at) = (self.stage.now, &self.hosts[host]);
        // The latest decision is about to be published.
        if looked_at.publishing.is_some() {
            return;
        }
        if !self.samples.iter().any(|&slot| self.takes_writes(host, slot)) {
            return;
        }
        let gossip = self.gossip(host);
        let recent = |id| {
            id == gossip.id() || looked_at.heard.get(&id).is_some_and(|heard| now.since(heard.at) < LIMIT)
        };
        let (mut all, mut heard) = (0, 0);
        for id in voters(gossip) {
            all += 1;
            heard += usize::from(recent(id));
        }
        if heard <= all / 2 {
            self.stage.violate(
                Rule::Minority,
                &format!("host {host} takes writes and has heard {heard} of {all} masters"),
            );
        }
    }
}
