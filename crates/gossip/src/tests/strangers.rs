//! Tests of packets from unknown senders. Anyone who can reach the bus port may send them.

use std::time::Duration;

use clock::{Instant, Millis};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use slot_routing::{Epoch, NodeId, ReplOffset, SlotSet};

use super::net::{LOCALHOST, SimulatedNetwork, config};
use crate::wire::{
    ConfigUpdate, GossipEntry, GossipSection, Header, MessageBody, MessageFlags, NodeFlags, Packet,
};
use crate::{ClusterAction, ClusterConfig, ClusterEvent, ClusterInput, FailoverMode, Gossip, LinkId};

fn id(byte: u8) -> NodeId {
    NodeId::from_random([byte; 20])
}

/// Restores a master that owns all slots, knows one other node, and has one inbound link.
fn restore_master() -> Gossip {
    let text = format!(
        "{} 127.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-16383\n\
         {} 127.0.0.1:7002@17002 master - 0 0 2 connected\n\
         vars currentEpoch 5 lastVoteEpoch 4\n",
        id(1),
        id(2)
    );
    let config = ClusterConfig { node_timeout: Duration::from_secs(2), ..ClusterConfig::default() };
    let mut gossip = Gossip::restore(config, ChaCha8Rng::seed_from_u64(1), &text).unwrap();
    handle(&mut gossip, 0, ClusterInput::NodeStarted);
    accept_link(&mut gossip, 0, 0);
    gossip
}

fn handle(gossip: &mut Gossip, ms: u64, input: ClusterInput) -> Vec<ClusterAction> {
    let mut out = Vec::new();
    gossip.handle(Instant::from_millis(ms), Millis(0), input, &mut out);
    out
}

fn accept_link(gossip: &mut Gossip, ms: u64, number: u64) -> Vec<ClusterAction> {
    handle(
        gossip,
        ms,
        ClusterInput::LinkAccepted { link: LinkId::Inbound(number), peer_ip: LOCALHOST, local_ip: LOCALHOST },
    )
}

fn test_header(sender: u8, current_epoch: u64, claim_epoch: u64) -> Header {
    Header {
        sender: id(sender),
        flags: NodeFlags::MASTER,
        message_flags: MessageFlags::default(),
        is_serving: true,
        ip: None,
        port: 7000 + u16::from(sender),
        secondary_port: 0,
        bus_port: 17000 + u16::from(sender),
        current_epoch: Epoch(current_epoch),
        config_epoch: Epoch(claim_epoch),
        offset: ReplOffset(10),
        slots: SlotSet::new(),
        replica_of: None,
    }
}

fn receive_packet(gossip: &mut Gossip, ms: u64, header: Header, body: MessageBody) -> Vec<ClusterAction> {
    let packet = Box::new(Packet { header, body });
    handle(gossip, ms, ClusterInput::Packet { link: LinkId::Inbound(0), packet })
}

#[test]
fn meet_from_unknown_sender_adds_no_gossiped_nodes() {
    let mut gossip = restore_master();
    let entry = |number: u16| GossipEntry {
        id: NodeId::from_random([(number % 251) as u8, (number / 251) as u8].repeat(10).try_into().unwrap()),
        ping_sent: 0,
        pong_received: 0,
        ip: Some(LOCALHOST),
        port: number,
        bus_port: 10_000 + number,
        flags: NodeFlags::MASTER,
        secondary_port: 0,
    };
    let section = GossipSection { entries: (1000..3000).map(entry).collect(), extensions: Vec::new() };
    receive_packet(&mut gossip, 1, test_header(9, 5, 0), MessageBody::Meet(section));
    // Only the unknown sender itself was added, in handshake.
    assert_eq!(gossip.nodes().count(), 3);
    assert_eq!(gossip.nodes().filter(|node| node.handshake.is_some()).count(), 1);
}

#[test]
fn impossible_epochs_are_rejected() {
    let mut gossip = restore_master();
    let last = (1 << 62) - 1;
    let update = ConfigUpdate { config_epoch: Epoch(last), id: id(2), slots: SlotSet::new() };
    // Packets that name a known node as sender, with a forged current epoch, claim epoch, or UPDATE epoch.
    let forged = [
        (test_header(2, last, 2), MessageBody::Ping(GossipSection::default())),
        (test_header(2, last, last), MessageBody::Fail(id(2))),
        (test_header(2, 5, last), MessageBody::Ping(GossipSection::default())),
        (test_header(2, 5, 2), MessageBody::Update(update)),
    ];
    let mut said = 0;
    for (header, body) in forged {
        let out = receive_packet(&mut gossip, 1, header, body);
        said += out
            .iter()
            .filter(|action| matches!(action, ClusterAction::Log(ClusterEvent::ImpossibleEpoch { .. })))
            .count();
        assert!(!out.iter().any(|action| matches!(action, ClusterAction::Send { .. })), "{out:?}");
    }
    assert_eq!(said, 1, "once a link");
    assert_eq!(gossip.current_epoch(), Epoch(5));
    assert_eq!(gossip.node(id(2)).unwrap().config_epoch, Epoch(2));
    // Later packets from the named node are accepted, even with a large but possible epoch lead after a long absence.
    receive_packet(
        &mut gossip,
        2,
        test_header(2, 1_000_000, 900_000),
        MessageBody::Ping(GossipSection::default()),
    );
    assert_eq!(gossip.current_epoch(), Epoch(1_000_000));
    assert_eq!(gossip.node(id(2)).unwrap().config_epoch, Epoch(900_000));
}

#[test]
fn elections_work_after_a_forged_maximum_epoch() {
    let mut net = SimulatedNetwork::cluster(3, 6, &config(2000), 7);
    let header = Header { current_epoch: Epoch((1 << 62) - 1), ..test_header(0, 0, 0) };
    let header = Header { sender: net.id(1), ..header };
    let packet = Box::new(Packet { header, body: MessageBody::Ping(GossipSection::default()) });
    let link = LinkId::Inbound(u64::MAX);
    for index in 0..6 {
        net.feed(index, ClusterInput::LinkAccepted { link, peer_ip: LOCALHOST, local_ip: LOCALHOST });
        net.feed(index, ClusterInput::Packet { link, packet: packet.clone() });
    }
    net.failover(3, FailoverMode::Force).unwrap();
    net.run_until("a replica takes over", |net| net.serving_master_of(0) == Some(3));
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
}

#[test]
fn silent_unknown_links_are_evicted() {
    let mut gossip = restore_master();
    receive_packet(&mut gossip, 1, test_header(2, 5, 2), MessageBody::Ping(GossipSection::default()));
    let close = |number| ClusterAction::Close { link: LinkId::Inbound(number) };
    for number in 1..4096 {
        assert!(
            !accept_link(&mut gossip, 1 + number / 100, number)
                .iter()
                .any(|out| matches!(out, ClusterAction::Close { .. }))
        );
    }
    // At the limit, the longest-silent unknown peer is evicted, but never a known node.
    assert!(accept_link(&mut gossip, 50, 5000).contains(&close(1)));
    assert!(accept_link(&mut gossip, 50, 5001).contains(&close(2)));
    // The remaining unknown peers time out, and no timer remains.
    let mut closed = Vec::new();
    for ms in (100..12_000).step_by(100) {
        closed.extend(handle(&mut gossip, ms, ClusterInput::Deadline).into_iter().filter_map(
            |out| match out {
                ClusterAction::Close { link: LinkId::Inbound(number) } => Some(number),
                _ => None,
            },
        ));
    }
    assert_eq!(closed.len(), 4095, "all but the one of a known node");
    assert!(!closed.contains(&0));
}
