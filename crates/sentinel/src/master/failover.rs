//! The steps of a sentinel that attempts or leads a failover ([`Failover`]).
//!
//! A leader that loses its term aborts the failover, unless the switch is committed. A new leader may find a promotion
//! that its predecessor committed. It completes this promotion if the replica has become a master.

use std::time::Duration;

use clock::Instant;
use consensus::{GroupInput, PeerId, Term};
use failover_history::FailoverOutcome;
use rand::RngExt;

use crate::addr::Addr;
use crate::event::EventLevel;
use crate::info::Role;
use crate::machine::SentinelAction;
use crate::master::Master;
use crate::master::failovers::{Failover, FailoverCause, FailoverPhase};
use crate::master::instance::ReconfigurationState;
use crate::master::replica_selection::{find_ineligibility_reason, select_best};
use crate::master::switch_record::Switch;
use crate::shared::Context;

/// How long a leader waits for recent INFO from the replicas, which were queried when the master was first suspected.
const MAX_INFO_WAIT: Duration = Duration::from_millis(200);
/// Interval at which an unanswered promotion is repeated.
const PROMOTION_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How long a leader keeps the group active after the commit of the switch, to replicate the switch to slow members.
const LEADER_LINGER_TIME: Duration = Duration::from_secs(1);

impl Master {
    /// Performs all steps of detection and failover that are possible now. Called after every change.
    pub(crate) fn advance_failover(&mut self, cx: &mut Context<'_>) {
        if cx.shared.tilt_since.is_some() {
            return;
        }
        self.detect_foreign_servers(cx);
        if self.detector.is_objectively_down() && self.failovers.may_start(cx.now) {
            self.start_failover(cx, FailoverCause::Down);
        }
        self.start_failover_after_handover(cx);
        self.query_sentinels(cx);
        self.advance_phases(cx);
        if !self.failovers.is_running() && self.consensus.is_active() {
            self.drive_group(cx, GroupInput::Deactivate);
        }
        self.repair(cx);
    }

    pub(crate) fn start_failover(&mut self, cx: &mut Context<'_>, cause: FailoverCause) {
        self.failovers.start(cx.now, cause);
        let past = Term(cx.shared.epoch);
        self.drive_group(cx, GroupInput::Activate { last_forbidden_term: past });
    }

    /// Handles a change of the group's leader: a new leader selects a replica, a former leader aborts its failover.
    pub(crate) fn on_leader_changed(&mut self, cx: &mut Context<'_>, term: Term, leader: Option<PeerId>) {
        let Some(failover) = self.failovers.current_mut() else { return };
        let elected = leader == Some(cx.shared.my_peer());
        match failover.phase() {
            FailoverPhase::Elect if elected => {
                failover.select(cx.now, term.0);
                self.record_failover_step(cx, format!("elected leader in epoch {}", term.0));
                self.announce(cx, EventLevel::Warning, "+elected-leader", "");
                if cx.shared.crash_after_election {
                    cx.out.push(SentinelAction::Crash);
                }
                self.announce(cx, EventLevel::Warning, "+failover-state-select-slave", "");
                self.send_info_to_replicas(cx);
            }
            FailoverPhase::Elect | FailoverPhase::Reconf { .. } => {}
            phase if elected && phase.epoch() == Some(term.0) => {}
            _ => {
                self.announce(cx, EventLevel::Warning, "-failover-abort-not-elected", "");
                self.record_failover_step(cx, format!("leadership lost to epoch {}", term.0));
                self.failovers.end();
            }
        }
    }

    /// Advances the failover as far as possible.
    fn advance_phases(&mut self, cx: &mut Context<'_>) {
        loop {
            let Some(failover) = self.failovers.current() else { return };
            let before = failover.phase().clone();
            match &before {
                FailoverPhase::Elect => self.while_electing(cx),
                FailoverPhase::Select { epoch } => self.while_selecting(cx, *epoch),
                FailoverPhase::Agree { epoch, target, index } => {
                    self.while_agreeing(cx, *epoch, target, *index);
                }
                FailoverPhase::Promote { target, sent, .. } => self.while_promoting(cx, target, *sent),
                FailoverPhase::Confirm { epoch, target } => self.while_confirming(cx, *epoch, target),
                FailoverPhase::Reconf { epoch, target } => self.while_reconfiguring(cx, *epoch, target),
            }
            if self.failovers.current().is_none_or(|failover| *failover.phase() == before) {
                return;
            }
        }
    }

    fn while_electing(&mut self, cx: &mut Context<'_>) {
        let Some(failover) = self.failovers.current() else { return };
        let limit = cx.shared.timing.election_timeout.min(self.settings.failover_timeout);
        let by_hand = failover.cause() != FailoverCause::Down;
        let over = match failover.cause() {
            FailoverCause::Down => !self.detector.is_objectively_down(),
            FailoverCause::HandedOver => self.servers.successor(cx).is_none(),
            FailoverCause::Operator | FailoverCause::Coordinated => false,
        };
        let Some(failover) = self.failovers.current_mut() else { return };
        if over {
            self.failovers.end();
        } else if cx.now.since(failover.since()) > limit {
            // The other sentinels are unreachable. An automatic failover continues, a requested one ends.
            failover.restart_phase(cx.now);
            self.announce(cx, EventLevel::Warning, "-failover-abort-not-elected", "");
            if by_hand {
                self.failovers.end();
            }
        }
    }

    fn while_selecting(&mut self, cx: &mut Context<'_>, epoch: u64) {
        let Some(failover) = self.failovers.current() else { return };
        if !self.consensus.is_confirmed() {
            return;
        }
        let since = failover.since();
        let promoted = self.find_promoted_replica(cx);
        let successor = self.servers.successor(cx);
        if promoted.is_none() && successor.is_none() && failover.cause() == FailoverCause::HandedOver {
            self.abort_failover(cx, "-failover-abort-no-good-slave");
            return;
        }
        let why = if promoted.is_some() { "was promoted by an earlier leader" } else { "was handed over to" };
        if let Some(addr) = promoted.or(successor) {
            self.record_failover_step(cx, format!("{addr} {why}"));
            self.propose_completion(cx, epoch, &addr);
            return;
        }
        let asked_since = self.servers.master().sdown().unwrap_or(since);
        let waits = self.servers.replicas().any(|replica| {
            let up = replica.sdown().is_none() && cx.shared.links.at(replica.command_link()).is_up();
            up && replica.reported().received_at().is_none_or(|at| at < asked_since)
        });
        if waits && cx.now.since(since) < MAX_INFO_WAIT {
            return;
        }
        let candidates = self.servers.candidates(cx);
        let limits = self.servers.eligibility_limits(cx, self.settings.down_after);
        for candidate in &candidates {
            let verdict = find_ineligibility_reason(candidate, limits)
                .map_or_else(String::new, |why| format!(", not fit: {why}"));
            let (addr, priority, offset) = (&candidate.addr, candidate.priority, candidate.offset);
            self.record_failover_step(
                cx,
                format!("candidate {addr} priority {priority} offset {offset}{verdict}"),
            );
        }
        let Some(best) = select_best(&candidates, limits).map(|best| best.addr.clone()) else {
            self.abort_failover(cx, "-failover-abort-no-good-slave");
            return;
        };
        self.announce_replica(cx, EventLevel::Warning, "+selected-slave", &best, "");
        let switch = self.build_switch(epoch, &best, false);
        self.drive_group(cx, GroupInput::Propose(switch.encode()));
        let index = self.consensus.last_index();
        if let Some(failover) = self.failovers.current_mut() {
            failover.await_agreement(cx.now, best, index);
        }
    }

    fn build_switch(&self, epoch: u64, to: &Addr, done: bool) -> Switch {
        let pair = |addr: &Addr| (addr.host.clone(), addr.port);
        Switch { epoch, from: pair(self.servers.master().addr()), to: pair(to), done }
    }

    /// The replica whose promotion a previous leader committed, if it has become a master.
    fn find_promoted_replica(&self, cx: &Context<'_>) -> Option<Addr> {
        let switch = self.consensus.committed_switch()?;
        let to = Addr::new(&switch.to.0, switch.to.1);
        let replica = self.servers.replica(&to)?;
        let ours = switch.epoch > self.config_epoch && switch.from.1 == self.servers.master().addr().port;
        let same = ours && switch.from.0 == self.servers.master().addr().host;
        let master = replica.reported().role() == Role::Master
            && replica.reported().is_recent(cx.now, cx.shared.timing.ping_period * 2);
        (same && master && replica.sdown().is_none() && replica.foreign().is_none()).then_some(to)
    }

    /// Whether any replica can be promoted now.
    pub(crate) fn has_eligible_replica(&self, cx: &Context<'_>) -> bool {
        let limits = self.servers.eligibility_limits(cx, self.settings.down_after);
        select_best(&self.servers.candidates(cx), limits).is_some()
    }

    fn while_agreeing(&mut self, cx: &mut Context<'_>, epoch: u64, target: &Addr, index: u64) {
        let Some(failover) = self.failovers.current() else { return };
        let quorum = if failover.cause() == FailoverCause::Down { self.settings.quorum as usize } else { 0 };
        let agreed = self.consensus.has_committed(&self.build_switch(epoch, target, false));
        if !agreed || self.consensus.acknowledged(index) < quorum.max(self.sentinels.majority()) {
            if cx.now.since(failover.since()) > cx.shared.timing.election_timeout {
                self.abort_failover(cx, "-failover-abort-not-elected");
            }
            return;
        }
        self.announce_replica(cx, EventLevel::Notice, "+failover-state-send-slaveof-noone", target, "");
        if let Some(failover) = self.failovers.current_mut() {
            failover.promote(cx.now);
        }
    }

    fn while_promoting(&mut self, cx: &mut Context<'_>, target: &Addr, sent: Option<Instant>) {
        let Some(failover) = self.failovers.current() else { return };
        let late = cx.now.since(failover.since()) > self.settings.failover_timeout;
        let (cause, forced) = (failover.cause(), failover.is_forced());
        let Some(replica) = self.servers.replica(target) else {
            self.abort_failover(cx, "-failover-abort-slave-timeout");
            return;
        };
        if replica.reported().role() == Role::Master
            && replica.reported().received_at().is_some_and(|at| at >= failover.since())
        {
            if let Some(epoch) = failover.phase().epoch() {
                self.propose_completion(cx, epoch, target);
            }
            return;
        }
        if late || replica.sdown().is_some() {
            self.abort_failover(cx, "-failover-abort-slave-timeout");
            return;
        }
        if !forced && self.detector.is_objectively_down() {
            self.on_master_death_during_handover(cx, cause);
            return;
        }
        if sent.is_some_and(|at| {
            cx.now.since(at) < PROMOTION_RETRY_INTERVAL || cause == FailoverCause::Coordinated
        }) {
            return;
        }
        // A promotion waits until this sentinel's votes are on disk. Sending it later could be too late, because the
        // sentinel may lose the leadership before that.
        if !self.consensus.is_saved(cx.shared.durable_record) {
            return;
        }
        let link = replica.command_link();
        let handing_over = !forced && sent.is_none() && self.request_handover(cx, target);
        let done = handing_over
            || cause != FailoverCause::Coordinated && {
                self.failovers.current_mut().expect("checked above").force();
                self.send_slaveof(cx, target, None)
            };
        if done {
            self.send_info_on(cx, link);
            if sent.is_none() {
                self.announce_replica(cx, EventLevel::Notice, "+failover-state-wait-promotion", target, "");
            }
            self.failovers.current_mut().expect("checked above").set_promotion_sent(Some(cx.now));
        }
    }

    /// Handles the death of the master during a handover. A coordinated failover is aborted; any other one continues
    /// without the master.
    fn on_master_death_during_handover(&mut self, cx: &mut Context<'_>, cause: FailoverCause) {
        self.record_failover_step(cx, "the master is down and will not hand over".into());
        if cause == FailoverCause::Coordinated {
            // The master is down, so an automatic failover follows.
            self.abort_failover(cx, "-failover-abort-slave-timeout");
        } else if let Some(failover) = self.failovers.current_mut() {
            failover.force();
            failover.set_promotion_sent(None);
        }
    }

    /// Proposes to the group that the switch is complete.
    fn propose_completion(&mut self, cx: &mut Context<'_>, epoch: u64, target: &Addr) {
        let switch = self.build_switch(epoch, target, true);
        self.record_failover_step(cx, format!("{target} is a master"));
        if let Some(failover) = self.failovers.current_mut() {
            failover.confirm(cx.now, target.clone());
        }
        self.drive_group(cx, GroupInput::Propose(switch.encode()));
    }

    fn while_confirming(&mut self, cx: &mut Context<'_>, epoch: u64, target: &Addr) {
        if !self.consensus.has_committed(&self.build_switch(epoch, target, true)) {
            return;
        }
        self.config_epoch = epoch;
        self.failovers.on_switched();
        cx.require_config_write();
        self.record_failover_step(cx, format!("switch to {target} committed in epoch {epoch}"));
        // After a handover the promoted replica's configuration file still makes it a replica, so it must be rewritten.
        if let Some(failover) = self.failovers.current_mut() {
            let new = self.servers.replica(target).map(|replica| replica.command_link());
            let new = new.filter(|_| !failover.is_forced());
            let old = new.map(|_| self.servers.master().command_link());
            failover.set_awaiting_final_commands(old.into_iter().chain(new).collect());
        }
        self.send_final_commands(cx);
        self.announce_replica(cx, EventLevel::Warning, "+promoted-slave", target, "");
        if cx.shared.crash_after_promotion {
            cx.out.push(SentinelAction::Crash);
        }
        self.announce(cx, EventLevel::Warning, "+failover-state-reconf-slaves", "");
        self.call_reconfig_script(cx, "leader", target);
        if let Some(failover) = self.failovers.current_mut() {
            failover.reconfigure(cx.now);
        }
        self.schedule_hellos();
    }

    fn while_reconfiguring(&mut self, cx: &mut Context<'_>, epoch: u64, target: &Addr) {
        let Some(failover) = self.failovers.current() else { return };
        let since = failover.since();
        if self.consensus.is_active() && cx.now.since(since) > LEADER_LINGER_TIME {
            self.drive_group(cx, GroupInput::Deactivate);
        }
        let late = cx.now.since(since) > self.settings.failover_timeout;
        let others = self.servers.replicas().filter(|one| one.addr() != target && one.foreign().is_none());
        let others: Vec<Addr> = others.map(|one| one.addr().clone()).collect();
        self.send_final_commands(cx);
        let awaiting_final_commands =
            |failover: &Failover| failover.awaits_final_commands() && self.servers.master().sdown().is_none();
        let unfinished = |addr: &Addr| {
            let replica = self.servers.replica(addr);
            replica.is_some_and(|one| one.sdown().is_none() && !one.reconfiguration().has_ended())
        };
        let open =
            others.iter().any(unfinished) || self.failovers.current().is_some_and(awaiting_final_commands);
        // Replicas cannot follow a new master that is down. The failover ends, and the new master is monitored and
        // replaced.
        let lost = self.servers.replica(target).is_some_and(|promoted| promoted.sdown().is_some());
        if open && !late && !lost {
            self.reconfigure_next_replicas(cx, target, &others);
            return;
        }
        if late {
            self.announce(cx, EventLevel::Warning, "+failover-end-for-timeout", "");
            for addr in &others {
                let has_ended =
                    self.servers.replica(addr).is_none_or(|one| one.reconfiguration().has_ended());
                if !has_ended && self.send_slaveof(cx, addr, Some(target)) {
                    self.announce_replica(cx, EventLevel::Notice, "+slave-reconf-sent-be", addr, "");
                }
            }
        }
        self.announce(cx, EventLevel::Warning, "+failover-end", "");
        self.switch_to_addr(cx, target);
        // A later leader may have switched to the same replica under its own epoch.
        debug_assert!(self.config_epoch >= epoch);
    }

    /// Sends the next replicas the command to follow the new master. Up to `parallel-syncs` replicas synchronize at a
    /// time.
    fn reconfigure_next_replicas(&mut self, cx: &mut Context<'_>, target: &Addr, others: &[Addr]) {
        let timeout = cx.shared.timing.slave_reconf_timeout;
        for addr in others {
            let busy = self.servers.replicas().filter(|one| one.reconfiguration().is_running()).count();
            let Some(replica) = self.servers.replica(addr) else { continue };
            let link = replica.command_link();
            match replica.reconfiguration() {
                // As in Valkey, the command is sent once more, and the failover no longer waits for this replica, which
                // is repaired later.
                ReconfigurationState::Sent if cx.now.since(replica.reconfiguration_since()) > timeout => {
                    self.announce_replica(cx, EventLevel::Notice, "-slave-reconf-sent-timeout", addr, "");
                    if self.send_slaveof(cx, addr, Some(target)) {
                        self.announce_replica(cx, EventLevel::Notice, "+slave-reconf-sent", addr, "");
                    }
                    self.servers.set_reconfiguration(cx.now, addr, ReconfigurationState::Done);
                }
                ReconfigurationState::None
                    if busy < self.settings.parallel_syncs as usize
                        && self.send_slaveof(cx, addr, Some(target)) =>
                {
                    self.announce_replica(cx, EventLevel::Notice, "+slave-reconf-sent", addr, "");
                    self.servers.set_reconfiguration(cx.now, addr, ReconfigurationState::Sent);
                    self.send_info_on(cx, link);
                }
                _ => {}
            }
        }
    }

    /// Advances the failover if the INFO of a replica shows a promotion or a reconfiguration.
    pub(crate) fn on_replica_info(&mut self, cx: &mut Context<'_>, addr: &Addr) {
        if let Some(target) = self.failovers.current().and_then(Failover::switched_to).cloned()
            && let Some(replica) = self.servers.replica(addr)
        {
            let follows = replica.follows(|master| cx.shared.same_addr(master, &target));
            let synced = replica.reported().is_master_link_up();
            let mut state = replica.reconfiguration();
            if state == ReconfigurationState::Sent && follows {
                state = ReconfigurationState::InProgress;
                self.servers.set_reconfiguration(cx.now, addr, state);
                self.announce_replica(cx, EventLevel::Notice, "+slave-reconf-inprog", addr, "");
            }
            if state == ReconfigurationState::InProgress && follows && synced {
                self.servers.set_reconfiguration(cx.now, addr, ReconfigurationState::Done);
                self.announce_replica(cx, EventLevel::Notice, "+slave-reconf-done", addr, "");
            }
        }
        self.advance_failover(cx);
    }

    /// Aborts the failover. A new attempt follows if the master is still down.
    pub(crate) fn abort_failover(&mut self, cx: &mut Context<'_>, event: &str) {
        self.announce(cx, EventLevel::Warning, event, "");
        cx.shared.recorder.end_failover(cx.now, &self.name, FailoverOutcome::GivenUp, event);
        if self.failovers.current().is_some_and(Failover::awaits_handover) {
            self.cancel_handover(cx);
        }
        let jitter = Duration::from_millis(cx.shared.rng.random_range(0..250));
        self.failovers.fail(cx.now, self.settings.failover_timeout, jitter);
        // This sentinel gives up the leadership, because another sentinel may have better information.
        self.drive_group(cx, GroupInput::Deactivate);
    }
}
