//! Tests of a single state machine that compare its complete list of actions.

use std::collections::BTreeSet;
use std::time::Duration;

use clock::{Instant, Millis};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use slot_routing::{Epoch, NodeId, ReplOffset, SlotSet};

use super::net::LOCALHOST;
use crate::wire::{Extension, GossipSection, Header, MessageBody, MessageFlags, NodeFlags, Packet};
use crate::{
    AnnouncedAddress, ClusterAction, ClusterConfig, ClusterEvent, ClusterInput, ElectionEvent, FailoverMode,
    Gossip, LinkId, OperatorCommand, OperatorReply, SET_SLOT_TIMEOUT, SlotChange,
};

const WALL_TIME: Millis = Millis(1_790_000_000_000);

/// A master with slots, connected to a replica of another master that is FAIL. Returns the machine and the ids of all
/// three nodes.
fn voter_fixture() -> (Gossip, NodeId, NodeId, NodeId) {
    let id = |byte: u8| NodeId::from_random([byte; 20]);
    let (me, master, replica) = (id(1), id(2), id(3));
    let text = format!(
        "{me} 127.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-100\n\
         {master} 127.0.0.1:7002@17002 master,fail - 0 0 2 connected 101-200\n\
         {replica} 127.0.0.1:7003@17003 slave {master} 0 0 2 connected\n\
         vars currentEpoch 5 lastVoteEpoch 4\n"
    );
    let announce = AnnouncedAddress { port: 7001, bus_port: 17001, ..AnnouncedAddress::default() };
    let config = ClusterConfig {
        announced_address: announce,
        node_timeout: Duration::from_secs(2),
        ..ClusterConfig::default()
    };
    let gossip = Gossip::restore(config, ChaCha8Rng::seed_from_u64(1), &text).unwrap();
    (gossip, me, master, replica)
}

fn at_millis(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn handle(gossip: &mut Gossip, ms: u64, input: ClusterInput) -> Vec<ClusterAction> {
    let mut out = Vec::new();
    gossip.handle(at_millis(ms), WALL_TIME, input, &mut out);
    gossip.assert_indexes_consistent();
    out
}

/// Returns a header as the replica sends it.
fn replica_header(replica: NodeId, master: NodeId, epoch: u64) -> Header {
    let slots = (101..=200).map(|n| slot_routing::Slot::new(n).unwrap()).collect();
    Header {
        sender: replica,
        flags: NodeFlags::REPLICA,
        message_flags: MessageFlags::default(),
        is_serving: false,
        ip: None,
        port: 7003,
        secondary_port: 0,
        bus_port: 17003,
        current_epoch: Epoch(epoch),
        config_epoch: Epoch(2),
        offset: ReplOffset(10),
        slots,
        replica_of: Some(master),
    }
}

/// Starts the machine and skips the check whether it was replaced while it was down.
fn start(gossip: &mut Gossip) -> Vec<ClusterAction> {
    let out = handle(gossip, 0, ClusterInput::NodeStarted);
    gossip.end_replacement_check();
    out
}

fn connect_link(gossip: &mut Gossip, to: u16) -> LinkId {
    let out = start(gossip);
    let link = out.iter().find_map(|action| match action {
        ClusterAction::Connect { link, port, .. } if *port == to => Some(*link),
        _ => None,
    });
    let link = link.expect("connects to everybody at once");
    handle(gossip, 1, ClusterInput::Connected { link });
    link
}

fn without_persisted_text(actions: Vec<ClusterAction>) -> Vec<ClusterAction> {
    actions
        .into_iter()
        .map(|action| match action {
            ClusterAction::Persist { must_sync: sync, .. } => {
                ClusterAction::Persist { nodes_conf: String::new(), must_sync: sync }
            }
            other => other,
        })
        .collect()
}

#[test]
fn vote_is_durable_before_it_is_sent_and_given_only_once() {
    let (mut gossip, me, master, replica) = voter_fixture();
    let link = connect_link(&mut gossip, 17003);
    let theirs = LinkId::Inbound(0);
    handle(
        &mut gossip,
        2,
        ClusterInput::LinkAccepted { link: theirs, peer_ip: LOCALHOST, local_ip: LOCALHOST },
    );
    // The topology is published when the replica's data is first seen, and not again for its vote request.
    let ping = Packet {
        header: replica_header(replica, master, 5),
        body: MessageBody::Ping(GossipSection::default()),
    };
    let out = handle(&mut gossip, 2, ClusterInput::Packet { link: theirs, packet: Box::new(ping) });
    assert!(out.iter().any(|action| matches!(action, ClusterAction::Publish(_))), "{out:?}");
    let header = replica_header(replica, master, 6);
    let request = Packet { header, body: MessageBody::AuthRequest };
    let out =
        handle(&mut gossip, 3, ClusterInput::Packet { link: theirs, packet: Box::new(request.clone()) });
    let vote = Header {
        sender: me,
        flags: NodeFlags::MASTER | NodeFlags::MYSELF | NodeFlags::EXTENSIONS,
        message_flags: MessageFlags::default(),
        is_serving: false,
        ip: None,
        port: 7001,
        secondary_port: 0,
        bus_port: 17001,
        current_epoch: Epoch(6),
        config_epoch: Epoch(1),
        offset: ReplOffset(0),
        slots: (0..=100).map(|n| slot_routing::Slot::new(n).unwrap()).collect(),
        replica_of: None,
    };
    let Some(ClusterAction::Persist { nodes_conf: text, must_sync: true }) = out.first() else {
        panic!("{out:?}")
    };
    assert!(text.ends_with("vars currentEpoch 6 lastVoteEpoch 6\n"), "{text}");
    let first = without_persisted_text(out);
    assert_eq!(
        first,
        [
            ClusterAction::Persist { nodes_conf: String::new(), must_sync: true },
            ClusterAction::Log(ClusterEvent::Election(ElectionEvent::VoteGranted {
                candidate: replica,
                epoch: Epoch(6)
            })),
            ClusterAction::Send {
                link,
                packet: Box::new(Packet { header: vote, body: MessageBody::AuthAck }),
                after_persist: true
            },
        ]
    );
    // A repeated request gets the vote again, because the first vote may have been lost.
    let out = handle(&mut gossip, 4, ClusterInput::Packet { link: theirs, packet: Box::new(request) });
    let [ClusterAction::Persist { must_sync: true, .. }, again @ ClusterAction::Send { .. }] = &out[..]
    else {
        panic!("{out:?}")
    };
    assert_eq!(again, &first[2]);
}

/// Requests a vote with `header` and returns the logged decision.
fn request_vote(gossip: &mut Gossip, ms: u64, header: Header) -> ElectionEvent {
    let link = LinkId::Inbound(9);
    handle(gossip, ms, ClusterInput::LinkAccepted { link, peer_ip: LOCALHOST, local_ip: LOCALHOST });
    let packet = Box::new(Packet { header, body: MessageBody::AuthRequest });
    let out = handle(gossip, ms, ClusterInput::Packet { link, packet });
    let event = out.into_iter().find_map(|action| match action {
        ClusterAction::Log(ClusterEvent::Election(event)) => Some(event),
        _ => None,
    });
    event.expect("it says whether it votes")
}

#[test]
fn vote_is_refused_to_other_candidates_of_the_epoch_or_the_same_master() {
    use crate::VoteDenial::{AlreadyVoted, VotedForMasterRecently};
    let (gossip, _, master, replica) = voter_fixture();
    let other = NodeId::from_random([4; 20]);
    let text =
        format!("{other} 127.0.0.1:7004@17004 slave {master} 0 0 2 connected\n{}", gossip.nodes_conf());
    let restore = |text: &str| {
        let (config, rng) = (gossip.config().clone(), ChaCha8Rng::seed_from_u64(1));
        let mut gossip = Gossip::restore(config, rng, text).unwrap();
        start(&mut gossip);
        gossip
    };
    let mut gossip = restore(&text);
    let by = |candidate: NodeId, epoch: u64| replica_header(candidate, master, epoch);
    let granted = |candidate, epoch| ElectionEvent::VoteGranted { candidate, epoch: Epoch(epoch) };
    let denied =
        |candidate, epoch, why| ElectionEvent::VoteDenied { candidate, epoch: Epoch(epoch), reason: why };
    assert_eq!(request_vote(&mut gossip, 3, by(replica, 6)), granted(replica, 6));
    assert_eq!(request_vote(&mut gossip, 4, by(other, 6)), denied(other, 6, AlreadyVoted));
    let wait = Duration::from_millis(3998);
    assert_eq!(
        request_vote(&mut gossip, 5, by(other, 7)),
        denied(other, 7, VotedForMasterRecently { remaining_time: wait })
    );
    // The candidate that got this node's vote gets another one if it needs a new epoch.
    assert_eq!(request_vote(&mut gossip, 6, by(replica, 8)), granted(replica, 8));
    // The time advances in steps, because a longer gap would be detected as a process pause.
    (1..10).for_each(|step| drop(handle(&mut gossip, 400 * step, ClusterInput::Deadline)));
    assert_eq!(request_vote(&mut gossip, 4006, by(other, 9)), granted(other, 9));
    // After a restart the node no longer knows which candidate it voted for in this epoch.
    let mut gossip = restore(&gossip.nodes_conf());
    assert_eq!(request_vote(&mut gossip, 0, by(other, 9)), denied(other, 9, AlreadyVoted));
}

/// Redis sends extensions only to nodes that set the extension flag in their messages. Redis 7.0 logs a warning for all
/// extensions but the hostname, so a Redis node gets the others only after it has sent a shard id.
#[test]
fn redis_nodes_get_only_the_extensions_they_understand() {
    let (mut gossip, me, master, replica) = voter_fixture();
    let link = LinkId::Inbound(0);
    handle(&mut gossip, 0, ClusterInput::LinkAccepted { link, peer_ip: LOCALHOST, local_ip: LOCALHOST });
    let mut pong = |flags: MessageFlags, extensions: Vec<Extension>| {
        let header = Header { message_flags: flags, ..replica_header(replica, master, 5) };
        let body = MessageBody::Ping(GossipSection { entries: Vec::new(), extensions });
        let packet = Box::new(Packet { header, body });
        handle(&mut gossip, 2, ClusterInput::Packet { link, packet: packet.clone() });
        // The reply to the second packet depends on what the first packet revealed about its sender.
        let out = handle(&mut gossip, 2, ClusterInput::Packet { link, packet });
        let answer = out.into_iter().find_map(|action| match action {
            ClusterAction::Send { packet, .. } => Some(*packet),
            _ => None,
        });
        let Some(Packet { header, body: MessageBody::Pong(section) }) = answer else {
            panic!("a PING is answered")
        };
        assert!(header.message_flags.contains(MessageFlags::EXTENSIONS));
        section.extensions
    };
    assert_eq!(pong(MessageFlags::default(), vec![]), []);
    assert_eq!(pong(MessageFlags::EXTENSIONS, vec![Extension::Hostname("there".into())]), []);
    assert_eq!(pong(MessageFlags::EXTENSIONS, vec![Extension::Shard(master)]), [Extension::Shard(me)]);
    let there = gossip.nodes().find(|node| node.id == replica).expect("it is known");
    assert_eq!(
        (there.hostname.as_str(), there.shard),
        ("", master),
        "a hostname that is sent no more is none"
    );
}

#[test]
fn refused_votes_report_the_reason() {
    use crate::VoteDenial::{AlreadyVoted, MasterIsUp, OldEpoch, StaleSlot};
    let request = |gossip: &mut Gossip, header: Header| {
        let theirs = LinkId::Inbound(0);
        handle(
            gossip,
            2,
            ClusterInput::LinkAccepted { link: theirs, peer_ip: LOCALHOST, local_ip: LOCALHOST },
        );
        let packet = Box::new(Packet { header, body: MessageBody::AuthRequest });
        let out = handle(gossip, 3, ClusterInput::Packet { link: theirs, packet });
        out.into_iter().find_map(|action| match action {
            ClusterAction::Log(ClusterEvent::Election(ElectionEvent::VoteDenied { reason: why, .. })) => {
                Some(why)
            }
            _ => None,
        })
    };
    // The epochs 1 to 4 are older than the restart, and this node may have voted in them. The epochs 1 to 3 may also be
    // used by other nodes.
    for epoch in [1, 2, 3] {
        let (mut gossip, _, master, replica) = voter_fixture();
        connect_link(&mut gossip, 17003);
        let denial = request(&mut gossip, replica_header(replica, master, epoch));
        assert_eq!(denial, Some(OldEpoch { current_epoch: Epoch(5) }), "epoch {epoch}");
    }
    let (mut gossip, _, master, replica) = voter_fixture();
    connect_link(&mut gossip, 17003);
    assert_eq!(request(&mut gossip, replica_header(replica, master, 4)), Some(AlreadyVoted));

    let (mut gossip, _, master, replica) = voter_fixture();
    connect_link(&mut gossip, 17003);
    let mut stale = replica_header(replica, master, 6);
    stale.config_epoch = Epoch(0);
    let slot = slot_routing::Slot::new(101).unwrap();
    assert_eq!(request(&mut gossip, stale), Some(StaleSlot { slot }));

    // The master is up: no vote unless an operator forces the failover.
    for (flags, denial) in [(MessageFlags::default(), Some(MasterIsUp)), (MessageFlags::FORCE_ACK, None)] {
        let (gossip, _, master, replica) = voter_fixture();
        let text = gossip.nodes_conf().replace("master,fail", "master");
        let config = gossip.config().clone();
        let mut gossip = Gossip::restore(config, ChaCha8Rng::seed_from_u64(1), &text).unwrap();
        connect_link(&mut gossip, 17003);
        let mut header = replica_header(replica, master, 6);
        header.message_flags = flags;
        assert_eq!(request(&mut gossip, header), denial);
    }
}

#[test]
fn new_node_saves_nodes_conf_before_other_actions() {
    let mut gossip = Gossip::new(ClusterConfig::default(), ChaCha8Rng::seed_from_u64(1));
    assert_eq!(gossip.next_deadline(), Some(Instant::ORIGIN));
    let out = handle(&mut gossip, 0, ClusterInput::NodeStarted);
    let [ClusterAction::Persist { nodes_conf: text, must_sync: true }, ClusterAction::Publish(topology)] =
        &out[..]
    else {
        panic!("{out:?}")
    };
    let me = gossip.id();
    assert_eq!(
        *text,
        format!(
            "{me} :0@0,,shard-id={me} myself,master - 0 0 0 connected\nvars currentEpoch 0 lastVoteEpoch 0\n"
        )
    );
    assert!(!topology.is_serving);
    assert_eq!(gossip.next_deadline(), None, "alone, there is nothing to do");
}

#[test]
fn unknown_sender_gets_a_pong_and_changes_nothing() {
    let (mut gossip, _, master, _) = voter_fixture();
    connect_link(&mut gossip, 17003);
    let theirs = LinkId::Inbound(0);
    handle(
        &mut gossip,
        2,
        ClusterInput::LinkAccepted { link: theirs, peer_ip: LOCALHOST, local_ip: LOCALHOST },
    );
    let stranger = NodeId::from_random([9; 20]);
    let mut header = replica_header(stranger, master, 99);
    header.replica_of = None;
    header.flags = NodeFlags::MASTER;
    header.config_epoch = Epoch(99);
    header.slots = SlotSet::from_iter(slot_routing::Slot::all());
    for body in [MessageBody::Fail(master), MessageBody::AuthRequest, MessageBody::ManualFailoverStart] {
        let packet = Box::new(Packet { header: header.clone(), body });
        assert_eq!(handle(&mut gossip, 3, ClusterInput::Packet { link: theirs, packet }), []);
    }
    let packet = Box::new(Packet { header, body: MessageBody::Ping(GossipSection::default()) });
    let out = handle(&mut gossip, 4, ClusterInput::Packet { link: theirs, packet });
    let pongs = out.iter().filter(|action| matches!(action, ClusterAction::Send { link, packet, .. } if *link == theirs && matches!(packet.body, MessageBody::Pong(_))));
    assert_eq!(pongs.count(), 1, "{out:?}");
    assert_eq!(gossip.current_epoch(), Epoch(5));
    assert_eq!(gossip.nodes().count(), 3);
}

#[test]
fn reply_carries_the_token_of_its_command() {
    let mut gossip = Gossip::new(ClusterConfig::default(), ChaCha8Rng::seed_from_u64(1));
    let out = handle(&mut gossip, 0, ClusterInput::Command { token: 7, command: OperatorCommand::BumpEpoch });
    let reply = ClusterAction::Reply { token: 7, result: Ok(OperatorReply::EpochBumped(Epoch(1))) };
    assert!(
        matches!(&out[0], ClusterAction::Persist { nodes_conf, must_sync: true } if nodes_conf.contains("currentEpoch 1 "))
    );
    assert!(out.contains(&reply));
}

#[test]
fn imported_slot_is_durable_before_the_old_owner_learns_of_it() {
    // This node already has the highest epoch, so no new epoch forces the write.
    let (mut gossip, me, master, _) = voter_fixture();
    let theirs = slot_routing::Slot::all().find(|slot| gossip.slot_owner(*slot) == Some(master));
    let slot = theirs.expect("the other master has slots");
    let set = |change| OperatorCommand::SetSlot { slot, change, keys_in_slot: 0, timeout: SET_SLOT_TIMEOUT };
    handle(&mut gossip, 0, ClusterInput::Command { token: 0, command: OperatorCommand::BumpEpoch });
    let from = SlotChange::Importing { source: master.to_string() };
    handle(&mut gossip, 1, ClusterInput::Command { token: 1, command: set(from) });
    let take = set(SlotChange::AssignTo(me.to_string()));
    let out = handle(&mut gossip, 2, ClusterInput::Command { token: 2, command: take });
    assert!(matches!(out.first(), Some(ClusterAction::Persist { must_sync: true, .. })), "{out:?}");
}

#[test]
fn claims_are_not_sent_before_they_are_durable() {
    let (mut gossip, _, _, _) = voter_fixture();
    let link = connect_link(&mut gossip, 17003);
    let held = |out: &[ClusterAction]| {
        let mut packets = out.iter().filter_map(|action| match action {
            ClusterAction::Send { link: to, after_persist, .. } if *to == link => Some(*after_persist),
            _ => None,
        });
        packets.next().expect("a packet leaves")
    };
    let publish = || {
        let (channel, message) = (b"channel".to_vec(), b"message".to_vec());
        ClusterInput::Publish(crate::wire::Publication { is_sharded: false, channel, message })
    };
    assert!(!held(&handle(&mut gossip, 2, publish())));
    handle(&mut gossip, 3, ClusterInput::Command { token: 0, command: OperatorCommand::BumpEpoch });
    assert!(held(&handle(&mut gossip, 4, publish())), "it says under which epoch this node claims");
    handle(&mut gossip, 5, ClusterInput::Persisted);
    assert!(!held(&handle(&mut gossip, 6, publish())));
}

/// Found by the simulator (cluster, seed 7482): the target forgot an import in a power failure, took the slot under its
/// old epoch, and lost it to the claim of the old owner, which then gave it away.
#[test]
fn slot_is_claimed_under_a_new_epoch_even_if_the_import_mark_is_lost() {
    let (mut gossip, me, master, _) = voter_fixture();
    let slot = slot_routing::Slot::new(101).unwrap();
    assert_eq!(gossip.slot_owner(slot), Some(master));
    let change = SlotChange::AssignTo(me.to_string());
    let take = || OperatorCommand::SetSlot {
        slot,
        change: change.clone(),
        keys_in_slot: 0,
        timeout: SET_SLOT_TIMEOUT,
    };
    handle(&mut gossip, 0, ClusterInput::Command { token: 0, command: take() });
    assert_eq!((gossip.slot_owner(slot), gossip.myself().config_epoch), (Some(me), Epoch(6)));
    // Taking a slot that the node already owns needs no new epoch.
    handle(&mut gossip, 1, ClusterInput::Command { token: 1, command: take() });
    assert_eq!(gossip.current_epoch(), Epoch(6));
}

#[test]
fn timed_out_manual_failover_leaves_no_unhandled_deadline() {
    // A replica without data starts an election only on FORCE. After the election has timed out, no deadline may remain
    // that the state machine never handles.
    let id = |byte| NodeId::from_random([byte; 20]);
    let (me, master, other) = (id(1), id(2), id(3));
    let text = format!(
        "{me} 127.0.0.1:7001@17001 myself,slave {master} 0 0 2 connected\n\
         {master} 127.0.0.1:7002@17002 master,fail - 0 0 2 connected 0-100\n\
         {other} 127.0.0.1:7003@17003 master - 0 0 3 connected 101-200\n\
         vars currentEpoch 5 lastVoteEpoch 4\n"
    );
    let announce = AnnouncedAddress { port: 7001, bus_port: 17001, ..AnnouncedAddress::default() };
    let config = ClusterConfig {
        announced_address: announce,
        node_timeout: Duration::from_secs(2),
        ..ClusterConfig::default()
    };
    let mut gossip = Gossip::restore(config, ChaCha8Rng::seed_from_u64(1), &text).unwrap();
    handle(&mut gossip, 0, ClusterInput::NodeStarted);
    let force = OperatorCommand::Failover(FailoverMode::Force);
    handle(&mut gossip, 1, ClusterInput::Command { token: 0, command: force });
    for ms in (1..10_000).step_by(50) {
        // Handling a deadline may create another one that is due at once, but not endlessly.
        for _ in 0..5 {
            handle(&mut gossip, ms, ClusterInput::Deadline);
        }
        assert!(gossip.next_deadline() > Some(at_millis(ms)), "{:?} at {ms} ms", gossip.next_deadline());
    }
}

/// A cluster of five masters, of which node 5 is FAIL. Nodes 6 and 7 replicate nodes 1 and 2; this node (9) replicates
/// node 5.
fn candidate_fixture() -> (Gossip, impl Fn(u8) -> NodeId) {
    let id = |byte: u8| NodeId::from_random([byte; 20]);
    let mut text = String::new();
    for node in 1..=5u8 {
        let (id, fail, first) = (id(node), if node == 5 { ",fail" } else { "" }, u32::from(node) * 100);
        let port = 7000 + u32::from(node);
        let last = first + 99;
        text +=
            &format!("{id} 127.0.0.1:{port}@1{port} master{fail} - 0 0 {node} connected {first}-{last}\n");
    }
    for (node, master, myself) in [(6, 1, ""), (7, 2, ""), (9, 5, "myself,")] {
        let (id, its) = (id(node), id(master));
        text += &format!("{id} 127.0.0.1:700{node}@1700{node} {myself}slave {its} 0 0 {master} connected\n");
    }
    text += "vars currentEpoch 5 lastVoteEpoch 0\n";
    let config = ClusterConfig { node_timeout: Duration::from_secs(2), ..ClusterConfig::default() };
    (Gossip::restore(config, ChaCha8Rng::seed_from_u64(1), &text).unwrap(), id)
}

/// Found by the simulator: two masters voted for a candidate and were then replaced. As replicas they no longer counted
/// as voters, so their two votes were a majority of the remaining three masters, and another candidate got the other
/// votes in the same epoch.
#[test]
fn votes_of_masters_replaced_during_the_election_do_not_count() {
    let (mut gossip, id) = candidate_fixture();
    handle(&mut gossip, 0, ClusterInput::NodeStarted);
    let source = crate::ReplicationSource::Streaming { last_heard_at: at_millis(0) };
    let facts = crate::ReplicationStatus { offset: ReplOffset(10), source };
    let mut out = handle(&mut gossip, 0, ClusterInput::ReplicationChanged(facts));
    let started = |out: &[ClusterAction]| {
        out.iter().find_map(|action| match action {
            ClusterAction::Log(ClusterEvent::Election(ElectionEvent::Started(epoch))) => Some(*epoch),
            _ => None,
        })
    };
    let mut now = 0;
    while started(&out).is_none() {
        now += 1;
        assert!(now < 10_000, "it never stood");
        out = handle(&mut gossip, now, ClusterInput::Deadline);
    }
    let epoch = started(&out).unwrap();
    let mut say = |node: u8, body: MessageBody, master: Option<u8>| {
        let slots = (0..100).map(|n| slot_routing::Slot::new(u16::from(node) * 100 + n).unwrap());
        let header = Header {
            sender: id(node),
            flags: if master.is_some() { NodeFlags::REPLICA } else { NodeFlags::MASTER },
            current_epoch: epoch,
            config_epoch: Epoch(u64::from(node)),
            slots: if master.is_some() { SlotSet::new() } else { slots.collect() },
            replica_of: master.map(&id),
            ..replica_header(id(node), id(node), 0)
        };
        let link = LinkId::Inbound(u64::from(node));
        handle(
            &mut gossip,
            now,
            ClusterInput::LinkAccepted { link, peer_ip: LOCALHOST, local_ip: LOCALHOST },
        );
        let packet = Box::new(Packet { header, body });
        let out = handle(&mut gossip, now, ClusterInput::Packet { link, packet });
        out.contains(&ClusterAction::Log(ClusterEvent::Election(ElectionEvent::Won(epoch))))
    };
    assert!(!say(1, MessageBody::AuthAck, None) && !say(2, MessageBody::AuthAck, None), "two of five");
    let ping = || MessageBody::Ping(GossipSection::default());
    assert!(!say(1, ping(), Some(6)) && !say(2, ping(), Some(7)), "two voters that are replicas now");
    assert!(!say(3, MessageBody::AuthAck, None), "one of three remaining voters, and two former ones");
    assert!(!say(4, MessageBody::AuthAck, None), "two of the five voters that were asked");
}

/// A Redis node that was elected in an epoch has not voted in it and may still vote.
#[test]
fn vote_of_the_winner_of_the_same_epoch_does_not_count() {
    for (elected, wins) in [(Epoch(5), true), (Epoch(6), false)] {
        let (mut gossip, id) = candidate_fixture();
        handle(&mut gossip, 0, ClusterInput::NodeStarted);
        let force = OperatorCommand::Failover(FailoverMode::Force);
        handle(&mut gossip, 1, ClusterInput::Command { token: 0, command: force });
        for (voter, epoch) in [(1, Epoch(1)), (2, Epoch(2)), (3, elected)] {
            deliver_vote(&mut gossip, id(voter), voter, epoch);
        }
        assert_eq!(gossip.myself().is_master(), wins);
    }
}

/// Delivers a vote in epoch 6 from a master with a hundred slots.
fn deliver_vote(gossip: &mut Gossip, voter: NodeId, number: u8, config_epoch: Epoch) {
    let link = LinkId::Inbound(u64::from(number));
    handle(gossip, 2, ClusterInput::LinkAccepted { link, peer_ip: LOCALHOST, local_ip: LOCALHOST });
    let slots = (0..100).map(|n| slot_routing::Slot::new(u16::from(number) * 100 + n).unwrap());
    let flags = NodeFlags::MASTER;
    let (slots, replica_of) = (slots.collect(), None);
    let header = Header { flags, config_epoch, slots, replica_of, ..replica_header(voter, voter, 6) };
    handle(
        gossip,
        2,
        ClusterInput::Packet { link, packet: Box::new(Packet { header, body: MessageBody::AuthAck }) },
    );
}

/// Found by the simulator: an elected replica became a voter that had not voted in its own epoch, and gave that vote to
/// another candidate, so two nodes won the same epoch.
#[test]
fn elected_node_votes_for_no_other_candidate_in_its_epoch() {
    let (mut gossip, id) = candidate_fixture();
    handle(&mut gossip, 0, ClusterInput::NodeStarted);
    let force = OperatorCommand::Failover(FailoverMode::Force);
    let out = handle(&mut gossip, 1, ClusterInput::Command { token: 0, command: force });
    let epoch = Epoch(6);
    assert!(
        out.contains(&ClusterAction::Log(ClusterEvent::Election(ElectionEvent::Started(epoch)))),
        "{out:?}"
    );
    let Some(ClusterAction::Persist { nodes_conf: text, must_sync: true }) = out.first() else {
        panic!("{out:?}")
    };
    assert!(text.ends_with("vars currentEpoch 6 lastVoteEpoch 6\n"), "{text}");
    for voter in 1..=3u8 {
        deliver_vote(&mut gossip, id(voter), voter, Epoch(u64::from(voter)));
    }
    assert!(gossip.myself().is_master());
    let late = Header {
        message_flags: MessageFlags::FORCE_ACK,
        slots: SlotSet::new(),
        ..replica_header(id(6), id(1), 6)
    };
    let why = crate::VoteDenial::AlreadyVoted;
    assert_eq!(
        request_vote(&mut gossip, 3, late),
        ElectionEvent::VoteDenied { candidate: id(6), epoch, reason: why }
    );
}

/// If each message named a tenth of all nodes, the traffic would grow with the square of the cluster size.
#[test]
fn ping_in_a_large_cluster_has_ten_random_gossip_entries() {
    let id = |number: usize| NodeId::from_random([number as u8; 20]);
    let mut text = String::from("vars currentEpoch 200 lastVoteEpoch 0\n");
    for number in 1..=200 {
        let (port, flags) = (7000 + number, if number == 1 { "myself,master" } else { "master" });
        text += &format!(
            "{} 127.0.0.1:{port}@{} {flags} - 0 0 {number} connected {number}\n",
            id(number),
            port + 10_000
        );
    }
    let announce = AnnouncedAddress { port: 7001, bus_port: 17001, ..AnnouncedAddress::default() };
    let config = ClusterConfig { announced_address: announce, ..ClusterConfig::default() };
    let mut gossip = Gossip::restore(config, ChaCha8Rng::seed_from_u64(1), &text).unwrap();
    let links: Vec<LinkId> = handle(&mut gossip, 0, ClusterInput::NodeStarted)
        .into_iter()
        .filter_map(|action| if let ClusterAction::Connect { link, .. } = action { Some(link) } else { None })
        .collect();
    assert_eq!(links.len(), 199);
    let told = |actions: Vec<ClusterAction>| {
        actions.into_iter().find_map(|action| match action {
            ClusterAction::Send { packet, .. } => match packet.body {
                MessageBody::Ping(section) => Some(section.entries),
                _ => None,
            },
            _ => None,
        })
    };
    let entries = told(handle(&mut gossip, 1, ClusterInput::Connected { link: links[0] })).unwrap();
    assert_eq!(entries.len(), 10);
    let distinct: BTreeSet<NodeId> = entries.iter().map(|entry| entry.id).collect();
    assert_eq!(distinct.len(), 10);
}
