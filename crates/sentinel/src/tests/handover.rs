//! Masters that hand over without involving the sentinels, and replicas that only claim to be masters.

use super::world::{World, server};

const SWITCHED: &str = "+switch-master mymaster 10.0.0.1 6379 10.0.0.2 6379";

/// Puts the servers into the state that they have after FAILOVER was sent to the master.
fn hand_over(world: &mut World, to: u8) {
    let master_of = |number: u8| (number != to).then(|| server(to));
    for number in 1..=3 {
        world.servers.get_mut(&server(number)).unwrap().master = master_of(number);
    }
}

#[test]
fn handover_without_sentinels_is_followed_within_seconds() {
    let mut world = World::new("");
    world.advance_time(2000);
    hand_over(&mut world, 2);
    world.advance_time(5500);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    assert!(!world.events.iter().any(|event| event.starts_with("+sdown")), "{:?}", world.events);
    assert!(!world.sent_to(&server(2)).contains(&"SLAVEOF NO ONE"), "nobody is promoted once more");
    assert!(world.sent_to(&server(2)).contains(&"CONFIG REWRITE"), "or a restart makes it a replica again");
}

#[test]
fn chained_handovers_lead_to_the_last_master() {
    let mut world = World::new("");
    world.advance_time(2000);
    hand_over(&mut world, 3);
    world.servers.get_mut(&server(3)).unwrap().master = Some(server(2));
    world.servers.get_mut(&server(2)).unwrap().master = None;
    world.advance_time(5500);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
}

#[test]
fn replica_reporting_the_master_role_alone_is_no_successor() {
    let mut world = World::new("");
    world.advance_time(2000);
    // The master still has the master role, so it has not handed over.
    world.servers.get_mut(&server(2)).unwrap().master = None;
    world.advance_time(15_000);
    assert!(!world.has_event(SWITCHED), "{:?}", world.events);
    assert!(world.sent_to(&server(2)).contains(&"SLAVEOF 10.0.0.1 6379"), "it is made a replica again");
}

#[test]
fn replica_out_of_sync_with_the_master_is_no_successor() {
    let mut world = World::new("");
    world.advance_time(2000);
    hand_over(&mut world, 2);
    world.servers.get_mut(&server(1)).unwrap().synced = false;
    world.advance_time(15_000);
    assert!(!world.has_event(SWITCHED), "{:?}", world.events);
}

#[test]
fn master_replicating_from_an_unknown_server_is_not_replaced_at_once() {
    let mut world = World::new("");
    world.advance_time(2000);
    world.servers.get_mut(&server(1)).unwrap().master = Some(server(9));
    world.advance_time(15_000);
    assert!(!world.events.iter().any(|event| event.starts_with("+sdown")), "{:?}", world.events);
}
