//! Replication as far as the bus cares: an offset, and how fresh it is.

use std::net::IpAddr;
use std::time::Duration;

use clock::Instant;
use gossip::{Input, Replication, Source};
use slot_routing::ReplOffset;

use super::World;

#[derive(Debug, Clone, Default)]
pub(super) struct Data {
    pub(super) offset: u64,
    /// Whose copy this is to be.
    upstream: Option<IpAddr>,
    source: Source,
    pub(super) paused: Option<Instant>,
    pub(super) watched: Option<ReplOffset>,
    told: Replication,
}

impl Data {
    pub(super) fn lead(&mut self) {
        self.upstream = None;
        self.source = Source::Never;
    }

    pub(super) fn follow(&mut self, ip: IpAddr) {
        self.upstream = Some(ip);
        self.source = Source::Never;
    }

    pub(super) fn upstream(&self) -> Option<IpAddr> {
        self.upstream
    }

    pub(super) fn is_in_sync(&self) -> bool {
        matches!(self.source, Source::Streaming { .. })
    }

    /// A restarted process has what it saved, and is in sync with nobody yet.
    pub(super) fn restart(&mut self, kept: bool) {
        *self = Self { offset: if kept { self.offset } else { 0 }, ..Self::default() };
    }

    /// What the machine has not been told yet, in its own time.
    pub(super) fn news(&mut self, skew: Duration) -> Option<Replication> {
        let source = match self.source {
            Source::Never => Source::Never,
            Source::Streaming { last_heard } => Source::Streaming { last_heard: last_heard + skew },
            Source::Lost { since } => Source::Lost { since: since + skew },
        };
        let facts = Replication { offset: ReplOffset(self.offset), source };
        (std::mem::replace(&mut self.told, facts) != facts).then_some(facts)
    }
}

impl World {
    /// Masters take writes, replicas that reach their master have them; and it is looked at who takes
    /// writes.
    pub(super) fn replicate(&mut self) {
        for host in 0..self.hosts.len() {
            if !self.stage.runs(host) {
                continue;
            }
            match self.hosts[host].data.upstream {
                None => {
                    let writes =
                        self.samples.iter().any(|&slot| self.hosts[host].takes_writes(slot, self.stage.now));
                    self.hosts[host].data.offset += if writes { 5 } else { 0 };
                }
                Some(upstream) => self.copy(host, upstream),
            }
            self.check_reach(host);
        }
    }

    fn copy(&mut self, host: usize, upstream: IpAddr) {
        let now = self.stage.now;
        let reached = self
            .hosts
            .iter()
            .position(|other| other.ip == upstream)
            .filter(|&master| self.stage.runs(master) && !self.stage.is_apart(host, master));
        let offset = reached.map(|master| self.hosts[master].data.offset);
        let data = &mut self.hosts[host].data;
        if let Some(offset) = offset {
            data.offset = offset;
            data.source = Source::Streaming { last_heard: now };
        } else if data.is_in_sync() {
            data.source = Source::Lost { since: now };
        }
        if data.watched.is_some_and(|wanted| wanted.0 <= data.offset) {
            self.feed(host, Input::Deadline);
        }
    }

    pub(super) fn on_drained(&mut self, host: usize, life: u64) {
        if self.stage.lives(host, life) {
            let offset = ReplOffset(self.hosts[host].data.offset);
            self.feed(host, Input::WritesPaused { offset });
        }
    }
}
