//! The state machine of FAILOVER: a master hands over to one of its replicas.
//!
//! | state | waits until | next |
//! | --- | --- | --- |
//! | holding | running writes are in the log | requests acknowledgements from the replicas |
//! | syncing | the target, or any replica, has the whole log | follows that replica and asks it to take over |
//! | handing over | the replica answers | the failover is complete; if the replica refuses or does not answer, this node stays the master |
//!
//! Client writes are paused in all three states. If the last state fails, this node becomes the master again with a new
//! replication id, so that its history differs from that of a target that took over after all.
//!
//! Invariants: the node follows no replica before writes are paused, and follows a replica that lacks a write only if
//! FORCE was given. Writes resume when the failover ends, and not before.

use std::time::Duration;

use clock::Instant;
use driver::Driver;

use crate::HostPort;

/// How long the target may take to answer the request to take over. Writes are paused for at most this long after the
/// operator's timeout.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(60);
/// The deadline of a FAILOVER without TIMEOUT, which waits until it is aborted.
const UNLIMITED_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 86400);

/// A parsed FAILOVER command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandoverCommand {
    /// FAILOVER ABORT: abort the running failover.
    Abort,
    /// Start a failover, unless one is running.
    Start {
        /// The replica to promote; `None` selects the first replica that has caught up.
        target: Option<HostPort>,
        /// Whether the target takes over at the timeout even if it has not caught up.
        is_forced: bool,
        /// How long a replica may take to catch up; `None` waits without a limit.
        timeout: Option<Duration>,
    },
}

/// The properties of this server on which the reply to FAILOVER depends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandoverContext {
    /// Whether this server is a replica. A replica cannot hand over.
    pub is_replica: bool,
    /// The replicas of this server, each with whether it is online.
    pub replicas: Vec<(HostPort, bool)>,
}

/// Why a FAILOVER command is refused, with the error text for the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum HandoverError {
    #[error("ERR No failover in progress.")]
    NothingToAbort,
    #[error("ERR FAILOVER already in progress.")]
    AlreadyInProgress,
    #[error("ERR FAILOVER is not valid when server is a replica.")]
    IsReplica,
    #[error("ERR FAILOVER requires connected replicas.")]
    NoReplicas,
    #[error("ERR FAILOVER with force option requires both a timeout and target HOST and IP.")]
    ForceWithoutTarget,
    #[error("ERR FAILOVER target HOST and PORT is not a replica.")]
    NoSuchReplica,
    #[error("ERR FAILOVER target replica is not online.")]
    NotOnline,
}

/// An event of the failover. Events that do not belong to the current state are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandoverEvent {
    /// Every write admitted before [`HandoverAction::PauseWrites`] is in the log.
    WritesPaused,
    /// The replicas that have the whole log; reported after each acknowledgement.
    InSync(Vec<HostPort>),
    /// The link to the replica that this node now follows is up.
    LinkUp,
    /// The replica that this node now follows refuses the connection.
    Refused,
    /// The time returned by [`Handover::next_deadline`] has come; an early event is harmless.
    Deadline,
}

/// An action for the driver. Actions are performed in the order in which they are returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandoverAction {
    /// Pause client writes for at most this long, then send [`HandoverEvent::WritesPaused`].
    PauseWrites(Duration),
    /// Send REPLCONF GETACK to the replicas.
    RequestAcknowledgements,
    /// Become a replica of this replica and ask it to take over (PSYNC FAILOVER).
    Follow(HostPort),
    /// Record the new master in the configuration (`replicaof`), because the target has become the master.
    RecordMaster(HostPort),
    /// Become the master again, because the target did not take over.
    StayMaster,
    /// Resume client writes, because the failover has ended.
    ResumeWrites {
        /// Whether the target has become the master; if false, this node is still the master.
        has_handed_over: bool,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum HandoverState {
    #[default]
    Idle,
    PausingWrites(HandoverParameters),
    Syncing(HandoverParameters),
    HandingOver {
        target: HostPort,
        deadline: Instant,
    },
}

/// The parameters of the running failover.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HandoverParameters {
    target: Option<HostPort>,
    is_forced: bool,
    /// When the target must have caught up.
    catch_up_deadline: Instant,
}

/// The state machine of FAILOVER. Idle while no failover is running.
#[derive(Debug, Default)]
pub struct Handover {
    state: HandoverState,
}

impl Handover {
    /// Returns the state in the form of the INFO field `master_failover_state`.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state {
            HandoverState::Idle => "no-failover",
            HandoverState::PausingWrites(_) | HandoverState::Syncing(_) => "waiting-for-sync",
            HandoverState::HandingOver { .. } => "failover-in-progress",
        }
    }

    /// Returns whether a failover is running in any state.
    #[must_use]
    pub fn is_in_progress(&self) -> bool {
        self.state != HandoverState::Idle
    }

    /// Handles a FAILOVER command.
    ///
    /// # Errors
    /// The command is refused, and the state is unchanged.
    pub fn handle_command(
        &mut self,
        now: Instant,
        command: HandoverCommand,
        context: &HandoverContext,
        out: &mut Vec<HandoverAction>,
    ) -> Result<(), HandoverError> {
        match command {
            HandoverCommand::Abort if self.is_in_progress() => {
                self.finish(false, out);
                Ok(())
            }
            HandoverCommand::Abort => Err(HandoverError::NothingToAbort),
            HandoverCommand::Start { target, is_forced: force, timeout } => {
                self.check_start(target.as_ref(), force && (target.is_none() || timeout.is_none()), context)?;
                let longest = timeout.unwrap_or(UNLIMITED_TIMEOUT);
                self.state = HandoverState::PausingWrites(HandoverParameters {
                    target,
                    is_forced: force,
                    catch_up_deadline: now + longest,
                });
                out.push(HandoverAction::PauseWrites(longest + HANDOVER_TIMEOUT));
                Ok(())
            }
        }
    }

    fn check_start(
        &self,
        target: Option<&HostPort>,
        force_without_target: bool,
        context: &HandoverContext,
    ) -> Result<(), HandoverError> {
        if self.is_in_progress() {
            return Err(HandoverError::AlreadyInProgress);
        }
        if context.is_replica {
            return Err(HandoverError::IsReplica);
        }
        if context.replicas.is_empty() {
            return Err(HandoverError::NoReplicas);
        }
        if force_without_target {
            return Err(HandoverError::ForceWithoutTarget);
        }
        let Some(target) = target else { return Ok(()) };
        match context.replicas.iter().find(|(name, _)| name == target) {
            None => Err(HandoverError::NoSuchReplica),
            Some((_, false)) => Err(HandoverError::NotOnline),
            Some((_, true)) => Ok(()),
        }
    }

    fn hand_over(&mut self, now: Instant, target: HostPort, out: &mut Vec<HandoverAction>) {
        out.push(HandoverAction::Follow(target.clone()));
        self.state = HandoverState::HandingOver { target, deadline: now + HANDOVER_TIMEOUT };
    }

    fn finish(&mut self, has_handed_over: bool, out: &mut Vec<HandoverAction>) {
        if matches!(self.state, HandoverState::HandingOver { .. }) && !has_handed_over {
            out.push(HandoverAction::StayMaster);
        }
        out.push(HandoverAction::ResumeWrites { has_handed_over });
        self.state = HandoverState::Idle;
    }
}

impl Driver for Handover {
    type Event = HandoverEvent;
    type Actions = Vec<HandoverAction>;

    /// Handles an event and appends the resulting actions to `out`.
    fn handle(&mut self, now: Instant, event: HandoverEvent, out: &mut Vec<HandoverAction>) {
        match (&self.state, event) {
            (HandoverState::PausingWrites(wanted), HandoverEvent::WritesPaused) => {
                self.state = HandoverState::Syncing(wanted.clone());
                out.push(HandoverAction::RequestAcknowledgements);
            }
            (HandoverState::Syncing(wanted), HandoverEvent::InSync(replicas)) => {
                let mut fit = replicas
                    .into_iter()
                    .filter(|name| wanted.target.as_ref().is_none_or(|target| target == name));
                if let Some(to) = fit.next() {
                    self.hand_over(now, to, out);
                }
            }
            (
                HandoverState::Syncing(HandoverParameters {
                    target,
                    is_forced: force,
                    catch_up_deadline: until,
                }),
                HandoverEvent::Deadline,
            ) if now >= *until => match target.clone().filter(|_| *force) {
                Some(to) => self.hand_over(now, to, out),
                None => self.finish(false, out),
            },
            (HandoverState::HandingOver { target: to, .. }, HandoverEvent::LinkUp) => {
                out.push(HandoverAction::RecordMaster(to.clone()));
                self.finish(true, out);
            }
            (HandoverState::HandingOver { .. }, HandoverEvent::Refused) => self.finish(false, out),
            (HandoverState::HandingOver { deadline: until, .. }, HandoverEvent::Deadline)
                if now >= *until =>
            {
                self.finish(false, out);
            }
            (
                _,
                HandoverEvent::WritesPaused
                | HandoverEvent::InSync(_)
                | HandoverEvent::LinkUp
                | HandoverEvent::Refused
                | HandoverEvent::Deadline,
            ) => {}
        }
    }

    /// Returns the latest time to call [`Handover::handle`] with [`HandoverEvent::Deadline`].
    fn next_deadline(&self) -> Option<Instant> {
        match &self.state {
            HandoverState::Idle | HandoverState::PausingWrites(_) => None,
            HandoverState::Syncing(HandoverParameters { catch_up_deadline: until, .. })
            | HandoverState::HandingOver { deadline: until, .. } => Some(*until),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(10);

    fn at_seconds(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    fn host_port(host: &str) -> HostPort {
        (host.to_owned(), 7000)
    }

    fn master_context() -> HandoverContext {
        HandoverContext {
            is_replica: false,
            replicas: vec![(host_port("a"), true), (host_port("b"), true), (host_port("c"), false)],
        }
    }

    fn start_command(target: Option<&str>, is_forced: bool, timeout: Option<Duration>) -> HandoverCommand {
        HandoverCommand::Start { target: target.map(host_port), is_forced, timeout }
    }

    /// Returns a state machine that began its failover at second 0 and has paused writes.
    fn syncing_handover(target: Option<&str>, is_forced: bool, timeout: Option<Duration>) -> Handover {
        let (mut machine, mut out) = (Handover::default(), Vec::new());
        machine
            .handle_command(
                at_seconds(0),
                start_command(target, is_forced, timeout),
                &master_context(),
                &mut out,
            )
            .expect("it begins");
        assert_eq!(
            out,
            [HandoverAction::PauseWrites(timeout.unwrap_or(UNLIMITED_TIMEOUT) + HANDOVER_TIMEOUT)]
        );
        assert_eq!(
            handle_event(&mut machine, 0, HandoverEvent::WritesPaused),
            [HandoverAction::RequestAcknowledgements]
        );
        machine
    }

    fn handle_event(machine: &mut Handover, second: u64, event: HandoverEvent) -> Vec<HandoverAction> {
        let mut out = Vec::new();
        machine.handle(at_seconds(second), event, &mut out);
        out
    }

    fn abort(machine: &mut Handover) -> (Result<(), HandoverError>, Vec<HandoverAction>) {
        let mut out = Vec::new();
        (machine.handle_command(at_seconds(1), HandoverCommand::Abort, &master_context(), &mut out), out)
    }

    fn in_sync_event(hosts: &[&str]) -> HandoverEvent {
        HandoverEvent::InSync(hosts.iter().map(|host| host_port(host)).collect())
    }

    #[test]
    fn invalid_commands_change_nothing() {
        let replica = HandoverContext { is_replica: true, ..master_context() };
        let alone = HandoverContext::default();
        let table = [
            (start_command(None, false, None), replica, HandoverError::IsReplica),
            (start_command(None, false, None), alone.clone(), HandoverError::NoReplicas),
            (start_command(Some("a"), true, None), alone, HandoverError::NoReplicas),
            (start_command(Some("a"), true, None), master_context(), HandoverError::ForceWithoutTarget),
            (
                start_command(None, true, Some(TEST_TIMEOUT)),
                master_context(),
                HandoverError::ForceWithoutTarget,
            ),
            (start_command(Some("x"), false, None), master_context(), HandoverError::NoSuchReplica),
            (start_command(Some("c"), false, None), master_context(), HandoverError::NotOnline),
            (HandoverCommand::Abort, master_context(), HandoverError::NothingToAbort),
        ];
        for (order, situation, refusal) in table {
            let (mut machine, mut out) = (Handover::default(), Vec::new());
            assert_eq!(
                machine.handle_command(at_seconds(0), order.clone(), &situation, &mut out),
                Err(refusal),
                "{order:?}"
            );
            assert_eq!((out, machine.state_name(), machine.next_deadline()), (vec![], "no-failover", None));
        }
        let mut machine = syncing_handover(None, false, None);
        let again = machine.handle_command(
            at_seconds(1),
            start_command(None, false, None),
            &master_context(),
            &mut Vec::new(),
        );
        assert_eq!(again, Err(HandoverError::AlreadyInProgress));
    }

    /// A write that was admitted but not logged yet is missing on every replica, even on a replica that has the whole
    /// log.
    #[test]
    fn no_replica_is_followed_before_writes_are_paused() {
        let (mut machine, mut out) = (Handover::default(), Vec::new());
        machine
            .handle_command(
                at_seconds(0),
                start_command(Some("a"), true, Some(TEST_TIMEOUT)),
                &master_context(),
                &mut out,
            )
            .expect("it begins");
        for input in [
            in_sync_event(&["a", "b"]),
            HandoverEvent::LinkUp,
            HandoverEvent::Refused,
            HandoverEvent::Deadline,
        ] {
            assert_eq!(handle_event(&mut machine, 100, input), []);
        }
        assert_eq!((machine.state_name(), machine.next_deadline()), ("waiting-for-sync", None));
    }

    #[test]
    fn replica_that_has_caught_up_takes_over() {
        for (target, has, takes) in [
            (None, &["b", "a"][..], Some("b")),
            (Some("a"), &["b", "a"], Some("a")),
            (Some("a"), &["b"], None),
            (None, &[], None),
        ] {
            let mut machine = syncing_handover(target, false, None);
            let Some(to) = takes.map(host_port) else {
                assert_eq!(handle_event(&mut machine, 1, in_sync_event(has)), [], "{target:?}");
                continue;
            };
            assert_eq!(
                handle_event(&mut machine, 1, HandoverEvent::LinkUp),
                [],
                "this node follows nobody yet"
            );
            assert_eq!(
                handle_event(&mut machine, 1, in_sync_event(has)),
                [HandoverAction::Follow(to.clone())]
            );
            assert_eq!(machine.state_name(), "failover-in-progress");
            assert_eq!(handle_event(&mut machine, 2, in_sync_event(has)), [], "one is asked once");
            let end =
                [HandoverAction::RecordMaster(to), HandoverAction::ResumeWrites { has_handed_over: true }];
            assert_eq!(handle_event(&mut machine, 3, HandoverEvent::LinkUp), end);
            assert!(!machine.is_in_progress());
        }
    }

    #[test]
    fn timeout_forces_or_ends_the_failover() {
        let mut machine = syncing_handover(Some("a"), false, Some(TEST_TIMEOUT));
        assert_eq!(machine.next_deadline(), Some(at_seconds(10)));
        assert_eq!(handle_event(&mut machine, 9, HandoverEvent::Deadline), [], "too early");
        assert_eq!(
            handle_event(&mut machine, 10, HandoverEvent::Deadline),
            [HandoverAction::ResumeWrites { has_handed_over: false }]
        );
        let mut machine = syncing_handover(Some("a"), true, Some(TEST_TIMEOUT));
        assert_eq!(
            handle_event(&mut machine, 10, HandoverEvent::Deadline),
            [HandoverAction::Follow(host_port("a"))]
        );
        assert_eq!(machine.next_deadline(), Some(at_seconds(70)));
        let stays = [HandoverAction::StayMaster, HandoverAction::ResumeWrites { has_handed_over: false }];
        assert_eq!(handle_event(&mut machine, 69, HandoverEvent::Deadline), []);
        assert_eq!(handle_event(&mut machine, 70, HandoverEvent::Deadline), stays, "it has not answered");
        assert_eq!(
            handle_event(&mut machine, 71, HandoverEvent::LinkUp),
            [],
            "what comes late changes nothing"
        );
    }

    /// Regression test: writes stayed paused for a minute after the target had refused to take over.
    #[test]
    fn refusal_by_the_target_ends_the_failover_at_once() {
        let mut machine = syncing_handover(Some("a"), false, None);
        assert_eq!(handle_event(&mut machine, 1, HandoverEvent::Refused), [], "it has not been asked");
        assert_eq!(
            handle_event(&mut machine, 1, in_sync_event(&["a"])),
            [HandoverAction::Follow(host_port("a"))]
        );
        let stays = [HandoverAction::StayMaster, HandoverAction::ResumeWrites { has_handed_over: false }];
        assert_eq!(handle_event(&mut machine, 2, HandoverEvent::Refused), stays);
        assert!(!machine.is_in_progress());
        assert_eq!(handle_event(&mut machine, 3, HandoverEvent::Refused), [], "it is over");
    }

    #[test]
    fn failover_can_be_aborted_in_every_state() {
        let over = HandoverAction::ResumeWrites { has_handed_over: false };
        let (mut machine, mut out) = (Handover::default(), Vec::new());
        machine
            .handle_command(at_seconds(0), start_command(None, false, None), &master_context(), &mut out)
            .expect("it begins");
        assert_eq!(abort(&mut machine), (Ok(()), vec![over.clone()]));
        assert_eq!(
            handle_event(&mut machine, 1, HandoverEvent::WritesPaused),
            [],
            "they were held for nothing"
        );
        let mut machine = syncing_handover(None, false, None);
        assert_eq!(abort(&mut machine), (Ok(()), vec![over.clone()]));
        let mut machine = syncing_handover(None, false, None);
        handle_event(&mut machine, 1, in_sync_event(&["a"]));
        assert_eq!(abort(&mut machine), (Ok(()), vec![HandoverAction::StayMaster, over]));
        assert_eq!(abort(&mut machine), (Err(HandoverError::NothingToAbort), vec![]));
    }
}
