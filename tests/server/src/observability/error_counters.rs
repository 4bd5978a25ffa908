//! Compares the error counters of INFO with Valkey: by error code, in total, and by failed or rejected command.

use std::collections::BTreeMap;

use harness::{Node, Program, Reply};

/// Scenarios, each of which runs on servers that have a list `l` and a library with the function `fail`.
const ERROR_SCENARIOS: &[&[&[&str]]] = &[
    // A script returns, raises or nests errors of its own.
    &[&["EVAL", "return redis.error_reply('MINE hello')", "0"]],
    &[&["EVAL", "return redis.error_reply('hello')", "0"]],
    &[&["EVAL", "return {err='MINE hello'}", "0"]],
    &[&["EVAL", "return {err='bare'}", "0"]],
    &[&["EVAL", "return {err=' blank'}", "0"]],
    &[&["EVAL", "return {err='A:B#c x'}", "0"]],
    &[&["EVAL", "return {err='A\\0B c'}", "0"]],
    &[&["EVAL", "return {err='A\\255B c'}", "0"]],
    &[&["EVAL", "return {err=string.rep('x', 30) .. ' y'}", "0"]],
    &[&["EVAL", "return {err=string.rep('x', 31) .. ' y'}", "0"]],
    &[&["EVAL", "return {1, {err='MINE a'}, {map={k={err='OTHER b'}}}}", "0"]],
    &[&["EVAL", "return {err='MINE a', ignore_error_stats_update=true}", "0"]],
    &[&["EVAL", "return {err='MINE a', ignore_error_stats_update=1}", "0"]],
    &[&["EVAL", "error({err='MINE hello'})", "0"]],
    &[&["EVAL", "error('MINE hello')", "0"]],
    &[&["EVAL", "error({err=string.rep('x', 31) .. ' y'})", "0"]],
    &[&["FCALL", "fail", "0"]],
    &[&["MULTI"], &["EVAL", "return {err='MINE a'}", "0"], &["EXEC"]],
    // An error from `redis.call` is counted when the call fails, and not again when the script propagates or re-raises
    // it.
    &[&["EVAL", "return redis.call('GET', 'l')", "0"]],
    &[&["EVAL", "return redis.pcall('GET', 'l')", "0"]],
    &[&["EVAL", "redis.pcall('GET', 'l') return 1", "0"]],
    &[&["EVAL", "return {1, redis.pcall('GET', 'l')}", "0"]],
    &[&["EVAL", "return {err=redis.pcall('GET', 'l').err}", "0"]],
    &[&["EVAL", "error(redis.pcall('GET', 'l'))", "0"]],
    &[&["EVAL", "return redis.pcall()", "0"]],
    // A command called by a script is rejected before it runs.
    &[&["EVAL", "return redis.pcall('nosuch')", "0"]],
    &[&["EVAL", "return redis.pcall('get')", "0"]],
    &[&["EVAL", "return redis.pcall('xgroup')", "0"]],
    &[&["EVAL", "return redis.pcall('xgroup', 'nosuch')", "0"]],
    &[&["EVAL", "return redis.pcall('xgroup', 'create')", "0"]],
    &[&["EVAL", "return redis.pcall('subscribe', 'a')", "0"]],
    &[&["EVAL", "return redis.pcall('eval')", "0"]],
    &[&["EVAL_RO", "return redis.pcall('set', 'a', 'b')", "0"]],
    &[&["EVAL_RO", "return redis.call('set', 'a', 'b')", "0"]],
    &[
        &["ACL", "SETUSER", "default", "-get"],
        &["EVAL", "return redis.pcall('get', 'a')", "0"],
        &["ACL", "SETUSER", "default", "+@all"],
    ],
    &[
        &["CONFIG", "SET", "maxmemory", "1"],
        &["EVAL", "return redis.pcall('set', 'a', 'b')", "0"],
        &["CONFIG", "SET", "maxmemory", "0"],
    ],
    // These commands are malformed, so they are refused instead of queued.
    &[&["MULTI"], &["GET"], &["EXEC"]],
    &[&["MULTI"], &["XGROUP", "CREATE"], &["EXEC"]],
    &[&["MULTI"], &["XGROUP", "NOSUCH"], &["EXEC"]],
    &[&["MULTI"], &["XGROUP"], &["EXEC"]],
    // DEBUG is queued whatever its arguments are.
    &[&["MULTI"], &["DEBUG", "NOSUCH"], &["EXEC"]],
    &[&["MULTI"], &["DEBUG"], &["EXEC"]],
    &[&["DEBUG", "NOSUCH"]],
    &[&["DEBUG", "OBJECT"]],
    &[&["DEBUG", "OBJECT", "nosuch"]],
    &[&["DEBUG", "SLEEP", "0"]],
    &[&["DEBUG", "LOG"]],
    &[&["DEBUG", "JMAP"]],
    &[&["DEBUG", "ERROR", "MINE a"]],
    &[&["DEBUG", "ERROR", "-"]],
    &[&["MULTI"], &["DEBUG", "ERROR", "MINE a"], &["EXEC"]],
    &[&["ACL", "DRYRUN", "nobody", "DEBUG", "OBJECT", "k"]],
    &[&["ACL", "SETUSER", "some", "-@all", "+debug|object"], &["ACL", "DRYRUN", "some", "DEBUG", "DIGEST"]],
    &[&["ACL", "SETUSER", "some", "+@all", "-debug|object"]],
    &[&["LATENCY", "HISTOGRAM", "debug|sleep"]],
    // ACL subcommands fail.
    &[&["ACL", "CAT", "nosuch"]],
    &[&["ACL", "DELUSER", "default"]],
    &[&["ACL", "GETUSER", "nobody"]],
    &[&["ACL", "LOG", "x"]],
    &[&["ACL", "LOG", "1", "2"]],
    &[&["ACL", "GENPASS", "0"]],
    &[&["ACL", "GENPASS", "x"]],
    &[&["ACL", "DRYRUN", "default", "nosuch"]],
    &[&["ACL", "DRYRUN", "default", "get"]],
    &[&["ACL", "SAVE"]],
    // Scripts without a shebang may start on a replica with stale data.
    &[REFUSE_STALE_READS, BECOME_REPLICA, &["EVAL", "return 1", "0"], BECOME_MASTER, ALLOW_STALE_READS],
    &[
        REFUSE_STALE_READS,
        BECOME_REPLICA,
        &["EVAL_RO", "return 1", "1", "k"],
        BECOME_MASTER,
        ALLOW_STALE_READS,
    ],
    &[
        REFUSE_STALE_READS,
        BECOME_REPLICA,
        &["EVAL", "#!lua\nreturn 1", "0"],
        BECOME_MASTER,
        ALLOW_STALE_READS,
    ],
    &[
        REFUSE_STALE_READS,
        BECOME_REPLICA,
        &["EVAL", "#!lua flags=allow-stale\nreturn redis.call('get', 'k')", "0"],
        BECOME_MASTER,
        ALLOW_STALE_READS,
    ],
    &[REFUSE_STALE_READS, BECOME_REPLICA, &["EVALSHA", "nosuch", "0"], BECOME_MASTER, ALLOW_STALE_READS],
    &[REFUSE_STALE_READS, BECOME_REPLICA, &["FCALL", "fail", "0"], BECOME_MASTER, ALLOW_STALE_READS],
    &[
        REFUSE_STALE_READS,
        BECOME_REPLICA,
        &["MULTI"],
        &["EVAL", "return 1", "0"],
        &["EXEC"],
        BECOME_MASTER,
        ALLOW_STALE_READS,
    ],
    &[
        REFUSE_STALE_READS,
        BECOME_REPLICA,
        &["MULTI"],
        &["EVAL", "#!lua\nreturn 1", "0"],
        &["EXEC"],
        BECOME_MASTER,
        ALLOW_STALE_READS,
    ],
    // A read-only script calls a write command where writes are refused anyway.
    &[BECOME_REPLICA, &["EVAL_RO", "return redis.call('set', 'a', 'b')", "0"], BECOME_MASTER],
    &[BECOME_REPLICA, &["EVAL", "return redis.call('set', 'a', 'b')", "0"], BECOME_MASTER],
    &[
        &["CONFIG", "SET", "min-replicas-to-write", "1"],
        &["EVAL_RO", "return redis.call('set', 'a', 'b')", "0"],
        &["CONFIG", "SET", "min-replicas-to-write", "0"],
    ],
    // Commands that need no memory can be queued even while the server is out of memory.
    &[
        EXHAUST_MEMORY,
        &["MULTI"],
        &["GET", "a"],
        &["PING"],
        &["EVAL", "return 1", "0"],
        &["EXEC"],
        LIFT_MEMORY_LIMIT,
    ],
    &[EXHAUST_MEMORY, &["MULTI"], &["SET", "a", "b"], &["EXEC"], LIFT_MEMORY_LIMIT],
    &[EXHAUST_MEMORY, &["MULTI"], &["EVAL", "#!lua\nreturn 1", "0"], &["EXEC"], LIFT_MEMORY_LIMIT],
    &[EXHAUST_MEMORY, &["MULTI"], &["MULTI"], &["WATCH", "a"], &["EXEC"], LIFT_MEMORY_LIMIT],
];

const REFUSE_STALE_READS: &[&str] = &["CONFIG", "SET", "replica-serve-stale-data", "no"];
const ALLOW_STALE_READS: &[&str] = &["CONFIG", "SET", "replica-serve-stale-data", "yes"];
/// Makes the server a replica of an address at which no server listens.
const BECOME_REPLICA: &[&str] = &["REPLICAOF", "127.0.0.1", "1"];
const BECOME_MASTER: &[&str] = &["REPLICAOF", "NO", "ONE"];
const EXHAUST_MEMORY: &[&str] = &["CONFIG", "SET", "maxmemory", "1"];
const LIFT_MEMORY_LIMIT: &[&str] = &["CONFIG", "SET", "maxmemory", "0"];

const FUNCTION_LIBRARY: &str =
    "#!lua name=lib\nredis.register_function('fail', function() return {err='MINE f'} end)";

fn start_with_library(program: &Program) -> Node {
    let node = Node::start(program, "--save  --io-threads 1 --enable-debug-command yes");
    node.run("LPUSH l a");
    assert_eq!(node.connect().call(&["FUNCTION", "LOAD", FUNCTION_LIBRARY]).text(), "lib");
    node
}

/// The error counters and the `cmdstat` counters of the commands that the scenarios call, without times.
fn error_counters(node: &Node) -> BTreeMap<String, String> {
    let text = node.run("INFO everything").text();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let counted = lines.filter_map(|(name, value)| match name {
        "total_error_replies" => Some((name.to_owned(), value.to_owned())),
        _ if name.starts_with("errorstat_") => Some((name.to_owned(), value.to_owned())),
        _ if name.starts_with("cmdstat_info") || name.starts_with("cmdstat_config") => None,
        _ if name.starts_with("cmdstat_") => {
            let shown = |pair: &&str| !pair.starts_with("usec");
            Some((name.to_owned(), value.split(',').filter(shown).collect::<Vec<_>>().join(",")))
        }
        _ => None,
    });
    counted.collect()
}

#[test]
fn error_counters_match_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let nodes = [start_with_library(&Program::redoubt()), start_with_library(&valkey)];
    let mut wrong = Vec::new();
    for scenario in ERROR_SCENARIOS {
        let results = nodes.each_ref().map(|node| {
            node.run("CONFIG RESETSTAT").expect_ok();
            let mut client = node.connect();
            let replies: Vec<Reply> = scenario.iter().map(|command| client.call(command)).collect();
            (replies, error_counters(node))
        });
        if results[0] != results[1] {
            wrong.push(format!("{scenario:?}\nhere  {:?}\nthere {:?}", results[0], results[1]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Scripts can create any number of error codes. Beyond 128 codes, errors of scripts share one counter, and errors of
/// the server keep separate counters.
#[test]
fn number_of_error_codes_is_limited_as_in_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let results = [start_with_library(&Program::redoubt()), start_with_library(&valkey)].map(|node| {
        let mut client = node.connect();
        let mut steps = Vec::new();
        client.call_line("GET");
        for number in 0..200 {
            let script = if number % 2 == 0 { "return {err=ARGV[1]}" } else { "error({err=ARGV[1]})" };
            client.call(&["EVAL", script, "0", &format!("E{number} a")]);
            steps.push(error_counters(&node).keys().filter(|name| name.starts_with("errorstat_")).count());
        }
        client.call_line("GET l");
        client.call(&["EVAL", "return {err='NOSCRIPT a'}", "0"]);
        client.call(&["EVAL", "return {err='WRONGTYPE a'}", "0"]);
        let full = error_counters(&node);
        // CONFIG RESETSTAT makes room for new codes.
        node.run("CONFIG RESETSTAT").expect_ok();
        client.call(&["EVAL", "return {err='NEW a'}", "0"]);
        (steps, full, error_counters(&node))
    });
    assert_eq!(results[0].0, results[1].0);
    let codes = |counted: &BTreeMap<String, String>| {
        let codes = counted.iter().filter(|(name, _)| name.starts_with("errorstat_"));
        codes.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>()
    };
    assert_eq!(codes(&results[0].1), codes(&results[1].1));
    assert_eq!(codes(&results[0].2), codes(&results[1].2));
    assert_eq!(results[0].1["errorstat_ERRORSTATS_OVERFLOW"], "count=74");
}
