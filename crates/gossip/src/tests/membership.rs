//! Tests of membership: MEET, address changes, epoch collisions, FORGET and RESET.

use std::time::Duration;

use slot_routing::{ClientTransport, Epoch, Slot};

use super::net::{SimulatedNetwork, config};
use crate::{
    ClusterConfig, ClusterEvent, ClusterInput, OperatorCommand, OperatorReply, SET_SLOT_TIMEOUT, SlotChange,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn member_count(network: &SimulatedNetwork, index: usize) -> usize {
    network.hosts[index].gossip.nodes().filter(|node| node.handshake.is_none()).count()
}

/// The test suites of many clients start one node, assign all slots and wait for `cluster_state:ok`.
#[test]
fn single_node_serves_two_seconds_after_its_start() {
    for waited in [0, 1, 3, 60] {
        let mut net = SimulatedNetwork::new(1, &config(15_000), 1);
        net.run(Duration::from_secs(waited));
        net.run_command(0, OperatorCommand::AddSlots(Slot::all().collect())).unwrap();
        let took = net.run_until("it serves", |net| net.hosts[0].gossip.is_serving());
        assert!(took <= Duration::from_secs(2u64.saturating_sub(waited)), "{took:?} after {waited} s");
    }
}

#[test]
fn meeting_one_node_introduces_a_node_to_all() {
    let mut net = SimulatedNetwork::new(5, &config(2000), 1);
    for index in 1..5 {
        net.meet(0, index);
    }
    let took = net.run_until("all know all", |net| (0..5).all(|index| member_count(net, index) == 5));
    assert!(took < MS(3000), "{took:?}");
    assert!((0..5).all(|index| net.hosts[index].gossip.nodes().all(|node| node.handshake.is_none())));
}

/// Every node tells clients the addresses of the other nodes, so address changes must not wait for the next PING.
#[test]
fn announced_address_changes_spread_at_once() {
    let mut net = SimulatedNetwork::cluster(3, 6, &config(15_000), 2);
    let (id, mut changed) = (net.id(1), net.hosts[1].gossip.config().clone());
    let announce = &mut changed.announced_address;
    (announce.hostname, announce.human_name) = ("one.example".to_owned(), "the-first".to_owned());
    announce.ip = Some("127.0.0.9".parse().unwrap());
    (announce.port, announce.tls_port) = (6380, 6390);
    net.feed(1, ClusterInput::Configure(Box::new(changed.clone())));
    net.run(MS(20));
    for host in &net.hosts {
        let node = host.gossip.node(id).unwrap();
        assert_eq!((node.hostname.as_str(), node.human_name.as_str()), ("one.example", "the-first"));
        assert_eq!((node.address.ip, node.address.port), (changed.announced_address.ip, 6380));
        assert_eq!(node.address.secondary_port, 6390);
    }
}

/// Clients are not redirected to replicas without data, so the topology is republished as soon as a replica has data.
#[test]
fn all_nodes_publish_when_a_replica_gets_data() {
    let mut net = SimulatedNetwork::cluster(2, 3, &config(2000), 11);
    net.run(MS(3000));
    let has_data = |net: &SimulatedNetwork, index: usize| {
        let topology = net.hosts[index].topology.as_ref().expect("it is published");
        topology.replicas_of(net.id(0)).next().map(|replica| replica.offset.0 > 0)
    };
    assert!((0..3).all(|index| has_data(&net, index) == Some(false)));
    net.hosts[2].offset = 5;
    let took = net.run_until("all see it", |net| (0..3).all(|index| has_data(net, index) == Some(true)));
    assert!(took < MS(2000), "{took:?}");
}

#[test]
fn handshake_with_an_unused_address_times_out() {
    let mut net = SimulatedNetwork::new(1, &config(2000), 2);
    net.meet(0, 9);
    assert!(net.hosts[0].gossip.nodes_text(ClientTransport::default()).contains(" handshake - "));
    net.run(MS(2100));
    assert_eq!(net.hosts[0].gossip.nodes().count(), 1);
}

#[test]
fn meeting_itself_or_a_known_node_changes_nothing() {
    let mut net = SimulatedNetwork::new(2, &config(2000), 3);
    net.meet(0, 0);
    net.meet(0, 1);
    net.meet(1, 0);
    net.meet(0, 1);
    net.run(MS(3000));
    assert_eq!((member_count(&net, 0), member_count(&net, 1)), (2, 2));
    net.meet(0, 1);
    net.run(MS(3000));
    assert_eq!(net.hosts[0].gossip.nodes().count(), 2);
}

#[test]
fn masters_with_equal_epochs_get_distinct_ones() {
    let mut net = SimulatedNetwork::new(4, &config(2000), 4);
    for index in 1..4 {
        net.meet(0, index);
    }
    net.run_until("epochs differ", |net| {
        let mut epochs: Vec<Epoch> =
            (0..4).map(|i| net.hosts[i].gossip.node(net.id(i)).unwrap().config_epoch).collect();
        epochs.sort_unstable();
        epochs.dedup();
        epochs.len() == 4 && member_count(net, 0) == 4
    });
    assert!(
        net.hosts
            .iter()
            .any(|host| host.has_logged(|event| matches!(event, ClusterEvent::EpochCollision { .. })))
    );
}

#[test]
fn slot_given_to_a_node_with_a_lower_epoch_gets_the_new_owner_everywhere() {
    let mut net = SimulatedNetwork::cluster(3, 3, &config(2000), 6);
    let set = |change| OperatorCommand::SetSlot {
        slot: Slot::new(0).unwrap(),
        change,
        keys_in_slot: 0,
        timeout: SET_SLOT_TIMEOUT,
    };
    // The other nodes take new epochs that node 1 does not see.
    net.block_links_between(&[1], &[0, 2]);
    for _ in 0..3 {
        for index in [2, 0] {
            net.run_command(index, OperatorCommand::BumpEpoch).unwrap();
            net.run(MS(200));
        }
    }
    // Node 1 therefore takes the slot under an epoch lower than that of the former owner.
    let (old, new) = (net.id(0).to_string(), net.id(1).to_string());
    net.run_command(1, set(SlotChange::Importing { source: old })).unwrap();
    net.run_command(1, set(SlotChange::AssignTo(new.clone()))).unwrap();
    net.run_command(0, set(SlotChange::AssignTo(new))).unwrap();
    let epoch = |index: usize| net.hosts[index].gossip.node(net.id(index)).unwrap().config_epoch;
    assert!(epoch(1) < epoch(0), "{:?} {:?}", epoch(1), epoch(0));
    net.run(MS(100));
    net.heal();
    net.run_until("all agree", |net| {
        net.all_hosts_agree() && (0..3).all(|index| net.owner_of(index, 0) == Some(1))
    });
}

#[test]
fn forget_spreads_to_all_nodes() {
    let mut net = SimulatedNetwork::cluster(3, 4, &config(2000), 5);
    let gone = net.id(3).to_string();
    // Gossip spreads the FORGET to the other nodes.
    net.kill(3);
    assert_eq!(net.run_command(0, OperatorCommand::Forget { node: gone.clone() }), Ok(OperatorReply::Ok));
    net.run_until("all forgot", |net| (0..3).all(|index| member_count(net, index) == 3));
    net.run(MS(5000));
    assert!((0..3).all(|index| member_count(&net, index) == 3));
    assert_eq!(
        net.run_command(1, OperatorCommand::Forget { node: gone }),
        Ok(OperatorReply::Ok),
        "already passed on"
    );
}

#[test]
fn all_nodes_learn_about_a_moved_slot() {
    let mut net = SimulatedNetwork::cluster(3, 6, &config(2000), 6);
    let (slot, from, to) = (Slot::new(100).unwrap(), net.id(0).to_string(), net.id(1).to_string());
    let set = |change| OperatorCommand::SetSlot { slot, change, keys_in_slot: 0, timeout: SET_SLOT_TIMEOUT };
    use crate::SlotChange::{AssignTo, Importing, Migrating};
    net.run_command(1, set(Importing { source: from.clone() })).unwrap();
    net.run_command(0, set(Migrating { target: to.clone() })).unwrap();
    assert!(net.hosts[0].gossip.nodes_text(ClientTransport::default()).contains(&format!("[100->-{to}]")));
    assert!(net.hosts[1].gossip.nodes_text(ClientTransport::default()).contains(&format!("[100-<-{from}]")));
    net.run_command(1, set(AssignTo(to.clone()))).unwrap();
    net.run_until("all agree", |net| {
        net.all_hosts_agree() && (0..6).all(|index| net.owner_of(index, 100) == Some(1))
    });
    net.run_command(0, set(AssignTo(to))).unwrap();
    assert!(!net.hosts[0].gossip.nodes_text(ClientTransport::default()).contains('['));
}

#[test]
fn master_that_gave_its_last_slot_away_follows_the_new_owner() {
    let mut net = SimulatedNetwork::new(2, &config(2000), 7);
    net.run_command(0, OperatorCommand::AddSlots(vec![Slot::new(5).unwrap()])).unwrap();
    net.meet(0, 1);
    net.run_until("both know each other", |net| member_count(net, 0) == 2 && member_count(net, 1) == 2);
    let (slot, to) = (Slot::new(5).unwrap(), net.id(1).to_string());
    let change = crate::SlotChange::AssignTo(to);
    for index in [1, 0] {
        net.run_command(
            index,
            OperatorCommand::SetSlot {
                slot,
                change: change.clone(),
                keys_in_slot: 0,
                timeout: SET_SLOT_TIMEOUT,
            },
        )
        .unwrap();
    }
    net.run_until("the old owner follows", |net| net.hosts[0].replicated_master == Some(net.id(1)));
}

#[test]
fn reset_forgets_all_nodes_and_hard_reset_changes_the_id() {
    let mut net = SimulatedNetwork::cluster(3, 6, &config(2000), 8);
    let before = net.id(5);
    net.run_command(5, OperatorCommand::Reset { is_hard: true, holds_keys: true }).unwrap();
    assert_ne!(net.id(5), before);
    assert_eq!(net.hosts[5].gossip.nodes().count(), 1);
    assert_eq!(net.hosts[5].gossip.current_epoch(), Epoch(0));
    assert_eq!(net.hosts[5].replicated_master, None);
    let old = before.to_string();
    net.run_command(0, OperatorCommand::Forget { node: old }).unwrap();
    net.meet(0, 5);
    net.run_until("it is back under its new name", |net| {
        (0..6).all(|index| member_count(net, index) == 6 && net.hosts[index].gossip.node(net.id(5)).is_some())
    });
}

#[test]
fn detached_replica_becomes_an_empty_master_in_a_new_shard() {
    let mut net = SimulatedNetwork::cluster(3, 6, &config(2000), 10);
    let shard_of = |net: &SimulatedNetwork, index: usize, of: usize| {
        net.hosts[index].gossip.node(net.id(of)).unwrap().shard
    };
    let (before, epoch) = (shard_of(&net, 5, 5), net.hosts[5].gossip.current_epoch());
    assert!(net.hosts[5].replicated_master.is_some());
    net.run_command(5, OperatorCommand::Detach).unwrap();
    assert_eq!(net.hosts[5].replicated_master, None);
    let now = shard_of(&net, 5, 5);
    assert_ne!(now, before);
    net.run_until("all know it as a master of another shard", |net| {
        (0..6).all(|index| {
            let node = net.hosts[index].gossip.node(net.id(5)).unwrap();
            node.is_master() && node.shard == now
        })
    });
    assert_eq!(net.hosts[5].gossip.current_epoch(), epoch);
    // A master keeps its slots and its shard.
    let (owner, shard) = (net.owner_of(0, 0), shard_of(&net, 0, 0));
    net.run_command(0, OperatorCommand::Detach).unwrap();
    assert_eq!((net.owner_of(0, 0), shard_of(&net, 0, 0)), (owner, shard));
}

/// As in Valkey, a node that is reset and met again does not belong to the shard of its former master.
#[test]
fn replica_that_is_reset_has_a_shard_of_its_own() {
    for hard in [false, true] {
        let mut net = SimulatedNetwork::cluster(3, 6, &config(2000), 11);
        let shard_of = |net: &SimulatedNetwork, at: usize, of: usize| {
            net.hosts[at].gossip.node(net.id(of)).unwrap().shard
        };
        let (before, old) = (shard_of(&net, 5, 5), net.id(5).to_string());
        assert_eq!(before, shard_of(&net, 0, 2));
        net.run_command(5, OperatorCommand::Reset { is_hard: hard, holds_keys: true }).unwrap();
        let now = shard_of(&net, 5, 5);
        assert_ne!(now, before);
        for index in 0..5 {
            net.run_command(index, OperatorCommand::Forget { node: old.clone() }).unwrap();
        }
        assert!((0..6).all(|of| of == 5 || shard_of(&net, 0, of) != now));
    }
}

#[test]
fn announced_names_and_shards_reach_all_nodes() {
    let mut base = config(2000);
    base.announced_address.hostname = "ignored.example".to_owned();
    let mut net = SimulatedNetwork::cluster(3, 6, &config(2000), 9);
    let mut announced = net.hosts[2].gossip.config().clone();
    announced.announced_address.hostname = "two.example.org".to_owned();
    net.feed(2, crate::ClusterInput::Configure(Box::new(announced)));
    net.run_until("all know the name", |net| {
        net.hosts.iter().all(|host| {
            host.gossip.nodes_text(ClientTransport::default()).contains(":7002@17002,two.example.org ")
        })
    });
    let shard = |index: usize| net.hosts[0].gossip.node(net.id(index)).unwrap().shard;
    assert_eq!(shard(2), shard(5));
    assert_ne!(shard(2), shard(1));
}

#[test]
fn saved_state_is_restored() {
    let mut net = SimulatedNetwork::cluster(3, 6, &config(2000), 10);
    net.run(MS(1000));
    for index in 0..6 {
        net.kill(index);
    }
    for index in 0..6 {
        net.restart(index);
    }
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    assert_eq!(net.owner_of(5, 16_383), Some(2));
    assert_eq!(net.hosts[4].replicated_master, Some(net.id(1)));
}

#[test]
fn link_that_drops_all_packets_is_replaced() {
    // A firewall drops the packets of one direction only. Node 1 still reaches node 0, so silence detection does not
    // trigger.
    let mut net = SimulatedNetwork::cluster(3, 3, &config(2000), 9);
    net.drop_packets_between(0, 1);
    net.run(MS(5000));
    let node = net.hosts[0].gossip.node(net.id(1)).unwrap();
    let answered = node.contact_times.pong_received_at.unwrap();
    assert!(node.is_healthy() && net.now.since(answered) < MS(1000), "{:?}", node.contact_times);
}

#[test]
fn blacklist_expires_although_meet_is_repeated() {
    // The FORGET and the operator's MEET spread by gossip at the same time. The FORGET must not be extended by the
    // receivers.
    let forgetful = ClusterConfig { blacklist_ttl: Duration::from_secs(3), ..config(1000) };
    let mut net = SimulatedNetwork::cluster(3, 4, &forgetful, 10);
    let node = net.id(3).to_string();
    net.run_command(1, OperatorCommand::Forget { node }).unwrap();
    for _ in 0..16 {
        net.run(MS(250));
        net.meet(1, 3);
        net.meet(2, 3);
    }
    net.run_until("all know all again", |net| (0..4).all(|index| member_count(net, index) == 4));
    net.run(MS(5000));
    assert!((0..4).all(|index| member_count(&net, index) == 4), "{}", net.merged_logs());
}
