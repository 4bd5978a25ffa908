//! Injects the faults of a run with sentinels.

use std::time::Duration;

use replication::handover::HandoverCommand;
use sentinel::{ClientId, SentinelInput};

use super::disk::Disk;
use super::server::PORT;
use super::{MASTER, World, first_config, quorum};
use crate::Plant;

impl World {
    /// Injects one fault or one operator action.
    pub(super) fn go_wrong(&mut self) {
        let watchers = self.hosts_of(true);
        let servers = self.hosts_of(false);
        // This is frequent when the bug that it reveals is injected.
        let often = self.stage.plan.plant == Some(Plant::UnawaitedWrites);
        match self.stage.chance.below(100) {
            0..60 if often => self.hand_over_past_sentinels(),
            // Failures of the master cause failovers, so they are the most frequent fault.
            0..25 => {
                let master = self.current_master();
                if self.stage.chance.percent(60) { self.crash(master, 50, 6000) } else { self.freeze(master) }
            }
            25..35 => {
                let server = self.stage.chance.pick(&servers);
                if self.stage.chance.percent(70) {
                    self.crash(server, 50, 6000);
                } else {
                    self.stage.order_stop(server);
                }
            }
            35..50 => {
                let watcher = self.stage.chance.pick(&watchers);
                self.crash(watcher, 50, 6000);
            }
            50..55 => {
                let watcher = self.stage.chance.pick(&watchers);
                self.freeze(watcher);
            }
            55..75 => self.stage.partition(),
            75..82 => self.stage.mend(),
            82..86 => {
                let watcher = self.stage.chance.pick(&watchers);
                let jump = self.stage.chance.millis(500, 4000);
                self.stage.note(|| format!("clock of {watcher} jumps by {jump:?}"));
                self.stage.processes[watcher].skew += jump;
            }
            86..92 => {
                let host = self.stage.chance.below(self.ips.len());
                self.stage.processes[host].slow = self.stage.chance.millis(0, 150);
            }
            _ => self.operate(),
        }
    }

    pub(super) fn hosts_of(&self, watchers: bool) -> Vec<usize> {
        if watchers {
            (0..self.watchers.len()).collect()
        } else {
            (self.watchers.len()..self.ips.len()).collect()
        }
    }

    pub(super) fn is_watcher(&self, host: usize) -> bool {
        host < self.watchers.len()
    }

    fn current_master(&mut self) -> usize {
        let status = self.watcher(0).sentinel.as_ref().and_then(|sentinel| sentinel.status(MASTER));
        let ip = status.map(|status| status.addr.host).unwrap_or_default();
        self.find(&ip).unwrap_or(self.ips.len() - 1)
    }

    /// Kills a process and schedules its restart; once per run a sentinel may lose its disk.
    pub(super) fn crash(&mut self, host: usize, shortest: u64, longest: u64) {
        if !self.stage.processes[host].up {
            return;
        }
        self.stage.note(|| format!("host {host} crashes"));
        let kept = self.stage.chance.percent(60);
        self.end(host, kept, (shortest, longest));
    }

    /// Schedules the restart of a server that stopped on purpose.
    pub(super) fn stop(&mut self, host: usize) {
        self.stage.note(|| format!("host {host} stops"));
        self.end(host, true, (50, 6000));
    }

    fn end(&mut self, host: usize, kept: bool, (shortest, longest): (u64, u64)) {
        if !self.is_watcher(host) {
            // Replicas are recorded when they connect.
            self.keep_followers_of(host);
        }
        self.stage.kill(host, true);
        let loses_disk = self.stage.disks_lost == 0 && self.stage.chance.percent(10);
        let fresh = first_config(self.hosts_of(true).len(), self.stage.plan.plant);
        if let Some(watcher) = self.watchers.get_mut(host) {
            watcher.sentinel = None;
            watcher.waiting.clear();
            watcher.disk.crash(&mut self.stage.chance);
            if loses_disk {
                self.stage.disks_lost += 1;
                watcher.disk = Disk::new(fresh.into_bytes());
            }
        }
        self.break_streams(host);
        self.stage.end_data(host, kept, true);
        self.stage.restart_within(host, shortest, longest);
    }

    pub(super) fn start_again(&mut self, host: usize) {
        self.stage.note(|| format!("host {host} starts"));
        self.stage.revive(host);
        let run_id = self.run_id();
        if self.is_watcher(host) {
            return self.start(host);
        }
        let server = self.server(host);
        server.restart(run_id);
        let upstream = server.upstream.clone();
        self.follow(host, upstream);
        self.stage.begin_data(host);
        self.wait_if_empty(host);
    }

    fn freeze(&mut self, host: usize) {
        self.stage.freeze(host, 200, 6000);
    }

    /// Performs an operator action at a sentinel, or starts a handover at the master.
    fn operate(&mut self) {
        if self.stage.chance.percent(25) {
            return self.hand_over_past_sentinels();
        }
        let watchers = self.hosts_of(true);
        let watcher = self.stage.chance.pick(&watchers);
        let commands: [&[&str]; 5] = [
            &["SENTINEL", "FAILOVER", MASTER],
            &["SENTINEL", "FAILOVER", MASTER, "COORDINATED"],
            &["SENTINEL", "SET", MASTER, "parallel-syncs", "2"],
            &["SENTINEL", "CKQUORUM", MASTER],
            &["SENTINEL", "FLUSHCONFIG"],
        ];
        let command = self.stage.chance.pick(&commands);
        if !self.stage.runs(watcher) || (command[1] == "FAILOVER" && !self.knows_enough(watcher)) {
            return;
        }
        self.stage.note(|| format!("operator at {watcher}: {}", command.join(" ")));
        let args = command.iter().map(|word| word.as_bytes().to_vec()).collect();
        let protocol = resp::Protocol::Resp3;
        self.feed(watcher, SentinelInput::Command { client: ClientId(0), protocol, args });
    }

    /// Sends FAILOVER to the master.
    fn hand_over_past_sentinels(&mut self) {
        let master = self.current_master();
        let servers = self.hosts_of(false);
        let to = self.stage.chance.pick(&servers);
        let follows = self.server(to).upstream.as_ref().map(|(ip, _)| ip.clone());
        if self.stage.runs(master) && follows.and_then(|ip| self.find(&ip)) == Some(master) {
            let target = Some((self.ips[to].clone(), PORT));
            let timeout = self.stage.chance.pick(&[None, Some(300), Some(3000)]).map(Duration::from_millis);
            let force = timeout.is_some() && self.stage.chance.percent(30);
            // A refused handover changes nothing.
            let _ = self.order_handover(master, HandoverCommand::Start { target, force, timeout });
        }
    }

    /// Returns whether a sentinel knows enough others for the quorum, like CKQUORUM. A sentinel
    /// that lost its disk and knows no others is its own majority, so it would promote in an epoch
    /// that was already used. (Redis's sentinels ask nobody in that case.)
    fn knows_enough(&mut self, watcher: usize) -> bool {
        let enough = quorum(self.hosts_of(true).len());
        let status = self.watcher(watcher).sentinel.as_ref().and_then(|sentinel| sentinel.status(MASTER));
        status.is_some_and(|status| status.sentinels >= enough)
    }
}
