//! Tests of the script debugger.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use engine::{DebuggedScript, DispatchStatus, NodeCommand};
use resp::Request;
use scripting::DebugConsole;

use crate::testing::Client;

/// A debugger's client that sends the given lines in order and then disconnects.
#[derive(Debug)]
struct ScriptedConsole {
    lines: Vec<&'static str>,
    output: std::sync::mpsc::Sender<String>,
}

impl ScriptedConsole {
    fn with_lines(lines: &[&'static str]) -> (Box<Self>, Receiver<String>) {
        let (seen, heard) = channel();
        (Box::new(Self { lines: lines.iter().rev().copied().collect(), output: seen }), heard)
    }
}

impl DebugConsole for ScriptedConsole {
    fn send(&mut self, bytes: Vec<u8>) {
        self.output.send(String::from_utf8(bytes).expect("text")).expect("it is heard");
    }

    fn receive(&mut self, _stopped: &dyn Fn() -> bool) -> Option<Vec<Vec<u8>>> {
        Some(self.lines.pop()?.split(' ').map(|word| word.as_bytes().to_vec()).collect())
    }
}

/// Runs a script in the debugger. Returns the client, the debugger's output, and the reply.
fn debug_script(
    client: Client,
    mode: &str,
    script: &str,
    lines: &[&'static str],
) -> (Client, String, String) {
    let mut client = client;
    client.check_replies(&[(&format!("script debug {mode}"), "+OK")]);
    let (console, heard) = ScriptedConsole::with_lines(lines);
    let words = ["eval", script, "1", "k", "5"];
    assert_eq!(client.run_status("eval \"return 1\" 0"), DispatchStatus::Node(NodeCommand::DebugScript));
    let mut request = Request::new();
    words.iter().for_each(|word| request.push(word.as_bytes()));
    let script = DebuggedScript::new(&mut client.session, request, console);
    let Client { engine, commands, worker, session, now, log } = client;
    let engine = Arc::new(engine);
    let reply = script.run(&engine, &commands, now, || 0);
    let engine = Arc::into_inner(engine).expect("nobody keeps it");
    let said: String = heard.iter().collect();
    let client = Client { engine, commands, worker, session, now, log };
    (client, said, String::from_utf8(reply).expect("text"))
}

const SCRIPT: &str = "local key = KEYS[1]\nlocal function add(x, y)\n  local z = x + y\n  return z\nend\n\
                      redis.call('incrby', key, add(1, ARGV[1]))\nfor i = 1, 2 do\n  redis.debug('i', i)\nend\n\
                      redis.breakpoint()\nreturn redis.call('get', key)";

#[test]
fn debug_session_discards_or_keeps_writes() {
    let mut client = Client::with_recording_log();
    client.check_replies(&[("set k 10", "+OK")]);
    let (mut client, said, reply) = debug_script(client, "yes", SCRIPT, &["c", "c"]);
    assert_eq!(reply, "$2\r\n16\r\n", "{said}");
    assert!(said.ends_with("*1\r\n+<endsession>\r\n"), "{said}");
    client.check_replies(&[("get k", "$2|10")]);
    let (mut client, _, reply) = debug_script(client, "sync", SCRIPT, &["c", "c"]);
    assert_eq!(reply, "$2\r\n16\r\n");
    client.check_replies(&[("get k", "$2|16")]);
    assert_eq!(client.logged_commands(), ["0 set k 10", "0 incrby k 6"]);
}

#[test]
fn debugger_stops_prints_and_continues() {
    let lines = [
        "p",
        "b 4",
        "s",
        "c",
        "p",
        "p key",
        "p x",
        "p nosuch",
        "t",
        "b 0",
        "maxlen 10",
        "e 1 + 1",
        "r get k",
        "c",
        "s",
    ];
    let (_, said, _) = debug_script(Client::new(), "yes", SCRIPT, &lines);
    for expected in [
        "*2\r\n+* Stopped at 1, stop reason = step over\r\n+-> 1   local key = KEYS[1]\r\n",
        "*1\r\n+No local variables in the current context.\r\n",
        "*3\r\n+   3     local z = x + y\r\n+  #4     return z\r\n+   5   end\r\n",
        "*2\r\n+* Stopped at 5, stop reason = step over\r\n+-> 5   end\r\n",
        "*2\r\n+* Stopped at 4, stop reason = break point\r\n+->#4     return z\r\n",
        "*3\r\n+<value> x = 1\r\n+<value> y = 5\r\n+<value> z = 6\r\n",
        "*1\r\n+<value> k\r\n",
        "*1\r\n+<value> 1\r\n",
        "*1\r\n+No such variable.\r\n",
        "*4\r\n+In add:\r\n+->#4     return z\r\n+From top level:\r\n+   6   redis.call('incrby', key, add(1, ARGV[1]))\r\n",
        "*1\r\n+All breakpoints removed.\r\n",
        "*1\r\n+<value> replies are truncated at 60 bytes.\r\n",
        "*1\r\n+<retval> 2\r\n",
        "*2\r\n+<command> get k\r\n+<reply> NULL\r\n",
        "*4\r\n+<debug> line 8: i, 1\r\n+<debug> line 8: i, 2\r\n+* Stopped at 11, stop reason = server.breakpoint() called\r\n",
        "+<command> get k\r\n+<reply> \"6\"\r\n+<endsession>\r\n",
    ] {
        assert!(said.contains(expected), "{expected}\nin\n{said}");
    }
}

#[test]
fn debug_session_ends_on_abort_syntax_error_or_disconnect() {
    let (client, _, reply) = debug_script(Client::new(), "yes", SCRIPT, &["s", "a"]);
    assert!(reply.starts_with("-ERR script aborted for user request script: "), "{reply}");
    assert!(reply.ends_with(" on @user_script:5.\r\n"), "{reply}");
    let (client, said, reply) = debug_script(client, "yes", "foo(", &[]);
    assert_eq!(said, "");
    assert!(reply.starts_with("*1\r\n+<endsession>\r\n-ERR Error compiling script"), "{reply}");
    let (mut client, _, reply) = debug_script(client, "yes", SCRIPT, &["s"]);
    assert_eq!(reply, "$1\r\n6\r\n");
    client.check_replies(&[
        ("exists k", ":0"),
        ("script debug", "-ERR wrong number of arguments for 'script|debug' command"),
        ("script debug x", "-ERR Use SCRIPT DEBUG YES/SYNC/NO"),
        ("script debug no LUA", "+OK"),
        ("script debug x js", "-ERR No scripting engine found with name 'js' to enable debug"),
        ("script debug yes", "+OK"),
        (
            "evalsha e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
            "-ERR Please use EVAL instead of EVALSHA for debugging",
        ),
        ("script debug no", "+OK"),
        ("eval \"return 1\" 0", ":1"),
        ("multi", "+OK"),
        ("script debug yes", "+QUEUED"),
        ("exec", "*1|-ERR SCRIPT DEBUG must be called outside a pipeline"),
    ]);
}

#[test]
fn forked_debug_session_scans_copies_of_all_keys() {
    let mut client = Client::new();
    client.check_replies(&[("mset a 1 b 2 c 3", "+OK")]);
    let script = "redis.call('del', 'a')\nredis.call('set', 'd', 4)\nlocal keys = redis.call('keys', '*')\n\
                  table.sort(keys)\nredis.call('flushall')\nreturn {table.concat(keys, ' '), redis.call('dbsize')}";
    let (mut client, said, reply) = debug_script(client, "yes", script, &["c"]);
    assert_eq!(reply, "*2\r\n$5\r\nb c d\r\n:0\r\n", "{said}");
    client.check_replies(&[("dbsize", ":3"), ("debug populate 200000", "+OK")]);
    let (_, _, reply) = debug_script(client, "yes", "return redis.call('dbsize')", &["c"]);
    assert!(reply.starts_with("-ERR This command is about all keys, and there are too many"), "{reply}");
}
