//! Applies the failure detection to all instances of a master and publishes its results.

use std::time::Duration;

use clock::Instant;
use failover_history::FailoverOutcome;

use crate::addr::{Addr, RunId};
use crate::event::EventLevel;
use crate::link::LinkKind;
use crate::link::PendingReply;
use crate::master::Master;
use crate::master::failure_detector::{DownVotes, find_down_cause, find_link_down_cause};
use crate::master::instance::HealthChange;
use crate::master::known_sentinels::KnownSentinel;
use crate::shared::Context;

impl Master {
    /// Updates which instances are subjectively down, and whether the master is objectively down.
    pub(crate) fn update_health(&mut self, cx: &mut Context<'_>) {
        if cx.shared.tilt_since.is_some() {
            return;
        }
        self.update_instance_health(cx, None);
        let replicas: Vec<Addr> = self.servers.replica_addrs().cloned().collect();
        for addr in &replicas {
            self.update_instance_health(cx, Some(addr));
        }
        let changed = |peer: &&KnownSentinel| self.is_sentinel_down(cx, peer) != peer.sdown().is_some();
        let peers: Vec<RunId> =
            self.sentinels.iter().filter(changed).map(|peer| peer.run_id().clone()).collect();
        for run_id in &peers {
            self.toggle_sentinel_down(cx, run_id);
        }
        self.update_objectively_down(cx);
    }

    /// Updates the state of the replica at this address or, without an address, of the master.
    fn update_instance_health(&mut self, cx: &mut Context<'_>, addr: Option<&Addr>) {
        let now = cx.now;
        let lineage = addr.is_none().then(|| self.servers.lineage(cx));
        let Some(instance) = self.servers.at_mut(addr) else { return };
        let link = cx.shared.links.at(instance.command_link());
        let cause = find_down_cause(now, instance, lineage.as_ref(), link, &self.settings, &cx.shared.timing);
        match instance.update_health(now, cause.is_some(), link) {
            HealthChange::Unchanged => {}
            HealthChange::WentDown => {
                self.announce_at(cx, EventLevel::Warning, "+sdown", addr, "");
                if addr.is_none() {
                    self.record_failover_step(cx, format!("suspected: {}", cause.unwrap_or("is silent")));
                    // The selection of a replica needs recent replication offsets.
                    self.send_info_to_replicas(cx);
                }
            }
            HealthChange::CameBack => {
                self.announce_at(cx, EventLevel::Warning, "-sdown", addr, "");
                if addr.is_none() && !self.failovers.is_running() {
                    cx.shared.recorder.end_failover(
                        now,
                        &self.name,
                        FailoverOutcome::CameBack,
                        "the master is back",
                    );
                }
            }
            HealthChange::IsBlockedByScript => {
                let command = instance.command_link();
                let script = self.settings.command("SCRIPT").to_owned();
                cx.send(command, PendingReply::Ignored, &[&script, "KILL"]);
            }
        }
    }

    fn is_sentinel_down(&self, cx: &Context<'_>, peer: &KnownSentinel) -> bool {
        let Some(link) = peer.link().map(|link| cx.shared.links.at(link)) else { return true };
        debug_assert_eq!(link.kind, LinkKind::Command);
        find_link_down_cause(cx.now, link, &self.settings).is_some()
            || peer.sdown().is_some_and(|since| link.last_correct_reply < since)
    }

    /// Toggles the subjectively-down state of another sentinel.
    fn toggle_sentinel_down(&mut self, cx: &mut Context<'_>, run_id: &RunId) {
        let Some(peer) = self.sentinels.get_mut(run_id) else { return };
        peer.toggle_down(cx.now);
        let Some(peer) = self.sentinels.get(run_id) else { return };
        let event = if peer.sdown().is_some() { "+sdown" } else { "-sdown" };
        self.announce_sentinel(cx, EventLevel::Warning, event, peer, "");
    }

    /// When a PING to the master has been unanswered for long enough to count as down; `None` while the master answers.
    pub(crate) fn silence_end(&self, cx: &Context<'_>) -> Option<Instant> {
        let since = cx.shared.links.at(self.servers.master().command_link()).silent_since()?;
        self.servers
            .master()
            .sdown()
            .is_none()
            .then(|| since + self.settings.down_after + Duration::from_millis(1))
    }

    /// Counts the votes that the master is down, and updates whether it is objectively down.
    pub(crate) fn update_objectively_down(&mut self, cx: &mut Context<'_>) {
        let stale = cx.shared.timing.ask_period * 5;
        let other_votes = self.sentinels.count_down_reports(cx.now, stale);
        let (is_suspected, quorum) = (self.servers.is_master_suspected(), self.settings.quorum as usize);
        let votes = DownVotes { is_suspected, other_votes, quorum };
        match self.detector.update(cx.now, votes) {
            Some(true) => {
                let votes = votes.count();
                self.announce(cx, EventLevel::Warning, "+odown", &format!(" #quorum {votes}/{quorum}"));
                self.record_failover_step(
                    cx,
                    format!("agreed to be down by {votes} sentinels, the quorum is {quorum}"),
                );
            }
            Some(false) => self.announce(cx, EventLevel::Warning, "-odown", ""),
            None => {}
        }
    }
}
