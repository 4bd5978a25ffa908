//! The other sentinels of a master, and the majority that they form.
//!
//! A sentinel that restarts without its files returns under a new run id and has forgotten its votes. Its old member id
//! therefore counts towards the majority until all other sentinels have reported the epochs that they know.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clock::Instant;
use consensus::PeerId;

use crate::addr::{Addr, RunId};
use crate::hello::Hello;
use crate::link::{LinkId, Links};

/// Maximum number of other sentinels per master, as a protection against floods.
const MAX_SENTINELS: usize = 1024;

/// Another sentinel that monitors the same master.
#[derive(Debug, Clone)]
pub(crate) struct KnownSentinel {
    run_id: RunId,
    /// The announced address. Port 0 means that the sentinel cannot be reached.
    addr: Addr,
    link: Option<LinkId>,
    /// When the sentinel became subjectively down; `None` while it is up.
    sdown: Option<Instant>,
    last_hello: Instant,
    /// Since when the hello messages of this sentinel have arrived without a gap. After a network failure, outdated
    /// messages arrive first.
    continuous_since: Instant,
    /// The configuration epoch in the last hello message of this sentinel.
    config_epoch: Option<u64>,
    /// When this sentinel was last sent a hello message; `None` if one is due now.
    hello_sent_at: Option<Instant>,
    /// When this sentinel was last asked whether the master is down.
    queried_at: Option<Instant>,
    /// When this sentinel last reported the master as down.
    down_reported_at: Option<Instant>,
    /// The candidate and the epoch of the vote that this sentinel last reported.
    vote: Option<(String, u64)>,
}

impl KnownSentinel {
    pub(crate) fn new(now: Instant, addr: &Addr, run_id: &RunId, link: Option<LinkId>) -> Self {
        Self {
            run_id: run_id.clone(),
            addr: addr.clone(),
            link,
            sdown: None,
            last_hello: now,
            continuous_since: now,
            config_epoch: None,
            hello_sent_at: None,
            queried_at: None,
            down_reported_at: None,
            vote: None,
        }
    }

    /// The id of the sentinel as a member of the consensus group.
    pub(crate) fn id(&self) -> PeerId {
        self.run_id.peer()
    }

    pub(crate) fn run_id(&self) -> &RunId {
        &self.run_id
    }

    pub(crate) fn addr(&self) -> &Addr {
        &self.addr
    }

    /// The command link; `None` if the sentinel cannot be reached.
    pub(crate) fn link(&self) -> Option<LinkId> {
        self.link
    }

    /// Sets the announced address and the link to it.
    pub(crate) fn set_addr(&mut self, addr: &Addr, link: Option<LinkId>) {
        self.addr = addr.clone();
        self.link = link;
    }

    /// When the sentinel became subjectively down; `None` while it is up.
    pub(crate) fn sdown(&self) -> Option<Instant> {
        self.sdown
    }

    pub(crate) fn toggle_down(&mut self, now: Instant) {
        self.sdown = self.sdown.is_none().then_some(now);
    }

    pub(crate) fn last_hello(&self) -> Instant {
        self.last_hello
    }

    /// Records a hello message of this sentinel. A time above `max_gap` since the last one is a gap.
    pub(crate) fn on_hello(&mut self, now: Instant, hello: &Hello, max_gap: Duration) {
        if now.since(self.last_hello) > max_gap {
            self.continuous_since = now;
        }
        self.last_hello = now;
        self.config_epoch = Some(hello.config_epoch);
    }

    /// Whether the sentinel has announced this configuration epoch without a gap for longer than `settled`, and last
    /// within `recent`.
    fn announces(&self, now: Instant, config_epoch: u64, recent: Duration, settled: Duration) -> bool {
        self.config_epoch == Some(config_epoch)
            && now.since(self.last_hello) <= recent
            && now.since(self.continuous_since) > settled
    }

    pub(crate) fn hello_sent_at(&self) -> Option<Instant> {
        self.hello_sent_at
    }

    /// Whether `interval` has passed since the last query about the master.
    pub(crate) fn is_query_due(&self, now: Instant, interval: Duration) -> bool {
        self.queried_at.is_none_or(|at| now.since(at) >= interval)
    }

    /// Sets when the sentinel was last asked about the master.
    pub(crate) fn set_queried_at(&mut self, at: Instant) {
        self.queried_at = Some(at);
    }

    /// Records whether the sentinel considers the master down.
    pub(crate) fn set_down_reported(&mut self, now: Instant, is_down: bool) {
        self.down_reported_at = is_down.then_some(now);
    }

    pub(crate) fn reports_master_down(&self) -> bool {
        self.down_reported_at.is_some()
    }

    /// The candidate and the epoch of the vote that this sentinel last reported.
    pub(crate) fn vote(&self) -> Option<&(String, u64)> {
        self.vote.as_ref()
    }

    /// Records a vote that the sentinel reported. Returns whether its epoch differs from that of the last one.
    pub(crate) fn set_vote(&mut self, candidate: String, epoch: u64) -> bool {
        let is_new = self.vote.as_ref().map(|(_, known)| *known) != Some(epoch);
        self.vote = Some((candidate, epoch));
        is_new
    }
}

/// The other sentinels of a master.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownSentinels {
    peers: BTreeMap<RunId, KnownSentinel>,
    /// Former member ids of sentinels that restarted without their files, with the time of the change. Such a sentinel
    /// may have forgotten its vote in an epoch that this sentinel does not know.
    former_members: BTreeMap<PeerId, Instant>,
}

impl KnownSentinels {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &KnownSentinel> {
        self.peers.values()
    }

    pub(crate) fn get(&self, run_id: &RunId) -> Option<&KnownSentinel> {
        self.peers.get(run_id)
    }

    pub(crate) fn get_mut(&mut self, run_id: &RunId) -> Option<&mut KnownSentinel> {
        self.peers.get_mut(run_id)
    }

    pub(crate) fn by_id(&self, id: PeerId) -> Option<&KnownSentinel> {
        self.peers.values().find(|peer| peer.id() == id)
    }

    /// The number of other sentinels.
    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }

    /// The number of sentinels, including this one.
    pub(crate) fn total(&self) -> usize {
        self.peers.len() + 1
    }

    /// The majority of all members, including former ones.
    pub(crate) fn majority(&self) -> usize {
        (self.total() + self.former_members.len()) / 2 + 1
    }

    /// Whether a sentinel with this run id can be added: there is space, and no other sentinel has its member id.
    pub(crate) fn has_room_for(&self, me: &RunId, run_id: &RunId) -> bool {
        let is_taken = |peer: &KnownSentinel| peer.run_id != *run_id && peer.id() == run_id.peer();
        self.peers.len() < MAX_SENTINELS && run_id.peer() != me.peer() && !self.peers.values().any(is_taken)
    }

    pub(crate) fn insert(&mut self, peer: KnownSentinel) {
        self.peers.insert(peer.run_id.clone(), peer);
    }

    pub(crate) fn remove(&mut self, run_id: &RunId) -> Option<KnownSentinel> {
        self.peers.remove(run_id)
    }

    /// Forgets all other sentinels.
    pub(crate) fn clear(&mut self) {
        self.peers.clear();
        self.former_members.clear();
    }

    /// Counts the former id of a member that restarted without its files towards the majority.
    pub(crate) fn add_former_member(&mut self, now: Instant, id: PeerId) {
        self.former_members.insert(id, now);
    }

    /// Removes former members after all other sentinels have sent a hello message, which shows the epochs that they
    /// know, or after `timeout`, in case a sentinel never returns. Returns whether any were removed.
    pub(crate) fn remove_former_members(&mut self, now: Instant, timeout: Duration) -> bool {
        let (peers, before) = (&self.peers, self.former_members.len());
        self.former_members.retain(|_, since| {
            now.since(*since) < timeout && peers.values().any(|peer| peer.last_hello <= *since)
        });
        self.former_members.len() < before
    }

    /// The members of the consensus group, including this sentinel and former members.
    pub(crate) fn voters(&self, me: PeerId) -> BTreeSet<PeerId> {
        let peers = self.peers.values().map(KnownSentinel::id);
        peers.chain([me]).chain(self.former_members.keys().copied()).collect()
    }

    /// The members that do not support SENTINEL RAFT.
    pub(crate) fn redis_sentinels(&self, links: &Links) -> BTreeSet<PeerId> {
        let is_redis =
            |peer: &&KnownSentinel| peer.link.is_some_and(|link| links.at(link).supports_raft == Some(false));
        self.peers.values().filter(is_redis).map(KnownSentinel::id).collect()
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.peers.values().filter_map(|peer| peer.link)
    }

    /// Makes hello messages to all sentinels due now.
    pub(crate) fn schedule_hellos(&mut self) {
        self.peers.values_mut().for_each(|peer| peer.hello_sent_at = None);
    }

    /// Records that a hello message was sent on this link.
    pub(crate) fn on_hello_sent(&mut self, now: Instant, link: LinkId) {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.link == Some(link)) {
            peer.hello_sent_at = Some(now);
        }
    }

    /// Drops reports older than `lifetime`. Returns the number of sentinels that report the master as down.
    pub(crate) fn count_down_reports(&mut self, now: Instant, lifetime: Duration) -> usize {
        for peer in self.peers.values_mut() {
            if peer.down_reported_at.is_some_and(|at| now.since(at) > lifetime) {
                peer.down_reported_at = None;
            }
        }
        self.peers.values().filter(|peer| peer.down_reported_at.is_some()).count()
    }

    /// Forgets what the sentinels have reported about the master, because another server has become the master.
    pub(crate) fn forget_reports(&mut self) {
        for peer in self.peers.values_mut() {
            peer.down_reported_at = None;
            peer.queried_at = None;
            peer.vote = None;
        }
    }

    /// Whether a majority, including this sentinel, has announced this configuration epoch for longer than `settled`,
    /// and last within `recent`.
    pub(crate) fn majority_announces(
        &self,
        now: Instant,
        config_epoch: u64,
        recent: Duration,
        settled: Duration,
    ) -> bool {
        let agree = self.peers.values().filter(|peer| peer.announces(now, config_epoch, recent, settled));
        agree.count() + 1 >= self.majority()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(100_000);
    const SECOND: Duration = Duration::from_secs(1);
    const TIMEOUT: Duration = Duration::from_secs(180);

    fn run_id(letter: char) -> RunId {
        RunId::parse(&letter.to_string().repeat(40)).unwrap()
    }

    fn sentinels(letters: &str) -> KnownSentinels {
        let mut sentinels = KnownSentinels::default();
        for letter in letters.chars() {
            sentinels.insert(KnownSentinel::new(NOW, &Addr::new("10.0.0.8", 26379), &run_id(letter), None));
        }
        sentinels
    }

    fn hello(sentinels: &mut KnownSentinels, now: Instant, letter: char, config_epoch: u64) {
        let addr = Addr::new("10.0.0.8", 26379);
        let (run_id, master_addr) = (run_id(letter), Addr::new("10.0.0.1", 6379));
        let hello = Hello { addr, run_id, epoch: 0, master: "m".into(), master_addr, config_epoch };
        sentinels.get_mut(&hello.run_id).unwrap().on_hello(now, &hello, SECOND * 4);
    }

    #[test]
    fn former_member_counts_until_all_others_have_sent_a_hello() {
        let mut sentinels = sentinels("bc");
        assert_eq!(sentinels.majority(), 2);
        sentinels.add_former_member(NOW + SECOND, run_id('d').peer());
        assert_eq!((sentinels.total(), sentinels.majority()), (3, 3));
        assert_eq!(sentinels.voters(run_id('a').peer()).len(), 4);
        hello(&mut sentinels, NOW + SECOND * 2, 'b', 0);
        assert!(!sentinels.remove_former_members(NOW + SECOND * 2, TIMEOUT));
        hello(&mut sentinels, NOW + SECOND * 2, 'c', 0);
        assert!(sentinels.remove_former_members(NOW + SECOND * 2, TIMEOUT));
        assert_eq!(sentinels.majority(), 2);
    }

    #[test]
    fn former_member_counts_no_longer_than_the_timeout() {
        let mut sentinels = sentinels("bc");
        sentinels.add_former_member(NOW, run_id('d').peer());
        assert!(!sentinels.remove_former_members(NOW + TIMEOUT - SECOND, TIMEOUT));
        assert!(sentinels.remove_former_members(NOW + TIMEOUT, TIMEOUT));
    }

    #[test]
    fn run_ids_with_a_known_member_id_are_not_added() {
        let sentinels = sentinels("b");
        let same_member = RunId::parse(&format!("{}{}", "b".repeat(39), "c")).unwrap();
        assert_eq!(same_member.peer(), run_id('b').peer());
        assert!(!sentinels.has_room_for(&run_id('a'), &same_member));
        assert!(!sentinels.has_room_for(&run_id('a'), &run_id('a')));
        assert!(sentinels.has_room_for(&run_id('a'), &run_id('c')));
    }

    #[test]
    fn reports_of_a_master_that_is_down_expire() {
        let mut sentinels = sentinels("bc");
        sentinels.get_mut(&run_id('b')).unwrap().set_down_reported(NOW, true);
        sentinels.get_mut(&run_id('c')).unwrap().set_down_reported(NOW + SECOND, true);
        assert_eq!(sentinels.count_down_reports(NOW + SECOND, SECOND), 2);
        assert_eq!(sentinels.count_down_reports(NOW + SECOND * 2, SECOND), 1);
        sentinels.forget_reports();
        assert_eq!(sentinels.count_down_reports(NOW + SECOND * 2, SECOND), 0);
    }

    #[test]
    fn configuration_is_confirmed_by_hellos_without_a_gap() {
        let mut sentinels = sentinels("bc");
        let confirmed =
            |sentinels: &KnownSentinels, now| sentinels.majority_announces(now, 7, SECOND * 4, SECOND * 2);
        // The first message after a gap may be outdated, so the time counts from it.
        let first = NOW + SECOND * 10;
        hello(&mut sentinels, first, 'b', 7);
        assert!(!confirmed(&sentinels, first));
        hello(&mut sentinels, first + SECOND * 3, 'b', 7);
        assert!(confirmed(&sentinels, first + SECOND * 3));
        assert!(!confirmed(&sentinels, first + SECOND * 8), "the last message is too old");
        hello(&mut sentinels, first + SECOND * 4, 'b', 8);
        assert!(!confirmed(&sentinels, first + SECOND * 4));
    }
}
