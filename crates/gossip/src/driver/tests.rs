use std::net::{IpAddr, Ipv4Addr};

use slot_routing::{Epoch, NodeId, ReplOffset, Slot, SlotSet};

use super::*;
use crate::ReplicaAdmission;
use crate::wire::{Header, MessageBody, MessageFlags, NodeFlags};

const TEST_IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const FIRST_LINK: LinkId = LinkId::Outbound(1);
const OTHER_LINK: LinkId = LinkId::Outbound(2);

fn at_millis(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn my_id() -> NodeId {
    NodeId::from_random([1; 20])
}

fn become_replica_action(is_data_foreign: bool) -> ClusterAction {
    ClusterAction::BecomeReplica { master: my_id(), ip: TEST_IP, port: 1, is_data_foreign }
}

fn reply_action(token: u64) -> ClusterAction {
    ClusterAction::Reply { token, result: Ok(OperatorReply::Ok) }
}

fn persist_action(text: &str, must_sync: bool) -> ClusterAction {
    ClusterAction::Persist { nodes_conf: text.to_owned(), must_sync }
}

fn delete_keys_action() -> ClusterAction {
    ClusterAction::DeleteSlotKeys([Slot::new(7).expect("a slot")].into_iter().collect::<SlotSet>())
}

fn allow_all_replicas_action() -> ClusterAction {
    ClusterAction::RestrictReplicas(ReplicaAdmission::All)
}

/// A packet that the tests identify by its epoch.
fn send_action(link: LinkId, epoch: u64, after_persist: bool) -> ClusterAction {
    let header = Header {
        sender: my_id(),
        flags: NodeFlags::MASTER,
        message_flags: MessageFlags::default(),
        is_serving: true,
        ip: None,
        port: 7000,
        secondary_port: 0,
        bus_port: 17000,
        current_epoch: Epoch(epoch),
        config_epoch: Epoch(1),
        offset: ReplOffset(0),
        slots: SlotSet::default(),
        replica_of: None,
    };
    ClusterAction::Send {
        link,
        packet: Box::new(Packet { header, body: MessageBody::AuthRequest }),
        after_persist,
    }
}

fn step(
    driver: &mut ClusterDriver,
    millis: u64,
    operator_waits: bool,
    actions: Vec<ClusterAction>,
) -> Vec<ClusterAction> {
    let step = StepOutput { is_operator_waiting: operator_waits, actions };
    handle(driver, millis, ClusterDriverEvent::MachineStepped(step))
}

fn handle(driver: &mut ClusterDriver, millis: u64, event: ClusterDriverEvent) -> Vec<ClusterAction> {
    let mut out = Vec::new();
    driver.handle(at_millis(millis), event, &mut out);
    out
}

fn report_deleted(driver: &mut ClusterDriver) -> Vec<ClusterAction> {
    handle(driver, 1, ClusterDriverEvent::DatasetDeleted)
}

/// Reports a complete write. Also returns whether the machine must learn that its state is durable.
fn report_written(driver: &mut ClusterDriver, number: u64) -> (Vec<ClusterAction>, bool) {
    let out = handle(driver, 1, ClusterDriverEvent::Written(number));
    (out, driver.take_persisted())
}

fn run_first_step(actions: Vec<ClusterAction>) -> (ClusterDriver, Vec<ClusterAction>) {
    let mut driver = ClusterDriver::default();
    let out = step(&mut driver, 0, false, actions);
    (driver, out)
}

#[test]
fn role_changes_slot_drops_and_replies_are_executed_last() {
    let (_, out) = run_first_step(vec![
        reply_action(1),
        delete_keys_action(),
        become_replica_action(false),
        allow_all_replicas_action(),
        ClusterAction::ResumeWrites,
        reply_action(2),
    ]);
    assert_eq!(
        out,
        [
            allow_all_replicas_action(),
            ClusterAction::ResumeWrites,
            become_replica_action(false),
            delete_keys_action(),
            reply_action(1),
            reply_action(2)
        ]
    );
}

#[test]
fn reply_waits_for_deletion_and_write() {
    let mut driver = ClusterDriver::default();
    let out = step(
        &mut driver,
        0,
        true,
        vec![reply_action(1), ClusterAction::DeleteDataset, persist_action("reset", true)],
    );
    assert_eq!(out, [persist_action("reset", true), ClusterAction::DeleteDataset]);
    assert_eq!(report_deleted(&mut driver), [], "the disk does not have it");
    assert_eq!(report_written(&mut driver, 1), (vec![reply_action(1)], true));
    assert!(!driver.take_persisted());

    // A deletion without a reply does not release the reply of another command.
    assert_eq!(
        step(&mut driver, 1, true, vec![ClusterAction::DeleteDataset]),
        [ClusterAction::DeleteDataset]
    );
    let again = step(&mut driver, 1, true, vec![reply_action(2), ClusterAction::DeleteDataset]);
    assert_eq!(again, [ClusterAction::DeleteDataset]);
    assert_eq!(report_deleted(&mut driver), []);
    assert_eq!(report_deleted(&mut driver), [reply_action(2)]);
}

#[test]
fn gossiped_changes_are_written_with_a_delay_and_coalesced() {
    let (mut driver, out) = run_first_step(vec![persist_action("one", false)]);
    assert_eq!((out, driver.next_deadline()), (Vec::new(), Some(at_millis(100))));
    assert_eq!(step(&mut driver, 60, false, vec![persist_action("two", false)]), []);
    assert_eq!(handle(&mut driver, 99, ClusterDriverEvent::Deadline), []);
    assert_eq!(driver.next_deadline(), Some(at_millis(100)));
    assert_eq!(handle(&mut driver, 100, ClusterDriverEvent::Deadline), [persist_action("two", false)]);
    assert_eq!(driver.next_deadline(), None);
    assert_eq!(handle(&mut driver, 101, ClusterDriverEvent::Stopping), []);

    // Content that must be durable, or that an operator waits for, replaces the delayed content.
    for (operator_waits, sync) in [(true, false), (false, true)] {
        assert_eq!(step(&mut driver, 200, false, vec![persist_action("three", false)]), []);
        let now = step(&mut driver, 201, operator_waits, vec![persist_action("four", sync)]);
        assert_eq!((now, driver.next_deadline()), (vec![persist_action("four", sync)], None));
    }
    assert_eq!(step(&mut driver, 300, false, vec![persist_action("five", false)]), []);
    assert_eq!(handle(&mut driver, 301, ClusterDriverEvent::Stopping), [persist_action("five", false)]);
}

#[test]
fn votes_wait_for_the_disk_with_later_packets_on_the_same_link() {
    let (mut driver, out) = run_first_step(vec![
        persist_action("vote", true),
        send_action(FIRST_LINK, 1, true),
        send_action(OTHER_LINK, 2, false),
    ]);
    assert_eq!(out, [persist_action("vote", true), send_action(OTHER_LINK, 2, false)]);
    assert_eq!(step(&mut driver, 1, false, vec![send_action(FIRST_LINK, 3, false)]), []);
    let sent = vec![send_action(FIRST_LINK, 1, false), send_action(FIRST_LINK, 3, false)];
    assert_eq!(report_written(&mut driver, 1), (sent, true));

    // Closing a link drops the packets queued for it.
    let writes = vec![
        persist_action("vote", true),
        send_action(FIRST_LINK, 4, true),
        send_action(OTHER_LINK, 5, true),
    ];
    assert_eq!(step(&mut driver, 2, false, writes).len(), 1);
    let close = || ClusterAction::Close { link: FIRST_LINK };
    assert_eq!(step(&mut driver, 3, false, vec![close()]), [close()]);
    assert_eq!(report_written(&mut driver, 2), (vec![send_action(OTHER_LINK, 5, false)], true));
}

#[test]
fn joining_another_shard_reports_the_replication_state_again() {
    let mut driver = ClusterDriver {
        last_replication: ReplicationStatus { offset: ReplOffset(9), ..ReplicationStatus::default() },
        ..ClusterDriver::default()
    };
    step(&mut driver, 0, false, vec![become_replica_action(false)]);
    assert_eq!(driver.last_replication.offset, ReplOffset(9));
    step(&mut driver, 0, false, vec![become_replica_action(true)]);
    assert_eq!(driver.last_replication, ReplicationStatus::default());
}
