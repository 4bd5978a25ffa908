//! Detects handovers that bypassed the sentinels (FAILOVER sent to the master itself).
//!
//! The sentinels see such a handover through the master's INFO: it replicates from one of its replicas, is in sync with
//! it, and that replica reports the master role. Only this makes the replica a successor. A replica that reports the
//! master role while the master does so as well is misconfigured and is made a replica again. The sentinels commit this
//! switch like any other but send no promotion.
//!
//! A master that replicates from its own replica, for example after a restart with a replica's command line, forms a
//! ring that accepts no writes and never recovers.

use std::time::Duration;

use crate::addr::Addr;
use crate::info::Role;
use crate::master::Master;
use crate::master::failovers::FailoverCause;
use crate::master::monitored_servers::MonitoredServers;
use crate::master::repair::PROMOTION_TIMEOUT;
use crate::shared::Context;

/// Maximum age of an INFO reply that shows a handover. INFO is sent every second while a handover is possible.
const MAX_INFO_AGE: Duration = Duration::from_secs(3);

/// Where the chain of masters that starts at the monitored master ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lineage {
    /// The chain ends at another master, and all its links are in sync: the master has handed over.
    Successor(Addr),
    /// The chain has no end, because the servers replicate from each other.
    Ring,
    /// The chain ends at the monitored master itself, at an unknown server, or at one without recent INFO.
    Unclear,
}

impl MonitoredServers {
    /// Follows the chain of masters that starts at the monitored master.
    pub(crate) fn lineage(&self, cx: &Context<'_>) -> Lineage {
        let mut instance = self.master();
        let mut in_step = true;
        for _ in 0..=self.replica_count() {
            if !instance.reported().is_recent(cx.now, MAX_INFO_AGE) || instance.sdown().is_some() {
                return Lineage::Unclear;
            }
            if instance.reported().role() == Role::Master {
                let handed_over = in_step && instance.addr() != self.master().addr();
                return if handed_over {
                    Lineage::Successor(instance.addr().clone())
                } else {
                    Lineage::Unclear
                };
            }
            in_step &= instance.reported().is_master_link_up();
            let Some(upstream) = instance.reported().master() else { return Lineage::Unclear };
            if cx.shared.same_addr(upstream, self.master().addr()) {
                return Lineage::Ring;
            }
            let next = self.replicas().find(|replica| cx.shared.same_addr(replica.addr(), upstream));
            let Some(next) = next else { return Lineage::Unclear };
            instance = next;
        }
        Lineage::Ring
    }

    /// The replica that the master has handed over to; `None` if it has not handed over.
    pub(crate) fn successor(&self, cx: &Context<'_>) -> Option<Addr> {
        match self.lineage(cx) {
            Lineage::Successor(addr) => Some(addr),
            Lineage::Ring | Lineage::Unclear => None,
        }
    }
}

impl Master {
    /// Starts a failover to commit a handover that was detected, unless another failover is running.
    pub(crate) fn start_failover_after_handover(&mut self, cx: &mut Context<'_>) {
        let since = cx.now.since(self.servers.master().reported().role_since());
        // Within this time, hello messages tell a sentinel about a switch that it missed.
        let settled = since > cx.shared.timing.publish_period + Duration::from_millis(500);
        let free = !self.detector.is_objectively_down() && self.failovers.may_start(cx.now);
        if self.servers.master().reported().role() == Role::Master
            || !settled
            || !free
            || !self.is_confirmed_by_majority(cx)
        {
            return;
        }
        let Some(successor) = self.servers.successor(cx) else { return };
        if since > PROMOTION_TIMEOUT || !self.consensus.is_promoting(&successor, self.config_epoch) {
            self.record_failover_step(cx, format!("the master hands over to {successor}"));
            self.start_failover(cx, FailoverCause::HandedOver);
        }
    }
}
