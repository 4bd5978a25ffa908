//! Slots on their way while masters are replaced.

use std::time::Duration;

use slot_routing::{NodeId, Slot, SlotSet};

use super::net::{Net, config};
use crate::{Command, Event, Input, SlotChange};

const SLOT: u16 = 0;

fn slot() -> Slot {
    Slot::new(SLOT).unwrap()
}

/// Masters 0 to 2, whose replicas are 3 to 5; slot 0 is node 0's.
fn six(seed: u64) -> Net {
    Net::cluster(3, 6, &config(2000), seed)
}

fn set_slot(net: &mut Net, index: usize, change: SlotChange) {
    net.command(index, Command::SetSlot { slot: slot(), change, keys_in_slot: 0 }).unwrap();
}

fn import(net: &mut Net, at: usize, from: usize) {
    let from = net.id(from).to_string();
    set_slot(net, at, SlotChange::Importing { from });
}

fn importing(net: &Net, index: usize) -> Option<NodeId> {
    net.hosts[index].gossip.topology().importing().get(&slot()).copied()
}

#[test]
fn an_import_goes_on_from_the_master_that_replaced_its_source() {
    for seed in 0..10 {
        let mut net = six(seed);
        import(&mut net, 1, 0);
        net.kill(0);
        net.until("a replica takes over", |net| net.writer_of(SLOT) == Some(3));
        net.run(Duration::from_secs(1));
        assert_eq!(net.owner_of(1, SLOT), Some(3), "{}", net.story());
        assert_eq!(importing(&net, 1), Some(net.id(3)));
        assert!(net.hosts[1].gossip.is_serving(), "{}", net.story());
        // Its old source comes back as a replica: that changes nothing any more.
        net.restart(0);
        net.until("all agree", Net::all_agree);
        assert_eq!(importing(&net, 1), Some(net.id(3)));
    }
}

#[test]
fn a_move_goes_on_to_the_master_that_replaced_its_target() {
    let mut net = six(1);
    import(&mut net, 1, 0);
    let to = net.id(1).to_string();
    set_slot(&mut net, 0, SlotChange::Migrating { to });
    net.kill(1);
    net.until("a replica takes over", |net| net.owner_of(0, 6000) == Some(4));
    let topology = net.hosts[0].gossip.topology();
    assert_eq!(topology.migrating().get(&slot()), Some(&net.id(4)), "{}", net.story());
    // What the new master has of the slot it says, so that the move can be brought to its end.
    let slots = SlotSet::from_iter([slot()]);
    net.feed(4, Input::KeysFound { slots, at_start: false });
    assert_eq!(importing(&net, 4), Some(net.id(0)));
    assert!(net.hosts[4].logged(|event| matches!(event, Event::KeysOfOther { .. })));
}

#[test]
fn an_import_ends_when_somebody_else_takes_the_slot() {
    let mut net = six(2);
    import(&mut net, 1, 0);
    let taker = net.id(2).to_string();
    set_slot(&mut net, 2, SlotChange::Node(taker));
    net.until("all agree", |net| net.owner_of(1, SLOT) == Some(2) && net.all_agree());
    assert_eq!(importing(&net, 1), None);
}

#[test]
fn a_master_says_which_keys_it_has_in_slots_that_are_not_its_own() {
    let mut net = six(3);
    let slots = SlotSet::from_iter([slot(), Slot::new(6000).unwrap()]);
    // A replica has its master's keys.
    net.feed(4, Input::KeysFound { slots: slots.clone(), at_start: true });
    assert_eq!(importing(&net, 4), None);
    net.feed(1, Input::KeysFound { slots: slots.clone(), at_start: false });
    assert_eq!(importing(&net, 1), Some(net.id(0)));
    assert_eq!(net.hosts[1].gossip.topology().importing().len(), 1);
    // Of a slot that is nobody's for a moment it makes no claim; only when it starts, as Redis does.
    for index in 0..3 {
        net.command(index, Command::DelSlots(vec![slot()])).unwrap();
    }
    net.feed(2, Input::KeysFound { slots: slots.clone(), at_start: false });
    assert_eq!(net.owner_of(2, SLOT), None);
    net.feed(2, Input::KeysFound { slots, at_start: true });
    assert_eq!(net.owner_of(2, SLOT), Some(2));
}
