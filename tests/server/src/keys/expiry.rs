//! Tests of key and hash field expiry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Node, Program, Reply, eventually};

/// The longest accepted wait of a client, about a hundred times the usual duration.
const MAX_WAIT: Duration = Duration::from_secs(1);

#[test]
fn mass_expiry_does_not_delay_clients() {
    const KEY_COUNT: usize = 200_000;
    let node = Node::start(&Program::redoubt(), "--save  --appendonly no --enable-debug-command yes");
    node.run("DEBUG SET-ACTIVE-EXPIRE 0").expect_ok();
    let mut connection = node.connect();
    for start in (0..KEY_COUNT).step_by(1000) {
        for key in start..start + 1000 {
            connection
                .send(&["SET", &format!("key:{key}"), "value", "PX", "1"])
                .expect("the server takes it");
        }
        (0..1000).for_each(|_| connection.read().expect("the server answers").expect_ok());
    }
    node.run("SET stays value").expect_ok();
    assert_eq!(node.run("DBSIZE"), Reply::Int(KEY_COUNT as i64 + 1));
    let (stop, mut prober) = (Arc::new(AtomicBool::new(false)), node.connect());
    let should_stop = stop.clone();
    let probing = std::thread::spawn(move || {
        let mut longest = Duration::ZERO;
        while !should_stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            assert_eq!(prober.call_line("GET stays").text(), "value");
            longest = longest.max(start.elapsed());
        }
        longest
    });
    node.run("DEBUG SET-ACTIVE-EXPIRE 1").expect_ok();
    eventually("all of them are gone", || (node.run("DBSIZE") == Reply::Int(1)).then_some(()));
    stop.store(true, Ordering::Relaxed);
    let longest = probing.join().expect("the server answers");
    assert!(longest < MAX_WAIT, "a client waited {longest:?}");
    assert_eq!(node.info("stats", "expired_keys"), Some(KEY_COUNT.to_string()));
}

fn redoubt_and_valkey() -> impl Iterator<Item = Program> {
    [Some(Program::redoubt()), Program::valkey()].into_iter().flatten()
}

/// Regression test: a client of a writable replica gave a key an expiry, and the key was hidden after its expiry but
/// never deleted.
#[test]
fn writable_replica_expires_keys_of_its_own_clients() {
    for program in redoubt_and_valkey() {
        let name = program.name().to_owned();
        let master = Node::start(&program, "--save  --repl-diskless-sync-delay 0 --enable-debug-command yes");
        let replica = Node::start(&program, "--save  --replica-read-only no");
        master.run("DEBUG SET-ACTIVE-EXPIRE 0").expect_ok();
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
        eventually("the replica is linked", || {
            (replica.info("replication", "master_link_status")? == "up").then_some(())
        });
        master.run("MSET replicated 1 given 1").expect_ok();
        master.run("SET masters 1 PX 100").expect_ok();
        eventually("the replica has the master's keys", || {
            (replica.run("DBSIZE") == Reply::Int(3)).then_some(())
        });
        replica.run("SET own 1 PX 200").expect_ok();
        replica.run("SET renamed 1 PX 200").expect_ok();
        replica.run("RENAME renamed name").expect_ok();
        replica.run("SET persistent 1 PX 200").expect_ok();
        assert_eq!(replica.run("PERSIST persistent").int(), 1, "{name}");
        assert_eq!(replica.run("PEXPIRE given 200").int(), 1, "{name}");
        let expired = || replica.info("stats", "expired_keys");
        eventually(&format!("{name}: the replica's own keys expire"), || (expired()? == "3").then_some(()));
        // The replica keeps the master's key, because the master does not replicate its deletion.
        assert_eq!(replica.run("DBSIZE"), Reply::Int(3), "{name}");
        assert_eq!(replica.run("EXISTS replicated masters persistent").int(), 2, "{name}");
        eventually(&format!("{name}: no key is tracked any more"), || {
            (replica.info("stats", "slave_expires_tracked_keys")? == "0").then_some(())
        });
        assert_eq!(master.run("DBSIZE"), Reply::Int(3), "{name}");
    }
}

/// Creates three hashes (small, large, and with a single field) whose fields have expired but are not deleted yet.
fn create_undeleted_expired_fields(node: &Node) {
    node.run("DEBUG SET-ACTIVE-EXPIRE 0").expect_ok();
    for command in ["HSET small a 1 b 2 c 3", "HSET one a 1", "SET stays 1"] {
        node.run(command);
    }
    let fields: String = (0..300).map(|number| format!(" f{number} {}", "v".repeat(100))).collect();
    assert_eq!(node.run(&format!("HSET large{fields}")).int(), 300);
    node.run("SET key 1 PX 50").expect_ok();
    for command in
        ["HPEXPIRE small 50 FIELDS 1 a", "HPEXPIRE one 50 FIELDS 1 a", "HPEXPIRE large 50 FIELDS 3 f1 f2 f3"]
    {
        node.run(command);
    }
    eventually("the fields have expired", || {
        let times = node.run("HPTTL large FIELDS 1 f3");
        (times.items() == [Reply::Int(-2)] && node.run("HGET one a") == Reply::NullBulk).then_some(())
    });
    assert_eq!((node.run("HLEN large").int(), node.run("DBSIZE").int()), (300, 5));
}

/// The hash lengths and key counts right after a load, before active expiry can run.
fn dataset_sizes(node: &Node) -> (Vec<Reply>, Option<String>) {
    let commands = ["HLEN small", "HLEN large", "EXISTS one", "DBSIZE"];
    (commands.iter().map(|command| node.run(command)).collect(), node.info("keyspace", "db0"))
}

/// Regression test: after a load, HLEN counted expired fields, and a hash of expired fields only was a key, until the
/// first cycle of active expiry.
#[test]
fn expired_fields_are_not_loaded() {
    for options in ["--appendonly no", "--appendonly yes"] {
        for program in redoubt_and_valkey() {
            let name = format!("{} {options}", program.name());
            let mut node = Node::start(
                &program,
                &format!("--save  --enable-debug-command yes --dbfilename f {options}"),
            );
            create_undeleted_expired_fields(&node);
            node.run("SAVE").expect_ok();
            node.kill();
            node.spawn();
            let mut probe = eventually("the server accepts connections", || node.try_connect().ok());
            let is_up = |reply: Reply| (reply == Reply::Simple("PONG".into())).then_some(());
            eventually("the file is loaded", || is_up(probe.call(&["PING"])));
            let (replies, keyspace) = dataset_sizes(&node);
            assert_eq!(replies, [2, 297, 0, 3].map(Reply::Int), "{name}");
            let keyspace = keyspace.expect("there are keys");
            assert!(keyspace.starts_with("keys=3,expires=0"), "{name}: {keyspace}");
            assert!(keyspace.ends_with("keys_with_volatile_items=0"), "{name}: {keyspace}");
        }
    }
}

/// A replica deletes expired fields only when its master replicates the deletion, whether the fields came from the
/// master's snapshot or from the replica's own file.
#[test]
fn replica_keeps_expired_fields_until_its_master_deletes_them() {
    for program in redoubt_and_valkey() {
        let name = program.name().to_owned();
        let options = "--save  --repl-diskless-sync-delay 0 --enable-debug-command yes";
        let (master, mut replica) = (Node::start(&program, options), Node::start(&program, options));
        create_undeleted_expired_fields(&master);
        let is_linked =
            |replica: &Node| (replica.info("replication", "master_link_status")? == "up").then_some(());
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
        eventually("the replica is linked", || is_linked(&replica));
        let all = [3, 300, 1, 5].map(Reply::Int);
        assert_eq!(dataset_sizes(&replica).0, all, "{name}");
        replica.run("SAVE").expect_ok();
        replica.kill();
        replica.add_options(&format!("--replicaof 127.0.0.1 {}", master.port));
        replica.launch();
        eventually("the replica is linked again", || is_linked(&replica));
        assert_eq!(dataset_sizes(&replica).0, all, "{name}");
        master.run("DEBUG SET-ACTIVE-EXPIRE 1").expect_ok();
        let gone = [2, 297, 0, 3].map(Reply::Int);
        eventually(&format!("{name}: the master's deletions arrive"), || {
            (dataset_sizes(&replica).0 == gone).then_some(())
        });
    }
}

/// Replicas of a restarted master continue with a partial resync, so the master must replicate the deletion of the
/// fields that it did not load.
#[test]
fn restarted_master_replicates_deletion_of_fields_expired_before_the_load() {
    let options = "--save  --repl-diskless-sync-delay 0 --enable-debug-command yes";
    let mut master = Node::start(&Program::redoubt(), options);
    let replica = Node::start(&Program::redoubt(), "--save ");
    create_undeleted_expired_fields(&master);
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    eventually("the replica has the snapshot", || {
        (dataset_sizes(&replica).0[3] == Reply::Int(5)).then_some(())
    });
    master.run("SAVE").expect_ok();
    master.kill();
    master.launch();
    let left = [2, 297, 0, 3].map(Reply::Int);
    eventually("the replica has what its master has", || (dataset_sizes(&replica).0 == left).then_some(()));
    assert_eq!(master.info("stats", "sync_full").as_deref(), Some("0"));
}
