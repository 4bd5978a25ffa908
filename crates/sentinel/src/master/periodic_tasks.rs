//! Periodic tasks: connections, PING, INFO and hello messages.

use std::time::Duration;

use clock::Instant;
use resp::Value;

use crate::addr::{Addr, RunId};
use crate::event::EventLevel;
use crate::hello::{HELLO_CHANNEL, Hello};
use crate::info::{self, InfoReport, Role};
use crate::link::{LinkId, LinkPeer, PendingReply};
use crate::machine::TIMER_SLACK;
use crate::master::Master;
use crate::master::failovers::{Failover, FailoverPhase};
use crate::master::instance::Instance;
use crate::master::known_sentinels::KnownSentinel;
use crate::shared::Context;

/// INFO interval while a failover waits for the reply of the server.
const URGENT_INFO_INTERVAL: Duration = Duration::from_millis(100);
/// INFO interval while the master is down or a replica has lost its master.
const DEGRADED_INFO_INTERVAL: Duration = Duration::from_secs(1);

impl Master {
    /// Runs the tasks of the master that are due.
    pub(crate) fn run_due_tasks(&mut self, cx: &mut Context<'_>) {
        if self.consensus.next_deadline().is_some_and(|due| due <= cx.now) {
            self.drive_group(cx, consensus::GroupInput::Deadline);
        }
        self.maintain_links(cx);
        self.send_periodic(cx);
        self.update_health(cx);
        self.advance_failover(cx);
        self.schedule_next_round(cx);
    }

    fn maintain_links(&mut self, cx: &mut Context<'_>) {
        let (timing, down_after) = (&cx.shared.timing, self.settings.down_after);
        let needs_care = |link| cx.shared.links.at(link).needs_reconnect(cx.now, timing, down_after);
        let care: Vec<LinkId> = self.links().filter(|&link| needs_care(link)).collect();
        for link in care {
            if cx.shared.links.at(link).is_up() {
                cx.reconnect(link);
            } else {
                cx.connect(link);
            }
        }
    }

    /// Sends the PINGs that are due, with other requests that can leave in the same packet.
    fn send_periodic(&mut self, cx: &mut Context<'_>) {
        let ping_period = cx.shared.timing.ping_period_for(self.settings.down_after);
        let due = |cx: &Context<'_>, link: LinkId, early: Duration| {
            let state = cx.shared.links.at(link);
            state.is_up() && state.last_ping.is_none_or(|last| cx.now.since(last) + early >= ping_period)
        };
        // The PINGs to the replicas leave together with the PING to the master.
        let joint = due(cx, self.servers.master().command_link(), TIMER_SLACK);
        let early = if joint { ping_period / 2 } else { TIMER_SLACK };
        let data = self.servers.iter().map(|data| data.command_link());
        let data = data.filter(|&link| due(cx, link, early));
        let peers = self.sentinels.links().filter(|&link| due(cx, link, TIMER_SLACK));
        let links: Vec<LinkId> = data.chain(peers).collect();
        for link in links {
            cx.ping(link);
        }
        self.send_due_info(cx, early);
        self.send_hellos(cx, joint);
    }

    /// The INFO interval of a replica or, with `None`, of the master.
    pub(crate) fn info_period(&self, cx: &Context<'_>, replica: Option<&Instance>) -> Duration {
        let calm = cx.shared.timing.info_period;
        let odd = self.servers.master().reported().role() == Role::Replica;
        let troubled = odd || self.servers.is_master_suspected() || self.failovers.is_running();
        let Some(replica) = replica else {
            return if troubled { DEGRADED_INFO_INTERVAL.min(calm) } else { calm };
        };
        let waited_for = self.failovers.current().and_then(Failover::awaited_replica) == Some(replica.addr());
        let syncing = replica.reconfiguration().is_running();
        // A replica that was unreachable during a switch still follows the old master.
        let current = self.current_addr();
        let astray = replica.reported().master().is_some_and(|master| !cx.shared.same_addr(master, current));
        let odd =
            replica.reported().role() == Role::Master || !replica.reported().is_master_link_up() || astray;
        match () {
            () if waited_for || syncing => URGENT_INFO_INTERVAL,
            () if troubled || odd => DEGRADED_INFO_INTERVAL.min(calm),
            () => calm,
        }
    }

    fn send_due_info(&mut self, cx: &mut Context<'_>, early: Duration) {
        let due = |instance: &Instance, period: Duration| {
            let early = early.min(period / 20);
            instance.info_requested_at().is_none_or(|asked| cx.now.since(asked) + early >= period)
        };
        let mut ask = Vec::new();
        if due(self.servers.master(), self.info_period(cx, None)) {
            ask.push(self.servers.master().command_link());
        }
        for replica in self.servers.replicas() {
            if due(replica, self.info_period(cx, Some(replica))) {
                ask.push(replica.command_link());
            }
        }
        for link in ask {
            self.send_info_on(cx, link);
        }
    }

    /// Sends INFO on a link if it is the command link of the master or a replica.
    pub(crate) fn send_info_on(&mut self, cx: &mut Context<'_>, link: LinkId) {
        let Some(instance) = self.servers.by_command_link_mut(link) else { return };
        let command = self.settings.command("INFO");
        if cx.send(link, PendingReply::Info(self.name.clone()), &[command]) {
            instance.set_info_requested_at(cx.now);
        }
    }

    /// Sends INFO to all replicas.
    pub(crate) fn send_info_to_replicas(&mut self, cx: &mut Context<'_>) {
        let links: Vec<LinkId> = self.servers.replicas().map(|replica| replica.command_link()).collect();
        for link in links {
            self.send_info_on(cx, link);
        }
    }

    /// Composes a hello message that announces the sentinel at `addr` and its view of this master.
    pub(crate) fn build_hello(&self, cx: &Context<'_>, addr: Addr, run_id: RunId) -> Hello {
        let current = self.current_addr();
        let master_addr = Addr::new(cx.shared.display_host(&current.host), current.port);
        let config_epoch = self.config_epoch;
        Hello { addr, run_id, epoch: cx.shared.epoch, master: self.name.clone(), master_addr, config_epoch }
    }

    /// How long a hello message can wait for the next PING to the master, to leave in the same packet. `None` if that
    /// PING is too far off.
    pub(crate) fn hello_delay(&self, cx: &Context<'_>) -> Option<Duration> {
        let link = cx.shared.links.at(self.servers.master().command_link());
        let last = link.last_ping.filter(|_| link.is_up())?;
        let wait = (last + cx.shared.timing.ping_period_for(self.settings.down_after)).since(cx.now);
        (wait <= cx.shared.timing.publish_period / 8).then_some(wait)
    }

    /// Sends the hello messages that are due. `joint` means that the master is pinged in the same round.
    fn send_hellos(&mut self, cx: &mut Context<'_>, joint: bool) {
        // After a crash, the configuration epoch must not be lower than an announced one, so hello messages wait until
        // the switch is on disk. They are sent later instead of being held back, which would delay other requests on
        // their links.
        if cx.shared.has_unsaved_switch {
            return;
        }
        let period = cx.shared.timing.publish_period;
        let early = cx.shared.timing.ping_period_for(self.settings.down_after).min(period) / 2;
        let waits = !joint && self.hello_delay(cx).is_some();
        let early = if joint { early } else { TIMER_SLACK };
        let due = |at: Option<Instant>| at.is_none_or(|at| !waits && cx.now.since(at) + early >= period);
        let data = self.servers.iter();
        let mut links: Vec<LinkId> = data
            .filter(|instance| due(instance.hello_sent_at()))
            .map(|instance| instance.command_link())
            .collect();
        links.extend(
            self.sentinels.iter().filter(|peer| due(peer.hello_sent_at())).filter_map(KnownSentinel::link),
        );
        let paused = self.paused_link();
        for link in links.into_iter().filter(|link| Some(*link) != paused) {
            self.send_hello_on(cx, link);
        }
    }

    /// Returns the link to a master whose writes are paused for a failover. PUBLISH would wait there until the end of
    /// the pause, and so would the commands behind it, among them those that end the pause.
    fn paused_link(&self) -> Option<LinkId> {
        let failover = self.failovers.current()?;
        let is_over =
            matches!(failover.phase(), FailoverPhase::Reconf { .. }) && !failover.awaits_final_commands();
        (!is_over).then(|| self.servers.master().command_link())
    }

    fn send_hello_on(&mut self, cx: &mut Context<'_>, link: LinkId) {
        let state = cx.shared.links.at(link);
        let Some(local_ip) = state.local_ip.clone().filter(|_| state.is_up()) else { return };
        let peer = state.peer;
        let global = &cx.shared.global;
        let host = global.announce_ip.clone().unwrap_or(local_ip);
        let port = if global.announce_port == 0 { global.port } else { global.announce_port };
        let hello = self.build_hello(cx, Addr { host, port }, cx.shared.my_id.clone()).to_string();
        let publish = if peer == LinkPeer::Server { self.settings.command("PUBLISH") } else { "PUBLISH" };
        if !cx.send(link, PendingReply::Ignored, &[publish, HELLO_CHANNEL, &hello]) {
            return;
        }
        if link == self.servers.master().command_link() {
            // ROLE is sent as well, because INFO is infrequent and a demotion must be noticed soon.
            cx.send(link, PendingReply::Role(self.name.clone()), &[self.settings.command("ROLE")]);
        }
        if let Some(instance) = self.servers.by_command_link_mut(link) {
            instance.set_hello_sent_at(Some(cx.now));
        } else {
            self.sentinels.on_hello_sent(cx.now, link);
        }
    }

    /// Makes hello messages to all servers and sentinels due in the next round, because the configuration changed.
    pub(crate) fn schedule_hellos(&mut self) {
        self.servers.schedule_hellos();
        self.sentinels.schedule_hellos();
    }

    /// Handles a reply to ROLE. After a change of the master's role, INFO is sent to all servers.
    pub(crate) fn on_role(&mut self, cx: &mut Context<'_>, link: LinkId, value: &Value) {
        let Value::Array(items) = value else { return };
        let role = match items.first().and_then(Value::as_bytes) {
            Some(b"master") => Role::Master,
            Some(b"slave") => Role::Replica,
            _ => return,
        };
        if link == self.servers.master().command_link() && role != self.servers.master().reported().role() {
            self.send_info_on(cx, link);
            self.send_info_to_replicas(cx);
        }
    }

    /// Handles a reply to INFO.
    pub(crate) fn on_info(&mut self, cx: &mut Context<'_>, link: LinkId, text: &[u8]) {
        cx.shared.scheduler.schedule_round(&self.name);
        let text = info::truncate_text(text);
        let report = info::parse(&text);
        if self.servers.master().command_link() == link {
            self.adopt_report(cx, None, &report, text);
            for addr in &report.replicas {
                self.add_replica(cx, addr);
            }
            return;
        }
        let replica = self.servers.replicas().find(|replica| replica.command_link() == link);
        if let Some(addr) = replica.map(|replica| replica.addr().clone()) {
            self.adopt_report(cx, Some(&addr), &report, text);
            self.on_replica_info(cx, &addr);
        }
    }

    fn adopt_report(&mut self, cx: &mut Context<'_>, addr: Option<&Addr>, report: &InfoReport, text: String) {
        let Some(instance) = self.servers.at_mut(addr) else { return };
        let change = instance.on_report(cx.now, report, text);
        if change.is_restarted {
            if addr.is_none() && !self.settings.reboot_down_after.is_zero() {
                instance.set_rebooted(cx.now);
            }
            self.announce_at(cx, EventLevel::Notice, "+reboot", addr, "");
        }
        if let Some(role) = change.new_role {
            let as_it_should = addr.is_none() == (role == Role::Master);
            let event = if as_it_should { "+role-change" } else { "-role-change" };
            let extra = format!(" new reported role is {}", role.name());
            self.announce_at(cx, EventLevel::Verbose, event, addr, &extra);
        }
    }

    /// Publishes an event about the replica at this address or, without an address, about the master.
    pub(crate) fn announce_at(
        &self,
        cx: &mut Context<'_>,
        level: EventLevel,
        name: &str,
        addr: Option<&Addr>,
        extra: &str,
    ) {
        match addr {
            None => self.announce(cx, level, name, extra),
            Some(addr) => self.announce_replica(cx, level, name, addr, extra),
        }
    }
}
