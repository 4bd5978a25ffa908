//! Decides whether instances are subjectively down, and whether the master is objectively down.
//!
//! **Subjectively down** is an instance that has not answered a PING correctly for `down-after-milliseconds`, whose
//! port has refused connections for `refused-after-milliseconds` after an established link broke (the host is up, but
//! the process is gone), that reports that it restarted without its data, that should be a master and keeps reporting
//! the replica role, or that restarted and takes longer than `master-reboot-down-after-period` to load its data.
//!
//! **Objectively down** is a master that `quorum` sentinels, including this one, consider down.

use std::time::Duration;

use clock::Instant;
use failover_history::FailoverOutcome;

use crate::addr::{Addr, RunId};
use crate::event::EventLevel;
use crate::handover::Lineage;
use crate::info::Role;
use crate::instance::Instance;
use crate::known_sentinels::Peer;
use crate::link::PendingReply;
use crate::link::{Link, LinkKind};
use crate::master::Master;
use crate::settings::{MasterSettings, Timing};
use crate::shared::Context;

/// Returns why an instance counts as down, or `None` if it is up. For a master the reasons include the role that it
/// reports.
fn cause(
    now: Instant,
    instance: &Instance,
    lineage: Option<&Lineage>,
    link: &Link,
    settings: &MasterSettings,
    timing: &Timing,
) -> Option<&'static str> {
    if let Some(cause) = link_cause(now, link, settings) {
        return Some(cause);
    }
    let is_master = lineage.is_some();
    let odd = is_master && instance.role == Role::Replica;
    // In a replication ring no server is a master, so there is no point in waiting.
    let timeout =
        if lineage == Some(&Lineage::Ring) { timing.publish_period * 2 } else { timing.info_period * 2 };
    if odd && now.since(instance.role_since) > settings.down_after + timeout {
        return Some("calls itself a replica");
    }
    let loading = instance.loading_since(link);
    let too_long = |since: Instant| now.since(since) > settings.reboot_down_after;
    (is_master && loading.is_some_and(too_long)).then_some("takes too long to load its data")
}

fn link_cause(now: Instant, link: &Link, settings: &MasterSettings) -> Option<&'static str> {
    let refused =
        |since: Instant| !settings.refused_after.is_zero() && now.since(since) >= settings.refused_after;
    if link.refused.is_some_and(refused) {
        return Some("refuses connections");
    }
    if link.empty {
        return Some("came back without its data");
    }
    (link.silent_for(now) > settings.down_after).then_some("is silent")
}

/// Returns whether an instance that is down stays down: only a correct answer that arrives after `since` ends the
/// state.
fn stays_down(since: Instant, link: &Link) -> bool {
    link.last_good < since
}

impl Master {
    /// Updates which instances are subjectively down, and whether the master is objectively down.
    pub(crate) fn update_health(&mut self, cx: &mut Context<'_>) {
        if cx.shared.tilt.is_some() {
            return;
        }
        self.update_instance_health(cx, None);
        let replicas: Vec<Addr> = self.replicas.keys().cloned().collect();
        for addr in &replicas {
            self.update_instance_health(cx, Some(addr));
        }
        let changed = |peer: &&Peer| self.is_peer_down(cx, peer) != peer.sdown().is_some();
        let peers: Vec<RunId> =
            self.sentinels.iter().filter(changed).map(|peer| peer.run_id().clone()).collect();
        for run_id in &peers {
            self.toggle_peer_down(cx, run_id);
        }
        self.count_votes(cx);
    }

    fn update_instance_health(&mut self, cx: &mut Context<'_>, addr: Option<&Addr>) {
        let now = cx.now;
        let instance = addr.map_or(&self.myself, |addr| &self.replicas[addr]);
        let link = cx.shared.links.at(instance.command);
        let lineage = addr.is_none().then(|| self.lineage(cx));
        let cause = cause(now, instance, lineage.as_ref(), link, &self.settings, &cx.shared.timing);
        let down = cause.is_some() || instance.sdown.is_some_and(|since| stays_down(since, link));
        let busy = link.busy;
        let was = instance.sdown.is_some();
        let kill = busy && was && !instance.script_kill_sent;
        let command = instance.command;
        let instance = match addr {
            None => &mut self.myself,
            Some(addr) => self.replicas.get_mut(addr).expect("just read"),
        };
        match (was, down) {
            (false, true) => {
                instance.sdown = Some(now);
                self.announce_at(cx, EventLevel::Warning, "+sdown", addr, "");
                if addr.is_none() {
                    self.note(cx, format!("suspected: {}", cause.unwrap_or("is silent")));
                    // The offsets of the replicas are needed soon, to select the one to promote.
                    self.ask_all_replicas(cx);
                }
            }
            (true, false) => {
                instance.sdown = None;
                instance.script_kill_sent = false;
                self.announce_at(cx, EventLevel::Warning, "-sdown", addr, "");
                if addr.is_none() && !self.failovers.is_running() {
                    cx.shared.recorder.end(now, &self.name, FailoverOutcome::CameBack, "the master is back");
                }
            }
            (true, true) if kill => {
                instance.script_kill_sent = true;
                let script = self.settings.command("SCRIPT").to_owned();
                cx.send(command, PendingReply::Plain, &[&script, "KILL"]);
            }
            _ => {}
        }
    }

    fn is_peer_down(&self, cx: &Context<'_>, peer: &Peer) -> bool {
        let Some(link) = peer.link().map(|link| cx.shared.links.at(link)) else { return true };
        debug_assert_eq!(link.kind, LinkKind::Command);
        link_cause(cx.now, link, &self.settings).is_some()
            || peer.sdown().is_some_and(|since| stays_down(since, link))
    }

    /// Toggles the subjectively-down state of another sentinel.
    fn toggle_peer_down(&mut self, cx: &mut Context<'_>, run_id: &RunId) {
        let Some(peer) = self.sentinels.get_mut(run_id) else { return };
        peer.toggle_down(cx.now);
        let Some(peer) = self.sentinels.get(run_id) else { return };
        let event = if peer.sdown().is_some() { "+sdown" } else { "-sdown" };
        self.announce_peer(cx, EventLevel::Warning, event, peer, "");
    }

    /// When the silence of the master will be long enough to count as down; `None` while it answers.
    pub(crate) fn silence_ends(&self, cx: &Context<'_>) -> Option<Instant> {
        let since = cx.shared.links.at(self.myself.command).silent_since()?;
        self.myself.sdown.is_none().then(|| since + self.settings.down_after + Duration::from_millis(1))
    }

    /// Updates the objectively-down state after any change.
    pub(crate) fn count_votes(&mut self, cx: &mut Context<'_>) {
        let stale = cx.shared.timing.ask_period * 5;
        let others = self.sentinels.count_down_reports(cx.now, stale);
        let votes = others + usize::from(self.myself.sdown.is_some());
        let quorum = self.settings.quorum as usize;
        let down = self.myself.sdown.is_some() && votes >= quorum;
        match (self.odown.is_some(), down) {
            (false, true) => {
                self.odown = Some(cx.now);
                self.announce(cx, EventLevel::Warning, "+odown", &format!(" #quorum {votes}/{quorum}"));
                self.note(cx, format!("agreed to be down by {votes} sentinels, the quorum is {quorum}"));
            }
            (true, false) => {
                self.odown = None;
                self.announce(cx, EventLevel::Warning, "-odown", "");
            }
            _ => {}
        }
    }

    /// Returns whether an instance is up, its link is up, and it has been silent for less than `time`.
    pub(crate) fn is_healthy_for(&self, cx: &Context<'_>, instance: &Instance, time: Duration) -> bool {
        let link = cx.shared.links.at(instance.command);
        instance.sdown.is_none() && link.is_up() && link.silent_for(cx.now) < time
    }
}
