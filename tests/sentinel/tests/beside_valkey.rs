//! The same group and the same deaths under our sentinels and under Valkey's: the same events at the sentinel that leads
//! and at one that follows, and the same words in the log.

use std::time::Duration;

use harness::{Connection, Group, MASTER, Node, Program, Value, eventually, eventually_within, field_map};
use sentinel_tests::catalogue::STEPS;

/// The events in one group.
#[derive(Debug, PartialEq)]
struct Story {
    /// The events that the leader published: names and payloads, without what differs by chance.
    leader: Vec<String>,
    /// The events of one of the others.
    follower: Vec<String>,
    /// The leader's log: the level's sign and the event, or the words that people search for.
    log: Vec<String>,
}

fn valkeys() -> Option<(Program, [Program; 3])> {
    let valkey = Program::valkey()?;
    Some((valkey.clone(), std::array::from_fn(|_| valkey.clone())))
}

/// A payload with names in the place of ports and identities.
fn shown(group: &Group, old: usize, new: usize, text: &str) -> String {
    let mut text = text.to_owned();
    for (place, node) in group.servers.iter().enumerate() {
        let name = match place {
            place if place == old => "OLD",
            place if place == new => "NEW",
            _ => "OTHER",
        };
        text = text.replace(&node.port.to_string(), name);
    }
    for node in &group.sentinels {
        let id = node.run("SENTINEL MYID").text();
        text = text.replace(&id, "ID").replace(&node.port.to_string(), "SENTINEL");
    }
    // How many held it for down at that moment is chance.
    text.split(" #quorum").next().unwrap_or_default().to_owned()
}

/// The messages that a subscriber has received so far.
fn heard(events: &mut Connection) -> Vec<(String, String)> {
    let mut all = Vec::new();
    while events.has_come() {
        let Ok(message) = events.read() else { break };
        if let [_, _, name, payload] = message.items() {
            all.push((name.text(), payload.text()));
        }
    }
    all
}

/// Does something to a group that is fine, waits until it is fine again, and tells what was seen.
fn tell(server: &Program, sentinels: &[Program], deed: impl Fn(&mut Group, usize)) -> Story {
    let mut group = Group::start(server, sentinels);
    // A machine with other work has been seen to keep Valkey's sentinels from one of their steps for the twenty seconds of
    // the group: they then gave that step up, and their story was another. So no sentinel gives up sooner than by
    // default.
    for node in &group.sentinels {
        node.run(&format!("SENTINEL SET {MASTER} failover-timeout 180000")).expect_ok();
    }
    // The sentinels agree before the subscriptions begin, so that events of that are not in the story.
    let old = group.master();
    let mut subscribers: Vec<Connection> = group.sentinels.iter().map(Node::connect).collect();
    for subscriber in &mut subscribers {
        subscriber.call(&["PSUBSCRIBE", "*"]);
    }
    deed(&mut group, old);
    let (new, _) = group.wait_for_successor(old);
    group.wait_until_whole();
    let mut events: Vec<Vec<(String, String)>> = subscribers.iter_mut().map(heard).collect();
    let switched = |events: &[(String, String)]| events.iter().any(|(name, _)| name == "+switch-master");
    eventually("every sentinel has published the switch", || {
        for (subscriber, events) in subscribers.iter_mut().zip(&mut events) {
            events.extend(heard(subscriber));
        }
        events.iter().all(|events| switched(events)).then_some(())
    });
    let leads = |events: &Vec<(String, String)>| events.iter().any(|(name, _)| name == "+elected-leader");
    let leader = events.iter().position(leads).expect("one was elected");
    let follower = (leader + 1) % events.len();
    let lines = |events: &[(String, String)]| -> Vec<String> {
        let steps = events.iter().filter(|(name, _)| STEPS.contains(&name.as_str()));
        let mut lines: Vec<String> =
            steps.map(|(name, payload)| format!("{name} {}", shown(&group, old, new, payload))).collect();
        // The replicas are taken up in any order, and more than one may be told of.
        let slaves = lines.iter().position(|line| line.starts_with("+slave ")).unwrap_or(lines.len());
        lines[slaves..].sort();
        lines
    };
    let log = group.sentinels[leader].log();
    let log = log.lines().filter_map(|line| {
        let (_, said) = line.split_once(&format!("{}:X ", group.sentinels[leader].pid()))?;
        // Day, month, year, time.
        let said = said.splitn(5, ' ').last()?;
        let (sign, words) = said.split_once(' ')?;
        let first = words.split(' ').next()?;
        let wanted =
            STEPS.contains(&first) || words.contains("voted for") || words.starts_with("Executing user");
        wanted.then(|| format!("{sign} {}", if words.contains("voted for") { "ID voted for" } else { first }))
    });
    // Those that were taken up at the start, and the votes, come when they come.
    let mut log: Vec<String> = log.collect();
    log.dedup();
    let at_once = |line: &String| !line.contains("voted for");
    let votes = log.iter().any(|line| !at_once(line));
    log.retain(at_once);
    log.extend(votes.then(|| "* ID voted for".to_owned()));
    Story { leader: lines(&events[leader]), follower: follower_of(&lines(&events[follower])), log }
}

/// A follower learns by itself that enough hold the master for down, or hears of the switch before.
fn follower_of(lines: &[String]) -> Vec<String> {
    lines.iter().filter(|line| !line.starts_with("+odown")).cloned().collect()
}

/// `votes`: whether Valkey's sentinels ask each other.
fn compare(votes: bool, deed: impl Fn(&mut Group, usize)) {
    let Some((valkey, theirs)) = valkeys() else { return };
    let ours: [Program; 3] = std::array::from_fn(|_| Program::redoubt());
    let expected = tell(&valkey, &theirs, &deed);
    let mut told = tell(&valkey, &ours, &deed);
    if !votes {
        told.follower.retain(|line| !line.starts_with("+vote-for-leader"));
        told.log.retain(|line| !line.contains("voted for"));
    }
    assert_eq!(told.leader, expected.leader, "the leader");
    assert_eq!(told.follower, expected.follower, "a follower");
    assert_eq!(told.log, expected.log, "the leader's log");
}

#[test]
fn a_master_that_is_killed() {
    compare(true, |group, old| group.servers[old].kill());
}

/// With ours a majority must agree to it, by choice: no two of them can act at once.
#[test]
fn a_failover_by_hand() {
    compare(false, |group, _| group.sentinels[0].run(&format!("SENTINEL FAILOVER {MASTER}")).expect_ok());
}

#[test]
fn a_coordinated_failover() {
    compare(true, |group, _| {
        group.sentinels[0].run(&format!("SENTINEL FAILOVER {MASTER} COORDINATED")).expect_ok();
    });
}

/// A sentinel loses its file and comes back as another one where it was: the others count one, not two.
#[test]
fn a_sentinel_that_lost_its_identity_is_counted_once() {
    let Some((valkey, theirs)) = valkeys() else { return };
    let ours: [Program; 3] = std::array::from_fn(|_| Program::redoubt());
    for sentinels in [&theirs, &ours] {
        let mut group = Group::start(&valkey, sentinels);
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
                    let peers = node.run(&format!("SENTINEL SENTINELS {MASTER}"));
                    let ids: Vec<String> =
                        peers.items().iter().map(|peer| field_map(peer)["runid"].clone()).collect();
                    (ids.len() == 2 && !ids.contains(&before)).then_some(())
                },
            );
            let master = field_map(&node.run(&format!("SENTINEL MASTER {MASTER}")));
            assert_eq!(master["num-other-sentinels"], "2");
        }
    }
}

/// A replica that is not to be announced is watched, and not shown to clients.
#[test]
fn a_replica_that_is_not_announced_is_not_shown() {
    let Some((valkey, theirs)) = valkeys() else { return };
    let ours: [Program; 3] = std::array::from_fn(|_| Program::redoubt());
    for sentinels in [&theirs, &ours] {
        let group = Group::start(&valkey, sentinels);
        group.servers[1].run("CONFIG SET replica-announced no").expect_ok();
        let hidden = group.servers[1].port.to_string();
        eventually_within(Duration::from_secs(30), "one replica is shown", || {
            let shown = group.sentinels[0].run(&format!("SENTINEL REPLICAS {MASTER}"));
            let ports: Vec<String> =
                shown.items().iter().map(|replica| field_map(replica)["port"].clone()).collect();
            (ports.len() == 1 && ports[0] != hidden).then_some(())
        });
        let master = field_map(&group.sentinels[0].run(&format!("SENTINEL MASTER {MASTER}")));
        assert_eq!(master["num-slaves"], "2");
    }
}

/// The fields of a sentinel's INFO that exporters and dashboards read, section by section.
#[test]
fn info_has_the_fields_that_exporters_read() {
    let Some((valkey, _)) = valkeys() else { return };
    let group = Group::start(&valkey, &[valkey.clone(), Program::redoubt(), Program::redoubt()]);
    let read = |node: &Node, section: &str| -> std::collections::BTreeSet<String> {
        let text = node.run(&format!("INFO {section}")).text();
        text.lines().filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect()
    };
    // Counters of the work of threads, defragmentation and buffers that a sentinel of ours does not have.
    const NOT_OURS: [&str; 9] = [
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
            .filter(|name| !ours.contains(*name) && !NOT_OURS.iter().any(|start| name.starts_with(start)))
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

/// The password of the others that SENTINEL CONFIG SET names is used for signing in to them from now on.
#[test]
fn a_changed_password_of_the_others_is_used_at_once() {
    let Some((valkey, _)) = valkeys() else { return };
    let group = Group::start(&valkey, &[Program::redoubt(), Program::redoubt(), Program::redoubt()]);
    for node in &group.sentinels[1..] {
        assert_eq!(node.run("ACL SETUSER friend on >word allchannels +@all"), Value::Simple("OK".into()));
    }
    group.sentinels[0].run("SENTINEL CONFIG SET sentinel-user friend sentinel-pass word").expect_ok();
    for node in &group.sentinels[1..] {
        eventually("it has signed in as the other user", || {
            node.run("CLIENT LIST").text().contains("user=friend").then_some(())
        });
    }
    eventually("and all are connected", || {
        let text = group.sentinels[0].run(&format!("SENTINEL CKQUORUM {MASTER}")).text();
        text.starts_with("OK 3 usable").then_some(())
    });
}
