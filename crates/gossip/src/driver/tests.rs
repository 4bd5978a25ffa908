use std::net::{IpAddr, Ipv4Addr};

use slot_routing::{Epoch, NodeId, ReplOffset, Slot, SlotSet};

use super::*;
use crate::ReplicaAdmission;
use crate::wire::{Header, MessageBody, MessageFlags, NodeFlags};

const IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LINK: LinkId = LinkId::Out(1);
const OTHER: LinkId = LinkId::Out(2);

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn me() -> NodeId {
    NodeId::from_random([1; 20])
}

fn follow(foreign: bool) -> ClusterAction {
    ClusterAction::BecomeReplica { master: me(), ip: IP, port: 1, foreign }
}

fn answer(token: u64) -> ClusterAction {
    ClusterAction::Reply { token, result: Ok(OperatorReply::Ok) }
}

fn persist(text: &str, sync: bool) -> ClusterAction {
    ClusterAction::Persist { text: text.to_owned(), sync }
}

fn drop_slot() -> ClusterAction {
    ClusterAction::DropSlots([Slot::new(7).expect("a slot")].into_iter().collect::<SlotSet>())
}

fn replica_count_action() -> ClusterAction {
    ClusterAction::AllowReplicas(ReplicaAdmission::All)
}

/// A packet that the tests identify by its epoch.
fn send(link: LinkId, epoch: u64, after_persist: bool) -> ClusterAction {
    let header = Header {
        sender: me(),
        flags: NodeFlags::MASTER,
        message_flags: MessageFlags::default(),
        serving: true,
        ip: None,
        port: 7000,
        other_port: 0,
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
    driver.order_actions(StepOutput { now: at(millis), operator_waits, actions })
}

fn later(actions: Vec<ClusterAction>) -> (ClusterDriver, Vec<ClusterAction>) {
    let mut driver = ClusterDriver::default();
    let out = step(&mut driver, 0, false, actions);
    (driver, out)
}

#[test]
fn role_changes_slot_drops_and_replies_are_executed_last() {
    let (_, out) = later(vec![
        answer(1),
        drop_slot(),
        follow(false),
        replica_count_action(),
        ClusterAction::ResumeWrites,
        answer(2),
    ]);
    assert_eq!(
        out,
        [
            replica_count_action(),
            ClusterAction::ResumeWrites,
            follow(false),
            drop_slot(),
            answer(1),
            answer(2)
        ]
    );
}

#[test]
fn reply_waits_for_deletion_and_write() {
    let mut driver = ClusterDriver::default();
    let out =
        step(&mut driver, 0, true, vec![answer(1), ClusterAction::DropEverything, persist("reset", true)]);
    assert_eq!(out, [persist("reset", true), ClusterAction::DropEverything]);
    assert_eq!(driver.note_emptied(), None, "the disk does not have it");
    assert_eq!(driver.note_written(1), (vec![answer(1)], true));

    // A deletion without a reply does not release the reply of another command.
    assert_eq!(
        step(&mut driver, 1, true, vec![ClusterAction::DropEverything]),
        [ClusterAction::DropEverything]
    );
    let again = step(&mut driver, 1, true, vec![answer(2), ClusterAction::DropEverything]);
    assert_eq!(again, [ClusterAction::DropEverything]);
    assert_eq!((driver.note_emptied(), driver.note_emptied()), (None, Some(answer(2))));
}

#[test]
fn gossiped_changes_are_written_with_a_delay_and_coalesced() {
    let (mut driver, out) = later(vec![persist("one", false)]);
    assert_eq!((out, driver.next_deadline()), (Vec::new(), Some(at(100))));
    assert_eq!(step(&mut driver, 60, false, vec![persist("two", false)]), []);
    assert_eq!((driver.take_due_save(at(99)), driver.next_deadline()), (None, Some(at(100))));
    assert_eq!(driver.take_due_save(at(100)), Some(persist("two", false)));
    assert_eq!((driver.next_deadline(), driver.take_final_save()), (None, None));

    // Content that must be durable, or that an operator waits for, replaces the delayed content.
    for (operator_waits, sync) in [(true, false), (false, true)] {
        assert_eq!(step(&mut driver, 200, false, vec![persist("three", false)]), []);
        let now = step(&mut driver, 201, operator_waits, vec![persist("four", sync)]);
        assert_eq!((now, driver.next_deadline()), (vec![persist("four", sync)], None));
    }
    assert_eq!(step(&mut driver, 300, false, vec![persist("five", false)]), []);
    assert_eq!(driver.take_final_save(), Some(persist("five", false)), "the node stops");
}

#[test]
fn votes_wait_for_the_disk_with_later_packets_on_the_same_link() {
    let (mut driver, out) = later(vec![persist("vote", true), send(LINK, 1, true), send(OTHER, 2, false)]);
    assert_eq!(out, [persist("vote", true), send(OTHER, 2, false)]);
    assert_eq!(step(&mut driver, 1, false, vec![send(LINK, 3, false)]), []);
    assert_eq!(driver.note_written(1), (vec![send(LINK, 1, false), send(LINK, 3, false)], true));

    // Closing a link drops the packets queued for it.
    let writes = vec![persist("vote", true), send(LINK, 4, true), send(OTHER, 5, true)];
    assert_eq!(step(&mut driver, 2, false, writes).len(), 1);
    let close = || ClusterAction::Close { link: LINK };
    assert_eq!(step(&mut driver, 3, false, vec![close()]), [close()]);
    assert_eq!(driver.note_written(2), (vec![send(OTHER, 5, false)], true));
}

#[test]
fn joining_another_shard_reports_the_replication_state_again() {
    let mut driver = ClusterDriver {
        last_replication: ReplicationStatus { offset: ReplOffset(9), ..ReplicationStatus::default() },
        ..ClusterDriver::default()
    };
    step(&mut driver, 0, false, vec![follow(false)]);
    assert_eq!(driver.last_replication.offset, ReplOffset(9));
    step(&mut driver, 0, false, vec![follow(true)]);
    assert_eq!(driver.last_replication, ReplicationStatus::default());
}
