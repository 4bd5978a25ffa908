//! Replica migration to orphaned masters.

use std::time::Duration;

use super::net::{SimulatedNetwork, config};
use crate::{ClusterConfig, OperatorCommand, SET_SLOT_TIMEOUT, SlotChange};
use slot_routing::{NodeId, Slot};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Three masters, of which node 0 has the replicas 3, 6 and 7, node 1 has 4, and node 2 has 5.
fn uneven_cluster(config: &ClusterConfig, seed: u64) -> SimulatedNetwork {
    let mut net = SimulatedNetwork::cluster(3, 8, config, seed);
    let node = net.id(0).to_string();
    net.run_command(7, OperatorCommand::Replicate { node, holds_keys: false }).unwrap();
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    net
}

/// The replicas of `master` in the view of node 2.
fn replicas_of(network: &SimulatedNetwork, master: usize) -> Vec<usize> {
    let id = network.id(master);
    let of = network.hosts[2].gossip.nodes().filter(|node| node.master() == Some(id));
    let mut indices: Vec<usize> = of.map(|node| network.index_of(node.id)).collect();
    indices.sort_unstable();
    indices
}

#[test]
fn spare_replica_with_the_smallest_id_moves_to_an_orphan_after_five_seconds() {
    for seed in 0..3 {
        let mut net = uneven_cluster(&config(2000), seed);
        let first: NodeId = [3, 6, 7].map(|index| net.id(index)).into_iter().min().unwrap();
        let first = net.index_of(first);
        net.kill(4);
        let took =
            net.run_until("a replica migrates", |net| net.hosts[first].replicated_master == Some(net.id(1)));
        assert!(took >= MS(5000) && took < MS(6000), "{took:?}\n{}", net.merged_logs());
        net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
        net.run(MS(7000));
        let mut expected = vec![4, first];
        expected.sort_unstable();
        assert_eq!(replicas_of(&net, 1), expected);
        assert_eq!(replicas_of(&net, 0).len(), 2, "no other replica migrates");
    }
}

#[test]
fn replicas_do_not_migrate_below_the_barrier_or_when_disabled() {
    let off = ClusterConfig { allow_replica_migration: false, ..config(2000) };
    let barrier = ClusterConfig { migration_barrier: 3, ..config(2000) };
    for (config, what) in [(off, "off"), (barrier, "barrier")] {
        let mut net = uneven_cluster(&config, 1);
        net.kill(4);
        net.run(MS(15_000));
        assert_eq!(replicas_of(&net, 0).len(), 3, "{what}");
    }
}

#[test]
fn promoted_replica_gets_a_migrating_replica() {
    let mut net = uneven_cluster(&config(2000), 2);
    net.kill(1);
    net.run_until("node 4 takes over", |net| net.serving_master_of(8000) == Some(4));
    net.run_until("a replica goes there", |net| !replicas_of(net, 4).is_empty());
    assert_eq!(replicas_of(&net, 0).len(), 2);
}

#[test]
fn master_that_never_had_replicas_is_no_orphan() {
    let mut net = SimulatedNetwork::cluster(3, 5, &config(2000), 3);
    // Nodes 3 and 4 replicate nodes 0 and 1; node 2 has no replica. Both move to node 0.
    let node = net.id(0).to_string();
    net.run_command(4, OperatorCommand::Replicate { node, holds_keys: false }).unwrap();
    net.run(MS(15_000));
    // Node 1 is no orphan, because its only replica was moved on purpose.
    assert_eq!(
        (replicas_of(&net, 0), replicas_of(&net, 1), replicas_of(&net, 2)),
        (vec![3, 4], vec![], vec![])
    );
}

/// `redis-cli --cluster rebalance --cluster-weight ID=0` announces the new owner of the last slot first to the target,
/// then to the source, which may know it already, and then to all remaining nodes.
#[test]
fn emptied_master_becomes_a_replica_and_rejects_a_late_setslot() {
    let mut net = SimulatedNetwork::new(2, &config(2000), 4);
    let slots = Slot::all().collect::<Vec<_>>();
    net.run_command(0, OperatorCommand::AddSlots(slots[1..].to_vec())).unwrap();
    net.run_command(1, OperatorCommand::AddSlots(slots[..1].to_vec())).unwrap();
    for (index, epoch) in [(0, 1), (1, 2)] {
        net.run_command(index, OperatorCommand::SetConfigEpoch(slot_routing::Epoch(epoch))).unwrap();
    }
    net.meet(0, 1);
    net.run_until("all serve", SimulatedNetwork::all_hosts_agree);
    let (target, source) = (net.id(0).to_string(), net.id(1).to_string());
    let set = |change| OperatorCommand::SetSlot {
        slot: slots[0],
        change,
        keys_in_slot: 0,
        timeout: SET_SLOT_TIMEOUT,
    };
    net.run_command(0, set(SlotChange::Importing { source })).unwrap();
    net.run_command(1, set(SlotChange::Migrating { target: target.clone() })).unwrap();
    net.run_command(0, set(SlotChange::AssignTo(target.clone()))).unwrap();
    net.run_until("the source becomes a replica", |net| net.hosts[1].replicated_master == Some(net.id(0)));
    let late = net.run_command(1, set(SlotChange::AssignTo(target))).unwrap_err();
    assert_eq!(late.to_string(), "Please use SETSLOT only with masters.");
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
}
