//! FAILOVER: a master hands its place to one of its replicas.
//!
//! | state | what is waited for | what then |
//! | --- | --- | --- |
//! | holding | every write that was let in before is in the log | the replicas are asked how far they are |
//! | syncing | the target, or any replica, has everything | this node follows it, and asks it to be the master |
//! | handing over | it has answered | that is what the configuration says from now on; or, if it says no, the end |
//!
//! Writes wait in all three. In the last this node takes none as a master any more: whatever ends it but the answer makes
//! this node the master again, under another name of the history, so that a target which took over all the same is told
//! apart.
//!
//! Invariants: no replica is followed before the writes are held, and none that lacks a write unless FORCE says so;
//! after each end, and only then, writes go on.

use std::time::Duration;

use clock::Instant;

use crate::Name;

/// Writes are held back no longer than this after what the operator allowed.
const LONGEST_HANDOVER: Duration = Duration::from_secs(60);
/// Without TIMEOUT an operator waits until he aborts.
const WITHOUT_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 86400);

/// The request that FAILOVER makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// The failover that goes on ends.
    Abort,
    /// One begins.
    Start {
        /// The replica that is to be the master; `None`: the first that has everything.
        target: Option<Name>,
        /// At the timeout the target takes over with what it has.
        force: bool,
        /// For how long a replica may take to have everything.
        timeout: Option<Duration>,
    },
}

/// This server, as an order finds it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Situation {
    /// It follows a master.
    pub is_replica: bool,
    /// Its replicas, and whether they get the stream.
    pub replicas: Vec<(Name, bool)>,
}

/// Why an order is not followed, as the operator is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum Refusal {
    #[error("ERR No failover in progress.")]
    NothingToAbort,
    #[error("ERR FAILOVER already in progress.")]
    UnderWay,
    #[error("ERR FAILOVER is not valid when server is a replica.")]
    IsReplica,
    #[error("ERR FAILOVER requires connected replicas.")]
    NoReplicas,
    #[error("ERR FAILOVER with force option requires both a timeout and target HOST and IP.")]
    ForceOfWhom,
    #[error("ERR FAILOVER target HOST and PORT is not a replica.")]
    NoSuchReplica,
    #[error("ERR FAILOVER target replica is not online.")]
    NotOnline,
}

/// An event that the machine is told of. What belongs to a state that is over is passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Every write that was let in before [`Action::HoldWrites`] is in the log.
    WritesHeld,
    /// The replicas that have everything, now that another acknowledgement has come.
    InSync(Vec<Name>),
    /// The link to the server that is followed is up, whichever that is.
    Following,
    /// The server that is followed will not have this node as its replica.
    TurnedAway,
    /// The time of [`Handover::next_deadline`] has come, or not yet.
    Deadline,
}

/// An action for the driver, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Writes wait, for so long at the most; then [`Input::WritesHeld`].
    HoldWrites(Duration),
    /// The replicas are to say how far they are.
    AskForAcknowledgements,
    /// This node follows a replica and asks it to be the master.
    Follow(Name),
    /// That is the master from now on, also for the configuration.
    Settle(Name),
    /// This node is the master again.
    StayMaster,
    /// Writes go on, and the failover is over; the target is the master, or it is not.
    ResumeWrites {
        /// Whether it is.
        done: bool,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum State {
    #[default]
    None,
    Holding(Wanted),
    Syncing(Wanted),
    HandingOver {
        to: Name,
        until: Instant,
    },
}

/// The replica that is to take over, and until when it may get what it lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    target: Option<Name>,
    force: bool,
    until: Instant,
}

/// The failover that goes on, if one does.
#[derive(Debug, Default)]
pub struct Handover {
    state: State,
}

impl Handover {
    /// As INFO shows it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.state {
            State::None => "no-failover",
            State::Holding(_) | State::Syncing(_) => "waiting-for-sync",
            State::HandingOver { .. } => "failover-in-progress",
        }
    }

    /// Whether one goes on.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.state != State::None
    }

    /// When to call [`Handover::handle`] with [`Input::Deadline`] at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::None | State::Holding(_) => None,
            State::Syncing(Wanted { until, .. }) | State::HandingOver { until, .. } => Some(*until),
        }
    }

    /// An operator's word.
    ///
    /// # Errors
    ///
    /// Why nothing is done.
    pub fn order(
        &mut self,
        now: Instant,
        order: Order,
        situation: &Situation,
        out: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        match order {
            Order::Abort if self.is_under_way() => {
                self.end(false, out);
                Ok(())
            }
            Order::Abort => Err(Refusal::NothingToAbort),
            Order::Start { target, force, timeout } => {
                self.check(target.as_ref(), force && (target.is_none() || timeout.is_none()), situation)?;
                let longest = timeout.unwrap_or(WITHOUT_TIMEOUT);
                self.state = State::Holding(Wanted { target, force, until: now + longest });
                out.push(Action::HoldWrites(longest + LONGEST_HANDOVER));
                Ok(())
            }
        }
    }

    fn check(
        &self,
        target: Option<&Name>,
        force_of_whom: bool,
        situation: &Situation,
    ) -> Result<(), Refusal> {
        if self.is_under_way() {
            return Err(Refusal::UnderWay);
        }
        if situation.is_replica {
            return Err(Refusal::IsReplica);
        }
        if situation.replicas.is_empty() {
            return Err(Refusal::NoReplicas);
        }
        if force_of_whom {
            return Err(Refusal::ForceOfWhom);
        }
        let Some(target) = target else { return Ok(()) };
        match situation.replicas.iter().find(|(name, _)| name == target) {
            None => Err(Refusal::NoSuchReplica),
            Some((_, false)) => Err(Refusal::NotOnline),
            Some((_, true)) => Ok(()),
        }
    }

    /// Takes an event.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Action>) {
        match (&self.state, input) {
            (State::Holding(wanted), Input::WritesHeld) => {
                self.state = State::Syncing(wanted.clone());
                out.push(Action::AskForAcknowledgements);
            }
            (State::Syncing(wanted), Input::InSync(replicas)) => {
                let mut fit = replicas
                    .into_iter()
                    .filter(|name| wanted.target.as_ref().is_none_or(|target| target == name));
                if let Some(to) = fit.next() {
                    self.hand_over(now, to, out);
                }
            }
            (State::Syncing(Wanted { target, force, until }), Input::Deadline) if now >= *until => {
                match target.clone().filter(|_| *force) {
                    Some(to) => self.hand_over(now, to, out),
                    None => self.end(false, out),
                }
            }
            (State::HandingOver { to, .. }, Input::Following) => {
                out.push(Action::Settle(to.clone()));
                self.end(true, out);
            }
            (State::HandingOver { .. }, Input::TurnedAway) => self.end(false, out),
            (State::HandingOver { until, .. }, Input::Deadline) if now >= *until => self.end(false, out),
            (
                _,
                Input::WritesHeld | Input::InSync(_) | Input::Following | Input::TurnedAway | Input::Deadline,
            ) => {}
        }
    }

    fn hand_over(&mut self, now: Instant, to: Name, out: &mut Vec<Action>) {
        out.push(Action::Follow(to.clone()));
        self.state = State::HandingOver { to, until: now + LONGEST_HANDOVER };
    }

    fn end(&mut self, done: bool, out: &mut Vec<Action>) {
        if matches!(self.state, State::HandingOver { .. }) && !done {
            out.push(Action::StayMaster);
        }
        out.push(Action::ResumeWrites { done });
        self.state = State::None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    fn name(host: &str) -> Name {
        (host.to_owned(), 7000)
    }

    fn situation() -> Situation {
        Situation {
            is_replica: false,
            replicas: vec![(name("a"), true), (name("b"), true), (name("c"), false)],
        }
    }

    fn start(target: Option<&str>, force: bool, timeout: Option<Duration>) -> Order {
        Order::Start { target: target.map(name), force, timeout }
    }

    /// A machine in which a failover has begun at second 0, and holds its writes.
    fn syncing(target: Option<&str>, force: bool, timeout: Option<Duration>) -> Handover {
        let (mut machine, mut out) = (Handover::default(), Vec::new());
        machine.order(at(0), start(target, force, timeout), &situation(), &mut out).expect("it begins");
        assert_eq!(out, [Action::HoldWrites(timeout.unwrap_or(WITHOUT_TIMEOUT) + LONGEST_HANDOVER)]);
        assert_eq!(give(&mut machine, 0, Input::WritesHeld), [Action::AskForAcknowledgements]);
        machine
    }

    fn give(machine: &mut Handover, second: u64, input: Input) -> Vec<Action> {
        let mut out = Vec::new();
        machine.handle(at(second), input, &mut out);
        out
    }

    fn abort(machine: &mut Handover) -> (Result<(), Refusal>, Vec<Action>) {
        let mut out = Vec::new();
        (machine.order(at(1), Order::Abort, &situation(), &mut out), out)
    }

    fn in_sync(hosts: &[&str]) -> Input {
        Input::InSync(hosts.iter().map(|host| name(host)).collect())
    }

    #[test]
    fn orders_that_make_no_sense_change_nothing() {
        let replica = Situation { is_replica: true, ..situation() };
        let alone = Situation::default();
        let table = [
            (start(None, false, None), replica, Refusal::IsReplica),
            (start(None, false, None), alone.clone(), Refusal::NoReplicas),
            (start(Some("a"), true, None), alone, Refusal::NoReplicas),
            (start(Some("a"), true, None), situation(), Refusal::ForceOfWhom),
            (start(None, true, Some(TIMEOUT)), situation(), Refusal::ForceOfWhom),
            (start(Some("x"), false, None), situation(), Refusal::NoSuchReplica),
            (start(Some("c"), false, None), situation(), Refusal::NotOnline),
            (Order::Abort, situation(), Refusal::NothingToAbort),
        ];
        for (order, situation, refusal) in table {
            let (mut machine, mut out) = (Handover::default(), Vec::new());
            assert_eq!(machine.order(at(0), order.clone(), &situation, &mut out), Err(refusal), "{order:?}");
            assert_eq!((out, machine.name(), machine.next_deadline()), (vec![], "no-failover", None));
        }
        let mut machine = syncing(None, false, None);
        let again = machine.order(at(1), start(None, false, None), &situation(), &mut Vec::new());
        assert_eq!(again, Err(Refusal::UnderWay));
    }

    /// A write that was let in and is not in the log yet is missing at each replica that has all of the log.
    #[test]
    fn nobody_is_followed_before_the_writes_are_held() {
        let (mut machine, mut out) = (Handover::default(), Vec::new());
        machine
            .order(at(0), start(Some("a"), true, Some(TIMEOUT)), &situation(), &mut out)
            .expect("it begins");
        for input in [in_sync(&["a", "b"]), Input::Following, Input::TurnedAway, Input::Deadline] {
            assert_eq!(give(&mut machine, 100, input), []);
        }
        assert_eq!((machine.name(), machine.next_deadline()), ("waiting-for-sync", None));
    }

    #[test]
    fn the_replica_that_has_everything_takes_over() {
        for (target, has, takes) in [
            (None, &["b", "a"][..], Some("b")),
            (Some("a"), &["b", "a"], Some("a")),
            (Some("a"), &["b"], None),
            (None, &[], None),
        ] {
            let mut machine = syncing(target, false, None);
            let Some(to) = takes.map(name) else {
                assert_eq!(give(&mut machine, 1, in_sync(has)), [], "{target:?}");
                continue;
            };
            assert_eq!(give(&mut machine, 1, Input::Following), [], "this node follows nobody yet");
            assert_eq!(give(&mut machine, 1, in_sync(has)), [Action::Follow(to.clone())]);
            assert_eq!(machine.name(), "failover-in-progress");
            assert_eq!(give(&mut machine, 2, in_sync(has)), [], "one is asked once");
            let end = [Action::Settle(to), Action::ResumeWrites { done: true }];
            assert_eq!(give(&mut machine, 3, Input::Following), end);
            assert!(!machine.is_under_way());
        }
    }

    #[test]
    fn at_the_timeout_it_is_forced_or_over() {
        let mut machine = syncing(Some("a"), false, Some(TIMEOUT));
        assert_eq!(machine.next_deadline(), Some(at(10)));
        assert_eq!(give(&mut machine, 9, Input::Deadline), [], "too early");
        assert_eq!(give(&mut machine, 10, Input::Deadline), [Action::ResumeWrites { done: false }]);
        let mut machine = syncing(Some("a"), true, Some(TIMEOUT));
        assert_eq!(give(&mut machine, 10, Input::Deadline), [Action::Follow(name("a"))]);
        assert_eq!(machine.next_deadline(), Some(at(70)));
        let stays = [Action::StayMaster, Action::ResumeWrites { done: false }];
        assert_eq!(give(&mut machine, 69, Input::Deadline), []);
        assert_eq!(give(&mut machine, 70, Input::Deadline), stays, "it has not answered");
        assert_eq!(give(&mut machine, 71, Input::Following), [], "what comes late changes nothing");
    }

    /// The target's data was not what it should be, so it refused; and writes waited for a minute.
    #[test]
    fn a_target_that_says_no_ends_it_at_once() {
        let mut machine = syncing(Some("a"), false, None);
        assert_eq!(give(&mut machine, 1, Input::TurnedAway), [], "it has not been asked");
        assert_eq!(give(&mut machine, 1, in_sync(&["a"])), [Action::Follow(name("a"))]);
        let stays = [Action::StayMaster, Action::ResumeWrites { done: false }];
        assert_eq!(give(&mut machine, 2, Input::TurnedAway), stays);
        assert!(!machine.is_under_way());
        assert_eq!(give(&mut machine, 3, Input::TurnedAway), [], "it is over");
    }

    #[test]
    fn an_operator_calls_it_off_wherever_it_is() {
        let over = Action::ResumeWrites { done: false };
        let (mut machine, mut out) = (Handover::default(), Vec::new());
        machine.order(at(0), start(None, false, None), &situation(), &mut out).expect("it begins");
        assert_eq!(abort(&mut machine), (Ok(()), vec![over.clone()]));
        assert_eq!(give(&mut machine, 1, Input::WritesHeld), [], "they were held for nothing");
        let mut machine = syncing(None, false, None);
        assert_eq!(abort(&mut machine), (Ok(()), vec![over.clone()]));
        let mut machine = syncing(None, false, None);
        give(&mut machine, 1, in_sync(&["a"]));
        assert_eq!(abort(&mut machine), (Ok(()), vec![Action::StayMaster, over]));
        assert_eq!(abort(&mut machine), (Err(Refusal::NothingToAbort), vec![]));
    }
}
