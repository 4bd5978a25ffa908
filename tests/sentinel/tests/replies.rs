//! Tests that Redoubt and Valkey sentinels give the same replies to the same queries.

use std::collections::BTreeMap;

use harness::{Connection, MASTER_NAME, Node, Program, Reply, SentinelGroup, eventually, field_map};
use sentinel_tests::queries::{
    EQUAL_CONVERSATIONS, EQUAL_REPLY_QUERIES, FIELD_QUERIES, INFO_CACHE_QUERY, MYID_QUERY,
};

/// Two Redoubt sentinels and one Valkey sentinel.
fn start_group() -> Option<SentinelGroup> {
    let valkey = Program::valkey()?;
    Some(SentinelGroup::start(&valkey, &[Program::redoubt(), Program::redoubt(), valkey.clone()]))
}

#[test]
fn replies_equal_those_of_valkey() {
    let Some(group) = start_group() else { return };
    let (ours, theirs) = (&group.sentinels[0], &group.sentinels[2]);
    for question in EQUAL_REPLY_QUERIES {
        assert_eq!(ours.run(question), theirs.run(question), "{question}");
    }
}

/// Root ignores directory permissions, so a directory in the place of the file makes writing fail.
#[test]
fn change_that_cannot_be_saved_is_an_error() {
    let Some(group) = start_group() else { return };
    let nodes = [&group.sentinels[0], &group.sentinels[2]];
    for node in nodes {
        let file = node.folder().join("sentinel.conf");
        std::fs::remove_file(&file).expect("it is there");
        std::fs::create_dir_all(file.join("inside")).expect("the folder can be made");
    }
    let changes = [
        "SENTINEL FLUSHCONFIG".to_owned(),
        format!("SENTINEL SET {MASTER_NAME} quorum 2"),
        format!("SENTINEL SET {MASTER_NAME} quorum no"),
        "SENTINEL CONFIG SET announce-port 0".to_owned(),
        "SENTINEL MONITOR other 127.0.0.1 1 1".to_owned(),
        "SENTINEL RESET other".to_owned(),
        "SENTINEL REMOVE other".to_owned(),
    ];
    for change in &changes {
        let [ours, theirs] = nodes.map(|node| node.run(change));
        assert_eq!(ours, theirs, "{change}");
    }
    let refusal = nodes[0].run(&changes[0]);
    assert!(refusal.is_error("ERR Failed to save config file"), "{refusal:?}");
}

/// The part of a reply that depends neither on time nor on run ids.
fn stable_part(reply: &Reply) -> String {
    let Reply::Array(items) = reply else { return format!("{reply:?}") };
    match items.first() {
        Some(Reply::Array(_)) => {
            let shown = ["count", "reason", "context", "object", "username"];
            let fields = items.iter().flat_map(|entry| entry.items().chunks_exact(2));
            let kept = fields.filter(|pair| shown.contains(&pair[0].text().as_str()));
            format!("{:?}", kept.collect::<Vec<_>>())
        }
        Some(Reply::Bulk(first)) if first == b"server" => "hello".to_owned(),
        _ => format!("{reply:?}"),
    }
}

/// Sends pipelined requests and returns the last reply. If the connection is closed, a new one replaces it.
fn send_pipeline(node: &Node, connection: &mut Connection, requests: &str) -> String {
    let (last, before) = requests.rsplit_once('|').map_or((requests, ""), |(before, last)| (last, before));
    for request in before.split('|').filter(|request| !request.is_empty()) {
        connection.send(&split_words(request)).expect("the connection stands");
    }
    match connection.try_call(&split_words(last)) {
        Ok(reply) => stable_part(&reply),
        Err(_) => {
            *connection = node.connect();
            // The PING makes sure that the node has processed the requests before another connection sends any.
            let _ = connection.try_call(&["PING"]);
            "closed".to_owned()
        }
    }
}

fn split_words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn conversations_equal_those_of_valkey() {
    let Some(group) = start_group() else { return };
    let nodes = [&group.sentinels[0], &group.sentinels[2]];
    let mut connections = nodes.map(|node| [node.connect(), node.connect()]);
    for line in EQUAL_CONVERSATIONS {
        let (who, requests) = line.split_once(' ').unwrap();
        let answers: Vec<String> = (0..2)
            .map(|place| {
                send_pipeline(nodes[place], &mut connections[place][usize::from(who == "b")], requests)
            })
            .collect();
        assert_eq!(answers[0], answers[1], "{line}");
    }
}

fn reply_fields(node: &Node, query: &str) -> BTreeMap<String, String> {
    let reply = node.run(query);
    match reply.items().first() {
        Some(Reply::Array(_)) => field_map(&reply.items()[0]),
        _ => field_map(&reply),
    }
}

/// A sentinel that requests a vote learns the last vote, whatever its epoch. A sentinel that does not request a vote
/// learns nothing about votes.
#[test]
fn votes_equal_those_of_valkey() {
    let Some(group) = start_group() else { return };
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

/// Masters, replicas and sentinels are shown with the same fields as in Valkey, with equal values unless they depend on
/// time.
#[test]
fn fields_equal_those_of_valkey() {
    let Some(group) = start_group() else { return };
    let steady =
        ["flags", "ip", "role-reported", "quorum", "num-slaves", "num-other-sentinels", "master-link-status"];
    for question in FIELD_QUERIES {
        eventually(&format!("the same to {question}"), || {
            let ours = reply_fields(&group.sentinels[0], question);
            let theirs = reply_fields(&group.sentinels[2], question);
            let names = |fields: &BTreeMap<String, String>| fields.keys().cloned().collect::<Vec<_>>();
            let same = steady.iter().all(|name| ours.get(*name) == theirs.get(*name));
            (names(&ours) == names(&theirs) && same).then_some(())
        });
    }
}

/// The cached INFO of the master and of each replica must have the same format as in Valkey.
#[test]
fn info_cache_equals_that_of_valkey() {
    let Some(group) = start_group() else { return };
    let roles = |node: &Node| -> Vec<String> {
        let reply = node.run(INFO_CACHE_QUERY);
        let [name, cached] = reply.items() else { panic!("{reply:?}") };
        assert_eq!(name.text(), MASTER_NAME);
        let role = |cached: &Reply| {
            let [age, text] = cached.items() else { panic!("{cached:?}") };
            assert!(matches!(age, Reply::Int(0..)), "{age:?}");
            let text = text.text();
            text.lines().find(|line| line.starts_with("role:")).map(str::to_owned)
        };
        cached.items().iter().filter_map(role).collect()
    };
    for node in [&group.sentinels[0], &group.sentinels[2]] {
        eventually("everybody's information is there", || {
            (roles(node) == ["role:master", "role:slave", "role:slave"]).then_some(())
        });
    }
}

#[test]
fn run_ids_have_the_format_of_valkey() {
    let Some(group) = start_group() else { return };
    for node in [&group.sentinels[0], &group.sentinels[2]] {
        let Reply::Bulk(id) = node.run(MYID_QUERY) else { panic!("no text") };
        assert!(id.len() == 40 && id.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{id:?}");
    }
}
