//! The state machine of SHUTDOWN: gives replicas time to catch up, then saves and exits.
//!
//! | state | waits until | next |
//! | --- | --- | --- |
//! | holding | running writes are in the log | a master with replicas waits for them |
//! | waiting | all replicas have caught up, or the timeout expires | a replica takes over if requested; else saves |
//! | handing over | another node has taken over, or the timeout expires | saves |
//! | saving | the data is saved, or saving failed | exits; if saving failed and FORCE was not given, goes on |
//!
//! Invariant: the data is saved only after writes are paused, and the server never exits without trying to save.
//! SHUTDOWN ABORT works while the server waits for replicas; a save cannot be aborted.

use std::time::Duration;

use clock::Instant;
use slot_routing::ReplOffset;

/// The options of a shutdown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Plan {
    /// Do not wait for replicas (NOW).
    pub now: bool,
    /// Exit even if the data cannot be saved (FORCE).
    pub force: bool,
    /// Hand over to a replica first (FAILOVER), for a master of a cluster.
    pub hand_over: bool,
}

/// How long a replica may take to take over. Later it must win an election after this node has exited.
pub const HANDOVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of the log and of the replicas once writes are paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The end of the log.
    pub end: ReplOffset,
    /// The number of replicas; zero on a replica, whose sub-replicas can get the data from the master.
    pub replicas: usize,
    /// The number of replicas that have the whole log.
    pub in_sync: usize,
    /// How long the other replicas may take (`shutdown-timeout`).
    pub longest: Duration,
}

/// An event of the shutdown. Events that do not belong to the current state are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Every write admitted before [`Action::HoldWrites`] is in the log.
    WritesHeld(Held),
    /// The number of replicas that have the whole log.
    InSync(usize),
    /// The time of [`Stop::next_deadline`]; an early event is harmless.
    Deadline,
    /// SHUTDOWN ABORT.
    Aborted,
    /// Another node has taken over, or no replica can.
    HandedOver,
    /// Whether the data could be saved.
    Saved(bool),
}

/// An action for the driver. Actions are performed in the order in which they are returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Pause client writes, then send [`Input::WritesHeld`].
    HoldWrites,
    /// Report with [`Input::InSync`] as replicas acknowledge the log up to `end`.
    AwaitReplicas {
        /// The end of the log.
        end: ReplOffset,
        /// The number of replicas to wait for.
        replicas: usize,
    },
    /// Log how many replicas have caught up; the wait is over.
    NoteInSync {
        /// The number of replicas that have the whole log.
        in_sync: usize,
        /// The number of all replicas.
        of: usize,
    },
    /// Ask a replica that has the whole log to take over, then send [`Input::HandedOver`].
    HandOver,
    /// Save the data, then send [`Input::Saved`].
    Save,
    /// Exit.
    Stop,
    /// Cancel the shutdown and resume client writes.
    GoOn(Because),
}

/// Why a shutdown is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// SHUTDOWN ABORT.
    Aborted,
    /// The data could not be saved.
    NotSaved,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Holding,
    Waiting { until: Instant, in_sync: usize, of: usize },
    HandingOver { until: Instant },
    Saving,
    Over,
}

/// The state machine of a running shutdown.
#[derive(Debug)]
pub struct Stop {
    plan: Plan,
    state: State,
}

impl Stop {
    /// Starts a shutdown.
    #[must_use]
    pub fn new(plan: Plan, out: &mut Vec<Action>) -> Self {
        out.push(Action::HoldWrites);
        Self { plan, state: State::Holding }
    }

    /// Returns the latest time to call [`Stop::handle`] with [`Input::Deadline`]. Only waiting for replicas and handing
    /// over have a timeout.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.state {
            State::Waiting { until, .. } | State::HandingOver { until } => Some(until),
            State::Holding | State::Saving | State::Over => None,
        }
    }

    /// Handles an event and appends the resulting actions to `out`.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Action>) {
        match (self.state, input) {
            (State::Holding, Input::WritesHeld(held)) => self.begin_waiting(now, held, out),
            (State::Waiting { until, of, .. }, Input::InSync(in_sync)) => {
                self.state = State::Waiting { until, in_sync, of };
                if in_sync >= of {
                    self.end_waiting(now, in_sync, of, out);
                }
            }
            (State::Waiting { until, in_sync, of }, Input::Deadline) if now >= until => {
                self.end_waiting(now, in_sync, of, out);
            }
            (State::HandingOver { .. }, Input::HandedOver) => self.save(out),
            (State::HandingOver { until }, Input::Deadline) if now >= until => self.save(out),
            (State::Waiting { .. }, Input::Aborted) => self.end(Action::GoOn(Because::Aborted), out),
            (State::Saving, Input::Saved(saved)) => {
                let stops = saved || self.plan.force;
                self.end(if stops { Action::Stop } else { Action::GoOn(Because::NotSaved) }, out);
            }
            (
                _,
                Input::WritesHeld(_)
                | Input::InSync(_)
                | Input::Deadline
                | Input::Aborted
                | Input::HandedOver
                | Input::Saved(_),
            ) => {}
        }
    }

    fn begin_waiting(&mut self, now: Instant, held: Held, out: &mut Vec<Action>) {
        let Held { end, replicas: of, in_sync, longest } = held;
        if of == 0 {
            self.save(out);
        } else if self.plan.now || longest.is_zero() {
            self.hand_over(now, out);
        } else if in_sync >= of {
            self.end_waiting(now, in_sync, of, out);
        } else {
            self.state = State::Waiting { until: now + longest, in_sync, of };
            out.push(Action::AwaitReplicas { end, replicas: of });
        }
    }

    fn end_waiting(&mut self, now: Instant, in_sync: usize, of: usize, out: &mut Vec<Action>) {
        out.push(Action::NoteInSync { in_sync, of });
        self.hand_over(now, out);
    }

    fn hand_over(&mut self, now: Instant, out: &mut Vec<Action>) {
        if !self.plan.hand_over {
            return self.save(out);
        }
        self.state = State::HandingOver { until: now + HANDOVER_TIMEOUT };
        out.push(Action::HandOver);
    }

    fn save(&mut self, out: &mut Vec<Action>) {
        self.state = State::Saving;
        out.push(Action::Save);
    }

    fn end(&mut self, how: Action, out: &mut Vec<Action>) {
        self.state = State::Over;
        out.push(how);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: Held =
        Held { end: ReplOffset(70), replicas: 2, in_sync: 0, longest: Duration::from_secs(10) };
    const AWAITS: Action = Action::AwaitReplicas { end: ReplOffset(70), replicas: 2 };

    fn noted(in_sync: usize) -> Action {
        Action::NoteInSync { in_sync, of: 2 }
    }

    /// The actions of a stop to which this happens, each at its second.
    fn actions_after(plan: Plan, inputs: &[(u64, Input)]) -> Vec<Action> {
        let mut out = Vec::new();
        let mut stop = Stop::new(plan, &mut out);
        for (second, input) in inputs {
            stop.handle(Instant::from_millis(second * 1000), *input, &mut out);
        }
        assert_eq!(out.remove(0), Action::HoldWrites);
        out
    }

    #[test]
    fn shutdown_waits_for_replicas_unless_there_are_none_or_no_time() {
        let save = vec![Action::Save];
        let plan = Plan::default();
        let held = |held| [(0, Input::WritesHeld(held))];
        assert_eq!(actions_after(plan, &held(HELD)), [AWAITS]);
        assert_eq!(actions_after(plan, &held(Held { replicas: 0, ..HELD })), save);
        assert_eq!(actions_after(plan, &held(Held { longest: Duration::ZERO, ..HELD })), save);
        assert_eq!(actions_after(Plan { now: true, ..plan }, &held(HELD)), save);
        assert_eq!(actions_after(plan, &held(Held { in_sync: 2, ..HELD })), [noted(2), Action::Save]);
    }

    #[test]
    fn wait_ends_with_the_last_replica_or_the_timeout() {
        let begin = (0, Input::WritesHeld(HELD));
        let table = [
            (vec![(1, Input::InSync(1)), (9, Input::Deadline)], vec![AWAITS]),
            (vec![(1, Input::InSync(1)), (2, Input::InSync(2))], vec![AWAITS, noted(2), Action::Save]),
            (vec![(1, Input::InSync(1)), (10, Input::Deadline)], vec![AWAITS, noted(1), Action::Save]),
            (vec![(10, Input::Deadline), (11, Input::InSync(2))], vec![AWAITS, noted(0), Action::Save]),
        ];
        for (inputs, expected) in table {
            assert_eq!(actions_after(Plan::default(), &[vec![begin], inputs].concat()), expected);
        }
    }

    #[test]
    fn data_is_saved_after_the_handover_or_its_timeout() {
        let plan = Plan { hand_over: true, ..Plan::default() };
        let begin = (0, Input::WritesHeld(HELD));
        let asked = [AWAITS, noted(2), Action::HandOver];
        for ends in [(3, Input::HandedOver), (3, Input::Deadline)] {
            let inputs = [begin, (1, Input::InSync(2)), (2, Input::Deadline), (2, Input::Aborted), ends];
            let expected = [&asked[..], &[Action::Save]].concat();
            assert_eq!(actions_after(plan, &inputs), expected, "{ends:?}");
            assert_eq!(actions_after(plan, &inputs[..4]), asked, "a handover cannot be aborted");
        }
        let nobody = Held { replicas: 0, ..HELD };
        assert_eq!(actions_after(plan, &[(0, Input::WritesHeld(nobody))]), [Action::Save]);
        assert_eq!(actions_after(Plan { now: true, ..plan }, &[begin]), [Action::HandOver]);
    }

    #[test]
    fn shutdown_can_be_aborted_until_the_save_starts() {
        let begin = (0, Input::WritesHeld(HELD));
        let over = Action::GoOn(Because::Aborted);
        assert_eq!(actions_after(Plan::default(), &[begin, (1, Input::Aborted)]), [AWAITS, over]);
        let late = [begin, (1, Input::Aborted), (2, Input::InSync(2)), (10, Input::Deadline)];
        assert_eq!(actions_after(Plan::default(), &late), [AWAITS, over], "it is over");
        let saving = [begin, (1, Input::InSync(2)), (2, Input::Aborted), (3, Input::Saved(true))];
        let expected = [AWAITS, noted(2), Action::Save, Action::Stop];
        assert_eq!(actions_after(Plan::default(), &saving), expected);
    }

    #[test]
    fn failed_save_cancels_the_shutdown_unless_forced() {
        for (saved, force, end) in [
            (true, false, Action::Stop),
            (true, true, Action::Stop),
            (false, true, Action::Stop),
            (false, false, Action::GoOn(Because::NotSaved)),
        ] {
            let inputs = [(0, Input::WritesHeld(HELD)), (1, Input::Saved(saved))];
            let plan = Plan { now: true, force, hand_over: false };
            assert_eq!(actions_after(plan, &inputs), [Action::Save, end], "{saved} {force}");
        }
        assert_eq!(
            actions_after(Plan::default(), &[(1, Input::Saved(true))]),
            [],
            "it has not been told to save"
        );
    }
}
