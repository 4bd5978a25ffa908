//! Manual failover (CLUSTER FAILOVER).
//!
//! ```text
//! replica (Claiming)                    master (Yielding)
//!   MFSTART --------------------------->  pauses writes
//!   <------------ PING, paused, offset    sends its final offset
//!   applies the stream up to the offset
//!   is elected (forced vote), claims the slots
//!   PONG with the claim --------------->  becomes a replica, resumes writes
//! ```
//!
//! FORCE skips the first three steps, and so does a master that shuts down and names its successor in the replication
//! stream. TAKEOVER also skips the election. Both sides abort at the timeout. Until then a second request of the same
//! kind is refused. (Valkey restarts the failover, which discards the votes so far.)

use std::time::Duration;

use clock::Instant;
use slot_routing::{NodeId, ReplOffset};

use crate::commands::{FailoverMode, OperatorError, OperatorReply};
use crate::contract::ClusterAction;
use crate::event::ManualFailoverEvent;
use crate::machine::Gossip;
use crate::sending::GossipKind;
use crate::wire::{Header, MessageBody};

/// How often the paused master repeats its offset (as in Redis, the interval of its cron).
const REPEAT_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ManualFailover {
    #[default]
    Idle,
    /// This replica wants to take over.
    Claiming {
        until: Instant,
        /// The failover does not wait for the master.
        forced: bool,
        /// The offset at which the master paused.
        target: Option<ReplOffset>,
        ready: bool,
    },
    /// This master lets a replica take over.
    Yielding {
        until: Instant,
        to: NodeId,
        /// The final offset, once writes are paused.
        paused_at: Option<ReplOffset>,
        repeat_at: Instant,
    },
}

impl ManualFailover {
    /// Whether the replica may start the election.
    pub(crate) fn is_ready(self) -> bool {
        matches!(self, Self::Claiming { ready: true, .. })
    }
}

impl Gossip {
    pub(crate) fn cmd_failover(&mut self, mode: FailoverMode) -> Result<OperatorReply, OperatorError> {
        let me = self.myself();
        if me.is_master() {
            return Err(OperatorError::FailoverOnMaster);
        }
        let master =
            me.master().and_then(|id| self.state.nodes.get(&id)).ok_or(OperatorError::MasterUnknown)?;
        let reachable = !master.has_failed() && master.link.is_up();
        let master = master.id;
        if mode == FailoverMode::Graceful && !reachable {
            return Err(OperatorError::MasterDown);
        }
        // Requests during a failover are refused unless they use a stronger option.
        match self.manual_failover {
            ManualFailover::Claiming { forced, .. }
                if mode == FailoverMode::Graceful || forced && mode == FailoverMode::Force =>
            {
                return Err(OperatorError::FailoverRuns);
            }
            ManualFailover::Claiming { .. } | ManualFailover::Yielding { .. } | ManualFailover::Idle => {}
        }
        self.end_manual_failover();
        self.timeline.record_request(master, self.state.me, self.state.wall);
        let until = self.state.now + self.state.config.manual_failover_timeout;
        match mode {
            FailoverMode::Graceful => {
                self.log(ManualFailoverEvent::Accepted);
                self.manual_failover =
                    ManualFailover::Claiming { until, forced: false, target: None, ready: false };
                // A Redis master accepts MFSTART only from its replicas, and may not know yet that this node is one.
                self.send_gossip(master, GossipKind::Ping);
                self.send(master, MessageBody::ManualFailoverStart);
            }
            FailoverMode::Force => {
                self.log(ManualFailoverEvent::Forced);
                self.manual_failover =
                    ManualFailover::Claiming { until, forced: true, target: None, ready: true };
            }
            FailoverMode::Takeover => {
                self.log(ManualFailoverEvent::Takeover);
                self.bump_epoch();
                let epoch = self.myself().config_epoch;
                self.take_over(epoch);
            }
        }
        Ok(OperatorReply::Ok)
    }

    /// The master shuts down and names this node as its successor. A failover in progress continues without waiting for
    /// the master.
    pub(crate) fn on_master_shutdown(&mut self) {
        let Some(master) = self.myself().master() else { return };
        self.timeline.record_request(master, self.state.me, self.state.wall);
        self.log(ManualFailoverEvent::RequestedByMaster);
        if let ManualFailover::Claiming { ready, .. } = &mut self.manual_failover {
            *ready = true;
        } else {
            let until = self.state.now + self.state.config.manual_failover_timeout;
            self.manual_failover =
                ManualFailover::Claiming { until, forced: true, target: None, ready: true };
        }
    }

    /// Repeats MFSTART on a new link, because the one sent on the previous link may be lost.
    pub(crate) fn resend_manual_failover_start(&mut self, id: NodeId) {
        let unheard =
            matches!(self.manual_failover, ManualFailover::Claiming { target: None, ready: false, .. });
        if unheard && self.myself().master() == Some(id) {
            self.send(id, MessageBody::ManualFailoverStart);
        }
    }

    /// A replica requests a failover. Its header is authoritative for its role: our own record may be outdated.
    pub(crate) fn on_manual_failover_start(&mut self, header: &Header) {
        let replica = header.sender;
        if header.replica_of != Some(self.state.me) {
            return;
        }
        self.end_manual_failover();
        let until = self.state.now + self.state.config.manual_failover_timeout;
        self.manual_failover =
            ManualFailover::Yielding { until, to: replica, paused_at: None, repeat_at: until };
        // Writes paused for another replica stay paused.
        self.todo.resume = false;
        self.timeline.record_request(self.state.me, replica, self.state.wall);
        self.log(ManualFailoverEvent::Asked { by: replica });
        // Pauses for twice the timeout: a longer pause is harmless, but the new master would miss writes after a
        // shorter one.
        let until = self.state.now + self.state.config.manual_failover_timeout * 2;
        self.out.push(ClusterAction::PauseWrites { until });
    }

    /// Writes are paused: sends the final offset to the replica.
    pub(crate) fn on_writes_paused(&mut self, offset: ReplOffset) {
        let now = self.state.now;
        if let ManualFailover::Yielding { paused_at, repeat_at, .. } = &mut self.manual_failover {
            *paused_at = Some(offset);
            *repeat_at = now;
            self.state.replication.offset = offset;
        }
    }

    /// The master reports that its writes are paused.
    pub(crate) fn on_master_paused(&mut self, header: &Header) {
        if self.myself().master() != Some(header.sender) {
            return;
        }
        if let ManualFailover::Claiming { target: target @ None, ready: false, .. } =
            &mut self.manual_failover
        {
            *target = Some(header.offset);
            self.out.push(ClusterAction::WatchOffset(Some(header.offset)));
            self.log(ManualFailoverEvent::MasterOffset(header.offset.0));
        }
    }

    pub(crate) fn step_manual_failover(&mut self) {
        let now = self.state.now;
        match &mut self.manual_failover {
            ManualFailover::Idle => {}
            ManualFailover::Claiming { until, .. } | ManualFailover::Yielding { until, .. }
                if now >= *until =>
            {
                let master = self.myself().master().unwrap_or(self.state.me);
                self.timeline.record_request_timeout(master, self.state.wall);
                self.end_manual_failover();
                self.log(ManualFailoverEvent::TimedOut);
            }
            ManualFailover::Claiming { target: Some(target), ready: ready @ false, .. } => {
                if self.state.replication.offset >= *target {
                    *ready = true;
                    self.log(ManualFailoverEvent::Ready);
                }
            }
            ManualFailover::Claiming { .. } => {}
            ManualFailover::Yielding { to, paused_at: Some(_), repeat_at, .. } if now >= *repeat_at => {
                *repeat_at = now + REPEAT_INTERVAL;
                let to = *to;
                self.send_gossip(to, GossipKind::Ping);
            }
            ManualFailover::Yielding { .. } => {}
        }
    }

    pub(crate) fn manual_deadline(&self) -> Option<Instant> {
        match self.manual_failover {
            ManualFailover::Idle => None,
            ManualFailover::Claiming { until, .. } => Some(until),
            ManualFailover::Yielding { until, repeat_at, .. } => Some(until.min(repeat_at)),
        }
    }

    /// Ends the manual failover on either side, whatever its result.
    pub(crate) fn end_manual_failover(&mut self) {
        match std::mem::take(&mut self.manual_failover) {
            ManualFailover::Idle => {}
            ManualFailover::Claiming { target, .. } => {
                if target.is_some() {
                    self.out.push(ClusterAction::WatchOffset(None));
                }
            }
            ManualFailover::Yielding { .. } => self.todo.resume = true,
        }
    }
}
