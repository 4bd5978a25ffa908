//! Runs the same failures with Redoubt's and Valkey's sentinels and compares the events of the leader and of a
//! follower, and the log lines.

use std::time::Duration;

use harness::{
    Connection, MASTER_NAME, Node, Program, Reply, SentinelGroup, eventually, eventually_within, field_map,
};
use sentinel_tests::catalogue::FAILOVER_EVENTS;

/// What one group of sentinels published and logged during a failure.
#[derive(Debug, PartialEq)]
struct ObservedEvents {
    /// The events published by the leader: names and payloads without timing-dependent parts.
    leader: Vec<String>,
    /// The events published by a sentinel that is not the leader.
    follower: Vec<String>,
    /// The leader's log: the level sign and event of each line, or the words that people search for.
    log: Vec<String>,
}

fn valkey_programs() -> Option<(Program, [Program; 3])> {
    let valkey = Program::valkey()?;
    Some((valkey.clone(), std::array::from_fn(|_| valkey.clone())))
}

/// Replaces ports and run ids in an event payload by short names.
fn normalize_payload(group: &SentinelGroup, old_master: usize, new_master: usize, text: &str) -> String {
    let mut text = text.to_owned();
    for (place, node) in group.servers.iter().enumerate() {
        let name = match place {
            place if place == old_master => "OLD",
            place if place == new_master => "NEW",
            _ => "OTHER",
        };
        text = text.replace(&node.port.to_string(), name);
    }
    for node in &group.sentinels {
        let id = node.run("SENTINEL MYID").text();
        text = text.replace(&id, "ID").replace(&node.port.to_string(), "SENTINEL");
    }
    // The number of sentinels that agree when the event is published depends on timing.
    text.split(" #quorum").next().unwrap_or_default().to_owned()
}

/// The messages that a subscriber has received so far.
fn read_events(events: &mut Connection) -> Vec<(String, String)> {
    let mut all = Vec::new();
    while events.has_unread_data() {
        let Ok(message) = events.read() else { break };
        if let [_, _, name, payload] = message.items() {
            all.push((name.text(), payload.text()));
        }
    }
    all
}

/// Applies a failure to a healthy group, waits until it is healthy again, and returns the observed events.
fn observe_failure(
    server: &Program,
    sentinels: &[Program],
    cause_failure: impl Fn(&mut SentinelGroup, usize),
) -> ObservedEvents {
    let mut group = SentinelGroup::start(server, sentinels);
    // On a busy machine, Valkey's sentinels exceeded the shortened timeout of the group and aborted the failover. All
    // sentinels therefore use the default timeout.
    for node in &group.sentinels {
        node.run(&format!("SENTINEL SET {MASTER_NAME} failover-timeout 180000")).expect_ok();
    }
    // Wait until the sentinels agree, so that discovery events are not recorded.
    let old = group.wait_for_master();
    let mut subscribers: Vec<Connection> = group.sentinels.iter().map(Node::connect).collect();
    for subscriber in &mut subscribers {
        subscriber.call(&["PSUBSCRIBE", "*"]);
    }
    cause_failure(&mut group, old);
    let (new, _) = group.wait_for_successor(old);
    group.wait_until_healthy();
    let mut events: Vec<Vec<(String, String)>> = subscribers.iter_mut().map(read_events).collect();
    let switched = |events: &[(String, String)]| events.iter().any(|(name, _)| name == "+switch-master");
    eventually("every sentinel has published the switch", || {
        for (subscriber, events) in subscribers.iter_mut().zip(&mut events) {
            events.extend(read_events(subscriber));
        }
        events.iter().all(|events| switched(events)).then_some(())
    });
    let leads = |events: &Vec<(String, String)>| events.iter().any(|(name, _)| name == "+elected-leader");
    let leader = events.iter().position(leads).expect("one was elected");
    let follower = (leader + 1) % events.len();
    let lines = |events: &[(String, String)]| -> Vec<String> {
        let steps = events.iter().filter(|(name, _)| FAILOVER_EVENTS.contains(&name.as_str()));
        let mut lines: Vec<String> = steps
            .map(|(name, payload)| format!("{name} {}", normalize_payload(&group, old, new, payload)))
            .collect();
        // Replicas are discovered in any order, and more than one may be reported.
        let slaves = lines.iter().position(|line| line.starts_with("+slave ")).unwrap_or(lines.len());
        lines[slaves..].sort();
        lines
    };
    let log = group.sentinels[leader].log();
    let log = log.lines().filter_map(|line| {
        let (_, said) = line.split_once(&format!("{}:X ", group.sentinels[leader].pid()))?;
        // Skip the day, the month, the year and the time.
        let said = said.splitn(5, ' ').last()?;
        let (sign, words) = said.split_once(' ')?;
        let first = words.split(' ').next()?;
        let wanted = FAILOVER_EVENTS.contains(&first)
            || words.contains("voted for")
            || words.starts_with("Executing user");
        wanted.then(|| format!("{sign} {}", if words.contains("voted for") { "ID voted for" } else { first }))
    });
    // The order in which replicas and votes appear depends on timing.
    let mut log: Vec<String> = log.collect();
    log.dedup();
    let at_once = |line: &String| !line.contains("voted for");
    let votes = log.iter().any(|line| !at_once(line));
    log.retain(at_once);
    log.extend(votes.then(|| "* ID voted for".to_owned()));
    ObservedEvents {
        leader: lines(&events[leader]),
        follower: follower_events(&lines(&events[follower])),
        log,
    }
}

/// Removes `+odown`, which depends on timing: a follower either detects by itself that the master is objectively down,
/// or learns about the switch first.
fn follower_events(lines: &[String]) -> Vec<String> {
    lines.iter().filter(|line| !line.starts_with("+odown")).cloned().collect()
}

/// Compares Redoubt's and Valkey's sentinels. `votes` says whether Valkey's sentinels need votes in this failover.
fn assert_same_events(compares_votes: bool, cause_failure: impl Fn(&mut SentinelGroup, usize)) {
    let Some((valkey, theirs)) = valkey_programs() else { return };
    let ours: [Program; 3] = std::array::from_fn(|_| Program::redoubt());
    let expected = observe_failure(&valkey, &theirs, &cause_failure);
    let mut told = observe_failure(&valkey, &ours, &cause_failure);
    if !compares_votes {
        told.follower.retain(|line| !line.starts_with("+vote-for-leader"));
        told.log.retain(|line| !line.contains("voted for"));
    }
    assert_eq!(told.leader, expected.leader, "the leader");
    assert_eq!(told.follower, expected.follower, "a follower");
    assert_eq!(told.log, expected.log, "the leader's log");
}

#[test]
fn killed_master_causes_the_same_events_as_in_valkey() {
    assert_same_events(true, |group, old| group.servers[old].kill());
}

/// Redoubt requires a majority even for a manual failover, so that two sentinels cannot act at the same time.
#[test]
fn manual_failover_causes_the_same_events_as_in_valkey() {
    assert_same_events(false, |group, _| {
        group.sentinels[0].run(&format!("SENTINEL FAILOVER {MASTER_NAME}")).expect_ok();
    });
}

#[test]
fn coordinated_failover_causes_the_same_events_as_in_valkey() {
    assert_same_events(true, |group, _| {
        group.sentinels[0].run(&format!("SENTINEL FAILOVER {MASTER_NAME} COORDINATED")).expect_ok();
    });
}

/// A sentinel that lost its file returns with a new run id at the same address; the others count it once.
#[test]
fn sentinel_with_a_new_run_id_is_counted_once() {
    let Some((valkey, theirs)) = valkey_programs() else { return };
    let ours: [Program; 3] = std::array::from_fn(|_| Program::redoubt());
    for sentinels in [&theirs, &ours] {
        let mut group = SentinelGroup::start(&valkey, sentinels);
        let before = group.sentinels[2].run("SENTINEL MYID").text();
        group.sentinels[2].kill();
        let file = group.sentinels[2].folder().join("sentinel.conf");
        let text = std::fs::read_to_string(&file).expect("it can be read");
        let kept = text.lines().filter(|line| !line.contains("myid") && !line.contains("known-sentinel"));
        std::fs::write(&file, kept.map(|line| format!("{line}\n")).collect::<String>())
            .expect("it can be written");
        group.sentinels[2].launch();
        assert_ne!(group.sentinels[2].run("SENTINEL MYID").text(), before);
        for node in &group.sentinels[..2] {
            eventually_within(
                Duration::from_secs(20),
                "the new one is known, and the old one is not",
                || {
                    let peers = node.run(&format!("SENTINEL SENTINELS {MASTER_NAME}"));
                    let ids: Vec<String> =
                        peers.items().iter().map(|peer| field_map(peer)["runid"].clone()).collect();
                    (ids.len() == 2 && !ids.contains(&before)).then_some(())
                },
            );
            let master = field_map(&node.run(&format!("SENTINEL MASTER {MASTER_NAME}")));
            assert_eq!(master["num-other-sentinels"], "2");
        }
    }
}

/// A replica with `replica-announced no` is monitored but not shown to clients.
#[test]
fn unannounced_replica_is_hidden_from_clients() {
    let Some((valkey, theirs)) = valkey_programs() else { return };
    let ours: [Program; 3] = std::array::from_fn(|_| Program::redoubt());
    for sentinels in [&theirs, &ours] {
        let group = SentinelGroup::start(&valkey, sentinels);
        group.servers[1].run("CONFIG SET replica-announced no").expect_ok();
        let hidden = group.servers[1].port.to_string();
        eventually_within(Duration::from_secs(30), "one replica is shown", || {
            let shown = group.sentinels[0].run(&format!("SENTINEL REPLICAS {MASTER_NAME}"));
            let ports: Vec<String> =
                shown.items().iter().map(|replica| field_map(replica)["port"].clone()).collect();
            (ports.len() == 1 && ports[0] != hidden).then_some(())
        });
        let master = field_map(&group.sentinels[0].run(&format!("SENTINEL MASTER {MASTER_NAME}")));
        assert_eq!(master["num-slaves"], "2");
    }
}

/// The INFO fields that exporters and dashboards read, by section.
#[test]
fn info_has_the_fields_that_exporters_read() {
    let Some((valkey, _)) = valkey_programs() else { return };
    let group = SentinelGroup::start(&valkey, &[valkey.clone(), Program::redoubt(), Program::redoubt()]);
    let read = |node: &Node, section: &str| -> std::collections::BTreeSet<String> {
        let text = node.run(&format!("INFO {section}")).text();
        text.lines().filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect()
    };
    // Counters of I/O threads, defragmentation and buffers that Redoubt's sentinel does not have.
    const OMITTED_FIELDS: [&str; 9] = [
        "io_threaded_",
        "active_defrag",
        "eventloop_",
        "reply_buffer_",
        "listener",
        "valkey_",
        "total_net_cluster_",
        "instantaneous_eventloop_",
        "used_active_time",
    ];
    for section in ["server", "clients", "stats", "cpu", "sentinel", "keyspace", "replication", "nosuch"] {
        let (theirs, ours) = (read(&group.sentinels[0], section), read(&group.sentinels[1], section));
        let missing: Vec<&String> = theirs
            .iter()
            .filter(|name| {
                !ours.contains(*name) && !OMITTED_FIELDS.iter().any(|start| name.starts_with(start))
            })
            .collect();
        assert_eq!(missing, Vec::<&String>::new(), "{section}");
    }
    let moved =
        |field: &str| group.sentinels[1].info("stats", field).and_then(|value| value.parse::<u64>().ok());
    for field in ["total_net_input_bytes", "total_net_output_bytes", "total_reads_processed"] {
        assert!(moved(field).is_some_and(|count| count > 0), "{field}");
    }
    assert_eq!(moved("keyspace_hits"), Some(0));
}

/// After SENTINEL CONFIG SET changes the password for other sentinels, the new password must be used at once.
#[test]
fn changed_sentinel_password_is_used_at_once() {
    let Some((valkey, _)) = valkey_programs() else { return };
    let group = SentinelGroup::start(&valkey, &[Program::redoubt(), Program::redoubt(), Program::redoubt()]);
    for node in &group.sentinels[1..] {
        assert_eq!(node.run("ACL SETUSER friend on >word allchannels +@all"), Reply::Simple("OK".into()));
    }
    group.sentinels[0].run("SENTINEL CONFIG SET sentinel-user friend sentinel-pass word").expect_ok();
    for node in &group.sentinels[1..] {
        eventually("it has signed in as the other user", || {
            node.run("CLIENT LIST").text().contains("user=friend").then_some(())
        });
    }
    eventually("and all are connected", || {
        let text = group.sentinels[0].run(&format!("SENTINEL CKQUORUM {MASTER_NAME}")).text();
        text.starts_with("OK 3 usable").then_some(())
    });
}
