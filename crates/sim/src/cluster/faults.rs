//! Injects the faults of a cluster run.

use gossip::{ClusterAction, ClusterDriver, Gossip};

use super::World;
use super::disk::Disk;
use super::invariants::Seen;
use crate::Plant;
use crate::data::Store;

/// How a process ends.
struct Ending {
    /// The machine keeps its power.
    powered: bool,
    /// The data survives.
    kept: bool,
    loses_disk: bool,
}

impl World {
    /// Injects one fault or one operator action.
    pub(super) fn go_wrong(&mut self) {
        let host = self.stage.chance.below(self.hosts.len());
        // These situations are frequent when the bug that they reveal is injected.
        let often = matches!(self.stage.plan.plant, Some(Plant::EarlyHandover | Plant::LateClaims));
        match self.stage.chance.below(100) {
            0..90 if often => self.plan_whole_move(host),
            // Master failures cause elections, so they are the most frequent fault.
            0..24 => {
                let master = self.some_master().unwrap_or(host);
                if self.stage.chance.percent(60) { self.crash(master, 4000) } else { self.freeze(master) }
            }
            24..32 => self.crash(host, 4000),
            32..36 => self.stage.order_stop(host),
            36..42 => self.freeze(host),
            42..60 => self.stage.partition(),
            60..68 => self.stage.mend(),
            68..72 => {
                let jump = self.stage.chance.millis(100, 2500);
                self.stage.note(|| format!("time at {host} jumps by {jump:?}"));
                self.stage.processes[host].skew += jump;
            }
            72..75 => {
                let jump = self.stage.chance.below(7_200_000) as i64 - 3_600_000;
                self.stage.note(|| format!("the wall clock of {host} is set by {jump} ms"));
                self.hosts[host].wall_skew += jump;
            }
            75..79 => self.stage.processes[host].slow = self.stage.chance.millis(0, 120),
            79..87 => self.plan_whole_move(host),
            _ => self.plan_operation(),
        }
    }

    /// Returns a random node that considers itself a master with slots.
    fn some_master(&mut self) -> Option<usize> {
        let leads = |gossip: &Gossip| gossip.is_voter(gossip.id());
        let masters: Vec<usize> = (0..self.hosts.len())
            .filter(|&host| self.hosts[host].gossip.as_ref().is_some_and(leads))
            .collect();
        (!masters.is_empty()).then(|| self.stage.chance.pick(&masters))
    }

    /// Kills a process, sometimes with its machine, and schedules its restart. Once per run its
    /// disk may be lost, too.
    pub(super) fn crash(&mut self, host: usize, longest: u64) {
        if !self.stage.processes[host].up {
            return;
        }
        let powered = self.stage.chance.percent(60);
        let kept = self.stage.chance.percent(50);
        self.stage.note(|| format!("host {host} {}", if powered { "dies" } else { "loses power" }));
        let loses_disk =
            self.stage.disks_lost == 0 && self.stage.chance.percent(8) && self.is_replaceable(host);
        self.end(host, longest, Ending { powered, kept, loses_disk });
    }

    /// Schedules the restart of a process that stopped on purpose.
    pub(super) fn stop(&mut self, host: usize) {
        self.stage.note(|| format!("host {host} stops"));
        self.end(host, 4000, Ending { powered: true, kept: true, loses_disk: false });
    }

    fn end(&mut self, host: usize, longest: u64, Ending { powered, kept, loses_disk }: Ending) {
        let id = self.gossip(host).id();
        self.stage.kill(host, powered);
        let crashed = &mut self.hosts[host];
        let is_write = |action: &ClusterAction| matches!(action, ClusterAction::Persist { .. });
        let writes = crashed.disk.has_orders()
            || crashed.driving.next_deadline().is_some()
            || crashed.decided.iter().any(is_write);
        (crashed.gossip, crashed.topology) = (None, None);
        crashed.decided.clear();
        crashed.unheard.clear();
        crashed.driving = ClusterDriver::default();
        crashed.next_steps.clear();
        crashed.heard.clear();
        crashed.rank = None;
        crashed.publishing = None;
        crashed.watched = None;
        if powered {
            crashed.disk.process_died(&mut self.stage.chance);
        } else {
            crashed.disk.power_failed(&mut self.stage.chance);
        }
        if writes || !powered {
            self.tell(&Seen::LostWrites { id });
        }
        if loses_disk {
            self.stage.note(|| format!("host {host} loses its disk"));
            self.stage.disks_lost += 1;
            self.lost = Some(id);
            self.hosts[host].disk = Disk::default();
        }
        self.stage.end_data(host, kept && !loses_disk, powered);
        self.break_wires(host, powered);
        // A supervisor may restart the process before its failure is detected; without its disk it
        // then has a new node id at the old address.
        let (shortest, longest) = match loses_disk && self.stage.chance.percent(50) {
            true => (0, 60),
            false => (longest / 80, longest),
        };
        self.stage.restart_within(host, shortest, longest);
    }

    /// Returns whether another node has a copy of the host's data.
    fn is_replaceable(&self, host: usize) -> bool {
        let stores = &self.stage.data.stores;
        let copies = |other: &Store| other.upstream() == Some(host) && other.is_in_sync();
        stores[host].upstream().is_some() || stores.iter().any(copies)
    }

    pub(super) fn freeze(&mut self, host: usize) {
        self.stage.freeze(host, 100, 4000);
    }

    /// Freezes a process for longer than every timeout.
    pub(super) fn freeze_long(&mut self, host: usize) {
        self.stage.freeze(host, 100, 9000);
    }
}
