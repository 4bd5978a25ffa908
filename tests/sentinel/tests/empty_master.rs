//! Tests of a monitored master that restarts without its data before a sentinel notices its absence: a replica takes
//! over, and no replica resyncs to the empty dataset.

use harness::{Node, Program, Reply, SentinelGroup, eventually, eventually_within};
use std::time::Duration;

/// A `down-after-milliseconds` that exceeds the time a Redis sentinel needs to make the old master a replica.
const LONG_DOWN_AFTER_TIME: Duration = Duration::from_secs(60);

/// Kills a server, deletes its data, and restarts it before a sentinel can detect the failure.
fn restart_without_data(node: &mut Node) {
    node.kill();
    // There may be no dump file yet.
    let _ = std::fs::remove_file(node.folder().join("dump.rdb"));
    node.launch();
}

fn replica_record_path(node: &Node) -> std::path::PathBuf {
    node.folder().join(format!("followers-{}.conf", node.port))
}

/// Writes keys to the master and waits until its replicas have them and it has saved their addresses.
fn write_keys(group: &SentinelGroup, master: usize) {
    let node = &group.servers[master];
    let mut connection = node.connect();
    let script = "for i = 1, 1000 do redis.call('set', 'key:' .. i, i) end return 1";
    assert_eq!(connection.call(&["EVAL", script, "0"]), Reply::Int(1));
    connection.call(&["SET", "last", "one"]).expect_ok();
    assert_eq!(connection.call(&["WAIT", "2", "60000"]), Reply::Int(2));
    eventually("the master has noted two replicas", || {
        let text = std::fs::read_to_string(replica_record_path(node)).ok()?;
        (text.matches("replica 127.0.0.1").count() == 2).then_some(())
    });
}

fn assert_replica_takes_over(sentinels: &[Program]) {
    let mut group = SentinelGroup::start(&Program::redoubt(), sentinels);
    let master = group.wait_for_master();
    write_keys(&group, master);
    restart_without_data(&mut group.servers[master]);
    let refused = group.servers[master].run("SET key value");
    assert!(refused.is_error("MASTERDOWN"), "{refused:?}");
    let (successor, took) = group.wait_for_successor(master);
    println!("another was promoted after {took:?}");
    let keys = |server: usize| group.servers[server].run("DBSIZE");
    // The keys are those written before the failover, and one more that was written to find the new master.
    let expected = Reply::Int(1002);
    assert_eq!(keys(successor), expected);
    group.wait_until_healthy();
    for server in 0..group.servers.len() {
        eventually_within(LONG_DOWN_AFTER_TIME, "all have everything", || {
            (keys(server) == expected).then_some(())
        });
    }
}

#[test]
fn redoubt_sentinels_replace_an_empty_master() {
    assert_replica_takes_over(&std::array::from_fn::<_, 3, _>(|_| Program::redoubt()));
}

#[test]
fn redis_sentinels_replace_an_empty_master() {
    assert_replica_takes_over(&std::array::from_fn::<_, 3, _>(|_| Program::redis()));
}

/// If no replica can be promoted, the master serves its empty dataset after the timeout. Redis does so at once.
#[test]
fn empty_master_without_sentinels_serves_after_the_timeout() {
    let mut group = SentinelGroup::start(
        &Program::redoubt(),
        &[Program::redoubt(), Program::redoubt(), Program::redoubt()],
    );
    let master = group.wait_for_master();
    write_keys(&group, master);
    group.sentinels.iter_mut().for_each(Node::kill);
    group.servers[master].add_options("--empty-master-timeout 3000");
    restart_without_data(&mut group.servers[master]);
    let replica = usize::from(master == 0);
    let node = &group.servers[master];
    assert!(node.run("GET last").is_error("MASTERDOWN"));
    assert_eq!(node.run("PING"), Reply::Simple("PONG".into()), "others may ask whether it lives");
    assert_eq!(group.servers[replica].run("GET last").text(), "one", "nothing was copied");
    eventually("it serves", || (node.run("GET last") == Reply::NullBulk).then_some(()));
    eventually("its replica has what it has", || {
        (group.servers[replica].run("DBSIZE") == Reply::Int(0)).then_some(())
    });
}

#[test]
fn operator_can_make_an_empty_master_serve_before_the_timeout() {
    let mut group = SentinelGroup::start(
        &Program::redoubt(),
        &[Program::redoubt(), Program::redoubt(), Program::redoubt()],
    );
    let master = group.wait_for_master();
    write_keys(&group, master);
    group.sentinels.iter_mut().for_each(Node::kill);
    restart_without_data(&mut group.servers[master]);
    let node = &group.servers[master];
    assert!(node.run("SET key value").is_error("MASTERDOWN"));
    node.run("REPLICAOF NO ONE").expect_ok();
    node.run("SET key value").expect_ok();
}
