//! Simulates atomic slot migrations (CLUSTER MIGRATESLOTS): the machines of the `migration` crate
//! run on both sides, and a driver polls them every few milliseconds.

use std::time::Duration;

use clock::Instant;
use gossip::{Gossip, OperatorCommand, OperatorError, OperatorReply};
use migration::{Establish, Export, Import, Message, export, import};
use replication::CursorId;
use slot_routing::{NodeId, Ownership, Slot};

use super::{ClusterEvent, ClusterWorld};
use crate::InjectedBug;
use crate::data::{Change, Key};
use crate::delivery_queue::{DeliveryPoll, DeliveryQueue};

/// The driver's poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Lost messages are sent again after this time.
const RESEND_INTERVAL: Duration = Duration::from_millis(50);
/// The longest time, in milliseconds, that the target waits for its replicas before it claims the
/// slots.
const MAX_REPLICA_WAIT_MS: u64 = 500;
/// `repl-timeout`.
const REPL_TIMEOUT: Duration = Duration::from_secs(4);

pub(super) const SOURCE: usize = 0;
const TARGET: usize = 1;

/// A slot migration.
#[derive(Debug)]
pub(super) struct AtomicMigration {
    /// Hosts of source and target; their incarnations and node ids follow.
    pub(super) hosts: [usize; 2],
    pub(super) incarnations: [u64; 2],
    ids: [NodeId; 2],
    slots: Vec<Slot>,
    pub(super) keys: Vec<Key>,
    establish: Establish,
    export: Option<Export>,
    import: Option<Import>,
    cursor: Option<CursorId>,
    is_holding: bool,
    /// Messages in flight to each side.
    delivery_queues: [DeliveryQueue<MigrationMessage>; 2],
    /// The token of the target's command that claims the slots.
    claim: Option<u64>,
}

#[derive(Debug, Clone)]
enum MigrationMessage {
    Establish,
    Accepted,
    Refused,
    Said(Message),
    Data(Vec<Change>),
    Ended,
}

/// A step of the migration driver.
#[derive(Debug, Clone, Copy)]
pub(super) enum MigrationStep {
    Look,
    /// A message arrives at a side.
    Arrives(usize),
    /// The target's replicas have acknowledged. With the injected bug `LateClaims`, the target's
    /// clock stands still from `granted` on.
    ReplicasHave {
        granted: Instant,
    },
}

impl ClusterWorld {
    /// Starts the migration of slots to `to`.
    pub(super) fn begin_whole_move(&mut self, slots: Vec<Slot>, from: usize, to: usize) {
        let hosts = [from, to];
        if from == to
            || hosts.iter().any(|host| !self.simulation.is_running(*host))
            || self.simulation.cannot_communicate(from, to)
        {
            return;
        }
        // Nodes refuse slots that SETSLOT is migrating.
        let is_at_rest = |slot: &Slot| self.role_for(from, *slot) == Some(Ownership::Local);
        if !slots.iter().all(is_at_rest) {
            return;
        }
        self.simulation.note(|| format!("operator: {slots:?} move from {from} to {to} in one piece"));
        let config =
            export::ExportConfig { timeout: REPL_TIMEOUT, authenticate: false, max_remaining: u64::MAX };
        self.whole_moved += 1;
        let number = self.whole_moved;
        let establish = Establish {
            source: self.gossip(from).id(),
            name: self.simulation.random.job(),
            ranges: slots.iter().map(|slot| (*slot, *slot)).collect(),
            resumable: false,
        };
        let one = AtomicMigration {
            hosts,
            incarnations: hosts.map(|host| self.simulation.processes[host].incarnation),
            ids: hosts.map(|host| self.gossip(host).id()),
            keys: slots.iter().map(|slot| slot.number()).collect(),
            slots,
            establish,
            export: Some(Export::new(self.simulation.clock_of(from), config)),
            import: None,
            cursor: None,
            is_holding: false,
            delivery_queues: [DeliveryQueue::default(), DeliveryQueue::default()],
            claim: None,
        };
        self.whole_moves.insert(number, one);
        self.tell_export(number, export::ExportEvent::Connected);
        self.simulation.after(POLL_INTERVAL, ClusterEvent::Move { number, step: MigrationStep::Look });
    }

    fn role_for(&self, host: usize, slot: Slot) -> Option<Ownership> {
        self.hosts[host].topology.as_ref().map(|topology| topology.ownership(slot))
    }

    pub(super) fn step_move(&mut self, number: u64, step: MigrationStep) {
        match step {
            MigrationStep::Look => self.look_at_move(number),
            MigrationStep::Arrives(side) => self.hear_move(number, side),
            MigrationStep::ReplicasHave { granted } => self.on_replicas_have(number, granted),
        }
    }

    /// Returns until when a side is frozen; `None` if its process is gone.
    fn side(&self, number: u64, side: usize) -> Option<Option<Instant>> {
        let one = self.whole_moves.get(&number)?;
        let host = one.hosts[side];
        self.simulation
            .is_incarnation(host, one.incarnations[side])
            .then(|| self.simulation.frozen_until(host))
    }

    fn look_at_move(&mut self, number: u64) {
        for side in [SOURCE, TARGET] {
            match self.side(number, side) {
                None => self.end_side(number, side),
                Some(None) if side == SOURCE => self.look_at_source(number),
                Some(None) => self.look_at_target(number),
                Some(Some(_)) => {}
            }
        }
        let Some(one) = self.whole_moves.get(&number) else { return };
        if one.export.is_none()
            && one.import.is_none()
            && one.delivery_queues.iter().all(DeliveryQueue::is_empty)
        {
            self.whole_moves.remove(&number);
            return;
        }
        self.simulation.after(POLL_INTERVAL, ClusterEvent::Move { number, step: MigrationStep::Look });
    }

    /// Ends a side whose process is gone and notifies the other.
    fn end_side(&mut self, number: u64, side: usize) {
        let Some(one) = self.whole_moves.get_mut(&number) else { return };
        let there = if side == SOURCE { one.export.take().is_some() } else { one.import.take().is_some() };
        if there {
            (one.cursor, one.is_holding) = (None, one.is_holding && side != SOURCE);
            self.post_move(number, 1 - side, MigrationMessage::Ended);
        }
    }

    fn look_at_source(&mut self, number: u64) {
        let Some(one) = self.whole_moves.get(&number) else { return };
        let (Some(export), host) = (&one.export, one.hosts[SOURCE]) else { return };
        let (source, target) = (one.ids[SOURCE], one.ids[TARGET]);
        let is_due = export.next_deadline().is_some_and(|at| at <= self.simulation.clock_of(host));
        let gossip = self.gossip(host);
        let all_are = |owner: NodeId| one.slots.iter().all(|slot| gossip.slot_owner(*slot) == Some(owner));
        let input = match () {
            () if all_are(target) => Some(export::ExportEvent::TakenByTarget),
            () if !gossip.myself().is_master() => Some(export::ExportEvent::Demoted),
            () if !all_are(source) => Some(export::ExportEvent::TakenByOther),
            () => is_due.then_some(export::ExportEvent::Deadline),
        };
        let (is_holding, keys) = (one.is_holding, one.keys.clone());
        if let Some(input) = input {
            return self.tell_export(number, input);
        }
        let drained = is_holding && self.simulation.slots_are_free(host, &keys);
        self.send_changes(number);
        self.tell_export(
            number,
            if drained { export::ExportEvent::Drained } else { export::ExportEvent::Behind(0) },
        );
    }

    fn send_changes(&mut self, number: u64) {
        let Some(one) = self.whole_moves.get(&number) else { return };
        let Some(cursor) = one.cursor else { return };
        let (host, keys) = (one.hosts[SOURCE], one.keys.clone());
        match self.simulation.changes_since(host, cursor, &keys) {
            Some(changes) if changes.is_empty() => {}
            Some(changes) => self.post_move(number, TARGET, MigrationMessage::Data(changes)),
            None => self.tell_export(number, export::ExportEvent::Failed("the log fell off".to_owned())),
        }
    }

    fn look_at_target(&mut self, number: u64) {
        let Some(one) = self.whole_moves.get(&number) else { return };
        let (Some(import), host) = (&one.import, one.hosts[TARGET]) else { return };
        let is_due = import.next_deadline().is_some_and(|at| at <= self.simulation.clock_of(host));
        let has_all = one.delivery_queues[TARGET].is_empty();
        self.tell_import(number, import::ImportEvent::Conditions(around_target(one, self.gossip(host))));
        match () {
            () if is_due => self.tell_import(number, import::ImportEvent::Deadline),
            () if has_all => self.tell_import(number, import::ImportEvent::CaughtUp),
            () => {}
        }
    }

    fn hear_move(&mut self, number: u64, side: usize) {
        let blocked_for = match self.side(number, side) {
            None => return self.end_side(number, side),
            Some(until) => until.map(|until| until.since(self.simulation.now)),
        };
        let now = self.simulation.now;
        let Some(one) = self.whole_moves.get_mut(&number) else { return };
        let apart = self
            .simulation
            .cannot_communicate(one.hosts[SOURCE], one.hosts[TARGET])
            .then_some(RESEND_INTERVAL);
        // The target executes commands in order: a pause that holds back the first one holds back
        // all.
        let is_paused = side == TARGET && self.simulation.is_import_paused(one.hosts[TARGET]);
        let paused = is_paused.then_some(POLL_INTERVAL);
        match one.delivery_queues[side].next(now, blocked_for.or(apart).or(paused)) {
            DeliveryPoll::Nothing => {}
            DeliveryPoll::At(at) => {
                self.simulation.at(at, ClusterEvent::Move { number, step: MigrationStep::Arrives(side) });
            }
            DeliveryPoll::Item(word) => {
                self.simulation.at(now, ClusterEvent::Move { number, step: MigrationStep::Arrives(side) });
                if side == SOURCE {
                    self.on_source_heard(number, &word);
                } else {
                    self.on_target_heard(number, word);
                }
            }
        }
    }

    fn on_source_heard(&mut self, number: u64, word: &MigrationMessage) {
        let input = match word {
            MigrationMessage::Accepted => export::ExportEvent::Accepted,
            MigrationMessage::Refused => export::ExportEvent::Refused("ERR".to_owned()),
            MigrationMessage::Said(message) => export::ExportEvent::Received(*message),
            MigrationMessage::Ended => export::ExportEvent::Closed,
            MigrationMessage::Establish | MigrationMessage::Data(_) => return,
        };
        self.tell_export(number, input);
    }

    fn on_target_heard(&mut self, number: u64, word: MigrationMessage) {
        match word {
            MigrationMessage::Establish => {
                let Some(one) = self.whole_moves.get(&number) else { return };
                let host = one.hosts[TARGET];
                let marked = |slot: &Slot| self.role_for(host, *slot) == Some(Ownership::Importing);
                let is_hindered = around_target(one, self.gossip(host)).failure_reason().is_some()
                    || one.slots.iter().any(marked);
                if is_hindered || !self.simulation.begin_import(host, &one.establish) {
                    return self.post_move(number, SOURCE, MigrationMessage::Refused);
                }
                let import = Import::new(self.simulation.clock_of(host), REPL_TIMEOUT, false);
                self.whole_moves.entry(number).and_modify(|one| one.import = Some(import));
                self.post_move(number, SOURCE, MigrationMessage::Accepted);
            }
            MigrationMessage::Said(message) => {
                self.tell_import(number, import::ImportEvent::Received(message));
            }
            MigrationMessage::Data(changes) => {
                let Some(one) = self.whole_moves.get(&number).filter(|one| one.import.is_some()) else {
                    return;
                };
                let host = one.hosts[TARGET];
                self.tell_import(number, import::ImportEvent::DataApplied);
                if let Err(why) = self.simulation.take_changes(host, &changes) {
                    self.tell_import(number, import::ImportEvent::Failed(why));
                }
            }
            MigrationMessage::Ended => self.tell_import(number, import::ImportEvent::Closed),
            MigrationMessage::Accepted | MigrationMessage::Refused => {}
        }
    }

    fn post_move(&mut self, number: u64, to: usize, word: MigrationMessage) {
        let Some(one) = self.whole_moves.get(&number) else { return };
        let at = self.simulation.now + self.simulation.latency(one.hosts[1 - to], one.hosts[to]);
        let Some(one) = self.whole_moves.get_mut(&number) else { return };
        if let Some(at) = one.delivery_queues[to].push(at, word) {
            self.simulation.at(at, ClusterEvent::Move { number, step: MigrationStep::Arrives(to) });
        }
    }

    fn tell_export(&mut self, number: u64, input: export::ExportEvent) {
        let Some(host) = self.whole_moves.get(&number).map(|one| one.hosts[SOURCE]) else { return };
        let (now, mut out) = (self.simulation.clock_of(host), Vec::new());
        let Some(export) = self.whole_moves.get_mut(&number).and_then(|one| one.export.as_mut()) else {
            return;
        };
        export.handle(now, input, &mut out);
        for action in out {
            self.act_for_export(number, host, action);
        }
    }

    fn act_for_export(&mut self, number: u64, host: usize, action: export::ExportAction) {
        let Some(one) = self.whole_moves.get_mut(&number) else { return };
        let keys = one.keys.clone();
        match action {
            // The link cannot be resumed, as with Valkey.
            export::ExportAction::AskResumable => {
                self.tell_export(number, export::ExportEvent::Refused("ERR".to_owned()));
            }
            export::ExportAction::Establish { .. } => {
                self.post_move(number, TARGET, MigrationMessage::Establish);
            }
            export::ExportAction::Send(message) => {
                self.post_move(number, TARGET, MigrationMessage::Said(message));
            }
            export::ExportAction::TakeSnapshot => match self.simulation.cut_slots(host, &keys) {
                Some((data, cursor)) => {
                    one.cursor = Some(cursor);
                    self.tell_export(number, export::ExportEvent::SnapshotTaken);
                    self.post_move(number, TARGET, MigrationMessage::Data(data));
                    self.tell_export(number, export::ExportEvent::SnapshotSent);
                }
                None => self.tell_export(number, export::ExportEvent::SnapshotFailed),
            },
            export::ExportAction::HoldWrites => {
                one.is_holding = true;
                self.simulation.hold_slots(host, &keys, true);
                if self.simulation.plan.injected_bug == Some(InjectedBug::EarlySlotHandover) {
                    self.whole_moves.entry(number).and_modify(|one| one.cursor = None);
                    self.tell_export(number, export::ExportEvent::Drained);
                }
            }
            export::ExportAction::End(outcome) => {
                (one.export, one.is_holding) = (None, false);
                let cursor = one.cursor.take();
                self.simulation.note(|| format!("move {number} ends at its source: {outcome:?}"));
                self.simulation.hold_slots(host, &keys, false);
                if let Some(cursor) = cursor {
                    self.simulation.forget_changes(host, cursor);
                }
                self.post_move(number, TARGET, MigrationMessage::Ended);
            }
            // There is no password and only one link.
            export::ExportAction::LogIn | export::ExportAction::Reconnect => {}
        }
    }

    fn tell_import(&mut self, number: u64, input: import::ImportEvent) {
        let Some(host) = self.whole_moves.get(&number).map(|one| one.hosts[TARGET]) else { return };
        self.tell_import_at(number, self.simulation.clock_of(host), input);
    }

    fn tell_import_at(&mut self, number: u64, now: Instant, input: import::ImportEvent) {
        let Some(host) = self.whole_moves.get(&number).map(|one| one.hosts[TARGET]) else { return };
        let mut out = Vec::new();
        let Some(import) = self.whole_moves.get_mut(&number).and_then(|one| one.import.as_mut()) else {
            return;
        };
        import.handle(now, input, &mut out);
        for action in out {
            match action {
                import::ImportAction::Send(message) => {
                    self.post_move(number, SOURCE, MigrationMessage::Said(message));
                }
                import::ImportAction::AwaitReplicas => {
                    let wait = self.simulation.random.millis(0, MAX_REPLICA_WAIT_MS);
                    // This is frequent when the bug that it reveals is injected.
                    if self.simulation.plan.injected_bug == Some(InjectedBug::LateClaims)
                        && !self.simulation.healed
                    {
                        self.freeze_long(host);
                    }
                    let step = MigrationStep::ReplicasHave { granted: now };
                    self.simulation.after(wait, ClusterEvent::Move { number, step });
                }
                import::ImportAction::Claim => self.claim_move(number),
                import::ImportAction::End(outcome) => {
                    self.simulation.note(|| format!("move {number} ends at its target: {outcome:?}"));
                    let Some(one) = self.whole_moves.get_mut(&number) else { return };
                    one.import = None;
                    self.simulation.end_import(host, &one.establish, outcome);
                    self.post_move(number, SOURCE, MigrationMessage::Ended);
                }
            }
        }
    }

    fn on_replicas_have(&mut self, number: u64, granted: Instant) {
        match self.side(number, TARGET) {
            None => return self.end_side(number, TARGET),
            Some(Some(until)) => {
                return self
                    .simulation
                    .at(until, ClusterEvent::Move { number, step: MigrationStep::ReplicasHave { granted } });
            }
            Some(None) => {}
        }
        let Some(one) = self.whole_moves.get(&number) else { return };
        let host = one.hosts[TARGET];
        let around = around_target(one, self.gossip(host));
        let is_late = self.simulation.plan.injected_bug == Some(InjectedBug::LateClaims);
        let now = if is_late { granted } else { self.simulation.clock_of(host) };
        self.tell_import_at(number, now, import::ImportEvent::ReplicasCaughtUp(around));
    }

    fn claim_move(&mut self, number: u64) {
        let Some(host) = self.whole_moves.get(&number).map(|one| one.hosts[TARGET]) else { return };
        let Some(one) = self.whole_moves.get_mut(&number) else { return };
        let from = one.ids[SOURCE];
        self.assigned_slots.extend(one.slots.iter().map(|slot| (one.ids[TARGET], *slot)));
        let command = OperatorCommand::ClaimSlots { slots: one.slots.iter().copied().collect(), from };
        one.claim = Some(self.hosts[host].tokens + 1);
        self.check_moved(number);
        self.ask(host, command, None);
    }

    /// Handles the target machine's reply to a command, which may be its claim.
    pub(super) fn on_claim_answered(
        &mut self,
        host: usize,
        token: u64,
        result: &Result<OperatorReply, OperatorError>,
    ) {
        let is_meant = |one: &AtomicMigration| one.hosts[TARGET] == host && one.claim == Some(token);
        let Some(number) = self.whole_moves.iter().find(|(_, one)| is_meant(one)).map(|(number, _)| *number)
        else {
            return;
        };
        let input = match result {
            Ok(_) => import::ImportEvent::Claimed,
            Err(error) => import::ImportEvent::NotClaimed(error.to_string()),
        };
        self.tell_import(number, input);
    }
}

/// Returns the environment that the target's machine observes.
fn around_target(one: &AtomicMigration, gossip: &Gossip) -> import::ImportConditions {
    let is_theirs = |slot: &Slot| gossip.slot_owner(*slot) == Some(one.ids[SOURCE]);
    import::ImportConditions {
        is_master: gossip.myself().is_master() && gossip.id() == one.ids[TARGET],
        source_serves: one.slots.iter().all(is_theirs),
        flushed: false,
    }
}
