use std::net::{IpAddr, Ipv4Addr};

use slot_routing::{Epoch, NodeId, ReplOffset, Slot, SlotSet};

use super::*;
use crate::Copies;
use crate::wire::{Body, Header, MessageFlags, NodeFlags};

const IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LINK: LinkId = LinkId::Out(1);
const OTHER: LinkId = LinkId::Out(2);

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn me() -> NodeId {
    NodeId::from_random([1; 20])
}

fn follow(foreign: bool) -> Action {
    Action::BecomeReplica { master: me(), ip: IP, port: 1, foreign }
}

fn answer(token: u64) -> Action {
    Action::Reply { token, result: Ok(Reply::Ok) }
}

fn persist(text: &str, sync: bool) -> Action {
    Action::Persist { text: text.to_owned(), sync }
}

fn drop_slot() -> Action {
    Action::DropSlots([Slot::new(7).expect("a slot")].into_iter().collect::<SlotSet>())
}

fn copies() -> Action {
    Action::AllowCopies(Copies::All)
}

/// A packet that the tests identify by its epoch.
fn send(link: LinkId, epoch: u64, after_persist: bool) -> Action {
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
    Action::Send { link, packet: Box::new(Packet { header, body: Body::AuthRequest }), after_persist }
}

fn step(driving: &mut Driving, millis: u64, asked_for: bool, actions: Vec<Action>) -> Vec<Action> {
    driving.put_in_order(Decided { now: at(millis), asked_for, actions })
}

fn later(actions: Vec<Action>) -> (Driving, Vec<Action>) {
    let mut driving = Driving::default();
    let out = step(&mut driving, 0, false, actions);
    (driving, out)
}

#[test]
fn a_role_the_loss_of_slots_and_replies_come_behind_the_rest() {
    let (_, out) =
        later(vec![answer(1), drop_slot(), follow(false), copies(), Action::ResumeWrites, answer(2)]);
    assert_eq!(out, [copies(), Action::ResumeWrites, follow(false), drop_slot(), answer(1), answer(2)]);
}

#[test]
fn a_reply_waits_until_everything_is_deleted_and_written() {
    let mut driving = Driving::default();
    let out = step(&mut driving, 0, true, vec![answer(1), Action::DropEverything, persist("reset", true)]);
    assert_eq!(out, [persist("reset", true), Action::DropEverything]);
    assert_eq!(driving.emptied(), None, "the disk does not have it");
    assert_eq!(driving.written(1), (vec![answer(1)], true));

    // A deletion without a reply does not release the reply of another command.
    assert_eq!(step(&mut driving, 1, true, vec![Action::DropEverything]), [Action::DropEverything]);
    let again = step(&mut driving, 1, true, vec![answer(2), Action::DropEverything]);
    assert_eq!(again, [Action::DropEverything]);
    assert_eq!((driving.emptied(), driving.emptied()), (None, Some(answer(2))));
}

#[test]
fn a_file_that_others_would_tell_again_is_written_later_and_with_the_next() {
    let (mut driving, out) = later(vec![persist("one", false)]);
    assert_eq!((out, driving.next_deadline()), (Vec::new(), Some(at(100))));
    assert_eq!(step(&mut driving, 60, false, vec![persist("two", false)]), []);
    assert_eq!((driving.save(at(99)), driving.next_deadline()), (None, Some(at(100))));
    assert_eq!(driving.save(at(100)), Some(persist("two", false)));
    assert_eq!((driving.next_deadline(), driving.last_save()), (None, None));

    // A text that must be durable, or that an operator waits for, replaces the delayed one.
    for (asked_for, sync) in [(true, false), (false, true)] {
        assert_eq!(step(&mut driving, 200, false, vec![persist("three", false)]), []);
        let now = step(&mut driving, 201, asked_for, vec![persist("four", sync)]);
        assert_eq!((now, driving.next_deadline()), (vec![persist("four", sync)], None));
    }
    assert_eq!(step(&mut driving, 300, false, vec![persist("five", false)]), []);
    assert_eq!(driving.last_save(), Some(persist("five", false)), "the node stops");
}

#[test]
fn a_vote_waits_for_the_disk_and_what_follows_it_on_its_link() {
    let (mut driving, out) = later(vec![persist("vote", true), send(LINK, 1, true), send(OTHER, 2, false)]);
    assert_eq!(out, [persist("vote", true), send(OTHER, 2, false)]);
    assert_eq!(step(&mut driving, 1, false, vec![send(LINK, 3, false)]), []);
    assert_eq!(driving.written(1), (vec![send(LINK, 1, false), send(LINK, 3, false)], true));

    // Closing a link drops the packets that wait for it.
    let writes = vec![persist("vote", true), send(LINK, 4, true), send(OTHER, 5, true)];
    assert_eq!(step(&mut driving, 2, false, writes).len(), 1);
    let close = || Action::Close { link: LINK };
    assert_eq!(step(&mut driving, 3, false, vec![close()]), [close()]);
    assert_eq!(driving.written(2), (vec![send(OTHER, 5, false)], true));
}

#[test]
fn who_follows_another_shards_master_is_told_how_replication_stands_anew() {
    let mut driving = Driving {
        facts: Replication { offset: ReplOffset(9), ..Replication::default() },
        ..Driving::default()
    };
    step(&mut driving, 0, false, vec![follow(false)]);
    assert_eq!(driving.facts.offset, ReplOffset(9));
    step(&mut driving, 0, false, vec![follow(true)]);
    assert_eq!(driving.facts, Replication::default());
}
