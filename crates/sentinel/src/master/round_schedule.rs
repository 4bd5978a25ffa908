//! Decides when a master is processed next.
//!
//! A healthy master is processed when a request is due (PING, INFO, hello message), a master with a problem at every
//! tick, and a master with an urgent failure every ten milliseconds.

use std::time::Duration;

use clock::Instant;

use crate::info::Role;
use crate::machine::{TICK_INTERVAL, URGENT_INTERVAL};
use crate::master::Master;
use crate::master::instance::{Instance, ReconfigurationState};
use crate::master::known_sentinels::KnownSentinel;
use crate::shared::Context;

/// How long a failure is urgent. A dead master without replicas must not stay urgent.
const URGENT_FAILURE_TIME: Duration = Duration::from_secs(3);

impl Master {
    /// Schedules the next round or alarm of the master.
    pub(crate) fn schedule_next_round(&self, cx: &mut Context<'_>) {
        let round = if self.is_healthy_and_idle(cx) { self.next_due(cx) } else { cx.now + TICK_INTERVAL };
        let urgent = self.is_urgent(cx).then(|| cx.now + URGENT_INTERVAL);
        // The alarm fires exactly when the master has been silent for too long, so that detection does not wait for a
        // tick.
        let silence = self.silence_end(cx).filter(|&ends| ends > cx.now);
        let alarm = urgent.into_iter().chain(silence).chain(self.consensus.next_deadline()).min();
        let scheduler = &mut cx.shared.scheduler;
        scheduler.rounds.set(&self.name, round);
        match alarm {
            Some(at) => scheduler.alarms.set(&self.name, at),
            None => scheduler.alarms.clear(&self.name),
        }
    }

    fn is_urgent(&self, cx: &Context<'_>) -> bool {
        let link = cx.shared.links.at(self.servers.master().command_link());
        let fresh =
            self.servers.master().sdown().is_some_and(|since| cx.now.since(since) < URGENT_FAILURE_TIME);
        fresh
            || self.failovers.is_running()
            || (self.servers.master().sdown().is_none() && link.was_just_lost(cx.now))
    }

    /// Whether all instances are healthy and no operation is in progress.
    fn is_healthy_and_idle(&self, cx: &Context<'_>) -> bool {
        let quiet =
            cx.shared.tilt_since.is_none() && !self.failovers.is_running() && !self.consensus.is_active();
        let well = |instance: &Instance| {
            let linked = instance.links().map(|link| cx.shared.links.at(link).is_up());
            linked == [true, true]
                && instance.sdown().is_none()
                && instance.reported().received_at().is_some()
        };
        let follows = |replica: &Instance| {
            replica.follows(|master| cx.shared.same_addr(master, self.servers.master().addr()))
                && replica.reported().is_master_link_up()
                && replica.reconfiguration() == ReconfigurationState::None
        };
        quiet
            && well(self.servers.master())
            && self.servers.master().reported().role() == Role::Master
            && self
                .servers
                .master()
                .loading_since(cx.shared.links.at(self.servers.master().command_link()))
                .is_none()
            && self.servers.replicas().all(|replica| well(replica) && follows(replica))
            && self.sentinels.iter().all(|peer| {
                peer.sdown().is_none() && peer.link().is_some_and(|link| cx.shared.links.at(link).is_up())
            })
    }

    /// Returns when a healthy master has something to do next.
    fn next_due(&self, cx: &Context<'_>) -> Instant {
        let timing = &cx.shared.timing;
        let due = |link| cx.shared.links.at(link).next_due(cx.now, timing, self.settings.down_after);
        let links = self.links().map(due);
        let infos = self.servers.replicas().map(Some).chain([None]).filter_map(|replica| {
            let instance = replica.unwrap_or(self.servers.master());
            Some(instance.info_requested_at()? + self.info_period(cx, replica))
        });
        let waits = self.hello_delay(cx).unwrap_or_default();
        let greeted =
            self.servers.hello_times().chain(self.sentinels.iter().map(KnownSentinel::hello_sent_at));
        let greetings = greeted.map(|at| at.map_or(cx.now, |at| at + timing.publish_period + waits));
        let due = links.chain(infos).chain(greetings).min().expect("a master has links");
        // The round has just run, so a task that is still due cannot be done now.
        if due <= cx.now { cx.now + TICK_INTERVAL } else { due }
    }
}
