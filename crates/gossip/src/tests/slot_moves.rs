//! Tests of slot migrations during failovers.

use std::time::Duration;

use slot_routing::{NodeId, Slot, SlotSet};

use super::net::{SimulatedNetwork, config};
use crate::{
    ClusterConfig, ClusterEvent, ClusterInput, FailoverMode, OperatorCommand, OperatorError, OperatorReply,
    SET_SLOT_TIMEOUT, SlotChange,
};

const MOVED_SLOT: u16 = 0;

fn moved_slot() -> Slot {
    Slot::new(MOVED_SLOT).unwrap()
}

/// Masters 0 to 2 with replicas 3 to 5; node 0 owns slot 0.
fn six_nodes(seed: u64) -> SimulatedNetwork {
    SimulatedNetwork::cluster(3, 6, &config(2000), seed)
}

fn set_slot(network: &mut SimulatedNetwork, index: usize, change: SlotChange) {
    network
        .run_command(
            index,
            OperatorCommand::SetSlot {
                slot: moved_slot(),
                change,
                keys_in_slot: 0,
                timeout: SET_SLOT_TIMEOUT,
            },
        )
        .unwrap();
}

fn start_import(network: &mut SimulatedNetwork, target: usize, source: usize) {
    let from = network.id(source).to_string();
    set_slot(network, target, SlotChange::Importing { source: from });
}

fn import_source(network: &SimulatedNetwork, index: usize) -> Option<NodeId> {
    network.hosts[index].gossip.topology().importing().get(&moved_slot()).copied()
}

#[test]
fn import_is_redirected_to_the_promoted_replica_of_the_source() {
    for seed in 0..10 {
        let mut net = six_nodes(seed);
        start_import(&mut net, 1, 0);
        net.kill(0);
        net.run_until("a replica takes over", |net| net.serving_master_of(MOVED_SLOT) == Some(3));
        net.run(Duration::from_secs(1));
        assert_eq!(net.owner_of(1, MOVED_SLOT), Some(3), "{}", net.merged_logs());
        assert_eq!(import_source(&net, 1), Some(net.id(3)));
        assert!(net.hosts[1].gossip.is_serving(), "{}", net.merged_logs());
        // The old source returns as a replica, which does not affect the migration.
        net.restart(0);
        net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
        assert_eq!(import_source(&net, 1), Some(net.id(3)));
    }
}

#[test]
fn migration_is_redirected_to_the_promoted_replica_of_the_target() {
    let mut net = six_nodes(1);
    start_import(&mut net, 1, 0);
    let to = net.id(1).to_string();
    set_slot(&mut net, 0, SlotChange::Migrating { target: to });
    net.kill(1);
    net.run_until("a replica takes over", |net| net.owner_of(0, 6000) == Some(4));
    let topology = net.hosts[0].gossip.topology();
    assert_eq!(topology.migrating().get(&moved_slot()), Some(&net.id(4)), "{}", net.merged_logs());
    assert_eq!(import_source(&net, 4), Some(net.id(0)), "as its master had it");
}

#[test]
fn promoted_replica_without_import_mark_marks_the_slot_by_its_keys() {
    let mut net = six_nodes(1);
    start_import(&mut net, 1, 0);
    // Replicas running Redis ignore slot changes in the stream.
    net.feed(4, ClusterInput::SlotMarksLoaded(Vec::new()));
    net.kill(1);
    net.run_until("a replica takes over", |net| net.owner_of(0, 6000) == Some(4));
    assert_eq!(import_source(&net, 4), None);
    let slots = SlotSet::from_iter([moved_slot()]);
    net.feed(4, ClusterInput::ForeignKeysFound { slots, at_startup: false });
    assert_eq!(import_source(&net, 4), Some(net.id(0)));
    assert!(net.hosts[4].has_logged(|event| matches!(event, ClusterEvent::KeysInForeignSlot { .. })));
}

/// Starts the migration of slot 0 from node 0 to node 1.
fn start_slot_migration(network: &mut SimulatedNetwork) {
    start_import(network, 1, 0);
    let to = network.id(1).to_string();
    set_slot(network, 0, SlotChange::Migrating { target: to });
}

fn migration_target(network: &SimulatedNetwork, index: usize) -> Option<NodeId> {
    network.hosts[index].gossip.topology().migrating().get(&moved_slot()).copied()
}

fn fail_over_to(network: &mut SimulatedNetwork, replica: usize, slot: u16) {
    network.failover(replica, FailoverMode::Graceful).unwrap();
    network.run_until("a replica takes over", |net| net.serving_master_of(slot) == Some(replica));
    network.run_until("all agree", SimulatedNetwork::all_hosts_agree);
}

/// Regression test: the source of a migration was failed over. The promoted replica did not know about the migration,
/// treated migrated keys as missing and accepted writes for them, and the next MIGRATE overwrote the real values.
#[test]
fn migration_continues_after_failovers_of_both_ends() {
    let mut net = six_nodes(4);
    start_slot_migration(&mut net);
    assert_eq!(
        migration_target(&net, 3),
        Some(net.id(1)),
        "the source's replica knows when SETSLOT is answered"
    );
    assert_eq!(import_source(&net, 4), Some(net.id(0)), "and the target's");
    net.failover(3, FailoverMode::Graceful).unwrap();
    net.run_until("a replica takes over", |net| net.hosts[3].gossip.myself().is_master());
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    assert_eq!(migration_target(&net, 3), Some(net.id(1)), "{}", net.merged_logs());
    assert_eq!(import_source(&net, 1), Some(net.id(3)));
    fail_over_to(&mut net, 4, 6000);
    assert_eq!(import_source(&net, 4), Some(net.id(3)), "{}", net.merged_logs());
    assert_eq!(migration_target(&net, 3), Some(net.id(4)));
    // The old masters have received the marks as replicas and can become masters again.
    fail_over_to(&mut net, 1, 6000);
    net.failover(0, FailoverMode::Graceful).unwrap();
    net.run_until("the source is the master again", |net| net.hosts[0].gossip.myself().is_master());
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    assert_eq!((migration_target(&net, 0), import_source(&net, 1)), (Some(net.id(1)), Some(net.id(0))));
    // After the migration no node has a mark for the slot.
    let to = net.id(1).to_string();
    set_slot(&mut net, 1, SlotChange::AssignTo(to.clone()));
    set_slot(&mut net, 0, SlotChange::AssignTo(to));
    net.run_until("all agree", |net| net.all_hosts_agree() && net.owner_of(5, MOVED_SLOT) == Some(1));
    for index in 0..6 {
        assert_eq!((migration_target(&net, index), import_source(&net, index)), (None, None), "node {index}");
    }
}

/// Regression test: a replica continues replicating after its master was told to forget it. Such a replica still had
/// the mark of a finished migration.
#[test]
fn replica_unknown_to_its_master_still_receives_slot_changes() {
    let mut net = six_nodes(5);
    start_slot_migration(&mut net);
    let node = net.id(3).to_string();
    net.run_command(0, OperatorCommand::Forget { node }).unwrap();
    set_slot(&mut net, 0, SlotChange::Stable);
    net.run(Duration::from_millis(100));
    assert_eq!(migration_target(&net, 3), None, "{}", net.merged_logs());
    let to = net.id(2).to_string();
    set_slot(&mut net, 0, SlotChange::Migrating { target: to });
    net.run(Duration::from_millis(100));
    assert_eq!(migration_target(&net, 3), Some(net.id(2)), "{}", net.merged_logs());
}

#[test]
fn replica_keeps_migration_marks_across_a_restart() {
    let mut net = six_nodes(5);
    start_slot_migration(&mut net);
    for index in [3, 4] {
        net.kill(index);
        net.restart(index);
    }
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    assert_eq!((migration_target(&net, 3), import_source(&net, 4)), (Some(net.id(1)), Some(net.id(0))));
    // A node that joins another shard drops the marks of its former shard.
    let node = net.id(2).to_string();
    net.run_command(3, OperatorCommand::Replicate { node, holds_keys: false }).unwrap();
    assert_eq!(migration_target(&net, 3), None);
}

#[test]
fn setslot_fails_if_a_replica_does_not_acknowledge_it() {
    let mut net = six_nodes(6);
    net.freeze(3);
    let to = net.id(1).to_string();
    let change = SlotChange::Migrating { target: to };
    let set = OperatorCommand::SetSlot {
        slot: moved_slot(),
        change,
        keys_in_slot: 0,
        timeout: Duration::from_millis(300),
    };
    assert_eq!(net.run_command(0, set), Err(OperatorError::NoReplicas));
    assert_eq!(migration_target(&net, 0), None);
    // The replica applied the change when it resumed, and then receives the actual state of the slot.
    net.thaw(3);
    net.run(Duration::from_millis(100));
    assert_eq!(migration_target(&net, 3), None, "{}", net.merged_logs());
}

/// Found by the simulator (cluster of five, seed 113): a master restarted with less data than its replica and answered
/// SETSLOT while it accepted no replicas. The source then gave it the slot, and the promoted replica did not know about
/// the import, so no node served the slot.
#[test]
fn restarted_master_refuses_setslot_until_it_has_compared_its_data() {
    let mut net = six_nodes(8);
    (0..6).for_each(|host| net.hosts[host].offset = 500);
    net.run(Duration::from_millis(500));
    net.kill(1);
    net.restart_with_offset(1, 499);
    let source = net.id(0).to_string();
    let changes = [
        SlotChange::Importing { source: source.clone() },
        SlotChange::Stable,
        SlotChange::AssignTo(source.clone()),
        SlotChange::Migrating { target: source },
    ];
    for change in changes {
        let set = OperatorCommand::SetSlot {
            slot: moved_slot(),
            change,
            keys_in_slot: 0,
            timeout: SET_SLOT_TIMEOUT,
        };
        let token = net.send_command(1, set);
        assert_eq!(net.hosts[1].replies.remove(&token), Some(Err(OperatorError::NoReplicas)));
    }
    net.run_until("its replica takes over", |net| net.serving_master_of(6000) == Some(4));
    start_import(&mut net, 4, 0);
    assert_eq!(import_source(&net, 4), Some(net.id(0)));
}

/// Regression test: an import was cancelled twice. The first SETSLOT failed because a replica was gone, so the import
/// mark was resent to the replicas. The second SETSLOT preceded the resent mark in the stream and was not repeated.
#[test]
fn slot_state_is_resent_after_a_setslot_that_followed_a_failed_one() {
    let mut net = six_nodes(6);
    start_slot_migration(&mut net);
    let set = |timeout| OperatorCommand::SetSlot {
        slot: moved_slot(),
        change: SlotChange::Stable,
        keys_in_slot: 0,
        timeout,
    };
    net.freeze(3);
    let first = net.send_command(0, set(Duration::from_millis(300)));
    net.thaw(3);
    let second = net.send_command(0, set(SET_SLOT_TIMEOUT));
    net.run(Duration::from_secs(1));
    let answers = [first, second].map(|token| net.hosts[0].replies.remove(&token));
    assert_eq!(
        answers,
        [Some(Err(OperatorError::NoReplicas)), Some(Ok(OperatorReply::Ok))],
        "{}",
        net.merged_logs()
    );
    assert_eq!((migration_target(&net, 0), migration_target(&net, 3)), (None, None), "{}", net.merged_logs());
}

/// Found by the simulator (cluster of six, seed 1083): the second of two SETSLOTs was acknowledged and waited for the
/// first. The master was then replaced and loaded the data of its successor, which contained neither change.
#[test]
fn pending_setslots_fail_when_another_masters_snapshot_is_loaded() {
    let mut net = six_nodes(12);
    let to = net.id(1).to_string();
    let set = |slot| OperatorCommand::SetSlot {
        slot,
        change: SlotChange::Migrating { target: to.clone() },
        keys_in_slot: 0,
        timeout: SET_SLOT_TIMEOUT,
    };
    net.freeze(3);
    let first = net.send_command(0, set(Slot::new(7).unwrap()));
    net.thaw(3);
    let second = net.send_command(0, set(moved_slot()));
    net.run(Duration::from_millis(100));
    net.failover(3, FailoverMode::Force).unwrap();
    net.run_until("it is replaced", |net| net.owner_of(0, MOVED_SLOT) == Some(3));
    net.feed(0, ClusterInput::SlotMarksLoaded(Vec::new()));
    net.run(SET_SLOT_TIMEOUT);
    let answers = [first, second].map(|token| net.hosts[0].replies.remove(&token));
    assert_eq!(
        answers,
        [(); 2].map(|()| Some(Err(OperatorError::SetSlotOnReplica))),
        "{}",
        net.merged_logs()
    );
    assert!(net.hosts[0].gossip.topology().migrating().is_empty(), "{}", net.merged_logs());
}

#[test]
fn slot_that_gets_keys_during_setslot_is_not_given_away() {
    let mut net = six_nodes(7);
    net.hosts[0].keys_in_slot = 1;
    let to = net.id(1).to_string();
    let change = SlotChange::AssignTo(to);
    let set =
        OperatorCommand::SetSlot { slot: moved_slot(), change, keys_in_slot: 0, timeout: SET_SLOT_TIMEOUT };
    assert_eq!(net.run_command(0, set), Err(OperatorError::SlotHasKeys(moved_slot())));
    net.run(Duration::from_secs(1));
    assert_eq!(net.owner_of(0, MOVED_SLOT), Some(0));
    assert_eq!(net.owner_of(3, MOVED_SLOT), Some(0), "the replica gets the actual state again");
}

/// The stream must not grow after the master has sent its final offset.
#[test]
fn setslot_during_a_failover_waits_for_its_end() {
    let mut net = six_nodes(8);
    net.failover(3, FailoverMode::Graceful).unwrap();
    net.run_until("writes are held back", |net| net.hosts[0].are_writes_paused);
    let to = net.id(1).to_string();
    let change = SlotChange::Migrating { target: to };
    let set =
        OperatorCommand::SetSlot { slot: moved_slot(), change, keys_in_slot: 0, timeout: SET_SLOT_TIMEOUT };
    assert_eq!(net.run_command(0, set.clone()), Err(OperatorError::SetSlotOnReplica));
    assert_eq!(migration_target(&net, 3), None);
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    net.run_command(3, set).unwrap();
    assert_eq!(migration_target(&net, 0), Some(net.id(1)));
}

#[test]
fn loaded_snapshot_replaces_all_migration_marks() {
    let mut net = six_nodes(9);
    start_slot_migration(&mut net);
    let (other, to) = (Slot::new(7).unwrap(), net.id(2));
    let change = SlotChange::Migrating { target: to.to_string() };
    net.feed(3, ClusterInput::SlotMarksLoaded(vec![(other, change)]));
    let topology = net.hosts[3].gossip.topology();
    assert_eq!(topology.migrating().iter().collect::<Vec<_>>(), [(&other, &to)]);
    let nobody = SlotChange::AssignTo("f".repeat(40));
    net.feed(3, ClusterInput::SlotChanged { slot: other, change: nobody });
    assert!(net.hosts[3].has_logged(|event| matches!(event, ClusterEvent::SlotOfUnknownNode { .. })));
    assert_eq!(net.hosts[3].gossip.topology().migrating().len(), 1, "it stays as it was");
}

/// Found by the simulator (cluster of seven, seed 2242): a replica that had been paused read in its stream that a slot
/// belonged to its master, which had been replaced in the meantime. The replica then assigned the slot to its old
/// master, by now a replica, with a newer epoch than the actual owner's.
#[test]
fn late_stream_event_assigns_no_slot_to_a_demoted_node() {
    let mut net = six_nodes(10);
    net.failover(3, FailoverMode::Graceful).unwrap();
    net.run_until("it is replaced", |net| net.serving_master_of(0) == Some(3) && net.all_hosts_agree());
    let late = SlotChange::AssignTo(net.id(0).to_string());
    net.feed(4, ClusterInput::SlotChanged { slot: Slot::new(6000).unwrap(), change: late });
    assert_eq!(net.owner_of(4, 6000), Some(1));
}

#[test]
fn import_ends_when_another_node_claims_the_slot() {
    let mut net = six_nodes(2);
    start_import(&mut net, 1, 0);
    let taker = net.id(2).to_string();
    set_slot(&mut net, 2, SlotChange::AssignTo(taker));
    net.run_until("all agree", |net| net.owner_of(1, MOVED_SLOT) == Some(2) && net.all_hosts_agree());
    assert_eq!(import_source(&net, 1), None);
}

#[test]
fn master_marks_foreign_slots_with_keys_as_importing() {
    let mut net = six_nodes(3);
    let slots = SlotSet::from_iter([moved_slot(), Slot::new(6000).unwrap()]);
    // A replica has its master's keys, so the report of foreign keys is ignored.
    net.feed(4, ClusterInput::ForeignKeysFound { slots: slots.clone(), at_startup: true });
    assert_eq!(import_source(&net, 4), None);
    net.feed(1, ClusterInput::ForeignKeysFound { slots: slots.clone(), at_startup: false });
    assert_eq!(import_source(&net, 1), Some(net.id(0)));
    assert_eq!(net.hosts[1].gossip.topology().importing().len(), 1);
    // As in Redis, an unassigned slot with keys is claimed only at startup.
    for index in 0..3 {
        net.run_command(index, OperatorCommand::DelSlots(vec![moved_slot()])).unwrap();
    }
    net.feed(2, ClusterInput::ForeignKeysFound { slots: slots.clone(), at_startup: false });
    assert_eq!(net.owner_of(2, MOVED_SLOT), None);
    net.feed(2, ClusterInput::ForeignKeysFound { slots, at_startup: true });
    assert_eq!(net.owner_of(2, MOVED_SLOT), Some(2));
}

#[test]
fn atomically_imported_slots_are_claimed_at_once() {
    let mut net = six_nodes(3);
    let slots: SlotSet = (0..100).filter_map(Slot::new).collect();
    let claim = |from: NodeId| OperatorCommand::ClaimSlots { slots: slots.clone(), source: from };
    let (source, other) = (net.id(0), net.id(2));
    assert_eq!(
        net.run_command(1, claim(other)),
        Err(OperatorError::SourceIsNotOwner),
        "{}",
        net.merged_logs()
    );
    assert_eq!(net.run_command(4, claim(source)), Err(OperatorError::ClaimOnReplica));
    assert_eq!(net.run_command(1, claim(source)), Ok(OperatorReply::Ok));
    net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
    for host in [0, 2, 3, 5] {
        assert_eq!(
            (net.owner_of(host, 99), net.owner_of(host, 100)),
            (Some(1), Some(0)),
            "{}",
            net.merged_logs()
        );
    }
    assert!(net.hosts[0].deleted_slot_count >= 100, "the source deletes what it has");
    assert_eq!(net.run_command(1, claim(source)), Err(OperatorError::SourceIsNotOwner), "they are its own");
}

/// Regression test: both ends of a migration kept redirecting clients to each other.
#[test]
fn importing_node_claims_a_slot_that_its_source_gave_away() {
    for seed in 0..5 {
        let mut net = six_nodes(seed);
        start_import(&mut net, 1, 0);
        let to = net.id(1).to_string();
        set_slot(&mut net, 0, SlotChange::Migrating { target: to.clone() });
        set_slot(&mut net, 0, SlotChange::AssignTo(to));
        let took = net.run_until("the target claims it", |net| net.serving_master_of(MOVED_SLOT) == Some(1));
        assert!(took < Duration::from_secs(1), "{took:?}\n{}", net.merged_logs());
        net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
        assert_eq!((net.owner_of(0, MOVED_SLOT), import_source(&net, 1)), (Some(1), None));
        // The mark is removed on the replica of the importing node as well.
        assert_eq!(import_source(&net, 4), None);
    }
}

/// Regression test: the source gave the slot away and was then replaced by a replica that knew the new owner. The
/// importing node saw no owner of the slot and waited forever.
#[test]
fn importing_node_claims_a_slot_whose_source_was_failed_over_after_giving_it_away() {
    for seed in 0..5 {
        let mut net = six_nodes(seed);
        start_import(&mut net, 1, 0);
        let to = net.id(1).to_string();
        set_slot(&mut net, 0, SlotChange::Migrating { target: to.clone() });
        net.block_links_between(&[0], &[1]);
        set_slot(&mut net, 0, SlotChange::AssignTo(to));
        net.failover(3, FailoverMode::Force).unwrap();
        net.run_until("a replica takes over", |net| net.hosts[3].gossip.myself().is_master());
        net.heal();
        net.run_until("the target claims it", |net| net.serving_master_of(MOVED_SLOT) == Some(1));
        net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
        assert_eq!((net.owner_of(3, MOVED_SLOT), import_source(&net, 1)), (Some(1), None));
    }
}

/// An outdated importing mark must not take the slot from its new owner.
#[test]
fn stale_import_does_not_take_a_slot_from_its_new_owner() {
    for seed in 0..5 {
        let mut net = six_nodes(seed);
        start_import(&mut net, 1, 0);
        let to = net.id(2).to_string();
        net.block_links_between(&[1], &[2]);
        set_slot(&mut net, 2, SlotChange::AssignTo(to.clone()));
        set_slot(&mut net, 0, SlotChange::AssignTo(to));
        net.run(Duration::from_secs(1));
        assert_eq!(net.serving_master_of(MOVED_SLOT), Some(2), "{}", net.merged_logs());
        net.heal();
        net.run_until("all agree", SimulatedNetwork::all_hosts_agree);
        assert_eq!((net.owner_of(1, MOVED_SLOT), import_source(&net, 1)), (Some(2), None));
    }
}

#[test]
fn master_that_loses_its_last_slot_logs_that_it_is_empty() {
    let config = ClusterConfig { allow_replica_migration: false, ..config(2000) };
    let mut net = SimulatedNetwork::cluster(3, 3, &config, 1);
    let from = net.id(0);
    let gossip = &net.hosts[0].gossip;
    let slots: SlotSet = Slot::all().filter(|slot| gossip.slot_owner(*slot) == Some(from)).collect();
    net.run_command(2, OperatorCommand::ClaimSlots { slots, source: from }).unwrap();
    let says = |event: &ClusterEvent| event.to_string().ends_with("I am now an empty primary.");
    net.run_until("the old owner says so", |net| net.hosts[0].has_logged(says));
    assert!(net.hosts[0].gossip.myself().is_master());
}
