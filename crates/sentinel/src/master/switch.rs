//! Follows switches that other sentinels led, if their epoch is newer. They arrive in the group's log or in hello
//! messages.

use consensus::GroupInput;
use failover_history::FailoverOutcome;

use crate::addr::Addr;
use crate::event::EventLevel;
use crate::hello::Hello;
use crate::info::Role;
use crate::master::Master;
use crate::master::failovers::FailoverPhase;
use crate::master::instance::Instance;
use crate::master::monitored_servers::MonitoredServers;
use crate::master::switch_record::Switch;
use crate::shared::Context;

impl Master {
    /// Handles a committed switch, or the committed choice of a replica to promote.
    pub(crate) fn on_committed(&mut self, cx: &mut Context<'_>, switch: &Switch) {
        // The leader handles the commit of its own switch in the phase that waits for it.
        let leads = self.failovers.current().is_some_and(|failover| {
            matches!(failover.phase(), FailoverPhase::Confirm { epoch, .. } if *epoch == switch.epoch)
        });
        if switch.done && !leads {
            self.adopt_switch(cx, switch);
        }
    }

    pub(crate) fn adopt_switch(&mut self, cx: &mut Context<'_>, switch: &Switch) {
        if switch.epoch <= self.config_epoch {
            return;
        }
        self.config_epoch = switch.epoch;
        self.adopt_epoch(cx, switch.epoch);
        cx.require_config_write();
        let to = Addr::new(&switch.to.0, switch.to.1);
        if cx.shared.same_addr(&to, self.current_addr()) {
            return;
        }
        let leader = self.consensus.voted_for().and_then(|leader| self.sentinels.get(leader));
        if let Some(peer) = leader {
            self.announce_sentinel(cx, EventLevel::Warning, "+config-update-from", peer, "");
        }
        self.call_reconfig_script(cx, "observer", &to);
        self.switch_to_addr(cx, &to);
    }

    /// Follows the configuration in a hello message, whose epoch must be newer.
    pub(crate) fn adopt_hello(&mut self, cx: &mut Context<'_>, hello: &Hello) {
        self.config_epoch = hello.config_epoch;
        cx.require_config_write();
        if cx.shared.same_addr(&hello.master_addr, self.current_addr()) {
            return;
        }
        if let Some(peer) = self.sentinels.get(&hello.run_id) {
            self.announce_sentinel(cx, EventLevel::Warning, "+config-update-from", peer, "");
        }
        self.call_reconfig_script(cx, "observer", &hello.master_addr);
        self.switch_to_addr(cx, &hello.master_addr);
    }

    /// Monitors `to` as the new master; the old master is expected to return as a replica.
    pub(crate) fn switch_to_addr(&mut self, cx: &mut Context<'_>, to: &Addr) {
        // Another leader's switch may arrive before the end of this leader's failover, so the old address is the one
        // that clients got.
        let current = self.current_addr();
        let old = if cx.shared.same_addr(current, to) { self.servers.master().addr() } else { current };
        let shown = |addr: &Addr| format!("{} {}", cx.shared.display_host(&addr.host), addr.port);
        let payload = format!("{} {} {}", self.name, shown(old), shown(to));
        cx.publish_event(
            EventLevel::Warning,
            "+switch-master",
            payload,
            self.settings.notification_script.as_deref(),
        );
        self.record_failover_step(cx, format!("switched to {to}"));
        cx.shared.recorder.end_failover(cx.now, &self.name, FailoverOutcome::Replaced, "done");
        let all = self.servers.replica_addrs().chain([self.servers.master().addr()]);
        let replicas: Vec<Addr> = all.filter(|addr| !cx.shared.same_addr(addr, to)).cloned().collect();
        self.reset_observations(cx, to);
        for addr in &replicas {
            self.add_replica(cx, addr);
        }
    }

    /// Discards all observations and monitors `addr` as the master.
    pub(crate) fn reset_observations(&mut self, cx: &mut Context<'_>, addr: &Addr) {
        self.servers = MonitoredServers::new(Instance::new(cx, addr, Role::Master, &self.settings));
        self.sentinels.forget_reports();
        self.detector.reset();
        self.failovers.reset(cx.now);
        self.consensus.forget_candidate();
        self.schedule_hellos();
        cx.shared.links_changed = true;
        cx.record_config_change();
        cx.resolve(&addr.host);
        self.drive_group(cx, GroupInput::Deactivate);
        let link = self.servers.master().command_link();
        self.send_info_on(cx, link);
    }

    /// Calls the reconfiguration script with master name, role, state, old and new address.
    pub(crate) fn call_reconfig_script(&self, cx: &mut Context<'_>, role: &str, to: &Addr) {
        let Some(path) = &self.settings.client_reconfig_script else { return };
        let from = self.servers.master().addr();
        let shown = |addr: &Addr| cx.shared.display_host(&addr.host).to_owned();
        let (from_host, to_host) = (shown(from), shown(to));
        let argv = [
            path,
            &self.name,
            role,
            "start",
            &from_host,
            &from.port.to_string(),
            &to_host,
            &to.port.to_string(),
        ];
        let argv = argv.map(str::to_owned).to_vec();
        cx.shared.scripts.queue(cx.now, argv);
    }
}
