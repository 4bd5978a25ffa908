//! Tests of the Lua debugger with a real `redis-cli --ldb`: its output must match that of Valkey.

use std::io::Write;
use std::process::{Command, Stdio};

use harness::{Node, Program, Reply, eventually};

const DEBUGGED_SCRIPT: &str = "-- a script
local src = KEYS[1]
local n = tonumber(ARGV[1])
local function add(x, y)
  local z = x + y
  return z
end
redis.call('set', src, n)
for i = 1, 3 do
  n = add(n, i)
  redis.debug('n is', n, {1,2,'x'}, {a=1})
end
redis.breakpoint()
local t = {1, 2, {a='b', c=nil}, 1.5, true}
redis.call('incrby', src, n)
return {redis.call('get', src), n}
";

/// Debugs `script` with redis-cli, key `k` and argument 5, and the given input lines; returns the output.
fn run_debug_session(node: &Node, options: &[&str], script: &str, lines: &[&str]) -> String {
    let file = node.folder().join("script.lua");
    std::fs::write(&file, script).expect("the folder can be written to");
    let port = node.address().rsplit(':').next().expect("a port").to_owned();
    let mut cli = Command::new("redis-cli")
        .args(["-p", &port])
        .args(options)
        .args(["--eval", file.to_str().expect("a path of text"), "k", ",", "5"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli is there");
    let mut input = cli.stdin.take().expect("its input is ours");
    input.write_all(format!("{}\n", lines.join("\n")).as_bytes()).expect("it reads");
    drop(input);
    let output = cli.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The debug sessions: the redis-cli option, the script and the input lines.
fn debug_sessions() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let shown = "list/s/n/p/p src/p nosuch/p KEYS/p ARGV/b 5/b 99/b/c/p/p n/t/p z/b -5/b -5/b/b 10/b 6 x/b 0/c/maxlen 10/\
                 maxlen/p t/maxlen 0/e 1 + 1/e return 'x'/e foo bar/e error('boom')/e local q = 5/r get foo/r set foo bar/\
                 r nosuch a/r get/r debug x/w/list 3 1/l 5/s/s/p t/x/c";
    let values = "local f = tonumber\nlocal t = {1, {2, {3}}, 'a\"b\\r\\n'}\nlocal m = {1, 2, x=3}\nlocal c = {}\nc[1] = c\n\
                  local n = 1234567.25\nredis.debug(t, m, n, nil, 'x', 1/3)\nredis.call('get', 'foo')\n\
                  redis.setresp(3)\nlocal d = redis.call('zscore', 'nosuch', 'x')\nreturn 1";
    let tour = "b 8/c/p/p f/p c/p a b/maxlen 60/maxlen x/maxlen -5/maxlen/max 0/m/m 10/e redis.REPL_AOF/\
                e {redis.LOG_DEBUG}/e #redis/p redis/e setmetatable({}, {__index={a=1}})/e 1e15/e 2^53/e {nil,2}/e {[true]=1.5}/\
                e ''/e )(/e 'x\\0y'/e string.rep('q',300)/l -1/l 100/l abc/l 3x/l 3 0/l 3 -1/b 3 4/b 3/b 3/b -3x/b/t x/w x/\
                n x/h x/v get foo/server get foo/valkey set foo 'a b'/r incr foo/r lrange k 0 -1/r echo a/va get x/n/n/n/p/n";
    let types = "local l = redis.call('rpush', KEYS[1], 'a', 'b')\nlocal a = {}\na[1] = a\n\
                 local s = string.rep('x', 400)\nlocal b = nil\nlocal n = 0.1\nreturn redis.pcall('get', KEYS[1])";
    let loops = "local n = 0\nwhile n < 2 do\n  n = n + 1\nend\nlocal function f(a)\n  if a then\n    a = 1\n  end\nend\n\
                 f(1)\nreturn 1";
    vec![
        ("--ldb", DEBUGGED_SCRIPT, shown.split('/').collect()),
        ("--ldb-sync-mode", DEBUGGED_SCRIPT, vec!["c", "c"]),
        ("--ldb", DEBUGGED_SCRIPT, vec!["s", "a"]),
        ("--ldb", DEBUGGED_SCRIPT, vec!["s", "quit"]),
        (
            "--ldb",
            types,
            "s/s/s/s/s/s/p/p s/p b/r lrange k 0 -1/r type k/r llen k/r get k/s/s".split('/').collect(),
        ),
        ("--ldb", loops, vec!["s"; 12]),
        ("--ldb", "local a = 1\nreturn nosuch.x", vec!["s", "s"]),
        ("--ldb", "foo(", vec![]),
        ("--ldb", values, tour.split('/').collect()),
    ]
}

/// Removes addresses from the output, and the hidden variables of a `for` loop, which only Valkey shows.
fn normalize_output(text: &str) -> Vec<String> {
    let without_address = |line: &str| match line.split_once("@0x") {
        Some((before, rest)) => {
            format!("{before}@0x{}", rest.trim_start_matches(|letter: char| letter.is_ascii_hexdigit()))
        }
        None => line.to_owned(),
    };
    text.lines().filter(|line| !line.contains("<value> (for ")).map(without_address).collect()
}

#[test]
fn debugger_output_matches_valkey() {
    let Some(program) = Program::valkey() else { return };
    let (ours, valkey) = (Node::start(&Program::redoubt(), "--save "), Node::start(&program, "--save "));
    for (number, (option, script, lines)) in debug_sessions().into_iter().enumerate() {
        for node in [&ours, &valkey] {
            node.run("DEL k foo");
        }
        let (our_text, text) = (
            run_debug_session(&ours, &[option], script, &lines),
            run_debug_session(&valkey, &[option], script, &lines),
        );
        assert!(text.contains("debugging session"), "{text}");
        let (our_lines, lines) = (normalize_output(&our_text), normalize_output(&text));
        for (place, (our_line, line)) in our_lines.iter().zip(&lines).enumerate() {
            assert_eq!(
                our_line, line,
                "session {number}, line {place}:\n{our_text}\n--- and Valkey:\n{text}"
            );
        }
        assert_eq!(our_lines.len(), lines.len(), "session {number}:\n{our_text}\n---\n{text}");
        assert_eq!(ours.run("EXISTS k foo"), valkey.run("EXISTS k foo"), "session {number}");
    }
}

/// The libraries are frozen tables, whose contents have another order and other addresses than in Valkey.
#[test]
fn debugger_shows_the_contents_of_libraries() {
    let node = Node::start(&Program::redoubt(), "--save ");
    let lines = ["maxlen 0", "e redis", "e {m=math}", "e string", "c"];
    let text = run_debug_session(&node, &["--ldb"], "local one = 1\nreturn one", &lines);
    for shown in
        ["[REPL_ALL]=3; ", "[call]= \"function@0x", "{[m]={[", "[pi]=3.14159; ", "[gsub]= \"function@0x"]
    {
        assert!(text.contains(shown), "{shown}: {text}");
    }
}

/// With YES, other clients continue to work during a debug session. With SYNC, they get BUSY and can kill the script.
#[test]
fn other_clients_work_or_get_busy_during_a_debug_session() {
    let node = Node::start(&Program::redoubt(), "--save  --busy-reply-threshold 100");
    let begin = |mode: &str| {
        let mut user = node.connect();
        user.call(&["SCRIPT", "DEBUG", mode]).expect_ok();
        let stopped = user.call(&["EVAL", "redis.call('get', KEYS[1])\nreturn 1", "1", "k"]);
        assert_eq!(stopped.items().len(), 2, "{stopped:?}");
        user
    };
    let mut user = begin("YES");
    node.run("SET k 1").expect_ok();
    let ended = user.call(&["continue"]);
    assert_eq!(ended.items()[0].text(), "<endsession>");
    assert_eq!(user.read().expect("a reply").int(), 1);
    assert!(user.read().is_err(), "the connection ends");

    let mut user = begin("SYNC");
    let mut other = node.connect();
    eventually("other clients get BUSY", || other.call_line("GET k").is_error("BUSY").then_some(()));
    other.call_line("SCRIPT KILL").expect_ok();
    eventually("the script has ended", || {
        (other.call_line("GET k") == Reply::Bulk(b"1".to_vec())).then_some(())
    });
    assert!(user.read().is_ok());
}
