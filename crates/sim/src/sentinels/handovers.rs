//! Simulates FAILOVER at a server with the real handover machine ([`replication::Handover`]).

use std::collections::BTreeSet;

use engine::PausePurpose;
use replication::handover::{HandoverAction, HandoverCommand, HandoverContext, HandoverError, HandoverEvent};
use replication::replica::LinkState;

use super::server::PORT;
use super::{Event, World};
use crate::Plant;
use crate::data::Order;

impl World {
    /// Starts or aborts a handover for an operator or a sentinel.
    pub(super) fn order_handover(&mut self, host: usize, word: HandoverCommand) -> Result<(), HandoverError> {
        let store = &self.stage.data.stores[host];
        let online: BTreeSet<usize> = store.replicas().map(|(replica, _)| replica).collect();
        let named = |replica: usize| ((self.ips[replica].clone(), PORT), online.contains(&replica));
        let situation = HandoverContext {
            is_replica: store.upstream().is_some(),
            replicas: store.followers().map(named).collect(),
        };
        self.stage.note(|| format!("server {host} hears: FAILOVER, {word:?}"));
        let (now, mut actions) = (self.stage.clock_of(host), Vec::new());
        self.server(host).handover.order(now, word, &situation, &mut actions)?;
        self.act_on_handover(host, actions);
        self.look_again_at_handover(host);
        Ok(())
    }

    /// Passes the current state to the machine and polls again while it waits.
    pub(super) fn drive_handover(&mut self, host: usize) {
        let store = &self.stage.data.stores[host];
        let mut inputs = Vec::new();
        if let Some(under_way) = &self.servers[host - self.watchers.len()].held
            && (store.has_drained(under_way) || self.stage.plan.plant == Some(Plant::UnawaitedWrites))
        {
            self.server(host).held = None;
            inputs.push(HandoverEvent::WritesHeld);
        }
        let store = &self.stage.data.stores[host];
        let has_all = store.replicas().filter(|(_, acknowledged)| *acknowledged >= store.offset());
        inputs.push(HandoverEvent::InSync(
            has_all.map(|(replica, _)| (self.ips[replica].clone(), PORT)).collect(),
        ));
        match store.replica() {
            Some(machine) if machine.link() == LinkState::Connected => inputs.push(HandoverEvent::Following),
            Some(machine) if machine.was_turned_away() => inputs.push(HandoverEvent::TurnedAway),
            _ => {}
        }
        let now = self.stage.clock_of(host);
        if self.server(host).handover.next_deadline().is_some_and(|due| due <= now) {
            inputs.push(HandoverEvent::Deadline);
        }
        for input in inputs {
            let (mut actions, in_sync) = (Vec::new(), matches!(input, HandoverEvent::InSync(_)));
            self.server(host).handover.handle(now, input, &mut actions);
            let over = !actions.is_empty();
            let follows = actions.iter().find_map(|action| match action {
                HandoverAction::Follow((ip, _)) => self.find(ip),
                _ => None,
            });
            // A replica that died after its acknowledgement still counts until the master notices.
            if let Some(to) = follows.filter(|to| in_sync && self.stage.is_replica_alive(host, *to)) {
                self.stage.check_handover(host, to);
            }
            self.act_on_handover(host, actions);
            if over {
                // The situation has changed.
                break;
            }
        }
        self.look_again_at_handover(host);
    }

    fn look_again_at_handover(&mut self, host: usize) {
        if self.server(host).handover.is_under_way() {
            let (life, soon) = (self.stage.processes[host].life, self.stage.chance.millis(1, 5));
            self.stage.after(soon, Event::Handover { host, life });
        }
    }

    fn act_on_handover(&mut self, host: usize, actions: Vec<HandoverAction>) {
        for action in actions {
            self.stage.note(|| format!("server {host}: {action:?}"));
            match action {
                HandoverAction::HoldWrites(longest) => {
                    let until = self.stage.clock_of(host) + longest;
                    self.stage.hold_writes(host, PausePurpose::Failover, Some(until));
                    let under_way = self.stage.data.stores[host].under_way();
                    self.server(host).held = Some(under_way);
                }
                HandoverAction::AskForAcknowledgements => self.stage.ask_for_acknowledgements(host),
                HandoverAction::Follow((ip, port)) => {
                    if let Some(to) = self.find(&ip) {
                        self.server(host).upstream = Some((ip, port));
                        self.stage.order(host, Order::HandOver { to });
                    }
                }
                HandoverAction::Settle(_) => self.stage.settle(host),
                HandoverAction::StayMaster => {
                    self.server(host).upstream = None;
                    self.stage.order(host, Order::Lead);
                }
                HandoverAction::ResumeWrites { .. } => {
                    self.server(host).held = None;
                    self.stage.let_write(host, PausePurpose::Failover);
                }
            }
        }
    }

    /// A server that took over from its master is recorded as promoted by an operator.
    pub(super) fn note_takeovers(&mut self) {
        for host in self.hosts_of(false) {
            if std::mem::take(&mut self.stage.data.stores[host].took_over) {
                self.server(host).upstream = None;
            }
        }
    }
}
