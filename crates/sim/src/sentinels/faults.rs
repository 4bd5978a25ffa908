//! What goes wrong, and how it is set right again.

use std::time::Duration;

use clock::Instant;
use sentinel::{ClientId, Input};

use super::disk::Disk;
use super::{CHECK, Event, Host, Kind, MASTER, World, first_config};
use crate::trace::micros;

impl World {
    /// One fault, and the time of the next.
    pub(super) fn fault(&mut self) {
        if self.healed {
            return;
        }
        let watchers = self.hosts_of(true);
        let servers = self.hosts_of(false);
        match self.chance.below(100) {
            // The master is what a failover is about.
            0..25 => {
                let master = self.current_master();
                if self.chance.percent(60) { self.crash(master, 50, 6000) } else { self.freeze(master) }
            }
            25..35 => {
                let server = self.chance.pick(&servers);
                self.crash(server, 50, 6000);
            }
            35..50 => {
                let watcher = self.chance.pick(&watchers);
                self.crash(watcher, 50, 6000);
            }
            50..55 => {
                let watcher = self.chance.pick(&watchers);
                self.freeze(watcher);
            }
            55..75 => self.partition(),
            75..82 => {
                self.note(|| "the network heals".into());
                self.cuts.clear();
            }
            82..86 => {
                let watcher = self.chance.pick(&watchers);
                let jump = self.chance.millis(500, 4000);
                self.note(|| format!("clock of {watcher} jumps by {jump:?}"));
                self.watcher(watcher).skew += jump;
            }
            86..92 => {
                let host = self.chance.below(self.hosts.len());
                self.hosts[host].slow = self.chance.millis(0, 150);
            }
            _ => self.operate(),
        }
        let next = self.now + self.chance.millis(100, 1500);
        self.at(next, Event::Fault);
    }

    fn hosts_of(&self, watchers: bool) -> Vec<usize> {
        let of = |host: &Host| matches!(host.kind, Kind::Watcher(_)) == watchers;
        (0..self.hosts.len()).filter(|&host| of(&self.hosts[host])).collect()
    }

    fn current_master(&mut self) -> usize {
        let status = self.watcher(0).sentinel.as_ref().and_then(|sentinel| sentinel.status(MASTER));
        let ip = status.map(|status| status.addr.host).unwrap_or_default();
        self.find(&ip).unwrap_or(self.hosts.len() - 1)
    }

    /// A process dies, to be started again after a while; once a run, a sentinel may lose its disk.
    pub(super) fn crash(&mut self, host: usize, shortest: u64, longest: u64) {
        if !self.hosts[host].up {
            return;
        }
        self.note(|| format!("host {host} crashes"));
        self.hosts[host].up = false;
        self.hosts[host].frozen = None;
        self.hosts[host].life += 1;
        let life = self.hosts[host].life;
        let loses_disk = self.disks_lost == 0 && self.chance.percent(10);
        let fresh = first_config(self.hosts_of(true).len());
        if let Kind::Watcher(watcher) = &mut self.hosts[host].kind {
            watcher.sentinel = None;
            watcher.waiting.clear();
            watcher.disk.crash(&mut self.chance);
            if loses_disk {
                self.disks_lost += 1;
                watcher.disk = Disk::new(fresh);
            }
        }
        self.break_streams(host);
        let at = self.now + self.chance.millis(shortest, longest);
        self.at(at, Event::Restart { host, life });
    }

    pub(super) fn restart(&mut self, host: usize) {
        self.note(|| format!("host {host} starts"));
        self.hosts[host].up = true;
        let run_id = self.run_id();
        let now = self.now;
        match &mut self.hosts[host].kind {
            Kind::Server(server) => server.restart(now, run_id),
            Kind::Watcher(_) => self.start(host),
        }
    }

    fn freeze(&mut self, host: usize) {
        if self.runs(host) {
            let until = self.now + self.chance.millis(200, 6000);
            self.note(|| format!("host {host} stops until {}", micros(until)));
            self.hosts[host].frozen = Some(until);
        }
    }

    /// Cuts the network.
    fn partition(&mut self) {
        let cut = self.chance.partition(self.hosts.len());
        self.note(|| format!("cut {cut:?}"));
        self.cuts.extend(cut);
    }

    /// An operator asks a sentinel for something.
    fn operate(&mut self) {
        let watchers = self.hosts_of(true);
        let watcher = self.chance.pick(&watchers);
        let commands: [&[&str]; 5] = [
            &["SENTINEL", "FAILOVER", MASTER],
            &["SENTINEL", "FAILOVER", MASTER, "COORDINATED"],
            &["SENTINEL", "SET", MASTER, "parallel-syncs", "2"],
            &["SENTINEL", "CKQUORUM", MASTER],
            &["SENTINEL", "FLUSHCONFIG"],
        ];
        let command = self.chance.pick(&commands);
        if !self.runs(watcher) {
            return;
        }
        self.note(|| format!("operator at {watcher}: {}", command.join(" ")));
        let args = command.iter().map(|word| word.as_bytes().to_vec()).collect();
        let protocol = resp::Protocol::Resp3;
        self.feed(watcher, Input::Command { client: ClientId(0), protocol, args });
    }

    /// Everything works again; from now on everybody must come to agree.
    pub(super) fn heal(&mut self) {
        self.note(|| "everything heals".into());
        self.healed = true;
        self.cuts.clear();
        for host in 0..self.hosts.len() {
            self.hosts[host].slow = Duration::ZERO;
            self.hosts[host].frozen = self.hosts[host].frozen.map(|_| Instant::ORIGIN);
            if !self.hosts[host].up {
                self.restart(host);
            }
        }
        let next = self.now + CHECK;
        self.at(next, Event::Check);
    }
}
