//! Redoubt sentinels together with Redis sentinels, each with Redoubt servers.

use harness::{Group, Program};

fn survives_a_kill(server: &Program, sentinels: &[Program]) {
    let mut group = Group::start(server, sentinels);
    let master = group.master();
    group.servers[master].kill();
    let (successor, took) = group.wait_for_successor(master);
    println!("{took:?}");
    assert_ne!(successor, master);
    assert_eq!(group.master(), successor, "all sentinels agree, of whatever kind");
    group.servers[master].launch();
    group.wait_until_whole();
}

#[test]
fn two_redoubt_sentinels_and_one_of_redis() {
    survives_a_kill(&Program::redis(), &[Program::redoubt(), Program::redoubt(), Program::redis()]);
}

#[test]
fn one_redoubt_sentinel_and_two_of_redis() {
    survives_a_kill(&Program::redis(), &[Program::redoubt(), Program::redis(), Program::redis()]);
}

#[test]
fn redoubt_servers_under_redoubt_sentinels() {
    survives_a_kill(&Program::redoubt(), &[Program::redoubt(), Program::redoubt(), Program::redoubt()]);
}

/// Redis sentinels discover each other through a Redoubt master, promote a Redoubt replica with MULTI, and make the old
/// master a replica when it returns.
#[test]
fn redoubt_servers_under_redis_sentinels() {
    survives_a_kill(&Program::redoubt(), &[Program::redis(), Program::redis(), Program::redis()]);
}
