//! Tests of atomic slot migration (CLUSTER MIGRATESLOTS) while clients write and nodes die.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use harness::{
    Cluster, Connection, Node, Program, RelayNetwork, RelayedProcess, Reply, eventually, eventually_within,
    keys_for_all_slots, run_to_end, slot_owner,
};

/// Time limit for a migration, including the cleanup after a failed one.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum latency for a client, with a large margin for a busy machine.
const MAX_LATENCY: Duration = Duration::from_secs(2);
/// The slots that migrate from node 0 to node 1.
const MIGRATED_SLOTS: std::ops::RangeInclusive<u16> = 0..=99;

fn start_cluster() -> Cluster {
    Cluster::start(&Program::redoubt(), 3, 1)
}

fn slot_keys() -> Vec<String> {
    let tags = keys_for_all_slots();
    let of_slot = |slot: u16| (0..20).map(move |number| (slot, number));
    MIGRATED_SLOTS
        .flat_map(of_slot)
        .map(|(slot, number)| format!("{number}:{{{}}}", tags[usize::from(slot)]))
        .collect()
}

/// Writes values of several types in addition to the counters.
fn fill_slots(cluster: &Cluster, keys: &[String]) {
    let mut owner = cluster.nodes[0].connect();
    for key in keys {
        owner.call(&["RPUSH", &format!("list:{key}"), "a", "b", key]);
        owner.call(&["SET", &format!("timed:{key}"), key, "EX", "1000"]).expect_ok();
    }
    // Wait for the replica, if there is one: the test must not lose unreplicated keys.
    let replicas =
        i64::from(cluster.nodes[0].info("replication", "connected_slaves").as_deref() == Some("1"));
    assert_eq!(owner.call_line(&format!("WAIT {replicas} 20000")), Reply::Int(replicas));
}

fn start_migration(cluster: &Cluster, target: usize) {
    let (first, last) = (MIGRATED_SLOTS.start(), MIGRATED_SLOTS.end());
    let command = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {first} {last} NODE {}", cluster.node_id(target));
    cluster.nodes[0].run(&command).expect_ok();
}

/// A field of the newest migration job of a node.
fn newest_job_field(node: &Node, field: &str) -> Option<String> {
    let jobs = node.try_connect().ok()?.call_line("CLUSTER GETSLOTMIGRATIONS");
    let job = jobs.items().first()?.items().to_vec();
    let at = job.chunks(2).find(|pair| pair[0].text() == field)?;
    Some(at[1].text())
}

fn wait_for_job_state(node: &Node, state: &str) {
    eventually_within(MIGRATION_TIMEOUT, &format!("the job is in state {state}"), || {
        (newest_job_field(node, "state").as_deref() == Some(state)).then_some(())
    });
}

fn moved_target_port(reply: &Reply) -> Option<u16> {
    let Reply::Error(text) = reply else { return None };
    text.strip_prefix("MOVED ")?.rsplit(':').next()?.parse().ok()
}

/// Increments the keys in turn, following MOVED, until `stop` is set. Returns the count per key and the longest
/// latency.
fn increment_counter(nodes: &[u16], keys: &[String], should_stop: &AtomicBool) -> (Vec<i64>, Duration) {
    let mut connections: BTreeMap<u16, Connection> = nodes
        .iter()
        .map(|port| (*port, Connection::open(("127.0.0.1", *port)).expect("a node is there")))
        .collect();
    let mut counts = vec![0; keys.len()];
    let mut longest = Duration::ZERO;
    let mut owner = nodes[0];
    while !should_stop.load(Ordering::Relaxed) {
        for (key, count) in keys.iter().zip(&mut counts) {
            let mut tries = 0;
            let before = Instant::now();
            loop {
                let reply = connections.get_mut(&owner).expect("one of the nodes").call(&["INCR", key]);
                match moved_target_port(&reply) {
                    Some(port) if tries < 1000 => owner = port,
                    Some(_) => panic!("nobody serves {key}"),
                    None => {
                        *count += 1;
                        assert_eq!(reply, Reply::Int(*count), "{key}");
                        break;
                    }
                }
                tries += 1;
            }
            longest = longest.max(before.elapsed());
        }
    }
    (counts, longest)
}

/// The number of keys that SCAN returns on a node.
fn count_scanned_keys(node: &Node) -> i64 {
    node.run("DBSIZE").int()
}

#[test]
fn slots_migrate_completely_while_clients_write() {
    let cluster = start_cluster();
    let keys = slot_keys();
    fill_slots(&cluster, &keys);
    let ports: Vec<u16> = cluster.nodes[..3].iter().map(|node| node.port).collect();
    let stop = AtomicBool::new(false);
    let (counts, longest) = thread::scope(|scope| {
        let counting = scope.spawn(|| increment_counter(&ports, &keys, &stop));
        start_migration(&cluster, 1);
        wait_for_job_state(&cluster.nodes[0], "success");
        stop.store(true, Ordering::Relaxed);
        counting.join().expect("no client got any error other than MOVED, and no increment was lost")
    });
    println!("the longest wait of a writer: {longest:?}");
    assert!(longest < MAX_LATENCY, "{longest:?}");
    wait_for_job_state(&cluster.nodes[1], "success");
    wait_for_job_state(&cluster.nodes[4], "success");
    assert_eq!(
        newest_job_field(&cluster.nodes[4], "target_node"),
        None,
        "a replica is not told between whom"
    );
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
            let counts = [0, 1, 3, 4].map(|node: usize| count_scanned_keys(&cluster.nodes[node]));
            (counts == [0, all, 0, all]).then_some(())
        },
    );
}

#[test]
fn slot_migration_continues_after_link_breaks() {
    let relays = RelayNetwork::create().expect("Linux has the whole loopback network");
    let nodes = (0..3).map(|number| {
        let mut node =
            Node::prepare_behind_relay(&relays, number, RelayedProcess::ClusterNode, &Program::redoubt());
        node.add_options("--cluster-enabled yes");
        node.launch();
        node
    });
    let cluster = Cluster::join_nodes(nodes.collect(), 3);
    let keys = slot_keys();
    fill_slots(&cluster, &keys);
    // The delay per key keeps the snapshot in transfer until the link breaks.
    cluster.nodes[0].run("CONFIG SET rdb-key-save-delay 300").expect_ok();
    let ports: Vec<u16> = cluster.nodes[..3].iter().map(|node| node.port).collect();
    let stop = AtomicBool::new(false);
    let (mut broken, mut seen) = (0, BTreeSet::new());
    let (counts, _) = thread::scope(|scope| {
        let counting = scope.spawn(|| increment_counter(&ports, &keys, &stop));
        start_migration(&cluster, 1);
        eventually_within(MIGRATION_TIMEOUT, "the move has ended", || {
            let state = newest_job_field(&cluster.nodes[0], "state").expect("there is a job");
            let is_over = ["success", "failed"].contains(&state.as_str());
            // In any later state the target knows of the job.
            if !["connecting", "reading-establish-response"].contains(&state.as_str()) {
                broken += relays.break_links(0, 1);
            }
            seen.insert(state);
            is_over.then_some(())
        });
        stop.store(true, Ordering::Relaxed);
        counting.join().expect("no client got any error other than MOVED, and no increment was lost")
    });
    assert_eq!(newest_job_field(&cluster.nodes[0], "message").as_deref(), Some(""));
    wait_for_job_state(&cluster.nodes[1], "success");
    assert!(broken > 3 && seen.contains("snapshotting"), "{broken} links broke in the states {seen:?}");
    let mut target = cluster.nodes[1].connect();
    for (key, count) in keys.iter().zip(counts) {
        assert_eq!(target.call(&["GET", key]).text(), count.to_string(), "{key}");
        assert_eq!(target.call(&["LRANGE", &format!("list:{key}"), "0", "-1"]).items().len(), 3);
    }
    let log = cluster.nodes[0].log();
    assert!(log.contains("goes on with another link"), "{log}");
}

/// The target must have all changes made by slow commands on background workers.
#[test]
fn slot_migrates_while_slow_commands_write_to_it() {
    let cluster = start_cluster();
    let key = slot_keys().swap_remove(0);
    let script =
        "local over = os.clock() + 0.05 while os.clock() < over do end return redis.call('INCR', KEYS[1])";
    // Returns the last count that was acknowledged, and the reply that ended the loop.
    let count_to = |node: &Node, last: i64| {
        let (mut client, mut answered) = (node.connect(), 0);
        loop {
            match client.call(&["EVAL", script, "1", &key]) {
                Reply::Int(count) if count == last => return (count, None),
                Reply::Int(count) => answered = count,
                other => return (answered, Some(other)),
            }
        }
    };
    let (answered, end) = thread::scope(|scope| {
        let changing = scope.spawn(|| count_to(&cluster.nodes[0], i64::MAX));
        // The first run of the script is not yet known to be slow, so the server does not run it in the background.
        eventually("it counts", || {
            let count = cluster.nodes[0].run(&format!("GET {key}"));
            (count != Reply::NullBulk && count != Reply::Bulk(b"1".to_vec())).then_some(())
        });
        start_migration(&cluster, 1);
        changing.join().expect("no panic")
    });
    assert_eq!(end.as_ref().and_then(moved_target_port), Some(cluster.nodes[1].port), "{end:?}");
    wait_for_job_state(&cluster.nodes[0], "success");
    let calls = cluster.nodes[0].run("SLOWLOG GET -1 WITHTHREAD").items().to_vec();
    assert!(calls.iter().any(|call| call.items()[6].text() == "background"), "{calls:?}");
    assert_eq!(cluster.nodes[1].run(&format!("GET {key}")), Reply::Bulk(answered.to_string().into_bytes()));
    assert_eq!(count_to(&cluster.nodes[1], answered + 3), (answered + 3, None));
}

#[test]
fn data_of_cancelled_migration_is_discarded() {
    let cluster = start_cluster();
    let keys = slot_keys();
    fill_slots(&cluster, &keys);
    let all = count_scanned_keys(&cluster.nodes[0]);
    let command = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 0 99 NODE {}", cluster.node_id(1));
    cluster.nodes[1].freeze();
    cluster.nodes[0].run(&command).expect_ok();
    let busy =
        cluster.nodes[0].run(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 5 5 NODE {}", cluster.node_id(2)));
    assert_eq!(busy, Reply::Error("ERR I am already migrating slot 5.".into()));
    cluster.nodes[0].run("CLUSTER CANCELSLOTMIGRATIONS").expect_ok();
    wait_for_job_state(&cluster.nodes[0], "cancelled");
    let none = cluster.nodes[0].run("CLUSTER CANCELSLOTMIGRATIONS");
    assert_eq!(none, Reply::Error("ERR No migrations ongoing".into()));
    cluster.nodes[1].thaw();
    cluster.wait_until_ok();
    // The data that the target received of the cancelled job must not affect the next one.
    start_migration(&cluster, 1);
    wait_for_job_state(&cluster.nodes[0], "success");
    eventually("the keys have moved with the slots", || {
        (count_scanned_keys(&cluster.nodes[1]) == all).then_some(())
    });
    // The number of finished jobs in the list is limited by the configuration.
    let listed = || cluster.nodes[0].run("CLUSTER GETSLOTMIGRATIONS").items().len();
    assert_eq!(listed(), 2);
    cluster.nodes[0].run("CONFIG SET cluster-slot-migration-log-max-len 0").expect_ok();
    cluster.nodes[0]
        .run(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 200 200 NODE {}", cluster.node_id(1)))
        .expect_ok();
    // As in Valkey, the limit 0 removes a finished job from the list.
    eventually("the job has ended", || (listed() == 0).then_some(()));
    let nodes = cluster.nodes[1].run("CLUSTER NODES").text();
    let target = nodes.lines().find(|line| line.contains("myself")).expect("a node lists itself");
    assert!(target.split(' ').any(|range| range == "200"), "{nodes}");
}

/// The target is killed at several moments of a migration. Afterwards either the source or the target has all keys.
#[test]
fn source_or_target_has_all_keys_after_target_dies() {
    for wait in [0, 5, 20, 60] {
        let mut cluster = Cluster::start(&Program::redoubt(), 3, 0);
        // The target's own slots have no owner after its death. The other nodes must still serve the slots that they
        // own.
        for node in &cluster.nodes {
            node.run("CONFIG SET cluster-require-full-coverage no").expect_ok();
        }
        let keys = slot_keys();
        fill_slots(&cluster, &keys);
        let all = count_scanned_keys(&cluster.nodes[0]);
        start_migration(&cluster, 1);
        thread::sleep(Duration::from_millis(wait));
        cluster.nodes[1].kill();
        eventually_within(MIGRATION_TIMEOUT, "the source reports the result", || {
            let state = newest_job_field(&cluster.nodes[0], "state")?;
            ["success", "failed"].contains(&state.as_str()).then_some(())
        });
        if newest_job_field(&cluster.nodes[0], "state").as_deref() == Some("failed") {
            assert_eq!(count_scanned_keys(&cluster.nodes[0]), all, "killed after {wait} ms");
            let mut source = cluster.nodes[0].connect();
            assert_eq!(source.call(&["SET", &keys[0], "x"]), Reply::Simple("OK".into()), "writes continue");
        }
    }
}

#[test]
fn target_deletes_imported_keys_when_source_dies() {
    let mut cluster = start_cluster();
    let keys = slot_keys();
    fill_slots(&cluster, &keys);
    let all = count_scanned_keys(&cluster.nodes[0]);
    start_migration(&cluster, 1);
    cluster.nodes[0].kill();
    eventually_within(MIGRATION_TIMEOUT, "its replica has the slots, or the target has", || {
        let counts = [1, 3, 4].map(|node: usize| count_scanned_keys(&cluster.nodes[node]));
        // The target's replica has the same data as the target. If the target has all keys, the source may have died
        // before it deleted its migrated keys.
        (counts == [0, all, 0] || counts[0] == all && counts[2] == all).then_some(())
    });
}

/// The bug: the source died before it had deleted all migrated keys. Its replica kept the remaining keys, because it
/// mistook them for keys imported by SETSLOT.
#[test]
fn successor_deletes_migrated_keys_left_by_dead_source() {
    let mut cluster = start_cluster();
    let keys = slot_keys();
    fill_slots(&cluster, &keys);
    let all = count_scanned_keys(&cluster.nodes[0]);
    // Migrated keys are not deleted while writes are paused.
    cluster.nodes[0].run("CLIENT PAUSE 60000 WRITE").expect_ok();
    start_migration(&cluster, 1);
    wait_for_job_state(&cluster.nodes[0], "success");
    wait_for_job_state(&cluster.nodes[1], "success");
    let kept = count_scanned_keys(&cluster.nodes[3]);
    assert!(kept > 0, "the source was to die before it had deleted everything");
    eventually("its replica knows where the slots are", || {
        let owner = slot_owner(&mut cluster.nodes[3].connect(), *MIGRATED_SLOTS.start())?;
        (owner == cluster.nodes[1].port).then_some(())
    });
    cluster.nodes[0].kill();
    eventually_within(MIGRATION_TIMEOUT, "the replica takes over and deletes the rest", || {
        let is_master = cluster.nodes[3].run("ROLE").items()[0].text() == "master";
        (is_master && count_scanned_keys(&cluster.nodes[3]) == 0).then_some(())
    });
    let nodes = cluster.nodes[3].run("CLUSTER NODES").text();
    assert!(!nodes.contains("-<-"), "no slot is importing: {nodes}");
    assert_eq!(count_scanned_keys(&cluster.nodes[1]), all);
}

/// Fails over to a replica while the job is copying. Source and target must report the result, and the source must
/// still have all keys.
fn fail_over_during_migration(replica: usize) {
    let cluster = start_cluster();
    let keys = slot_keys();
    fill_slots(&cluster, &keys);
    let all = count_scanned_keys(&cluster.nodes[0]);
    // A delay per key makes the copying slow.
    cluster.nodes[0].run("CONFIG SET rdb-key-save-delay 5000").expect_ok();
    cluster.wait_until_synchronised();
    start_migration(&cluster, 1);
    wait_for_job_state(&cluster.nodes[1], "receiving-snapshot");
    cluster.nodes[replica].run("CLUSTER FAILOVER").expect_ok();
    for node in [0, 1] {
        wait_for_job_state(&cluster.nodes[node], "failed");
    }
    eventually_within(MIGRATION_TIMEOUT, "a failover was done", || {
        (cluster.nodes[replica].run("ROLE").items()[0].text() == "master").then_some(())
    });
    let shard = [0, 3].map(|node: usize| &cluster.nodes[node]);
    eventually_within(
        MIGRATION_TIMEOUT,
        "the slots are where they were, and nothing of them elsewhere",
        || {
            let others = [1, 4].map(|node: usize| count_scanned_keys(&cluster.nodes[node]));
            (shard.iter().all(|node| count_scanned_keys(node) == all) && others == [0, 0]).then_some(())
        },
    );
    // The failed job must not block the next one.
    let (source, target) = if replica == 3 { (3, 1) } else { (0, 4) };
    eventually("source and target agree on the owner", || {
        let known = cluster.nodes[source].run("CLUSTER NODES").text();
        let line = known.lines().find(|line| line.starts_with(&cluster.node_id(target)))?.to_owned();
        line.contains("master").then_some(())
    });
    let again = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 0 99 NODE {}", cluster.node_id(target));
    cluster.nodes[source].run("CONFIG SET rdb-key-save-delay 0").expect_ok();
    eventually_within(MIGRATION_TIMEOUT, "the next migration succeeds", || {
        if newest_job_field(&cluster.nodes[source], "state").as_deref() == Some("success") {
            return Some(());
        }
        cluster.nodes[source].run(&again);
        None
    });
    eventually("the keys are there", || (count_scanned_keys(&cluster.nodes[target]) == all).then_some(()));
}

#[test]
fn failover_of_source_ends_migration_cleanly() {
    fail_over_during_migration(3);
}

#[test]
fn failover_of_target_ends_migration_cleanly() {
    fail_over_during_migration(4);
}

/// A list of 100 MB migrates in chunks, so that source and target can serve clients of other slots during the
/// migration.
#[test]
fn big_key_migrates_without_blocking_other_clients() {
    let cluster = start_cluster();
    let tags = keys_for_all_slots();
    let big = format!("{{{}}}", tags[0]);
    let mut owner = cluster.nodes[0].connect();
    let element = "x".repeat(10_000);
    let words: Vec<&str> =
        ["RPUSH", &big].into_iter().chain(std::iter::repeat_n(element.as_str(), 100)).collect();
    for _ in 0..100 {
        assert!(owner.call(&words).int() > 0);
    }
    let stop = AtomicBool::new(false);
    let neighbour = |node: &Node, slot: u16| {
        let (mut client, key) = (node.connect(), tags[usize::from(slot)].clone());
        let (mut longest, mut served) = (Duration::ZERO, 0);
        while !stop.load(Ordering::Relaxed) {
            let before = Instant::now();
            assert!(client.call(&["INCR", &key]).int() > 0);
            longest = longest.max(before.elapsed());
            served += 1;
        }
        (longest, served)
    };
    thread::scope(|scope| {
        let neighbours = [(0, 200), (1, 6000)].map(|(node, slot): (usize, u16)| {
            let (neighbour, node) = (&neighbour, &cluster.nodes[node]);
            scope.spawn(move || neighbour(node, slot))
        });
        start_migration(&cluster, 1);
        wait_for_job_state(&cluster.nodes[0], "success");
        wait_for_job_state(&cluster.nodes[1], "success");
        stop.store(true, Ordering::Relaxed);
        for neighbour in neighbours {
            let (longest, served) = neighbour.join().expect("a neighbour is answered");
            assert!(longest < MAX_LATENCY && served > 0, "{longest:?} of {served}");
        }
    });
    let mut target = cluster.nodes[1].connect();
    assert_eq!(target.call(&["LLEN", &big]).int(), 10_000);
    assert_eq!(target.call(&["LINDEX", &big, "-1"]).text(), element);
}

/// A numeric field of the newest migration job of a node.
fn job_field(node: &Node, field: &str) -> i64 {
    let jobs = node.run("CLUSTER GETSLOTMIGRATIONS");
    let job = jobs.items()[0].items().to_vec();
    job.chunks(2).find(|pair| pair[0].text() == field).expect("every job has it")[1].int()
}

#[test]
fn migration_job_reports_progress_and_remaining_time() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 0);
    fill_slots(&cluster, &slot_keys());
    let (source, target) = (&cluster.nodes[0], &cluster.nodes[1]);
    let all = count_scanned_keys(source);
    // The delays add up to two seconds.
    source.run("CONFIG SET rdb-key-save-delay 500").expect_ok();
    start_migration(&cluster, 1);
    eventually("a part of the keys has moved", || {
        let moved = job_field(source, "keys_moved");
        (moved > 0 && moved < all).then_some(())
    });
    assert_eq!(job_field(source, "keys_total"), all);
    assert!(job_field(source, "left_ms") > 0 && job_field(source, "bytes_per_sec") > 0);
    let mut tool = Command::new(Program::redoubt().binary());
    tool.args(["cluster", "migrations", "--from", &format!("redis://{}", source.address())]);
    let (status, printed) = run_to_end(&mut tool);
    assert!(status.success() && printed.contains(&format!(" of {all} keys")), "{printed}");
    assert_eq!((job_field(target, "keys_moved"), job_field(target, "left_ms")), (-1, -1));
    source.run("CONFIG SET rdb-key-save-delay 0").expect_ok();
    wait_for_job_state(source, "success");
    wait_for_job_state(target, "success");
    for node in [source, target] {
        assert_eq!((job_field(node, "keys_moved"), job_field(node, "left_ms")), (all, 0));
        assert!(job_field(node, "bytes_moved") > all, "more than a byte a key");
    }
    assert_eq!(job_field(target, "keys_total"), -1, "only the source knows");
}

#[test]
fn slots_migrate_with_all_databases() {
    let program = Program::redoubt();
    let options = "--cluster-enabled yes --cluster-node-timeout 2000 --cluster-databases 4";
    let cluster = Cluster::join_nodes((0..3).map(|_| Node::start(&program, options)).collect(), 3);
    let tags = keys_for_all_slots();
    let mut clients: Vec<(u16, Connection)> = [0, 3].map(|db| (db, cluster.nodes[0].connect())).into();
    for (db, client) in &mut clients {
        client.call_line(&format!("SELECT {db}")).expect_ok();
        for slot in MIGRATED_SLOTS {
            client.call(&["SET", &tags[usize::from(slot)], &format!("{db} of {slot}")]).expect_ok();
        }
    }
    // The snapshot takes half a second, during which both databases receive writes.
    cluster.nodes[0].run("CONFIG SET rdb-key-save-delay 2500").expect_ok();
    start_migration(&cluster, 1);
    let mut counted = [0, 0];
    while newest_job_field(&cluster.nodes[0], "state").as_deref() != Some("success") {
        for ((_, client), count) in clients.iter_mut().zip(&mut counted) {
            let reply = client.call(&["INCR", &format!("count:{{{}}}", tags[7])]);
            *count += i32::from(moved_target_port(&reply).is_none());
        }
    }
    assert!(counted.iter().all(|count| *count > 0), "{counted:?}");
    wait_for_job_state(&cluster.nodes[1], "success");
    let mut target = cluster.nodes[1].connect();
    for (db, count) in [(0, counted[0]), (3, counted[1])] {
        target.call_line(&format!("SELECT {db}")).expect_ok();
        for slot in MIGRATED_SLOTS {
            let value = target.call(&["GET", &tags[usize::from(slot)]]).text();
            assert_eq!(value, format!("{db} of {slot}"));
        }
        assert_eq!(target.call(&["GET", &format!("count:{{{}}}", tags[7])]).text(), count.to_string());
        assert_eq!(target.call_line("DBSIZE").int(), 101);
    }
    target.call_line("SELECT 1").expect_ok();
    assert_eq!(target.call_line("DBSIZE").int(), 0);
}

#[test]
fn import_command_fetches_slots_from_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let ours = Program::redoubt();
    let cluster = Cluster::join_nodes([&valkey, &ours, &valkey].map(Node::start_clustered).into(), 3);
    fill_slots(&cluster, &slot_keys());
    let all = count_scanned_keys(&cluster.nodes[0]);
    let id = cluster.nodes[1].run("CLUSTER MIGRATION IMPORT 0 99").text();
    let task = wait_for_task(&cluster.nodes[1], &id, "completed");
    assert_eq!(task["keys_moved"], all.to_string(), "{task:?}");
    eventually("the keys have moved with the slots", || {
        ([0, 1].map(|node: usize| count_scanned_keys(&cluster.nodes[node])) == [0, all]).then_some(())
    });
}

/// Valkey's own tool uses atomic slot migration.
#[test]
fn valkey_cli_reshards_with_atomic_migration() {
    let Some(valkey) = Program::valkey() else { return };
    let cluster = start_cluster();
    let keys = slot_keys();
    fill_slots(&cluster, &keys);
    let all = count_scanned_keys(&cluster.nodes[0]);
    let mut tool = Command::new(valkey.binary().with_file_name("valkey-cli"));
    tool.args(["--cluster", "reshard", &cluster.nodes[0].address(), "--cluster-yes"]);
    tool.args(["--cluster-use-atomic-slot-migration", "--cluster-slots", "100"]);
    tool.args(["--cluster-from", &cluster.node_id(0), "--cluster-to", &cluster.node_id(1)]);
    let (status, printed) = run_to_end(&mut tool);
    assert!(status.success(), "{printed}");
    wait_for_job_state(&cluster.nodes[0], "success");
    assert_eq!(newest_job_field(&cluster.nodes[0], "slot_ranges").as_deref(), Some("0-99"));
    eventually("the keys have moved with the slots", || {
        (count_scanned_keys(&cluster.nodes[1]) == all).then_some(())
    });
}

#[test]
fn atomic_migration_works_between_redoubt_and_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let ours = Program::redoubt();
    for (source, target) in [(&ours, &valkey), (&valkey, &ours)] {
        let cluster = Cluster::join_nodes([source, target, source].map(Node::start_clustered).into(), 3);
        let keys = slot_keys();
        fill_slots(&cluster, &keys);
        let all = count_scanned_keys(&cluster.nodes[0]);
        start_migration(&cluster, 1);
        wait_for_job_state(&cluster.nodes[0], "success");
        eventually("the target has the keys, and the source has deleted them", || {
            ([0, 1].map(|node: usize| count_scanned_keys(&cluster.nodes[node])) == [0, all]).then_some(())
        });
        let mut target = cluster.nodes[1].connect();
        assert_eq!(target.call(&["LRANGE", &format!("list:{}", keys[0]), "0", "-1"]).items().len(), 3);
        assert!(target.call(&["TTL", &format!("timed:{}", keys[0])]).int() > 900);
    }
}

#[test]
fn invalid_migrations_are_refused_like_valkey() {
    let cluster = Cluster::start(&Program::redoubt(), 2, 1);
    let (me, other) = (cluster.node_id(0), cluster.node_id(1));
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
        assert_eq!(reply, Reply::Error(error.to_owned()), "{words}");
    }
    let on_replica = cluster.nodes[2].run(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 1 2 NODE {other}"));
    assert_eq!(on_replica, Reply::Error("ERR Slot migration can only be used on primary nodes.".to_owned()));
    let ack = cluster.nodes[0].run("CLUSTER SYNCSLOTS ACK");
    let text = "ERR CLUSTER SYNCSLOTS ACK should only be used by slot migration clients";
    assert_eq!(ack, Reply::Error(text.to_owned()));
    let to_replica = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 1 2 NODE {}", cluster.node_id(3));
    cluster.nodes[0].run(&to_replica).expect_ok();
    wait_for_job_state(&cluster.nodes[0], "failed");
    let message = newest_job_field(&cluster.nodes[0], "message").unwrap();
    assert!(message.contains("Slot migration can only be used on primary nodes."), "{message}");
}

/// The tasks that CLUSTER MIGRATION STATUS returns for `ids`, as maps of their fields.
fn list_tasks(node: &Node, ids: &str) -> Vec<BTreeMap<String, String>> {
    let reply = node.run(&format!("CLUSTER MIGRATION STATUS {ids}"));
    let shown = |value: &Reply| match value {
        Reply::Int(number) => number.to_string(),
        text => text.text(),
    };
    let task =
        |value: &Reply| value.items().chunks(2).map(|pair| (pair[0].text(), shown(&pair[1]))).collect();
    reply.items().iter().map(task).collect()
}

fn wait_for_task(node: &Node, id: &str, state: &str) -> BTreeMap<String, String> {
    eventually_within(MIGRATION_TIMEOUT, &format!("task {id} is {state}"), || {
        let task = list_tasks(node, &format!("ID {id}")).pop()?;
        (task["state"] == state).then_some(task)
    })
}

#[test]
fn cluster_migration_import_matches_redis() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 0);
    let keys = slot_keys();
    fill_slots(&cluster, &keys);
    let all = count_scanned_keys(&cluster.nodes[0]);
    let id = cluster.nodes[1].run("CLUSTER MIGRATION IMPORT 0 49 50 99").text();
    let imported = wait_for_task(&cluster.nodes[1], &id, "completed");
    let moved = wait_for_task(&cluster.nodes[0], &id, "completed");
    for (task, operation) in [(&imported, "import"), (&moved, "migrate")] {
        let expected = [
            ("operation", operation),
            ("slots", "0-49 50-99"),
            ("source", &cluster.node_id(0)),
            ("dest", &cluster.node_id(1)),
            ("last_error", ""),
            ("retries", "0"),
        ];
        expected.iter().for_each(|(field, value)| assert_eq!(task[*field], *value, "{field} of {task:?}"));
        assert!(task["end_time"].parse::<u64>().unwrap() >= task["create_time"].parse().unwrap(), "{task:?}");
    }
    assert_eq!(moved.len(), 17, "Redis's twelve and how far it is");
    assert_eq!((&moved["keys_moved"], &moved["left_ms"]), (&all.to_string(), &"0".to_owned()));
    assert_ne!(imported["bytes_moved"], "0");
    eventually("the target has all slots", || {
        ([0, 1].map(|node: usize| count_scanned_keys(&cluster.nodes[node])) == [0, all]).then_some(())
    });
    assert_eq!(cluster.nodes[1].run(&format!("CLUSTER MIGRATION CANCEL ID {id}")), Reply::Int(0));
    assert_eq!(list_tasks(&cluster.nodes[1], "ID nosuch").len(), 0);
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
        assert_eq!(reply, Reply::Error(error.to_owned()), "{words}");
    }
}

#[test]
fn failed_slot_import_is_retried_until_cancelled() {
    let mut cluster = Cluster::start(&Program::redoubt(), 3, 0);
    cluster.nodes[2].kill();
    let id = cluster.nodes[1].run("CLUSTER MIGRATION IMPORT 16000 16010").text();
    let task = eventually_within(MIGRATION_TIMEOUT, "it was tried again", || {
        list_tasks(&cluster.nodes[1], "ALL").pop().filter(|task| task["retries"] != "0")
    });
    assert_eq!(task["id"], id);
    assert_ne!(task["last_error"], "");
    assert_eq!(cluster.nodes[1].run("CLUSTER MIGRATION CANCEL ALL"), Reply::Int(1));
    wait_for_task(&cluster.nodes[1], &id, "canceled");
}
