//! Tests of Redis 7.0 and Valkey 9.1 as replicas and masters of Redoubt, and of loading each other's files: data of
//! every type, under load, through broken links and a promotion. Tests with Valkey are skipped where it is not
//! installed.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::{Connection, Node, Program, Reply, eventually};

/// The options disable the sync delay and automatic saves, and enable DEBUG DIGEST.
const SERVER_OPTIONS: &str = "--repl-diskless-sync-delay 0 --enable-debug-command yes --save ";

/// The installed servers with which Redoubt is tested.
fn peer_programs() -> Vec<Program> {
    std::iter::once(Program::redis()).chain(Program::valkey()).collect()
}

/// Commands that write a few keys of every type, in each encoding.
const KEY_WRITING_COMMANDS: &[&str] = &[
    "SET number 12345",
    "SET text hello",
    "SET timed x PXAT 4102444800123",
    "SETBIT bits 70000 1",
    "RPUSH list a 1 -300 b",
    "SADD integers 1 2 70000",
    "SADD words a b 3",
    "ZADD scores 1 a 2.5 b -inf c",
    "HSET fields a 1 b two",
    "GEOADD places 13.361389 38.115556 Palermo 15.087269 37.502669 Catania",
    "PFADD counted a b c d e f g",
    "XADD events 1-1 a 1 b 2",
    "XADD events 2-1 a 3 b 4",
    "XADD events 2-2 c 5",
    "XGROUP CREATE events readers 0",
    "XREADGROUP GROUP readers one COUNT 2 STREAMS events >",
    "XACK events readers 1-1",
    "XDEL events 2-2",
];

/// Writes data of every type, in each encoding, to two databases.
fn write_keys(node: &Node) {
    let mut connection = node.connect();
    for line in KEY_WRITING_COMMANDS {
        let reply = connection.call_line(line);
        assert!(!matches!(reply, Reply::Error(_)), "{line}: {reply:?}");
    }
    let function = "{function_name = 'f', callback = function() return 1 end, flags = {'no-writes'}}";
    let library = format!("#!lua name=lib\nredis.register_function{function}");
    assert_eq!(connection.call(&["FUNCTION", "LOAD", &library]).text(), "lib");
    let long = "x".repeat(30_000);
    connection.call(&["SET", "long", &long]).expect_ok();
    for number in 0..700 {
        let (name, number) = (format!("element:{number}"), number.to_string());
        connection.call(&["RPUSH", "list:large", &name]);
        connection.call(&["SADD", "set:large", &name]);
        connection.call(&["SADD", "integers:large", &number]);
        connection.call(&["ZADD", "zset:large", &number, &name]);
        connection.call(&["HSET", "hash:large", &name, &number]);
        connection.call(&["XADD", "stream:large", "*", "field", &name]);
    }
    connection.call_line("SELECT 3").expect_ok();
    connection.call_line("SET elsewhere x").expect_ok();
}

/// Writes values of every type until `stop` is set.
fn start_writer(should_stop: &AtomicBool, mut connection: Connection) -> u64 {
    let mut rounds = 0;
    while !should_stop.load(Ordering::Relaxed) {
        let (round, name) = (rounds.to_string(), format!("load:{}", rounds % 97));
        let requests: [&[&str]; 12] = [
            &["SET", &format!("{name}:s"), &round, "EX", "100000"],
            &["INCRBYFLOAT", &format!("{name}:f"), "0.1"],
            &["APPEND", &format!("{name}:a"), &round],
            &["LPUSH", &format!("{name}:l"), &round, &name],
            &["RPOPLPUSH", &format!("{name}:l"), &format!("{name}:m")],
            &["SADD", &format!("{name}:set"), &round],
            &["SPOP", &format!("{name}:set")],
            &["ZINCRBY", &format!("{name}:z"), "1.5", &round],
            &["HSET", &format!("{name}:h"), &round, &name],
            &["XADD", &format!("{name}:x"), "MAXLEN", "5", "*", "field", &round],
            &["EVAL", "return redis.call('incr', KEYS[1])", "1", &format!("{name}:e")],
            &["DEL", &format!("load:{}:h", (rounds + 50) % 97)],
        ];
        for request in requests {
            let reply = connection.call(request);
            assert!(!matches!(reply, Reply::Error(_)), "{request:?}: {reply:?}");
        }
        rounds += 1;
    }
    rounds
}

fn info_counter(node: &Node, name: &str) -> u64 {
    node.info("stats", name).and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn start_replication(replica: &Node, master: &Node) {
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    wait_for_link(replica);
}

fn wait_for_link(replica: &Node) {
    eventually(&format!("{} is linked", replica.port), || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
}

fn assert_same_data(one: &Node, other: &Node) {
    let offset = |node: &Node| node.info("replication", "master_repl_offset");
    eventually("both have the same offset", || (offset(one) == offset(other)).then_some(()));
    assert_same_digest(one, other);
}

/// Compares DEBUG DIGEST, and pending entries of consumer groups and functions, which the digest does not include.
fn assert_same_digest(one: &Node, other: &Node) {
    for question in ["DBSIZE", "DEBUG DIGEST", "XPENDING events readers", "PEXPIRETIME timed", "FCALL f 0"] {
        assert_eq!(one.run(question), other.run(question), "{question}");
    }
    let elsewhere = |node: &Node| {
        let mut connection = node.connect();
        connection.call_line("SELECT 3").expect_ok();
        connection.call_line("GET elsewhere")
    };
    assert_eq!(elsewhere(one), elsewhere(other));
}

/// The replica synchronises under load, loses its link three times, resumes by partial resync and has all data. Then it
/// is promoted, and the old master also resumes from it by partial resync.
fn assert_replicates(master: &Program, replica: &Program) {
    let (master, replica) = (Node::start(master, SERVER_OPTIONS), Node::start(replica, SERVER_OPTIONS));
    write_keys(&master);
    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let writer = scope.spawn(|| start_writer(&stop, master.connect()));
        let stopped = StopOnDrop(&stop);
        start_replication(&replica, &master);
        for times in 1..=3 {
            master.run("CLIENT KILL TYPE replica");
            eventually("it goes on from where it was", || {
                (info_counter(&master, "sync_partial_ok") >= times).then_some(())
            });
            wait_for_link(&replica);
        }
        drop(stopped);
        writer.join().expect("the writer does not fail")
    });
    println!("{rounds} rounds of writes");
    assert!(rounds > 10);
    assert_same_data(&replica, &master);
    assert_eq!(info_counter(&master, "sync_full"), 1);

    replica.run("REPLICAOF NO ONE").expect_ok();
    replica.run("SET promoted yes").expect_ok();
    start_replication(&master, &replica);
    assert_same_data(&master, &replica);
    assert_eq!((info_counter(&replica, "sync_full"), info_counter(&replica, "sync_partial_ok")), (0, 1));
    assert_eq!(master.run("GET promoted").text(), "yes");
}

/// Stops the writer when it is dropped, even if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn other_servers_replicate_redoubt_under_load() {
    peer_programs().iter().for_each(|peer| assert_replicates(&Program::redoubt(), peer));
}

#[test]
fn redoubt_replicates_other_servers_under_load() {
    peer_programs().iter().for_each(|peer| assert_replicates(peer, &Program::redoubt()));
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for file in fs::read_dir(from).expect("a folder").filter_map(Result::ok) {
        fs::copy(file.path(), to.join(file.file_name())).expect("a file");
    }
}

/// Valkey requests a dual channel sync and falls back to one connection if the master does not support it.
#[test]
fn valkey_falls_back_to_single_channel_sync() {
    let (redoubt, Some(valkey)) = (Program::redoubt(), Program::valkey()) else { return };
    let dual = format!("--dual-channel-replication-enabled yes {SERVER_OPTIONS}");
    for ours_is_master in [true, false] {
        let (ours, theirs) = (Node::start(&redoubt, SERVER_OPTIONS), Node::start(&valkey, &dual));
        let (master, replica) = if ours_is_master { (&ours, &theirs) } else { (&theirs, &ours) };
        write_keys(master);
        start_replication(replica, master);
        assert_same_data(replica, master);
        assert_eq!(info_counter(master, "sync_full"), 1);
    }
}

/// Asserts that `reader` loads an RDB file that `writer` saved.
fn assert_loads_rdb_of(writer: &Program, reader: &Program) {
    let written = Node::start(writer, SERVER_OPTIONS);
    write_keys(&written);
    written.run("SAVE").expect_ok();
    let mut loaded = Node::prepare(reader, SERVER_OPTIONS);
    fs::copy(written.folder().join("dump.rdb"), loaded.folder().join("dump.rdb")).expect("it was saved");
    loaded.launch();
    assert_same_digest(&loaded, &written);
}

/// Asserts that `reader` loads the AOF of `writer`: a base file from a rewrite, and an increment with later commands.
fn assert_loads_aof_of(writer: &Program, reader: &Program) {
    let options = format!("--appendonly yes --appendfsync always {SERVER_OPTIONS}");
    let mut written = Node::start(writer, &options);
    write_keys(&written);
    written.run("BGREWRITEAOF");
    eventually("it is rewritten", || {
        let done = written.info("persistence", "aof_rewrite_in_progress")? == "0";
        (done && written.info("persistence", "aof_rewrite_scheduled")? == "0").then_some(())
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| start_writer(&stop, written.connect()));
        let stopped = StopOnDrop(&stop);
        eventually("there is something in the increment", || {
            (written.run("EXISTS load:50:x") == Reply::Int(1)).then_some(())
        });
        drop(stopped);
        writer.join().expect("the writer does not fail")
    });
    let digest = written.run("DEBUG DIGEST");
    written.kill();
    let mut loaded = Node::prepare(reader, &options);
    copy_folder(&written.folder().join("appendonlydir"), &loaded.folder().join("appendonlydir"));
    loaded.launch();
    eventually("it is loaded", || (loaded.info("persistence", "loading")? == "0").then_some(()));
    assert_eq!(loaded.run("DEBUG DIGEST"), digest);
    written.launch();
    eventually("it is loaded", || (written.info("persistence", "loading")? == "0").then_some(()));
    assert_same_digest(&loaded, &written);
}

#[test]
fn other_servers_load_files_of_redoubt() {
    for peer in peer_programs() {
        assert_loads_rdb_of(&Program::redoubt(), &peer);
        assert_loads_aof_of(&Program::redoubt(), &peer);
    }
}

#[test]
fn redoubt_loads_files_of_other_servers() {
    for peer in peer_programs() {
        assert_loads_rdb_of(&peer, &Program::redoubt());
        assert_loads_aof_of(&peer, &Program::redoubt());
    }
}

/// Valkey's digest does not include field TTLs, so the TTLs are compared one by one: after a full synchronisation, in
/// the stream, and in a file.
#[test]
fn hash_field_ttls_survive_transfer_to_valkey_and_back() {
    let (redoubt, Some(valkey)) = (Program::redoubt(), Program::valkey()) else { return };
    for (master, replica) in [(&redoubt, &valkey), (&valkey, &redoubt)] {
        let (master, replica) = (Node::start(master, SERVER_OPTIONS), Node::start(replica, SERVER_OPTIONS));
        let set = |key: &str| {
            master.run(&format!("HSET {key} a 1 b 2 c 3"));
            master.run(&format!("HPEXPIREAT {key} 4102444800123 FIELDS 2 a b"));
            master.run(&format!("HPERSIST {key} FIELDS 1 b"));
        };
        set("before");
        start_replication(&replica, &master);
        set("after");
        assert_same_field_ttls(&replica, &master);
    }
}

fn assert_same_field_ttls(replica: &Node, master: &Node) {
    let offset = |node: &Node| node.info("replication", "master_repl_offset");
    eventually("both have the same offset", || (offset(replica) == offset(master)).then_some(()));
    for key in ["before", "after"] {
        let times = format!("HPEXPIRETIME {key} FIELDS 3 a b c");
        let expected = [Reply::Int(4_102_444_800_123), Reply::Int(-1), Reply::Int(-1)];
        assert_eq!(replica.run(&times).items(), expected, "{key}");
        assert_eq!(replica.run(&format!("HGET {key} c")).text(), "3");
    }
}

/// Writes data that Redis 8.6 supports and Redis 8.0 does not: RDB version 13, idempotent stream producers, offsets in
/// the AOF manifest.
fn write_redis_8_6_data(node: &Node) {
    let mut connection = node.connect();
    for line in [
        "HSET timed a 1 b 2",
        "HPEXPIREAT timed 4102444800123 FIELDS 1 a",
        "XADD produced IDMP one first * a 1",
        "XADD produced IDMP one first * a 1",
        "XADD produced IDMP two second * a 2",
        "XADD produced IDMPAUTO two * a 3",
        "XCFGSET produced IDMP-DURATION 500 IDMP-MAXSIZE 50",
        "XGROUP CREATE produced readers 0",
        "XREADGROUP GROUP readers one COUNT 1 STREAMS produced >",
        "XGROUP CREATECONSUMER produced readers idle",
    ] {
        let reply = connection.call_line(line);
        assert!(!matches!(reply, Reply::Error(_)), "{line}: {reply:?}");
    }
}

fn assert_has_redis_8_6_data(node: &Node) {
    eventually("it is there", || (node.run("XLEN produced") == Reply::Int(3)).then_some(()));
    let times = node.run("HPEXPIRETIME timed FIELDS 2 a b");
    assert_eq!(times.items(), [Reply::Int(4_102_444_800_123), Reply::Int(-1)]);
    assert_eq!(node.run("XPENDING produced readers").items()[0], Reply::Int(1));
    let consumers = node.run("XINFO CONSUMERS produced readers");
    let idle = consumers.items()[0].items();
    assert_eq!((idle[1].text(), idle[7].int()), ("idle".to_owned(), -1), "it was never active");
}

#[test]
fn redoubt_loads_files_of_redis_8_6_and_replicates_it() {
    let Some(redis) = Program::redis_8_6() else { return };
    let ours = Program::redoubt();
    assert_loads_rdb_of(&redis, &ours);
    assert_loads_aof_of(&redis, &ours);
    let mut written = Node::start(&redis, &format!("--appendonly yes {SERVER_OPTIONS}"));
    write_redis_8_6_data(&written);
    let replica = Node::start(&ours, SERVER_OPTIONS);
    start_replication(&replica, &written);
    assert_has_redis_8_6_data(&replica);
    let mut payloads = written.connect();
    let Reply::Bulk(payload) = payloads.call_line("DUMP produced") else { panic!("no payload") };
    let restored = Node::start(&ours, SERVER_OPTIONS);
    restored
        .connect()
        .try_call(&[&b"RESTORE"[..], b"produced", b"0", &payload])
        .expect("it answers")
        .expect_ok();
    assert_eq!(restored.run("XLEN produced"), Reply::Int(3));
    written.run("SAVE").expect_ok();
    written.run("BGREWRITEAOF");
    eventually("it is rewritten", || {
        (written.info("persistence", "aof_rewrite_in_progress")? == "0").then_some(())
    });
    written.kill();
    for options in ["--appendonly no", "--appendonly yes"] {
        let mut loaded = Node::prepare(&ours, &format!("{options} {SERVER_OPTIONS}"));
        fs::copy(written.folder().join("dump.rdb"), loaded.folder().join("dump.rdb")).expect("it was saved");
        copy_folder(&written.folder().join("appendonlydir"), &loaded.folder().join("appendonlydir"));
        loaded.launch();
        assert_has_redis_8_6_data(&loaded);
        // The active time of consumers must also survive a restart of Redoubt.
        if options == "--appendonly no" {
            loaded.run("SAVE").expect_ok();
            loaded.kill();
            loaded.launch();
            assert_has_redis_8_6_data(&loaded);
        }
    }
}

/// Vector sets are the only type that Redoubt does not support, and the error must name them.
#[test]
fn error_for_vector_sets_names_the_unsupported_type() {
    let Some(redis) = Program::redis_8_6() else { return };
    let written = Node::start(&redis, SERVER_OPTIONS);
    written.run("VADD vectors VALUES 2 1 2 element");
    written.run("SAVE").expect_ok();
    let mut loaded = Node::prepare(&Program::redoubt(), SERVER_OPTIONS);
    fs::copy(written.folder().join("dump.rdb"), loaded.folder().join("dump.rdb")).expect("it was saved");
    loaded.spawn();
    assert!(!loaded.wait_for_exit_before_relaunch().success());
    let refused = "values of the module type 'vectorset' are not supported";
    assert!(loaded.log().contains(refused), "{}", loaded.log());
}
