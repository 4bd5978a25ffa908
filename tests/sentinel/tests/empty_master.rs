//! A master under sentinels that is started again at once, without its data: a replica takes its place, and no replica
//! copies the empty data set.

use harness::{Group, Node, Program, Value, eventually, eventually_within};
use std::time::Duration;

/// Longer than a sentinel of Redis needs to make a replica of the old master.
const LONG: Duration = Duration::from_secs(60);

/// Kills a server, removes its saved data, and starts it again before a sentinel could have missed it.
fn restart_empty(node: &mut Node) {
    node.kill();
    // It may have saved nothing.
    let _ = std::fs::remove_file(node.folder().join("dump.rdb"));
    node.launch();
}

fn followers_file(node: &Node) -> std::path::PathBuf {
    node.folder().join(format!("followers-{}.conf", node.port))
}

/// Fills the master, and waits until its replicas have everything and it has noted their identities.
fn fill(group: &Group, master: usize) {
    let node = &group.servers[master];
    let mut connection = node.connect();
    let script = "for i = 1, 1000 do redis.call('set', 'key:' .. i, i) end return 1";
    assert_eq!(connection.call(&["EVAL", script, "0"]), Value::Int(1));
    connection.call(&["SET", "last", "one"]).expect_ok();
    assert_eq!(connection.call(&["WAIT", "2", "60000"]), Value::Int(2));
    eventually("the master has noted two replicas", || {
        let text = std::fs::read_to_string(followers_file(node)).ok()?;
        (text.matches("replica 127.0.0.1").count() == 2).then_some(())
    });
}

fn keeps_the_data(sentinels: &[Program]) {
    let mut group = Group::start(&Program::redoubt(), sentinels);
    let master = group.master();
    fill(&group, master);
    restart_empty(&mut group.servers[master]);
    let refused = group.servers[master].run("SET key value");
    assert!(refused.is_error("MASTERDOWN"), "{refused:?}");
    let (successor, took) = group.wait_for_successor(master);
    println!("another was promoted after {took:?}");
    let keys = |server: usize| group.servers[server].run("DBSIZE");
    // The keys of before, and the one by which the successor was found.
    let expected = Value::Int(1002);
    assert_eq!(keys(successor), expected);
    group.wait_until_whole();
    for server in 0..group.servers.len() {
        eventually_within(LONG, "all have everything", || (keys(server) == expected).then_some(()));
    }
}

#[test]
fn redoubts_sentinels_promote_a_replica() {
    keeps_the_data(&std::array::from_fn::<_, 3, _>(|_| Program::redoubt()));
}

#[test]
fn sentinels_of_redis_promote_a_replica() {
    keeps_the_data(&std::array::from_fn::<_, 3, _>(|_| Program::redis()));
}

/// No replica could be promoted: after its timeout the master serves the data that it has, as Redis does at once.
#[test]
fn an_empty_master_without_sentinels_serves_after_its_time() {
    let mut group =
        Group::start(&Program::redoubt(), &[Program::redoubt(), Program::redoubt(), Program::redoubt()]);
    let master = group.master();
    fill(&group, master);
    group.sentinels.iter_mut().for_each(Node::kill);
    group.servers[master].add_options("--empty-master-timeout 3000");
    restart_empty(&mut group.servers[master]);
    let replica = usize::from(master == 0);
    let node = &group.servers[master];
    assert!(node.run("GET last").is_error("MASTERDOWN"));
    assert_eq!(node.run("PING"), Value::Simple("PONG".into()), "others may ask whether it lives");
    assert_eq!(group.servers[replica].run("GET last").text(), "one", "nothing was copied");
    eventually("it serves", || (node.run("GET last") == Value::NullBulk).then_some(()));
    eventually("its replica has what it has", || {
        (group.servers[replica].run("DBSIZE") == Value::Int(0)).then_some(())
    });
}

/// An operator need not wait.
#[test]
fn an_operator_may_have_it_serve() {
    let mut group =
        Group::start(&Program::redoubt(), &[Program::redoubt(), Program::redoubt(), Program::redoubt()]);
    let master = group.master();
    fill(&group, master);
    group.sentinels.iter_mut().for_each(Node::kill);
    restart_empty(&mut group.servers[master]);
    let node = &group.servers[master];
    assert!(node.run("SET key value").is_error("MASTERDOWN"));
    node.run("REPLICAOF NO ONE").expect_ok();
    node.run("SET key value").expect_ok();
}
