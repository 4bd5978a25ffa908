//! Migrates keys with MIGRATE as redis-cli does. The state machine ([`engine::migration::Migration`]) is the production
//! code. A simulated driver captures, sends and releases keys as the state machine requests. Meanwhile clients write to
//! the slot at the source and, after an ASK redirection, at the target.

use std::collections::VecDeque;
use std::time::Duration;

use clock::Instant;
use engine::ReleaseResult;
use engine::migration::{Destination, MigrateArgs, MigrateError, MigrateStep, MigrateStepResult, Migration};
use resp::Value;
use slot_routing::Slot;

use super::operator::{self, SlotMigration};
use super::{ClusterEvent, ClusterWorld};
use crate::InjectedBug;

/// Interval at which a postponed step is retried.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The timeout given to MIGRATE.
const MIGRATE_TIMEOUT: Duration = Duration::from_secs(1);

/// A MIGRATE in progress, with its connection to the target.
#[derive(Debug)]
pub(super) struct KeyMigration {
    it: SlotMigration,
    /// The incarnations of the source and target process when the connection was opened.
    incarnations: [u64; 2],
    machine: Migration,
    step: MigrateStep,
    keys: Vec<Vec<u8>>,
    locked_slots: Vec<Slot>,
    /// Bytes in flight to the target, with the time at which they arrive.
    sent: Option<(Instant, Vec<u8>)>,
    answers: VecDeque<(Instant, Value)>,
}

impl ClusterWorld {
    /// Migrates all keys of a slot to its target, then the slot itself.
    pub(super) fn move_keys(&mut self, it: SlotMigration) {
        if !self.simulation.is_running(it.from) {
            return;
        }
        let keys = self.simulation.data.stores[it.from].names(it.slot);
        if keys.is_empty() {
            // Sometimes SETSLOT is sent only to the source, and the target must learn by itself that it owns the slot.
            let source_alone = self.simulation.random.percent(15);
            let step = if source_alone {
                operator::OperatorStep::AssignAtSource
            } else {
                operator::OperatorStep::AssignAtTarget
            };
            return self.run_step(step(it));
        }
        if self.simulation.data.stores[it.from].engine().check_migratable(&keys).is_err() {
            return;
        }
        let destination = Destination { host: String::new(), port: String::new(), db: 0, auth: Vec::new() };
        let order = MigrateArgs {
            destination,
            keys: keys.clone(),
            timeout: MIGRATE_TIMEOUT,
            copy: false,
            replace: false,
        };
        let (machine, step) = Migration::new(self.simulation.clock_of(it.from), order, true);
        let incarnations = [it.from, it.to].map(|host| self.simulation.processes[host].incarnation);
        self.keys_migrated += 1;
        let number = self.keys_migrated;
        let (locked_slots, sent, answers) = (Vec::new(), None, VecDeque::new());
        self.key_moves.insert(
            number,
            KeyMigration { it, incarnations, machine, step, keys, locked_slots, sent, answers },
        );
        self.continue_key_migration(number);
    }

    /// Performs the steps of a MIGRATE that are possible now and schedules a retry for the rest.
    pub(super) fn continue_key_migration(&mut self, number: u64) {
        self.receive_keys(number);
        loop {
            let Some(one) = self.key_moves.get(&number) else { return };
            let from = one.it.from;
            if !self.simulation.is_incarnation(from, one.incarnations[0]) {
                self.key_moves.remove(&number);
                return;
            }
            if let Some(until) = self.simulation.frozen_until(from) {
                return self.simulation.schedule_at(until, ClusterEvent::MoveKeys(number));
            }
            if let MigrateStep::Reply { result, .. } = &one.step {
                let result = result.clone();
                return self.end_key_move(number, &result);
            }
            let Some(outcome) = self.step_result(number) else {
                return self.simulation.schedule_after(POLL_INTERVAL, ClusterEvent::MoveKeys(number));
            };
            let wall = self.simulation.wall_of(from);
            if let Some(one) = self.key_moves.get_mut(&number) {
                one.step = one.machine.handle(wall, outcome);
            }
        }
    }

    fn end_key_move(&mut self, number: u64, result: &Result<&'static str, MigrateError>) {
        let Some(one) = self.key_moves.remove(&number) else { return };
        let it = one.it;
        self.simulation.trace(|| format!("MIGRATE of slot {} ends: {result:?}", it.slot));
        for slot in one.locked_slots {
            self.simulation.data.stores[it.from].engine().resume_slot_writes(slot);
        }
        if result.is_ok() {
            self.simulation.schedule_after(
                POLL_INTERVAL,
                ClusterEvent::OperatorCommand(operator::OperatorStep::MoveKeys(it)),
            );
        }
    }

    /// Returns the result of the step that is due, or `None` if the step must be retried later.
    fn step_result(&mut self, number: u64) -> Option<MigrateStepResult> {
        let reached = self.reaches_target(number);
        let one = self.key_moves.get_mut(&number)?;
        let (from, slot) = (one.it.from, one.it.slot);
        let late = self.simulation.clock_of(from) >= one.machine.deadline();
        let wall = self.simulation.wall_of(from);
        let store = &mut self.simulation.data.stores[from];
        match &one.step {
            // The slot is locked by another command, so the step must wait.
            MigrateStep::Capture { .. } | MigrateStep::Release { .. } if store.is_locked(slot.number()) => {
                None
            }
            MigrateStep::Capture { hold, keys } => {
                one.locked_slots.extend(hold.iter().filter(|slot| store.engine().pause_slot_writes(**slot)));
                let engine = store.engine();
                let name = |key: &usize| one.keys[*key].as_slice();
                let capture = |(key, dialect): &_| engine.capture(0, name(key), wall, *dialect);
                Some(MigrateStepResult::Captured(keys.iter().map(capture).collect()))
            }
            _ if late => Some(MigrateStepResult::Deadline),
            MigrateStep::Connect { .. } if reached => {
                Some(MigrateStepResult::Connected { is_reused: false, to_self: false })
            }
            MigrateStep::Connect { .. } => Some(MigrateStepResult::ConnectFailed(MigrateError::Connecting)),
            MigrateStep::Send(bytes) => {
                let (bytes, time) = (bytes.clone(), self.simulation.latency(from, one.it.to));
                one.sent = Some((self.simulation.now + time, bytes));
                Some(MigrateStepResult::Sent)
            }
            MigrateStep::Read if self.simulation.plan.injected_bug == Some(InjectedBug::EarlyKeyDeletion) => {
                Some(MigrateStepResult::Replied(Value::Simple("OK".to_owned())))
            }
            MigrateStep::Read => {
                let is_there = one.answers.front().is_some_and(|(at, _)| *at <= self.simulation.now);
                let answer = one.answers.pop_front_if(|_| is_there);
                answer
                    .map(|(_, answer)| MigrateStepResult::Replied(answer))
                    .or((!reached).then_some(MigrateStepResult::ReadFailed))
            }
            MigrateStep::Release { key, captured } => {
                let name = one.keys[*key].clone();
                let (outcome, effects) = store.release(&name, wall, captured);
                let is_gone = matches!(outcome, Ok(ReleaseResult::Deleted(_)));
                self.simulation.log_effects(from, &effects);
                if is_gone {
                    self.check_moved_key(number, &name);
                }
                Some(MigrateStepResult::Released(outcome))
            }
            MigrateStep::AwaitUnpause => (!store.is_paused(wall)).then_some(MigrateStepResult::Unpaused),
            MigrateStep::Reply { .. } => None,
        }
    }

    /// Returns whether the process at the target is still the same and can be reached.
    fn reaches_target(&self, number: u64) -> bool {
        self.key_moves.get(&number).is_some_and(|one| {
            let SlotMigration { from, to, .. } = one.it;
            self.simulation.is_incarnation(to, one.incarnations[1])
                && !self.simulation.cannot_communicate(from, to)
        })
    }

    /// Executes the requests that arrived at the target.
    fn receive_keys(&mut self, number: u64) {
        let reached = self.reaches_target(number);
        let Some(one) = self.key_moves.get_mut(&number) else { return };
        let (from, to, slot) = (one.it.from, one.it.to, one.it.slot);
        let is_there = one.sent.as_ref().is_some_and(|(at, _)| *at <= self.simulation.now);
        let is_free = !self.simulation.data.stores[to].is_locked(slot.number());
        if !is_there || !reached || !is_free || !self.simulation.is_running(to) {
            return;
        }
        let Some((_, bytes)) = one.sent.take() else { return };
        let wall = self.simulation.wall_of(to);
        let (answers, effects) = self.simulation.data.stores[to].receive(wall, bytes);
        self.simulation.log_effects(to, &effects);
        let at = self.simulation.now + self.simulation.latency(to, from);
        if let Some(one) = self.key_moves.get_mut(&number) {
            one.answers.extend(answers.into_iter().map(|answer| (at, answer)));
        }
    }

    /// Returns the slot migration to which a MIGRATE command belongs. `None` if the target process has restarted or is
    /// a replica.
    pub(super) fn endpoints_of_key_migration(&self, number: u64) -> Option<SlotMigration> {
        let one = self.key_moves.get(&number)?;
        let to = one.it.to;
        let is_master = self.simulation.data.stores[to].upstream().is_none();
        (self.simulation.is_incarnation(to, one.incarnations[1]) && is_master).then_some(one.it)
    }
}
