//! The state machine of SHUTDOWN: gives replicas time to catch up, then saves and exits.
//!
//! | state | waits until | next |
//! | --- | --- | --- |
//! | holding | running writes are in the log | a master with replicas waits for them |
//! | waiting | all replicas have caught up, or the timeout expires | hands over to a replica if requested; otherwise saves |
//! | handing over | another node has taken over, or the timeout expires | saves |
//! | saving | the data is saved, or saving failed | exits; if saving failed and FORCE was not given, cancels the shutdown |
//!
//! Invariant: the data is saved only after writes are paused, and the server never exits without trying to save.
//! SHUTDOWN ABORT works while the server waits for replicas; a save cannot be aborted.

use std::time::Duration;

use clock::Instant;
use driver::Driver;
use slot_routing::ReplOffset;

/// The options of the SHUTDOWN command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShutdownOptions {
    /// Do not wait for replicas (NOW).
    pub skips_replicas: bool,
    /// Exit even if the data cannot be saved (FORCE).
    pub ignores_save_errors: bool,
    /// Hand over to a replica before saving (FAILOVER). For masters of a cluster.
    pub hands_over: bool,
}

/// How long the shutdown waits for a replica to take over. A slower replica must win an election after this node has
/// exited.
pub const HANDOVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of the log and of the replicas once writes are paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PausedLog {
    /// The offset that a replica must reach to have all data.
    pub log_end: ReplOffset,
    /// The number of replicas that the shutdown waits for; zero on a replica, whose replicas can get the data from the
    /// master.
    pub replica_count: usize,
    /// The number of replicas that have the whole log.
    pub in_sync_count: usize,
    /// How long replicas that lack data may take to catch up (`shutdown-timeout`).
    pub replica_timeout: Duration,
}

/// An event of the shutdown. Events that do not belong to the current state are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownEvent {
    /// Every write admitted before [`ShutdownAction::PauseWrites`] is in the log.
    WritesPaused(PausedLog),
    /// The number of replicas that have the whole log.
    InSync(usize),
    /// The time of [`ShutdownSequence::next_deadline`] has come; an early event is harmless.
    Deadline,
    /// A client sent SHUTDOWN ABORT.
    Aborted,
    /// Another node has taken over, or no replica can take over.
    HandedOver,
    /// The save has ended; true if the data is on disk.
    Saved(bool),
}

/// An action for the driver. Actions are performed in the order in which they are returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownAction {
    /// Pause client writes, then send [`ShutdownEvent::WritesPaused`].
    PauseWrites,
    /// Report [`ShutdownEvent::InSync`] whenever a replica acknowledges the log.
    AwaitReplicas {
        /// The offset that the replicas must acknowledge.
        log_end: ReplOffset,
        /// The number of replicas that must acknowledge the offset.
        replica_count: usize,
    },
    /// Write to the server's log how many replicas have caught up, because the wait has ended.
    LogInSync {
        /// The number of replicas that have the whole log.
        in_sync_count: usize,
        /// The total number of replicas, including those that have not caught up.
        replica_count: usize,
    },
    /// Ask a replica that has the whole log to take over, then send [`ShutdownEvent::HandedOver`].
    HandOver,
    /// Save the data, then send [`ShutdownEvent::Saved`].
    Save,
    /// Exit the process. The data has been saved, or FORCE was given.
    Exit,
    /// Cancel the shutdown and resume client writes.
    Cancel(CancelReason),
}

/// Why the shutdown was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// A client sent SHUTDOWN ABORT.
    Aborted,
    /// The data could not be saved.
    NotSaved,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownPhase {
    PausingWrites,
    Waiting { deadline: Instant, in_sync_count: usize, replica_count: usize },
    HandingOver { deadline: Instant },
    Saving,
    Finished,
}

/// The state machine of a running shutdown.
#[derive(Debug)]
pub struct ShutdownSequence {
    options: ShutdownOptions,
    phase: ShutdownPhase,
}

impl ShutdownSequence {
    /// Starts a shutdown. The first action pauses writes.
    #[must_use]
    pub fn new(options: ShutdownOptions, out: &mut Vec<ShutdownAction>) -> Self {
        out.push(ShutdownAction::PauseWrites);
        Self { options, phase: ShutdownPhase::PausingWrites }
    }

    fn begin_waiting(&mut self, now: Instant, log: PausedLog, out: &mut Vec<ShutdownAction>) {
        let PausedLog { log_end: end, replica_count: of, in_sync_count: in_sync, replica_timeout: longest } =
            log;
        if of == 0 {
            self.save(out);
        } else if self.options.skips_replicas || longest.is_zero() {
            self.hand_over(now, out);
        } else if in_sync >= of {
            self.end_waiting(now, in_sync, of, out);
        } else {
            self.phase =
                ShutdownPhase::Waiting { deadline: now + longest, in_sync_count: in_sync, replica_count: of };
            out.push(ShutdownAction::AwaitReplicas { log_end: end, replica_count: of });
        }
    }

    fn end_waiting(
        &mut self,
        now: Instant,
        in_sync_count: usize,
        replica_count: usize,
        out: &mut Vec<ShutdownAction>,
    ) {
        out.push(ShutdownAction::LogInSync { in_sync_count, replica_count });
        self.hand_over(now, out);
    }

    fn hand_over(&mut self, now: Instant, out: &mut Vec<ShutdownAction>) {
        if !self.options.hands_over {
            return self.save(out);
        }
        self.phase = ShutdownPhase::HandingOver { deadline: now + HANDOVER_TIMEOUT };
        out.push(ShutdownAction::HandOver);
    }

    fn save(&mut self, out: &mut Vec<ShutdownAction>) {
        self.phase = ShutdownPhase::Saving;
        out.push(ShutdownAction::Save);
    }

    fn finish(&mut self, last_action: ShutdownAction, out: &mut Vec<ShutdownAction>) {
        self.phase = ShutdownPhase::Finished;
        out.push(last_action);
    }
}

impl Driver for ShutdownSequence {
    type Event = ShutdownEvent;
    type Actions = Vec<ShutdownAction>;

    /// Handles an event and appends the resulting actions to `out`.
    fn handle(&mut self, now: Instant, event: ShutdownEvent, out: &mut Vec<ShutdownAction>) {
        match (self.phase, event) {
            (ShutdownPhase::PausingWrites, ShutdownEvent::WritesPaused(held)) => {
                self.begin_waiting(now, held, out);
            }
            (
                ShutdownPhase::Waiting { deadline: until, replica_count: of, .. },
                ShutdownEvent::InSync(in_sync),
            ) => {
                self.phase =
                    ShutdownPhase::Waiting { deadline: until, in_sync_count: in_sync, replica_count: of };
                if in_sync >= of {
                    self.end_waiting(now, in_sync, of, out);
                }
            }
            (
                ShutdownPhase::Waiting { deadline: until, in_sync_count: in_sync, replica_count: of },
                ShutdownEvent::Deadline,
            ) if now >= until => {
                self.end_waiting(now, in_sync, of, out);
            }
            (ShutdownPhase::HandingOver { .. }, ShutdownEvent::HandedOver) => self.save(out),
            (ShutdownPhase::HandingOver { deadline: until }, ShutdownEvent::Deadline) if now >= until => {
                self.save(out);
            }
            (ShutdownPhase::Waiting { .. }, ShutdownEvent::Aborted) => {
                self.finish(ShutdownAction::Cancel(CancelReason::Aborted), out);
            }
            (ShutdownPhase::Saving, ShutdownEvent::Saved(saved)) => {
                let stops = saved || self.options.ignores_save_errors;
                self.finish(
                    if stops { ShutdownAction::Exit } else { ShutdownAction::Cancel(CancelReason::NotSaved) },
                    out,
                );
            }
            (
                _,
                ShutdownEvent::WritesPaused(_)
                | ShutdownEvent::InSync(_)
                | ShutdownEvent::Deadline
                | ShutdownEvent::Aborted
                | ShutdownEvent::HandedOver
                | ShutdownEvent::Saved(_),
            ) => {}
        }
    }

    /// Returns the latest time to call [`ShutdownSequence::handle`] with [`ShutdownEvent::Deadline`]. Only the states
    /// that wait for replicas and that hand over have a timeout.
    fn next_deadline(&self) -> Option<Instant> {
        match self.phase {
            ShutdownPhase::Waiting { deadline: until, .. }
            | ShutdownPhase::HandingOver { deadline: until } => Some(until),
            ShutdownPhase::PausingWrites | ShutdownPhase::Saving | ShutdownPhase::Finished => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITES_PAUSED: PausedLog = PausedLog {
        log_end: ReplOffset(70),
        replica_count: 2,
        in_sync_count: 0,
        replica_timeout: Duration::from_secs(10),
    };
    const AWAIT_REPLICAS_ACTION: ShutdownAction =
        ShutdownAction::AwaitReplicas { log_end: ReplOffset(70), replica_count: 2 };

    fn log_in_sync_action(in_sync_count: usize) -> ShutdownAction {
        ShutdownAction::LogInSync { in_sync_count, replica_count: 2 }
    }

    /// Returns the actions of a shutdown with these events, each with its time in seconds.
    fn actions_after(options: ShutdownOptions, timed_events: &[(u64, ShutdownEvent)]) -> Vec<ShutdownAction> {
        let mut out = Vec::new();
        let mut stop = ShutdownSequence::new(options, &mut out);
        for (second, input) in timed_events {
            stop.handle(Instant::from_millis(second * 1000), *input, &mut out);
        }
        assert_eq!(out.remove(0), ShutdownAction::PauseWrites);
        out
    }

    #[test]
    fn shutdown_waits_for_replicas_unless_there_are_none_or_the_timeout_is_zero() {
        let save = vec![ShutdownAction::Save];
        let plan = ShutdownOptions::default();
        let held = |held| [(0, ShutdownEvent::WritesPaused(held))];
        assert_eq!(actions_after(plan, &held(WRITES_PAUSED)), [AWAIT_REPLICAS_ACTION]);
        assert_eq!(actions_after(plan, &held(PausedLog { replica_count: 0, ..WRITES_PAUSED })), save);
        assert_eq!(
            actions_after(plan, &held(PausedLog { replica_timeout: Duration::ZERO, ..WRITES_PAUSED })),
            save
        );
        assert_eq!(
            actions_after(ShutdownOptions { skips_replicas: true, ..plan }, &held(WRITES_PAUSED)),
            save
        );
        assert_eq!(
            actions_after(plan, &held(PausedLog { in_sync_count: 2, ..WRITES_PAUSED })),
            [log_in_sync_action(2), ShutdownAction::Save]
        );
    }

    #[test]
    fn wait_ends_with_the_last_replica_or_the_timeout() {
        let begin = (0, ShutdownEvent::WritesPaused(WRITES_PAUSED));
        let table = [
            (vec![(1, ShutdownEvent::InSync(1)), (9, ShutdownEvent::Deadline)], vec![AWAIT_REPLICAS_ACTION]),
            (
                vec![(1, ShutdownEvent::InSync(1)), (2, ShutdownEvent::InSync(2))],
                vec![AWAIT_REPLICAS_ACTION, log_in_sync_action(2), ShutdownAction::Save],
            ),
            (
                vec![(1, ShutdownEvent::InSync(1)), (10, ShutdownEvent::Deadline)],
                vec![AWAIT_REPLICAS_ACTION, log_in_sync_action(1), ShutdownAction::Save],
            ),
            (
                vec![(10, ShutdownEvent::Deadline), (11, ShutdownEvent::InSync(2))],
                vec![AWAIT_REPLICAS_ACTION, log_in_sync_action(0), ShutdownAction::Save],
            ),
        ];
        for (inputs, expected) in table {
            assert_eq!(actions_after(ShutdownOptions::default(), &[vec![begin], inputs].concat()), expected);
        }
    }

    #[test]
    fn data_is_saved_after_the_handover_or_its_timeout() {
        let plan = ShutdownOptions { hands_over: true, ..ShutdownOptions::default() };
        let begin = (0, ShutdownEvent::WritesPaused(WRITES_PAUSED));
        let asked = [AWAIT_REPLICAS_ACTION, log_in_sync_action(2), ShutdownAction::HandOver];
        for ends in [(3, ShutdownEvent::HandedOver), (3, ShutdownEvent::Deadline)] {
            let inputs = [
                begin,
                (1, ShutdownEvent::InSync(2)),
                (2, ShutdownEvent::Deadline),
                (2, ShutdownEvent::Aborted),
                ends,
            ];
            let expected = [&asked[..], &[ShutdownAction::Save]].concat();
            assert_eq!(actions_after(plan, &inputs), expected, "{ends:?}");
            assert_eq!(actions_after(plan, &inputs[..4]), asked, "a handover cannot be aborted");
        }
        let nobody = PausedLog { replica_count: 0, ..WRITES_PAUSED };
        assert_eq!(actions_after(plan, &[(0, ShutdownEvent::WritesPaused(nobody))]), [ShutdownAction::Save]);
        assert_eq!(
            actions_after(ShutdownOptions { skips_replicas: true, ..plan }, &[begin]),
            [ShutdownAction::HandOver]
        );
    }

    #[test]
    fn shutdown_can_be_aborted_until_the_save_starts() {
        let begin = (0, ShutdownEvent::WritesPaused(WRITES_PAUSED));
        let over = ShutdownAction::Cancel(CancelReason::Aborted);
        assert_eq!(
            actions_after(ShutdownOptions::default(), &[begin, (1, ShutdownEvent::Aborted)]),
            [AWAIT_REPLICAS_ACTION, over]
        );
        let late = [
            begin,
            (1, ShutdownEvent::Aborted),
            (2, ShutdownEvent::InSync(2)),
            (10, ShutdownEvent::Deadline),
        ];
        assert_eq!(
            actions_after(ShutdownOptions::default(), &late),
            [AWAIT_REPLICAS_ACTION, over],
            "it is over"
        );
        let saving = [
            begin,
            (1, ShutdownEvent::InSync(2)),
            (2, ShutdownEvent::Aborted),
            (3, ShutdownEvent::Saved(true)),
        ];
        let expected =
            [AWAIT_REPLICAS_ACTION, log_in_sync_action(2), ShutdownAction::Save, ShutdownAction::Exit];
        assert_eq!(actions_after(ShutdownOptions::default(), &saving), expected);
    }

    #[test]
    fn failed_save_cancels_the_shutdown_unless_forced() {
        for (saved, force, end) in [
            (true, false, ShutdownAction::Exit),
            (true, true, ShutdownAction::Exit),
            (false, true, ShutdownAction::Exit),
            (false, false, ShutdownAction::Cancel(CancelReason::NotSaved)),
        ] {
            let inputs = [(0, ShutdownEvent::WritesPaused(WRITES_PAUSED)), (1, ShutdownEvent::Saved(saved))];
            let plan =
                ShutdownOptions { skips_replicas: true, ignores_save_errors: force, hands_over: false };
            assert_eq!(actions_after(plan, &inputs), [ShutdownAction::Save, end], "{saved} {force}");
        }
        assert_eq!(
            actions_after(ShutdownOptions::default(), &[(1, ShutdownEvent::Saved(true))]),
            [],
            "it has not been told to save"
        );
    }
}
