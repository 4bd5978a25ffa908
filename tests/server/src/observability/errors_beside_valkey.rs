//! The errors that INFO counts beside Valkey's: by their codes, in all, and by the commands that failed or were
//! refused.

use std::collections::BTreeMap;

use harness::{Node, Program, Value};

/// Each row is run by itself, on servers that have a list `l` and a library with `fail`.
const STORIES: &[&[&[&str]]] = &[
    // Made up by a script: returned, raised, within others.
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
    // A call's, which was counted when it failed, passed on or made anew.
    &[&["EVAL", "return redis.call('GET', 'l')", "0"]],
    &[&["EVAL", "return redis.pcall('GET', 'l')", "0"]],
    &[&["EVAL", "redis.pcall('GET', 'l') return 1", "0"]],
    &[&["EVAL", "return {1, redis.pcall('GET', 'l')}", "0"]],
    &[&["EVAL", "return {err=redis.pcall('GET', 'l').err}", "0"]],
    &[&["EVAL", "error(redis.pcall('GET', 'l'))", "0"]],
    &[&["EVAL", "return redis.pcall()", "0"]],
    // Calls that are refused.
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
    // Commands that are not queued.
    &[&["MULTI"], &["GET"], &["EXEC"]],
    &[&["MULTI"], &["XGROUP", "CREATE"], &["EXEC"]],
    &[&["MULTI"], &["XGROUP", "NOSUCH"], &["EXEC"]],
    &[&["MULTI"], &["XGROUP"], &["EXEC"]],
    // DEBUG is one command, queued with whatever words it has.
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
    // Errors of ACL.
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
    // Scripts of old form on a replica whose data is old, which are let begin.
    &[OLD, FOLLOW, &["EVAL", "return 1", "0"], LEAD, NEW],
    &[OLD, FOLLOW, &["EVAL_RO", "return 1", "1", "k"], LEAD, NEW],
    &[OLD, FOLLOW, &["EVAL", "#!lua\nreturn 1", "0"], LEAD, NEW],
    &[OLD, FOLLOW, &["EVAL", "#!lua flags=allow-stale\nreturn redis.call('get', 'k')", "0"], LEAD, NEW],
    &[OLD, FOLLOW, &["EVALSHA", "nosuch", "0"], LEAD, NEW],
    &[OLD, FOLLOW, &["FCALL", "fail", "0"], LEAD, NEW],
    &[OLD, FOLLOW, &["MULTI"], &["EVAL", "return 1", "0"], &["EXEC"], LEAD, NEW],
    &[OLD, FOLLOW, &["MULTI"], &["EVAL", "#!lua\nreturn 1", "0"], &["EXEC"], LEAD, NEW],
    // A script that may not write, where nothing may.
    &[FOLLOW, &["EVAL_RO", "return redis.call('set', 'a', 'b')", "0"], LEAD],
    &[FOLLOW, &["EVAL", "return redis.call('set', 'a', 'b')", "0"], LEAD],
    &[
        &["CONFIG", "SET", "min-replicas-to-write", "1"],
        &["EVAL_RO", "return redis.call('set', 'a', 'b')", "0"],
        &["CONFIG", "SET", "min-replicas-to-write", "0"],
    ],
    // A queue is let grow without memory, by commands that need none.
    &[FULL, &["MULTI"], &["GET", "a"], &["PING"], &["EVAL", "return 1", "0"], &["EXEC"], EMPTY],
    &[FULL, &["MULTI"], &["SET", "a", "b"], &["EXEC"], EMPTY],
    &[FULL, &["MULTI"], &["EVAL", "#!lua\nreturn 1", "0"], &["EXEC"], EMPTY],
    &[FULL, &["MULTI"], &["MULTI"], &["WATCH", "a"], &["EXEC"], EMPTY],
];

const OLD: &[&str] = &["CONFIG", "SET", "replica-serve-stale-data", "no"];
const NEW: &[&str] = &["CONFIG", "SET", "replica-serve-stale-data", "yes"];
/// A master that is not there.
const FOLLOW: &[&str] = &["REPLICAOF", "127.0.0.1", "1"];
const LEAD: &[&str] = &["REPLICAOF", "NO", "ONE"];
const FULL: &[&str] = &["CONFIG", "SET", "maxmemory", "1"];
const EMPTY: &[&str] = &["CONFIG", "SET", "maxmemory", "0"];

const LIBRARY: &str = "#!lua name=lib\nredis.register_function('fail', function() return {err='MINE f'} end)";

fn start(program: &Program) -> Node {
    let node = Node::start(program, "--save  --io-threads 1 --enable-debug-command yes");
    node.run("LPUSH l a");
    assert_eq!(node.connect().call(&["FUNCTION", "LOAD", LIBRARY]).text(), "lib");
    node
}

/// The codes, their sum, and what was refused and what failed by the command, of those that a story calls.
fn counted(node: &Node) -> BTreeMap<String, String> {
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
fn errors_are_counted_as_valkey_counts_them() {
    let Some(valkey) = Program::valkey() else { return };
    let nodes = [start(&Program::redoubt()), start(&valkey)];
    let mut wrong = Vec::new();
    for story in STORIES {
        let told = nodes.each_ref().map(|node| {
            node.run("CONFIG RESETSTAT").expect_ok();
            let mut client = node.connect();
            let replies: Vec<Value> = story.iter().map(|command| client.call(command)).collect();
            (replies, counted(node))
        });
        if told[0] != told[1] {
            wrong.push(format!("{story:?}\nhere  {:?}\nthere {:?}", told[0], told[1]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Scripts can make up any number of codes: beyond 128 kinds theirs are counted together, the server's own are not.
#[test]
fn kinds_of_errors_are_bounded_as_in_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let told = [start(&Program::redoubt()), start(&valkey)].map(|node| {
        let mut client = node.connect();
        let mut steps = Vec::new();
        client.run("GET");
        for number in 0..200 {
            let script = if number % 2 == 0 { "return {err=ARGV[1]}" } else { "error({err=ARGV[1]})" };
            client.call(&["EVAL", script, "0", &format!("E{number} a")]);
            steps.push(counted(&node).keys().filter(|name| name.starts_with("errorstat_")).count());
        }
        client.run("GET l");
        client.call(&["EVAL", "return {err='NOSCRIPT a'}", "0"]);
        client.call(&["EVAL", "return {err='WRONGTYPE a'}", "0"]);
        let full = counted(&node);
        // There is room again.
        node.run("CONFIG RESETSTAT").expect_ok();
        client.call(&["EVAL", "return {err='NEW a'}", "0"]);
        (steps, full, counted(&node))
    });
    assert_eq!(told[0].0, told[1].0);
    let codes = |counted: &BTreeMap<String, String>| {
        let codes = counted.iter().filter(|(name, _)| name.starts_with("errorstat_"));
        codes.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>()
    };
    assert_eq!(codes(&told[0].1), codes(&told[1].1));
    assert_eq!(codes(&told[0].2), codes(&told[1].2));
    assert_eq!(told[0].1["errorstat_ERRORSTATS_OVERFLOW"], "count=74");
}
