//! The same questions to a Redoubt sentinel and to Valkey's, with the same answers.

use std::collections::BTreeMap;

use harness::{Connection, Group, MASTER, Node, Program, Value, eventually, field_map};

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
    "SENTINEL CONFIG GET loglevel",
    "SENTINEL CONFIG GET loglevel announce-port nope",
    "SENTINEL CONFIG GET announce-* announce-port",
    "SENTINEL CONFIG SET loglevel",
    "SENTINEL CONFIG SET loglevel shout",
    "SENTINEL CONFIG SET loglevel verbose announce-port x",
    "SENTINEL CONFIG SET loglevel verbose announce-port 0",
    "SENTINEL CONFIG GET loglevel",
    "SENTINEL CONFIG SET loglevel NOTICE LOGLEVEL debug",
    "SENTINEL CONFIG SET loglevel debug foo bar",
    "SENTINEL CONFIG SET foo bar loglevel debug",
    "SENTINEL CONFIG SET loglevel notice announce-port",
    "SENTINEL CONFIG SET loglevel notice",
    "SENTINEL CONFIG FOO x y",
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
    "SENTINEL SET mymaster quorum 2 notification-script /nope quorum 3",
    "SENTINEL FAILOVER mymaster foo",
    "SENTINEL FAILOVER nope foo",
    "SENTINEL FAILOVER nope COORDINATED",
    "SENTINEL FAILOVER mymaster COORDINATED foo",
    "SENTINEL PRIMARY nope",
    "SENTINEL PRIMARY",
    "SENTINEL PRIMARIES x",
    "SENTINEL GET-PRIMARY-ADDR-BY-NAME mymaster",
    "SENTINEL IS-PRIMARY-DOWN-BY-ADDR 1 2 3",
    "SENTINEL REPLICAS nope",
    "SENTINEL SENTINELS nope",
    "SENTINEL SET mymaster primary-reboot-down-after-period 0",
    "SHUTDOWN foo",
    "SHUTDOWN NOSAVE SAVE",
    "SHUTDOWN ABORT",
    "SHUTDOWN ABORT NOW",
    "SHUTDOWN SAVE NOW foo",
    "CLIENT KILL 1.2.3.4:5",
    "CLIENT KILL ID x",
    "CLIENT KILL ID 99999",
    "CLIENT KILL TYPE foo",
    "CLIENT KILL TYPE replica SKIPME no",
    "CLIENT KILL USER foo",
    "CLIENT KILL foo bar",
    "CLIENT PAUSE",
    "CLIENT PAUSE x",
    "CLIENT PAUSE -1",
    "CLIENT PAUSE 100 foo",
    "CLIENT UNPAUSE",
    "CLIENT REPLY foo",
    "CLIENT REPLY on",
    "CLIENT NO-EVICT on",
    "CLIENT NO-EVICT foo",
    "CLIENT TRACKING",
    "CLIENT TRACKING on",
    "CLIENT TRACKING on foo",
    "CLIENT TRACKING on PREFIX a",
    "CLIENT TRACKING on REDIRECT 99999",
    "CLIENT TRACKINGINFO",
    "CLIENT GETREDIR",
    "CLIENT CACHING yes",
    "CLIENT LIST foo",
    "CLIENT LIST TYPE foo",
    "CLIENT LIST ID 99999",
    "CLIENT UNBLOCK 99999",
    "CLIENT UNBLOCK x",
    "CLIENT GETNAME",
    "CLIENT ID x",
    "CLIENT",
    "COMMAND COUNT x",
    "COMMAND INFO foo sentinel|foo",
    "COMMAND INFO auth hello ping subscribe",
    "COMMAND INFO acl|log acl|cat client|kill sentinel|set sentinel|help",
    "COMMAND LIST x",
    "COMMAND LIST FILTERBY foo x",
    "COMMAND LIST FILTERBY MODULE x",
    "COMMAND LIST FILTERBY PATTERN s[h]*",
    "COMMAND GETKEYS ping a",
    "ACL",
    "ACL CAT",
    "ACL CAT foo",
    "ACL CAT a b",
    "ACL WHOAMI x",
    "ACL SETUSER",
    "ACL SETUSER u on >p -@all +ping &foo",
    "ACL SETUSER u (+ping ~a) (~b %R~c -@all)",
    "ACL SETUSER w NOPASS ~x ~y ~x %R~z %W~z &a &b allcommands -@dangerous -PING",
    "ACL GETUSER u",
    "ACL GETUSER nobody",
    "ACL GETUSER default",
    "ACL LIST",
    "ACL USERS",
    "ACL SETUSER u +foo",
    "ACL SETUSER u +@foo",
    "ACL SETUSER u foo",
    "ACL SETUSER u <nope",
    "ACL SETUSER u #zz",
    "ACL SETUSER u !zz",
    "ACL SETUSER u (+ping",
    "ACL SETUSER u (on)",
    "ACL SETUSER u ~* ~a",
    "ACL SETUSER u &* &a",
    "ACL SETUSER u %~r",
    "ACL SETUSER u +ping|",
    "ACL SETUSER u -ping|foo",
    "ACL SETUSER u +client|list|x",
    "ACL DRYRUN u ping",
    "ACL DRYRUN u info",
    "ACL DRYRUN u client kill 1",
    "ACL DRYRUN u subscribe foo bar",
    "ACL DRYRUN u sentinel foo",
    "ACL DRYRUN u sentinel",
    "ACL DRYRUN nobody ping",
    "ACL GENPASS 0",
    "ACL GENPASS x",
    "ACL GENPASS 1 2",
    "ACL LOG x",
    "ACL LOG 1 2",
    "ACL LOAD",
    "ACL SAVE",
    "ACL DELUSER",
    "ACL DELUSER default",
    "ACL DELUSER u nobody",
    "ACL DELUSER w",
    "ACL LIST",
];

/// Two sentinels of ours beside one of Valkey's.
fn group() -> Option<Group> {
    let valkey = Program::valkey()?;
    Some(Group::start(&valkey, &[Program::redoubt(), Program::redoubt(), valkey.clone()]))
}

#[test]
fn the_same_answers() {
    let Some(group) = group() else { return };
    let (ours, theirs) = (&group.sentinels[0], &group.sentinels[2]);
    for question in SAME {
        assert_eq!(ours.run(question), theirs.run(question), "{question}");
    }
}

/// Conversations: the connection (`a` or `b`) and its command. Of a log, only what does not depend on time and
/// identity.
const SAME_CONVERSATIONS: &[&str] = &[
    "a ACL SETUSER u on >p -@all +ping +subscribe +psubscribe +hello &foo",
    "b AUTH u bad",
    "b AUTH u p",
    "b PING",
    "b ACL WHOAMI",
    "b SENTINEL MASTERS",
    "b SENTINEL foo",
    "b INFO",
    "b SUBSCRIBE foo bar",
    "b PSUBSCRIBE fo*",
    "b HELLO 2 AUTH u bad",
    "a ACL LOG",
    "a ACL LOG RESET",
    "a ACL LOG",
    "b SUBSCRIBE foo",
    "b INFO",
    "a ACL SETUSER u resetchannels",
    "b PING",
    "a ACL SETUSER default off",
    "b PING",
    "b AUTH u p",
    "b PING",
    "a ACL SETUSER default on >secret",
    "b AUTH nope",
    "b AUTH secret",
    "b ACL WHOAMI",
    "a ACL DELUSER u",
    "b AUTH u p",
    "b HELLO 2 AUTH default secret SETNAME me",
    "b CLIENT GETNAME",
    "a ACL SETUSER default resetpass nopass",
    "a ACL SETUSER k on nopass +@all",
    "b AUTH k any",
    "a CLIENT KILL USER k",
    "b PING",
    "b CLIENT TRACKING on BCAST PREFIX a PREFIX b",
    "b CLIENT TRACKINGINFO",
    "b CLIENT TRACKING on",
    "b CLIENT TRACKING off",
    "b CLIENT TRACKING on OPTIN",
    "b CLIENT CACHING no",
    "b CLIENT CACHING yes",
    "b CLIENT GETREDIR",
    "b SUBSCRIBE x",
    "a CLIENT KILL TYPE pubsub",
    "b PING",
    "a CLIENT PAUSE 300",
    "b PING",
    "a CLIENT PAUSE 300 WRITE",
    "b PING",
    "b PUBLISH __sentinel__:hello foo",
    "a CLIENT UNPAUSE",
    "b CLIENT REPLY SKIP|PING|ECHO",
    "b CLIENT REPLY OFF|PING|CLIENT REPLY SKIP|PING|CLIENT REPLY ON",
    "b PING",
    "b PING",
];

/// The part of a reply that does not depend on time and identity.
fn steady(reply: &Value) -> String {
    let Value::Array(items) = reply else { return format!("{reply:?}") };
    match items.first() {
        Some(Value::Array(_)) => {
            let shown = ["count", "reason", "context", "object", "username"];
            let fields = items.iter().flat_map(|entry| entry.items().chunks_exact(2));
            let kept = fields.filter(|pair| shown.contains(&pair[0].text().as_str()));
            format!("{:?}", kept.collect::<Vec<_>>())
        }
        Some(Value::Bulk(first)) if first == b"server" => "hello".to_owned(),
        _ => format!("{reply:?}"),
    }
}

/// The last reply that a connection gets to these requests, sent at once. A new connection takes a closed
/// one's place.
fn converse(node: &Node, connection: &mut Connection, requests: &str) -> String {
    let (last, before) = requests.rsplit_once('|').map_or((requests, ""), |(before, last)| (last, before));
    for request in before.split('|').filter(|request| !request.is_empty()) {
        connection.send(&words(request)).expect("the connection stands");
    }
    match connection.try_call(&words(last)) {
        Ok(reply) => steady(&reply),
        Err(_) => {
            *connection = node.connect();
            // So that the node has taken it in, whatever another connection says next.
            let _ = connection.try_call(&["PING"]);
            "closed".to_owned()
        }
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn the_same_conversations() {
    let Some(group) = group() else { return };
    let nodes = [&group.sentinels[0], &group.sentinels[2]];
    let mut connections = nodes.map(|node| [node.connect(), node.connect()]);
    for line in SAME_CONVERSATIONS {
        let (who, requests) = line.split_once(' ').unwrap();
        let answers: Vec<String> = (0..2)
            .map(|place| converse(nodes[place], &mut connections[place][usize::from(who == "b")], requests))
            .collect();
        assert_eq!(answers[0], answers[1], "{line}");
    }
}

fn fields(node: &Node, question: &str) -> BTreeMap<String, String> {
    let reply = node.run(question);
    match reply.items().first() {
        Some(Value::Array(_)) => field_map(&reply.items()[0]),
        _ => field_map(&reply),
    }
}

/// A sentinel that asks for a vote is told which candidate got the last one, in whatever epoch; one that does not ask
/// for it is told nothing of it.
#[test]
fn the_same_votes() {
    let Some(group) = group() else { return };
    let port = group.servers[0].port;
    let (first, second) = ("a".repeat(40), "b".repeat(40));
    for (epoch, candidate) in [
        (0, "*"),
        (0, first.as_str()),
        (7, first.as_str()),
        (7, "*"),
        (7, second.as_str()),
        (6, second.as_str()),
        (0, second.as_str()),
        (8, "*"),
        (8, second.as_str()),
        (8, first.as_str()),
    ] {
        let question = format!("SENTINEL IS-MASTER-DOWN-BY-ADDR 127.0.0.1 {port} {epoch} {candidate}");
        let answers = [&group.sentinels[0], &group.sentinels[2]].map(|node| node.run(&question));
        assert_eq!(answers[0], answers[1], "{question}");
    }
}

/// The same fields of masters, replicas and sentinels, and the same values where they are not times.
#[test]
fn the_same_fields() {
    let Some(group) = group() else { return };
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
