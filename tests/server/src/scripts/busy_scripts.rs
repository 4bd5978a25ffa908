//! Tests of long-running scripts: all other clients get BUSY, with one worker and with several, and the script can be
//! killed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use harness::{Connection, Node, Program, Reply, cpu_ticks, eventually};

const ENDLESS_SCRIPT: &str = "while true do end";
const ENDLESS_SCRIPT_AFTER_WRITE: &str = "redis.call('set', KEYS[1], 1) while true do end";

fn start_server(workers: usize) -> Node {
    Node::start(
        &Program::redoubt(),
        &format!("--save  --io-threads {workers} --busy-reply-threshold 100 --enable-debug-command yes"),
    )
}

fn gets_busy_error(connection: &mut Connection) -> bool {
    connection.call_line("GET other").is_error("BUSY ")
}

/// Starts a script on one connection and waits until another connection gets BUSY.
fn run_script_until_busy(connection: &mut Connection, other: &mut Connection, script: &str) {
    connection.send(&["EVAL", script, "1", "k"]).expect("the node takes commands");
    eventually("the server is busy", || gets_busy_error(other).then_some(()));
}

fn expect_script_killed(connection: &mut Connection) {
    let reply = connection.read().expect("a reply");
    let Reply::Error(text) = &reply else { panic!("{reply:?}") };
    assert!(text.starts_with("ERR Script killed by user with "), "{text}");
    assert!(text.contains(" KILL. script: on @user_"), "the error must name the script line: {text}");
}

/// Regression test: the BUSY error recommended SCRIPT KILL, which does not stop a function.
#[test]
fn busy_error_of_a_function_recommends_function_kill() {
    let node = start_server(1);
    let (mut runs, mut other) = (node.connect(), node.connect());
    let library = "#!lua name=l\nredis.register_function('spin', function() while true do end end)";
    runs.call(&["FUNCTION", "LOAD", library]);
    runs.send(&["FCALL", "spin", "0"]).expect("the node takes commands");
    eventually("the server is busy", || gets_busy_error(&mut other).then_some(()));
    for line in ["GET k", "SCRIPT KILL"] {
        let reply = format!("{:?}", other.call_line(line));
        assert!(reply.contains("You can only call FUNCTION KILL or SHUTDOWN NOSAVE."), "{line}: {reply}");
    }
    other.call_line("FUNCTION KILL").expect_ok();
    assert!(matches!(runs.read().expect("a reply"), Reply::Error(_)));
}

/// Both existing and new connections get BUSY and can kill the script.
#[test]
fn every_other_client_gets_busy_and_can_kill_the_script() {
    for workers in [1, 3] {
        let node = start_server(workers);
        let mut before: Vec<Connection> = (0..7).map(|_| node.connect()).collect();
        before.iter_mut().for_each(|other| assert_eq!(other.call_line("PING"), Reply::Simple("PONG".into())));
        for round in 0..7 {
            let (mut caller, mut others) = (before.remove(round % 7), before);
            run_script_until_busy(&mut caller, &mut others[0], ENDLESS_SCRIPT);
            for (number, other) in others.iter_mut().enumerate() {
                let line = ["GET k", "SET k 1", "PING", "DBSIZE", "FLUSHALL", "EVAL return 0"][number];
                assert!(other.call_line(line).is_error("BUSY "), "{workers} workers, {number}: {line}");
            }
            assert!(node.connect().call_line("SET other 1").is_error("BUSY "), "new clients get BUSY");
            let mut fresh = node.connect();
            let by = if round % 2 == 0 { &mut others[round % 6] } else { &mut fresh };
            assert!(by.call_line("FUNCTION KILL").is_error("BUSY "), "FUNCTION KILL must not end a script");
            by.call_line("SCRIPT KILL").expect_ok();
            expect_script_killed(&mut caller);
            for (number, other) in others.iter_mut().enumerate() {
                eventually(&format!("{number} is served again"), || (!gets_busy_error(other)).then_some(()));
                other.call_line("SET other 1").expect_ok();
                assert_eq!(other.call(&["EVAL", "return 1", "0"]).int(), 1);
            }
            others.insert(round % 7, caller);
            before = others;
            assert_eq!(before[round % 7].call_line("PING"), Reply::Simple("PONG".into()));
        }
    }
}

/// Pipelined requests are answered in order, even if their connection moves to another worker.
#[test]
fn no_reply_is_lost_or_reordered_by_busy_scripts() {
    const CLIENT_COUNT: usize = 4;
    let node = start_server(1);
    let (mut caller, mut watcher) = (node.connect(), node.connect());
    let (over, refused) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; CLIENT_COUNT]);
    thread::scope(|scope| {
        let stop = StopOnDrop(&over);
        let counts: Vec<_> = refused
            .iter()
            .enumerate()
            .map(|(number, refused)| {
                let (connection, over) = (node.connect(), &over);
                scope
                    .spawn(move || count_pipelined_increments(connection, &number.to_string(), over, refused))
            })
            .collect();
        for _ in 0..5 {
            let before: Vec<u64> = refused.iter().map(|refused| refused.load(Ordering::Relaxed)).collect();
            run_script_until_busy(&mut caller, &mut watcher, ENDLESS_SCRIPT);
            eventually("all clients get BUSY", || {
                let mut pairs = refused.iter().zip(&before);
                pairs.all(|(now, before)| now.load(Ordering::Relaxed) > *before).then_some(())
            });
            watcher.call_line("SCRIPT KILL").expect_ok();
            expect_script_killed(&mut caller);
            eventually("the server is no longer busy", || (!gets_busy_error(&mut watcher)).then_some(()));
        }
        drop(stop);
        for (number, count) in counts.into_iter().enumerate() {
            let done = count.join().expect("the client comes through");
            assert_eq!(watcher.call_line(&format!("GET {number}")).text(), done.to_string());
        }
    });
}

/// Increments a key with pipelined requests until `is_over` is set; returns the number of successful increments.
fn count_pipelined_increments(
    mut connection: Connection,
    key: &str,
    should_stop: &AtomicBool,
    refused_count: &AtomicU64,
) -> i64 {
    let mut done = 0;
    while !should_stop.load(Ordering::Relaxed) {
        for step in 0..20 {
            connection.send(&["ECHO", &step.to_string()]).expect("a link");
            connection.send(&["INCR", key]).expect("a link");
        }
        for step in 0..20 {
            match connection.read().expect("a reply") {
                Reply::Error(text) => assert!(text.starts_with("BUSY "), "{text}"),
                echo => assert_eq!(echo.text(), step.to_string()),
            }
            match connection.read().expect("a reply") {
                Reply::Int(count) => {
                    done += 1;
                    assert_eq!(count, done);
                }
                other => {
                    refused_count.fetch_add(1, Ordering::Relaxed);
                    assert!(other.is_error("BUSY "), "{other:?}");
                }
            }
        }
    }
    done
}

/// Sets the flag when it is dropped, so that the threads also stop if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Commands that were already waiting for the script's locks when it became busy get BUSY and do not block their
/// workers.
#[test]
fn commands_waiting_for_a_busy_scripts_locks_get_busy() {
    let node = start_server(2);
    node.run("CONFIG SET busy-reply-threshold 1500").expect_ok();
    let mut connections: Vec<Connection> = (0..8).map(|_| node.connect()).collect();
    let mut caller = connections.remove(0);
    let before = cpu_ticks(&node);
    caller.send(&["EVAL", ENDLESS_SCRIPT, "1", "k"]).expect("the node takes commands");
    eventually("the script runs", || (cpu_ticks(&node) > before + 10).then_some(()));
    let lines = ["SET k 1", "FLUSHALL", "MSET k 1 l 1", "GET k"];
    for (connection, line) in connections.iter_mut().zip(lines) {
        connection.send(&line.split(' ').collect::<Vec<_>>()).expect("the node takes commands");
    }
    for (connection, line) in connections.iter_mut().zip(lines) {
        assert!(connection.read().expect("a reply").is_error("BUSY "), "{line}");
    }
    connections.iter_mut().for_each(|other| assert!(gets_busy_error(other)));
    connections[0].call_line("SCRIPT KILL").expect_ok();
    expect_script_killed(&mut caller);
}

#[test]
fn function_kill_stops_functions_and_writing_scripts_are_unkillable() {
    let mut node = start_server(1);
    let (mut caller, mut other) = (node.connect(), node.connect());
    let code = "#!lua name=lib\nredis.register_function('endless', function() while true do end end)";
    caller.call(&["FUNCTION", "LOAD", code]);
    caller.send(&["FCALL", "endless", "0"]).expect("the node takes commands");
    eventually("the server is busy", || gets_busy_error(&mut other).then_some(()));
    assert!(other.call_line("SCRIPT KILL").is_error("BUSY "));
    let running = other.call_line("FUNCTION STATS");
    assert!(format!("{running:?}").contains("endless"), "{running:?}");
    other.call_line("FUNCTION KILL").expect_ok();
    assert!(matches!(caller.read().expect("a reply"), Reply::Error(_)));
    eventually("the server is no longer busy", || (!gets_busy_error(&mut other)).then_some(()));
    run_script_until_busy(&mut caller, &mut other, ENDLESS_SCRIPT_AFTER_WRITE);
    assert!(other.call_line("SCRIPT KILL").is_error("UNKILLABLE "));
    let mut last = node.connect();
    last.send(&["SHUTDOWN", "NOSAVE"]).expect("the node takes commands");
    assert!(node.wait_for_exit().success());
}

/// While the server is busy, subscribers get no messages. After the script, they get all messages, whichever worker
/// serves them.
#[test]
fn subscribers_and_blocked_clients_are_served_after_a_busy_script() {
    let node = start_server(1);
    let (mut caller, mut other) = (node.connect(), node.connect());
    let (mut subscriber, mut waiter) = (node.connect(), node.connect());
    subscriber.call_line("SUBSCRIBE news");
    waiter.send(&["BLPOP", "list", "0"]).expect("the node takes commands");
    eventually("the client is blocked", || (node.info("clients", "blocked_clients")? == "1").then_some(()));
    for round in 0..3 {
        run_script_until_busy(&mut caller, &mut other, ENDLESS_SCRIPT);
        other.call_line("SCRIPT KILL").expect_ok();
        expect_script_killed(&mut caller);
        eventually("the server is no longer busy", || (!gets_busy_error(&mut other)).then_some(()));
        assert_eq!(other.call_line(&format!("PUBLISH news {round}")).int(), 1);
        assert_eq!(subscriber.read().expect("a message").items()[2].text(), round.to_string());
    }
    assert_eq!(other.call_line("RPUSH list 1").int(), 1);
    assert_eq!(waiter.read().expect("a reply").items()[1].text(), "1");
    waiter.set_timeout(Duration::from_secs(5));
    assert_eq!(waiter.call_line("PING"), Reply::Simple("PONG".into()));
}

/// Regression test: Lua disables hooks in the error handler of `xpcall`, so SCRIPT KILL replied OK but never ended this
/// script.
const ENDLESS_SCRIPT_WITH_ERROR_HANDLER: &str =
    "xpcall(function() while true do end end, function() while true do end end) while true do end";

#[test]
fn scripts_that_catch_errors_can_still_be_killed() {
    let node = start_server(1);
    let (mut caller, mut other) = (node.connect(), node.connect());
    run_script_until_busy(&mut caller, &mut other, ENDLESS_SCRIPT_WITH_ERROR_HANDLER);
    other.call_line("SCRIPT KILL").expect_ok();
    expect_script_killed(&mut caller);
    for by_signal in [false, true] {
        let mut node = start_server(2);
        let (mut caller, mut other) = (node.connect(), node.connect());
        run_script_until_busy(&mut caller, &mut other, ENDLESS_SCRIPT_WITH_ERROR_HANDLER);
        if by_signal {
            node.terminate();
        } else {
            other.send(&["SHUTDOWN", "NOSAVE"]).expect("the node takes commands");
            node.wait_for_exit();
        }
    }
}
