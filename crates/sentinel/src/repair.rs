//! Instances that are not what the agreed configuration says: the old master that comes back as a
//! master, a replica that follows somebody else.
//!
//! A sentinel that missed the latest switch would do harm here: it would turn the new master into a
//! replica of the old. Redis lets time pass (four hello periods). Here a majority of the sentinels must
//! have shown, by recent hello messages, the same configuration epoch as this one: a newer switch would
//! have needed a majority, too, and one of those would have told.
//!
//! A server of another group at a replica's address is left alone (`foreign`).

use std::time::Duration;

use crate::addr::Addr;
use crate::event::Level;
use crate::info::Role;
use crate::master::Master;
use crate::record::Switch;
use crate::shared::Cx;

/// An order that shows no effect is repeated after this long.
const AGAIN: Duration = Duration::from_secs(2);
/// A promotion that was agreed on but has not become a switch for this long never will: its leader is
/// gone, and the master is well.
pub(crate) const UNFINISHED: Duration = Duration::from_secs(10);

impl Master {
    /// Sets right what can be.
    pub(crate) fn repair(&mut self, cx: &mut Cx<'_>) {
        if self.failover.is_some() || !self.master_is_sane(cx) || !self.is_confirmed_by_majority(cx) {
            return;
        }
        // A switch that only just happened elsewhere must have had the time to be heard of.
        let settled = cx.shared.timing.publish_period + Duration::from_millis(500);
        let wrong = self.replicas.values().filter(|replica| {
            let since = match replica.role {
                Role::Master => replica.role_since,
                Role::Replica => replica.master_since,
            };
            let follows =
                replica.master.as_ref().is_some_and(|at| cx.shared.same_addr(at, &self.myself.addr));
            let wrong = replica.role == Role::Master || (replica.master.is_some() && !follows);
            wrong
                && replica.foreign.is_none()
                && cx.now.since(since) > settled
                && replica.repaired.is_none_or(|at| cx.now.since(at) > AGAIN)
                && !replica.refused_lately(cx.now)
                && replica.info_at.is_some_and(|at| cx.now.since(at) < settled)
                && self.well_for(cx, replica, settled)
                && !(cx.now.since(since) < UNFINISHED && self.is_being_promoted(&replica.addr))
        });
        let wrong: Vec<(Addr, Role)> = wrong.map(|replica| (replica.addr.clone(), replica.role)).collect();
        let to = self.myself.addr.clone();
        for (addr, role) in wrong {
            if self.send_slaveof(cx, &addr, Some(&to)) {
                let replica = self.replicas.get_mut(&addr).expect("just listed");
                replica.repaired = Some(cx.now);
                let event = if role == Role::Master { "+convert-to-slave" } else { "+fix-slave-config" };
                self.announce_replica(cx, Level::Notice, event, &addr, "");
                let link = self.replicas[&addr].command;
                self.ask_info_over(cx, link);
            }
        }
    }

    fn master_is_sane(&self, cx: &Cx<'_>) -> bool {
        let fresh = self.myself.told_within(cx.now, cx.shared.timing.info_period * 2);
        let up = self.myself.sdown.is_none() && self.odown.is_none();
        up && fresh && self.myself.role == Role::Master && cx.shared.links.at(self.myself.command).is_up()
    }

    /// Whether a majority, this sentinel included, showed the same configuration lately.
    pub(crate) fn is_confirmed_by_majority(&self, cx: &Cx<'_>) -> bool {
        let recent = cx.shared.timing.publish_period * 2;
        let settled = cx.shared.timing.publish_period + Duration::from_millis(500);
        let agree = self.peers.values().filter(|peer| {
            peer.config_epoch == Some(self.config_epoch)
                && cx.now.since(peer.last_hello) <= recent
                && cx.now.since(peer.steady_since) > settled
        });
        agree.count() + 1 >= self.majority()
    }

    /// Whether a leader got it agreed that this replica shall be the next master.
    pub(crate) fn is_being_promoted(&self, addr: &Addr) -> bool {
        Switch::decode(self.group.value()).is_some_and(|switch| {
            let to = switch.to.0 == addr.host && switch.to.1 == addr.port;
            to && !switch.done && switch.epoch > self.config_epoch
        })
    }
}
