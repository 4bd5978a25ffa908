//! Why a server counts as down, and whether enough sentinels agree that the master is down.
//!
//! **Subjectively down** is an instance that has not answered a PING correctly for `down-after-milliseconds`, whose
//! port has refused connections for `refused-after-milliseconds` after an established link broke (the host is up, but
//! the process is gone), that reports that it restarted without its data, that should be a master and keeps reporting
//! the replica role, or that restarted and takes longer than `master-reboot-down-after-period` to load its data.
//!
//! **Objectively down** is a master that `quorum` sentinels, including this one, consider down.

use clock::Instant;

use crate::info::Role;
use crate::link::Link;
use crate::master::handover::Lineage;
use crate::master::instance::Instance;
use crate::settings::{MasterSettings, Timing};

/// Returns why an instance counts as down, or `None` if it is up. `lineage` is given for a master, which also counts as
/// down if it has become a replica or takes too long to load its data.
pub(crate) fn find_down_cause(
    now: Instant,
    instance: &Instance,
    lineage: Option<&Lineage>,
    link: &Link,
    settings: &MasterSettings,
    timing: &Timing,
) -> Option<&'static str> {
    if let Some(cause) = find_link_down_cause(now, link, settings) {
        return Some(cause);
    }
    let is_master = lineage.is_some();
    let is_demoted = is_master && instance.reported().role() == Role::Replica;
    // In a replication ring no server is a master, so the time for a handover is not granted.
    let timeout =
        if lineage == Some(&Lineage::Ring) { timing.publish_period * 2 } else { timing.info_period * 2 };
    if is_demoted && now.since(instance.reported().role_since()) > settings.down_after + timeout {
        return Some("calls itself a replica");
    }
    let loading = instance.loading_since(link);
    let too_long = |since: Instant| now.since(since) > settings.reboot_down_after;
    (is_master && loading.is_some_and(too_long)).then_some("takes too long to load its data")
}

/// Returns why the server or sentinel at the other end of a command link counts as down, or `None` if it is up.
pub(crate) fn find_link_down_cause(
    now: Instant,
    link: &Link,
    settings: &MasterSettings,
) -> Option<&'static str> {
    let refused =
        |since: Instant| !settings.refused_after.is_zero() && now.since(since) >= settings.refused_after;
    if link.refused_since.is_some_and(refused) {
        return Some("refuses connections");
    }
    if link.reports_no_data {
        return Some("came back without its data");
    }
    (link.silent_for(now) > settings.down_after).then_some("is silent")
}

/// The sentinels' votes on whether a master is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DownVotes {
    /// Whether this sentinel considers the master down. Otherwise the other votes do not count.
    pub(crate) is_suspected: bool,
    pub(crate) other_votes: usize,
    pub(crate) quorum: usize,
}

impl DownVotes {
    /// The number of sentinels that consider the master down.
    pub(crate) fn count(self) -> usize {
        self.other_votes + usize::from(self.is_suspected)
    }

    fn reach_quorum(self) -> bool {
        self.is_suspected && self.count() >= self.quorum
    }
}

/// Whether a master is objectively down.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailureDetector {
    odown: Option<Instant>,
}

impl FailureDetector {
    /// When the master became objectively down; `None` while it is not.
    pub(crate) fn odown(&self) -> Option<Instant> {
        self.odown
    }

    pub(crate) fn is_objectively_down(&self) -> bool {
        self.odown.is_some()
    }

    /// Updates the state from the votes. Returns whether the master is objectively down if that has changed.
    pub(crate) fn update(&mut self, now: Instant, votes: DownVotes) -> Option<bool> {
        let is_down = votes.reach_quorum();
        if is_down == self.is_objectively_down() {
            return None;
        }
        self.odown = is_down.then_some(now);
        Some(is_down)
    }

    /// Forgets the state, because another server has become the master.
    pub(crate) fn reset(&mut self) {
        self.odown = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::addr::Addr;
    use crate::info::InfoReport;
    use crate::link::{LinkKind, LinkPeer, Links, Login};

    const NOW: Instant = Instant::from_millis(100_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn settings() -> MasterSettings {
        let mut settings = MasterSettings::new(2);
        settings.down_after = SECOND * 5;
        settings.refused_after = SECOND;
        settings.reboot_down_after = SECOND * 3;
        settings
    }

    fn master() -> (Link, Instance) {
        let (mut links, addr) = (Links::default(), Addr::new("10.0.0.1", 6379));
        let kinds = [LinkKind::Command, LinkKind::Hello];
        let ids = kinds.map(|kind| links.acquire(NOW, &addr, kind, LinkPeer::Server, Login::default()));
        let link = links.find(ids[0]).unwrap();
        link.on_up(NOW, "10.0.0.9".into());
        (link.clone(), Instance::with_links(NOW, &addr, Role::Master, ids))
    }

    fn cause(now: Instant, instance: &Instance, lineage: &Lineage, link: &Link) -> Option<&'static str> {
        find_down_cause(now, instance, Some(lineage), link, &settings(), &Timing::default())
    }

    #[test]
    fn silence_and_refusals_have_limits_of_their_own() {
        let (mut link, _) = master();
        assert_eq!(find_link_down_cause(NOW + SECOND * 60, &link, &settings()), None, "nothing was asked");
        link.unanswered_since = Some(NOW);
        assert_eq!(find_link_down_cause(NOW + SECOND * 5, &link, &settings()), None);
        assert_eq!(find_link_down_cause(NOW + SECOND * 6, &link, &settings()), Some("is silent"));
        link.refused_since = Some(NOW);
        assert_eq!(find_link_down_cause(NOW + SECOND, &link, &settings()), Some("refuses connections"));
        let mut patient = settings();
        patient.refused_after = Duration::ZERO;
        assert_eq!(find_link_down_cause(NOW + SECOND, &link, &patient), None, "0 turns it off");
    }

    #[test]
    fn demoted_master_is_down_sooner_if_servers_follow_each_other() {
        let (link, mut master) = master();
        let report = InfoReport { role: Some(Role::Replica), ..InfoReport::default() };
        master.on_report(NOW, &report, String::new());
        let timing = Timing::default();
        let in_ring = NOW + settings().down_after + timing.publish_period * 2 + SECOND;
        let otherwise = NOW + settings().down_after + timing.info_period * 2 + SECOND;
        assert_eq!(cause(in_ring, &master, &Lineage::Unclear, &link), None);
        assert_eq!(cause(in_ring, &master, &Lineage::Ring, &link), Some("calls itself a replica"));
        assert_eq!(cause(otherwise, &master, &Lineage::Unclear, &link), Some("calls itself a replica"));
        assert_eq!(find_down_cause(otherwise, &master, None, &link, &settings(), &timing), None, "a replica");
    }

    #[test]
    fn restarted_master_may_load_for_a_limited_time() {
        let (mut link, mut master) = master();
        let restarted = NOW + SECOND;
        master.set_rebooted(restarted);
        assert_eq!(cause(restarted + SECOND * 3, &master, &Lineage::Unclear, &link), None);
        let late = restarted + SECOND * 4;
        assert_eq!(cause(late, &master, &Lineage::Unclear, &link), Some("takes too long to load its data"));
        link.last_ready_reply = restarted;
        assert_eq!(cause(late, &master, &Lineage::Unclear, &link), None);
    }

    #[test]
    fn quorum_counts_only_with_the_own_vote() {
        let mut detector = FailureDetector::default();
        let votes = |is_suspected, other_votes| DownVotes { is_suspected, other_votes, quorum: 2 };
        assert_eq!(detector.update(NOW, votes(true, 0)), None);
        assert_eq!(detector.update(NOW, votes(false, 2)), None);
        assert_eq!(detector.update(NOW, votes(true, 1)), Some(true));
        assert_eq!(detector.odown(), Some(NOW));
        assert_eq!(detector.update(NOW + SECOND, votes(true, 2)), None);
        assert_eq!(detector.odown(), Some(NOW), "the time of the first change");
        assert_eq!(detector.update(NOW + SECOND, votes(true, 0)), Some(false));
    }
}
