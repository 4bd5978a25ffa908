//! Keys that are due.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Node, Program, Value, eventually};

/// The longest wait of a client: some hundred times the duration when nothing else runs.
const LONGEST: Duration = Duration::from_secs(1);

#[test]
fn very_many_keys_due_at_once_make_nobody_wait() {
    const KEYS: usize = 200_000;
    let node = Node::start(&Program::redoubt(), "--save  --appendonly no --enable-debug-command yes");
    node.run("DEBUG SET-ACTIVE-EXPIRE 0").expect_ok();
    let mut connection = node.connect();
    for start in (0..KEYS).step_by(1000) {
        for key in start..start + 1000 {
            connection
                .send(&["SET", &format!("key:{key}"), "value", "PX", "1"])
                .expect("the server takes it");
        }
        (0..1000).for_each(|_| connection.read().expect("the server answers").expect_ok());
    }
    node.run("SET stays value").expect_ok();
    assert_eq!(node.run("DBSIZE"), Value::Int(KEYS as i64 + 1));
    let (stop, mut prober) = (Arc::new(AtomicBool::new(false)), node.connect());
    let told = stop.clone();
    let probing = std::thread::spawn(move || {
        let mut longest = Duration::ZERO;
        while !told.load(Ordering::Relaxed) {
            let start = Instant::now();
            assert_eq!(prober.run("GET stays").text(), "value");
            longest = longest.max(start.elapsed());
        }
        longest
    });
    node.run("DEBUG SET-ACTIVE-EXPIRE 1").expect_ok();
    eventually("all of them are gone", || (node.run("DBSIZE") == Value::Int(1)).then_some(()));
    stop.store(true, Ordering::Relaxed);
    let longest = probing.join().expect("the server answers");
    assert!(longest < LONGEST, "a client waited {longest:?}");
    assert_eq!(node.info("stats", "expired_keys"), Some(KEYS.to_string()));
}

fn ours_and_valkey() -> impl Iterator<Item = Program> {
    [Some(Program::redoubt()), Program::valkey()].into_iter().flatten()
}

/// The story: a key that a client of a writable replica gave a time stayed there for good, hidden, while Valkey's goes.
#[test]
fn a_writable_replica_deletes_what_its_own_clients_gave_a_time() {
    for program in ours_and_valkey() {
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
            (replica.run("DBSIZE") == Value::Int(3)).then_some(())
        });
        replica.run("SET own 1 PX 200").expect_ok();
        replica.run("SET renamed 1 PX 200").expect_ok();
        replica.run("RENAME renamed name").expect_ok();
        replica.run("SET persistent 1 PX 200").expect_ok();
        assert_eq!(replica.run("PERSIST persistent").int(), 1, "{name}");
        assert_eq!(replica.run("PEXPIRE given 200").int(), 1, "{name}");
        let expired = || replica.info("stats", "expired_keys");
        eventually(&format!("{name}: its own keys go"), || (expired()? == "3").then_some(()));
        // That of the master stays, since its master does not say that it goes.
        assert_eq!(replica.run("DBSIZE"), Value::Int(3), "{name}");
        assert_eq!(replica.run("EXISTS replicated masters persistent").int(), 2, "{name}");
        eventually(&format!("{name}: nothing is remembered"), || {
            (replica.info("stats", "slave_expires_tracked_keys")? == "0").then_some(())
        });
        assert_eq!(master.run("DBSIZE"), Value::Int(3), "{name}");
    }
}

/// Fields of three hashes, small, large, and with no other field, that are past their time and still there.
fn leave_expired_fields(node: &Node) {
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
    eventually("their time has come", || {
        let times = node.run("HPTTL large FIELDS 1 f3");
        (times.items() == [Value::Int(-2)] && node.run("HGET one a") == Value::NullBulk).then_some(())
    });
    assert_eq!((node.run("HLEN large").int(), node.run("DBSIZE").int()), (300, 5));
}

/// Lengths of the hashes, and how many keys there are, as one looks right after a load.
fn seen(node: &Node) -> (Vec<Value>, Option<String>) {
    let commands = ["HLEN small", "HLEN large", "EXISTS one", "DBSIZE"];
    (commands.iter().map(|command| node.run(command)).collect(), node.info("keyspace", "db0"))
}

/// The story: fields that were past their time when a file was loaded were counted by HLEN, and a hash of such fields
/// alone was a key, until the first cycle of expiry.
#[test]
fn fields_past_their_time_are_not_there_after_a_load() {
    for options in ["--appendonly no", "--appendonly yes"] {
        for program in ours_and_valkey() {
            let name = format!("{} {options}", program.name());
            let mut node = Node::start(
                &program,
                &format!("--save  --enable-debug-command yes --dbfilename f {options}"),
            );
            leave_expired_fields(&node);
            node.run("SAVE").expect_ok();
            node.kill();
            node.spawn();
            let mut probe = eventually("it takes connections", || node.try_connect().ok());
            let is_up = |reply: Value| (reply == Value::Simple("PONG".into())).then_some(());
            eventually("the file is loaded", || is_up(probe.call(&["PING"])));
            let (replies, keyspace) = seen(&node);
            assert_eq!(replies, [2, 297, 0, 3].map(Value::Int), "{name}");
            let keyspace = keyspace.expect("there are keys");
            assert!(keyspace.starts_with("keys=3,expires=0"), "{name}: {keyspace}");
            assert!(keyspace.ends_with("keys_with_volatile_items=0"), "{name}: {keyspace}");
        }
    }
}

/// A replica has what its master has: what is past its time goes when the master says so, whether it came in the
/// master's snapshot or from the replica's own file.
#[test]
fn a_replica_keeps_fields_past_their_time_until_its_master_deletes_them() {
    for program in ours_and_valkey() {
        let name = program.name().to_owned();
        let options = "--save  --repl-diskless-sync-delay 0 --enable-debug-command yes";
        let (master, mut replica) = (Node::start(&program, options), Node::start(&program, options));
        leave_expired_fields(&master);
        let is_linked =
            |replica: &Node| (replica.info("replication", "master_link_status")? == "up").then_some(());
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
        eventually("the replica is linked", || is_linked(&replica));
        let all = [3, 300, 1, 5].map(Value::Int);
        assert_eq!(seen(&replica).0, all, "{name}");
        replica.run("SAVE").expect_ok();
        replica.kill();
        replica.add_options(&format!("--replicaof 127.0.0.1 {}", master.port));
        replica.launch();
        eventually("the replica is linked again", || is_linked(&replica));
        assert_eq!(seen(&replica).0, all, "{name}");
        master.run("DEBUG SET-ACTIVE-EXPIRE 1").expect_ok();
        let gone = [2, 297, 0, 3].map(Value::Int);
        eventually(&format!("{name}: the master says that they go"), || {
            (seen(&replica).0 == gone).then_some(())
        });
    }
}

/// The followers of a master that comes back from its file go on from where they were, so they are told of the fields
/// that it left out.
#[test]
fn the_followers_of_a_restarted_master_lose_the_fields_that_it_did_not_load() {
    let options = "--save  --repl-diskless-sync-delay 0 --enable-debug-command yes";
    let mut master = Node::start(&Program::redoubt(), options);
    let replica = Node::start(&Program::redoubt(), "--save ");
    leave_expired_fields(&master);
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    eventually("the replica has the snapshot", || (seen(&replica).0[3] == Value::Int(5)).then_some(()));
    master.run("SAVE").expect_ok();
    master.kill();
    master.launch();
    let left = [2, 297, 0, 3].map(Value::Int);
    eventually("the replica has what its master has", || (seen(&replica).0 == left).then_some(()));
    assert_eq!(master.info("stats", "sync_full").as_deref(), Some("0"));
}
