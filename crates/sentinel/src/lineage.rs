//! The origin of the data of a master that calls itself a replica.
//!
//! FAILOVER at the server itself hands over past the sentinels. What they see of it is the master's own word: it
//! follows one of its replicas, is in step with it, and that one calls itself a master. Only that makes a successor of
//! a replica; one that calls itself a master while the master does so too is a rogue, and is made a replica again. The
//! sentinels agree on the switch as on any other, but nobody is told to be a master.
//!
//! A master that follows a replica of its own, such as one that was started again with the command line of a replica,
//! makes a ring: nobody takes writes, and nobody will.

use std::time::Duration;

use crate::addr::Addr;
use crate::failover::Cause;
use crate::info::Role;
use crate::master::Master;
use crate::repair::UNFINISHED;
use crate::shared::Cx;

/// An instance's description of itself from this long ago still holds; it is asked every second while this matters.
const FRESH: Duration = Duration::from_secs(3);

/// Where the way from the watched master upwards ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lineage {
    /// At a master which all on the way are in step with: it was handed over to.
    Successor(Addr),
    /// Nowhere: they follow each other.
    Ring,
    /// At the watched master itself, at somebody unknown, or at one that has not spoken lately.
    Unclear,
}

impl Master {
    /// Returns where the way from the watched master upwards ends.
    pub(crate) fn lineage(&self, cx: &Cx<'_>) -> Lineage {
        let mut instance = &self.myself;
        let mut in_step = true;
        for _ in 0..=self.replicas.len() {
            if !instance.told_within(cx.now, FRESH) || instance.sdown.is_some() {
                return Lineage::Unclear;
            }
            if instance.role == Role::Master {
                let handed_over = in_step && instance.addr != self.myself.addr;
                return if handed_over {
                    Lineage::Successor(instance.addr.clone())
                } else {
                    Lineage::Unclear
                };
            }
            in_step &= instance.master_link_up;
            let Some(upstream) = &instance.master else { return Lineage::Unclear };
            if cx.shared.same_addr(upstream, &self.myself.addr) {
                return Lineage::Ring;
            }
            let next = self.replicas.values().find(|replica| cx.shared.same_addr(&replica.addr, upstream));
            let Some(next) = next else { return Lineage::Unclear };
            instance = next;
        }
        Lineage::Ring
    }

    /// The replica that the master handed over to.
    pub(crate) fn successor(&self, cx: &Cx<'_>) -> Option<Addr> {
        match self.lineage(cx) {
            Lineage::Successor(addr) => Some(addr),
            Lineage::Ring | Lineage::Unclear => None,
        }
    }

    /// Has it agreed that the master has handed over, unless a sentinel sees to that.
    pub(crate) fn notice_successor(&mut self, cx: &mut Cx<'_>) {
        let since = cx.now.since(self.myself.role_since);
        // A sentinel that missed a switch hears of it within this time.
        let settled = since > cx.shared.timing.publish_period + Duration::from_millis(500);
        let free = self.failover.is_none() && self.odown.is_none() && cx.now >= self.retry_at;
        if self.myself.role == Role::Master || !settled || !free || !self.is_confirmed_by_majority(cx) {
            return;
        }
        let Some(successor) = self.successor(cx) else { return };
        if since > UNFINISHED || !self.is_being_promoted(&successor) {
            self.note(cx, format!("the master hands over to {successor}"));
            self.start_failover(cx, Cause::HandedOver);
        }
    }
}
