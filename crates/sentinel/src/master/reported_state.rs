//! The state that a monitored server reports in INFO.

use std::time::Duration;

use clock::Instant;

use crate::addr::Addr;
use crate::info::{InfoReport, Role};
use crate::master::foreign_servers::ReplicationHistory;

/// The priority of a replica that has not reported one.
const DEFAULT_PRIORITY: u32 = 100;

#[derive(Debug, Clone)]
pub(crate) struct ReportedState {
    /// When the last INFO reply arrived; `None` if there was none.
    received_at: Option<Instant>,
    text: String,
    /// The run id; empty if it is unknown.
    run_id: String,
    /// The reported role or, before the first report, the expected one.
    role: Role,
    role_since: Instant,
    history: ReplicationHistory,
    /// The fields that the server last reported as a replica.
    replica: ReplicaReport,
}

/// The fields of INFO about the replication of a replica.
#[derive(Debug, Clone)]
struct ReplicaReport {
    master: Option<Addr>,
    /// When the reported role or master last changed.
    master_since: Instant,
    link_up: bool,
    link_down_for: Duration,
    priority: u32,
    offset: u64,
    is_announced: bool,
}

/// The changes in an INFO reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportChange {
    /// The server has another run id, so it was restarted.
    pub(crate) is_restarted: bool,
    /// The new role; `None` if it has not changed.
    pub(crate) new_role: Option<Role>,
}

impl ReportedState {
    pub(crate) fn new(now: Instant, role: Role) -> Self {
        Self {
            received_at: None,
            text: String::new(),
            run_id: String::new(),
            role,
            role_since: now,
            history: ReplicationHistory::default(),
            replica: ReplicaReport {
                master: None,
                master_since: now,
                link_up: false,
                link_down_for: Duration::ZERO,
                priority: DEFAULT_PRIORITY,
                offset: 0,
                is_announced: true,
            },
        }
    }

    /// Stores an INFO reply and its parsed content.
    pub(crate) fn adopt(&mut self, now: Instant, report: &InfoReport, text: String) -> ReportChange {
        self.received_at = Some(now);
        self.text = text;
        let mut is_restarted = false;
        if let Some(run_id) = &report.run_id {
            is_restarted = !self.run_id.is_empty() && self.run_id != *run_id;
            self.run_id.clone_from(run_id);
        }
        self.history = ReplicationHistory {
            ids: report.replication_ids.clone(),
            has_keys: report.has_keys,
            replicas: report.replicas.clone(),
        };
        let new_role = report.role.filter(|role| *role != self.role);
        if let Some(role) = new_role {
            self.role = role;
            self.role_since = now;
            self.replica.master_since = now;
        }
        if self.role == Role::Replica {
            self.replica.adopt(now, report);
        }
        ReportChange { is_restarted, new_role }
    }

    /// When the last INFO reply arrived; `None` if there was none.
    pub(crate) fn received_at(&self) -> Option<Instant> {
        self.received_at
    }

    /// Whether an INFO reply arrived less than `limit` ago.
    pub(crate) fn is_recent(&self, now: Instant, limit: Duration) -> bool {
        self.received_at.is_some_and(|at| now.since(at) < limit)
    }

    /// The last INFO reply.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The run id; empty if it is unknown.
    pub(crate) fn run_id(&self) -> &str {
        &self.run_id
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Since when the server has reported its role.
    pub(crate) fn role_since(&self) -> Instant {
        self.role_since
    }

    pub(crate) fn history(&self) -> &ReplicationHistory {
        &self.history
    }

    /// The master that the server last reported as a replica.
    pub(crate) fn master(&self) -> Option<&Addr> {
        self.replica.master.as_ref()
    }

    /// When the reported role or master last changed.
    pub(crate) fn master_since(&self) -> Instant {
        self.replica.master_since
    }

    pub(crate) fn is_master_link_up(&self) -> bool {
        self.replica.link_up
    }

    /// How long the replica has been disconnected from its master.
    pub(crate) fn master_link_down_for(&self) -> Duration {
        self.replica.link_down_for
    }

    /// The priority for the selection of a new master, where 0 means never and a lower value is better.
    pub(crate) fn priority(&self) -> u32 {
        self.replica.priority
    }

    pub(crate) fn offset(&self) -> u64 {
        self.replica.offset
    }

    /// Whether clients may be told about the replica.
    pub(crate) fn is_announced(&self) -> bool {
        self.replica.is_announced
    }
}

impl ReplicaReport {
    fn adopt(&mut self, now: Instant, report: &InfoReport) {
        let master = report.master_host.as_deref().zip(report.master_port);
        let master = master.map(|(host, port)| Addr::new(host, port));
        if self.master != master {
            self.master = master;
            self.master_since = now;
        }
        self.link_up = report.is_link_up.unwrap_or(false);
        self.link_down_for = Duration::from_secs(report.link_down_secs.unwrap_or(0));
        self.priority = report.priority.unwrap_or(self.priority);
        self.offset = report.offset.unwrap_or(self.offset);
        self.is_announced = report.is_announced.unwrap_or(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(1000);
    const LATER: Instant = Instant::from_millis(2000);

    fn replica_of(host: &str) -> InfoReport {
        InfoReport {
            role: Some(Role::Replica),
            master_host: Some(host.into()),
            master_port: Some(6379),
            is_link_up: Some(true),
            offset: Some(7),
            ..InfoReport::default()
        }
    }

    #[test]
    fn new_master_of_a_replica_restarts_its_time() {
        let mut state = ReportedState::new(NOW, Role::Replica);
        state.adopt(NOW, &replica_of("a"), String::new());
        state.adopt(LATER, &replica_of("a"), String::new());
        assert_eq!((state.master_since(), state.offset()), (NOW, 7));
        state.adopt(LATER, &replica_of("b"), String::new());
        assert_eq!((state.master(), state.master_since()), (Some(&Addr::new("b", 6379)), LATER));
        assert_eq!(state.role_since(), NOW);
    }

    #[test]
    fn changed_role_is_reported_once() {
        let mut state = ReportedState::new(NOW, Role::Master);
        let changed = ReportChange { is_restarted: false, new_role: Some(Role::Replica) };
        assert_eq!(state.adopt(LATER, &replica_of("a"), String::new()), changed);
        assert_eq!((state.role(), state.role_since()), (Role::Replica, LATER));
        let unchanged = ReportChange { is_restarted: false, new_role: None };
        assert_eq!(state.adopt(LATER, &replica_of("a"), String::new()), unchanged);
    }

    #[test]
    fn other_run_id_means_a_restart() {
        let mut state = ReportedState::new(NOW, Role::Master);
        let with_id = |id: &str| InfoReport { run_id: Some(id.into()), ..InfoReport::default() };
        assert!(!state.adopt(NOW, &with_id("a"), String::new()).is_restarted, "the first run id");
        assert!(!state.adopt(NOW, &with_id("a"), String::new()).is_restarted);
        assert!(!state.adopt(NOW, &InfoReport::default(), String::new()).is_restarted);
        assert!(state.adopt(NOW, &with_id("b"), String::new()).is_restarted);
    }
}
