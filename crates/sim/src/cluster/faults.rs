//! What goes wrong, and how it is set right again.

use std::time::Duration;

use gossip::{Gossip, Input};

use super::disk::Disk;
use super::invariants::Seen;
use super::{CHECK, Data, Event, World};
use crate::trace::micros;

impl World {
    /// One fault, and the time of the next.
    pub(super) fn fault(&mut self) {
        if self.healed {
            return;
        }
        let host = self.chance.below(self.hosts.len());
        match self.chance.below(100) {
            // A failing master is what an election is about.
            0..24 => {
                let master = self.some_master().unwrap_or(host);
                if self.chance.percent(60) { self.crash(master, 4000) } else { self.freeze(master) }
            }
            24..36 => self.crash(host, 4000),
            36..42 => self.freeze(host),
            42..60 => self.partition(),
            60..68 => {
                self.note(|| "the network heals".into());
                self.cuts.clear();
            }
            68..72 => {
                let jump = self.chance.millis(100, 2500);
                self.note(|| format!("time at {host} jumps by {jump:?}"));
                self.hosts[host].skew += jump;
            }
            72..75 => {
                let jump = self.chance.below(7_200_000) as i64 - 3_600_000;
                self.note(|| format!("the wall clock of {host} is set by {jump} ms"));
                self.hosts[host].wall_skew += jump;
            }
            75..81 => self.hosts[host].slow = self.chance.millis(0, 120),
            _ => self.plan_operation(),
        }
        let next = self.chance.millis(50, 1000);
        self.after(next, Event::Fault);
    }

    /// A node that takes itself for a master with slots.
    fn some_master(&mut self) -> Option<usize> {
        let leads = |gossip: &Gossip| gossip.is_voter(gossip.id());
        let masters: Vec<usize> = (0..self.hosts.len())
            .filter(|&host| self.hosts[host].gossip.as_ref().is_some_and(leads))
            .collect();
        (!masters.is_empty()).then(|| self.chance.pick(&masters))
    }

    /// A process dies, sometimes with its machine, to be started again after a while. Once a run, a
    /// disk may be lost with it.
    pub(super) fn crash(&mut self, host: usize, longest: u64) {
        if !self.hosts[host].up {
            return;
        }
        let powered = self.chance.percent(60);
        let kept = self.chance.percent(50);
        self.note(|| format!("host {host} {}", if powered { "dies" } else { "loses power" }));
        let id = self.gossip(host).id();
        let loses_disk = self.disks_lost == 0 && self.chance.percent(8) && self.is_replaceable(host);
        let crashed = &mut self.hosts[host];
        (crashed.up, crashed.powered, crashed.frozen) = (false, powered, None);
        crashed.life += 1;
        (crashed.gossip, crashed.topology, crashed.tick_at) = (None, None, None);
        crashed.waiting.clear();
        crashed.next_steps.clear();
        crashed.heard.clear();
        crashed.data.restart(kept);
        if powered {
            crashed.disk.process_died(&mut self.chance);
        } else {
            crashed.disk.power_failed(&mut self.chance);
            self.tell(&Seen::PowerFailed { id });
        }
        if loses_disk {
            self.note(|| format!("host {host} loses its disk"));
            self.disks_lost += 1;
            self.hosts[host].disk = Disk::default();
            self.hosts[host].data = Data::default();
        }
        self.break_wires(host, powered);
        let (life, time) = (self.hosts[host].life, self.chance.millis(longest / 80, longest));
        self.after(time, Event::Restart { host, life });
    }

    /// Whether a copy of what a host holds is somewhere else.
    fn is_replaceable(&self, host: usize) -> bool {
        let data = &self.hosts[host].data;
        let copies = |other: &&super::Host| {
            other.data.upstream() == Some(self.hosts[host].ip) && other.data.is_in_sync()
        };
        data.upstream().is_some() || self.hosts.iter().any(|other| copies(&other))
    }

    pub(super) fn restart(&mut self, host: usize) {
        (self.hosts[host].up, self.hosts[host].powered) = (true, true);
        self.start(host);
    }

    fn freeze(&mut self, host: usize) {
        if self.runs(host) {
            let until = self.now + self.chance.millis(100, 4000);
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

    /// Everything works again; from now on everybody must come to agree.
    pub(super) fn heal(&mut self) {
        self.note(|| "everything heals".into());
        self.healed = true;
        self.cuts.clear();
        for host in 0..self.hosts.len() {
            self.hosts[host].slow = Duration::ZERO;
            self.hosts[host].frozen = None;
            if self.hosts[host].up {
                // Whoever was stopped notices the time first.
                self.feed(host, Input::Deadline);
            } else {
                self.restart(host);
            }
        }
        self.after(CHECK, Event::Check);
    }
}
