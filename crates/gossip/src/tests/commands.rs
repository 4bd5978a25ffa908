//! Replies to operator commands.

use slot_routing::{ClientTransport, Epoch, Slot};

use super::net::{SimulatedNetwork, config};
use crate::{FailoverMode, OperatorCommand, OperatorError, OperatorReply, SET_SLOT_TIMEOUT, SlotChange};

fn slot(number: u16) -> Slot {
    Slot::new(number).unwrap()
}

fn set_slot_with_keys(number: u16, change: SlotChange) -> OperatorCommand {
    OperatorCommand::SetSlot { slot: slot(number), change, keys_in_slot: 3, timeout: SET_SLOT_TIMEOUT }
}

const HOLDS_KEYS_ERROR: &str = "Can't assign hashslot 0 to a different node while I still hold keys";

#[test]
fn command_errors_have_the_texts_of_redis() {
    let mut net = SimulatedNetwork::cluster(3, 6, &config(2000), 1);
    let id = |index: usize| net.id(index).to_string();
    let (me, other, replica, mine) = (id(0), id(1), id(3), 0);
    let nobody = "abc".to_owned();
    let set = set_slot_with_keys;
    let replicate = |node: &str| OperatorCommand::Replicate { node: node.to_owned(), holds_keys: false };
    let forget = |node: &str| OperatorCommand::Forget { node: node.to_owned() };
    use SlotChange::{AssignTo, Importing, Migrating};
    let flush = OperatorCommand::FlushSlots { holds_keys: true };
    let failover = OperatorCommand::Failover(FailoverMode::Graceful);
    // Columns: node, command, expected error without "ERR "
    let about_slots = [
        (0, OperatorCommand::AddSlots(vec![slot(1)]), "Slot 1 is already busy".to_owned()),
        (0, flush, "DB must be empty to perform CLUSTER FLUSHSLOTS.".to_owned()),
        (0, set(mine, Migrating { target: nobody.clone() }), "I don't know about node abc".to_owned()),
        (
            0,
            set(mine, Importing { source: other.clone() }),
            "I'm already the owner of hash slot 0".to_owned(),
        ),
        (
            0,
            set(16_000, Migrating { target: other.clone() }),
            "I'm not the owner of hash slot 16000".to_owned(),
        ),
        (0, set(mine, Migrating { target: replica.clone() }), "Target node is not a master".to_owned()),
        (0, set(mine, Migrating { target: me.clone() }), "Target node is myself".to_owned()),
        (0, set(16_000, Importing { source: me.clone() }), "Target node is myself".to_owned()),
        (0, set(mine, AssignTo(nobody)), "Unknown node abc".to_owned()),
        (0, set(mine, AssignTo(other.clone())), format!("{HOLDS_KEYS_ERROR} for this hash slot.")),
        (3, set(mine, SlotChange::Stable), "Please use SETSLOT only with masters.".to_owned()),
    ];
    let about_nodes = [
        (0, replicate("abc"), "Unknown node abc".to_owned()),
        (0, replicate(&me), "Can't replicate myself".to_owned()),
        (4, replicate(&replica), "I can only replicate a master, not a replica.".to_owned()),
        (
            0,
            replicate(&other),
            "To set a master the node must be empty and without assigned slots.".to_owned(),
        ),
        (0, failover, "You should send CLUSTER FAILOVER to a replica".to_owned()),
        (0, forget("abc"), "Unknown node abc".to_owned()),
        (0, forget(&me), "I tried hard but I can't forget myself...".to_owned()),
        (3, forget(&me), "Can't forget my master!".to_owned()),
        (
            0,
            OperatorCommand::Reset { is_hard: false, holds_keys: true },
            "CLUSTER RESET can't be called with master nodes containing keys".to_owned(),
        ),
        (
            0,
            OperatorCommand::SetConfigEpoch(Epoch(9)),
            "The user can assign a config epoch only when the node does not know any other node.".to_owned(),
        ),
    ];
    for (index, command, text) in about_slots.into_iter().chain(about_nodes) {
        check_refused(&mut net, index, &command, &text);
    }
}

/// Checks that a node refuses a command with the given error text and that no slot changes its owner.
fn check_refused(network: &mut SimulatedNetwork, index: usize, command: &OperatorCommand, text: &str) {
    let before = network.hosts[index].gossip.topology();
    let refusal = network.run_command(index, command.clone()).expect_err("refused");
    assert_eq!(refusal.to_string(), text, "{command:?}");
    let after = network.hosts[index].gossip.topology();
    assert!(Slot::all().all(|slot| before.owner(slot) == after.owner(slot)), "{command:?} changed something");
}

#[test]
fn slots_are_added_and_removed_atomically() {
    let mut net = SimulatedNetwork::new(1, &config(2000), 2);
    let twice = net.run_command(0, OperatorCommand::AddSlots(vec![slot(1), slot(2), slot(1)]));
    assert_eq!(twice, Err(OperatorError::DuplicateSlot(slot(1))));
    assert_eq!(net.owner_of(0, 1), None);
    net.run_command(0, OperatorCommand::AddSlots(vec![slot(1), slot(2)])).unwrap();
    assert_eq!(
        net.run_command(0, OperatorCommand::DelSlots(vec![slot(2), slot(3)])),
        Err(OperatorError::SlotUnassigned(slot(3)))
    );
    assert_eq!(
        net.run_command(0, OperatorCommand::DelSlots(vec![slot(2), slot(2)])),
        Err(OperatorError::DuplicateSlot(slot(2)))
    );
    net.run_command(0, OperatorCommand::DelSlots(vec![slot(2)])).unwrap();
    assert_eq!((net.owner_of(0, 1), net.owner_of(0, 2)), (Some(0), None));
    net.run_command(0, OperatorCommand::FlushSlots { holds_keys: false }).unwrap();
    assert_eq!(net.owner_of(0, 1), None);
}

#[test]
fn config_epoch_is_set_once_and_bumped_only_when_behind() {
    let mut net = SimulatedNetwork::new(1, &config(2000), 3);
    net.run_command(0, OperatorCommand::SetConfigEpoch(Epoch(7))).unwrap();
    assert_eq!(
        net.run_command(0, OperatorCommand::SetConfigEpoch(Epoch(8))),
        Err(OperatorError::EpochAlreadySet)
    );
    assert_eq!(net.run_command(0, OperatorCommand::BumpEpoch), Ok(OperatorReply::EpochUnchanged(Epoch(7))));
    let mut net = SimulatedNetwork::cluster(3, 3, &config(2000), 4);
    assert_eq!(net.run_command(0, OperatorCommand::BumpEpoch), Ok(OperatorReply::EpochBumped(Epoch(4))));
    assert_eq!(net.run_command(0, OperatorCommand::BumpEpoch), Ok(OperatorReply::EpochUnchanged(Epoch(4))));
}

#[test]
fn cluster_nodes_and_info_have_the_format_tools_expect() {
    let mut net = SimulatedNetwork::cluster(3, 6, &config(2000), 5);
    net.run(std::time::Duration::from_millis(950));
    let text = net.hosts[3].gossip.nodes_text(ClientTransport::default());
    assert_eq!(text.lines().count(), 6);
    let line = |index: usize| text.lines().find(|line| line.starts_with(net.id(index).as_str())).unwrap();
    let mine: Vec<&str> = line(3).split(' ').collect();
    assert_eq!(mine[1..5], ["127.0.0.1:7003@17003", "myself,slave", net.id(0).as_str(), "0"]);
    assert_eq!(mine[6..], ["1", "connected"]);
    let master: Vec<&str> = line(1).split(' ').collect();
    assert_eq!(master[1..4], ["127.0.0.1:7001@17001", "master", "-"]);
    assert!(master[5].parse::<i64>().unwrap() > 1_790_000_000_000);
    assert_eq!(master[6..], ["2", "connected", "5461-10921"]);

    let traffic =
        crate::LinkTraffic { bytes_sent: 7, published_bytes_received: 3, ..crate::LinkTraffic::default() };
    let info = net.hosts[3].gossip.view().info_text(&traffic);
    for line in [
        "cluster_state:ok",
        "cluster_slots_assigned:16384",
        "cluster_slots_ok:16384",
        "cluster_slots_pfail:0",
        "cluster_slots_fail:0",
        "cluster_nodes_pfail:0",
        "cluster_nodes_fail:0",
        "cluster_voting_nodes_pfail:0",
        "cluster_voting_nodes_fail:0",
        "cluster_known_nodes:6",
        "cluster_size:3",
        "cluster_my_epoch:1",
        "cluster_stats_bytes_sent:7",
        "cluster_stats_bytes_received:0",
        "cluster_stats_pubsub_bytes_sent:0",
        "cluster_stats_pubsub_bytes_received:3",
        "total_cluster_links_buffer_limit_exceeded:0",
    ] {
        assert!(info.contains(&format!("{line}\r\n")), "{line} in {info}");
    }
    let me = net.id(0).to_string();
    let replicas = net.hosts[2].gossip.replicas_text(&me, ClientTransport::default()).unwrap();
    assert_eq!(replicas.len(), 1);
    assert!(replicas[0].starts_with(net.id(3).as_str()));
    let replica = net.id(3).to_string();
    assert_eq!(
        net.hosts[2].gossip.replicas_text(&replica, ClientTransport::default()),
        Err(OperatorError::NotAMaster)
    );
    assert_eq!(net.hosts[2].gossip.view().count_failure_reports(&me), Ok(0));
    // Each of the other five nodes has one outbound and one inbound link with node 2.
    assert_eq!(net.hosts[2].gossip.link_reports().len(), 10);
}
