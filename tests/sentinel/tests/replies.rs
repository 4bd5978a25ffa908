//! The same questions to a Redoubt sentinel and to a Redis one, with the same answers.

use std::collections::BTreeMap;

use harness::{Node, Program, Value, eventually};
use sentinel_tests::{Group, MASTER, field_map};

/// Questions whose answers do not depend on time or identity.
const SAME: &[&str] = &[
    "PING",
    "PING hi",
    "GET foo",
    "CONFIG GET port",
    "SENTINEL",
    "SENTINEL foo",
    "SENTINEL MASTER nope",
    "SENTINEL MASTERS x",
    "SENTINEL SLAVES nope",
    "SENTINEL SET mymaster",
    "SENTINEL SET mymaster foo bar",
    "SENTINEL SET mymaster quorum abc",
    "SENTINEL SET mymaster quorum 2",
    "SENTINEL SET mymaster down-after-milliseconds 0",
    "SENTINEL SET mymaster notification-script /nope",
    "SENTINEL SET mymaster rename-command a",
    "SENTINEL CKQUORUM nope",
    "SENTINEL FAILOVER nope",
    "SENTINEL MONITOR a b",
    "SENTINEL MONITOR mymaster 127.0.0.1 1 1",
    "SENTINEL MONITOR x 127.0.0.1 1 0",
    "SENTINEL MONITOR x no_host.invalid 1 1",
    "SENTINEL MONITOR x 127.0.0.1 99999 1",
    "SENTINEL MONITOR x 127.0.0.1 1 abc",
    "SENTINEL MONITOR x 127.0.0.1 abc 1",
    "SENTINEL REMOVE nope",
    "SENTINEL RESET nope*",
    "SENTINEL PENDING-SCRIPTS",
    "SENTINEL CONFIG",
    "SENTINEL CONFIG GET",
    "SENTINEL CONFIG GET *",
    "SENTINEL CONFIG GET resolve-*",
    "SENTINEL CONFIG SET foo bar",
    "SENTINEL CONFIG SET announce-port abc",
    "SENTINEL DEBUG",
    "SENTINEL DEBUG foo 1",
    "SENTINEL DEBUG tilt-trigger",
    "SENTINEL DEBUG tilt-trigger 0",
    "SENTINEL DEBUG info-period 10000",
    "SENTINEL SIMULATE-FAILURE foo",
    "SENTINEL SIMULATE-FAILURE help",
    "SENTINEL FLUSHCONFIG",
    "SENTINEL IS-MASTER-DOWN-BY-ADDR 1 2 3",
    "SENTINEL IS-MASTER-DOWN-BY-ADDR a b c d",
    "SENTINEL IS-MASTER-DOWN-BY-ADDR 127.0.0.1 1 0 *",
    "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster",
    "SENTINEL GET-MASTER-ADDR-BY-NAME nope",
    "SENTINEL INFO-CACHE nope",
    "SENTINEL CKQUORUM mymaster",
    "SENTINEL SET mymaster rename-command CONFIG cfg",
    "SENTINEL SET mymaster rename-command CONFIG CONFIG",
    "SENTINEL SET mymaster master-reboot-down-after-period abc",
    "SENTINEL SET mymaster master-reboot-down-after-period -1",
    "SENTINEL SET mymaster master-reboot-down-after-period 0",
    "SENTINEL SET mymaster down-after-milliseconds 3000 quorum 0",
    "SENTINEL SET mymaster quorum 2 parallel-syncs 0",
    "SENTINEL SET mymaster parallel-syncs 1 failover-timeout 0",
    "SENTINEL SET mymaster quorum 2 parallel-syncs",
    "SENTINEL SET mymaster client-reconfig-script /nope",
    "SENTINEL SET mymaster auth-user x",
    "SENTINEL SET nope quorum 2",
    "SENTINEL FAILOVER",
    "SENTINEL RESET",
    "SENTINEL MYID x",
    "SENTINEL FLUSHCONFIG x",
    "SENTINEL PENDING-SCRIPTS x",
    "SENTINEL INFO-CACHE",
    "SENTINEL INFO-CACHE nope nope2",
    "SENTINEL CONFIG FOO",
    "SENTINEL CONFIG GET a b",
    "SENTINEL CONFIG GET announce-*",
    "SENTINEL CONFIG GET ANNOUNCE-IP",
    "SENTINEL CONFIG SET announce-ip",
    "SENTINEL CONFIG SET announce-port 70000",
    "SENTINEL CONFIG SET announce-port -1",
    "SENTINEL CONFIG SET resolve-hostnames maybe",
    "SENTINEL CONFIG SET resolve-hostnames YES",
    "SENTINEL CONFIG SET resolve-hostnames no",
    "SENTINEL CONFIG SET announce-hostnames yes",
    "SENTINEL CONFIG SET announce-hostnames no",
    "SENTINEL CONFIG SET sentinel-user bob",
    "SENTINEL CONFIG SET sentinel-pass secret",
    "SENTINEL CONFIG GET sentinel-*",
    "SENTINEL DEBUG info-period",
    "SENTINEL DEBUG info-period abc",
    "SENTINEL DEBUG info-period -5",
    "SENTINEL DEBUG info-period 10000 ping-period 1000",
    "SENTINEL DEBUG info-period 10000 foo 1",
    "SENTINEL SIMULATE-FAILURE",
    "SENTINEL SIMULATE-FAILURE crash-after-election foo",
    "SENTINEL SIMULATE-FAILURE HELP",
    "SENTINEL MONITOR other 127.0.0.1 1 -1",
    "SENTINEL IS-MASTER-DOWN-BY-ADDR 127.0.0.1 abc 0 *",
    "CLIENT FOO",
    "COMMAND FOO",
    "ACL FOO",
    "ROLE x",
    "HELLO 4",
    "HELLO abc",
    "HELLO 2 SETNAME",
    "AUTH x",
    "AUTH alice x",
    "AUTH a b c",
    "PUBLISH foo bar",
    "PUBLISH __sentinel__:hello foo",
    "SUBSCRIBE",
    "ROLE",
    "ACL WHOAMI",
];

fn group() -> Group {
    Group::start(&Program::redis(), &[Program::redoubt(), Program::redoubt(), Program::redis()])
}

#[test]
fn the_same_answers() {
    let group = group();
    let (ours, theirs) = (&group.sentinels[0], &group.sentinels[2]);
    for question in SAME {
        assert_eq!(ours.run(question), theirs.run(question), "{question}");
    }
}

fn fields(node: &Node, question: &str) -> BTreeMap<String, String> {
    let reply = node.run(question);
    match reply.items().first() {
        Some(Value::Array(_)) => field_map(&reply.items()[0]),
        _ => field_map(&reply),
    }
}

/// The same fields of masters, replicas and sentinels, and the same values where they are not times.
#[test]
fn the_same_fields() {
    let group = group();
    let questions = ["MASTER", "REPLICAS", "SENTINELS"].map(|what| format!("SENTINEL {what} {MASTER}"));
    let steady =
        ["flags", "ip", "role-reported", "quorum", "num-slaves", "num-other-sentinels", "master-link-status"];
    for question in &questions {
        eventually(&format!("the same to {question}"), || {
            let ours = fields(&group.sentinels[0], question);
            let theirs = fields(&group.sentinels[2], question);
            let names = |fields: &BTreeMap<String, String>| fields.keys().cloned().collect::<Vec<_>>();
            let same = steady.iter().all(|name| ours.get(*name) == theirs.get(*name));
            (names(&ours) == names(&theirs) && same).then_some(())
        });
    }
}
