//! When a master is looked at next.
//!
//! At rest (everybody is up and is what it should be) only requests are due: pings, INFO, greetings. A
//! master with which something is wrong is looked at in every tick; one with which every moment counts,
//! every ten milliseconds.

use std::time::Duration;

use clock::Instant;

use crate::info::Role;
use crate::instance::{Instance, Reconf};
use crate::link::{Link, LinkKind};
use crate::machine::{CALM, URGENT};
use crate::master::Master;
use crate::shared::Cx;

/// A failure is fresh for this long: afterwards a dead master without replicas is no reason to hurry.
const FRESH: Duration = Duration::from_secs(3);

impl Master {
    /// Puts the next look into the agenda.
    pub(crate) fn plan(&self, cx: &mut Cx<'_>) {
        let round = if self.is_at_rest(cx) { self.next_due(cx) } else { cx.now + CALM };
        let urgent = self.is_urgent(cx).then(|| cx.now + URGENT);
        // The moment at which it is down is not left to a tick's chance.
        let silence = self.silence_ends(cx).filter(|&ends| ends > cx.now);
        let alarm = urgent.into_iter().chain(silence).chain(self.group.next_deadline()).min();
        let agenda = &mut cx.shared.agenda;
        agenda.rounds.set(&self.name, round);
        match alarm {
            Some(at) => agenda.alarms.set(&self.name, at),
            None => agenda.alarms.clear(&self.name),
        }
    }

    fn is_urgent(&self, cx: &Cx<'_>) -> bool {
        let link = cx.shared.links.at(self.myself.command);
        let fresh = self.myself.sdown.is_some_and(|since| cx.now.since(since) < FRESH);
        fresh || self.failover.is_some() || (self.myself.sdown.is_none() && link.just_lost(cx.now))
    }

    /// Whether nothing is wrong, and nothing on its way.
    fn is_at_rest(&self, cx: &Cx<'_>) -> bool {
        let quiet = cx.shared.tilt.is_none() && self.failover.is_none() && !self.group.is_awake();
        let well = |instance: &Instance| {
            let linked = [instance.command, instance.hello].map(|link| cx.shared.links.at(link).is_up());
            linked == [true, true] && instance.sdown.is_none() && instance.info_at.is_some()
        };
        let follows = |replica: &Instance| {
            let master = replica.master.as_ref();
            replica.role == Role::Replica
                && replica.master_link_up
                && replica.reconf == Reconf::None
                && master.is_some_and(|master| cx.shared.same_addr(master, &self.myself.addr))
        };
        quiet
            && well(&self.myself)
            && self.myself.role == Role::Master
            && self.myself.loading_since(cx.shared.links.at(self.myself.command)).is_none()
            && self.replicas.values().all(|replica| well(replica) && follows(replica))
            && self.peers.values().all(|peer| {
                peer.sdown.is_none() && peer.link.is_some_and(|link| cx.shared.links.at(link).is_up())
            })
    }

    /// When a master at rest has something to do.
    fn next_due(&self, cx: &Cx<'_>) -> Instant {
        let timing = &cx.shared.timing;
        let links = self.links().map(|link| self.link_due(cx, cx.shared.links.at(link)));
        let infos = self.replicas.iter().map(Some).chain([None]).filter_map(|replica| {
            let instance = replica.map_or(&self.myself, |(_, instance)| instance);
            Some(instance.info_asked? + self.info_period(cx, replica))
        });
        let waits = self.greeting_waits(cx).unwrap_or_default();
        let data = std::iter::once(&self.myself).chain(self.replicas.values()).map(|data| data.published);
        let greeted = data.chain(self.peers.values().map(|peer| peer.published));
        let greetings = greeted.map(|at| at.map_or(cx.now, |at| at + timing.publish_period + waits));
        let due = links.chain(infos).chain(greetings).min().expect("a master has links");
        // An overdue task could not be done now.
        if due <= cx.now { cx.now + CALM } else { due }
    }

    /// When a link that stands is to be pinged, has been silent for so long that it is made anew, or makes
    /// its instance count as down.
    fn link_due(&self, cx: &Cx<'_>, link: &Link) -> Instant {
        let (timing, down_after) = (&cx.shared.timing, self.settings.down_after);
        if link.kind == LinkKind::Hello {
            return link.heard + timing.publish_period * 3;
        }
        let ping = link.last_ping.map_or(cx.now, |last| last + timing.ping_period_for(down_after));
        let silent = link.waiting.map(|since| {
            let ends = [since + down_after / 2, since + down_after + Duration::from_millis(1)];
            ends.into_iter().find(|&end| end > cx.now).unwrap_or(cx.now)
        });
        silent.map_or(ping, |silent| silent.min(ping))
    }
}
