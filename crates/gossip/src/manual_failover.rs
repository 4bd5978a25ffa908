//! Manual failover (CLUSTER FAILOVER).
//!
//! ```text
//! replica                               master
//!  MFSTART --------------------------->  pauses writes
//!  <------------ PING, paused, offset    sends its final offset
//!  applies the stream up to the offset
//!  is elected (forced vote), claims the slots
//!  PONG with the claim --------------->  becomes a replica, resumes writes
//! ```
//!
//! An offset only says that the replica has all data if the replica receives the master's stream: after a restart of the
//! master both offsets can be 0 although the replica has never synchronized with it. The replica therefore also waits
//! until its link streams. (Redis compares only the offsets.)
//!
//! FORCE skips the first three steps, as does a failover requested by a master that shuts down and names its successor
//! in the replication stream. TAKEOVER also skips the election. Both sides abort at the timeout. Until then a second
//! request with the same option is refused. (Valkey restarts the failover, which discards the votes received so far.)

use std::time::Duration;

use clock::Instant;
use slot_routing::{NodeId, ReplOffset};

use crate::commands::{FailoverMode, OperatorError};
use crate::contract::{ClusterAction, ReplicationSource};
use crate::effect::{Effect, GossipKind};
use crate::event::ManualFailoverEvent;
use crate::state::ClusterState;
use crate::timeline::TimelineEntry;
use crate::wire::{Header, MessageBody};

/// Interval at which the paused master repeats its offset (as in Redis, the interval of its cron).
const OFFSET_REPEAT_INTERVAL: Duration = Duration::from_millis(100);

/// The manual failover in which this node takes part, as the replica or as the master.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ManualFailover {
    phase: ManualFailoverPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ManualFailoverPhase {
    #[default]
    Idle,
    /// This replica has asked its master to pause writes and to send its final offset.
    AwaitingOffset { until: Instant },
    /// This replica applies the stream up to the master's final offset.
    CatchingUp { until: Instant, target_offset: ReplOffset },
    /// This replica has all data that it needs and may start the election.
    Ready {
        until: Instant,
        /// Whether the failover starts without the cooperation of the master.
        is_forced: bool,
        /// Whether the driver has been asked to report when the offset is reached.
        is_watching_offset: bool,
    },
    /// This master waits until its writes are paused for the replica `to`.
    Pausing { until: Instant, to: NodeId },
    /// Writes are paused, and this master sends its final offset to the replica.
    Paused { until: Instant, to: NodeId, repeat_at: Instant },
}

/// Whether the replication stream of this master may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamState {
    Open,
    /// The stream must not grow, because a replica will take over at the announced offset.
    Frozen,
}

impl ManualFailover {
    /// Whether this replica may start the election.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.phase, ManualFailoverPhase::Ready { .. })
    }

    /// Returns whether the stream may grow. It must not grow while a replica takes over from this master.
    pub(crate) fn stream_state(&self) -> StreamState {
        match self.phase {
            ManualFailoverPhase::Pausing { .. } | ManualFailoverPhase::Paused { .. } => StreamState::Frozen,
            ManualFailoverPhase::Idle
            | ManualFailoverPhase::AwaitingOffset { .. }
            | ManualFailoverPhase::CatchingUp { .. }
            | ManualFailoverPhase::Ready { .. } => StreamState::Open,
        }
    }

    /// Whether this master has paused its writes and announces its final offset.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(self.phase, ManualFailoverPhase::Paused { .. })
    }

    /// Starts a failover on request of the operator.
    pub(crate) fn start(
        &mut self,
        state: &ClusterState,
        mode: FailoverMode,
    ) -> Result<Vec<Effect>, OperatorError> {
        let me = state.myself();
        if me.is_master() {
            return Err(OperatorError::FailoverOnMaster);
        }
        let master = me.master().and_then(|id| state.node(id)).ok_or(OperatorError::MasterUnknown)?;
        let reachable = !master.has_failed() && master.link.is_up();
        if mode == FailoverMode::Graceful && !reachable {
            return Err(OperatorError::MasterDown);
        }
        if !self.replaces_current_failover(mode) {
            return Err(OperatorError::FailoverInProgress);
        }
        let mut effects: Vec<Effect> = self.end().into_iter().collect();
        effects.push(request_effect(master.id, state.id()));
        let until = state.now() + state.config().manual_failover_timeout;
        match mode {
            FailoverMode::Graceful => {
                self.phase = ManualFailoverPhase::AwaitingOffset { until };
                effects.extend([
                    Effect::log(ManualFailoverEvent::Accepted),
                    // A Redis master accepts MFSTART only from its replicas, and may not know yet that this node is a
                    // replica.
                    Effect::SendGossip { to: master.id, kind: GossipKind::Ping },
                    Effect::Send { to: master.id, body: MessageBody::ManualFailoverStart },
                ]);
            }
            FailoverMode::Force => {
                self.phase = ManualFailoverPhase::Ready { until, is_forced: true, is_watching_offset: false };
                effects.push(Effect::log(ManualFailoverEvent::Forced));
            }
            FailoverMode::Takeover => {
                effects.push(Effect::log(ManualFailoverEvent::Takeover));
                effects.push(Effect::TakeOverWithoutElection);
            }
        }
        Ok(effects)
    }

    /// Whether a request with `mode` replaces the failover in progress: it must be a stronger option.
    fn replaces_current_failover(&self, mode: FailoverMode) -> bool {
        match self.phase {
            ManualFailoverPhase::Idle
            | ManualFailoverPhase::Pausing { .. }
            | ManualFailoverPhase::Paused { .. } => true,
            ManualFailoverPhase::AwaitingOffset { .. }
            | ManualFailoverPhase::CatchingUp { .. }
            | ManualFailoverPhase::Ready { is_forced: false, .. } => mode != FailoverMode::Graceful,
            ManualFailoverPhase::Ready { is_forced: true, .. } => mode == FailoverMode::Takeover,
        }
    }

    /// Starts a failover because the master shuts down and names this node as its successor. A failover in progress
    /// continues without waiting for the master.
    pub(crate) fn on_master_shutdown(&mut self, state: &ClusterState) -> Vec<Effect> {
        let Some(master) = state.myself().master() else { return Vec::new() };
        self.phase = match self.phase {
            ManualFailoverPhase::AwaitingOffset { until } => {
                ManualFailoverPhase::Ready { until, is_forced: false, is_watching_offset: false }
            }
            ManualFailoverPhase::CatchingUp { until, .. } => {
                ManualFailoverPhase::Ready { until, is_forced: false, is_watching_offset: true }
            }
            ready @ ManualFailoverPhase::Ready { .. } => ready,
            ManualFailoverPhase::Idle
            | ManualFailoverPhase::Pausing { .. }
            | ManualFailoverPhase::Paused { .. } => {
                let until = state.now() + state.config().manual_failover_timeout;
                ManualFailoverPhase::Ready { until, is_forced: true, is_watching_offset: false }
            }
        };
        vec![request_effect(master, state.id()), Effect::log(ManualFailoverEvent::RequestedByMaster)]
    }

    /// Repeats MFSTART on a new link, because the one sent on the previous link may be lost.
    pub(crate) fn on_link_up(&self, state: &ClusterState, to: NodeId) -> Option<Effect> {
        let unheard = matches!(self.phase, ManualFailoverPhase::AwaitingOffset { .. });
        let asks = unheard && state.myself().master() == Some(to);
        asks.then_some(Effect::Send { to, body: MessageBody::ManualFailoverStart })
    }

    /// Pauses writes because a replica requests a failover. The header decides whether the sender is a replica, because
    /// this node's entry for the sender may be outdated.
    pub(crate) fn on_start_request(&mut self, state: &ClusterState, header: &Header) -> Vec<Effect> {
        let (me, replica) = (state.id(), header.sender);
        if header.replica_of != Some(me) {
            return Vec::new();
        }
        let mut effects: Vec<Effect> = self.end().into_iter().collect();
        let timeout = state.config().manual_failover_timeout;
        self.phase = ManualFailoverPhase::Pausing { until: state.now() + timeout, to: replica };
        effects.extend([
            // Writes that are already paused for another replica stay paused.
            Effect::KeepWritesPaused,
            request_effect(me, replica),
            Effect::log(ManualFailoverEvent::RequestedByReplica { replica }),
            // Pause for twice the timeout: a longer pause is harmless, but after a shorter one the new master would
            // miss writes.
            Effect::DriverAction(ClusterAction::PauseWrites { until: state.now() + timeout * 2 }),
        ]);
        effects
    }

    /// Records that writes are paused. Returns whether a replica waits for the final offset.
    pub(crate) fn on_writes_paused(&mut self, now: Instant) -> bool {
        match self.phase {
            ManualFailoverPhase::Pausing { until, to } | ManualFailoverPhase::Paused { until, to, .. } => {
                self.phase = ManualFailoverPhase::Paused { until, to, repeat_at: now };
                true
            }
            ManualFailoverPhase::Idle
            | ManualFailoverPhase::AwaitingOffset { .. }
            | ManualFailoverPhase::CatchingUp { .. }
            | ManualFailoverPhase::Ready { .. } => false,
        }
    }

    /// Handles the header of a master that has paused its writes and announces its final offset.
    pub(crate) fn on_master_paused(&mut self, state: &ClusterState, header: &Header) -> Vec<Effect> {
        let ManualFailoverPhase::AwaitingOffset { until } = self.phase else { return Vec::new() };
        if state.myself().master() != Some(header.sender) {
            return Vec::new();
        }
        self.phase = ManualFailoverPhase::CatchingUp { until, target_offset: header.offset };
        vec![
            Effect::DriverAction(ClusterAction::WatchOffset(Some(header.offset))),
            Effect::log(ManualFailoverEvent::MasterOffset(header.offset.0)),
        ]
    }

    pub(crate) fn step(&mut self, state: &ClusterState) -> Vec<Effect> {
        let now = state.now();
        if self.timeout_at().is_some_and(|until| now >= until) {
            let master = state.myself().master().unwrap_or(state.id());
            let timed_out = Effect::RecordTimeline { node: master, entry: TimelineEntry::RequestTimeout };
            let ended = self.end();
            let log = Effect::log(ManualFailoverEvent::TimedOut);
            return [Some(timed_out), ended, Some(log)].into_iter().flatten().collect();
        }
        match &mut self.phase {
            ManualFailoverPhase::CatchingUp { until, target_offset }
                if has_stream_up_to(state, *target_offset) =>
            {
                self.phase =
                    ManualFailoverPhase::Ready { until: *until, is_forced: false, is_watching_offset: true };
                vec![Effect::log(ManualFailoverEvent::Ready)]
            }
            ManualFailoverPhase::Paused { to, repeat_at, .. } if now >= *repeat_at => {
                *repeat_at = now + OFFSET_REPEAT_INTERVAL;
                vec![Effect::SendGossip { to: *to, kind: GossipKind::Ping }]
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match self.phase {
            ManualFailoverPhase::Paused { until, repeat_at, .. } => Some(until.min(repeat_at)),
            _ => self.timeout_at(),
        }
    }

    fn timeout_at(&self) -> Option<Instant> {
        match self.phase {
            ManualFailoverPhase::Idle => None,
            ManualFailoverPhase::AwaitingOffset { until }
            | ManualFailoverPhase::CatchingUp { until, .. }
            | ManualFailoverPhase::Ready { until, .. }
            | ManualFailoverPhase::Pausing { until, .. }
            | ManualFailoverPhase::Paused { until, .. } => Some(until),
        }
    }

    /// Ends this node's manual failover, whatever its result.
    pub(crate) fn end(&mut self) -> Option<Effect> {
        match std::mem::take(&mut self.phase) {
            ManualFailoverPhase::Idle
            | ManualFailoverPhase::AwaitingOffset { .. }
            | ManualFailoverPhase::Ready { is_watching_offset: false, .. } => None,
            ManualFailoverPhase::CatchingUp { .. }
            | ManualFailoverPhase::Ready { is_watching_offset: true, .. } => {
                Some(Effect::DriverAction(ClusterAction::WatchOffset(None)))
            }
            ManualFailoverPhase::Pausing { .. } | ManualFailoverPhase::Paused { .. } => {
                Some(Effect::ResumeWrites)
            }
        }
    }
}

/// Whether this replica is in sync with its master's stream and has applied it up to `offset`.
fn has_stream_up_to(state: &ClusterState, offset: ReplOffset) -> bool {
    let is_streaming = matches!(state.replication().source, ReplicationSource::Streaming { .. });
    is_streaming && state.offset() >= offset
}

fn request_effect(master: NodeId, replica: NodeId) -> Effect {
    Effect::RecordTimeline { node: master, entry: TimelineEntry::Request { replica } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_state::{TestCluster, id};

    const STOP_WATCHING_OFFSET: Effect = Effect::DriverAction(ClusterAction::WatchOffset(None));

    /// A cluster in which this node (0) is a replica of master 1.
    fn replica_cluster() -> TestCluster {
        let mut cluster = TestCluster::new(3, &[]);
        cluster.become_replica_of(1);
        cluster
    }

    fn paused_header(cluster: &TestCluster, offset: u64) -> Header {
        Header { offset: ReplOffset(offset), ..cluster.header_of(1) }
    }

    #[test]
    fn graceful_failover_waits_for_the_offset_of_the_paused_master() {
        let mut cluster = replica_cluster();
        let mut part = ManualFailover::default();
        let start = Effect::Send { to: id(1), body: MessageBody::ManualFailoverStart };
        assert!(part.start(&cluster.state, FailoverMode::Graceful).unwrap().contains(&start));
        assert_eq!(part.on_link_up(&cluster.state, id(1)), Some(start));
        assert_eq!(part.on_link_up(&cluster.state, id(2)), None);
        let header = paused_header(&cluster, 50);
        assert_eq!(part.on_master_paused(&cluster.state, &header).len(), 2);
        assert_eq!(part.on_master_paused(&cluster.state, &header), [], "the first offset counts");
        cluster.state.set_offset(ReplOffset(49));
        assert_eq!(part.step(&cluster.state), []);
        assert!(!part.is_ready());
        cluster.state.set_offset(ReplOffset(50));
        cluster.state.set_source(ReplicationSource::Streaming { last_heard_at: cluster.state.now() });
        assert_eq!(part.step(&cluster.state), [Effect::log(ManualFailoverEvent::Ready)]);
        assert!(part.is_ready());
        assert_eq!(part.end(), Some(STOP_WATCHING_OFFSET));
        assert_eq!(part.end(), None);
    }

    /// A restarted master that knows no offset of its data announces offset 0, which is also the offset of a replica
    /// that has never synchronized. Without the check of the link, the replica would take over without the data.
    #[test]
    fn replica_that_has_not_synchronized_does_not_take_over_at_offset_0() {
        let mut cluster = replica_cluster();
        let mut part = ManualFailover::default();
        part.start(&cluster.state, FailoverMode::Graceful).unwrap();
        part.on_master_paused(&cluster.state, &paused_header(&cluster, 0));
        let now = cluster.state.now();
        for source in [ReplicationSource::NeverSynchronized, ReplicationSource::Lost { since: now }] {
            cluster.state.set_source(source);
            assert_eq!(part.step(&cluster.state), []);
            assert!(!part.is_ready(), "{source:?}");
        }
        cluster.state.set_source(ReplicationSource::Streaming { last_heard_at: now });
        assert_eq!(part.step(&cluster.state), [Effect::log(ManualFailoverEvent::Ready)]);
        assert!(part.is_ready());
    }

    #[test]
    fn failover_request_replaces_only_a_weaker_one() {
        let cluster = replica_cluster();
        use FailoverMode::{Force, Graceful, Takeover};
        // Columns: failover in progress, request, whether the request is refused
        for (first, second, refused) in [
            (Graceful, Graceful, true),
            (Graceful, Force, false),
            (Graceful, Takeover, false),
            (Force, Graceful, true),
            (Force, Force, true),
            (Force, Takeover, false),
        ] {
            let mut part = ManualFailover::default();
            part.start(&cluster.state, first).unwrap();
            let result = part.start(&cluster.state, second);
            assert_eq!(result == Err(OperatorError::FailoverInProgress), refused, "{first:?} {second:?}");
        }
    }

    #[test]
    fn failover_is_refused_on_masters_and_without_a_reachable_master() {
        let mut part = ManualFailover::default();
        let master = TestCluster::new(3, &[]);
        assert_eq!(part.start(&master.state, FailoverMode::Force), Err(OperatorError::FailoverOnMaster));
        let mut cluster = replica_cluster();
        cluster.mark_failed(1);
        assert_eq!(part.start(&cluster.state, FailoverMode::Graceful), Err(OperatorError::MasterDown));
        assert!(part.start(&cluster.state, FailoverMode::Force).is_ok());
    }

    #[test]
    fn shutdown_of_the_master_makes_a_waiting_replica_ready() {
        let cluster = replica_cluster();
        let mut part = ManualFailover::default();
        part.start(&cluster.state, FailoverMode::Graceful).unwrap();
        part.on_master_paused(&cluster.state, &paused_header(&cluster, 50));
        part.on_master_shutdown(&cluster.state);
        assert!(part.is_ready());
        assert_eq!(part.end(), Some(STOP_WATCHING_OFFSET));
    }

    #[test]
    fn master_pauses_writes_and_repeats_its_offset_until_the_timeout() {
        let mut cluster = TestCluster::new(3, &[(3, 0)]);
        let mut part = ManualFailover::default();
        let stranger = cluster.header_of(1);
        assert_eq!(part.on_start_request(&cluster.state, &stranger), []);
        let request = cluster.header_of(3);
        let effects = part.on_start_request(&cluster.state, &request);
        let timeout = cluster.state.config().manual_failover_timeout;
        let until = cluster.state.now() + timeout * 2;
        assert_eq!(effects.last(), Some(&Effect::DriverAction(ClusterAction::PauseWrites { until })));
        assert!(part.stream_state() == StreamState::Frozen && !part.is_paused());
        assert_eq!(part.step(&cluster.state), []);
        assert!(part.on_writes_paused(cluster.state.now()) && part.is_paused());
        let ping = [Effect::SendGossip { to: id(3), kind: GossipKind::Ping }];
        assert_eq!(part.step(&cluster.state), ping);
        assert_eq!(part.step(&cluster.state), []);
        cluster.advance_time(OFFSET_REPEAT_INTERVAL);
        assert_eq!(part.step(&cluster.state), ping);
        cluster.advance_time(timeout);
        let effects = part.step(&cluster.state);
        assert!(effects.contains(&Effect::ResumeWrites), "{effects:?}");
        assert!(part.stream_state() == StreamState::Open && part.next_deadline().is_none());
    }

    #[test]
    fn second_replica_inherits_the_write_pause() {
        let cluster = TestCluster::new(3, &[(3, 0), (4, 0)]);
        let mut part = ManualFailover::default();
        part.on_start_request(&cluster.state, &cluster.header_of(3));
        let effects = part.on_start_request(&cluster.state, &cluster.header_of(4));
        assert_eq!(effects[..2], [Effect::ResumeWrites, Effect::KeepWritesPaused]);
    }
}
