//! The failover state machine of the sentinel that attempts or leads a failover.
//!
//! | phase | waits for | then |
//! | --- | --- | --- |
//! | elect | the vote of the group | the leader continues; the others stay here until they learn of the switch |
//! | select | recent INFO from the replicas | selects a replica and proposes it to the group |
//! | agree | a majority and the quorum to store that entry | promotes the replica |
//! | promote | the replica to report the master role | proposes that the switch is done |
//! | confirm | the commit of that entry | the switch is complete: clients are sent to the new master |
//! | reconf | the other replicas to follow, `parallel-syncs` at a time, or the new master to fail | ends |
//!
//! A leader that loses its term aborts at once unless the switch is committed. A new leader that finds a promotion
//! agreed on but not confirmed completes it if that replica has become a master.

use std::time::Duration;

use clock::Instant;
use consensus::{GroupInput, PeerId, Term};
use failover_history::FailoverOutcome;
use rand::RngExt;

use crate::addr::Addr;
use crate::event::EventLevel;
use crate::info::Role;
use crate::instance::{Instance, ReconfigurationState};
use crate::link::LinkId;
use crate::machine::SentinelAction;
use crate::master::Master;
use crate::record::Switch;
use crate::select::{Candidate, EligibilityLimits, ineligibility, select};
use crate::shared::Context;

/// How long a leader waits for recent INFO from the replicas, which were queried when the master was first suspected.
const INFO_WAIT: Duration = Duration::from_millis(200);
/// Delay after the first attempt without an eligible replica, doubled with each further attempt.
const RETRY: Duration = Duration::from_millis(250);
/// Repetition interval of an unanswered promotion.
const PROMOTE_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How long a leader stays awake after the commit of the switch, to replicate it to slow members.
const LEADER_LINGER: Duration = Duration::from_secs(1);

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailoverPhase {
    Elect,
    Select,
    Agree { index: u64 },
    Promote { sent: Option<Instant> },
    Confirm,
    Reconf,
}

#[derive(Debug, Clone)]
pub(crate) struct Failover {
    pub(crate) cause: FailoverCause,
    pub(crate) phase: FailoverPhase,
    /// When the current phase began.
    pub(crate) since: Instant,
    /// The leader's term, which is the epoch of the switch.
    pub(crate) epoch: u64,
    pub(crate) target: Option<Addr>,
    /// Whether the target is promoted without the cooperation of the old master, which is down or did not hand over.
    pub(crate) forced: bool,
    /// The old and the new master of a handover, until they have been sent the final commands.
    pub(crate) awaiting_final_commands: Vec<LinkId>,
}

impl Failover {
    /// The state name in SENTINEL MASTER.
    pub(crate) fn state_name(&self) -> &'static str {
        match self.phase {
            FailoverPhase::Elect => "wait_start",
            FailoverPhase::Select | FailoverPhase::Agree { .. } => "select_slave",
            FailoverPhase::Promote { sent: None } => "send_slaveof_noone",
            FailoverPhase::Promote { .. } | FailoverPhase::Confirm => "wait_promotion",
            FailoverPhase::Reconf => "reconf_slaves",
        }
    }

    /// The new master, or `None` until the switch is committed.
    pub(crate) fn switched_to(&self) -> Option<&Addr> {
        self.target.as_ref().filter(|_| self.phase == FailoverPhase::Reconf)
    }

    /// Whether a handover was requested and is not complete.
    fn awaits_handover(&self) -> bool {
        matches!(self.phase, FailoverPhase::Promote { sent: Some(_) }) && !self.forced
    }

    /// The replica whose INFO the next step needs.
    pub(crate) fn awaited_replica(&self) -> Option<&Addr> {
        self.target.as_ref().filter(|_| matches!(self.phase, FailoverPhase::Promote { .. }))
    }
}

impl Master {
    /// Performs all steps that are possible now. Called after every change.
    pub(crate) fn advance_all(&mut self, cx: &mut Context<'_>) {
        if cx.shared.tilt.is_some() {
            return;
        }
        self.detect_foreign_servers(cx);
        if self.odown.is_some() && self.failover.is_none() && cx.now >= self.retry_at {
            self.start_failover(cx, FailoverCause::Down);
        }
        self.start_failover_after_handover(cx);
        self.ask_others(cx);
        self.advance(cx);
        if self.failover.is_none() && self.consensus.is_active() {
            self.drive(cx, GroupInput::Deactivate);
        }
        self.repair(cx);
    }

    pub(crate) fn start_failover(&mut self, cx: &mut Context<'_>, cause: FailoverCause) {
        self.failover = Some(Failover {
            cause,
            phase: FailoverPhase::Elect,
            since: cx.now,
            epoch: 0,
            target: None,
            forced: cause == FailoverCause::Down,
            awaiting_final_commands: Vec::new(),
        });
        let past = Term(cx.shared.epoch);
        self.drive(cx, GroupInput::Activate { last_forbidden_term: past });
    }

    fn enter(&mut self, now: Instant, phase: FailoverPhase) {
        let failover = self.failover.as_mut().expect("a phase is entered during a failover");
        failover.phase = phase;
        failover.since = now;
    }

    /// Handles a change of the group's leader: a new leader selects a replica, and a former leader aborts.
    pub(crate) fn on_leader(&mut self, cx: &mut Context<'_>, term: Term, leader: Option<PeerId>) {
        let Some(failover) = &mut self.failover else { return };
        let elected = leader == Some(cx.shared.my_peer());
        match failover.phase {
            FailoverPhase::Elect if elected => {
                failover.epoch = term.0;
                self.enter(cx.now, FailoverPhase::Select);
                self.note(cx, format!("elected leader in epoch {}", term.0));
                self.announce(cx, EventLevel::Warning, "+elected-leader", "");
                if cx.shared.crash_after_election {
                    cx.out.push(SentinelAction::Crash);
                }
                self.announce(cx, EventLevel::Warning, "+failover-state-select-slave", "");
                self.ask_all_replicas(cx);
            }
            FailoverPhase::Elect | FailoverPhase::Reconf => {}
            _ if elected && failover.epoch == term.0 => {}
            _ => {
                self.announce(cx, EventLevel::Warning, "-failover-abort-not-elected", "");
                self.note(cx, format!("leadership lost to epoch {}", term.0));
                self.failover = None;
            }
        }
    }

    /// Advances the failover as far as possible.
    fn advance(&mut self, cx: &mut Context<'_>) {
        loop {
            let Some(failover) = &self.failover else { return };
            let before = failover.phase;
            match before {
                FailoverPhase::Elect => self.while_electing(cx),
                FailoverPhase::Select => self.while_selecting(cx),
                FailoverPhase::Agree { index } => self.while_agreeing(cx, index),
                FailoverPhase::Promote { sent } => self.while_promoting(cx, sent),
                FailoverPhase::Confirm => self.while_confirming(cx),
                FailoverPhase::Reconf => self.while_reconfiguring(cx),
            }
            if self.failover.as_ref().is_none_or(|failover| failover.phase == before) {
                return;
            }
        }
    }

    fn while_electing(&mut self, cx: &mut Context<'_>) {
        let Some(failover) = &self.failover else { return };
        let limit = cx.shared.timing.election_timeout.min(self.settings.failover_timeout);
        let by_hand = failover.cause != FailoverCause::Down;
        let over = match failover.cause {
            FailoverCause::Down => self.odown.is_none(),
            FailoverCause::HandedOver => self.successor(cx).is_none(),
            FailoverCause::Operator | FailoverCause::Coordinated => false,
        };
        let Some(failover) = &mut self.failover else { return };
        if over {
            self.failover = None;
        } else if cx.now.since(failover.since) > limit {
            // The other sentinels are unreachable. After an automatic failover the group keeps trying.
            failover.since = cx.now;
            self.announce(cx, EventLevel::Warning, "-failover-abort-not-elected", "");
            if by_hand {
                self.failover = None;
            }
        }
    }

    fn while_selecting(&mut self, cx: &mut Context<'_>) {
        let Some(failover) = &self.failover else { return };
        if !self.consensus.is_confirmed() {
            return;
        }
        let (epoch, since) = (failover.epoch, failover.since);
        let promoted = self.promoted_by_predecessor(cx);
        let successor = self.successor(cx);
        if promoted.is_none() && successor.is_none() && failover.cause == FailoverCause::HandedOver {
            self.abort(cx, "-failover-abort-no-good-slave");
            return;
        }
        let why = if promoted.is_some() { "was promoted by an earlier leader" } else { "was handed over to" };
        if let Some(addr) = promoted.or(successor) {
            self.note(cx, format!("{addr} {why}"));
            let failover = self.failover.as_mut().expect("checked above");
            failover.target = Some(addr);
            self.confirm(cx);
            return;
        }
        let asked_since = self.myself.sdown.unwrap_or(since);
        let waits = self.replicas.values().any(|replica| {
            let up = replica.sdown.is_none() && cx.shared.links.at(replica.command).is_up();
            up && replica.info_at.is_none_or(|at| at < asked_since)
        });
        if waits && cx.now.since(since) < INFO_WAIT {
            return;
        }
        let candidates: Vec<Candidate> =
            self.replicas.values().map(|replica| candidate(cx, replica)).collect();
        let limits = self.limits(cx);
        for candidate in &candidates {
            let verdict =
                ineligibility(candidate, limits).map_or_else(String::new, |why| format!(", not fit: {why}"));
            let (addr, priority, offset) = (&candidate.addr, candidate.priority, candidate.offset);
            self.note(cx, format!("candidate {addr} priority {priority} offset {offset}{verdict}"));
        }
        let Some(best) = select(&candidates, limits).map(|best| best.addr.clone()) else {
            self.abort(cx, "-failover-abort-no-good-slave");
            return;
        };
        self.announce_replica(cx, EventLevel::Warning, "+selected-slave", &best, "");
        let switch = self.switch_to(epoch, &best, false);
        self.failover.as_mut().expect("checked above").target = Some(best);
        self.drive(cx, GroupInput::Propose(switch.encode()));
        let index = self.consensus.last_index();
        if self.failover.is_some() {
            self.enter(cx.now, FailoverPhase::Agree { index });
        }
    }

    fn switch_to(&self, epoch: u64, to: &Addr, done: bool) -> Switch {
        let pair = |addr: &Addr| (addr.host.clone(), addr.port);
        Switch { epoch, from: pair(&self.myself.addr), to: pair(to), done }
    }

    /// The replica that a previous leader committed and promoted.
    fn promoted_by_predecessor(&self, cx: &Context<'_>) -> Option<Addr> {
        let switch = self.consensus.committed_switch()?;
        let to = Addr::new(&switch.to.0, switch.to.1);
        let replica = self.replicas.get(&to)?;
        let ours = switch.epoch > self.config_epoch && switch.from.1 == self.myself.addr.port;
        let same = ours && switch.from.0 == self.myself.addr.host;
        let master =
            replica.role == Role::Master && replica.has_recent_info(cx.now, cx.shared.timing.ping_period * 2);
        (same && master && replica.sdown.is_none() && replica.foreign.is_none()).then_some(to)
    }

    /// Whether any replica can be promoted now.
    pub(crate) fn has_eligible_replica(&self, cx: &Context<'_>) -> bool {
        let candidates: Vec<Candidate> =
            self.replicas.values().map(|replica| candidate(cx, replica)).collect();
        select(&candidates, self.limits(cx)).is_some()
    }

    fn limits(&self, cx: &Context<'_>) -> EligibilityLimits {
        let timing = &cx.shared.timing;
        let down = self.myself.sdown;
        let told = if down.is_some() { timing.ping_period * 5 } else { timing.info_period * 3 };
        // A demoted master is detected as down much later than its replicas lost it.
        let none = Some(self.myself.role_since).filter(|_| self.myself.role == Role::Replica);
        let lost = down.into_iter().chain(none).min();
        let down_for = lost.map_or(Duration::ZERO, |since| cx.now.since(since));
        // If the master restarted without data, even old data is better.
        let is_empty = cx.shared.links.at(self.myself.command).empty;
        let disconnected_for =
            if is_empty { Duration::MAX } else { down_for + self.settings.down_after * 10 };
        EligibilityLimits { silent_for: timing.ping_period * 5, told, disconnected_for }
    }

    fn while_agreeing(&mut self, cx: &mut Context<'_>, index: u64) {
        let Some(failover) = &self.failover else { return };
        let Some(target) = failover.target.clone() else { return };
        let quorum = if failover.cause == FailoverCause::Down { self.settings.quorum as usize } else { 0 };
        let agreed = self.consensus.has_committed(&self.switch_to(failover.epoch, &target, false));
        if !agreed || self.consensus.acknowledged(index) < quorum.max(self.sentinels.majority()) {
            if cx.now.since(failover.since) > cx.shared.timing.election_timeout {
                self.abort(cx, "-failover-abort-not-elected");
            }
            return;
        }
        self.announce_replica(cx, EventLevel::Notice, "+failover-state-send-slaveof-noone", &target, "");
        self.enter(cx.now, FailoverPhase::Promote { sent: None });
    }

    fn while_promoting(&mut self, cx: &mut Context<'_>, sent: Option<Instant>) {
        let Some(failover) = &self.failover else { return };
        let Some(target) = failover.target.clone() else { return };
        let late = cx.now.since(failover.since) > self.settings.failover_timeout;
        let (cause, forced) = (failover.cause, failover.forced);
        let Some(replica) = self.replicas.get(&target) else {
            self.abort(cx, "-failover-abort-slave-timeout");
            return;
        };
        if replica.role == Role::Master && replica.info_at.is_some_and(|at| at >= failover.since) {
            self.confirm(cx);
            return;
        }
        if late || replica.sdown.is_some() {
            self.abort(cx, "-failover-abort-slave-timeout");
            return;
        }
        if !forced && self.odown.is_some() {
            self.on_master_death_during_handover(cx, cause);
            return;
        }
        if sent.is_some_and(|at| {
            cx.now.since(at) < PROMOTE_RETRY_INTERVAL || cause == FailoverCause::Coordinated
        }) {
            return;
        }
        // The decision is postponed instead of its requests, because the leadership may be lost before the votes are on
        // disk.
        if !self.consensus.is_saved(cx.shared.durable_record) {
            return;
        }
        let link = replica.command;
        let handing_over = !forced && sent.is_none() && self.request_handover(cx, &target);
        let done = handing_over
            || cause != FailoverCause::Coordinated && {
                self.failover.as_mut().expect("checked above").forced = true;
                self.send_slaveof(cx, &target, None)
            };
        if done {
            self.ask_info_over(cx, link);
            if sent.is_none() {
                self.announce_replica(cx, EventLevel::Notice, "+failover-state-wait-promotion", &target, "");
            }
            self.failover.as_mut().expect("checked above").phase =
                FailoverPhase::Promote { sent: Some(cx.now) };
        }
    }

    /// Handles the death of the master during a handover: continues as a forced failover, or aborts a coordinated one.
    fn on_master_death_during_handover(&mut self, cx: &mut Context<'_>, cause: FailoverCause) {
        self.note(cx, "the master is down and will not hand over".into());
        if cause == FailoverCause::Coordinated {
            // The next failover of this master is an automatic one.
            self.abort(cx, "-failover-abort-slave-timeout");
        } else if let Some(failover) = &mut self.failover {
            (failover.forced, failover.phase) = (true, FailoverPhase::Promote { sent: None });
        }
    }

    /// Proposes to the group that the switch is complete.
    fn confirm(&mut self, cx: &mut Context<'_>) {
        let failover = self.failover.as_ref().expect("a failover is confirmed");
        let target = failover.target.clone().expect("a target was promoted");
        let switch = self.switch_to(failover.epoch, &target, true);
        self.note(cx, format!("{target} is a master"));
        self.enter(cx.now, FailoverPhase::Confirm);
        self.drive(cx, GroupInput::Propose(switch.encode()));
    }

    fn while_confirming(&mut self, cx: &mut Context<'_>) {
        let Some(failover) = &self.failover else { return };
        let Some(target) = failover.target.clone() else { return };
        let epoch = failover.epoch;
        if !self.consensus.has_committed(&self.switch_to(epoch, &target, true)) {
            return;
        }
        self.config_epoch = epoch;
        self.failures = 0;
        cx.switched();
        self.note(cx, format!("switch to {target} committed in epoch {epoch}"));
        // After a handover the promoted replica's configuration file still makes it a replica, so it must be rewritten.
        let new = self.replicas.get(&target).map(|replica| replica.command).filter(|_| !failover.forced);
        let old = new.map(|_| self.myself.command);
        if let Some(failover) = &mut self.failover {
            failover.awaiting_final_commands = old.into_iter().chain(new).collect();
        }
        self.confirm_roles(cx);
        self.announce_replica(cx, EventLevel::Warning, "+promoted-slave", &target, "");
        if cx.shared.crash_after_promotion {
            cx.out.push(SentinelAction::Crash);
        }
        self.announce(cx, EventLevel::Warning, "+failover-state-reconf-slaves", "");
        self.call_reconfig_script(cx, "leader", &target);
        self.enter(cx.now, FailoverPhase::Reconf);
        self.schedule_hellos();
    }

    fn while_reconfiguring(&mut self, cx: &mut Context<'_>) {
        let Some(failover) = &self.failover else { return };
        let Some(target) = failover.target.clone() else { return };
        let (since, epoch) = (failover.since, failover.epoch);
        if self.consensus.is_active() && cx.now.since(since) > LEADER_LINGER {
            self.drive(cx, GroupInput::Deactivate);
        }
        let late = cx.now.since(since) > self.settings.failover_timeout;
        let others = self.replicas.values().filter(|one| one.addr != target && one.foreign.is_none());
        let others: Vec<Addr> = others.map(|one| one.addr.clone()).collect();
        let ended = |replica: &Instance| {
            matches!(replica.reconf, ReconfigurationState::Done | ReconfigurationState::Refused)
        };
        let unfinished = |replica: &Instance| replica.sdown.is_none() && !ended(replica);
        self.confirm_roles(cx);
        let awaiting_final_commands =
            |failover: &Failover| !failover.awaiting_final_commands.is_empty() && self.myself.sdown.is_none();
        let open = others.iter().any(|addr| unfinished(&self.replicas[addr]))
            || self.failover.as_ref().is_some_and(awaiting_final_commands);
        // Replicas cannot follow a master that is down. The failover ends, so that the new master is monitored and
        // replaced.
        let lost = self.replicas.get(&target).is_some_and(|promoted| promoted.sdown.is_some());
        if open && !late && !lost {
            self.reconfigure_next(cx, &target, &others);
            return;
        }
        if late {
            self.announce(cx, EventLevel::Warning, "+failover-end-for-timeout", "");
            for addr in &others {
                if !ended(&self.replicas[addr]) && self.send_slaveof(cx, addr, Some(&target)) {
                    self.announce_replica(cx, EventLevel::Notice, "+slave-reconf-sent-be", addr, "");
                }
            }
        }
        self.announce(cx, EventLevel::Warning, "+failover-end", "");
        self.change_address(cx, &target);
        // A later leader may have switched to the same replica under its own epoch in the meantime.
        debug_assert!(self.config_epoch >= epoch);
    }

    /// Reconfigures the next replicas, up to `parallel-syncs` at a time.
    fn reconfigure_next(&mut self, cx: &mut Context<'_>, target: &Addr, others: &[Addr]) {
        let timeout = cx.shared.timing.slave_reconf_timeout;
        for addr in others {
            let busy = self.replicas.values().filter(|one| {
                matches!(one.reconf, ReconfigurationState::Sent | ReconfigurationState::InProgress)
            });
            let busy = busy.count();
            let replica = &self.replicas[addr];
            match replica.reconf {
                // As in Valkey, the replica gets one more command and is no longer waited for; it is repaired after the
                // failover.
                ReconfigurationState::Sent if cx.now.since(replica.reconf_since) > timeout => {
                    self.announce_replica(cx, EventLevel::Notice, "-slave-reconf-sent-timeout", addr, "");
                    if self.send_slaveof(cx, addr, Some(target)) {
                        self.announce_replica(cx, EventLevel::Notice, "+slave-reconf-sent", addr, "");
                    }
                    self.set_reconf(cx.now, addr, ReconfigurationState::Done);
                }
                ReconfigurationState::None
                    if busy < self.settings.parallel_syncs as usize
                        && self.send_slaveof(cx, addr, Some(target)) =>
                {
                    self.announce_replica(cx, EventLevel::Notice, "+slave-reconf-sent", addr, "");
                    self.set_reconf(cx.now, addr, ReconfigurationState::Sent);
                    let link = self.replicas[addr].command;
                    self.ask_info_over(cx, link);
                }
                _ => {}
            }
        }
    }

    pub(crate) fn set_reconf(&mut self, now: Instant, addr: &Addr, reconf: ReconfigurationState) {
        let replica = self.replicas.get_mut(addr).expect("a replica of this master");
        replica.reconf = reconf;
        replica.reconf_since = now;
    }

    /// Advances the failover if the INFO of a replica shows a promotion or a reconfiguration.
    pub(crate) fn on_replica_info(&mut self, cx: &mut Context<'_>, addr: &Addr) {
        if let Some(target) = self.failover.as_ref().and_then(Failover::switched_to).cloned() {
            let replica = &self.replicas[addr];
            let follows = replica.role == Role::Replica
                && replica.master.as_ref().is_some_and(|master| cx.shared.same_addr(master, &target));
            let synced = replica.master_link_up;
            if replica.reconf == ReconfigurationState::Sent && follows {
                self.set_reconf(cx.now, addr, ReconfigurationState::InProgress);
                self.announce_replica(cx, EventLevel::Notice, "+slave-reconf-inprog", addr, "");
            }
            if self.replicas[addr].reconf == ReconfigurationState::InProgress && follows && synced {
                self.set_reconf(cx.now, addr, ReconfigurationState::Done);
                self.announce_replica(cx, EventLevel::Notice, "+slave-reconf-done", addr, "");
            }
        }
        self.advance_all(cx);
    }

    /// Aborts the failover; a new attempt follows if the master is still down.
    pub(crate) fn abort(&mut self, cx: &mut Context<'_>, event: &str) {
        self.announce(cx, EventLevel::Warning, event, "");
        cx.shared.recorder.end(cx.now, &self.name, FailoverOutcome::GivenUp, event);
        if self.failover.as_ref().is_some_and(Failover::awaits_handover) {
            self.cancel_handover(cx);
        }
        let doubled = RETRY * 2u32.pow(self.failures.min(9));
        let chance = Duration::from_millis(cx.shared.rng.random_range(0..250));
        self.failures += 1;
        self.retry_at = cx.now + doubled.min(self.settings.failover_timeout) + chance;
        self.failover = None;
        // This sentinel gives up the leadership, because another sentinel may have better information.
        self.drive(cx, GroupInput::Deactivate);
    }
}

fn candidate(cx: &Context<'_>, replica: &Instance) -> Candidate {
    let link = cx.shared.links.at(replica.command);
    Candidate {
        addr: replica.addr.clone(),
        down: replica.sdown.is_some() || !link.is_up(),
        silent_for: cx.now.since(link.last_good),
        told: replica.info_at.map(|at| cx.now.since(at)),
        priority: replica.priority,
        disconnected_for: replica.master_link_down,
        refused: replica.has_recently_refused(cx.now),
        foreign: replica.foreign.is_some(),
        offset: replica.offset,
        run_id: replica.run_id.clone(),
    }
}
