//! State shared by all masters, and the context through which they emit actions.

use std::collections::BTreeMap;
use std::time::Duration;

use clock::Instant;
use consensus::{GroupRecord, PeerId};
use rand_chacha::ChaCha8Rng;

use crate::addr::{Addr, RunId};
use crate::event::{EventLevel, EventSubject};
use crate::failover_log::FailoverRecorder;
use crate::link::{
    ConnectDecision, LinkId, LinkKind, LinkPeer, Links, Login, MAX_PENDING_REPLIES, PendingReply,
};
use crate::machine::SentinelAction;
use crate::scheduler::Scheduler;
use crate::script::Scripts;
use crate::settings::{GlobalSettings, Timing};
use crate::writes::{Condition, JournalRecord, StepOutput};

/// Maximum delay before a changed configuration is written. It does not apply to votes, which are in the journal, and
/// to switches.
const WRITE_DELAY: Duration = Duration::from_millis(100);

/// Whether the configuration file is outdated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfigChange {
    None,
    /// The file has been outdated since this time. It is written after a delay.
    Since(Instant),
    /// The file is written at the end of the step.
    Urgent,
    /// The last write has failed. It is repeated at this time.
    RetryAt(Instant),
}

impl ConfigChange {
    pub(crate) fn is_due(self, now: Instant) -> bool {
        match self {
            Self::None => false,
            Self::Since(since) => now.since(since) >= WRITE_DELAY,
            Self::Urgent => true,
            Self::RetryAt(retry_at) => now >= retry_at,
        }
    }
}

pub(crate) struct SharedState {
    pub(crate) my_id: RunId,
    pub(crate) global: GlobalSettings,
    /// The highest epoch that this sentinel has seen for any master.
    pub(crate) epoch: u64,
    pub(crate) links: Links,
    /// Whether links may have become unused and must be checked in this step.
    pub(crate) links_changed: bool,
    pub(crate) scheduler: Scheduler,
    pub(crate) timing: Timing,
    /// When the sentinel entered TILT mode; `None` outside of TILT mode.
    pub(crate) tilt_since: Option<Instant>,
    /// Number of times that TILT mode was entered.
    pub(crate) tilt_count: u64,
    pub(crate) scripts: Scripts,
    pub(crate) recorder: FailoverRecorder,
    pub(crate) config_change: ConfigChange,
    /// Whether a switch is missing in the configuration file. False if writing it has failed, because nothing waits for
    /// a failed write.
    pub(crate) has_unsaved_switch: bool,
    /// Number of journal records since the start.
    pub(crate) journal_records: u64,
    /// Number of the newest journal record that is on disk, as are all earlier records.
    pub(crate) durable_record: u64,
    /// The IP addresses of resolved hostnames, by hostname.
    pub(crate) resolved_ips: BTreeMap<String, String>,
    pub(crate) crash_after_election: bool,
    pub(crate) crash_after_promotion: bool,
    pub(crate) rng: ChaCha8Rng,
}

impl SharedState {
    pub(crate) fn my_peer(&self) -> PeerId {
        self.my_id.peer()
    }

    /// The IP address of a host, or the hostname if it is not resolved.
    pub(crate) fn ip_of<'a>(&'a self, host: &'a str) -> &'a str {
        self.resolved_ips.get(host).map_or(host, String::as_str)
    }

    /// A host in the form shown to clients and in events.
    pub(crate) fn display_host<'a>(&'a self, host: &'a str) -> &'a str {
        if self.global.announce_hostnames { host } else { self.ip_of(host) }
    }

    pub(crate) fn same_addr(&self, a: &Addr, b: &Addr) -> bool {
        a.port == b.port && self.ip_of(&a.host) == self.ip_of(&b.host)
    }
}

/// The context of one step: the time, the shared state and the output so far.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) shared: &'a mut SharedState,
    pub(crate) out: &'a mut StepOutput,
}

impl Context<'_> {
    /// Adds a record to the journal. Returns its number, for actions that wait for it ([`Condition::Record`]).
    pub(crate) fn persist(&mut self, record: GroupRecord) -> u64 {
        self.shared.journal_records += 1;
        let number = self.shared.journal_records;
        self.out.records.push(JournalRecord { number, record });
        number
    }

    /// Publishes and logs an event. `script` is the notification script of the master.
    pub(crate) fn publish_event(
        &mut self,
        level: EventLevel,
        name: &str,
        payload: String,
        script: Option<&str>,
    ) {
        self.out.push(SentinelAction::Log { level, text: format!("{name} {payload}") });
        if let (EventLevel::Warning, Some(path)) = (level, script) {
            let argv = vec![path.to_owned(), name.to_owned(), payload.clone()];
            self.shared.scripts.queue(self.now, argv);
        }
        if level != EventLevel::Debug {
            self.out.push(SentinelAction::Publish { channel: name.to_owned(), payload });
        }
    }

    pub(crate) fn log(&mut self, level: EventLevel, text: String) {
        self.out.push(SentinelAction::Log { level, text });
    }

    pub(crate) fn event_subject(
        &self,
        kind: &'static str,
        name: &str,
        addr: &Addr,
        of: Option<(&str, &Addr)>,
    ) -> EventSubject {
        let shown = |host: &str| self.shared.display_host(host).to_owned();
        EventSubject {
            kind,
            name: name.to_owned(),
            ip: shown(&addr.host),
            port: addr.port,
            master: of.map(|(name, addr)| (name.to_owned(), shown(&addr.host), addr.port)),
        }
    }

    /// Sends a request on a command link. Returns false if the link is down or has too many pending replies.
    pub(crate) fn send(&mut self, link: LinkId, pending: PendingReply, request: &[&str]) -> bool {
        let request = request.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.send_after(Condition::Nothing, link, pending, request)
    }

    /// Sends a request once the condition is fulfilled. Returns false if the link is down or has too many pending
    /// replies.
    pub(crate) fn send_after(
        &mut self,
        condition: Condition,
        link: LinkId,
        pending: PendingReply,
        request: Vec<Vec<u8>>,
    ) -> bool {
        let Some(state) = self.shared.links.find(link) else { return false };
        if !state.is_up() || state.pending.len() >= MAX_PENDING_REPLIES {
            return false;
        }
        state.pending.push_back(pending);
        self.out.push_after(condition, SentinelAction::Send { link, request });
        true
    }

    /// Opens the link if it is down and a connection attempt is due.
    pub(crate) fn connect(&mut self, link: LinkId) {
        let now = self.now;
        let Some(state) = self.shared.links.find(link) else { return };
        match state.decide_connect(now) {
            ConnectDecision::Connect => {
                let (addr, kind) = (state.addr.clone(), state.kind);
                self.out.push(SentinelAction::Connect { link, addr, kind });
            }
            ConnectDecision::GiveUp => self.out.push(SentinelAction::Close(link)),
            ConnectDecision::Wait => {}
        }
    }

    /// Returns the link to another sentinel at this address; `None` for port 0, which means that the sentinel is
    /// unreachable.
    pub(crate) fn link_to_sentinel(&mut self, addr: &Addr) -> Option<LinkId> {
        let (user, pass) =
            (self.shared.global.sentinel_user.clone(), self.shared.global.sentinel_pass.clone());
        let login = Login { user: &user, password: &pass };
        let (now, links) = (self.now, &mut self.shared.links);
        self.shared.links_changed = true;
        (addr.port != 0).then(|| links.acquire(now, addr, LinkKind::Command, LinkPeer::Sentinel, login))
    }

    /// Closes a link, which is then opened again.
    pub(crate) fn reconnect(&mut self, link: LinkId) {
        let now = self.now;
        let Some(state) = self.shared.links.find(link) else { return };
        if state.is_up() {
            state.on_down(now, false);
            state.lost_at = None;
            self.out.push(SentinelAction::Close(link));
        }
    }

    /// Makes the step write the configuration file at its end, so that a crash does not undo a switch.
    pub(crate) fn require_config_write(&mut self) {
        self.shared.config_change = ConfigChange::Urgent;
        self.shared.has_unsaved_switch = true;
    }

    /// Notes that the configuration has changed, so that the file is written soon.
    pub(crate) fn record_config_change(&mut self) {
        if let ConfigChange::None | ConfigChange::RetryAt(_) = self.shared.config_change {
            self.shared.config_change = ConfigChange::Since(self.now);
        }
    }
}
