//! Groups on a simulated network with one millisecond of latency and message loss.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clock::Instant;

use crate::{Group, GroupAction, GroupChange, GroupInput, PeerId, RecordNumber, SavedGroup, Term};

fn peer_id(number: u64) -> PeerId {
    PeerId::new(number).unwrap()
}

fn peers(numbers: &[u64]) -> BTreeSet<PeerId> {
    numbers.iter().map(|&number| peer_id(number)).collect()
}

struct SimulatedNetwork {
    now: Instant,
    groups: BTreeMap<PeerId, Group>,
    in_flight_messages: Vec<(Instant, PeerId, Vec<u8>)>,
    /// Members that are cut off: the network drops all messages from and to them.
    isolated_members: BTreeSet<PeerId>,
    committed_values: BTreeMap<PeerId, Vec<(Term, Vec<u8>)>>,
    proposals: Vec<(PeerId, PeerId, Term)>,
    message_count: usize,
    log: Vec<String>,
}

impl SimulatedNetwork {
    fn new(count: u64, seed: u64) -> Self {
        let members: BTreeSet<PeerId> = (1..=count).map(peer_id).collect();
        let mut net = Self {
            now: Instant::from_millis(1000),
            groups: BTreeMap::new(),
            in_flight_messages: Vec::new(),
            isolated_members: BTreeSet::new(),
            committed_values: BTreeMap::new(),
            proposals: Vec::new(),
            message_count: 0,
            log: Vec::new(),
        };
        for &id in &members {
            net.groups.insert(id, Group::new("mymaster", id, SavedGroup::default(), seed + id.number()));
            net.feed(
                id,
                GroupInput::SetMembers { voters: members.clone(), foreign_members: BTreeSet::new() },
            );
        }
        net
    }

    fn feed(&mut self, id: PeerId, event: GroupInput<'_>) {
        let mut out = Vec::new();
        self.groups.get_mut(&id).unwrap().handle(self.now, event, &mut out);
        let mut synced = RecordNumber::default();
        for action in out {
            self.log.push(format!("{} {id:?} {action:?}", self.now.as_micros()));
            match action {
                GroupAction::Persist { number, record } => {
                    assert!(number > synced);
                    assert_eq!(record.group, "mymaster");
                    synced = number;
                }
                GroupAction::Send { to, message, .. } => {
                    self.message_count += 1;
                    self.in_flight_messages.push((self.now + Duration::from_millis(1), to, message));
                    if self.isolated_members.contains(&id) {
                        self.in_flight_messages.pop();
                    }
                }
                GroupAction::RequestVote { to, term, .. } => self.proposals.push((id, to, term)),
                GroupAction::Committed { term, value, .. } => {
                    self.committed_values.entry(id).or_default().push((term, value));
                }
                GroupAction::LeaderChanged { .. }
                | GroupAction::VoteReceived { .. }
                | GroupAction::VoteRefused { .. } => {}
            }
        }
    }

    fn run(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        loop {
            let timer =
                self.groups.iter().filter_map(|(&id, group)| Some((group.next_deadline()?, id))).min();
            let arrival = self.in_flight_messages.iter().map(|(at, ..)| *at).min();
            let next = timer.map(|(at, _)| at).into_iter().chain(arrival).min();
            let Some(next) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let place = self.in_flight_messages.iter().position(|(at, ..)| *at == next).unwrap();
                let (_, to, bytes) = self.in_flight_messages.remove(place);
                if !self.isolated_members.contains(&to) && self.groups.contains_key(&to) {
                    self.feed(to, GroupInput::Message(&bytes));
                }
            } else {
                self.feed(timer.unwrap().1, GroupInput::Deadline);
            }
        }
        self.now = end;
    }

    fn activate(&mut self, ids: &[u64]) {
        for &id in ids {
            self.feed(peer_id(id), GroupInput::Activate { last_forbidden_term: Term(0) });
        }
    }

    fn leaders(&self) -> Vec<u64> {
        self.groups.values().filter(|group| group.is_leader()).map(|group| group.id().number()).collect()
    }

    fn restart(&mut self, id: u64) {
        let old = self.groups.remove(&peer_id(id)).unwrap();
        let members = self.groups.keys().copied().chain([peer_id(id)]).collect();
        self.groups.insert(peer_id(id), Group::new("mymaster", peer_id(id), old.saved_state().clone(), 99));
        self.feed(peer_id(id), GroupInput::SetMembers { voters: members, foreign_members: BTreeSet::new() });
    }
}

#[test]
fn inactive_group_elects_a_leader_within_round_trips_of_activation() {
    let mut net = SimulatedNetwork::new(3, 1);
    net.run(10_000);
    assert_eq!(net.message_count, 0, "a sleeping group is silent");
    net.activate(&[1, 2, 3]);
    net.run(10);
    assert_eq!(net.leaders().len(), 1);
    let leader = peer_id(net.leaders()[0]);
    net.feed(leader, GroupInput::Propose(b"six".to_vec()));
    net.run(10);
    for id in 1..=3 {
        assert_eq!(net.committed_values[&peer_id(id)], [(Term(1), b"six".to_vec())], "member {id}");
    }
    assert_eq!(net.groups[&leader].count_acknowledged(net.groups[&leader].last_index()), 3);
    for id in 1..=3 {
        net.feed(peer_id(id), GroupInput::Deactivate);
    }
    let before = net.message_count;
    net.run(10_000);
    assert_eq!(net.message_count, before);
}

/// Three members learn one after another that the master is down. A member that learns it after voting does not start
/// an election of its own, even if it does not know the result of the vote yet.
#[test]
fn member_that_just_voted_does_not_compete_with_its_candidate() {
    // Two candidacies within one round trip of each other can split the vote. The excluded gaps cause such candidacies.
    for gap in (0..60).filter(|gap| ![12, 13, 25].contains(gap)) {
        for order in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]] {
            let mut net = SimulatedNetwork::new(3, 1);
            for id in order {
                net.activate(&[id]);
                net.run(gap);
            }
            net.run(1000);
            let terms: Vec<Term> = net.groups.values().map(Group::term).collect();
            assert_eq!((net.leaders().len(), terms), (1, vec![Term(1); 3]), "{order:?}, {gap} ms");
        }
    }
}

/// If two consecutive elections end in a split vote, the third one starts within half a second.
#[test]
fn second_split_vote_is_repeated_as_soon_as_the_first() {
    for seed in 0..50 {
        let mut net = SimulatedNetwork::new(3, seed);
        net.isolated_members = peers(&[2, 3]);
        net.activate(&[1]);
        net.run(620);
        let candidacies = net.log.iter().filter(|line| line.contains("to: PeerId(2)")).count();
        assert!(candidacies >= 3, "{candidacies} with seed {seed}");
    }
}

#[test]
fn one_active_member_is_enough_for_an_election() {
    let mut net = SimulatedNetwork::new(3, 2);
    net.activate(&[3]);
    net.run(80);
    assert_eq!(net.leaders(), [3]);
    assert!(!net.groups[&peer_id(1)].is_active());
}

#[test]
fn isolated_leader_is_replaced_and_its_proposal_is_lost() {
    let mut net = SimulatedNetwork::new(3, 3);
    net.activate(&[1, 2, 3]);
    net.run(10);
    let old = peer_id(net.leaders()[0]);
    net.isolated_members.insert(old);
    net.feed(old, GroupInput::Propose(b"never".to_vec()));
    net.run(1000);
    let new = *net.leaders().iter().find(|&&id| peer_id(id) != old).unwrap();
    assert!(net.groups[&peer_id(new)].term() > net.groups[&old].term());
    net.feed(peer_id(new), GroupInput::Propose(b"later".to_vec()));
    net.isolated_members.clear();
    net.run(1000);
    assert_eq!(net.leaders(), [new]);
    for group in net.groups.values() {
        assert_eq!(group.value(), b"later");
    }
}

#[test]
fn pre_vote_keeps_the_term_while_no_majority_is_reachable() {
    let mut net = SimulatedNetwork::new(3, 4);
    net.isolated_members.extend([peer_id(2), peer_id(3)]);
    net.activate(&[1]);
    net.run(5000);
    assert_eq!(net.leaders(), [0; 0]);
    assert_eq!(net.groups[&peer_id(1)].term(), Term(0));
}

#[test]
fn restarted_member_keeps_its_vote_and_the_value() {
    let mut net = SimulatedNetwork::new(3, 5);
    net.activate(&[1, 2, 3]);
    net.run(10);
    let leader = peer_id(net.leaders()[0]);
    net.feed(leader, GroupInput::Propose(b"kept".to_vec()));
    net.run(10);
    for id in 1..=3 {
        let before = net.groups[&peer_id(id)].saved_state().clone();
        net.restart(id);
        let group = &net.groups[&peer_id(id)];
        assert_eq!(group.saved_state(), &before);
        assert_eq!(group.saved_state().voted_for, leader.number());
        assert_eq!(group.value(), b"kept");
    }
}

#[test]
fn log_is_compacted_and_new_members_get_a_snapshot() {
    let mut net = SimulatedNetwork::new(3, 6);
    net.activate(&[1, 2, 3]);
    net.run(10);
    let leader = peer_id(net.leaders()[0]);
    for number in 0..200u32 {
        net.feed(leader, GroupInput::Propose(number.to_string().into_bytes()));
        net.run(3);
    }
    let saved = net.groups[&leader].saved_state();
    assert!(saved.entries.len() <= 64 && saved.snapshot.1 > 100, "{saved:?}");
    for id in 1..=3 {
        net.feed(peer_id(id), GroupInput::Deactivate);
    }
    net.groups.insert(peer_id(4), Group::new("mymaster", peer_id(4), SavedGroup::default(), 4));
    for id in 1..=4 {
        net.feed(
            peer_id(id),
            GroupInput::SetMembers { voters: peers(&[1, 2, 3, 4]), foreign_members: BTreeSet::new() },
        );
    }
    net.isolated_members.insert(leader);
    let others: Vec<u64> = (1..=4).filter(|&id| peer_id(id) != leader).collect();
    net.activate(&others);
    net.run(2000);
    assert_eq!(net.groups[&peer_id(4)].value(), b"199");
    assert_ne!(net.leaders().len(), 0);
}

#[test]
fn candidate_that_knows_fewer_members_gets_no_vote() {
    let mut net = SimulatedNetwork::new(3, 7);
    net.feed(peer_id(1), GroupInput::SetMembers { voters: peers(&[1, 2]), foreign_members: BTreeSet::new() });
    net.activate(&[1]);
    net.run(500);
    assert_eq!(net.leaders(), [0; 0]);
    let told = "VoteRefused { candidate: PeerId(1), unknown_members: {PeerId(3)} }";
    assert!(net.log.iter().any(|line| line.ends_with(told)));
    net.feed(
        peer_id(1),
        GroupInput::SetMembers { voters: peers(&[1, 2, 3]), foreign_members: BTreeSet::new() },
    );
    net.run(2000);
    assert_eq!(net.leaders(), [1]);
}

#[test]
fn foreign_member_votes_in_its_own_protocol() {
    let mut net = SimulatedNetwork::new(3, 8);
    // Two of the three members are Redis sentinels; one of the two is unreachable.
    net.feed(
        peer_id(1),
        GroupInput::SetMembers { voters: peers(&[1, 2, 3]), foreign_members: peers(&[2, 3]) },
    );
    net.activate(&[1]);
    net.run(60);
    assert!(net.proposals.contains(&(peer_id(1), peer_id(2), Term(1))), "{:?}", net.proposals);
    assert_eq!(net.leaders(), [0; 0]);
    net.feed(peer_id(1), GroupInput::ForeignVote { from: peer_id(2), term: Term(1) });
    assert_eq!(net.leaders(), [1]);
    net.feed(peer_id(1), GroupInput::Propose(b"mixed".to_vec()));
    assert_eq!(net.committed_values[&peer_id(1)], [(Term(1), b"mixed".to_vec())]);
}

#[test]
fn member_votes_once_per_term_across_both_protocols() {
    let mut group = Group::new("mymaster", peer_id(1), SavedGroup::default(), 0);
    let mut out = Vec::new();
    let now = Instant::from_millis(1);
    group.handle(
        now,
        GroupInput::SetMembers { voters: peers(&[1, 2, 3]), foreign_members: peers(&[2, 3]) },
        &mut out,
    );
    out.clear();
    let (after, term, vote) = group.vote_for(now, peer_id(2), Term(5), &mut out);
    assert_eq!((term, vote), (Term(5), Some(peer_id(2))));
    let ballot = GroupChange::Ballot { term: Term(5), vote: 2, commit: 0 };
    let record = crate::GroupRecord { group: "mymaster".into(), changes: vec![ballot] };
    assert_eq!(out[0], GroupAction::Persist { number: after, record });
    assert_eq!(group.vote_for(now, peer_id(3), Term(5), &mut out).2, Some(peer_id(2)), "the vote is given");
    assert_eq!(group.vote_for(now, peer_id(3), Term(4), &mut out).1, Term(5), "an old term is over");
    assert_eq!(
        group.vote_for(now, peer_id(3), Term(6), &mut out),
        (crate::RecordNumber(2), Term(6), Some(peer_id(3)))
    );
    // The next candidacy of this member uses a term after the one it voted in.
    group.handle(now, GroupInput::Activate { last_forbidden_term: Term(6) }, &mut out);
    group.handle(now + Duration::from_secs(1), GroupInput::Deadline, &mut out);
    assert!(group.term() > Term(6));
}

#[test]
fn active_member_campaigns_in_a_later_term_than_it_has_seen() {
    let mut group = Group::new("mymaster", peer_id(1), SavedGroup::default(), 1);
    let (mut out, now) = (Vec::new(), Instant::from_millis(1));
    group.handle(
        now,
        GroupInput::SetMembers { voters: peers(&[1, 2, 3]), foreign_members: peers(&[2, 3]) },
        &mut out,
    );
    group.handle(now, GroupInput::Activate { last_forbidden_term: Term(0) }, &mut out);
    group.handle(now, GroupInput::Activate { last_forbidden_term: Term(4) }, &mut out);
    let before = group.term();
    assert!(before < Term(4), "an election that is on goes on");
    let due = group.next_deadline().expect("it is awake");
    group.handle(due, GroupInput::Deadline, &mut out);
    assert!(group.term() > Term(4), "{:?}", group.term());
}

#[test]
fn equal_seeds_give_equal_runs() {
    let history = |seed| {
        let mut net = SimulatedNetwork::new(5, seed);
        net.isolated_members.insert(peer_id(4));
        net.activate(&[1, 2, 3, 4, 5]);
        net.run(700);
        net.log
    };
    assert_eq!(history(11), history(11));
    assert_ne!(history(11), history(12));
}

#[test]
fn forged_messages_change_nothing() {
    // Every message of a real run is delivered to a member with each of its bytes corrupted in turn.
    let mut net = SimulatedNetwork::new(3, 9);
    net.activate(&[1, 2, 3]);
    net.run(1);
    let mut seen = Vec::new();
    for _ in 0..40 {
        seen.extend(net.in_flight_messages.iter().map(|(_, to, bytes)| (*to, bytes.clone())));
        let leaders = net.leaders();
        if let Some(&leader) = leaders.first() {
            net.feed(peer_id(leader), GroupInput::Propose(b"value".to_vec()));
        }
        net.run(1);
    }
    assert!(seen.len() > 50);
    for (to, bytes) in seen {
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut harmed = bytes.clone();
                harmed[at] ^= flip;
                net.feed(to, GroupInput::Message(&harmed));
            }
        }
        net.in_flight_messages.clear();
    }
}
