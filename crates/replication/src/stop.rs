//! SHUTDOWN: a server stops on purpose, and its replicas have everything if they can.
//!
//! | state | what is waited for | what then |
//! | --- | --- | --- |
//! | holding | every write that was let in before is in the log | a master that has replicas waits for them |
//! | waiting | all of them have everything, or the time is over | one of them takes over if that is wanted, or the data is saved |
//! | handing over | another node has its place, or that took too long | the data is saved |
//! | saving | it is saved, or that failed | the server stops, or with the latter goes on |
//!
//! Invariant: nothing is saved before the writes are held, and no server stops before it has tried to save. An abort
//! counts while replicas are waited for: what is being saved cannot be called off.

use std::time::Duration;

use clock::Instant;
use slot_routing::ReplOffset;

/// How to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Plan {
    /// Replicas are not waited for.
    pub now: bool,
    /// Also when the data cannot be saved.
    pub force: bool,
    /// A master of a cluster gives its place to a replica first.
    pub hand_over: bool,
}

/// A replica takes over within this, or by itself when this node is gone.
pub const HAND_OVER_WITHIN: Duration = Duration::from_secs(2);

/// The log and its readers, once writes are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Where the log ends.
    pub end: ReplOffset,
    /// How many replicas there are; none of a replica's own, which have their own way to the master.
    pub replicas: usize,
    /// How many of them have everything.
    pub in_sync: usize,
    /// For how long the others may take (`shutdown-timeout`).
    pub longest: Duration,
}

/// An event that the machine is told of. What belongs to a state that is over is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Every write that was let in before [`Action::HoldWrites`] is in the log.
    WritesHeld(Held),
    /// So many replicas have everything now.
    InSync(usize),
    /// The time of [`Stop::next_deadline`] has come, or not yet.
    Deadline,
    /// SHUTDOWN ABORT.
    Aborted,
    /// Another node has this one's place, or nobody is to have it.
    HandedOver,
    /// The data is saved, or could not be.
    Saved(bool),
}

/// An action for the driver, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Writes wait; then [`Input::WritesHeld`].
    HoldWrites,
    /// It is to be told when so many replicas have everything before the offset.
    AwaitReplicas {
        /// The offset.
        end: ReplOffset,
        /// How many.
        replicas: usize,
    },
    /// So many of the replicas have everything; no more are waited for.
    NoteInSync {
        /// How many have.
        in_sync: usize,
        /// How many there are.
        of: usize,
    },
    /// A replica that has everything is to take over; then [`Input::HandedOver`].
    HandOver,
    /// The data is to be saved; then [`Input::Saved`].
    Save,
    /// The server stops.
    Stop,
    /// It does not after all, and writes go on.
    GoOn(Because),
}

/// Why the server goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// An operator wants it.
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

/// A stop that is under way.
#[derive(Debug)]
pub struct Stop {
    plan: Plan,
    state: State,
}

impl Stop {
    /// Begins one.
    #[must_use]
    pub fn new(plan: Plan, out: &mut Vec<Action>) -> Self {
        out.push(Action::HoldWrites);
        Self { plan, state: State::Holding }
    }

    /// When to call [`Stop::handle`] with [`Input::Deadline`] at the latest: while it waits for replicas or for one to
    /// take over, and then only.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.state {
            State::Waiting { until, .. } | State::HandingOver { until } => Some(until),
            State::Holding | State::Saving | State::Over => None,
        }
    }

    /// Takes an event.
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
        self.state = State::HandingOver { until: now + HAND_OVER_WITHIN };
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
    fn told(plan: Plan, inputs: &[(u64, Input)]) -> Vec<Action> {
        let mut out = Vec::new();
        let mut stop = Stop::new(plan, &mut out);
        for (second, input) in inputs {
            stop.handle(Instant::from_millis(second * 1000), *input, &mut out);
        }
        assert_eq!(out.remove(0), Action::HoldWrites);
        out
    }

    #[test]
    fn replicas_are_waited_for_where_there_are_any_and_time() {
        let save = vec![Action::Save];
        let plan = Plan::default();
        let held = |held| [(0, Input::WritesHeld(held))];
        assert_eq!(told(plan, &held(HELD)), [AWAITS]);
        assert_eq!(told(plan, &held(Held { replicas: 0, ..HELD })), save);
        assert_eq!(told(plan, &held(Held { longest: Duration::ZERO, ..HELD })), save);
        assert_eq!(told(Plan { now: true, ..plan }, &held(HELD)), save);
        assert_eq!(told(plan, &held(Held { in_sync: 2, ..HELD })), [noted(2), Action::Save]);
    }

    #[test]
    fn the_wait_ends_with_the_last_replica_or_with_its_time() {
        let begin = (0, Input::WritesHeld(HELD));
        let table = [
            (vec![(1, Input::InSync(1)), (9, Input::Deadline)], vec![AWAITS]),
            (vec![(1, Input::InSync(1)), (2, Input::InSync(2))], vec![AWAITS, noted(2), Action::Save]),
            (vec![(1, Input::InSync(1)), (10, Input::Deadline)], vec![AWAITS, noted(1), Action::Save]),
            (vec![(10, Input::Deadline), (11, Input::InSync(2))], vec![AWAITS, noted(0), Action::Save]),
        ];
        for (inputs, expected) in table {
            assert_eq!(told(Plan::default(), &[vec![begin], inputs].concat()), expected);
        }
    }

    #[test]
    fn a_replica_takes_over_before_the_data_is_saved_or_the_time_for_it_is_over() {
        let plan = Plan { hand_over: true, ..Plan::default() };
        let begin = (0, Input::WritesHeld(HELD));
        let asked = [AWAITS, noted(2), Action::HandOver];
        for ends in [(3, Input::HandedOver), (3, Input::Deadline)] {
            let inputs = [begin, (1, Input::InSync(2)), (2, Input::Deadline), (2, Input::Aborted), ends];
            let expected = [&asked[..], &[Action::Save]].concat();
            assert_eq!(told(plan, &inputs), expected, "{ends:?}");
            assert_eq!(told(plan, &inputs[..4]), asked, "what was said to a replica cannot be taken back");
        }
        let nobody = Held { replicas: 0, ..HELD };
        assert_eq!(told(plan, &[(0, Input::WritesHeld(nobody))]), [Action::Save]);
        assert_eq!(told(Plan { now: true, ..plan }, &[begin]), [Action::HandOver]);
    }

    #[test]
    fn it_is_called_off_until_the_save_begins() {
        let begin = (0, Input::WritesHeld(HELD));
        let over = Action::GoOn(Because::Aborted);
        assert_eq!(told(Plan::default(), &[begin, (1, Input::Aborted)]), [AWAITS, over]);
        let late = [begin, (1, Input::Aborted), (2, Input::InSync(2)), (10, Input::Deadline)];
        assert_eq!(told(Plan::default(), &late), [AWAITS, over], "it is over");
        let saving = [begin, (1, Input::InSync(2)), (2, Input::Aborted), (3, Input::Saved(true))];
        let expected = [AWAITS, noted(2), Action::Save, Action::Stop];
        assert_eq!(told(Plan::default(), &saving), expected);
    }

    #[test]
    fn a_server_that_cannot_save_goes_on_unless_it_is_forced() {
        for (saved, force, end) in [
            (true, false, Action::Stop),
            (true, true, Action::Stop),
            (false, true, Action::Stop),
            (false, false, Action::GoOn(Because::NotSaved)),
        ] {
            let inputs = [(0, Input::WritesHeld(HELD)), (1, Input::Saved(saved))];
            let plan = Plan { now: true, force, hand_over: false };
            assert_eq!(told(plan, &inputs), [Action::Save, end], "{saved} {force}");
        }
        assert_eq!(told(Plan::default(), &[(1, Input::Saved(true))]), [], "it has not been told to save");
    }
}
