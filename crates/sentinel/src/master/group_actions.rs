//! Connects a master's consensus group with the links between sentinels and turns its results into events and switches.

use consensus::{GroupAction, GroupChange, GroupInput, PeerId, RecordNumber, Term};

use crate::addr::RunId;
use crate::event::EventLevel;
use crate::hello::HELLO_CHANNEL;
use crate::link::PendingReply;
use crate::master::Master;
use crate::master::known_sentinels::KnownSentinel;
use crate::master::switch_record::Switch;
use crate::shared::Context;

impl Master {
    /// Passes an event to the group and executes the resulting actions.
    pub(crate) fn drive_group(&mut self, cx: &mut Context<'_>, input: GroupInput<'_>) {
        let actions = self.consensus.handle(cx.now, input);
        self.execute_actions(cx, actions, None);
    }

    /// Executes the group's actions. `candidate` is the run id in a vote request, whose sender may be an unknown
    /// sentinel.
    pub(crate) fn execute_actions(
        &mut self,
        cx: &mut Context<'_>,
        actions: Vec<GroupAction>,
        candidate: Option<&RunId>,
    ) {
        for action in actions {
            match action {
                GroupAction::Persist { number, record } => {
                    self.publish_ballots(cx, &record.changes, candidate);
                    self.consensus.on_journaled(number, cx.persist(record));
                }
                GroupAction::Send { after_record: after, to, message } => {
                    self.send_raft_message(cx, after, to, message);
                }
                GroupAction::RequestVote { after_record: after, to, term } => {
                    self.request_redis_vote(cx, after, to, term);
                }
                GroupAction::VoteReceived { from, term } => {
                    if let Some(run_id) = self.sentinels.by_id(from).map(|peer| peer.run_id().clone()) {
                        self.record_reported_vote(cx, &run_id, cx.shared.my_id.to_string(), term.0);
                    }
                }
                GroupAction::LeaderChanged { term, leader, .. } => self.on_leader_changed(cx, term, leader),
                GroupAction::Committed { value, .. } => {
                    if let Some(switch) = Switch::decode(&value) {
                        self.on_committed(cx, &switch);
                    }
                }
                GroupAction::VoteRefused { candidate, unknown_members: members } => {
                    for member in members {
                        self.announce_unknown_member(cx, candidate, member);
                    }
                }
            }
        }
        cx.shared.scheduler.schedule_round(&self.name);
        if let Some(deadline) = self.consensus.next_deadline() {
            cx.shared.scheduler.alarms.set_sooner(&self.name, deadline);
        }
    }

    fn send_raft_message(&mut self, cx: &mut Context<'_>, after: RecordNumber, to: PeerId, message: Vec<u8>) {
        let condition = self.consensus.condition(after);
        let Some(link) = self.sentinels.by_id(to).and_then(KnownSentinel::link) else { return };
        let words = [b"SENTINEL".to_vec(), b"RAFT".to_vec(), self.name.clone().into_bytes(), message];
        cx.send_after(condition, link, PendingReply::Ignored, words.to_vec());
    }

    /// Requests the vote of a Redis sentinel with SENTINEL IS-MASTER-DOWN-BY-ADDR.
    fn request_redis_vote(&mut self, cx: &mut Context<'_>, after: RecordNumber, to: PeerId, term: Term) {
        let condition = self.consensus.condition(after);
        let Some(peer) = self.sentinels.by_id(to) else { return };
        let (Some(link), run_id) = (peer.link(), peer.run_id().clone()) else { return };
        let request = self.build_query(cx, term.0, cx.shared.my_id.as_str());
        let pending = PendingReply::Query(self.name.clone(), self.servers.master().addr().clone(), run_id);
        cx.send_after(condition, link, pending, request);
    }

    /// Publishes events about new terms and votes when their records are added to the journal.
    fn publish_ballots(&mut self, cx: &mut Context<'_>, changes: &[GroupChange], candidate: Option<&RunId>) {
        for change in changes {
            let GroupChange::Ballot { term, vote, .. } = *change else { continue };
            let is_new = self.consensus.set_ballot(term, vote);
            self.adopt_epoch(cx, term.0);
            if !is_new {
                continue;
            }
            let me = cx.shared.my_peer().number() == vote;
            let run_id = PeerId::new(vote).and_then(|id| self.find_run_id(cx, id, candidate));
            if me {
                self.announce(cx, EventLevel::Warning, "+try-failover", "");
            }
            self.consensus.set_voted_for(run_id.clone(), term.0);
            if let Some(run_id) = run_id {
                let script = self.settings.notification_script.as_deref();
                cx.publish_event(
                    EventLevel::Warning,
                    "+vote-for-leader",
                    format!("{run_id} {}", term.0),
                    script,
                );
                if self.detector.is_objectively_down() {
                    self.record_failover_step(cx, format!("voted for {run_id} in epoch {}", term.0));
                }
            }
            cx.record_config_change();
        }
    }

    /// Adopts a newer epoch, which can come from the journal, a hello message or another sentinel's reply.
    pub(crate) fn adopt_epoch(&self, cx: &mut Context<'_>, epoch: u64) {
        if epoch > cx.shared.epoch {
            cx.shared.epoch = epoch;
            cx.record_config_change();
            let script = self.settings.notification_script.as_deref();
            cx.publish_event(EventLevel::Warning, "+new-epoch", epoch.to_string(), script);
        }
    }

    /// Sends a candidate the hello message of a sentinel that the candidate does not know.
    fn announce_unknown_member(&mut self, cx: &mut Context<'_>, candidate: PeerId, member: PeerId) {
        let Some(link) = self.sentinels.by_id(candidate).and_then(KnownSentinel::link) else { return };
        let Some(peer) = self.sentinels.by_id(member) else { return };
        let mut hello = self.build_hello(cx, peer.addr().clone(), peer.run_id().clone());
        // Zero epochs: the message announces only that the sentinel exists.
        (hello.epoch, hello.config_epoch) = (0, 0);
        cx.send(link, PendingReply::Ignored, &["PUBLISH", HELLO_CHANNEL, &hello.to_string()]);
    }

    /// Adds a step to the failover log.
    pub(crate) fn record_failover_step(&self, cx: &mut Context<'_>, text: String) {
        cx.shared.recorder.add_step(cx.now, &self.name, &self.servers.master().addr().to_string(), text);
    }
}
