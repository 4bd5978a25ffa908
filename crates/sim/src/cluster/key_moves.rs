//! Migrates keys with MIGRATE as redis-cli does. The state machine ([`engine::migration::Migration`]) is the production
//! code. A simulated driver captures, sends and releases keys as the state machine requests. Meanwhile clients write to
//! the slot at the source and, after an ASK redirection, at the target.
//!
//! A step that waits for the network continues when the bytes or the reply arrive, or at the deadline. A step that waits
//! for a lock or for the end of a pause is retried, like all users of a lock in the simulation. The time between two
//! MIGRATE commands is that of redis-cli, which is not part of a server.

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

/// Interval at which a step is retried while a slot is locked or writes are paused.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// The time between the reply to MIGRATE and the next command of redis-cli.
const OPERATOR_DELAY: Duration = Duration::from_millis(2);
/// The timeout given to MIGRATE.
const MIGRATE_TIMEOUT: Duration = Duration::from_secs(1);

/// A MIGRATE in progress, with its connection to the target.
#[derive(Debug)]
pub(super) struct KeyMigration {
    slot_migration: SlotMigration,
    /// The incarnations of the source and target process when the connection was opened.
    incarnations: [u64; 2],
    migration: Migration,
    step: MigrateStep,
    keys: Vec<Vec<u8>>,
    locked_slots: Vec<Slot>,
    /// Bytes in flight to the target, with the time at which they arrive.
    in_flight_bytes: Option<(Instant, Vec<u8>)>,
    replies: VecDeque<(Instant, Value)>,
}

impl ClusterWorld {
    /// Migrates all keys of a slot to its target, then the slot itself.
    pub(super) fn migrate_keys(&mut self, slot_migration: SlotMigration) {
        if !self.simulation.is_running(slot_migration.from) {
            return;
        }
        let keys = self.simulation.data.process_states[slot_migration.from].key_names(slot_migration.slot);
        if keys.is_empty() {
            // Sometimes SETSLOT is sent only to the source, and the target must learn by itself that it owns the slot.
            let source_alone = self.simulation.random.random_bool(15);
            let step = if source_alone {
                operator::OperatorStep::AssignAtSource
            } else {
                operator::OperatorStep::AssignAtTarget
            };
            return self.run_step(step(slot_migration));
        }
        if self.simulation.data.process_states[slot_migration.from].engine().check_migratable(&keys).is_err()
        {
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
        let (machine, step) = Migration::new(self.simulation.clock_of(slot_migration.from), order, true);
        let incarnations =
            [slot_migration.from, slot_migration.to].map(|host| self.simulation.processes[host].incarnation);
        self.key_migration_count += 1;
        let number = self.key_migration_count;
        let (locked_slots, sent, answers) = (Vec::new(), None, VecDeque::new());
        self.key_migrations.insert(
            number,
            KeyMigration {
                slot_migration,
                incarnations,
                migration: machine,
                step,
                keys,
                locked_slots,
                in_flight_bytes: sent,
                replies: answers,
            },
        );
        self.continue_key_migration(number);
    }

    /// Performs the steps of a MIGRATE that are possible now and schedules the continuation.
    pub(super) fn continue_key_migration(&mut self, number: u64) {
        self.receive_keys(number);
        loop {
            let Some(one) = self.key_migrations.get(&number) else { return };
            let from = one.slot_migration.from;
            if !self.simulation.is_incarnation(from, one.incarnations[0]) {
                self.key_migrations.remove(&number);
                return;
            }
            if let Some(until) = self.simulation.frozen_until(from) {
                return self.simulation.schedule_at(until, ClusterEvent::ContinueMigrate(number));
            }
            if let MigrateStep::Reply { result, .. } = &one.step {
                let result = result.clone();
                return self.end_key_migration(number, &result);
            }
            let Some(outcome) = self.step_result(number) else {
                let at = self.next_attempt(number);
                return self.simulation.schedule_at(at, ClusterEvent::ContinueMigrate(number));
            };
            let wall = self.simulation.wall_clock_of(from);
            if let Some(one) = self.key_migrations.get_mut(&number) {
                one.step = one.migration.handle(wall, outcome);
            }
        }
    }

    fn end_key_migration(&mut self, number: u64, result: &Result<&'static str, MigrateError>) {
        let Some(one) = self.key_migrations.remove(&number) else { return };
        let it = one.slot_migration;
        self.simulation.trace(|| format!("MIGRATE of slot {} ends: {result:?}", it.slot));
        for slot in one.locked_slots {
            self.simulation.data.process_states[it.from].engine().resume_slot_writes(slot);
        }
        if result.is_ok() {
            self.simulation.schedule_after(
                OPERATOR_DELAY,
                ClusterEvent::OperatorCommand(operator::OperatorStep::MoveKeys(it)),
            );
        }
    }

    /// Returns the result of the step that is due, or `None` if the step must be retried later.
    fn step_result(&mut self, number: u64) -> Option<MigrateStepResult> {
        let reached = self.can_reach_target(number);
        let one = self.key_migrations.get_mut(&number)?;
        let (from, slot) = (one.slot_migration.from, one.slot_migration.slot);
        let late = self.simulation.clock_of(from) >= one.migration.deadline();
        let wall = self.simulation.wall_clock_of(from);
        let store = &mut self.simulation.data.process_states[from];
        match &one.step {
            // The slot is locked by another command, so the step must wait.
            MigrateStep::Capture { .. } | MigrateStep::Release { .. } if store.is_locked(slot.number()) => {
                None
            }
            MigrateStep::Capture { pause_slots: hold, keys } => {
                one.locked_slots.extend(hold.iter().filter(|slot| store.engine().pause_slot_writes(**slot)));
                let engine = store.engine();
                let name = |key: &usize| one.keys[*key].as_slice();
                let capture = |(key, dialect): &_| engine.capture_key(0, name(key), wall, *dialect);
                Some(MigrateStepResult::Captured(keys.iter().map(capture).collect()))
            }
            _ if late => Some(MigrateStepResult::Deadline),
            MigrateStep::Connect { .. } if reached => {
                Some(MigrateStepResult::Connected { is_reused: false, is_own_server: false })
            }
            MigrateStep::Connect { .. } => Some(MigrateStepResult::ConnectFailed(MigrateError::Connecting)),
            MigrateStep::Send(bytes) => {
                let (bytes, time) =
                    (bytes.clone(), self.simulation.draw_latency(from, one.slot_migration.to));
                one.in_flight_bytes = Some((self.simulation.now + time, bytes));
                Some(MigrateStepResult::Sent)
            }
            MigrateStep::Read if self.simulation.plan.injected_bug == Some(InjectedBug::EarlyKeyDeletion) => {
                Some(MigrateStepResult::Replied(Value::Simple("OK".to_owned())))
            }
            MigrateStep::Read => {
                let is_there = one.replies.front().is_some_and(|(at, _)| *at <= self.simulation.now);
                let answer = one.replies.pop_front_if(|_| is_there);
                answer
                    .map(|(_, answer)| MigrateStepResult::Replied(answer))
                    .or((!reached).then_some(MigrateStepResult::ReadFailed))
            }
            MigrateStep::Release { key, captured } => {
                let name = one.keys[*key].clone();
                let (outcome, effects) = store.delete_migrated_key(&name, wall, captured);
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

    /// Returns when to try the current step again.
    fn next_attempt(&self, number: u64) -> Instant {
        let (now, retry_at) = (self.simulation.now, self.simulation.now + RETRY_INTERVAL);
        let Some(one) = self.key_migrations.get(&number) else { return retry_at };
        if !matches!(one.step, MigrateStep::Read) {
            return retry_at;
        }
        let clock = self.simulation.clock_of(one.slot_migration.from);
        let sent = one.in_flight_bytes.as_ref().map(|(at, _)| *at);
        let arrivals = sent.into_iter().chain(one.replies.front().map(|(at, _)| *at));
        // The target could not execute requests that have arrived, because a slot is locked or the process is frozen.
        let arrivals = arrivals.map(|at| if at > now { at } else { retry_at });
        arrivals.fold(now + one.migration.deadline().since(clock), Instant::min)
    }

    /// Returns whether the process at the target is still the same and can be reached.
    fn can_reach_target(&self, number: u64) -> bool {
        self.key_migrations.get(&number).is_some_and(|one| {
            let SlotMigration { from, to, .. } = one.slot_migration;
            self.simulation.is_incarnation(to, one.incarnations[1])
                && !self.simulation.cannot_communicate(from, to)
        })
    }

    /// Executes the requests that arrived at the target.
    fn receive_keys(&mut self, number: u64) {
        let reached = self.can_reach_target(number);
        let Some(one) = self.key_migrations.get_mut(&number) else { return };
        let (from, to, slot) = (one.slot_migration.from, one.slot_migration.to, one.slot_migration.slot);
        let is_there = one.in_flight_bytes.as_ref().is_some_and(|(at, _)| *at <= self.simulation.now);
        let is_free = !self.simulation.data.process_states[to].is_locked(slot.number());
        if !is_there || !reached || !is_free || !self.simulation.is_running(to) {
            return;
        }
        let Some((_, bytes)) = one.in_flight_bytes.take() else { return };
        let wall = self.simulation.wall_clock_of(to);
        let (answers, effects) = self.simulation.data.process_states[to].execute_requests(wall, bytes);
        self.simulation.log_effects(to, &effects);
        let at = self.simulation.now + self.simulation.draw_latency(to, from);
        if let Some(one) = self.key_migrations.get_mut(&number) {
            one.replies.extend(answers.into_iter().map(|answer| (at, answer)));
        }
    }

    /// Returns the slot migration to which a MIGRATE command belongs. `None` if the target process has restarted or is
    /// a replica.
    pub(super) fn slot_migration_of(&self, number: u64) -> Option<SlotMigration> {
        let one = self.key_migrations.get(&number)?;
        let to = one.slot_migration.to;
        let is_master = self.simulation.data.process_states[to].upstream().is_none();
        (self.simulation.is_incarnation(to, one.incarnations[1]) && is_master).then_some(one.slot_migration)
    }
}
