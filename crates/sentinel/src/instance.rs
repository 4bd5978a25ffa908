//! The state of a monitored server.

use std::time::Duration;

use clock::Instant;

use crate::addr::Addr;
use crate::foreign::{ForeignReason, ReplicationHistory};
use crate::info::Role;
use crate::link::{Link, LinkId, LinkKind, LinkOwner};
use crate::settings::MasterSettings;
use crate::shared::Context;
use crate::transactions::REFUSAL_LIFETIME;

/// The progress of a replica's reconfiguration to a new master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReconfigurationState {
    None,
    /// The command to follow the new master was sent.
    Sent,
    /// The replica reports the new master and is synchronizing.
    InProgress,
    Done,
    /// The replica refused to follow the new master; it will be repaired later like any replica with the wrong master.
    Refused,
}

/// The state of a monitored server, a master or a replica.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    pub(crate) addr: Addr,
    pub(crate) run_id: String,
    pub(crate) command: LinkId,
    pub(crate) hello: LinkId,
    /// When the instance became subjectively down; `None` while it is up.
    pub(crate) sdown: Option<Instant>,
    pub(crate) published: Option<Instant>,
    pub(crate) info_asked: Option<Instant>,
    /// When the last INFO reply arrived.
    pub(crate) info_at: Option<Instant>,
    pub(crate) info: String,
    /// The role in the last INFO or ROLE reply, and since when the instance has reported it.
    pub(crate) role: Role,
    pub(crate) role_since: Instant,
    /// The master that the instance reports, since when, and the state of that replication link.
    pub(crate) master: Option<Addr>,
    pub(crate) master_since: Instant,
    pub(crate) master_link_up: bool,
    pub(crate) master_link_down: Duration,
    pub(crate) priority: u32,
    pub(crate) offset: u64,
    pub(crate) announced: bool,
    pub(crate) reconf: ReconfigurationState,
    pub(crate) reconf_since: Instant,
    /// When a restart of the instance was detected, if `master-reboot-down-after-period` applies.
    pub(crate) rebooted: Option<Instant>,
    pub(crate) script_kill_sent: bool,
    /// The replication history in the last INFO reply.
    pub(crate) history: ReplicationHistory,
    /// Why the server is not treated as a replica of this group; `None` if it is one.
    pub(crate) foreign: Option<ForeignReason>,
    /// When the instance last refused to become a replica or a master.
    pub(crate) refused: Option<Instant>,
    /// When the instance was last sent a new master to repair its configuration.
    pub(crate) repaired: Option<Instant>,
}

impl Instance {
    pub(crate) fn new(cx: &mut Context<'_>, addr: &Addr, role: Role, settings: &MasterSettings) -> Self {
        let now = cx.now;
        let signed = (settings.auth_user.as_str(), settings.auth_pass.as_str());
        let mut acquire = |kind| cx.shared.links.acquire(now, addr, kind, LinkOwner::Data, signed);
        Self {
            addr: addr.clone(),
            run_id: String::new(),
            command: acquire(LinkKind::Command),
            hello: acquire(LinkKind::Hello),
            sdown: None,
            published: None,
            info_asked: None,
            info_at: None,
            info: String::new(),
            role,
            role_since: now,
            master: None,
            master_since: now,
            master_link_up: false,
            master_link_down: Duration::ZERO,
            priority: 100,
            offset: 0,
            announced: true,
            reconf: ReconfigurationState::None,
            reconf_since: now,
            rebooted: None,
            script_kill_sent: false,
            history: ReplicationHistory::default(),
            foreign: None,
            refused: None,
            repaired: None,
        }
    }

    /// Returns whether the instance refused a command so recently that it would refuse again.
    pub(crate) fn has_recently_refused(&self, now: Instant) -> bool {
        self.refused.is_some_and(|at| now.since(at) < REFUSAL_LIFETIME)
    }

    /// Returns since when the instance has been loading its data after a restart.
    pub(crate) fn loading_since(&self, link: &Link) -> Option<Instant> {
        self.rebooted.filter(|at| link.last_ready < *at)
    }

    /// Whether an INFO reply arrived within `limit`.
    pub(crate) fn has_recent_info(&self, now: Instant, limit: Duration) -> bool {
        self.info_at.is_some_and(|at| now.since(at) < limit)
    }
}
