//! Tests of replication between standalone servers: between Redoubt servers, and between Redoubt and a real Redis.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness::{Connection, Node, Program, Reply, eventually, eventually_within, never_within};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Time limit for a failover. It is far shorter than the minute after which a master takes back its role from a target
/// that does not reply.
const MAX_FAILOVER_TIME: Duration = Duration::from_secs(20);

/// Writes `count` keys and returns the replication offset afterwards.
fn write_keys(master: &Node, prefix: &str, count: usize) {
    let mut connection = master.connect();
    for number in 0..count {
        connection
            .send(&["SET", &format!("{prefix}:{number}"), &"v".repeat(number % 200)])
            .expect("the master takes it");
        if number % 500 == 499 {
            (0..500).for_each(|_| connection.read().expect("the master answers").expect_ok());
        }
    }
    (0..count % 500).for_each(|_| connection.read().expect("the master answers").expect_ok());
}

fn start_replication(replica: &Node, master: &Node) {
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    wait_until_linked(replica);
}

fn wait_until_linked(replica: &Node) {
    eventually(&format!("{} is linked", replica.port), || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
}

/// Waits until both servers have equal data, judged by DBSIZE and a sample of values.
fn wait_until_equal(replica: &Node, master: &Node, keys: &[String]) {
    let offset = |node: &Node| node.info("replication", "master_repl_offset");
    eventually("the replica has the master's offset", || (offset(replica) == offset(master)).then_some(()));
    assert_eq!(replica.run("DBSIZE"), master.run("DBSIZE"));
    let (mut ours, mut theirs) = (replica.connect(), master.connect());
    for key in keys {
        assert_eq!(ours.call(&["GET", key]), theirs.call(&["GET", key]), "{key}");
    }
}

fn dataset_sample(prefix: &str, count: usize) -> Vec<String> {
    (0..count).step_by(7).map(|number| format!("{prefix}:{number}")).collect()
}

/// After a full synchronisation, the stream must carry the effects of commands rather than the commands.
fn assert_syncs_and_streams(master: &Program, replica: &Program) {
    let master = Node::start(master, "--save ");
    let replica = Node::start(replica, "--save ");
    write_keys(&master, "before", 3000);
    master.run("SET expiring x PX 3600000").expect_ok();
    master.run("SET far x PXAT 9223372036854775807").expect_ok();
    master.run_in_database(3, "SET elsewhere x");
    start_replication(&replica, &master);
    write_keys(&master, "after", 2000);
    for line in ["INCRBYFLOAT float 0.1", "APPEND after:1 more", "GETDEL before:2", "RENAME before:3 renamed"]
    {
        master.run(line);
    }
    master.run("EXPIRE before:4 5000");
    master.run("GETEX before:5 EX 5000");
    master.run("COPY before:6 copied");
    master.run("SETRANGE before:8 10 xyz");
    master.run("MOVE before:9 2");
    master.run("PEXPIREAT before:10 9000000000000000000");
    wait_until_equal(
        &replica,
        &master,
        &[dataset_sample("before", 3000), dataset_sample("after", 2000)].concat(),
    );
    for key in ["expiring", "far", "before:4", "before:5", "before:10"] {
        let expires = |node: &Node| node.run(&format!("PEXPIRETIME {key}")).int();
        assert_eq!(expires(&replica), expires(&master), "{key} expires at the same time");
    }
    assert_eq!(replica.run_in_database(3, "GET elsewhere").text(), "x");
    assert_eq!(replica.run_in_database(2, "EXISTS before:9").int(), 1);
    let refusal = replica.run("SET a 1");
    assert_eq!(refusal, Reply::Error("READONLY You can't write against a read only replica.".into()));

    // The replica removes an expired key only when the master does.
    master.run("SET brief x PX 300").expect_ok();
    eventually("the key expires on both", || {
        (master.run("EXISTS brief") == Reply::Int(0) && replica.run("EXISTS brief") == Reply::Int(0))
            .then_some(())
    });
    wait_until_equal(&replica, &master, &[]);
}

/// Runs one command in another database than the connection's, on a separate connection.
trait RunInDatabase {
    fn run_in_database(&self, database: u8, line: &str) -> Reply;
}

impl RunInDatabase for Node {
    fn run_in_database(&self, database: u8, line: &str) -> Reply {
        let mut connection = self.connect();
        connection.call_line(&format!("SELECT {database}")).expect_ok();
        connection.call_line(line)
    }
}

#[test]
fn replica_full_syncs_and_applies_stream() {
    assert_syncs_and_streams(&Program::redoubt(), &Program::redoubt());
}

#[test]
fn redis_replica_replicates_redoubt_master() {
    assert_syncs_and_streams(&Program::redoubt(), &Program::redis());
}

#[test]
fn redoubt_replica_replicates_redis_master() {
    assert_syncs_and_streams(&Program::redis(), &Program::redoubt());
}

/// After the link breaks, the replica resumes from the backlog without a second full synchronisation.
#[test]
fn broken_link_resumes_with_partial_resync() {
    let master = Node::start(&Program::redoubt(), "--save ");
    let replica = Node::start(&Program::redoubt(), "--save ");
    write_keys(&master, "before", 1000);
    start_replication(&replica, &master);
    wait_until_equal(&replica, &master, &[]);
    let full = master.info("stats", "sync_full");
    for round in 1..=3_u32 {
        assert!(master.run("CLIENT KILL TYPE replica").int() >= 1);
        write_keys(&master, "meanwhile", 500);
        eventually("the replica resumes", || {
            let partial: u32 = master.info("stats", "sync_partial_ok")?.parse().ok()?;
            (partial >= round).then_some(())
        });
        wait_until_linked(&replica);
        wait_until_equal(&replica, &master, &dataset_sample("meanwhile", 500));
    }
    assert_eq!(master.info("stats", "sync_full"), full);
}

/// A killed replica restarts with the data of its full synchronisation and catches up. Its master is not affected.
#[test]
fn killed_replica_catches_up() {
    let master = Node::start(&Program::redoubt(), "--save ");
    let mut replica = Node::start(&Program::redoubt(), "--save ");
    replica.add_options(&format!("--replicaof 127.0.0.1 {}", master.port));
    write_keys(&master, "before", 2000);
    start_replication(&replica, &master);
    replica.kill();
    write_keys(&master, "meanwhile", 2000);
    replica.launch();
    wait_until_linked(&replica);
    wait_until_equal(
        &replica,
        &master,
        &[dataset_sample("before", 2000), dataset_sample("meanwhile", 2000)].concat(),
    );
}

/// If the master dies while the replica loads, the replica reports the link as down right after the load instead of
/// waiting for the replication timeout.
#[test]
fn master_dying_during_load_is_detected_after_load() {
    let mut master = Node::start(&Program::redoubt(), "--save ");
    let replica = Node::start(&Program::redoubt(), "--save ");
    replica.run("CONFIG SET repl-timeout 600 key-load-delay 8000").expect_ok();
    write_keys(&master, "before", 500);
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    let loading = |is: &str| (replica.info("persistence", "loading")? == is).then_some(());
    eventually("it loads", || loading("1"));
    master.kill();
    eventually("it has loaded", || loading("0"));
    assert_eq!(replica.run("DBSIZE").int(), 500);
    eventually("it knows that its master is gone", || {
        (replica.info("replication", "master_link_status")? == "down").then_some(())
    });
    replica.run("CONFIG SET key-load-delay 0").expect_ok();
    master.launch();
    write_keys(&master, "after", 500);
    wait_until_linked(&replica);
    wait_until_equal(&replica, &master, &dataset_sample("after", 500));
}

/// When the middle server of a chain is promoted, the last replica continues without a full synchronisation.
#[test]
fn promoted_replica_keeps_its_own_replicas() {
    let master = Node::start(&Program::redoubt(), "--save ");
    let middle = Node::start(&Program::redoubt(), "--save ");
    let last = Node::start(&Program::redoubt(), "--save ");
    write_keys(&master, "before", 500);
    start_replication(&middle, &master);
    start_replication(&last, &middle);
    wait_until_equal(&last, &master, &dataset_sample("before", 500));
    let full = middle.info("stats", "sync_full");
    middle.run("REPLICAOF NO ONE").expect_ok();
    write_keys(&middle, "promoted", 500);
    wait_until_linked(&last);
    wait_until_equal(&last, &middle, &dataset_sample("promoted", 500));
    assert_eq!(middle.info("stats", "sync_full"), full);
    // The old master becomes a replica of the promoted server by partial resync.
    start_replication(&master, &middle);
    wait_until_equal(&master, &middle, &dataset_sample("promoted", 500));
    assert_eq!(middle.info("stats", "sync_full"), full, "a partial resynchronisation was enough");
}

#[test]
fn wait_counts_replicas_that_have_the_write() {
    let master = Node::start(&Program::redoubt(), "--save ");
    let replica = Node::start(&Program::redoubt(), "--save ");
    start_replication(&replica, &master);
    let mut connection = master.connect();
    connection.call_line("SET a 1").expect_ok();
    assert_eq!(connection.call_line("WAIT 1 20000").int(), 1);
    replica.freeze();
    connection.call_line("SET a 2").expect_ok();
    assert_eq!(connection.call_line("WAIT 1 300").int(), 0, "a frozen replica acknowledges nothing");
    replica.thaw();
    assert_eq!(connection.call_line("WAIT 1 20000").int(), 1);
    assert_eq!(replica.run("WAIT 1 0"), Reply::Error("ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated.".into()));
}

#[test]
fn master_without_enough_replicas_refuses_writes() {
    let master =
        Node::start(&Program::redoubt(), "--save  --min-replicas-to-write 1 --min-replicas-max-lag 2");
    let refusal = Reply::Error("NOREPLICAS Not enough good replicas to write.".into());
    assert_eq!(master.run("SET a 1"), refusal);
    assert_eq!(master.run("GET a"), Reply::NullBulk);
    let replica = Node::start(&Program::redoubt(), "--save ");
    start_replication(&replica, &master);
    eventually("writes are accepted", || (master.run("SET a 1") == Reply::Simple("OK".into())).then_some(()));
    replica.freeze();
    eventually("writes are refused again", || (master.run("SET a 2") == refusal).then_some(()));
    replica.thaw();
    eventually("and taken again", || (master.run("SET a 3") == Reply::Simple("OK".into())).then_some(()));
}

/// A replica hides expired keys from clients and leaves their deletion to its master.
#[test]
fn replica_hides_expired_keys_without_deleting_them() {
    let master = Node::start(&Program::redoubt(), "--save  --enable-debug-command yes");
    let replica = Node::start(&Program::redoubt(), "--save ");
    start_replication(&replica, &master);
    master.run("DEBUG SET-ACTIVE-EXPIRE 0").expect_ok();
    master.run("SET brief x PX 200").expect_ok();
    eventually("the replica has the key", || (replica.run("DBSIZE") == Reply::Int(1)).then_some(()));
    eventually("it is hidden", || (replica.run("GET brief") == Reply::NullBulk).then_some(()));
    never_within(Duration::from_millis(500), "the replica deleted a key", || {
        replica.run("DBSIZE") == Reply::Int(0)
    });
    assert_eq!(master.run("GET brief"), Reply::NullBulk, "the master deletes it on access");
    eventually("the replica agrees too", || (replica.run("DBSIZE") == Reply::Int(0)).then_some(()));
}

/// The output buffer for a stalled replica is limited by its client class, and then the connection is closed.
#[test]
fn stalled_replica_is_disconnected_at_output_buffer_limit() {
    let master = Node::start(&Program::redoubt(), "--save ");
    let mut client = master.connect();
    client.call(&["CONFIG", "SET", "client-output-buffer-limit", "replica 4mb 0 0"]).expect_ok();
    let mut stuck = master.connect();
    stuck.send(&["PSYNC", "?", "-1"]).expect("the master takes it");
    let replicas = || master.info("replication", "connected_slaves");
    eventually("it is a replica", || (replicas()? == "1").then_some(()));
    let value = "v".repeat(200_000);
    let mut written = 0;
    eventually("the link is closed", || {
        client.call(&["SET", "k", &value]).expect_ok();
        written += 1;
        (replicas()? == "0").then_some(())
    });
    assert!(written > 20, "not before its limit: {written}");
    drop(stuck);
}

/// A replica may lag by the size of the backlog whatever its output buffer limit, because the backlog is in memory
/// anyway.
#[test]
fn replica_lag_within_backlog_size_is_never_disconnected() {
    let options = "--save  --client-output-buffer-limit replica 1mb 1mb 1 --repl-backlog-size 32mb";
    for program in std::iter::once(Program::redoubt()).chain(Program::valkey()) {
        let master = Node::start(&program, options);
        let replica = Node::start(&Program::redoubt(), "--save ");
        start_replication(&replica, &master);
        let mut client = master.connect();
        replica.freeze();
        let value = "v".repeat(200_000);
        for _ in 0..100 {
            client.call(&["SET", "k", &value]).expect_ok();
        }
        never_within(Duration::from_secs(2), "it was cut off", || {
            master.info("replication", "connected_slaves").as_deref() == Some("0")
        });
        replica.thaw();
        let end = || master.info("replication", "master_repl_offset");
        eventually("it has all", || {
            (replica.info("replication", "slave_repl_offset")? == end()?).then_some(())
        });
        assert_eq!(master.info("stats", "sync_full").as_deref(), Some("1"), "{}", program.name());
    }
}

/// CLIENT PAUSE on a replica also pauses the commands of its master.
#[test]
fn client_pause_on_replica_holds_replication_stream() {
    let master = Node::start(&Program::redoubt(), "--save ");
    for program in std::iter::once(Program::redoubt()).chain(Program::valkey()) {
        let replica = Node::start(&program, "--save ");
        start_replication(&replica, &master);
        for value in ["first", "second"] {
            master.run("SET k before").expect_ok();
            let before = Reply::Bulk(b"before".to_vec());
            eventually("it has that", || (replica.run("GET k") == before).then_some(()));
            let mut client = replica.connect();
            client.call_line("CLIENT PAUSE 100000 WRITE").expect_ok();
            master.run(&format!("SET k {value}")).expect_ok();
            never_within(Duration::from_millis(300), "it was applied", || {
                replica.run("GET k").text() == value
            });
            client.call_line("CLIENT UNPAUSE").expect_ok();
            eventually("it is applied", || (replica.run("GET k").text() == value).then_some(()));
        }
    }
}

/// A client with the REDIRECT capability finds the master without a list of servers.
#[test]
fn replica_redirects_clients_with_redirect_capability() {
    let master = Node::start(&Program::redoubt(), "--save ");
    let replica = Node::start(&Program::redoubt(), "--save ");
    start_replication(&replica, &master);
    let mut client = replica.connect();
    client.call_line("CLIENT CAPA redirect").expect_ok();
    let there = Reply::Error(format!("REDIRECT 127.0.0.1:{}", master.port));
    assert_eq!(client.call_line("SET a 1"), there);
    assert_eq!(client.call_line("GET a"), there);
    client.call_line("READONLY").expect_ok();
    assert_eq!(client.call_line("GET a"), Reply::NullBulk);
    client.call_line("READWRITE").expect_ok();
    replica.run("REPLICAOF NO ONE").expect_ok();
    client.call_line("SET a 1").expect_ok();
}

/// FAILOVER promotes the replica, the replica accepts writes, and no full synchronisation is needed.
fn assert_failover_promotes_replica(master: &Program, replica: &Program) {
    let master = Node::start(master, "--save ");
    let replica = Node::start(replica, "--save ");
    write_keys(&master, "before", 500);
    start_replication(&replica, &master);
    assert!(master.run("FAILOVER ABORT").is_error("ERR No failover in progress."));
    let forced = master.run("FAILOVER FORCE");
    assert!(forced.is_error("ERR FAILOVER with force option requires both a timeout"), "{forced:?}");
    let nowhere = master.run("FAILOVER TO 127.0.0.1 1");
    assert!(nowhere.is_error("ERR FAILOVER target HOST and PORT is not a replica."), "{nowhere:?}");
    assert!(replica.run("FAILOVER").is_error("ERR FAILOVER is not valid when server is a replica."));
    master.run("SET k 1").expect_ok();
    // The replica has all data before the master has received the acknowledgement.
    eventually("the master knows that its replica is in sync", || {
        master.info("replication", "slave0")?.contains("state=online").then_some(())
    });
    master.run(&format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 20000", replica.port)).expect_ok();
    eventually("the replica is the master", || {
        (replica.info("replication", "role")? == "master").then_some(())
    });
    wait_until_linked(&master);
    eventually("the failover is over", || {
        (master.info("replication", "master_failover_state")? == "no-failover").then_some(())
    });
    replica.run("SET k 2").expect_ok();
    wait_until_equal(&master, &replica, &["k".to_owned(), "before:7".to_owned()]);
    assert_eq!(replica.info("stats", "sync_full").as_deref(), Some("0"));
    assert!(master.run("SET k 3").is_error("READONLY"));
}

#[test]
fn failover_command_promotes_replica() {
    assert_failover_promotes_replica(&Program::redoubt(), &Program::redoubt());
    let lonely = Node::start(&Program::redoubt(), "--save ");
    assert!(lonely.run("FAILOVER").is_error("ERR FAILOVER requires connected replicas."));
}

#[test]
fn failover_command_works_between_redoubt_and_redis() {
    assert_failover_promotes_replica(&Program::redoubt(), &Program::redis());
    assert_failover_promotes_replica(&Program::redis(), &Program::redoubt());
}

/// While a replica is frozen, a failover to it cannot complete. Until the failover is aborted, the master refuses
/// REPLICAOF; after that, clients can write again.
fn assert_failover_can_be_aborted(program: &Program) {
    let master = Node::start(program, "--save ");
    let replica = Node::start(program, "--save ");
    start_replication(&replica, &master);
    let state = || master.info("replication", "master_failover_state");
    for forced in [false, true] {
        replica.freeze();
        master.run("SET k 1").expect_ok();
        let force = format!("FAILOVER TO 127.0.0.1 {} FORCE TIMEOUT 1", replica.port);
        master.run(if forced { &force } else { "FAILOVER" }).expect_ok();
        let wanted = if forced { "failover-in-progress" } else { "waiting-for-sync" };
        eventually("the failover waits for the replica", || (state()? == wanted).then_some(()));
        assert!(master.run("FAILOVER").is_error("ERR FAILOVER already in progress."));
        for other in ["NO ONE", "127.0.0.1 1"] {
            let refused = master.run(&format!("REPLICAOF {other}"));
            assert!(refused.is_error("ERR REPLICAOF not allowed while failing over."), "{refused:?}");
        }
        master.run("FAILOVER ABORT").expect_ok();
        assert_eq!(state().as_deref(), Some("no-failover"));
        assert!(master.run("FAILOVER ABORT").is_error("ERR No failover in progress."));
        master.run("SET k 2").expect_ok();
        assert_eq!(master.info("replication", "role").as_deref(), Some("master"));
        replica.thaw();
        wait_until_linked(&replica);
    }
    master.run("REPLICAOF NO ONE").expect_ok();
}

const BLOCKING_COMMANDS: [(&[&str], &str); 4] = [
    (&[], "BLPOP l 0"),
    (&["CLIENT CAPA redirect"], "BLPOP l 0"),
    (&["READWRITE"], "XREAD BLOCK 0 STREAMS s $"),
    (&["READONLY"], "XREAD BLOCK 0 STREAMS s $"),
];

fn block_clients(master: &Node) -> [Connection; 4] {
    BLOCKING_COMMANDS.map(|(says, waits)| {
        let mut client = master.connect();
        says.iter().for_each(|line| client.call_line(line).expect_ok());
        client.send(&waits.split(' ').collect::<Vec<_>>()).expect("it is sent");
        client
    })
}

fn wait_for_blocked(master: &Node) {
    eventually("they are blocked", || (master.info("clients", "blocked_clients")? == "4").then_some(()));
}

/// Blocked clients stay blocked until a failover succeeds. Then each client gets the reply that Valkey sends.
fn assert_clients_stay_blocked_until_failover(program: &Program) {
    let master = Node::start(program, "--save ");
    let replica = Node::start(program, "--save ");
    start_replication(&replica, &master);
    let [mut plain, mut redirected, mut reader, mut replica_reader] = block_clients(&master);
    wait_for_blocked(&master);
    let state = || master.info("replication", "master_failover_state");
    replica.freeze();
    master.run("SET k 1").expect_ok();
    master.run("FAILOVER TIMEOUT 200").expect_ok();
    eventually("the failover times out", || (state()? == "no-failover").then_some(()));
    wait_for_blocked(&master);
    master.run(&format!("FAILOVER TO 127.0.0.1 {} FORCE TIMEOUT 1", replica.port)).expect_ok();
    eventually("the replica receives the request", || (state()? == "failover-in-progress").then_some(()));
    wait_for_blocked(&master);
    master.run("FAILOVER ABORT").expect_ok();
    wait_for_blocked(&master);
    replica.thaw();
    wait_until_linked(&replica);
    eventually("it is in sync", || {
        master.info("replication", "slave0")?.contains("state=online").then_some(())
    });
    master.run("FAILOVER").expect_ok();
    for client in [&mut plain, &mut reader] {
        let told = client.read().expect("it is told");
        assert!(told.is_error("UNBLOCKED force unblock from blocking operation"), "{told:?}");
        assert!(client.read().is_err(), "the connection is closed");
    }
    let there = Reply::Error(format!("REDIRECT 127.0.0.1:{}", replica.port));
    assert_eq!(redirected.read().expect("it is told"), there);
    assert_eq!(redirected.call_line("PING").text(), "PONG");
    wait_until_linked(&master);
    assert_eq!(replica.run("XADD s 1-1 f v").text(), "1-1");
    let entries = format!("{:?}", replica_reader.read().expect("the stream brings it"));
    assert!(entries.contains("1-1"), "{entries}");
}

#[test]
fn blocked_clients_stay_blocked_until_failover_succeeds() {
    assert_clients_stay_blocked_until_failover(&Program::redoubt());
    if let Some(valkey) = Program::valkey() {
        assert_clients_stay_blocked_until_failover(&valkey);
    }
}

/// The target has another replication id, so it refuses to take over. The bug: the master's clients were paused for a
/// minute.
#[test]
fn failover_refused_by_target_ends_immediately() {
    let Some(valkey) = Program::valkey() else { return };
    for program in [&Program::redoubt(), &valkey] {
        let master = Node::start(program, "--save  --repl-diskless-sync-delay 0");
        let replica = Node::start(&valkey, "--save  --enable-debug-command yes");
        start_replication(&replica, &master);
        replica.run("DEBUG CHANGE-REPL-ID").expect_ok();
        master.run("SET k 1").expect_ok();
        eventually("the replica is online", || {
            master.info("replication", "slave0")?.contains("state=online").then_some(())
        });
        master.run(&format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 60000", replica.port)).expect_ok();
        eventually_within(MAX_FAILOVER_TIME, "the failover is over", || {
            (master.info("replication", "master_failover_state")? == "no-failover").then_some(())
        });
        master.run("SET k 2").expect_ok();
        assert_eq!(master.info("replication", "role").as_deref(), Some("master"));
        // The replica gets the new replication id and continues by partial resync.
        wait_until_linked(&replica);
        wait_until_equal(&replica, &master, &["k".to_owned()]);
        assert_eq!(replica.run("GET k").text(), "2");
    }
}

/// All commands are paused for a short time while writes are paused for a failover that does not end. Reads must resume
/// when the short pause ends. The bug: they resumed only together with the writes.
#[test]
fn reads_resume_when_full_pause_ends_during_failover() {
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        let master = Node::start(&program, "--save ");
        let replica = Node::start(&program, "--save ");
        start_replication(&replica, &master);
        master.run("SET k 1").expect_ok();
        replica.freeze();
        master.run("SET k 2").expect_ok();
        master.run("FAILOVER").expect_ok();
        let mut writer = master.connect();
        writer.send(&["SET", "k", "3"]).expect("it is sent");
        master.run("CLIENT PAUSE 100 ALL").expect_ok();
        assert_eq!(master.run("GET k").text(), "2");
        assert_eq!(
            master.info("replication", "master_failover_state").as_deref(),
            Some("waiting-for-sync"),
            "writes wait still"
        );
        master.run("FAILOVER ABORT").expect_ok();
        writer.read().expect("writing continues").expect_ok();
        replica.thaw();
    }
}

#[test]
fn waiting_failover_can_be_aborted() {
    assert_failover_can_be_aborted(&Program::redoubt());
    Program::valkey().iter().for_each(assert_failover_can_be_aborted);
}

/// A frozen replica delays the shutdown until an operator aborts it. Then writes continue, and the replica is in sync
/// for the next shutdown.
#[test]
fn shutdown_waits_for_replicas_and_can_be_aborted() {
    let mut master = Node::start(&Program::redoubt(), "--save  --shutdown-timeout 600");
    let replica = Node::start(&Program::redoubt(), "--save ");
    start_replication(&replica, &master);
    let link = replica.run("CLIENT LIST TYPE master").text();
    assert!(
        link.contains(&format!("addr=127.0.0.1:{} ", master.port)) && link.contains(" flags=M "),
        "{link}"
    );
    assert!(format!("{:?}", replica.run("CONFIG GET replicaof")).contains(&master.port.to_string()));
    assert!(master.run("SHUTDOWN ABORT").is_error("ERR No shutdown in progress."));
    replica.freeze();
    master.run("SET k 1").expect_ok();
    let mut stopping = master.connect();
    stopping.send(&["SHUTDOWN", "NOSAVE"]).expect("it reads");
    let blocked = |count: &str| (master.info("clients", "blocked_clients")? == count).then_some(());
    eventually("its client counts as blocked", || blocked("1"));
    eventually("the shutdown is aborted", || {
        (master.run("SHUTDOWN ABORT") == Reply::Simple("OK".into())).then_some(())
    });
    let refused = stopping.read().expect("a reply");
    assert!(refused.is_error("ERR Errors trying to SHUTDOWN. Check logs."), "{refused:?}");
    eventually("nobody is blocked", || blocked("0"));
    master.run("SET k 2").expect_ok();
    replica.thaw();
    stopping.send(&["SHUTDOWN", "NOSAVE"]).expect("it reads");
    assert!(master.wait_for_exit().success());
    assert_eq!(replica.run("GET k"), Reply::Bulk(b"2".to_vec()));
}

/// The replica cannot execute commands that succeeded on its master. It reports the error and does not accept a
/// failover.
#[test]
fn inconsistent_replica_reports_error_and_refuses_failover() {
    let master = Node::start(&Program::redis(), "--save  --repl-diskless-sync-delay 0");
    let replica = Node::start(&Program::redoubt(), "--save  --replica-read-only no");
    start_replication(&replica, &master);
    master.run("SET k 1").expect_ok();
    let unexpected = |node: &Node| node.info("stats", "unexpected_error_replies");
    let priority = |node: &Node| node.info("replication", "slave_priority");
    eventually("the replica has the key", || {
        (replica.run("GET k") == Reply::Bulk(b"1".to_vec())).then_some(())
    });
    assert_eq!((unexpected(&replica).as_deref(), priority(&replica).as_deref()), (Some("0"), Some("100")));

    // A client wrote a value to the replica that conflicts with the master's.
    replica.run("RPUSH bits x");
    replica.run("SET list x").expect_ok();
    let mut client = master.connect();
    // The commands fail in one pipeline with commands that succeed, and in a transaction.
    client.send_raw(b"SET k 2\r\nSETBIT bits 7 1\r\nSET k 3\r\nMULTI\r\nSET k 4\r\nRPUSH list a\r\nEXEC\r\nSET k 5\r\n").expect("it reads");
    (0..8).for_each(|_| drop(client.read().expect("a reply")));
    eventually("the replica has the last write", || {
        (replica.run("GET k") == Reply::Bulk(b"5".to_vec())).then_some(())
    });
    // The replica counts failures after the batch that contains them.
    let count: u64 = eventually("the replica has counted the failures", || {
        unexpected(&replica)?.parse().ok().filter(|count| *count >= 2)
    });
    assert_eq!(priority(&replica).as_deref(), Some("0"), "sentinels do not choose it");
    assert_eq!(replica.info("replication", "slave_unapplied_changes"), Some(count.to_string()));
    let log = replica.log();
    for command in ["SETBIT", "EXEC"] {
        assert!(log.lines().any(|line| line.contains("== CRITICAL ==") && line.contains(command)), "{log}");
    }
    master.run("FAILOVER").expect_ok();
    eventually_within(MAX_FAILOVER_TIME, "the failover is aborted", || {
        (master.info("replication", "master_failover_state")? == "no-failover").then_some(())
    });
    assert_eq!(master.info("replication", "role").as_deref(), Some("master"));
    assert_eq!(replica.info("replication", "role").as_deref(), Some("slave"));

    // A full synchronisation makes the data equal again.
    master.run("DEL bits list");
    replica.run("REPLICAOF NO ONE").expect_ok();
    assert!(replica.log().contains("A master now, without"));
    start_replication(&replica, &master);
    assert_eq!(priority(&replica).as_deref(), Some("100"));
}

/// With equal `hash-seed`s, a client can start SCAN on one server and finish it on another.
#[test]
fn scan_started_on_master_completes_on_replica() {
    let options = "--save --hash-seed ours";
    let (master, replica) =
        (Node::start(&Program::redoubt(), options), Node::start(&Program::redoubt(), options));
    write_keys(&master, "key", 2000);
    for number in 0..2000 {
        assert_eq!(master.run(&format!("SADD set member:{number}")).int(), 1);
    }
    start_replication(&replica, &master);
    wait_until_equal(&replica, &master, &[]);
    for (scan, wanted) in [("SCAN", 2001), ("SSCAN set", 2000)] {
        let (mut cursor, mut seen) = ("0".to_owned(), BTreeSet::new());
        for call in 0.. {
            let node = if call < 5 { &master } else { &replica };
            let page = node.run(&format!("{scan} {cursor} COUNT 100"));
            seen.extend(page.items()[1].items().iter().map(Reply::text));
            cursor = page.items()[0].text();
            if cursor == "0" {
                assert!(call > 5, "it ended before the replica was asked");
                break;
            }
        }
        assert_eq!(seen.len(), wanted, "{scan}");
    }
}

/// Rearranges a chain of five servers three times under writes, with a new master each time. Returns the number of full
/// synchronisations.
fn count_full_syncs_of_changing_chain(seed: u64) -> u64 {
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let nodes: Vec<Node> = (0..5).map(|_| Node::start(&Program::redoubt(), "--save ")).collect();
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    for round in 0..4 {
        order.shuffle(&mut chance);
        let master = &nodes[order[0]];
        master.run("REPLICAOF NO ONE").expect_ok();
        for at in 1..order.len() {
            let above = &nodes[order[chance.random_range(0..at)]];
            let answer = nodes[order[at]].run(&format!("REPLICAOF 127.0.0.1 {}", above.port)).text();
            assert!(answer.starts_with("OK"), "{answer}");
            master.run("INCR early");
        }
        let keys = format!("round{round}");
        write_keys(master, &keys, 300);
        for at in &order[1..] {
            wait_until_linked(&nodes[*at]);
            wait_until_equal(&nodes[*at], master, &dataset_sample(&keys, 300));
        }
    }
    let count = |node: &Node| node.info("stats", "sync_full").and_then(|count| count.parse::<u64>().ok());
    nodes.iter().map(|node| count(node).expect("INFO counts them")).sum()
}

/// Each replica needs one full synchronisation, and partial resyncs for every later position in the chain.
#[test]
fn rearranged_replica_chain_needs_one_full_sync_per_replica() {
    for seed in 0..2 {
        assert_eq!(count_full_syncs_of_changing_chain(seed), 4, "seed {seed}");
    }
}

/// While a master is stopped, some of its keys expire. After it restarts from its file, the replica continues by
/// partial resync and receives the deletions.
#[test]
fn restarted_master_allows_partial_resync_and_replicates_expirations() {
    let mut master = Node::start(&Program::redoubt(), "--save  --enable-debug-command yes");
    let replica = Node::start(&Program::redoubt(), "--save ");
    start_replication(&replica, &master);
    let until = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970") + Duration::from_secs(10);
    for number in 0..100 {
        master.run(&format!("SET brief:{number} x PXAT {}", until.as_millis())).expect_ok();
        master.run(&format!("SET lasting:{number} x EX 1000")).expect_ok();
    }
    master.run_in_database(3, &format!("SET elsewhere x PXAT {}", until.as_millis()));
    wait_until_equal(&replica, &master, &[]);
    master.connect().send(&["SHUTDOWN", "SAVE"]).expect("it is read");
    master.wait_for_exit_before_relaunch();
    eventually("the keys have expired", || (SystemTime::now() > UNIX_EPOCH + until).then_some(()));
    master.launch();
    wait_until_linked(&replica);
    wait_until_equal(&replica, &master, &[]);
    assert_eq!(master.info("persistence", "rdb_last_load_keys_expired").as_deref(), Some("101"));
    assert_eq!(replica.run("DBSIZE"), Reply::Int(100));
    assert_eq!(replica.run_in_database(3, "DBSIZE"), Reply::Int(0));
    assert_eq!(master.info("stats", "sync_full").as_deref(), Some("0"), "it went on");
    // The partial resync must also succeed when the file is reloaded while the server runs.
    master.run("DEBUG SET-ACTIVE-EXPIRE 0").expect_ok();
    master.run("SET brief x PX 1").expect_ok();
    master.run("DEBUG RELOAD").expect_ok();
    wait_until_equal(&replica, &master, &[]);
    assert_eq!(replica.run("DBSIZE"), Reply::Int(100));
}
