//! A monitored server: the master or one of its replicas.

use std::time::Duration;

use clock::Instant;

use crate::addr::Addr;
use crate::info::{InfoReport, Role};
use crate::link::{Link, LinkId, LinkKind, LinkPeer, Login};
use crate::master::foreign_servers::ForeignReason;
use crate::master::reported_state::{ReportChange, ReportedState};
use crate::master::transactions::REFUSAL_LIFETIME;
use crate::settings::MasterSettings;
use crate::shared::Context;

/// The progress of a replica's reconfiguration to a new master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReconfigurationState {
    None,
    /// The command to follow the new master was sent.
    Sent,
    /// The replica reports the new master and is synchronizing.
    InProgress,
    Done,
    /// The replica refused to follow the new master. It is repaired later, like any replica with the wrong master.
    Refused,
}

impl ReconfigurationState {
    /// Whether the replica has been sent the command but is not in sync with the new master yet.
    pub(crate) fn is_running(self) -> bool {
        matches!(self, Self::Sent | Self::InProgress)
    }

    /// Whether the failover no longer waits for the replica.
    pub(crate) fn has_ended(self) -> bool {
        matches!(self, Self::Done | Self::Refused)
    }
}

/// The progress of commands that change the server's role or master.
#[derive(Debug, Clone)]
struct Reconfiguration {
    state: ReconfigurationState,
    state_since: Instant,
    /// When the server last refused to become a replica or a master.
    refused_at: Option<Instant>,
    /// When the server was last sent a new master to repair its configuration.
    repaired_at: Option<Instant>,
}

/// How the subjectively-down state of a server has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthChange {
    Unchanged,
    WentDown,
    CameBack,
    /// The server is down because a script blocks it, and the script has not been killed yet.
    IsBlockedByScript,
}

#[derive(Debug, Clone)]
struct Health {
    /// When the server became subjectively down; `None` while it is up.
    sdown: Option<Instant>,
    is_script_kill_sent: bool,
    /// When a restart of the server was detected, if `master-reboot-down-after-period` applies.
    rebooted_at: Option<Instant>,
}

/// The state of a monitored server, a master or a replica.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    addr: Addr,
    command_link: LinkId,
    hello_link: LinkId,
    health: Health,
    reported: ReportedState,
    reconfiguration: Reconfiguration,
    /// Why the server is not treated as a replica of this group; `None` if it is one.
    foreign: Option<ForeignReason>,
    /// When the server was last sent a hello message; `None` if one is due now.
    hello_sent_at: Option<Instant>,
    info_requested_at: Option<Instant>,
}

impl Instance {
    pub(crate) fn new(cx: &mut Context<'_>, addr: &Addr, role: Role, settings: &MasterSettings) -> Self {
        let now = cx.now;
        let login = Login { user: &settings.auth_user, password: &settings.auth_pass };
        let mut acquire = |kind| cx.shared.links.acquire(now, addr, kind, LinkPeer::Server, login);
        let links = [acquire(LinkKind::Command), acquire(LinkKind::Hello)];
        Self::with_links(now, addr, role, links)
    }

    /// Creates an instance with its command link and its hello link.
    pub(crate) fn with_links(now: Instant, addr: &Addr, role: Role, links: [LinkId; 2]) -> Self {
        let [command_link, hello_link] = links;
        Self {
            addr: addr.clone(),
            command_link,
            hello_link,
            health: Health { sdown: None, is_script_kill_sent: false, rebooted_at: None },
            reported: ReportedState::new(now, role),
            reconfiguration: Reconfiguration {
                state: ReconfigurationState::None,
                state_since: now,
                refused_at: None,
                repaired_at: None,
            },
            foreign: None,
            hello_sent_at: None,
            info_requested_at: None,
        }
    }

    pub(crate) fn addr(&self) -> &Addr {
        &self.addr
    }

    pub(crate) fn command_link(&self) -> LinkId {
        self.command_link
    }

    pub(crate) fn hello_link(&self) -> LinkId {
        self.hello_link
    }

    pub(crate) fn links(&self) -> [LinkId; 2] {
        [self.command_link, self.hello_link]
    }

    /// What the server reports in INFO.
    pub(crate) fn reported(&self) -> &ReportedState {
        &self.reported
    }

    /// Stores an INFO reply and its parsed content.
    pub(crate) fn on_report(&mut self, now: Instant, report: &InfoReport, text: String) -> ReportChange {
        self.reported.adopt(now, report, text)
    }

    /// Whether the server reports the replica role and a master for which `is_master` holds.
    pub(crate) fn follows(&self, is_master: impl Fn(&Addr) -> bool) -> bool {
        self.reported.role() == Role::Replica && self.reported.master().is_some_and(is_master)
    }

    /// When the server became subjectively down; `None` while it is up.
    pub(crate) fn sdown(&self) -> Option<Instant> {
        self.health.sdown
    }

    pub(crate) fn is_script_kill_sent(&self) -> bool {
        self.health.is_script_kill_sent
    }

    /// Updates the subjectively-down state. `is_suspected` means that there is a reason to consider the server down. A
    /// server that is down stays down until it answers correctly.
    pub(crate) fn update_health(&mut self, now: Instant, is_suspected: bool, link: &Link) -> HealthChange {
        let is_down = is_suspected || self.health.sdown.is_some_and(|since| link.last_correct_reply < since);
        match (self.health.sdown.is_some(), is_down) {
            (false, true) => {
                self.health.sdown = Some(now);
                HealthChange::WentDown
            }
            (true, false) => {
                self.health.sdown = None;
                self.health.is_script_kill_sent = false;
                HealthChange::CameBack
            }
            (true, true) if link.is_busy && !self.health.is_script_kill_sent => {
                self.health.is_script_kill_sent = true;
                HealthChange::IsBlockedByScript
            }
            _ => HealthChange::Unchanged,
        }
    }

    /// Returns whether the server is up, its link is up, and it has been silent for less than `time`.
    pub(crate) fn is_healthy_for(&self, now: Instant, link: &Link, time: Duration) -> bool {
        self.health.sdown.is_none() && link.is_up() && link.silent_for(now) < time
    }

    /// Records a restart of the server, which limits the time for loading its data.
    pub(crate) fn set_rebooted(&mut self, now: Instant) {
        self.health.rebooted_at = Some(now);
    }

    /// Returns since when the server has been loading its data after a restart.
    pub(crate) fn loading_since(&self, link: &Link) -> Option<Instant> {
        self.health.rebooted_at.filter(|at| link.last_ready_reply < *at)
    }

    pub(crate) fn reconfiguration(&self) -> ReconfigurationState {
        self.reconfiguration.state
    }

    /// When the reconfiguration entered its current state.
    pub(crate) fn reconfiguration_since(&self) -> Instant {
        self.reconfiguration.state_since
    }

    pub(crate) fn set_reconfiguration(&mut self, now: Instant, state: ReconfigurationState) {
        self.reconfiguration.state = state;
        self.reconfiguration.state_since = now;
    }

    pub(crate) fn set_refused(&mut self, now: Instant) {
        self.reconfiguration.refused_at = Some(now);
    }

    /// Returns whether the server refused a command so recently that it would refuse again.
    pub(crate) fn has_recently_refused(&self, now: Instant) -> bool {
        self.reconfiguration.refused_at.is_some_and(|at| now.since(at) < REFUSAL_LIFETIME)
    }

    pub(crate) fn set_repaired(&mut self, now: Instant) {
        self.reconfiguration.repaired_at = Some(now);
    }

    /// Returns whether the last repair is longer ago than `interval`.
    pub(crate) fn is_repair_due(&self, now: Instant, interval: Duration) -> bool {
        self.reconfiguration.repaired_at.is_none_or(|at| now.since(at) > interval)
    }

    /// Why the server is not treated as a replica of this group; `None` if it is one.
    pub(crate) fn foreign(&self) -> Option<&ForeignReason> {
        self.foreign.as_ref()
    }

    /// Sets why the server is not treated as a replica of this group. Returns whether this has changed.
    pub(crate) fn set_foreign(&mut self, foreign: Option<ForeignReason>) -> bool {
        let has_changed = self.foreign != foreign;
        self.foreign = foreign;
        has_changed
    }

    /// When the server was last sent a hello message; `None` if one is due now.
    pub(crate) fn hello_sent_at(&self) -> Option<Instant> {
        self.hello_sent_at
    }

    pub(crate) fn set_hello_sent_at(&mut self, at: Option<Instant>) {
        self.hello_sent_at = at;
    }

    /// When INFO was last sent; `None` if it is due now.
    pub(crate) fn info_requested_at(&self) -> Option<Instant> {
        self.info_requested_at
    }

    pub(crate) fn set_info_requested_at(&mut self, now: Instant) {
        self.info_requested_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Links;

    const NOW: Instant = Instant::from_millis(10_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn instance() -> (Links, Instance) {
        let (mut links, addr) = (Links::default(), Addr::new("10.0.0.1", 6379));
        let kinds = [LinkKind::Command, LinkKind::Hello];
        let ids = kinds.map(|kind| links.acquire(NOW, &addr, kind, LinkPeer::Server, Login::default()));
        (links, Instance::with_links(NOW, &addr, Role::Master, ids))
    }

    #[test]
    fn only_a_later_answer_ends_the_down_state() {
        let (mut links, mut instance) = instance();
        let link = links.find(instance.command_link()).unwrap();
        let down_at = NOW + SECOND;
        assert_eq!(instance.update_health(NOW, false, link), HealthChange::Unchanged);
        assert_eq!(instance.update_health(down_at, true, link), HealthChange::WentDown);
        assert_eq!(instance.sdown(), Some(down_at));
        assert_eq!(instance.update_health(down_at + SECOND, false, link), HealthChange::Unchanged);
        link.last_correct_reply = down_at + SECOND;
        assert_eq!(instance.update_health(down_at + SECOND, false, link), HealthChange::CameBack);
        assert_eq!(instance.sdown(), None);
    }

    #[test]
    fn script_that_blocks_a_server_is_killed_once_per_failure() {
        let (mut links, mut instance) = instance();
        let link = links.find(instance.command_link()).unwrap();
        link.is_busy = true;
        assert_eq!(instance.update_health(NOW, true, link), HealthChange::WentDown);
        assert_eq!(instance.update_health(NOW, true, link), HealthChange::IsBlockedByScript);
        assert_eq!(instance.update_health(NOW, true, link), HealthChange::Unchanged);
        link.last_correct_reply = NOW;
        assert_eq!(instance.update_health(NOW, false, link), HealthChange::CameBack);
        assert!(!instance.is_script_kill_sent());
    }

    #[test]
    fn refusals_and_repairs_expire() {
        let (_, mut instance) = instance();
        assert!(!instance.has_recently_refused(NOW) && instance.is_repair_due(NOW, SECOND));
        instance.set_refused(NOW);
        instance.set_repaired(NOW);
        assert!(instance.has_recently_refused(NOW + SECOND));
        assert!(!instance.has_recently_refused(NOW + REFUSAL_LIFETIME));
        assert!(!instance.is_repair_due(NOW + SECOND, SECOND));
        assert!(instance.is_repair_due(NOW + SECOND * 2, SECOND));
    }
}
