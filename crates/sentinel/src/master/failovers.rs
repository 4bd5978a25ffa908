//! The failover of a master that this sentinel attempts or leads, and the delay before the next attempt.
//!
//! | phase | waits for | then |
//! | --- | --- | --- |
//! | elect | the vote of the group | the leader continues; the others stay here until they learn of the switch |
//! | select | recent INFO from the replicas | selects a replica and proposes it to the group |
//! | agree | a majority and the quorum to store that entry | promotes the replica |
//! | promote | the replica to report the master role | proposes that the switch is done |
//! | confirm | the commit of that entry | the switch is complete: clients are sent to the new master |
//! | reconf | the other replicas to follow, `parallel-syncs` at a time, or the new master to fail | ends |

use std::time::Duration;

use clock::Instant;

use crate::addr::Addr;
use crate::link::LinkId;

/// Delay after the first failed attempt, doubled with each further one.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(250);

/// The reason for which a failover was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailoverCause {
    /// The master is objectively down.
    Down,
    /// An operator requested the failover: the master hands over if it can, otherwise it is replaced.
    Operator,
    /// An operator requested the failover on condition that the master hands over.
    Coordinated,
    /// The master has handed over without a request from a sentinel.
    HandedOver,
}

/// A phase of a failover. `epoch` is the leader's term, which becomes the epoch of the switch; `target` is the replica
/// to promote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FailoverPhase {
    Elect,
    Select {
        epoch: u64,
    },
    Agree {
        epoch: u64,
        target: Addr,
        /// The index of the log entry that names the target.
        index: u64,
    },
    Promote {
        epoch: u64,
        target: Addr,
        /// When the promotion or the handover was last requested.
        sent: Option<Instant>,
    },
    Confirm {
        epoch: u64,
        target: Addr,
    },
    Reconf {
        epoch: u64,
        target: Addr,
    },
}

impl FailoverPhase {
    /// The leader's term; `None` before the election.
    pub(crate) fn epoch(&self) -> Option<u64> {
        match self {
            Self::Elect => None,
            Self::Select { epoch }
            | Self::Agree { epoch, .. }
            | Self::Promote { epoch, .. }
            | Self::Confirm { epoch, .. }
            | Self::Reconf { epoch, .. } => Some(*epoch),
        }
    }

    /// The replica to promote; `None` before the selection.
    pub(crate) fn target(&self) -> Option<&Addr> {
        match self {
            Self::Elect | Self::Select { .. } => None,
            Self::Agree { target, .. }
            | Self::Promote { target, .. }
            | Self::Confirm { target, .. }
            | Self::Reconf { target, .. } => Some(target),
        }
    }

    /// The name of the phase in SENTINEL MASTER.
    pub(crate) fn state_name(&self) -> &'static str {
        match self {
            Self::Elect => "wait_start",
            Self::Select { .. } | Self::Agree { .. } => "select_slave",
            Self::Promote { sent: None, .. } => "send_slaveof_noone",
            Self::Promote { .. } | Self::Confirm { .. } => "wait_promotion",
            Self::Reconf { .. } => "reconf_slaves",
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Failover {
    cause: FailoverCause,
    phase: FailoverPhase,
    /// When the current phase began.
    since: Instant,
    /// Whether the target is promoted without the help of the old master, which is down or did not hand over.
    is_forced: bool,
    /// The links of the old and the new master of a handover that have not been sent the final commands.
    awaiting_final_commands: Vec<LinkId>,
}

impl Failover {
    fn new(now: Instant, cause: FailoverCause) -> Self {
        Self {
            cause,
            phase: FailoverPhase::Elect,
            since: now,
            is_forced: cause == FailoverCause::Down,
            awaiting_final_commands: Vec::new(),
        }
    }

    pub(crate) fn cause(&self) -> FailoverCause {
        self.cause
    }

    pub(crate) fn phase(&self) -> &FailoverPhase {
        &self.phase
    }

    /// When the current phase began.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Whether the target is promoted without the help of the old master.
    pub(crate) fn is_forced(&self) -> bool {
        self.is_forced
    }

    /// The new master; `None` until the switch is committed.
    pub(crate) fn switched_to(&self) -> Option<&Addr> {
        self.phase.target().filter(|_| matches!(self.phase, FailoverPhase::Reconf { .. }))
    }

    /// Whether a handover was requested and is not complete.
    pub(crate) fn awaits_handover(&self) -> bool {
        matches!(self.phase, FailoverPhase::Promote { sent: Some(_), .. }) && !self.is_forced
    }

    /// The replica whose next INFO reply ends the current phase.
    pub(crate) fn awaited_replica(&self) -> Option<&Addr> {
        self.phase.target().filter(|_| matches!(self.phase, FailoverPhase::Promote { .. }))
    }

    fn enter(&mut self, now: Instant, phase: FailoverPhase) {
        self.phase = phase;
        self.since = now;
    }

    /// Makes the time limit of the current phase count from now.
    pub(crate) fn restart_phase(&mut self, now: Instant) {
        self.since = now;
    }

    /// Enters the selection after this sentinel was elected.
    pub(crate) fn select(&mut self, now: Instant, epoch: u64) {
        self.enter(now, FailoverPhase::Select { epoch });
    }

    /// Waits for the group to store the log entry that names the target.
    pub(crate) fn await_agreement(&mut self, now: Instant, target: Addr, index: u64) {
        if let Some(epoch) = self.phase.epoch() {
            self.enter(now, FailoverPhase::Agree { epoch, target, index });
        }
    }

    /// Enters the promotion after the group has stored the target.
    pub(crate) fn promote(&mut self, now: Instant) {
        if let (Some(epoch), Some(target)) = (self.phase.epoch(), self.phase.target()) {
            let target = target.clone();
            self.enter(now, FailoverPhase::Promote { epoch, target, sent: None });
        }
    }

    /// Sets when the promotion or the handover was last requested. `None` means that it is requested again.
    pub(crate) fn set_promotion_sent(&mut self, at: Option<Instant>) {
        if let FailoverPhase::Promote { sent, .. } = &mut self.phase {
            *sent = at;
        }
    }

    /// Makes the failover promote the target without the help of the old master.
    pub(crate) fn force(&mut self) {
        self.is_forced = true;
    }

    /// Waits for the commit of the switch after the target has become a master.
    pub(crate) fn confirm(&mut self, now: Instant, target: Addr) {
        if let Some(epoch) = self.phase.epoch() {
            self.enter(now, FailoverPhase::Confirm { epoch, target });
        }
    }

    /// Makes the other replicas follow the target after the commit of the switch.
    pub(crate) fn reconfigure(&mut self, now: Instant) {
        if let (Some(epoch), Some(target)) = (self.phase.epoch(), self.phase.target()) {
            let target = target.clone();
            self.enter(now, FailoverPhase::Reconf { epoch, target });
        }
    }

    pub(crate) fn awaits_final_commands(&self) -> bool {
        !self.awaiting_final_commands.is_empty()
    }

    /// Replaces the links of the servers that have not been sent the final commands. Returns the previous ones.
    pub(crate) fn set_awaiting_final_commands(&mut self, links: Vec<LinkId>) -> Vec<LinkId> {
        std::mem::replace(&mut self.awaiting_final_commands, links)
    }
}

/// The failovers of one master, of which at most one is running.
#[derive(Debug, Clone)]
pub(crate) struct Failovers {
    current: Option<Failover>,
    /// The earliest start of the next automatic failover after a failed one.
    retry_at: Instant,
    /// Number of consecutive failed failovers, which determines the delay before the next one.
    failures: u32,
}

impl Failovers {
    pub(crate) fn new(now: Instant) -> Self {
        Self { current: None, retry_at: now, failures: 0 }
    }

    pub(crate) fn current(&self) -> Option<&Failover> {
        self.current.as_ref()
    }

    pub(crate) fn current_mut(&mut self) -> Option<&mut Failover> {
        self.current.as_mut()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.current.is_some()
    }

    /// Whether no failover is running and the delay after the last failed one is over.
    pub(crate) fn may_start(&self, now: Instant) -> bool {
        self.current.is_none() && now >= self.retry_at
    }

    pub(crate) fn start(&mut self, now: Instant, cause: FailoverCause) {
        self.current = Some(Failover::new(now, cause));
    }

    /// Ends the failover without delaying the next one.
    pub(crate) fn end(&mut self) {
        self.current = None;
    }

    /// Ends a failed failover. The delay before the next one doubles up to `max_delay`; `jitter` is added to it.
    pub(crate) fn fail(&mut self, now: Instant, max_delay: Duration, jitter: Duration) {
        let delay = FIRST_RETRY_DELAY * 2u32.pow(self.failures.min(9));
        self.failures += 1;
        self.retry_at = now + delay.min(max_delay) + jitter;
        self.current = None;
    }

    /// Resets the delay, because a switch was committed.
    pub(crate) fn on_switched(&mut self) {
        self.failures = 0;
    }

    /// Forgets the failover and the delay, because another server has become the master.
    pub(crate) fn reset(&mut self, now: Instant) {
        *self = Self::new(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(1000);
    const LIMIT: Duration = Duration::from_secs(10);

    fn target() -> Addr {
        Addr::new("10.0.0.2", 6379)
    }

    #[test]
    fn leader_passes_all_phases_in_order() {
        let mut failover = Failover::new(NOW, FailoverCause::Down);
        let mut names = vec![failover.phase().state_name()];
        let mut note = |failover: &Failover| names.push(failover.phase().state_name());
        assert_eq!(failover.phase().epoch(), None);
        failover.select(NOW, 7);
        note(&failover);
        failover.await_agreement(NOW, target(), 3);
        note(&failover);
        failover.promote(NOW);
        note(&failover);
        failover.set_promotion_sent(Some(NOW));
        note(&failover);
        assert_eq!(failover.awaited_replica(), Some(&target()));
        failover.confirm(NOW, target());
        note(&failover);
        assert_eq!(failover.switched_to(), None, "the switch is not committed");
        failover.reconfigure(NOW);
        note(&failover);
        assert_eq!(failover.switched_to(), Some(&target()));
        assert_eq!(failover.phase(), &FailoverPhase::Reconf { epoch: 7, target: target() });
        let expected = [
            "wait_start",
            "select_slave",
            "select_slave",
            "send_slaveof_noone",
            "wait_promotion",
            "wait_promotion",
            "reconf_slaves",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn promotion_can_follow_a_requested_handover_only_if_forced() {
        let mut failover = Failover::new(NOW, FailoverCause::Operator);
        failover.select(NOW, 7);
        failover.await_agreement(NOW, target(), 3);
        failover.promote(NOW);
        assert!(!failover.awaits_handover());
        failover.set_promotion_sent(Some(NOW));
        assert!(failover.awaits_handover());
        failover.force();
        assert!(!failover.awaits_handover());
        assert!(Failover::new(NOW, FailoverCause::Down).is_forced());
    }

    #[test]
    fn phase_after_the_election_needs_an_election() {
        let mut failover = Failover::new(NOW, FailoverCause::Down);
        failover.await_agreement(NOW, target(), 3);
        failover.promote(NOW);
        failover.confirm(NOW, target());
        failover.reconfigure(NOW);
        assert_eq!(failover.phase(), &FailoverPhase::Elect);
    }

    #[test]
    fn delay_doubles_with_each_failure_up_to_the_limit() {
        let mut failovers = Failovers::new(NOW);
        let mut delays = Vec::new();
        for _ in 0..8 {
            failovers.start(NOW, FailoverCause::Down);
            assert!(!failovers.may_start(NOW + LIMIT), "it is running");
            failovers.fail(NOW, LIMIT, Duration::ZERO);
            let millis =
                (0..).step_by(250).find(|millis| failovers.may_start(NOW + Duration::from_millis(*millis)));
            delays.push(millis.unwrap());
        }
        assert_eq!(delays, [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        failovers.on_switched();
        failovers.fail(NOW, LIMIT, Duration::ZERO);
        assert!(failovers.may_start(NOW + FIRST_RETRY_DELAY));
    }
}
