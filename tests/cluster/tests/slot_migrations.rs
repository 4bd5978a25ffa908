//! Slots that move in one piece (CLUSTER MIGRATESLOTS), while clients write and nodes die.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cluster_tests::key_for_every_slot;
use harness::{Cluster, Connection, Kind, Node, Program, Relays, Value, eventually, eventually_within};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A move, and what follows when it comes to nothing, has ended within this.
const MOVED: Duration = Duration::from_secs(30);
/// The slots that move from node 0 to node 1.
const SLOTS: std::ops::RangeInclusive<u16> = 0..=99;

fn cluster() -> Cluster {
    Cluster::start(&Program::redoubt(), 3, 1)
}

fn keys() -> Vec<String> {
    let tags = key_for_every_slot();
    let of_slot = |slot: u16| (0..20).map(move |number| (slot, number));
    SLOTS
        .flat_map(of_slot)
        .map(|(slot, number)| format!("{number}:{{{}}}", tags[usize::from(slot)]))
        .collect()
}

/// Writes some kinds of values beside the counters.
fn fill(cluster: &Cluster, keys: &[String]) {
    let mut owner = cluster.nodes[0].connect();
    for key in keys {
        owner.call(&["RPUSH", &format!("list:{key}"), "a", "b", key]);
        owner.call(&["SET", &format!("timed:{key}"), key, "EX", "1000"]).expect_ok();
    }
}

fn begin(cluster: &Cluster, to: usize) {
    let (first, last) = (SLOTS.start(), SLOTS.end());
    let command = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {first} {last} NODE {}", cluster.id(to));
    cluster.nodes[0].run(&command).expect_ok();
}

/// A field of the newest job that a node knows of.
fn newest(node: &Node, field: &str) -> Option<String> {
    let jobs = node.try_connect().ok()?.run("CLUSTER GETSLOTMIGRATIONS");
    let job = jobs.items().first()?.items().to_vec();
    let at = job.chunks(2).find(|pair| pair[0].text() == field)?;
    Some(at[1].text())
}

fn wait_for_state(node: &Node, state: &str) {
    eventually_within(MOVED, &format!("the job is in state {state}"), || {
        (newest(node, "state").as_deref() == Some(state)).then_some(())
    });
}

fn is_moved(reply: &Value) -> Option<u16> {
    let Value::Error(text) = reply else { return None };
    text.strip_prefix("MOVED ")?.rsplit(':').next()?.parse().ok()
}

/// Counts the keys up, one after the other, wherever MOVED leads it, until told to stop; says how often each was
/// counted.
fn count_up(nodes: &[u16], keys: &[String], stop: &AtomicBool) -> Vec<i64> {
    let mut connections: BTreeMap<u16, Connection> = nodes
        .iter()
        .map(|port| (*port, Connection::open(("127.0.0.1", *port)).expect("a node is there")))
        .collect();
    let mut counts = vec![0; keys.len()];
    let mut owner = nodes[0];
    while !stop.load(Ordering::Relaxed) {
        for (key, count) in keys.iter().zip(&mut counts) {
            let mut tries = 0;
            loop {
                let reply = connections.get_mut(&owner).expect("one of the nodes").call(&["INCR", key]);
                match is_moved(&reply) {
                    Some(port) if tries < 1000 => owner = port,
                    Some(_) => panic!("nobody serves {key}"),
                    None => {
                        *count += 1;
                        assert_eq!(reply, Value::Int(*count), "{key}");
                        break;
                    }
                }
                tries += 1;
            }
        }
    }
    counts
}

/// Keys that a walk through a node shows.
fn shown(node: &Node) -> i64 {
    node.run("DBSIZE").int()
}

#[test]
fn slots_move_whole_while_clients_write_to_them() {
    let cluster = cluster();
    let keys = keys();
    fill(&cluster, &keys);
    let ports: Vec<u16> = cluster.nodes[..3].iter().map(|node| node.port).collect();
    let stop = AtomicBool::new(false);
    let counts = thread::scope(|scope| {
        let counting = scope.spawn(|| count_up(&ports, &keys, &stop));
        begin(&cluster, 1);
        wait_for_state(&cluster.nodes[0], "success");
        stop.store(true, Ordering::Relaxed);
        counting.join().expect("no client saw anything but MOVED, and no count was lost")
    });
    wait_for_state(&cluster.nodes[1], "success");
    wait_for_state(&cluster.nodes[4], "success");
    assert_eq!(newest(&cluster.nodes[4], "target_node"), None, "a replica is not told between whom");
    let mut target = cluster.nodes[1].connect();
    for (key, count) in keys.iter().zip(counts) {
        assert_eq!(target.call(&["GET", key]).text(), count.to_string(), "{key}");
        assert_eq!(target.call(&["LRANGE", &format!("list:{key}"), "0", "-1"]).items().len(), 3);
        assert!(target.call(&["TTL", &format!("timed:{key}")]).int() > 900);
    }
    let all = 3 * i64::try_from(keys.len()).unwrap();
    eventually(
        "the source has given them away, and the replicas of both have what their masters have",
        || {
            let counts = [0, 1, 3, 4].map(|node: usize| shown(&cluster.nodes[node]));
            (counts == [0, all, 0, all]).then_some(())
        },
    );
}

#[test]
fn a_move_goes_on_when_its_link_breaks() {
    let relays = Relays::make().expect("Linux has the whole loopback network");
    let nodes = (0..3).map(|number| {
        let mut node = Node::prepare_behind(&relays, number, Kind::Clustered, &Program::redoubt());
        node.add_options("--cluster-enabled yes");
        node.launch();
        node
    });
    let cluster = Cluster::join(nodes.collect(), 3);
    let keys = keys();
    fill(&cluster, &keys);
    // Some microseconds a key, so that the snapshot is on its way when the link breaks.
    cluster.nodes[0].run("CONFIG SET rdb-key-save-delay 300").expect_ok();
    let ports: Vec<u16> = cluster.nodes[..3].iter().map(|node| node.port).collect();
    let stop = AtomicBool::new(false);
    let (mut broken, mut seen) = (0, BTreeSet::new());
    let counts = thread::scope(|scope| {
        let counting = scope.spawn(|| count_up(&ports, &keys, &stop));
        begin(&cluster, 1);
        eventually_within(MOVED, "the move has ended", || {
            let state = newest(&cluster.nodes[0], "state").expect("there is a job");
            let is_over = ["success", "failed"].contains(&state.as_str());
            // The target knows of the job from here on.
            if !["connecting", "reading-establish-response"].contains(&state.as_str()) {
                broken += relays.break_links(0, 1);
            }
            seen.insert(state);
            is_over.then_some(())
        });
        stop.store(true, Ordering::Relaxed);
        counting.join().expect("no client saw anything but MOVED, and no count was lost")
    });
    assert_eq!(newest(&cluster.nodes[0], "message").as_deref(), Some(""));
    wait_for_state(&cluster.nodes[1], "success");
    assert!(broken > 3 && seen.contains("snapshotting"), "{broken} links broke in the states {seen:?}");
    let mut target = cluster.nodes[1].connect();
    for (key, count) in keys.iter().zip(counts) {
        assert_eq!(target.call(&["GET", key]).text(), count.to_string(), "{key}");
        assert_eq!(target.call(&["LRANGE", &format!("list:{key}"), "0", "-1"]).items().len(), 3);
    }
    let log = cluster.nodes[0].log();
    assert!(log.contains("goes on with another link"), "{log}");
}

#[test]
fn nothing_is_seen_of_a_move_that_is_called_off() {
    let cluster = cluster();
    let keys = keys();
    fill(&cluster, &keys);
    let all = shown(&cluster.nodes[0]);
    let command = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 0 99 NODE {}", cluster.id(1));
    cluster.nodes[1].freeze();
    cluster.nodes[0].run(&command).expect_ok();
    let busy = cluster.nodes[0].run(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 5 5 NODE {}", cluster.id(2)));
    assert_eq!(busy, Value::Error("ERR I am already migrating slot 5.".into()));
    cluster.nodes[0].run("CLUSTER CANCELSLOTMIGRATIONS").expect_ok();
    wait_for_state(&cluster.nodes[0], "cancelled");
    let none = cluster.nodes[0].run("CLUSTER CANCELSLOTMIGRATIONS");
    assert_eq!(none, Value::Error("ERR No migrations ongoing".into()));
    cluster.nodes[1].thaw();
    cluster.wait_until_ok();
    // The part of the job that it has read by then comes to nothing.
    begin(&cluster, 1);
    wait_for_state(&cluster.nodes[0], "success");
    eventually("the keys are where the slots are", || (shown(&cluster.nodes[1]) == all).then_some(()));
    // Of the jobs that have ended, as many are listed as the configuration says.
    let listed = || cluster.nodes[0].run("CLUSTER GETSLOTMIGRATIONS").items().len();
    assert_eq!(listed(), 2);
    cluster.nodes[0].run("CONFIG SET cluster-slot-migration-log-max-len 0").expect_ok();
    cluster.nodes[0]
        .run(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 200 200 NODE {}", cluster.id(1)))
        .expect_ok();
    assert_eq!(listed(), 1);
    wait_for_state(&cluster.nodes[0], "success");
}

/// The target is killed at some moment of a move: the source goes on with what it has, or the target has all of it.
#[test]
fn a_target_that_dies_has_the_slots_or_the_source_has() {
    for wait in [0, 5, 20, 60] {
        let mut cluster = Cluster::start(&Program::redoubt(), 3, 0);
        // The target's own slots are nobody's once it is dead.
        for node in &cluster.nodes {
            node.run("CONFIG SET cluster-require-full-coverage no").expect_ok();
        }
        let keys = keys();
        fill(&cluster, &keys);
        let all = shown(&cluster.nodes[0]);
        begin(&cluster, 1);
        thread::sleep(Duration::from_millis(wait));
        cluster.nodes[1].kill();
        eventually_within(MOVED, "the source knows how it ended", || {
            let state = newest(&cluster.nodes[0], "state")?;
            ["success", "failed"].contains(&state.as_str()).then_some(())
        });
        if newest(&cluster.nodes[0], "state").as_deref() == Some("failed") {
            assert_eq!(shown(&cluster.nodes[0]), all, "killed after {wait} ms");
            let mut source = cluster.nodes[0].connect();
            assert_eq!(source.call(&["SET", &keys[0], "x"]), Value::Simple("OK".into()), "writes go on");
        }
    }
}

#[test]
fn a_source_that_dies_leaves_nothing_at_the_target() {
    let mut cluster = cluster();
    let keys = keys();
    fill(&cluster, &keys);
    let all = shown(&cluster.nodes[0]);
    begin(&cluster, 1);
    cluster.nodes[0].kill();
    eventually_within(MOVED, "its replica has the slots, or the target has", || {
        let counts = [1, 3, 4].map(|node: usize| shown(&cluster.nodes[node]));
        // The target's replica has what the target has. The source may have died while it deleted what had left.
        (counts == [0, all, 0] || counts[0] == all && counts[2] == all).then_some(())
    });
}

#[test]
fn wrong_moves_are_refused_as_by_valkey() {
    let cluster = Cluster::start(&Program::redoubt(), 2, 1);
    let (me, other) = (cluster.id(0), cluster.id(1));
    let table = [
        (format!("SLOTSRANGE 1 2 NODE {me}"), "ERR Target node can not be this node."),
        (format!("SLOTSRANGE 16000 16001 NODE {other}"), "ERR Slots are not served by this node."),
        (
            "SLOTSRANGE 1 2 NODE 0123456789012345678901234567890123456789".to_owned(),
            "ERR Unknown node name: 0123456789012345678901234567890123456789",
        ),
        (format!("SLOTSRANGE 1 2 2 3 NODE {other}"), "ERR Slot range 2-3 overlaps with previous range 1-2."),
        ("a b".to_owned(), "ERR syntax error"),
    ];
    for (words, error) in table {
        let reply = cluster.nodes[0].run(&format!("CLUSTER MIGRATESLOTS {words}"));
        assert_eq!(reply, Value::Error(error.to_owned()), "{words}");
    }
    let on_replica = cluster.nodes[2].run(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 1 2 NODE {other}"));
    assert_eq!(on_replica, Value::Error("ERR Slot migration can only be used on primary nodes.".to_owned()));
    let ack = cluster.nodes[0].run("CLUSTER SYNCSLOTS ACK");
    let text = "ERR CLUSTER SYNCSLOTS ACK should only be used by slot migration clients";
    assert_eq!(ack, Value::Error(text.to_owned()));
    let to_replica = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 1 2 NODE {}", cluster.id(3));
    cluster.nodes[0].run(&to_replica).expect_ok();
    wait_for_state(&cluster.nodes[0], "failed");
    let message = newest(&cluster.nodes[0], "message").unwrap();
    assert!(message.contains("Slot migration can only be used on primary nodes."), "{message}");
}

/// The tasks that CLUSTER MIGRATION STATUS shows for `which`, as their fields.
fn tasks(node: &Node, which: &str) -> Vec<BTreeMap<String, String>> {
    let reply = node.run(&format!("CLUSTER MIGRATION STATUS {which}"));
    let shown = |value: &Value| match value {
        Value::Int(number) => number.to_string(),
        text => text.text(),
    };
    let task =
        |value: &Value| value.items().chunks(2).map(|pair| (pair[0].text(), shown(&pair[1]))).collect();
    reply.items().iter().map(task).collect()
}

fn wait_for_task(node: &Node, id: &str, state: &str) -> BTreeMap<String, String> {
    eventually_within(MOVED, &format!("task {id} is {state}"), || {
        let task = tasks(node, &format!("ID {id}")).pop()?;
        (task["state"] == state).then_some(task)
    })
}

#[test]
fn a_node_asks_for_slots_as_in_redis() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 0);
    let keys = keys();
    fill(&cluster, &keys);
    let all = shown(&cluster.nodes[0]);
    let id = cluster.nodes[1].run("CLUSTER MIGRATION IMPORT 0 49 50 99").text();
    let imported = wait_for_task(&cluster.nodes[1], &id, "completed");
    let moved = wait_for_task(&cluster.nodes[0], &id, "completed");
    for (task, operation) in [(&imported, "import"), (&moved, "migrate")] {
        let expected = [
            ("operation", operation),
            ("slots", "0-49 50-99"),
            ("source", &cluster.id(0)),
            ("dest", &cluster.id(1)),
            ("last_error", ""),
            ("retries", "0"),
        ];
        expected.iter().for_each(|(field, value)| assert_eq!(task[*field], *value, "{field} of {task:?}"));
        assert!(task["end_time"].parse::<u64>().unwrap() >= task["create_time"].parse().unwrap(), "{task:?}");
    }
    assert_eq!(moved.len(), 12);
    eventually("the slots are there, whole", || {
        ([0, 1].map(|node: usize| shown(&cluster.nodes[node])) == [0, all]).then_some(())
    });
    assert_eq!(cluster.nodes[1].run(&format!("CLUSTER MIGRATION CANCEL ID {id}")), Value::Int(0));
    assert_eq!(tasks(&cluster.nodes[1], "ID nosuch").len(), 0);
    let arity = "ERR wrong number of arguments for 'cluster|migration' command";
    for (words, error) in [
        ("IMPORT 5", arity),
        ("IMPORT 5 6 7", arity),
        ("IMPORT 6 5", "ERR Start slot number 6 is greater than end slot number 5."),
        ("IMPORT 16000 17000", "ERR Invalid or out of range slot"),
        ("IMPORT 0 1", "ERR this node is already the owner of the slot range"),
        ("IMPORT 200 16000", "ERR slots belong to different source nodes"),
        ("STATUS nosuch", "ERR unknown argument"),
        ("nosuch ALL", "ERR unknown argument"),
        ("CANCEL ID", arity),
    ] {
        let reply = cluster.nodes[1].run(&format!("CLUSTER MIGRATION {words}"));
        assert_eq!(reply, Value::Error(error.to_owned()), "{words}");
    }
}

#[test]
fn a_node_that_asks_for_slots_tries_again_until_it_is_told_not_to() {
    let mut cluster = Cluster::start(&Program::redoubt(), 3, 0);
    cluster.nodes[2].kill();
    let id = cluster.nodes[1].run("CLUSTER MIGRATION IMPORT 16000 16010").text();
    let task = eventually_within(MOVED, "it was tried again", || {
        tasks(&cluster.nodes[1], "ALL").pop().filter(|task| task["retries"] != "0")
    });
    assert_eq!(task["id"], id);
    assert_ne!(task["last_error"], "");
    assert_eq!(cluster.nodes[1].run("CLUSTER MIGRATION CANCEL ALL"), Value::Int(1));
    wait_for_task(&cluster.nodes[1], &id, "canceled");
}

/// Kills the source or the target of a move at a random moment, and starts it again, so many times. Each has all its
/// writes on disk before it answers, so whatever was acknowledged must be in one place, and in one only.
fn kill_either_side(rounds: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(rounds);
    let options = "--cluster-enabled yes --cluster-node-timeout 2000 --appendonly yes --appendfsync always";
    let nodes = (0..2).map(|_| Node::start(&Program::redoubt(), options)).collect();
    let mut cluster = Cluster::join(nodes, 2);
    let tags = key_for_every_slot();
    let keys: Vec<String> = SLOTS.map(|slot| format!("{{{}}}", tags[usize::from(slot)])).collect();
    let mut counts = vec![0; keys.len()];
    let mut owner = 0;
    keys.iter().for_each(|key| cluster.nodes[owner].run(&format!("SET {key} 0")).expect_ok());
    for round in 0..rounds {
        let target = 1 - owner;
        let victim = random.random_range(0..2);
        let wait = Duration::from_micros(random.random_range(0..60_000));
        let ports: Vec<u16> = cluster.nodes.iter().map(|node| node.port).collect();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let counting = scope.spawn(|| count_what_is_answered(&ports, &keys, &mut counts, &stop));
            let order = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 0 99 NODE {}", cluster.id(target));
            cluster.nodes[owner].run(&order).expect_ok();
            thread::sleep(wait);
            cluster.nodes[victim].kill();
            stop.store(true, Ordering::Relaxed);
            counting.join().expect("the writer only counts");
        });
        cluster.nodes[victim].launch();
        cluster.wait_until_ok();
        let held = eventually_within(MOVED, "one node has the slots and all their keys", || {
            let busy = |node: &Node| {
                let jobs = node.run("CLUSTER MIGRATION STATUS ALL");
                jobs.items().iter().any(|job| job.items()[21] == Value::Int(0))
            };
            let counts = [0, 1].map(|node: usize| shown(&cluster.nodes[node]));
            let whole = i64::try_from(keys.len()).unwrap();
            let settled = !cluster.nodes.iter().any(busy);
            match counts {
                [_, 0] if settled && counts[0] == whole => Some(0),
                [0, _] if settled && counts[1] == whole => Some(1),
                _ => None,
            }
        });
        let mut holder = cluster.nodes[held].connect();
        for (key, count) in keys.iter().zip(&mut counts) {
            let found: i64 = holder.call(&["GET", key]).text().parse().expect("a count");
            // One that was not answered may have been done.
            let known = *count;
            assert!(
                (known..=known + 1).contains(&found),
                "round {round}: {key} has {found}, answered {known}"
            );
            *count = found;
        }
        owner = held;
    }
}

/// Counts the keys up until told to stop; an answer that does not come is not counted.
fn count_what_is_answered(ports: &[u16], keys: &[String], counts: &mut [i64], stop: &AtomicBool) {
    let mut connections = BTreeMap::new();
    let mut owner = ports[0];
    'counting: while !stop.load(Ordering::Relaxed) {
        for (key, count) in keys.iter().zip(&mut *counts) {
            let reply = loop {
                let connection = match connections.entry(owner) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(place) => match Connection::open(("127.0.0.1", owner)) {
                        Ok(connection) => place.insert(connection),
                        Err(_) => break 'counting,
                    },
                };
                match connection.try_call(&["INCR", key]) {
                    Ok(reply) => match is_moved(&reply) {
                        Some(port) => owner = port,
                        None => break reply,
                    },
                    Err(_) => break 'counting,
                }
                if stop.load(Ordering::Relaxed) {
                    break 'counting;
                }
            };
            match reply {
                Value::Int(value) => *count = value,
                // A slot that nobody may serve just now.
                _ => break 'counting,
            }
        }
    }
}

#[test]
fn nothing_is_lost_or_doubled_when_either_side_is_killed() {
    kill_either_side(3);
}

#[test]
#[ignore = "long: make soak"]
fn nothing_is_lost_or_doubled_in_fifty_rounds() {
    kill_either_side(50);
}
