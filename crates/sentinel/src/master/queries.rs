//! Queries between sentinels: whether a master is down, and vote requests.
//!
//! The reply to Redis's `SENTINEL IS-MASTER-DOWN-BY-ADDR <ip> <port> <epoch> <run id or *>` is `[down, run id of the
//! vote or *, epoch of the vote]`, so Redis and Redoubt sentinels can agree that a master is down. A query with a run
//! id requests a vote. Redoubt sentinels request votes from each other with Raft messages instead.

use consensus::{PeerId, Term};
use resp::Value;

use crate::addr::{Addr, RunId};
use crate::event::EventLevel;
use crate::hello::Hello;
use crate::link::PendingReply;
use crate::master::Master;
use crate::master::known_sentinels::KnownSentinel;
use crate::shared::Context;
use crate::writes::Condition;

/// Query interval while a failure is urgent.
const URGENT_QUERY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);
/// Query interval for a sentinel that does not suspect the master yet. It is short, because the sentinel is likely to
/// suspect the master soon.
const UNSUSPECTING_QUERY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);
/// How long a new suspicion is urgent. Later queries use the normal interval.
const URGENT_SUSPICION_TIME: std::time::Duration = std::time::Duration::from_secs(3);

impl Master {
    pub(crate) fn build_query(&self, cx: &Context<'_>, epoch: u64, run_id: &str) -> Vec<Vec<u8>> {
        let Addr { host, port } = self.servers.master().addr();
        let words = [
            "SENTINEL",
            "IS-MASTER-DOWN-BY-ADDR",
            cx.shared.display_host(host),
            &port.to_string(),
            &epoch.to_string(),
            run_id,
        ];
        words.map(|word| word.as_bytes().to_vec()).to_vec()
    }

    /// Queries the other sentinels if this sentinel considers the master down.
    pub(crate) fn query_sentinels(&mut self, cx: &mut Context<'_>) {
        let Some(since) = self.servers.master().sdown() else { return };
        let fresh = cx.now.since(since) < URGENT_SUSPICION_TIME;
        let period = if fresh { URGENT_QUERY_INTERVAL } else { cx.shared.timing.ask_period };
        let due = self.sentinels.iter().filter(|peer| peer.is_query_due(cx.now, period));
        let ask: Vec<(RunId, _)> =
            due.filter_map(|peer| Some((peer.run_id().clone(), peer.link()?))).collect();
        for (run_id, link) in ask {
            let request = self.build_query(cx, cx.shared.epoch, "*");
            let pending =
                PendingReply::Query(self.name.clone(), self.servers.master().addr().clone(), run_id.clone());
            if cx.send_after(Condition::Nothing, link, pending, request) {
                self.sentinels.get_mut(&run_id).expect("just listed").set_queried_at(cx.now);
            }
        }
    }

    /// Handles another sentinel's reply to a query about the master at `addr`. A reply about a replaced master says
    /// nothing about the new one.
    pub(crate) fn on_query_reply(
        &mut self,
        cx: &mut Context<'_>,
        addr: &Addr,
        run_id: &RunId,
        value: &Value,
    ) {
        let Some([Value::Integer(down), leader, Value::Integer(epoch)]) = value.as_array() else { return };
        let Some(peer) = self.sentinels.get_mut(run_id) else { return };
        cx.shared.scheduler.schedule_round(&self.name);
        if addr == self.servers.master().addr() {
            peer.set_down_reported(cx.now, *down == 1);
            if *down == 0 {
                peer.set_queried_at(cx.now - (URGENT_QUERY_INTERVAL - UNSUSPECTING_QUERY_INTERVAL));
            }
        }
        let leader = leader.as_bytes().and_then(|leader| std::str::from_utf8(leader).ok()).unwrap_or("*");
        if leader != "*"
            && let Ok(epoch) = u64::try_from(*epoch)
        {
            let from = peer.id();
            self.record_reported_vote(cx, run_id, leader.chars().take(40).collect(), epoch);
            if RunId::parse(leader).as_ref() == Some(&cx.shared.my_id) {
                self.drive_group(cx, consensus::GroupInput::ForeignVote { from, term: Term(epoch) });
            }
        }
        if cx.shared.tilt_since.is_none() {
            self.update_objectively_down(cx);
            self.advance_failover(cx);
        }
    }

    /// Records a vote that another sentinel reported: the candidate's run id and the epoch.
    pub(crate) fn record_reported_vote(
        &mut self,
        cx: &mut Context<'_>,
        run_id: &RunId,
        candidate: String,
        epoch: u64,
    ) {
        let Some(peer) = self.sentinels.get_mut(run_id) else { return };
        let text = format!("{run_id} voted for {candidate} {epoch}");
        if peer.set_vote(candidate, epoch) {
            cx.log(EventLevel::Notice, text);
        }
    }

    /// Handles another sentinel's query about the master, which requests a vote in `epoch` if it has a run id. Returns
    /// whether the master is down, the candidate and epoch of this sentinel's vote, and what must be on disk before the
    /// reply is sent.
    pub(crate) fn answer_query(
        &mut self,
        cx: &mut Context<'_>,
        epoch: u64,
        run_id: Option<&RunId>,
    ) -> (bool, Option<RunId>, u64, Condition) {
        let down = cx.shared.tilt_since.is_none() && self.servers.is_master_suspected();
        let Some(run_id) = run_id else { return (down, None, 0, Condition::Nothing) };
        let (actions, vote) = self.consensus.on_redis_vote_request(cx.now, run_id.peer(), Term(epoch));
        self.execute_actions(cx, actions, Some(run_id));
        let condition = self.consensus.condition(vote.record);
        match vote.candidate.and_then(|id| self.find_run_id(cx, id, Some(run_id))) {
            Some(leader) => (down, Some(leader), vote.term.0, condition),
            // A sentinel that has not voted in this epoch reports its last vote.
            None => (down, self.consensus.voted_for().cloned(), self.consensus.voted_epoch(), condition),
        }
    }

    /// The run id of a member of the consensus group, of the unknown candidate of a vote request, or of the candidate
    /// of the last vote.
    pub(crate) fn find_run_id(
        &self,
        cx: &Context<'_>,
        id: PeerId,
        candidate: Option<&RunId>,
    ) -> Option<RunId> {
        let peers = self.sentinels.iter().map(KnownSentinel::run_id);
        let mut known = peers.chain([&cx.shared.my_id]).chain(candidate).chain(self.consensus.voted_for());
        known.find(|run_id| run_id.peer() == id).cloned()
    }

    /// Handles a hello message from another sentinel of this master.
    pub(crate) fn on_hello(&mut self, cx: &mut Context<'_>, hello: &Hello) {
        if hello.run_id == cx.shared.my_id {
            return;
        }
        match self.sentinels.get(&hello.run_id) {
            None => self.add_discovered_sentinel(cx, hello),
            Some(peer) if !cx.shared.same_addr(peer.addr(), &hello.addr) => {
                self.update_sentinel_addr(cx, hello);
            }
            Some(_) => {}
        }
        self.adopt_epoch(cx, hello.epoch);
        if self.consensus.is_active() {
            // Sentinels that lost their files may have elected a leader in the new epoch and forgotten it, so this
            // sentinel must not start an election in that epoch.
            self.drive_group(
                cx,
                consensus::GroupInput::Activate { last_forbidden_term: Term(cx.shared.epoch) },
            );
        }
        let switch = hello.config_epoch > self.config_epoch;
        if let Some(peer) = self.sentinels.get_mut(&hello.run_id) {
            peer.on_hello(cx.now, hello, cx.shared.timing.publish_period * 2);
        }
        if self.sentinels.remove_former_members(cx.now, self.settings.failover_timeout) {
            self.update_members(cx);
        }
        if switch {
            self.adopt_hello(cx, hello);
        }
    }

    fn add_discovered_sentinel(&mut self, cx: &mut Context<'_>, hello: &Hello) {
        if let Some(former_member) = self.remove_sentinel_at(cx, &hello.addr) {
            self.sentinels.add_former_member(cx.now, former_member);
        }
        self.add_sentinel(cx, &hello.addr, &hello.run_id);
        if let Some(peer) = self.sentinels.get(&hello.run_id) {
            self.announce_sentinel(cx, EventLevel::Notice, "+sentinel", peer, "");
            self.update_members(cx);
            cx.record_config_change();
        }
    }

    /// Stores the new address of a known sentinel and connects to it.
    fn update_sentinel_addr(&mut self, cx: &mut Context<'_>, hello: &Hello) {
        self.remove_sentinel_at(cx, &hello.addr);
        let link = cx.link_to_sentinel(&hello.addr);
        self.sentinels.get_mut(&hello.run_id).expect("it is known").set_addr(&hello.addr, link);
        self.update_members(cx);
        cx.shared.scheduler.schedule_round(&self.name);
        let text = format!(" ip {} port {} for {}", hello.addr.host, hello.addr.port, hello.run_id);
        self.announce(cx, EventLevel::Notice, "+sentinel-address-switch", &text);
        cx.record_config_change();
    }

    /// Removes the sentinel at this address, which has restarted with a new run id. Returns its old member id.
    fn remove_sentinel_at(&mut self, cx: &mut Context<'_>, addr: &Addr) -> Option<PeerId> {
        let peer = self.sentinels.iter().find(|peer| cx.shared.same_addr(peer.addr(), addr))?;
        let run_id = peer.run_id().clone();
        self.announce_sentinel(cx, EventLevel::Notice, "+sentinel-invalid-addr", peer, "");
        self.sentinels.remove(&run_id);
        cx.shared.links_changed = true;
        cx.record_config_change();
        Some(run_id.peer())
    }
}
