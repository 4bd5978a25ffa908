//! Connections to instances, as data: the shell opens, closes and feeds them.
//!
//! An instance has one link for commands and, unless it is a sentinel, one that listens to hello
//! messages. Links belong to addresses, not to masters: sentinels that watch five hundred masters
//! together share one link per pair.
//!
//! Two times of a link tell a dead instance from a slow one: since when a ping has waited for its answer, and since
//! when the port has refused connections after the link had broken.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use clock::Instant;
use resp::Value;

use crate::addr::{Addr, RunId};
use crate::foreign::Claim;
use crate::orders::Order;

/// Requests that may wait for a reply at once; beyond that, nothing is sent.
pub(crate) const MAX_PENDING: usize = 100;
/// A connection attempt that takes longer is given up and repeated.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How soon to try again: while it matters (the link has just been lost), and later.
const RETRY_SOON: Duration = Duration::from_millis(30);
const RETRY_LATER: Duration = Duration::from_millis(500);
const SOON: Duration = Duration::from_secs(1);

/// A link's name between the sentinel and its shell; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// The purpose of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// Requests and their replies.
    Command,
    /// Subscribed to the hello channel.
    Hello,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Data,
    Sentinel,
}

/// The request that a reply on a command link answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pending {
    /// Nothing more than is said of any.
    Plain,
    /// AUTH.
    Auth,
    Ping,
    /// INFO, for this master's sake.
    Info(String),
    /// ROLE, for this master's sake.
    Role(String),
    /// SENTINEL IS-MASTER-DOWN-BY-ADDR about this master at this address, to this sentinel.
    Ask(String, Addr, RunId),
    /// Whether this sentinel speaks our protocol.
    Probe,
    /// The end of a transaction that orders servers of this master.
    Order(String, Order),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Down { retry: Instant },
    Connecting { since: Instant },
    Up { since: Instant },
}

#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) addr: Addr,
    pub(crate) kind: LinkKind,
    pub(crate) owner: Owner,
    pub(crate) user: String,
    pub(crate) pass: String,
    pub(crate) state: State,
    /// Our own address as this link shows it.
    pub(crate) local_ip: Option<String>,
    pub(crate) pending: VecDeque<Pending>,
    /// When an established link broke, until it is established again.
    pub(crate) lost: Option<Instant>,
    /// Since when connections have been refused, after the link broke.
    pub(crate) refused: Option<Instant>,
    /// When the oldest ping without a good answer was sent.
    pub(crate) waiting: Option<Instant>,
    pub(crate) last_ping: Option<Instant>,
    /// The last good answer, and the last answer at all, to a ping.
    pub(crate) last_good: Instant,
    pub(crate) last_pong: Instant,
    /// The last PONG: it serves, and does not only load.
    pub(crate) last_ready: Instant,
    /// The last message on a hello link.
    pub(crate) heard: Instant,
    /// A script holds the server up.
    pub(crate) busy: bool,
    /// A master of Redoubt that came back without its data says so until another is named.
    pub(crate) empty: bool,
    /// The other end does not know this sentinel: it wants another password.
    pub(crate) unknown: bool,
    /// The last error that it answered with.
    pub(crate) complaint: Option<String>,
    /// The lines about its refusals that the log has.
    pub(crate) refusals: BTreeSet<String>,
    /// Whether the sentinel at the other end has consensus groups; unknown until it has answered.
    pub(crate) native: Option<bool>,
    /// The groups whose sentinels greet at the other end, of a hello link.
    pub(crate) claims: Vec<Claim>,
}

impl Link {
    fn new(now: Instant, addr: Addr, kind: LinkKind, owner: Owner, user: &str, pass: &str) -> Self {
        Self {
            addr,
            kind,
            owner,
            user: user.to_owned(),
            pass: pass.to_owned(),
            state: State::Down { retry: now },
            local_ip: None,
            pending: VecDeque::new(),
            lost: None,
            refused: None,
            waiting: None,
            last_ping: None,
            last_good: now,
            last_pong: now,
            last_ready: now,
            heard: now,
            busy: false,
            empty: false,
            unknown: false,
            complaint: None,
            refusals: BTreeSet::new(),
            native: None,
            claims: Vec::new(),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// Whether it stands and the other end knows this sentinel.
    pub(crate) fn is_known(&self) -> bool {
        self.is_up() && !self.unknown
    }

    /// Since when this instance has owed a good answer, if it does.
    pub(crate) fn silent_since(&self) -> Option<Instant> {
        self.waiting.or_else(|| (!self.is_up()).then_some(self.last_good))
    }

    /// How long this instance has owed a good answer.
    pub(crate) fn silent_for(&self, now: Instant) -> Duration {
        self.silent_since().map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Whether the link was lost so recently that every moment counts.
    pub(crate) fn just_lost(&self, now: Instant) -> bool {
        self.lost.is_some_and(|lost| now.since(lost) < SOON)
    }

    pub(crate) fn on_up(&mut self, now: Instant, local_ip: String) {
        self.state = State::Up { since: now };
        self.local_ip = Some(local_ip);
        self.pending.clear();
        self.lost = None;
        self.refused = None;
        self.empty = false;
        self.heard = now;
        self.last_ping = None;
    }

    /// Has it sign in with these from the next time on.
    pub(crate) fn sign_in_as(&mut self, user: &str, pass: &str) {
        user.clone_into(&mut self.user);
        pass.clone_into(&mut self.pass);
        self.refusals.clear();
    }

    /// The link broke, or a connection attempt failed.
    pub(crate) fn on_down(&mut self, now: Instant, refused: bool) {
        let was_up = self.is_up();
        self.pending.clear();
        self.native = None;
        if was_up {
            self.lost.get_or_insert(now);
        }
        if !refused {
            self.refused = None;
        } else if self.lost.is_some() {
            self.refused.get_or_insert(now);
        }
        let wait = match (was_up, self.just_lost(now)) {
            (true, _) => Duration::ZERO,
            (false, true) => RETRY_SOON,
            (false, false) => RETRY_LATER,
        };
        self.state = State::Down { retry: now + wait };
    }

    /// Whether a new attempt is due; an attempt that hangs counts as failed.
    pub(crate) fn connect_due(&mut self, now: Instant) -> Due {
        match self.state {
            State::Down { retry } if now >= retry && self.addr.port != 0 => {
                self.state = State::Connecting { since: now };
                Due::Connect
            }
            State::Connecting { since } if now.since(since) > CONNECT_TIMEOUT => {
                self.on_down(now, false);
                Due::GiveUp
            }
            _ => Due::Nothing,
        }
    }

    /// A reply to PING. LOADING and MASTERDOWN are good answers: the process lives and will serve.
    pub(crate) fn on_pong(&mut self, now: Instant, reply: &Value) {
        self.last_pong = now;
        let good = match reply {
            Value::Simple(text) => text == "PONG",
            Value::Error(text) => text.starts_with("LOADING") || text.starts_with("MASTERDOWN"),
            _ => false,
        };
        self.busy = matches!(reply, Value::Error(text) if text.starts_with("BUSY"));
        self.empty = matches!(reply, Value::Error(text) if text.starts_with("EMPTYMASTER"));
        if matches!(reply, Value::Simple(text) if text == "PONG") {
            self.last_ready = now;
        }
        if good {
            self.last_good = now;
            self.waiting = None;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Connect,
    GiveUp,
}

/// Every link, by its id and by what it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links {
    next: u64,
    by_key: BTreeMap<(Addr, LinkKind, Owner), LinkId>,
    links: BTreeMap<LinkId, Link>,
}

impl Links {
    /// The link to this address, made if there is none.
    pub(crate) fn acquire(
        &mut self,
        now: Instant,
        addr: &Addr,
        kind: LinkKind,
        owner: Owner,
        (user, pass): (&str, &str),
    ) -> LinkId {
        let key = (addr.clone(), kind, owner);
        if let Some(&id) = self.by_key.get(&key) {
            return id;
        }
        self.next += 1;
        let id = LinkId(self.next);
        self.by_key.insert(key, id);
        self.links.insert(id, Link::new(now, addr.clone(), kind, owner, user, pass));
        id
    }

    /// A link that somebody holds.
    pub(crate) fn at(&self, id: LinkId) -> &Link {
        &self.links[&id]
    }

    /// The link of this id, unless it has been let go meanwhile.
    pub(crate) fn find(&mut self, id: LinkId) -> Option<&mut Link> {
        self.links.get_mut(&id)
    }

    /// Lets go of every link that is not `used`; says which.
    pub(crate) fn keep(&mut self, used: &BTreeSet<LinkId>) -> Vec<LinkId> {
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
        Link::new(now, Addr::new("h", 1), LinkKind::Command, Owner::Data, "", "")
    }

    #[test]
    fn refusal_counts_only_after_a_link_that_stood() {
        let at = Instant::from_millis;
        let mut link = link(at(0));
        link.on_down(at(10), true);
        assert_eq!(link.refused, None, "a port that never listened");
        link.on_up(at(20), "me".into());
        link.on_down(at(30), false);
        assert_eq!(link.connect_due(at(30)), Due::Connect, "at once");
        link.on_down(at(31), true);
        assert_eq!(link.refused, Some(at(31)));
        assert_eq!(link.connect_due(at(40)), Due::Nothing);
        assert_eq!(link.connect_due(at(61)), Due::Connect);
        link.on_down(at(62), true);
        assert_eq!(link.refused, Some(at(31)), "since the first");
        assert_eq!(link.connect_due(at(100)), Due::Connect);
        assert_eq!(link.connect_due(at(1101)), Due::GiveUp);
        assert_eq!(link.refused, None, "silence is not refusal");
    }

    #[test]
    fn a_master_says_that_it_came_back_without_its_data_and_later_that_it_is_well() {
        let at = Instant::from_millis;
        let mut link = link(at(0));
        link.on_up(at(0), "me".into());
        link.waiting = Some(at(10));
        link.on_pong(at(11), &Value::Error("EMPTYMASTER This master started without its data".into()));
        assert!(link.empty && link.waiting.is_some(), "no good answer");
        link.on_pong(at(20), &Value::Simple("PONG".into()));
        assert!(!link.empty && link.waiting.is_none());
    }

    #[test]
    fn silence_runs_from_the_first_ping_without_a_good_answer() {
        let at = Instant::from_millis;
        let mut link = link(at(0));
        link.on_up(at(0), "me".into());
        assert_eq!(link.silent_for(at(500)), Duration::ZERO);
        link.waiting = Some(at(600));
        link.on_pong(at(700), &Value::Error("ERR what".into()));
        assert_eq!(link.silent_for(at(900)), Duration::from_millis(300), "a wrong answer is none");
        link.on_pong(at(900), &Value::Error("LOADING Redis is loading the dataset in memory".into()));
        assert_eq!(link.silent_for(at(950)), Duration::ZERO);
    }
}
