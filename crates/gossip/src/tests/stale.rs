//! Tests of outdated packets, and of the epochs in replicas' headers.

use std::time::Duration;

use clock::{Instant, Millis};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use slot_routing::{Epoch, NodeId, ReplOffset, Slot, SlotSet};

use super::net::LOCALHOST;
use crate::node::Role;
use crate::wire::{GossipSection, Header, MessageBody, MessageFlags, NodeFlags, Packet};
use crate::{ClusterConfig, ClusterInput, FailoverMode, Gossip, LinkId, OperatorCommand};

fn id(byte: u8) -> NodeId {
    NodeId::from_random([byte; 20])
}

fn slots(first: u16, last: u16) -> SlotSet {
    (first..=last).filter_map(Slot::new).collect()
}

/// Restores a node from the given lines of `nodes.conf` and opens an inbound link to it.
fn restore_node(lines: &str) -> Gossip {
    let config = ClusterConfig { node_timeout: Duration::from_secs(2), ..ClusterConfig::default() };
    let mut gossip = Gossip::restore(config, ChaCha8Rng::seed_from_u64(1), lines).unwrap();
    let accepted =
        ClusterInput::LinkAccepted { link: LinkId::Inbound(0), peer_ip: LOCALHOST, local_ip: LOCALHOST };
    for input in [ClusterInput::NodeStarted, accepted] {
        gossip.handle(Instant::from_millis(0), Millis(0), input, &mut Vec::new());
    }
    gossip
}

/// Delivers a PING of `sender` with the given epochs, master and slots.
fn receive_ping(
    gossip: &mut Gossip,
    sender: u8,
    current_epoch: u64,
    claim_epoch: u64,
    master: Option<u8>,
    claimed_slots: &SlotSet,
) {
    let header = Header {
        sender: id(sender),
        flags: if master.is_some() { NodeFlags::REPLICA } else { NodeFlags::MASTER },
        message_flags: MessageFlags::default(),
        is_serving: true,
        ip: None,
        port: 7000 + u16::from(sender),
        secondary_port: 0,
        bus_port: 17000 + u16::from(sender),
        current_epoch: Epoch(current_epoch),
        config_epoch: Epoch(claim_epoch),
        offset: ReplOffset(10),
        slots: claimed_slots.clone(),
        replica_of: master.map(id),
    };
    let packet = Box::new(Packet { header, body: MessageBody::Ping(GossipSection::default()) });
    let input = ClusterInput::Packet { link: LinkId::Inbound(0), packet };
    gossip.handle(Instant::from_millis(1), Millis(1), input, &mut Vec::new());
}

/// Found by the simulator (cluster, seed 52307): node 2 replaced node 1, which was paused. Node 1 resumed, followed
/// node 2, and then read from another link an older packet that node 2 had sent as a replica of node 1. Node 1 again
/// considered node 2 a replica without slots. Node 2 died before its next message, and node 1 did not start an election
/// because node 2 seemed to have no slots to take over.
#[test]
fn old_packet_does_not_demote_a_promoted_master() {
    let (one, two, three) = (id(1), id(2), id(3));
    let mut gossip = restore_node(&format!(
        "{one} 127.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-99\n\
         {two} 127.0.0.1:7002@17002 slave {one} 0 0 1 connected\n\
         {three} 127.0.0.1:7003@17003 master - 0 0 3 connected 100-199\n\
         vars currentEpoch 3 lastVoteEpoch 0\n"
    ));
    receive_ping(&mut gossip, 2, 4, 4, None, &slots(0, 99));
    assert_eq!(gossip.myself().role, Role::Replica(Some(two)));
    receive_ping(&mut gossip, 2, 3, 1, Some(1), &slots(0, 99));
    assert_eq!(gossip.node(two).unwrap().role, Role::Master);
    assert_eq!(gossip.slot_owner(Slot::new(0).unwrap()), Some(two));
    // When the node becomes a replica, it has seen the epoch of the node that replaced it.
    receive_ping(&mut gossip, 2, 5, 5, Some(3), &slots(100, 199));
    assert_eq!(gossip.node(two).unwrap().role, Role::Replica(Some(three)));
}

/// Found by the simulator (cluster, seed 50419): node 3 became a replica of another master with epoch 6 and announced
/// this epoch while this node still recorded node 2 as the replica of node 3. The line of node 2 in `nodes.conf` then
/// got epoch 6. After a power failure this epoch was read as node 2's own, and its real epoch 5 was ignored from then
/// on.
#[test]
fn replica_has_no_config_epoch_of_its_own() {
    let (one, two, three, four) = (id(1), id(2), id(3), id(4));
    let mut gossip = restore_node(&format!(
        "{one} 127.0.0.1:7001@17001 myself,master - 0 0 1 connected 100-199\n\
         {two} 127.0.0.1:7002@17002 slave {three} 0 0 4 connected\n\
         {three} 127.0.0.1:7003@17003 master - 0 0 4 connected 0-98\n\
         {four} 127.0.0.1:7004@17004 master - 0 0 6 connected 99\n\
         vars currentEpoch 6 lastVoteEpoch 0\n"
    ));
    receive_ping(&mut gossip, 3, 6, 6, Some(4), &slots(99, 99));
    assert_eq!(gossip.node(three).unwrap().config_epoch, Epoch(4), "its last claim");
    let mut gossip = restore_node(&gossip.nodes_conf());
    receive_ping(&mut gossip, 2, 6, 5, None, &slots(0, 98));
    assert_eq!(gossip.node(two).unwrap().config_epoch, Epoch(5));
    assert_eq!(gossip.slot_owner(Slot::new(0).unwrap()), Some(two));
}

/// If a replica adopted its master's epoch as its own, it would claim slots under that epoch, and other nodes would not
/// prefer its claim to that of the failed master.
#[test]
fn restarted_replica_takes_over_under_a_new_epoch() {
    let (one, two) = (id(1), id(2));
    let mut gossip = restore_node(&format!(
        "{one} 127.0.0.1:7001@17001 myself,slave {two} 0 0 4 connected\n\
         {two} 127.0.0.1:7002@17002 master,fail - 0 0 4 connected 0-16383\n\
         vars currentEpoch 4 lastVoteEpoch 0\n"
    ));
    let input =
        ClusterInput::Command { token: 1, command: OperatorCommand::Failover(FailoverMode::Takeover) };
    gossip.handle(Instant::from_millis(1), Millis(1), input, &mut Vec::new());
    assert_eq!((gossip.myself().role, gossip.myself().config_epoch), (Role::Master, Epoch(5)));
}
