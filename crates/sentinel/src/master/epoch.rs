//! Connects a master's consensus group with the links between sentinels and turns its results into events and switches.

use consensus::{GroupAction, GroupChange, GroupInput, PeerId, RecordNumber, Term};

use crate::addr::RunId;
use crate::event::EventLevel;
use crate::hello::HELLO_CHANNEL;
use crate::link::PendingReply;
use crate::master::Master;
use crate::master::known_sentinels::Peer;
use crate::master::record::Switch;
use crate::shared::Context;

impl Master {
    /// Passes an event to the group and executes the resulting actions.
    pub(crate) fn drive(&mut self, cx: &mut Context<'_>, input: GroupInput<'_>) {
        let actions = self.consensus.handle(cx.now, input);
        self.carry_out(cx, actions, None);
    }

    /// Executes the group's actions. `candidate` is the run id in a vote request, whose sender may be an unknown
    /// sentinel.
    pub(crate) fn carry_out(
        &mut self,
        cx: &mut Context<'_>,
        actions: Vec<GroupAction>,
        candidate: Option<&RunId>,
    ) {
        for action in actions {
            match action {
                GroupAction::Persist { number, record } => {
                    self.announce_ballots(cx, &record.changes, candidate);
                    self.consensus.on_journaled(number, cx.persist(record));
                }
                GroupAction::Send { after, to, message } => self.send_to_peer(cx, after, to, message),
                GroupAction::RequestVote { after, to, term } => self.ask_vote(cx, after, to, term),
                GroupAction::VoteReceived { from, term } => {
                    if let Some(run_id) = self.sentinels.by_id(from).map(|peer| peer.run_id().clone()) {
                        self.take_vote(cx, &run_id, (cx.shared.me.to_string(), term.0));
                    }
                }
                GroupAction::LeaderChanged { term, leader, .. } => self.on_leader(cx, term, leader),
                GroupAction::Committed { value, .. } => {
                    if let Some(switch) = Switch::decode(&value) {
                        self.on_committed(cx, &switch);
                    }
                }
                GroupAction::VoteRefused { candidate, unknown_members: members } => {
                    for member in members {
                        self.announce_member(cx, candidate, member);
                    }
                }
            }
        }
        cx.shared.scheduler.schedule_round(&self.name);
        if let Some(deadline) = self.consensus.next_deadline() {
            cx.shared.scheduler.alarms.set_sooner(&self.name, deadline);
        }
    }

    fn send_to_peer(&mut self, cx: &mut Context<'_>, after: RecordNumber, to: PeerId, message: Vec<u8>) {
        let condition = self.consensus.condition(after);
        let Some(link) = self.sentinels.by_id(to).and_then(Peer::link) else { return };
        let words = [b"SENTINEL".to_vec(), b"RAFT".to_vec(), self.name.clone().into_bytes(), message];
        cx.send_after(condition, link, PendingReply::Plain, words.to_vec());
    }

    /// Requests the vote of a Redis sentinel with SENTINEL IS-MASTER-DOWN-BY-ADDR.
    fn ask_vote(&mut self, cx: &mut Context<'_>, after: RecordNumber, to: PeerId, term: Term) {
        let condition = self.consensus.condition(after);
        let Some(peer) = self.sentinels.by_id(to) else { return };
        let (Some(link), run_id) = (peer.link(), peer.run_id().clone()) else { return };
        let request = self.ask_request(cx, term.0, cx.shared.me.as_str());
        let pending = PendingReply::Ask(self.name.clone(), self.servers.master().addr().clone(), run_id);
        cx.send_after(condition, link, pending, request);
    }

    /// Publishes events about new terms and votes when their records are added to the journal.
    fn announce_ballots(&mut self, cx: &mut Context<'_>, changes: &[GroupChange], candidate: Option<&RunId>) {
        for change in changes {
            let GroupChange::Ballot { term, vote, .. } = *change else { continue };
            let is_new = self.consensus.set_ballot(term, vote);
            self.learn_epoch(cx, term.0);
            if !is_new {
                continue;
            }
            let me = cx.shared.my_peer().number() == vote;
            let run_id = PeerId::new(vote).and_then(|id| self.run_id_of(cx, id, candidate));
            if me {
                self.announce(cx, EventLevel::Warning, "+try-failover", "");
            }
            self.consensus.set_voted_for(run_id.clone(), term.0);
            if let Some(run_id) = run_id {
                let script = self.settings.notification_script.as_deref();
                cx.event(EventLevel::Warning, "+vote-for-leader", format!("{run_id} {}", term.0), script);
                if self.detector.is_objectively_down() {
                    self.note(cx, format!("voted for {run_id} in epoch {}", term.0));
                }
            }
            cx.changed();
        }
    }

    /// Adopts a newer epoch, which can come from the journal, a hello message or another sentinel's reply.
    pub(crate) fn learn_epoch(&self, cx: &mut Context<'_>, epoch: u64) {
        if epoch > cx.shared.epoch {
            cx.shared.epoch = epoch;
            cx.changed();
            let script = self.settings.notification_script.as_deref();
            cx.event(EventLevel::Warning, "+new-epoch", epoch.to_string(), script);
        }
    }

    /// Sends a candidate the hello message of a sentinel that the candidate does not know.
    fn announce_member(&mut self, cx: &mut Context<'_>, candidate: PeerId, member: PeerId) {
        let Some(link) = self.sentinels.by_id(candidate).and_then(Peer::link) else { return };
        let Some(peer) = self.sentinels.by_id(member) else { return };
        let mut hello = self.hello_of(cx, peer.addr().clone(), peer.run_id().clone());
        // Zero epochs: the message announces only that the sentinel exists.
        (hello.epoch, hello.config_epoch) = (0, 0);
        cx.send(link, PendingReply::Plain, &["PUBLISH", HELLO_CHANNEL, &hello.to_string()]);
    }

    /// Adds a step to the failover log.
    pub(crate) fn note(&self, cx: &mut Context<'_>, text: String) {
        cx.shared.recorder.step(cx.now, &self.name, &self.servers.master().addr().to_string(), text);
    }
}
