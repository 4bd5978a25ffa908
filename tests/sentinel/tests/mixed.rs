//! Tests of Redoubt sentinels together with Redis sentinels, and of Redoubt or Redis sentinels with Redoubt servers.

use harness::{Program, SentinelGroup};

fn assert_failover_after_kill(server: &Program, sentinels: &[Program]) {
    let mut group = SentinelGroup::start(server, sentinels);
    let master = group.wait_for_master();
    group.servers[master].kill();
    let (successor, took) = group.wait_for_successor(master);
    println!("{took:?}");
    assert_ne!(successor, master);
    assert_eq!(group.wait_for_master(), successor, "all sentinels agree, of whatever kind");
    group.servers[master].launch();
    group.wait_until_healthy();
}

#[test]
fn two_redoubt_and_one_redis_sentinel_fail_over() {
    assert_failover_after_kill(
        &Program::redis(),
        &[Program::redoubt(), Program::redoubt(), Program::redis()],
    );
}

#[test]
fn one_redoubt_and_two_redis_sentinels_fail_over() {
    assert_failover_after_kill(&Program::redis(), &[Program::redoubt(), Program::redis(), Program::redis()]);
}

#[test]
fn redoubt_sentinels_fail_over_redoubt_servers() {
    assert_failover_after_kill(
        &Program::redoubt(),
        &[Program::redoubt(), Program::redoubt(), Program::redoubt()],
    );
}

/// Redis sentinels discover each other through a Redoubt master, promote a Redoubt replica with MULTI, and make the old
/// master a replica when it returns.
#[test]
fn redis_sentinels_fail_over_redoubt_servers() {
    assert_failover_after_kill(&Program::redoubt(), &[Program::redis(), Program::redis(), Program::redis()]);
}
