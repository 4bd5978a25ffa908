//! Repairs instances that contradict the agreed configuration: an old master that returns as a master, or a replica of
//! the wrong master.
//!
//! A sentinel that missed the latest switch would do harm here, because it would make the new master a replica of the
//! old one. Redis waits for four hello periods. Here a majority of the sentinels must have announced the same
//! configuration epoch in recent hello messages. A newer switch would also have needed a majority, so at least one of
//! these sentinels would have announced it.
//!
//! Servers of other groups at a replica's address are left alone (`foreign_servers`).

use std::time::Duration;

use crate::addr::Addr;
use crate::event::EventLevel;
use crate::info::Role;
use crate::master::Master;
use crate::shared::Context;

/// Delay before a repair without effect is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How long after the commit of its promotion a replica may still become a master. After this time, the leader that
/// committed the promotion is considered gone.
pub(crate) const PROMOTION_TIMEOUT: Duration = Duration::from_secs(10);

impl Master {
    /// Sends a new master to all replicas that contradict the agreed configuration.
    pub(crate) fn repair(&mut self, cx: &mut Context<'_>) {
        if self.failovers.is_running() || !self.is_master_healthy(cx) || !self.is_confirmed_by_majority(cx) {
            return;
        }
        // Within this time, hello messages announce a switch that another sentinel led.
        let settled = cx.shared.timing.publish_period + Duration::from_millis(500);
        let wrong = self.servers.replicas().filter(|replica| {
            let since = match replica.reported().role() {
                Role::Master => replica.reported().role_since(),
                Role::Replica => replica.reported().master_since(),
            };
            let follows = replica
                .reported()
                .master()
                .is_some_and(|at| cx.shared.same_addr(at, self.servers.master().addr()));
            let wrong = replica.reported().role() == Role::Master
                || (replica.reported().master().is_some() && !follows);
            wrong
                && replica.foreign().is_none()
                && cx.now.since(since) > settled
                && replica.is_repair_due(cx.now, RETRY_INTERVAL)
                && !replica.has_recently_refused(cx.now)
                && replica.reported().received_at().is_some_and(|at| cx.now.since(at) < settled)
                && replica.is_healthy_for(cx.now, cx.shared.links.at(replica.command_link()), settled)
                && !(cx.now.since(since) < PROMOTION_TIMEOUT
                    && self.consensus.is_promoting(replica.addr(), self.config_epoch))
        });
        let wrong: Vec<(Addr, Role)> =
            wrong.map(|replica| (replica.addr().clone(), replica.reported().role())).collect();
        let to = self.servers.master().addr().clone();
        for (addr, role) in wrong {
            if self.send_slaveof(cx, &addr, Some(&to)) {
                let Some(replica) = self.servers.replica_mut(&addr) else { continue };
                replica.set_repaired(cx.now);
                let link = replica.command_link();
                let event = if role == Role::Master { "+convert-to-slave" } else { "+fix-slave-config" };
                self.announce_replica(cx, EventLevel::Notice, event, &addr, "");
                self.send_info_on(cx, link);
            }
        }
    }

    fn is_master_healthy(&self, cx: &Context<'_>) -> bool {
        let fresh = self.servers.master().reported().is_recent(cx.now, cx.shared.timing.info_period * 2);
        let up = self.servers.master().sdown().is_none() && !self.detector.is_objectively_down();
        up && fresh
            && self.servers.master().reported().role() == Role::Master
            && cx.shared.links.at(self.servers.master().command_link()).is_up()
    }

    /// Whether a majority, including this sentinel, has recently announced this configuration.
    pub(crate) fn is_confirmed_by_majority(&self, cx: &Context<'_>) -> bool {
        let recent = cx.shared.timing.publish_period * 2;
        let settled = cx.shared.timing.publish_period + Duration::from_millis(500);
        self.sentinels.majority_announces(cx.now, self.config_epoch, recent, settled)
    }
}
