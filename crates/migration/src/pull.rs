//! Drives the node that imports slots from another node (CLUSTER MIGRATION IMPORT, as in Redis 8.4): it asks the source
//! to run the migration. After a failure the request is retried until an operator cancels it.
//!
//! The process owns the connection to the source, the list of migration jobs and the topology. It performs each
//! [`PullAction`] in sequence:
//!
//! | | the process | the driver |
//! | --- | --- | --- |
//! | 1 | [`PullAction::SendRequest`]: asks the source; [`PullEvent::RequestAnswered`] | waits for the start, or retries later |
//! | 2 | accepts ESTABLISH from the source; [`PullEvent::MigrationStarted`] | waits for the end of this migration |
//! | 3 | runs the migration with [`crate::ImportDriver`]; [`PullEvent::MigrationEnded`] | ends the request, or retries later |
//!
//! While no migration runs, a change of the owner of the slots ends the request. No action waits for the disk: a request
//! does not survive a restart.

use std::sync::Arc;
use std::time::Duration;

use clock::Instant;
use driver::Driver;
use slot_routing::{NodeId, SlotSet, Topology};

use crate::{JobName, SlotMove};

/// Delay before retrying after a failure.
pub const RETRY_DELAY: Duration = Duration::from_secs(1);
/// A source that accepted the request must start the migration within this time.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);

/// An event that the process reports to the driver.
#[derive(Debug, Clone)]
pub enum PullEvent {
    /// The source replied to the request; `Err` contains its error text, or why there is no reply.
    RequestAnswered(Result<(), String>),
    /// The source has started a migration of the slots under this name.
    MigrationStarted(JobName),
    /// The named migration has ended; `Err` says why it failed.
    MigrationEnded(JobName, Result<(), String>),
    /// The topology as this node knows it. Reported at the start and after every change.
    Topology {
        /// The nodes and the owners of the slots.
        topology: Arc<Topology>,
        /// Whether this node is a replica.
        is_replica: bool,
    },
    /// An operator wants to cancel the request.
    Cancel,
    /// The time of [`Driver::next_deadline`] has come.
    Deadline,
}

/// An action that the process must perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullAction {
    /// Send the request to the source, then report [`PullEvent::RequestAnswered`].
    SendRequest,
    /// Cancel the named migration; [`PullEvent::MigrationEnded`] reports its end.
    CancelMigration(JobName),
    /// The request has ended and will not be retried.
    End(PullOutcome),
}

/// How a request has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullOutcome {
    /// The slots have been imported.
    Completed,
    /// The request failed with this error and is not retried.
    Failed(String),
    /// An operator cancelled the request.
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PullState {
    AwaitingReply,
    AwaitingStart {
        deadline: Instant,
    },
    Importing {
        job: JobName,
    },
    AwaitingRetry {
        retry_at: Instant,
    },
    /// The operator cancelled the request; the source's reply decides how.
    CancelledBeforeReply,
    /// The operator cancelled the request after the source had accepted it.
    CancelledAfterAccept {
        deadline: Instant,
    },
    CancellingMigration {
        job: JobName,
    },
    Ended,
}

/// Drives a request for slots that another node serves.
#[derive(Debug)]
pub struct PullDriver {
    slots: SlotSet,
    source: NodeId,
    target: NodeId,
    state: PullState,
    retry_count: u32,
    last_error: String,
}

type Actions = Vec<PullAction>;

impl PullDriver {
    /// Requests these slots from `source` for this node, the target of the move. The first action is to send the
    /// request.
    #[must_use]
    pub fn new(slot_move: &SlotMove, source: NodeId) -> (Self, Actions) {
        let driver = Self {
            slots: slot_move.slots(),
            source,
            target: slot_move.target,
            state: PullState::AwaitingReply,
            retry_count: 0,
            last_error: String::new(),
        };
        (driver, vec![PullAction::SendRequest])
    }

    /// Number of retries since the request began.
    #[must_use]
    pub fn retry_count(&self) -> u32 {
        self.retry_count
    }

    /// Why the last attempt failed; empty if no attempt has failed.
    #[must_use]
    pub fn last_error(&self) -> &str {
        &self.last_error
    }

    fn schedule_retry(&mut self, now: Instant, reason: String) {
        self.last_error = reason;
        self.state = PullState::AwaitingRetry { retry_at: now + RETRY_DELAY };
    }

    fn end(&mut self, outcome: PullOutcome, out: &mut Actions) {
        self.state = PullState::Ended;
        out.push(PullAction::End(outcome));
    }

    fn on_request_answered(&mut self, now: Instant, reply: Result<(), String>, out: &mut Actions) {
        match (self.state, reply) {
            (PullState::AwaitingReply, Ok(())) => {
                self.state = PullState::AwaitingStart { deadline: now + START_TIMEOUT };
            }
            (PullState::AwaitingReply, Err(why)) => self.schedule_retry(now, why),
            (PullState::CancelledBeforeReply, Ok(())) => {
                self.state = PullState::CancelledAfterAccept { deadline: now + START_TIMEOUT };
            }
            (PullState::CancelledBeforeReply, Err(_)) => self.end(PullOutcome::Cancelled, out),
            // The migration started before the reply arrived.
            _ => {}
        }
    }

    fn on_migration_started(&mut self, job: JobName, out: &mut Actions) {
        match self.state {
            PullState::AwaitingReply
            | PullState::AwaitingStart { .. }
            | PullState::AwaitingRetry { .. }
            | PullState::Importing { .. } => self.state = PullState::Importing { job },
            PullState::CancelledBeforeReply | PullState::CancelledAfterAccept { .. } => {
                self.state = PullState::CancellingMigration { job };
                out.push(PullAction::CancelMigration(job));
            }
            PullState::CancellingMigration { .. } | PullState::Ended => {}
        }
    }

    fn on_migration_ended(
        &mut self,
        now: Instant,
        ended: JobName,
        result: Result<(), String>,
        out: &mut Actions,
    ) {
        match (self.state, result) {
            (PullState::Importing { job } | PullState::CancellingMigration { job }, Ok(()))
                if job == ended =>
            {
                self.end(PullOutcome::Completed, out);
            }
            (PullState::Importing { job }, Err(why)) if job == ended => self.schedule_retry(now, why),
            (PullState::CancellingMigration { job }, Err(_)) if job == ended => {
                self.end(PullOutcome::Cancelled, out);
            }
            _ => {}
        }
    }

    /// Ends the request if it cannot succeed any more. A running migration checks the owner of the slots itself.
    fn on_topology(&mut self, topology: &Topology, is_replica: bool, out: &mut Actions) {
        if !matches!(
            self.state,
            PullState::AwaitingReply | PullState::AwaitingStart { .. } | PullState::AwaitingRetry { .. }
        ) {
            return;
        }
        let is_owner =
            |node| self.slots.iter().all(|slot| topology.owner(slot).is_some_and(|owner| owner.id == node));
        if is_replica {
            let why = "slot migration not allowed on replica.".to_owned();
            self.end(PullOutcome::Failed(why), out);
        } else if !is_owner(self.source) && !is_owner(self.target) {
            self.end(PullOutcome::Failed("slots have another owner now".to_owned()), out);
        }
    }

    fn on_cancel(&mut self, out: &mut Actions) {
        match self.state {
            PullState::AwaitingReply => self.state = PullState::CancelledBeforeReply,
            PullState::AwaitingStart { deadline } => {
                self.state = PullState::CancelledAfterAccept { deadline };
            }
            PullState::Importing { job } => {
                self.state = PullState::CancellingMigration { job };
                out.push(PullAction::CancelMigration(job));
            }
            PullState::AwaitingRetry { .. } => self.end(PullOutcome::Cancelled, out),
            PullState::CancelledBeforeReply
            | PullState::CancelledAfterAccept { .. }
            | PullState::CancellingMigration { .. }
            | PullState::Ended => {}
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Actions) {
        match self.state {
            PullState::AwaitingRetry { retry_at } if now >= retry_at => {
                self.state = PullState::AwaitingReply;
                self.retry_count += 1;
                out.push(PullAction::SendRequest);
            }
            PullState::AwaitingStart { deadline } if now >= deadline => {
                self.schedule_retry(now, "The source did not begin".to_owned());
            }
            PullState::CancelledAfterAccept { deadline } if now >= deadline => {
                self.end(PullOutcome::Cancelled, out);
            }
            _ => {}
        }
    }
}

impl Driver for PullDriver {
    type Event = PullEvent;
    type Actions = Actions;

    fn handle(&mut self, now: Instant, event: PullEvent, out: &mut Actions) {
        match event {
            PullEvent::RequestAnswered(reply) => self.on_request_answered(now, reply, out),
            PullEvent::MigrationStarted(job) => self.on_migration_started(job, out),
            PullEvent::MigrationEnded(job, result) => self.on_migration_ended(now, job, result, out),
            PullEvent::Topology { topology, is_replica } => self.on_topology(&topology, is_replica, out),
            PullEvent::Cancel => self.on_cancel(out),
            PullEvent::Deadline => self.on_deadline(now, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self.state {
            PullState::AwaitingStart { deadline: until }
            | PullState::AwaitingRetry { retry_at: until }
            | PullState::CancelledAfterAccept { deadline: until } => Some(until),
            PullState::AwaitingReply
            | PullState::Importing { .. }
            | PullState::CancelledBeforeReply
            | PullState::CancellingMigration { .. }
            | PullState::Ended => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use slot_routing::{Endpoint, Epoch, Member, ReplOffset, Role, SLOT_COUNT, Slot};

    use super::*;

    const SOURCE: [u8; 20] = [1; 20];
    const TARGET: [u8; 20] = [2; 20];
    const OTHER: [u8; 20] = [3; 20];

    fn at_millis(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn job(byte: u8) -> JobName {
        JobName::from_random([byte; 20])
    }

    /// Events, each with its time in milliseconds.
    type TimedEvents = Vec<(u64, PullEvent)>;

    /// Requests a slot and reports the events. Returns the actions after the first request.
    fn run_events(timed_events: &[(u64, PullEvent)]) -> (Vec<PullAction>, PullDriver) {
        let slot = Slot::of_key(b"{a}");
        let slot_move = SlotMove { ranges: vec![(slot, slot)], target: NodeId::from_random(TARGET) };
        let (mut pull, first) = PullDriver::new(&slot_move, NodeId::from_random(SOURCE));
        assert_eq!(first, [PullAction::SendRequest]);
        let mut out = Vec::new();
        for (millis, event) in timed_events {
            pull.handle(at_millis(*millis), event.clone(), &mut out);
        }
        (out, pull)
    }

    fn accepted() -> PullEvent {
        PullEvent::RequestAnswered(Ok(()))
    }

    fn refused() -> PullEvent {
        PullEvent::RequestAnswered(Err("busy".to_owned()))
    }

    fn started() -> PullEvent {
        PullEvent::MigrationStarted(job(9))
    }

    fn connection_lost_event() -> PullEvent {
        PullEvent::MigrationEnded(job(9), Err("lost".to_owned()))
    }

    fn completed() -> PullEvent {
        PullEvent::MigrationEnded(job(9), Ok(()))
    }

    /// Reports a topology in which `owner` owns all slots.
    fn topology_with_owner(owner: [u8; 20], is_replica: bool) -> PullEvent {
        let members = [SOURCE, TARGET, OTHER].map(|id| Member {
            id: NodeId::from_random(id),
            shard: NodeId::from_random(id),
            endpoint: Endpoint::default(),
            role: Role::Master,
            config_epoch: Epoch(1),
            offset: ReplOffset(0),
            has_failed: false,
            is_suspected: false,
        });
        let mut topology = Topology::new(NodeId::from_random(TARGET), Epoch(1), true, members.to_vec());
        let last = Slot::new(SLOT_COUNT as u16 - 1).unwrap();
        topology.assign_range(Slot::new(0).unwrap(), last, NodeId::from_random(owner));
        PullEvent::Topology { topology: Arc::new(topology), is_replica }
    }

    #[test]
    fn request_is_retried_until_the_slots_are_imported() {
        let (out, pull) = run_events(&[
            (1, refused()),
            (1001, PullEvent::Deadline),
            (1002, accepted()),
            (1003, started()),
            (1500, connection_lost_event()),
            (2500, PullEvent::Deadline),
            (2501, accepted()),
            (2501, PullEvent::MigrationStarted(job(8))),
            (2600, PullEvent::MigrationEnded(job(8), Ok(()))),
        ]);
        assert_eq!(
            out,
            [PullAction::SendRequest, PullAction::SendRequest, PullAction::End(PullOutcome::Completed)]
        );
        assert_eq!((pull.retry_count(), pull.last_error(), pull.next_deadline()), (2, "lost", None));
    }

    #[test]
    fn request_is_repeated_if_the_source_does_not_start() {
        let (out, pull) = run_events(&[(0, accepted()), (10_000, PullEvent::Deadline)]);
        assert_eq!((out.len(), pull.next_deadline()), (0, Some(at_millis(10_000) + RETRY_DELAY)));
    }

    #[test]
    fn end_of_an_earlier_migration_is_ignored() {
        let (out, pull) = run_events(&[
            (1, accepted()),
            (2, started()),
            (3, PullEvent::MigrationStarted(job(8))),
            (4, completed()),
            (5, connection_lost_event()),
        ]);
        assert_eq!((out.len(), pull.last_error(), pull.next_deadline()), (0, "", None));
    }

    #[test]
    fn migration_may_start_before_the_reply_arrives() {
        let (out, pull) = run_events(&[(1, started()), (2, accepted()), (3, completed())]);
        assert_eq!(out, [PullAction::End(PullOutcome::Completed)]);
        assert_eq!(pull.next_deadline(), None);
    }

    #[test]
    fn change_of_the_owner_ends_a_waiting_request() {
        let failed = |why: &str| vec![PullAction::End(PullOutcome::Failed(why.to_owned()))];
        let other_owner = || (5, topology_with_owner(OTHER, false));
        let waiting: [TimedEvents; 3] = [vec![], vec![(1, accepted())], vec![(1, refused())]];
        for events in waiting {
            let with = |last: (u64, PullEvent)| run_events(&[events.as_slice(), &[last]].concat()).0;
            assert_eq!(with((5, topology_with_owner(SOURCE, false))), [], "{events:?}");
            assert_eq!(with((5, topology_with_owner(TARGET, false))), [], "{events:?}");
            assert_eq!(with(other_owner()), failed("slots have another owner now"), "{events:?}");
            let demoted = with((5, topology_with_owner(SOURCE, true)));
            assert_eq!(demoted, failed("slot migration not allowed on replica."), "{events:?}");
        }
        // The import notices the change itself, and a cancelled request must wait for the source.
        assert_eq!(run_events(&[(1, accepted()), (2, started()), other_owner()]).0, []);
        assert_eq!(run_events(&[(1, accepted()), (2, PullEvent::Cancel), other_owner()]).0, []);
    }

    #[test]
    fn request_can_be_cancelled_in_every_state() {
        let over = [PullAction::End(PullOutcome::Cancelled)];
        let with_job = [PullAction::CancelMigration(job(9)), PullAction::End(PullOutcome::Cancelled)];
        let cancel = || (5, PullEvent::Cancel);
        let table: [(TimedEvents, &[PullAction]); 8] = [
            (vec![cancel(), (6, refused())], &over),
            (vec![cancel(), (6, accepted()), (7, started()), (8, connection_lost_event())], &with_job),
            (vec![cancel(), (6, started()), (7, accepted()), (8, connection_lost_event())], &with_job),
            (vec![(1, accepted()), cancel(), (10_001, PullEvent::Deadline)], &over),
            (vec![(1, accepted()), cancel(), (6, started()), (7, connection_lost_event())], &with_job),
            (vec![(1, refused()), cancel()], &over),
            (vec![(1, accepted()), (2, started()), cancel(), (6, connection_lost_event())], &with_job),
            (
                vec![(1, accepted()), (2, started()), cancel(), (6, completed())],
                &[PullAction::CancelMigration(job(9)), PullAction::End(PullOutcome::Completed)],
            ),
        ];
        for (events, expected) in table {
            assert_eq!(run_events(&events).0, expected, "{events:?}");
        }
    }
}
