//! Tests of failovers with Redoubt sentinels: killed and frozen masters, and sentinels that die with their master.

use std::fs;
use std::time::Duration;

use harness::{
    Connection, MASTER_NAME, Program, SentinelGroup, eventually, eventually_within, field_map, wait_for_event,
};

fn redoubt_sentinels() -> [Program; 3] {
    std::array::from_fn(|_| Program::redoubt())
}

/// Masters are killed three times. Each time a replica takes over, subscribers are notified, and the old master returns
/// as a replica.
#[test]
fn killed_masters_are_replaced_and_return_as_replicas() {
    let mut group = SentinelGroup::start(&Program::redis(), &redoubt_sentinels());
    for round in 0..3 {
        let master = group.wait_for_master();
        let mut events = group.sentinels[0].connect();
        events.call(&["PSUBSCRIBE", "*"]);
        let old = group.servers[master].port;
        group.servers[master].kill();
        let (successor, took) = group.wait_for_successor(master);
        println!("round {round}: {took:?}");
        let payload = wait_for_event(&mut events, "+switch-master");
        let new = group.servers[successor].port;
        assert_eq!(payload, format!("{MASTER_NAME} 127.0.0.1 {old} 127.0.0.1 {new}"));
        group.servers[master].launch();
        group.wait_until_healthy();
    }
}

/// A frozen process refuses no connections, so it is only detected after `down-after-milliseconds`. After resuming, the
/// process becomes a replica.
#[test]
fn frozen_master_is_replaced_after_down_after() {
    let group = SentinelGroup::start(&Program::redis(), &redoubt_sentinels());
    let master = group.wait_for_master();
    group.servers[master].freeze();
    let (_, took) = group.wait_for_successor(master);
    println!("{took:?}");
    assert!(took.as_millis() >= 2000, "replaced before its time: {took:?}");
    group.servers[master].thaw();
    group.wait_until_healthy();
}

/// The sentinel that led the last failover dies together with the master.
#[test]
fn master_is_replaced_when_leader_dies_too() {
    let mut group = SentinelGroup::start(&Program::redis(), &redoubt_sentinels());
    let first = group.wait_for_master();
    group.servers[first].kill();
    let (second, _) = group.wait_for_successor(first);
    group.servers[first].launch();
    group.wait_until_healthy();
    let voted = |node: &harness::Node| field_map(&node.run(&format!("SENTINEL MASTER {MASTER_NAME}")));
    assert!(voted(&group.sentinels[0]).contains_key("config-epoch"));
    let leader = group.sentinels.iter().position(|node| node.log().contains("+elected-leader"));
    let leader = leader.expect("one sentinel led the failover");
    group.sentinels[leader].kill();
    group.servers[second].kill();
    let (third, took) = group.wait_for_successor(second);
    println!("{took:?}");
    assert_ne!(third, second);
}

/// An operator starts a failover of a healthy master, which becomes a replica.
#[test]
fn manual_failover_replaces_a_healthy_master() {
    let group = SentinelGroup::start(&Program::redis(), &redoubt_sentinels());
    let master = group.wait_for_master();
    let reply = group.sentinels[1].run(&format!("SENTINEL FAILOVER {MASTER_NAME}"));
    reply.expect_ok();
    let (successor, _) = group.wait_for_successor(master);
    assert_ne!(successor, master);
    group.wait_until_healthy();
    let flights = group.sentinels[1].run(&format!("SENTINEL FAILOVERS {MASTER_NAME}"));
    let steps = flights.items()[0].items().last().expect("the steps come last").items();
    let said = |what: &str| steps.iter().any(|step| step.items()[1].text().starts_with(what));
    assert!(said("requested by an operator") && said("switch to 127.0.0.1:"), "{flights:?}");
}

/// The learned state is in the configuration file, together with the owner's comments, and is restored after a restart.
#[test]
fn restarted_sentinel_keeps_its_state() {
    let mut group = SentinelGroup::start(&Program::redis(), &redoubt_sentinels());
    let master = group.wait_for_master();
    group.servers[master].kill();
    let (successor, _) = group.wait_for_successor(master);
    let port = group.servers[successor].port;
    for sentinel in 0..3 {
        group.sentinels[sentinel].terminate();
        let file = group.sentinels[sentinel].folder().join("sentinel.conf");
        let text = fs::read_to_string(file).unwrap();
        assert!(text.starts_with("# Watches one master.\n"), "{text}");
        assert!(text.contains(&format!("sentinel monitor {MASTER_NAME} 127.0.0.1 {port} 2")), "{text}");
        group.sentinels[sentinel].launch();
        assert_eq!(group.master_port(sentinel), port);
        let known = field_map(&group.sentinels[sentinel].run(&format!("SENTINEL MASTER {MASTER_NAME}")));
        assert_eq!(known["num-other-sentinels"], "2");
    }
}

/// A sentinel with an invalid file reports the error and the line in the words of redis-sentinel 7.0, and exits.
#[test]
fn invalid_configuration_prevents_the_start() {
    const MONITOR_LINE: &str = "sentinel monitor m 127.0.0.1 6379 1";
    let table: [(&[u8], &str, &str); 9] = [
        (b"sentinel monitor m 127.0.0.1 6379 0", "", "Quorum must be 1 or greater."),
        (b"sentinel down-after-milliseconds nobody 5", "", "No such master with specified name."),
        (b"sentinel frobnicate m 1", "", "Unrecognized sentinel configuration statement."),
        (b"frobnicate 1", "", "Bad directive or wrong number of arguments"),
        (b"\xff\xfe 1", "\u{fffd}\u{fffd} 1", "Bad directive or wrong number of arguments"),
        (
            b"sentinel notification-script m /nope",
            "",
            "Notification script seems non existing or non executable.",
        ),
        (
            b"sentinel client-reconfig-script m /nope",
            "",
            "Client reconfiguration script seems non existing or non executable.",
        ),
        (b"maxclients 0", "", "argument must be between 1 and 4294967295 inclusive"),
        (
            b"user a off",
            "",
            "Error in user declaration 'a': Duplicate user found. A user can only be defined once in config files",
        ),
    ];
    for (line, shown, reason) in table {
        let mut node = harness::Node::prepare(&Program::redoubt(), "");
        let file = node.folder().join("sentinel.conf");
        node.set_configuration(&file);
        node.add_options("--sentinel");
        fs::write(&file, [b"user a on\n", MONITOR_LINE.as_bytes(), b"\n", line, b"\n"].concat()).unwrap();
        let shown = if shown.is_empty() { std::str::from_utf8(line).unwrap() } else { shown };
        node.spawn();
        assert!(!node.wait_for_exit().success());
        let expected = format!(
            "\n*** FATAL CONFIG FILE ERROR (Version 7.4.0) ***\nReading the configuration file '{}', at line 3\n\
             >>> '{shown}'\n{reason}\n",
            file.display()
        );
        assert!(node.log().contains(&expected), "{}\n{expected}", node.log());
    }
}

/// Random bytes, incomplete requests and excessive lengths affect only their own connection.
#[test]
fn invalid_input_affects_only_its_connection() {
    let group = SentinelGroup::start(&Program::redis(), &redoubt_sentinels());
    let sentinel = &group.sentinels[0];
    for bytes in
        [&b"\x00\xff\x13\r\n"[..], b"*2\r\n$8\r\nSENT", b"*1000000000000\r\n", b"*1\r\n$99999999999\r\n"]
    {
        let mut connection: Connection = sentinel.connect();
        connection.send_raw(bytes).unwrap();
        let _ = connection.shut_down_sending();
        let _ = connection.read_to_end();
    }
    let mut connection = sentinel.connect();
    let reply = connection.call(&["SENTINEL", "RAFT", MASTER_NAME, "\u{1}nonsense"]);
    reply.expect_ok();
    connection.call(&["PUBLISH", "__sentinel__:hello", "1,2,3,4,5,6,7,8"]);
    eventually("the sentinel still answers", || {
        let reply = sentinel.run(&format!("SENTINEL CKQUORUM {MASTER_NAME}"));
        reply.text().starts_with("OK 3 usable").then_some(())
    });
}

/// FAILOVER is sent to the master itself. Clients get the new address within seconds, although no sentinel started the
/// failover.
#[test]
fn handover_without_sentinels_is_announced_to_clients() {
    let group = SentinelGroup::start(&Program::redoubt(), &redoubt_sentinels());
    group.servers[0].run("FAILOVER").expect_ok();
    eventually_within(Duration::from_secs(10), "the sentinels name its successor", || {
        (0..3).all(|sentinel| group.master_port(sentinel) != group.servers[0].port).then_some(())
    });
    group.wait_until_healthy();
    let master = group.wait_for_master();
    assert_eq!(group.servers[master].info("replication", "role").as_deref(), Some("master"));
}
