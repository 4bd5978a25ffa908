//! Connections to servers and other sentinels. The caller opens and closes them and passes received data on.
//!
//! Each server has a command link and a hello link, which is subscribed to hello messages. A sentinel has only a
//! command link. Links belong to addresses rather than masters: two sentinels that share five hundred masters need one
//! link.
//!
//! Two times distinguish a dead process from a slow one: since when a PING has been unanswered, and since when the port
//! has refused connections after the link broke.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use clock::Instant;
use resp::Value;

use crate::addr::{Addr, RunId};
use crate::master::foreign_servers::HelloClaim;
use crate::master::transactions::Transaction;
use crate::settings::Timing;

/// Maximum number of pending replies per link. Further requests are dropped.
pub(crate) const MAX_PENDING_REPLIES: usize = 100;
/// A connection attempt that takes longer than this counts as failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Retry interval of connection attempts right after a link was lost, and later.
const QUICK_RETRY_INTERVAL: Duration = Duration::from_millis(30);
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
const RECENT_LOSS: Duration = Duration::from_secs(1);

/// The id of a link. Ids are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// Whether a link carries requests or hello messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// The link carries requests and replies.
    Command,
    /// The link is subscribed to the hello channel and receives only its messages.
    Hello,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LinkPeer {
    Server,
    Sentinel,
}

/// The request that a pending reply belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PendingReply {
    /// A request whose reply needs no special handling.
    Ignored,
    /// AUTH with the credentials of this link.
    Auth,
    Ping,
    /// INFO, sent on behalf of the master with this name.
    Info(String),
    /// ROLE, sent on behalf of the master with this name.
    Role(String),
    /// SENTINEL IS-MASTER-DOWN-BY-ADDR about the master with this name and address, sent to the sentinel with this run
    /// id.
    Query(String, Addr, RunId),
    /// The query whether the sentinel at the other end supports SENTINEL RAFT.
    RaftProbe,
    /// EXEC of a transaction that reconfigures a server of the master with this name.
    Transaction(String, Transaction),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Down { retry: Instant },
    Connecting { since: Instant },
    Up { since: Instant },
}

/// How a sentinel authenticates at a server; an empty password means not at all.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Login<'a> {
    pub(crate) user: &'a str,
    pub(crate) password: &'a str,
}

#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) addr: Addr,
    pub(crate) kind: LinkKind,
    pub(crate) peer: LinkPeer,
    pub(crate) user: String,
    pub(crate) pass: String,
    pub(crate) state: LinkState,
    /// The local IP address of the connection.
    pub(crate) local_ip: Option<String>,
    pub(crate) pending: VecDeque<PendingReply>,
    /// When an established link broke. Cleared when the link is up again.
    pub(crate) lost_at: Option<Instant>,
    /// Since when connections have been refused after the link broke.
    pub(crate) refused_since: Option<Instant>,
    /// When the oldest PING that has no correct answer yet was sent.
    pub(crate) unanswered_since: Option<Instant>,
    pub(crate) last_ping: Option<Instant>,
    /// When the last correct reply to a PING arrived, and when the last reply of any kind to a PING arrived.
    pub(crate) last_correct_reply: Instant,
    pub(crate) last_ping_reply: Instant,
    /// When the last PONG arrived. Unlike a LOADING error, it shows that the server has loaded its data.
    pub(crate) last_ready_reply: Instant,
    /// When the last message arrived on a hello link.
    pub(crate) last_message: Instant,
    /// Whether the server is blocked by a script.
    pub(crate) is_busy: bool,
    /// Whether the server reports that it is a Redoubt master that restarted without its data.
    pub(crate) reports_no_data: bool,
    /// Whether the server rejected this sentinel's credentials.
    pub(crate) has_rejected_credentials: bool,
    /// The text of the last error reply, to explain a rejected transaction.
    pub(crate) last_error: Option<String>,
    /// Errors about access rights that have been logged for this link.
    pub(crate) logged_errors: BTreeSet<String>,
    /// Whether the sentinel at the other end supports consensus groups; `None` until it has answered.
    pub(crate) supports_raft: Option<bool>,
    /// The groups that sentinels announce in hello messages at this server.
    pub(crate) hello_claims: Vec<HelloClaim>,
}

impl Link {
    fn new(now: Instant, addr: Addr, kind: LinkKind, peer: LinkPeer, login: Login<'_>) -> Self {
        Self {
            addr,
            kind,
            peer,
            user: login.user.to_owned(),
            pass: login.password.to_owned(),
            state: LinkState::Down { retry: now },
            local_ip: None,
            pending: VecDeque::new(),
            lost_at: None,
            refused_since: None,
            unanswered_since: None,
            last_ping: None,
            last_correct_reply: now,
            last_ping_reply: now,
            last_ready_reply: now,
            last_message: now,
            is_busy: false,
            reports_no_data: false,
            has_rejected_credentials: false,
            last_error: None,
            logged_errors: BTreeSet::new(),
            supports_raft: None,
            hello_claims: Vec::new(),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up { .. })
    }

    /// Whether the link is connected and the server has accepted the credentials.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.is_up() && !self.has_rejected_credentials
    }

    /// When the oldest PING without a correct answer was sent; `None` while the instance answers.
    pub(crate) fn silent_since(&self) -> Option<Instant> {
        self.unanswered_since.or_else(|| (!self.is_up()).then_some(self.last_correct_reply))
    }

    /// How long a PING has been without a correct reply.
    pub(crate) fn silent_for(&self, now: Instant) -> Duration {
        self.silent_since().map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Returns whether the link was lost so recently that connection attempts are repeated quickly.
    pub(crate) fn was_just_lost(&self, now: Instant) -> bool {
        self.lost_at.is_some_and(|lost| now.since(lost) < RECENT_LOSS)
    }

    pub(crate) fn on_up(&mut self, now: Instant, local_ip: String) {
        self.state = LinkState::Up { since: now };
        self.local_ip = Some(local_ip);
        self.pending.clear();
        self.lost_at = None;
        self.refused_since = None;
        self.reports_no_data = false;
        self.last_message = now;
        self.last_ping = None;
    }

    /// Sets the credentials for the next connection.
    pub(crate) fn set_credentials(&mut self, user: &str, pass: &str) {
        user.clone_into(&mut self.user);
        pass.clone_into(&mut self.pass);
        self.logged_errors.clear();
    }

    /// Handles a broken link or a failed connection attempt; `refused` says that the host refused the connection.
    pub(crate) fn on_down(&mut self, now: Instant, refused: bool) {
        let was_up = self.is_up();
        self.pending.clear();
        self.supports_raft = None;
        if was_up {
            self.lost_at.get_or_insert(now);
        }
        if !refused {
            self.refused_since = None;
        } else if self.lost_at.is_some() {
            self.refused_since.get_or_insert(now);
        }
        let wait = match (was_up, self.was_just_lost(now)) {
            (true, _) => Duration::ZERO,
            (false, true) => QUICK_RETRY_INTERVAL,
            (false, false) => RETRY_INTERVAL,
        };
        self.state = LinkState::Down { retry: now + wait };
    }

    /// Returns whether the link is down, or connected but silent, so that it must be connected again.
    pub(crate) fn needs_reconnect(&self, now: Instant, timing: &Timing, down_after: Duration) -> bool {
        let LinkState::Up { since } = self.state else { return true };
        if now.since(since) < timing.min_link_reconnect_period {
            return false;
        }
        let half = down_after / 2;
        let is_silent = self.unanswered_since.is_some_and(|since| now.since(since) > half)
            && now.since(self.last_ping_reply) > half;
        let hears_nothing =
            self.kind == LinkKind::Hello && now.since(self.last_message) > timing.publish_period * 3;
        is_silent || hears_nothing
    }

    /// When the next action on an established link is due: a PING, a reconnection because of silence, or the detection
    /// that the instance is down.
    pub(crate) fn next_due(&self, now: Instant, timing: &Timing, down_after: Duration) -> Instant {
        if self.kind == LinkKind::Hello {
            return self.last_message + timing.publish_period * 3;
        }
        let ping = self.last_ping.map_or(now, |last| last + timing.ping_period_for(down_after));
        let silent = self.unanswered_since.map(|since| {
            let ends = [since + down_after / 2, since + down_after + Duration::from_millis(1)];
            ends.into_iter().find(|&end| end > now).unwrap_or(now)
        });
        silent.map_or(ping, |silent| silent.min(ping))
    }

    /// Whether a connection attempt is due; an attempt that hangs counts as failed.
    pub(crate) fn decide_connect(&mut self, now: Instant) -> ConnectDecision {
        match self.state {
            LinkState::Down { retry } if now >= retry && self.addr.port != 0 => {
                self.state = LinkState::Connecting { since: now };
                ConnectDecision::Connect
            }
            LinkState::Connecting { since } if now.since(since) > CONNECT_TIMEOUT => {
                self.on_down(now, false);
                ConnectDecision::GiveUp
            }
            _ => ConnectDecision::Wait,
        }
    }

    /// Handles a reply to PING. LOADING and MASTERDOWN are correct replies, because the process is alive and will serve
    /// clients later.
    pub(crate) fn on_pong(&mut self, now: Instant, reply: &Value) {
        self.last_ping_reply = now;
        let good = match reply {
            Value::Simple(text) => text == "PONG",
            Value::Error(text) => text.starts_with("LOADING") || text.starts_with("MASTERDOWN"),
            _ => false,
        };
        self.is_busy = matches!(reply, Value::Error(text) if text.starts_with("BUSY"));
        self.reports_no_data = matches!(reply, Value::Error(text) if text.starts_with("EMPTYMASTER"));
        if matches!(reply, Value::Simple(text) if text == "PONG") {
            self.last_ready_reply = now;
        }
        if good {
            self.last_correct_reply = now;
            self.unanswered_since = None;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectDecision {
    Wait,
    Connect,
    GiveUp,
}

/// All links, found by id or by address and purpose.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links {
    next_id: u64,
    by_key: BTreeMap<(Addr, LinkKind, LinkPeer), LinkId>,
    links: BTreeMap<LinkId, Link>,
}

impl Links {
    /// Returns the link to this address, and creates it if necessary.
    pub(crate) fn acquire(
        &mut self,
        now: Instant,
        addr: &Addr,
        kind: LinkKind,
        peer: LinkPeer,
        login: Login<'_>,
    ) -> LinkId {
        let key = (addr.clone(), kind, peer);
        if let Some(&id) = self.by_key.get(&key) {
            return id;
        }
        self.next_id += 1;
        let id = LinkId(self.next_id);
        self.by_key.insert(key, id);
        self.links.insert(id, Link::new(now, addr.clone(), kind, peer, login));
        id
    }

    /// The link with this id. Panics if it has been released.
    pub(crate) fn at(&self, id: LinkId) -> &Link {
        &self.links[&id]
    }

    /// The link with this id, or `None` if it has been released.
    pub(crate) fn find(&mut self, id: LinkId) -> Option<&mut Link> {
        self.links.get_mut(&id)
    }

    /// Releases all links that are not in `used`. Returns their ids for the caller to close them.
    pub(crate) fn release_unused(&mut self, used: &BTreeSet<LinkId>) -> Vec<LinkId> {
        let gone: Vec<LinkId> = self.links.keys().filter(|id| !used.contains(id)).copied().collect();
        self.links.retain(|id, _| used.contains(id));
        self.by_key.retain(|_, id| used.contains(id));
        gone
    }

    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(now: Instant) -> Link {
        Link::new(now, Addr::new("h", 1), LinkKind::Command, LinkPeer::Server, Login::default())
    }

    #[test]
    fn refused_connections_count_only_after_an_established_link() {
        let at = Instant::from_millis;
        let mut link = link(at(0));
        link.on_down(at(10), true);
        assert_eq!(link.refused_since, None, "a port that never listened");
        link.on_up(at(20), "me".into());
        link.on_down(at(30), false);
        assert_eq!(link.decide_connect(at(30)), ConnectDecision::Connect, "at once");
        link.on_down(at(31), true);
        assert_eq!(link.refused_since, Some(at(31)));
        assert_eq!(link.decide_connect(at(40)), ConnectDecision::Wait);
        assert_eq!(link.decide_connect(at(61)), ConnectDecision::Connect);
        link.on_down(at(62), true);
        assert_eq!(link.refused_since, Some(at(31)), "since the first");
        assert_eq!(link.decide_connect(at(100)), ConnectDecision::Connect);
        assert_eq!(link.decide_connect(at(1101)), ConnectDecision::GiveUp);
        assert_eq!(link.refused_since, None, "silence is not refusal");
    }

    #[test]
    fn empty_master_is_down_until_it_reports_to_be_healthy() {
        let at = Instant::from_millis;
        let mut link = link(at(0));
        link.on_up(at(0), "me".into());
        link.unanswered_since = Some(at(10));
        link.on_pong(at(11), &Value::Error("EMPTYMASTER This master started without its data".into()));
        assert!(link.reports_no_data && link.unanswered_since.is_some(), "no good answer");
        link.on_pong(at(20), &Value::Simple("PONG".into()));
        assert!(!link.reports_no_data && link.unanswered_since.is_none());
    }

    #[test]
    fn silence_starts_with_the_first_unanswered_ping() {
        let at = Instant::from_millis;
        let mut link = link(at(0));
        link.on_up(at(0), "me".into());
        assert_eq!(link.silent_for(at(500)), Duration::ZERO);
        link.unanswered_since = Some(at(600));
        link.on_pong(at(700), &Value::Error("ERR what".into()));
        assert_eq!(link.silent_for(at(900)), Duration::from_millis(300), "a wrong answer is none");
        link.on_pong(at(900), &Value::Error("LOADING Redis is loading the dataset in memory".into()));
        assert_eq!(link.silent_for(at(950)), Duration::ZERO);
    }
}
