//! Injects faults into a run with sentinels.

use std::time::Duration;

use replication::handover::HandoverCommand;
use sentinel::{ClientCommand, SentinelInput};

use super::disk::Disk;
use super::server::PORT;
use super::{MASTER, SentinelWorld, first_config, quorum};
use crate::InjectedBug;

impl SentinelWorld {
    /// Injects one fault or one operator action.
    pub(super) fn inject_random_fault(&mut self) {
        let sentinels = self.hosts_of(true);
        let servers = self.hosts_of(false);
        // This fault is frequent when the bug that it reveals is injected.
        let often = self.simulation.plan.injected_bug == Some(InjectedBug::SkippedDrain);
        match self.simulation.random.random_below(100) {
            0..60 if often => self.hand_over_past_sentinels(),
            // Failures of the master cause failovers, so they are the most frequent fault.
            0..25 => {
                let master = self.current_master();
                if self.simulation.random.random_bool(60) {
                    self.crash(master, 50, 6000);
                } else {
                    self.freeze(master);
                }
            }
            25..35 => {
                let server = self.simulation.random.pick_random(&servers);
                if self.simulation.random.random_bool(70) {
                    self.crash(server, 50, 6000);
                } else {
                    self.simulation.begin_shutdown(server);
                }
            }
            35..50 => {
                let sentinel = self.simulation.random.pick_random(&sentinels);
                self.crash(sentinel, 50, 6000);
            }
            50..55 => {
                let sentinel = self.simulation.random.pick_random(&sentinels);
                self.freeze(sentinel);
            }
            55..75 => self.simulation.start_partition(),
            75..82 => self.simulation.end_partition(),
            82..86 => {
                let sentinel = self.simulation.random.pick_random(&sentinels);
                let jump = self.simulation.random.random_millis(500, 4000);
                self.simulation.trace(|| format!("clock of {sentinel} jumps by {jump:?}"));
                self.simulation.processes[sentinel].clock_offset += jump;
            }
            86..92 => {
                let host = self.simulation.random.random_below(self.ips.len());
                self.simulation.processes[host].extra_latency = self.simulation.random.random_millis(0, 150);
            }
            _ => self.perform_operator_action(),
        }
    }

    pub(super) fn hosts_of(&self, sentinels: bool) -> Vec<usize> {
        if sentinels {
            (0..self.sentinels.len()).collect()
        } else {
            (self.sentinels.len()..self.ips.len()).collect()
        }
    }

    pub(super) fn is_sentinel(&self, host: usize) -> bool {
        host < self.sentinels.len()
    }

    fn current_master(&mut self) -> usize {
        let status = self.sentinel(0).sentinel.as_ref().and_then(|sentinel| sentinel.status(MASTER));
        let ip = status.map(|status| status.addr.host).unwrap_or_default();
        self.find_host(&ip).unwrap_or(self.ips.len() - 1)
    }

    /// Kills a process and schedules its restart. Once per run, a sentinel may lose its disk.
    pub(super) fn crash(&mut self, host: usize, shortest: u64, longest: u64) {
        if !self.simulation.processes[host].is_up {
            return;
        }
        self.simulation.trace(|| format!("host {host} crashes"));
        let keeps_data = self.simulation.random.random_bool(60);
        self.end_process(host, keeps_data, shortest, longest);
    }

    /// Schedules the restart of a server that has shut down on purpose.
    pub(super) fn stop(&mut self, host: usize) {
        self.simulation.trace(|| format!("host {host} stops"));
        self.end_process(host, true, 50, 6000);
    }

    fn end_process(&mut self, host: usize, keeps_data: bool, shortest: u64, longest: u64) {
        if !self.is_sentinel(host) {
            // Replicas are recorded when they connect.
            self.record_followers_of(host);
        }
        self.simulation.kill(host, true);
        let loses_disk = self.simulation.lost_disk_count == 0 && self.simulation.random.random_bool(10);
        let fresh = first_config(self.hosts_of(true).len(), self.simulation.plan.injected_bug);
        if let Some(sentinel) = self.sentinels.get_mut(host) {
            sentinel.sentinel = None;
            sentinel.disk.crash(&mut self.simulation.random);
            if loses_disk {
                self.simulation.lost_disk_count += 1;
                sentinel.disk = Disk::new(fresh.into_bytes());
            }
        }
        self.break_streams(host);
        self.simulation.end_process_data(host, keeps_data, true);
        self.simulation.schedule_restart(host, shortest, longest);
    }

    pub(super) fn restart(&mut self, host: usize) {
        self.simulation.trace(|| format!("host {host} starts"));
        self.simulation.mark_running(host);
        let run_id = self.run_id();
        if self.is_sentinel(host) {
            return self.start(host);
        }
        let server = self.server(host);
        server.restart(run_id);
        let upstream = server.upstream.clone();
        self.follow(host, upstream);
        self.simulation.start_process_data(host);
        self.wait_if_empty(host);
    }

    fn freeze(&mut self, host: usize) {
        self.simulation.freeze(host, 200, 6000);
    }

    /// Performs an operator action at a sentinel, or starts a handover at the master.
    fn perform_operator_action(&mut self) {
        if self.simulation.random.random_bool(25) {
            return self.hand_over_past_sentinels();
        }
        let sentinels = self.hosts_of(true);
        let sentinel = self.simulation.random.pick_random(&sentinels);
        let commands: [&[&str]; 5] = [
            &["SENTINEL", "FAILOVER", MASTER],
            &["SENTINEL", "FAILOVER", MASTER, "COORDINATED"],
            &["SENTINEL", "SET", MASTER, "parallel-syncs", "2"],
            &["SENTINEL", "CKQUORUM", MASTER],
            &["SENTINEL", "FLUSHCONFIG"],
        ];
        let command = self.simulation.random.pick_random(&commands);
        if !self.simulation.is_running(sentinel) || (command[1] == "FAILOVER" && !self.knows_quorum(sentinel))
        {
            return;
        }
        self.simulation.trace(|| format!("operator at {sentinel}: {}", command.join(" ")));
        let args = command.iter().map(|word| word.as_bytes().to_vec()).collect();
        let protocol = resp::Protocol::Resp3;
        let command = ClientCommand { client: None, protocol, args, rejected_script: None };
        self.handle_input(sentinel, SentinelInput::Command(command));
    }

    /// Sends FAILOVER to the master without involving the sentinels.
    fn hand_over_past_sentinels(&mut self) {
        let master = self.current_master();
        let servers = self.hosts_of(false);
        let to = self.simulation.random.pick_random(&servers);
        let follows = self.server(to).upstream.as_ref().map(|(ip, _)| ip.clone());
        if self.simulation.is_running(master) && follows.and_then(|ip| self.find_host(&ip)) == Some(master) {
            let target = Some((self.ips[to].clone(), PORT));
            let timeout =
                self.simulation.random.pick_random(&[None, Some(300), Some(3000)]).map(Duration::from_millis);
            let force = timeout.is_some() && self.simulation.random.random_bool(30);
            // The handover may be refused, which changes nothing.
            let _ = self.begin_handover(master, HandoverCommand::Start { target, is_forced: force, timeout });
        }
    }

    /// Returns whether a sentinel knows enough others for the quorum, like CKQUORUM. A sentinel that lost its disk and
    /// knows no others forms a majority alone, so it would promote a replica in an epoch that was already used. (A
    /// Redis sentinel would request no votes in that case.)
    fn knows_quorum(&mut self, sentinel: usize) -> bool {
        let enough = quorum(self.hosts_of(true).len());
        let status = self.sentinel(sentinel).sentinel.as_ref().and_then(|sentinel| sentinel.status(MASTER));
        status.is_some_and(|status| status.sentinels >= enough)
    }
}
