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
//! FORCE skips the first three steps, as does a failover requested by a master that shuts down and names its successor
//! in the replication stream. TAKEOVER also skips the election. Both sides abort at the timeout. Until then a second
//! request with the same option is refused. (Valkey restarts the failover, which discards the votes received so far.)

use std::time::Duration;

use clock::Instant;
use slot_routing::{NodeId, ReplOffset};

use crate::commands::{FailoverMode, OperatorError};
use crate::contract::ClusterAction;
use crate::effect::{Effect, GossipKind};
use crate::event::ManualFailoverEvent;
use crate::state::ClusterState;
use crate::timeline::TimelineEntry;
use crate::wire::{Header, MessageBody};

/// Interval at which the paused master repeats its offset (as in Redis, the interval of its cron).
const REPEAT_INTERVAL: Duration = Duration::from_millis(100);

/// The manual failover in which this node takes part, as the replica or as the master.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ManualFailover {
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Idle,
    /// This replica has asked its master to pause writes and to send its final offset.
    AwaitingOffset { until: Instant },
    /// This replica applies the stream up to the master's final offset.
    CatchingUp { until: Instant, target: ReplOffset },
    /// This replica has all data that it needs and may start the election.
    Ready {
        until: Instant,
        /// Whether the failover starts without the cooperation of the master.
        forced: bool,
        /// Whether the driver has been asked to report when the offset is reached.
        watching: bool,
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
        matches!(self.phase, Phase::Ready { .. })
    }

    /// Returns whether the stream may grow. It must not grow while a replica takes over from this master.
    pub(crate) fn stream_state(&self) -> StreamState {
        match self.phase {
            Phase::Pausing { .. } | Phase::Paused { .. } => StreamState::Frozen,
            Phase::Idle | Phase::AwaitingOffset { .. } | Phase::CatchingUp { .. } | Phase::Ready { .. } => {
                StreamState::Open
            }
        }
    }

    /// Whether this master has paused its writes and announces its final offset.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(self.phase, Phase::Paused { .. })
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
        if !self.is_stronger(mode) {
            return Err(OperatorError::FailoverRuns);
        }
        let mut effects: Vec<Effect> = self.end().into_iter().collect();
        effects.push(requested(master.id, state.id()));
        let until = state.now() + state.config().manual_failover_timeout;
        match mode {
            FailoverMode::Graceful => {
                self.phase = Phase::AwaitingOffset { until };
                effects.extend([
                    Effect::log(ManualFailoverEvent::Accepted),
                    // A Redis master accepts MFSTART only from its replicas, and may not know yet that this node is a
                    // replica.
                    Effect::Gossip { to: master.id, kind: GossipKind::Ping },
                    Effect::Send { to: master.id, body: MessageBody::ManualFailoverStart },
                ]);
            }
            FailoverMode::Force => {
                self.phase = Phase::Ready { until, forced: true, watching: false };
                effects.push(Effect::log(ManualFailoverEvent::Forced));
            }
            FailoverMode::Takeover => {
                effects.push(Effect::log(ManualFailoverEvent::Takeover));
                effects.push(Effect::TakeOverUnelected);
            }
        }
        Ok(effects)
    }

    /// Whether a request with `mode` replaces the failover in progress: it must be a stronger option.
    fn is_stronger(&self, mode: FailoverMode) -> bool {
        match self.phase {
            Phase::Idle | Phase::Pausing { .. } | Phase::Paused { .. } => true,
            Phase::AwaitingOffset { .. } | Phase::CatchingUp { .. } | Phase::Ready { forced: false, .. } => {
                mode != FailoverMode::Graceful
            }
            Phase::Ready { forced: true, .. } => mode == FailoverMode::Takeover,
        }
    }

    /// Starts a failover because the master shuts down and names this node as its successor. A failover in progress
    /// continues without waiting for the master.
    pub(crate) fn on_master_shutdown(&mut self, state: &ClusterState) -> Vec<Effect> {
        let Some(master) = state.myself().master() else { return Vec::new() };
        self.phase = match self.phase {
            Phase::AwaitingOffset { until } => Phase::Ready { until, forced: false, watching: false },
            Phase::CatchingUp { until, .. } => Phase::Ready { until, forced: false, watching: true },
            ready @ Phase::Ready { .. } => ready,
            Phase::Idle | Phase::Pausing { .. } | Phase::Paused { .. } => {
                let until = state.now() + state.config().manual_failover_timeout;
                Phase::Ready { until, forced: true, watching: false }
            }
        };
        vec![requested(master, state.id()), Effect::log(ManualFailoverEvent::RequestedByMaster)]
    }

    /// Repeats MFSTART on a new link, because the one sent on the previous link may be lost.
    pub(crate) fn on_link_up(&self, state: &ClusterState, to: NodeId) -> Option<Effect> {
        let unheard = matches!(self.phase, Phase::AwaitingOffset { .. });
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
        self.phase = Phase::Pausing { until: state.now() + timeout, to: replica };
        effects.extend([
            // Writes that are already paused for another replica stay paused.
            Effect::KeepWritesPaused,
            requested(me, replica),
            Effect::log(ManualFailoverEvent::Asked { by: replica }),
            // Pause for twice the timeout: a longer pause is harmless, but after a shorter one the new master would
            // miss writes.
            Effect::Act(ClusterAction::PauseWrites { until: state.now() + timeout * 2 }),
        ]);
        effects
    }

    /// Records that writes are paused. Returns whether a replica waits for the final offset.
    pub(crate) fn on_writes_paused(&mut self, now: Instant) -> bool {
        match self.phase {
            Phase::Pausing { until, to } | Phase::Paused { until, to, .. } => {
                self.phase = Phase::Paused { until, to, repeat_at: now };
                true
            }
            Phase::Idle | Phase::AwaitingOffset { .. } | Phase::CatchingUp { .. } | Phase::Ready { .. } => {
                false
            }
        }
    }

    /// Handles the header of a master that has paused its writes and announces its final offset.
    pub(crate) fn on_master_paused(&mut self, state: &ClusterState, header: &Header) -> Vec<Effect> {
        let Phase::AwaitingOffset { until } = self.phase else { return Vec::new() };
        if state.myself().master() != Some(header.sender) {
            return Vec::new();
        }
        self.phase = Phase::CatchingUp { until, target: header.offset };
        vec![
            Effect::Act(ClusterAction::WatchOffset(Some(header.offset))),
            Effect::log(ManualFailoverEvent::MasterOffset(header.offset.0)),
        ]
    }

    pub(crate) fn step(&mut self, state: &ClusterState) -> Vec<Effect> {
        let now = state.now();
        if self.timeout().is_some_and(|until| now >= until) {
            let master = state.myself().master().unwrap_or(state.id());
            let timed_out = Effect::Record { node: master, entry: TimelineEntry::RequestTimeout };
            let ended = self.end();
            let log = Effect::log(ManualFailoverEvent::TimedOut);
            return [Some(timed_out), ended, Some(log)].into_iter().flatten().collect();
        }
        match &mut self.phase {
            Phase::CatchingUp { until, target } if state.offset() >= *target => {
                self.phase = Phase::Ready { until: *until, forced: false, watching: true };
                vec![Effect::log(ManualFailoverEvent::Ready)]
            }
            Phase::Paused { to, repeat_at, .. } if now >= *repeat_at => {
                *repeat_at = now + REPEAT_INTERVAL;
                vec![Effect::Gossip { to: *to, kind: GossipKind::Ping }]
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Paused { until, repeat_at, .. } => Some(until.min(repeat_at)),
            _ => self.timeout(),
        }
    }

    fn timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Idle => None,
            Phase::AwaitingOffset { until }
            | Phase::CatchingUp { until, .. }
            | Phase::Ready { until, .. }
            | Phase::Pausing { until, .. }
            | Phase::Paused { until, .. } => Some(until),
        }
    }

    /// Ends this node's manual failover, whatever its result.
    pub(crate) fn end(&mut self) -> Option<Effect> {
        match std::mem::take(&mut self.phase) {
            Phase::Idle | Phase::AwaitingOffset { .. } | Phase::Ready { watching: false, .. } => None,
            Phase::CatchingUp { .. } | Phase::Ready { watching: true, .. } => {
                Some(Effect::Act(ClusterAction::WatchOffset(None)))
            }
            Phase::Pausing { .. } | Phase::Paused { .. } => Some(Effect::ResumeWrites),
        }
    }
}

fn requested(master: NodeId, by: NodeId) -> Effect {
    Effect::Record { node: master, entry: TimelineEntry::Request { by } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_state::{TestCluster, id};

    const WATCH_NOTHING: Effect = Effect::Act(ClusterAction::WatchOffset(None));

    /// A cluster in which this node (0) is a replica of master 1.
    fn replica() -> TestCluster {
        let mut cluster = TestCluster::new(3, &[]);
        cluster.become_replica_of(1);
        cluster
    }

    fn paused(cluster: &TestCluster, offset: u64) -> Header {
        Header { offset: ReplOffset(offset), ..cluster.header_of(1) }
    }

    #[test]
    fn graceful_failover_waits_for_the_offset_of_the_paused_master() {
        let mut cluster = replica();
        let mut part = ManualFailover::default();
        let start = Effect::Send { to: id(1), body: MessageBody::ManualFailoverStart };
        assert!(part.start(&cluster.state, FailoverMode::Graceful).unwrap().contains(&start));
        assert_eq!(part.on_link_up(&cluster.state, id(1)), Some(start));
        assert_eq!(part.on_link_up(&cluster.state, id(2)), None);
        let header = paused(&cluster, 50);
        assert_eq!(part.on_master_paused(&cluster.state, &header).len(), 2);
        assert_eq!(part.on_master_paused(&cluster.state, &header), [], "the first offset counts");
        cluster.state.set_offset(ReplOffset(49));
        assert_eq!(part.step(&cluster.state), []);
        assert!(!part.is_ready());
        cluster.state.set_offset(ReplOffset(50));
        assert_eq!(part.step(&cluster.state), [Effect::log(ManualFailoverEvent::Ready)]);
        assert!(part.is_ready());
        assert_eq!(part.end(), Some(WATCH_NOTHING));
        assert_eq!(part.end(), None);
    }

    #[test]
    fn request_replaces_only_a_weaker_one() {
        let cluster = replica();
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
            assert_eq!(result == Err(OperatorError::FailoverRuns), refused, "{first:?} {second:?}");
        }
    }

    #[test]
    fn failover_is_refused_on_masters_and_without_a_reachable_master() {
        let mut part = ManualFailover::default();
        let master = TestCluster::new(3, &[]);
        assert_eq!(part.start(&master.state, FailoverMode::Force), Err(OperatorError::FailoverOnMaster));
        let mut cluster = replica();
        cluster.fail(1);
        assert_eq!(part.start(&cluster.state, FailoverMode::Graceful), Err(OperatorError::MasterDown));
        assert!(part.start(&cluster.state, FailoverMode::Force).is_ok());
    }

    #[test]
    fn shutdown_of_the_master_makes_a_waiting_replica_ready() {
        let cluster = replica();
        let mut part = ManualFailover::default();
        part.start(&cluster.state, FailoverMode::Graceful).unwrap();
        part.on_master_paused(&cluster.state, &paused(&cluster, 50));
        part.on_master_shutdown(&cluster.state);
        assert!(part.is_ready());
        assert_eq!(part.end(), Some(WATCH_NOTHING));
    }

    #[test]
    fn master_pauses_and_repeats_its_offset_until_the_timeout() {
        let mut cluster = TestCluster::new(3, &[(3, 0)]);
        let mut part = ManualFailover::default();
        let stranger = cluster.header_of(1);
        assert_eq!(part.on_start_request(&cluster.state, &stranger), []);
        let request = cluster.header_of(3);
        let effects = part.on_start_request(&cluster.state, &request);
        let timeout = cluster.state.config().manual_failover_timeout;
        let until = cluster.state.now() + timeout * 2;
        assert_eq!(effects.last(), Some(&Effect::Act(ClusterAction::PauseWrites { until })));
        assert!(part.stream_state() == StreamState::Frozen && !part.is_paused());
        assert_eq!(part.step(&cluster.state), []);
        assert!(part.on_writes_paused(cluster.state.now()) && part.is_paused());
        let ping = [Effect::Gossip { to: id(3), kind: GossipKind::Ping }];
        assert_eq!(part.step(&cluster.state), ping);
        assert_eq!(part.step(&cluster.state), []);
        cluster.pass(REPEAT_INTERVAL);
        assert_eq!(part.step(&cluster.state), ping);
        cluster.pass(timeout);
        let effects = part.step(&cluster.state);
        assert!(effects.contains(&Effect::ResumeWrites), "{effects:?}");
        assert!(part.stream_state() == StreamState::Open && part.next_deadline().is_none());
    }

    #[test]
    fn second_replica_inherits_the_pause() {
        let cluster = TestCluster::new(3, &[(3, 0), (4, 0)]);
        let mut part = ManualFailover::default();
        part.on_start_request(&cluster.state, &cluster.header_of(3));
        let effects = part.on_start_request(&cluster.state, &cluster.header_of(4));
        assert_eq!(effects[..2], [Effect::ResumeWrites, Effect::KeepWritesPaused]);
    }
}
