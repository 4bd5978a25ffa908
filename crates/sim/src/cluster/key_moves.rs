//! Migrates keys with MIGRATE as redis-cli does. The node's machine
//! ([`engine::migration::Migration`]) is real; a simulated driver captures, sends and releases keys
//! as the machine requests. Clients keep writing to the slot at the source and, redirected by ASK,
//! at the target.

use std::collections::VecDeque;
use std::time::Duration;

use clock::Instant;
use engine::ReleaseResult;
use engine::migration::{Destination, MigrateArgs, MigrateError, MigrateStep, MigrateStepResult, Migration};
use resp::Value;
use slot_routing::Slot;

use super::operator::{self, Move};
use super::{Event, World};
use crate::Plant;

/// Poll interval for unfinished steps.
const LOOK: Duration = Duration::from_millis(2);
/// The timeout given to MIGRATE.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A MIGRATE in progress.
#[derive(Debug)]
pub(super) struct KeyMove {
    it: Move,
    /// The process incarnations at both ends of the link.
    lives: [u64; 2],
    machine: Migration,
    step: MigrateStep,
    keys: Vec<Vec<u8>>,
    held: Vec<Slot>,
    /// Bytes in flight to the target, with their arrival time.
    sent: Option<(Instant, Vec<u8>)>,
    answers: VecDeque<(Instant, Value)>,
}

impl World {
    /// Migrates all keys of a slot to its target, then the slot itself.
    pub(super) fn move_keys(&mut self, it: Move) {
        if !self.stage.runs(it.from) {
            return;
        }
        let keys = self.stage.data.stores[it.from].names(it.slot);
        if keys.is_empty() {
            // Sometimes only the source gets the command; the target must notice.
            let source_alone = self.stage.chance.percent(15);
            let step = if source_alone { operator::Step::GiveAtSource } else { operator::Step::TakeAtTarget };
            return self.operate(step(it));
        }
        if self.stage.data.stores[it.from].engine().may_migrate(&keys).is_err() {
            return;
        }
        let destination = Destination { host: String::new(), port: String::new(), db: 0, auth: Vec::new() };
        let order =
            MigrateArgs { destination, keys: keys.clone(), timeout: TIMEOUT, copy: false, replace: false };
        let (machine, step) = Migration::new(self.stage.clock_of(it.from), order, true);
        let lives = [it.from, it.to].map(|host| self.stage.processes[host].life);
        self.moved_keys += 1;
        let number = self.moved_keys;
        let (held, sent, answers) = (Vec::new(), None, VecDeque::new());
        self.key_moves.insert(number, KeyMove { it, lives, machine, step, keys, held, sent, answers });
        self.go_on_moving(number);
    }

    /// Performs the steps that are possible now and schedules a retry.
    pub(super) fn go_on_moving(&mut self, number: u64) {
        self.receive_keys(number);
        loop {
            let Some(one) = self.key_moves.get(&number) else { return };
            let from = one.it.from;
            if !self.stage.lives(from, one.lives[0]) {
                self.key_moves.remove(&number);
                return;
            }
            if let Some(until) = self.stage.frozen_until(from) {
                return self.stage.at(until, Event::MoveKeys(number));
            }
            if let MigrateStep::Reply { result, .. } = &one.step {
                let result = result.clone();
                return self.end_key_move(number, &result);
            }
            let Some(outcome) = self.outcome_of_step(number) else {
                return self.stage.after(LOOK, Event::MoveKeys(number));
            };
            let wall = self.stage.wall_of(from);
            if let Some(one) = self.key_moves.get_mut(&number) {
                one.step = one.machine.handle(wall, outcome);
            }
        }
    }

    fn end_key_move(&mut self, number: u64, result: &Result<&'static str, MigrateError>) {
        let Some(one) = self.key_moves.remove(&number) else { return };
        let it = one.it;
        self.stage.note(|| format!("MIGRATE of slot {} ends: {result:?}", it.slot));
        for slot in one.held {
            self.stage.data.stores[it.from].engine().free_slot(slot);
        }
        if result.is_ok() {
            self.stage.after(LOOK, Event::Operate(operator::Step::MoveKeys(it)));
        }
    }

    /// Returns the result of the due step, or `None` if it needs more time.
    fn outcome_of_step(&mut self, number: u64) -> Option<MigrateStepResult> {
        let reached = self.reaches_target(number);
        let one = self.key_moves.get_mut(&number)?;
        let (from, slot) = (one.it.from, one.it.slot);
        let late = self.stage.clock_of(from) >= one.machine.deadline();
        let wall = self.stage.wall_of(from);
        let store = &mut self.stage.data.stores[from];
        match &one.step {
            // Another command holds the slot.
            MigrateStep::Capture { .. } | MigrateStep::Release { .. } if store.is_locked(slot.number()) => {
                None
            }
            MigrateStep::Capture { hold, keys } => {
                one.held.extend(hold.iter().filter(|slot| store.engine().hold_slot(**slot)));
                let engine = store.engine();
                let name = |key: &usize| one.keys[*key].as_slice();
                let capture = |(key, dialect): &_| engine.capture(0, name(key), wall, *dialect);
                Some(MigrateStepResult::Captured(keys.iter().map(capture).collect()))
            }
            _ if late => Some(MigrateStepResult::Deadline),
            MigrateStep::Link { .. } if reached => {
                Some(MigrateStepResult::Linked { kept: false, to_self: false })
            }
            MigrateStep::Link { .. } => Some(MigrateStepResult::NotLinked(MigrateError::Connecting)),
            MigrateStep::Send(bytes) => {
                let (bytes, time) = (bytes.clone(), self.stage.latency(from, one.it.to));
                one.sent = Some((self.stage.now + time, bytes));
                Some(MigrateStepResult::Sent)
            }
            MigrateStep::Read if self.stage.plan.plant == Some(Plant::EarlyRelease) => {
                Some(MigrateStepResult::Answered(Value::Simple("OK".to_owned())))
            }
            MigrateStep::Read => {
                let is_there = one.answers.front().is_some_and(|(at, _)| *at <= self.stage.now);
                let answer = one.answers.pop_front_if(|_| is_there);
                answer
                    .map(|(_, answer)| MigrateStepResult::Answered(answer))
                    .or((!reached).then_some(MigrateStepResult::NotAnswered))
            }
            MigrateStep::Release { key, captured } => {
                let name = one.keys[*key].clone();
                let (outcome, effects) = store.release(&name, wall, captured);
                let is_gone = matches!(outcome, Ok(ReleaseResult::Gone(_)));
                self.stage.log_effects(from, &effects);
                if is_gone {
                    self.check_moved_key(number, &name);
                }
                Some(MigrateStepResult::Released(outcome))
            }
            MigrateStep::AwaitUnpause => (!store.is_paused(wall)).then_some(MigrateStepResult::Unpaused),
            MigrateStep::Reply { .. } => None,
        }
    }

    /// Returns whether the target process of the link still runs and can be reached.
    fn reaches_target(&self, number: u64) -> bool {
        self.key_moves.get(&number).is_some_and(|one| {
            let Move { from, to, .. } = one.it;
            self.stage.lives(to, one.lives[1]) && !self.stage.is_apart(from, to)
        })
    }

    /// Executes the bytes that arrived at the target.
    fn receive_keys(&mut self, number: u64) {
        let reached = self.reaches_target(number);
        let Some(one) = self.key_moves.get_mut(&number) else { return };
        let (from, to, slot) = (one.it.from, one.it.to, one.it.slot);
        let is_there = one.sent.as_ref().is_some_and(|(at, _)| *at <= self.stage.now);
        let is_free = !self.stage.data.stores[to].is_locked(slot.number());
        if !is_there || !reached || !is_free || !self.stage.runs(to) {
            return;
        }
        let Some((_, bytes)) = one.sent.take() else { return };
        let wall = self.stage.wall_of(to);
        let (answers, effects) = self.stage.data.stores[to].receive(wall, bytes);
        self.stage.log_effects(to, &effects);
        let at = self.stage.now + self.stage.latency(to, from);
        if let Some(one) = self.key_moves.get_mut(&number) {
            one.answers.extend(answers.into_iter().map(|answer| (at, answer)));
        }
    }

    /// Returns the key's migration if the target is still the original process and a master.
    pub(super) fn ends_of_key_move(&self, number: u64) -> Option<Move> {
        let one = self.key_moves.get(&number)?;
        let to = one.it.to;
        let is_master = self.stage.data.stores[to].upstream().is_none();
        (self.stage.lives(to, one.lives[1]) && is_master).then_some(one.it)
    }
}
