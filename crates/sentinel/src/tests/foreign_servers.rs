//! A server of another group at the address of a dead replica.

use super::world::{World, server};

/// Kills the replica at 10.0.0.2 and starts a master with this history at its address.
fn with_foreign_server(history: &'static str, has_keys: bool) -> World {
    let mut world = World::new("");
    world.servers.get_mut(&server(1)).unwrap().history = "1";
    world.servers.get_mut(&server(3)).unwrap().history = "1";
    world.advance_time(2000);
    world.kill(&server(2));
    world.advance_time(5000);
    let stranger = world.servers.get_mut(&server(2)).unwrap();
    (stranger.alive, stranger.master) = (true, None);
    (stranger.history, stranger.has_keys) = (history, has_keys);
    stranger.run_id = "f".repeat(40);
    world
}

fn is_made_a_replica(world: &World) -> bool {
    world.sent_to(&server(2)).contains(&"SLAVEOF 10.0.0.1 6379")
}

fn foreign_log_lines(world: &World, why: &str) -> usize {
    world.log.iter().filter(|line| line.contains("is left alone") && line.contains(why)).count()
}

#[test]
fn returning_replica_without_own_history_is_repaired_soon() {
    for (history, has_keys) in [("1", true), ("21", true), ("2", false)] {
        let mut world = with_foreign_server(history, has_keys);
        world.advance_time(4500);
        assert!(is_made_a_replica(&world), "{history}: {:?}", world.sent);
    }
}

#[test]
fn server_with_foreign_keys_is_left_alone_for_four_hello_periods() {
    let mut world = with_foreign_server("2", true);
    world.advance_time(7500);
    assert!(!is_made_a_replica(&world), "{:?}", world.sent);
    world.advance_time(4000);
    assert!(is_made_a_replica(&world), "{:?}", world.sent);
}

#[test]
fn master_announced_by_another_group_is_left_alone() {
    let mut world = with_foreign_server("2", true);
    for _ in 0..20 {
        world.advance_time(2000);
        world.deliver_hello(&server(2), "other", &server(2));
    }
    assert!(!is_made_a_replica(&world), "{:?}", world.sent);
    assert_eq!(foreign_log_lines(&world, "it belongs to the group of other"), 1, "{:?}", world.log);
    // The hello messages of the other group have expired.
    world.advance_time(70_000);
    assert!(is_made_a_replica(&world), "{:?}", world.sent);
}

#[test]
fn hello_about_another_master_does_not_mark_a_server_foreign() {
    let mut world = with_foreign_server("1", true);
    world.advance_time(1000);
    world.deliver_hello(&server(2), "other", &server(7));
    world.advance_time(4000);
    assert!(is_made_a_replica(&world), "{:?}", world.sent);
}

#[test]
fn replica_of_another_group_is_left_with_its_master() {
    let mut world = with_foreign_server("2", true);
    world.servers.get_mut(&server(2)).unwrap().master = Some(server(7));
    for _ in 0..5 {
        world.advance_time(2000);
        world.deliver_hello(&server(2), "other", &server(7));
    }
    assert!(!is_made_a_replica(&world), "{:?}", world.sent);
}

#[test]
fn master_with_its_own_replicas_and_history_is_left_alone() {
    let mut world = with_foreign_server("2", true);
    let mut own = world.servers[&server(3)].clone();
    own.master = Some(server(2));
    world.servers.insert(server(8), own);
    world.advance_time(60_000);
    assert!(!is_made_a_replica(&world), "{:?}", world.sent);
    assert_eq!(foreign_log_lines(&world, "it has replicas of its own"), 1, "{:?}", world.log);
}

#[test]
fn master_with_replicas_of_this_group_is_made_a_replica() {
    let mut world = with_foreign_server("2", true);
    world.servers.get_mut(&server(3)).unwrap().master = Some(server(2));
    world.advance_time(15_000);
    assert!(is_made_a_replica(&world), "{:?}", world.sent);
}

/// Promoting a server of another group would make this group's servers its replicas.
#[test]
fn failover_ignores_servers_of_other_groups() {
    let mut world = with_foreign_server("2", true);
    world.advance_time(2000);
    world.deliver_hello(&server(2), "other", &server(2));
    world.kill(&server(1));
    world.advance_time(10_000);
    assert!(world.has_event("+switch-master mymaster 10.0.0.1 6379 10.0.0.3 6379"), "{:?}", world.events);
    let orders = world.sent_to(&server(2));
    assert!(!orders.iter().any(|order| order.starts_with("SLAVEOF")), "{orders:?}");
}
