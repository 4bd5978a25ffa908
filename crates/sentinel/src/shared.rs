//! The state that all masters of a sentinel share, and the one door through which they act on the world.

use std::collections::BTreeMap;

use clock::Instant;
use consensus::{PeerId, Record};
use rand_chacha::ChaCha8Rng;

use crate::addr::{Addr, RunId};
use crate::agenda::Agenda;
use crate::event::{Level, Subject};
use crate::flight::Recorder;
use crate::link::{Due, LinkId, Links, MAX_PENDING, Pending};
use crate::machine::{Action, JournalRecord, Output};
use crate::script::Scripts;
use crate::settings::{Global, Timing};

pub(crate) struct Shared {
    pub(crate) me: RunId,
    pub(crate) global: Global,
    /// The newest epoch heard of, over all masters.
    pub(crate) epoch: u64,
    pub(crate) links: Links,
    /// Somebody may have let go of a link.
    pub(crate) links_changed: bool,
    pub(crate) agenda: Agenda,
    pub(crate) timing: Timing,
    /// Since when time has not been trusted.
    pub(crate) tilt: Option<Instant>,
    /// How often that was so.
    pub(crate) tilts: u64,
    pub(crate) scripts: Scripts,
    pub(crate) recorder: Recorder,
    /// Since when the configuration file is out of date.
    pub(crate) unwritten: Option<Instant>,
    /// Journal records so far.
    pub(crate) records: u64,
    /// Addresses of hosts that have names.
    pub(crate) resolved: BTreeMap<String, String>,
    pub(crate) crash_after_election: bool,
    pub(crate) crash_after_promotion: bool,
    pub(crate) rng: ChaCha8Rng,
}

impl Shared {
    pub(crate) fn my_peer(&self) -> PeerId {
        self.me.peer()
    }

    /// The IP address of a host, if it is known.
    pub(crate) fn ip_of<'a>(&'a self, host: &'a str) -> &'a str {
        self.resolved.get(host).map_or(host, String::as_str)
    }

    /// A host as clients and events show it.
    pub(crate) fn shown<'a>(&'a self, host: &'a str) -> &'a str {
        if self.global.announce_hostnames { host } else { self.ip_of(host) }
    }

    pub(crate) fn same_addr(&self, a: &Addr, b: &Addr) -> bool {
        a.port == b.port && self.ip_of(&a.host) == self.ip_of(&b.host)
    }
}

/// One step of the machine: the time, what is shared, and the actions so far.
pub(crate) struct Cx<'a> {
    pub(crate) now: Instant,
    pub(crate) shared: &'a mut Shared,
    pub(crate) out: &'a mut Output,
}

impl Cx<'_> {
    /// Has a record appended to the journal; says by which number actions wait for it.
    pub(crate) fn persist(&mut self, record: Record) -> u64 {
        self.shared.records += 1;
        let number = self.shared.records;
        self.out.records.push(JournalRecord { number, record });
        number
    }

    /// Tells the world. `script` is the notification script of the master that it is about.
    pub(crate) fn event(&mut self, level: Level, name: &str, payload: String, script: Option<&str>) {
        self.out.push(Action::Log { level, text: format!("{name} {payload}") });
        if let (Level::Warning, Some(path)) = (level, script) {
            let argv = vec![path.to_owned(), name.to_owned(), payload.clone()];
            self.shared.scripts.queue(self.now, argv);
        }
        if level != Level::Debug {
            self.out.push(Action::Publish { channel: name.to_owned(), payload });
        }
    }

    pub(crate) fn log(&mut self, level: Level, text: String) {
        self.out.push(Action::Log { level, text });
    }

    pub(crate) fn subject(
        &self,
        kind: &'static str,
        name: &str,
        addr: &Addr,
        of: Option<(&str, &Addr)>,
    ) -> Subject {
        let shown = |host: &str| self.shared.shown(host).to_owned();
        Subject {
            kind,
            name: name.to_owned(),
            ip: shown(&addr.host),
            port: addr.port,
            of: of.map(|(name, addr)| (name.to_owned(), shown(&addr.host), addr.port)),
        }
    }

    /// Sends on a command link. False if it is down or has too much to answer already.
    pub(crate) fn send(&mut self, link: LinkId, pending: Pending, request: &[&str]) -> bool {
        let request = request.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.send_after(0, link, pending, request)
    }

    /// The same, once the journal's record number `after` is on disk.
    pub(crate) fn send_after(
        &mut self,
        after: u64,
        link: LinkId,
        pending: Pending,
        request: Vec<Vec<u8>>,
    ) -> bool {
        let Some(state) = self.shared.links.find(link) else { return false };
        if !state.is_up() || state.pending.len() >= MAX_PENDING {
            return false;
        }
        state.pending.push_back(pending);
        self.out.push(Action::Send { link, after, request });
        true
    }

    /// Opens the link if it is down and due.
    pub(crate) fn connect(&mut self, link: LinkId) {
        let now = self.now;
        let Some(state) = self.shared.links.find(link) else { return };
        match state.connect_due(now) {
            Due::Connect => {
                let (addr, kind) = (state.addr.clone(), state.kind);
                self.out.push(Action::Connect { link, addr, kind });
            }
            Due::GiveUp => self.out.push(Action::Close(link)),
            Due::Nothing => {}
        }
    }

    /// Breaks a link, to have it made anew.
    pub(crate) fn reconnect(&mut self, link: LinkId) {
        let now = self.now;
        let Some(state) = self.shared.links.find(link) else { return };
        if state.is_up() {
            state.on_down(now, false);
            state.lost = None;
            self.out.push(Action::Close(link));
        }
    }

    /// Notes that the configuration file must be written before anything else happens: a switch that was
    /// followed is not forgotten in a crash.
    pub(crate) fn switched(&mut self) {
        self.shared.unwritten = Some(Instant::ORIGIN);
    }

    /// Notes that the configuration file must be written, soon.
    pub(crate) fn changed(&mut self) {
        self.shared.unwritten.get_or_insert(self.now);
    }
}
