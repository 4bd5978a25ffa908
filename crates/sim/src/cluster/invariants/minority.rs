//! A master that cannot reach a majority of the masters stops accepting writes within a time limit.
//!
//! The limit is the node timeout, plus the time after which an unanswered PING counts as a failure, plus network delay.

use std::time::Duration;

use super::voters;
use crate::InvariantName;
use crate::cluster::{ClusterWorld, NODE_TIMEOUT};

const MAX_ISOLATED_WRITE_TIME: Duration = Duration::from_millis(2 * NODE_TIMEOUT.as_millis() as u64 + 300);

impl ClusterWorld {
    pub(in crate::cluster) fn check_reach(&mut self, host: usize) {
        let (now, looked_at) = (self.simulation.now, &self.hosts[host]);
        // A decision has already been made and is about to be published.
        if looked_at.topology_being_published.is_some() {
            return;
        }
        if !self.sample_slots.iter().any(|&slot| self.accepts_writes(host, slot)) {
            return;
        }
        let gossip = self.gossip(host);
        let recent = |id| {
            id == gossip.id()
                || looked_at.received_headers.get(&id).is_some_and(|received_headers| {
                    now.since(received_headers.arrived_at) < MAX_ISOLATED_WRITE_TIME
                })
        };
        let (mut all, mut received_headers) = (0, 0);
        for id in voters(gossip) {
            all += 1;
            received_headers += usize::from(recent(id));
        }
        if received_headers <= all / 2 {
            self.simulation.record_violation(
                InvariantName::Minority,
                &format!("host {host} takes writes and has heard {received_headers} of {all} masters"),
            );
        }
    }
}
