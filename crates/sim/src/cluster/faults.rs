//! Injects the faults of a cluster run.

use driver::Driver;
use gossip::{ClusterAction, ClusterDriver, Gossip};

use super::ClusterWorld;
use super::disk::Disk;
use super::invariants::ClusterObservation;
use crate::InjectedBug;
use crate::data::ProcessState;

/// How a process ends and what survives its end.
struct ProcessEnd {
    /// Whether the host keeps its power, so that peers of the process notice its end.
    keeps_power: bool,
    /// Whether the data on the disk survives.
    keeps_data: bool,
    loses_disk: bool,
}

impl ClusterWorld {
    /// Injects one fault or one operator action.
    pub(super) fn inject_random_fault(&mut self) {
        let host = self.simulation.random.random_below(self.hosts.len());
        // Some injected bugs show only during atomic slot migrations, so these are made frequent.
        let often = matches!(
            self.simulation.plan.injected_bug,
            Some(InjectedBug::EarlySlotHandover | InjectedBug::LateClaims)
        );
        match self.simulation.random.random_below(100) {
            0..90 if often => self.plan_atomic_migration(host),
            // Master failures cause elections, so they are the most frequent fault.
            0..24 => {
                let master = self.random_master().unwrap_or(host);
                if self.simulation.random.random_bool(60) {
                    self.crash(master, 4000);
                } else {
                    self.freeze(master);
                }
            }
            24..32 => self.crash(host, 4000),
            32..36 => self.simulation.begin_shutdown(host),
            36..42 => self.freeze(host),
            42..60 => self.simulation.start_partition(),
            60..68 => self.simulation.end_partition(),
            68..72 => {
                let jump = self.simulation.random.random_millis(100, 2500);
                self.simulation.trace(|| format!("time at {host} jumps by {jump:?}"));
                self.simulation.processes[host].clock_offset += jump;
            }
            72..75 => {
                let jump = self.simulation.random.random_below(7_200_000) as i64 - 3_600_000;
                self.simulation.trace(|| format!("the wall clock of {host} is set by {jump} ms"));
                self.hosts[host].wall_clock_offset += jump;
            }
            75..79 => {
                self.simulation.processes[host].extra_latency = self.simulation.random.random_millis(0, 120);
            }
            79..87 => self.plan_atomic_migration(host),
            _ => self.plan_operation(),
        }
    }

    /// Returns a random node that considers itself a master with slots.
    fn random_master(&mut self) -> Option<usize> {
        let leads = |gossip: &Gossip| gossip.is_voter(gossip.id());
        let masters: Vec<usize> = (0..self.hosts.len())
            .filter(|&host| self.hosts[host].gossip.as_ref().is_some_and(leads))
            .collect();
        (!masters.is_empty()).then(|| self.simulation.random.pick_random(&masters))
    }

    /// Kills a process, sometimes by cutting the power of its host, and schedules its restart. At most once per run the
    /// disk is lost as well.
    pub(super) fn crash(&mut self, host: usize, max_restart_millis: u64) {
        if !self.simulation.processes[host].is_up {
            return;
        }
        let powered = self.simulation.random.random_bool(60);
        let kept = self.simulation.random.random_bool(50);
        self.simulation.trace(|| format!("host {host} {}", if powered { "dies" } else { "loses power" }));
        let loses_disk = self.simulation.lost_disk_count == 0
            && self.simulation.random.random_bool(8)
            && self.is_replaceable(host);
        self.end_process(
            host,
            max_restart_millis,
            ProcessEnd { keeps_power: powered, keeps_data: kept, loses_disk },
        );
    }

    /// Ends a process that has finished its SHUTDOWN, and schedules its restart.
    pub(super) fn restart_after_shutdown(&mut self, host: usize) {
        self.simulation.trace(|| format!("host {host} stops"));
        self.end_process(host, 4000, ProcessEnd { keeps_power: true, keeps_data: true, loses_disk: false });
    }

    fn end_process(
        &mut self,
        host: usize,
        max_restart_millis: u64,
        ProcessEnd { keeps_power: powered, keeps_data: kept, loses_disk }: ProcessEnd,
    ) {
        let id = self.gossip(host).id();
        self.simulation.kill(host, powered);
        let crashed = &mut self.hosts[host];
        let is_write = |action: &ClusterAction| matches!(action, ClusterAction::Persist { .. });
        let writes = crashed.disk.has_queued_writes()
            || crashed.driver.next_deadline().is_some()
            || crashed.pending_actions.iter().any(is_write);
        (crashed.gossip, crashed.topology) = (None, None);
        crashed.pending_actions.clear();
        crashed.pending_inputs.clear();
        crashed.driver = ClusterDriver::default();
        crashed.next_steps.clear();
        crashed.received_headers.clear();
        crashed.election_rank = None;
        crashed.topology_being_published = None;
        crashed.watched_offset = None;
        if powered {
            crashed.disk.on_process_death(self.simulation.disk_behavior, &mut self.simulation.random);
        } else {
            crashed.disk.on_power_failure(self.simulation.disk_behavior, &mut self.simulation.random);
        }
        if writes || !powered {
            self.check_invariants(&ClusterObservation::WritesLost { id });
        }
        if loses_disk {
            self.simulation.trace(|| format!("host {host} loses its disk"));
            self.simulation.lost_disk_count += 1;
            self.node_with_lost_disk = Some(id);
            self.hosts[host].disk = Disk::default();
        }
        self.simulation.end_process_data(host, kept && !loses_disk, powered);
        self.break_links(host, powered);
        // A supervisor may restart the process before its failure is detected. If it lost its disk, it then has a new
        // node id at the old address.
        let (shortest, longest) = match loses_disk && self.simulation.random.random_bool(50) {
            true => (0, 60),
            false => (max_restart_millis / 80, max_restart_millis),
        };
        self.simulation.schedule_restart(host, shortest, longest);
    }

    /// Returns whether another node has a copy of this host's data.
    fn is_replaceable(&self, host: usize) -> bool {
        let stores = &self.simulation.data.process_states;
        let copies = |other: &ProcessState| other.upstream() == Some(host) && other.is_in_sync();
        stores[host].upstream().is_some() || stores.iter().any(copies)
    }

    pub(super) fn freeze(&mut self, host: usize) {
        self.simulation.freeze(host, 100, 4000);
    }

    /// Freezes a process for longer than every timeout.
    pub(super) fn freeze_long(&mut self, host: usize) {
        self.simulation.freeze(host, 100, 9000);
    }
}
