//! Simulates FAILOVER at a server, with the real handover machine ([`replication::Handover`]).

use std::collections::BTreeSet;

use driver::Driver;
use engine::PausePurpose;
use replication::handover::{HandoverAction, HandoverCommand, HandoverContext, HandoverError, HandoverEvent};
use replication::replica::LinkState;

use super::server::PORT;
use super::{SentinelSimEvent, SentinelWorld};
use crate::InjectedBug;
use crate::data::RoleChange;

impl SentinelWorld {
    /// Starts or aborts a handover for an operator or a sentinel.
    pub(super) fn begin_handover(
        &mut self,
        host: usize,
        command: HandoverCommand,
    ) -> Result<(), HandoverError> {
        let store = &self.simulation.data.process_states[host];
        let online: BTreeSet<usize> = store.replicas().map(|(replica, _)| replica).collect();
        let named = |replica: usize| ((self.ips[replica].clone(), PORT), online.contains(&replica));
        let situation = HandoverContext {
            is_replica: store.upstream().is_some(),
            replicas: store.connected_replicas().map(named).collect(),
        };
        self.simulation.trace(|| format!("server {host} hears: FAILOVER, {command:?}"));
        let (now, mut actions) = (self.simulation.clock_of(host), Vec::new());
        self.server(host).handover.handle_command(now, command, &situation, &mut actions)?;
        self.perform_handover_actions(host, actions);
        self.schedule_handover_check(host);
        Ok(())
    }

    /// Passes the server's state to the handover machine, and schedules the next step while the machine waits.
    pub(super) fn drive_handover(&mut self, host: usize) {
        let store = &self.simulation.data.process_states[host];
        let mut inputs = Vec::new();
        if let Some(under_way) = &self.servers[host - self.sentinels.len()].commands_before_hold
            && (store.have_commands_ended(under_way)
                || self.simulation.plan.injected_bug == Some(InjectedBug::SkippedDrain))
        {
            self.server(host).commands_before_hold = None;
            inputs.push(HandoverEvent::WritesPaused);
        }
        let store = &self.simulation.data.process_states[host];
        let has_all = store.replicas().filter(|(_, acknowledged)| *acknowledged >= store.offset());
        inputs.push(HandoverEvent::InSync(
            has_all.map(|(replica, _)| (self.ips[replica].clone(), PORT)).collect(),
        ));
        match store.replica() {
            Some(machine) if machine.link_state() == LinkState::Connected => {
                inputs.push(HandoverEvent::LinkUp);
            }
            Some(machine) if machine.is_psync_refused() => inputs.push(HandoverEvent::Refused),
            _ => {}
        }
        let now = self.simulation.clock_of(host);
        if self.server(host).handover.next_deadline().is_some_and(|due| due <= now) {
            inputs.push(HandoverEvent::Deadline);
        }
        for input in inputs {
            let (mut actions, in_sync) = (Vec::new(), matches!(input, HandoverEvent::InSync(_)));
            self.server(host).handover.handle(now, input, &mut actions);
            let over = !actions.is_empty();
            let follows = actions.iter().find_map(|action| match action {
                HandoverAction::Follow((ip, _)) => self.find_host(ip),
                _ => None,
            });
            // A replica that died after its acknowledgement still counts until the master notices.
            if let Some(to) = follows.filter(|to| in_sync && self.simulation.is_replica_alive(host, *to)) {
                self.simulation.check_handover(host, to);
            }
            self.perform_handover_actions(host, actions);
            if over {
                // The situation has changed since the machine decided.
                break;
            }
        }
        self.schedule_handover_check(host);
    }

    fn schedule_handover_check(&mut self, host: usize) {
        if self.server(host).handover.is_in_progress() {
            let (incarnation, soon) =
                (self.simulation.processes[host].incarnation, self.simulation.random.random_millis(1, 5));
            self.simulation.schedule_after(soon, SentinelSimEvent::Handover { host, incarnation });
        }
    }

    fn perform_handover_actions(&mut self, host: usize, actions: Vec<HandoverAction>) {
        for action in actions {
            self.simulation.trace(|| format!("server {host}: {action:?}"));
            match action {
                HandoverAction::PauseWrites(longest) => {
                    let until = self.simulation.clock_of(host) + longest;
                    self.simulation.pause_writes(host, PausePurpose::Failover, Some(until));
                    let under_way = self.simulation.data.process_states[host].running_commands();
                    self.server(host).commands_before_hold = Some(under_way);
                }
                HandoverAction::RequestAcknowledgements => self.simulation.request_acknowledgements(host),
                HandoverAction::Follow((ip, port)) => {
                    if let Some(to) = self.find_host(&ip) {
                        self.server(host).upstream = Some((ip, port));
                        self.simulation.queue_role_change(host, RoleChange::HandOver { to });
                    }
                }
                HandoverAction::RecordMaster(_) => self.simulation.record_new_master(host),
                HandoverAction::StayMaster => {
                    self.server(host).upstream = None;
                    self.simulation.queue_role_change(host, RoleChange::BecomeMaster);
                }
                HandoverAction::ResumeWrites { .. } => {
                    self.server(host).commands_before_hold = None;
                    self.simulation.resume_writes(host, PausePurpose::Failover);
                }
            }
        }
    }

    /// Records a server that took over from its master as promoted by an operator.
    pub(super) fn record_takeovers(&mut self) {
        for host in self.hosts_of(false) {
            if std::mem::take(&mut self.simulation.data.process_states[host].has_taken_over) {
                self.server(host).upstream = None;
            }
        }
    }
}
