//! A script that runs for long: all other clients are told so, with one worker and with several, and it can be stopped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use harness::{Connection, Node, Program, Value, eventually, processor_ticks};

const ENDLESS: &str = "while true do end";
const WRITES_THEN_ENDLESS: &str = "redis.call('set', KEYS[1], 1) while true do end";

fn server(workers: usize) -> Node {
    Node::start(
        &Program::redoubt(),
        &format!("--save  --io-threads {workers} --busy-reply-threshold 100 --enable-debug-command yes"),
    )
}

fn is_busy(connection: &mut Connection) -> bool {
    connection.run("GET other").is_error("BUSY ")
}

/// Has a connection run a script, and waits until another hears that the server is busy.
fn keep_busy(connection: &mut Connection, other: &mut Connection, script: &str) {
    connection.send(&["EVAL", script, "1", "k"]).expect("the node takes commands");
    eventually("the server is busy", || is_busy(other).then_some(()));
}

fn was_killed(connection: &mut Connection) {
    let reply = connection.read().expect("a reply");
    let Value::Error(text) = &reply else { panic!("{reply:?}") };
    assert!(text.starts_with("ERR Script killed by user with "), "{text}");
    assert!(text.contains(" KILL. script: on @user_"), "where it was: {text}");
}

/// Every client was told to use SCRIPT KILL, which does not end a function.
#[test]
fn a_function_that_runs_for_long_is_called_one() {
    let node = server(1);
    let (mut runs, mut other) = (node.connect(), node.connect());
    let library = "#!lua name=l\nredis.register_function('spin', function() while true do end end)";
    runs.call(&["FUNCTION", "LOAD", library]);
    runs.send(&["FCALL", "spin", "0"]).expect("the node takes commands");
    eventually("the server is busy", || is_busy(&mut other).then_some(()));
    for line in ["GET k", "SCRIPT KILL"] {
        let reply = format!("{:?}", other.run(line));
        assert!(reply.contains("You can only call FUNCTION KILL or SHUTDOWN NOSAVE."), "{line}: {reply}");
    }
    other.run("FUNCTION KILL").expect_ok();
    assert!(matches!(runs.read().expect("a reply"), Value::Error(_)));
}

/// Clients connected before the script began, and clients that connect during it.
#[test]
fn every_other_connection_is_told_and_any_can_stop_the_script() {
    for workers in [1, 3] {
        let node = server(workers);
        let mut before: Vec<Connection> = (0..7).map(|_| node.connect()).collect();
        before.iter_mut().for_each(|other| assert_eq!(other.run("PING"), Value::Simple("PONG".into())));
        for round in 0..7 {
            let (mut caller, mut others) = (before.remove(round % 7), before);
            keep_busy(&mut caller, &mut others[0], ENDLESS);
            for (number, other) in others.iter_mut().enumerate() {
                let line = ["GET k", "SET k 1", "PING", "DBSIZE", "FLUSHALL", "EVAL return 0"][number];
                assert!(other.run(line).is_error("BUSY "), "{workers} workers, {number}: {line}");
            }
            assert!(node.connect().run("SET other 1").is_error("BUSY "), "who has just come");
            let mut fresh = node.connect();
            let by = if round % 2 == 0 { &mut others[round % 6] } else { &mut fresh };
            assert!(by.run("FUNCTION KILL").is_error("BUSY "), "it is no function");
            by.run("SCRIPT KILL").expect_ok();
            was_killed(&mut caller);
            for (number, other) in others.iter_mut().enumerate() {
                eventually(&format!("{number} is served again"), || (!is_busy(other)).then_some(()));
                other.run("SET other 1").expect_ok();
                assert_eq!(other.call(&["EVAL", "return 1", "0"]).int(), 1);
            }
            others.insert(round % 7, caller);
            before = others;
            assert_eq!(before[round % 7].run("PING"), Value::Simple("PONG".into()));
        }
    }
}

/// Requests sent behind another one are answered behind it, also on a connection that moves between workers meanwhile.
#[test]
fn no_reply_is_lost_or_comes_out_of_order() {
    const CLIENTS: usize = 4;
    let node = server(1);
    let (mut caller, mut watcher) = (node.connect(), node.connect());
    let (over, refused) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; CLIENTS]);
    thread::scope(|scope| {
        let stop = StopAtEnd(&over);
        let counts: Vec<_> = refused
            .iter()
            .enumerate()
            .map(|(number, refused)| {
                let (connection, over) = (node.connect(), &over);
                scope.spawn(move || count(connection, &number.to_string(), over, refused))
            })
            .collect();
        for _ in 0..5 {
            let before: Vec<u64> = refused.iter().map(|refused| refused.load(Ordering::Relaxed)).collect();
            keep_busy(&mut caller, &mut watcher, ENDLESS);
            eventually("all are refused", || {
                let mut pairs = refused.iter().zip(&before);
                pairs.all(|(now, before)| now.load(Ordering::Relaxed) > *before).then_some(())
            });
            watcher.run("SCRIPT KILL").expect_ok();
            was_killed(&mut caller);
            eventually("it is over", || (!is_busy(&mut watcher)).then_some(()));
        }
        drop(stop);
        for (number, count) in counts.into_iter().enumerate() {
            let done = count.join().expect("the client comes through");
            assert_eq!(watcher.run(&format!("GET {number}")).text(), done.to_string());
        }
    });
}

/// Counts at a key until it is over, many requests on their way at once; says how often it was let.
fn count(mut connection: Connection, key: &str, over: &AtomicBool, refused: &AtomicU64) -> i64 {
    let mut done = 0;
    while !over.load(Ordering::Relaxed) {
        for step in 0..20 {
            connection.send(&["ECHO", &step.to_string()]).expect("a link");
            connection.send(&["INCR", key]).expect("a link");
        }
        for step in 0..20 {
            match connection.read().expect("a reply") {
                Value::Error(text) => assert!(text.starts_with("BUSY "), "{text}"),
                echo => assert_eq!(echo.text(), step.to_string()),
            }
            match connection.read().expect("a reply") {
                Value::Int(count) => {
                    done += 1;
                    assert_eq!(count, done);
                }
                other => {
                    refused.fetch_add(1, Ordering::Relaxed);
                    assert!(other.is_error("BUSY "), "{other:?}");
                }
            }
        }
    }
    done
}

/// Says that it is over, also if a test fails: its threads wait for that.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Commands that wait for what the script holds since before it was busy do not keep their threads from others.
#[test]
fn who_waits_for_what_the_script_holds_is_told_and_keeps_nobody() {
    let node = server(2);
    node.run("CONFIG SET busy-reply-threshold 1500").expect_ok();
    let mut connections: Vec<Connection> = (0..8).map(|_| node.connect()).collect();
    let mut caller = connections.remove(0);
    let before = processor_ticks(&node);
    caller.send(&["EVAL", ENDLESS, "1", "k"]).expect("the node takes commands");
    eventually("the script runs", || (processor_ticks(&node) > before + 10).then_some(()));
    let lines = ["SET k 1", "FLUSHALL", "MSET k 1 l 1", "GET k"];
    for (connection, line) in connections.iter_mut().zip(lines) {
        connection.send(&line.split(' ').collect::<Vec<_>>()).expect("the node takes commands");
    }
    for (connection, line) in connections.iter_mut().zip(lines) {
        assert!(connection.read().expect("a reply").is_error("BUSY "), "{line}");
    }
    connections.iter_mut().for_each(|other| assert!(is_busy(other)));
    connections[0].run("SCRIPT KILL").expect_ok();
    was_killed(&mut caller);
}

#[test]
fn functions_are_stopped_by_their_own_command_and_what_has_written_only_by_the_end() {
    let mut node = server(1);
    let (mut caller, mut other) = (node.connect(), node.connect());
    let code = "#!lua name=lib\nredis.register_function('endless', function() while true do end end)";
    caller.call(&["FUNCTION", "LOAD", code]);
    caller.send(&["FCALL", "endless", "0"]).expect("the node takes commands");
    eventually("the server is busy", || is_busy(&mut other).then_some(()));
    assert!(other.run("SCRIPT KILL").is_error("BUSY "));
    let running = other.run("FUNCTION STATS");
    assert!(format!("{running:?}").contains("endless"), "{running:?}");
    other.run("FUNCTION KILL").expect_ok();
    assert!(matches!(caller.read().expect("a reply"), Value::Error(_)));
    eventually("it is over", || (!is_busy(&mut other)).then_some(()));
    keep_busy(&mut caller, &mut other, WRITES_THEN_ENDLESS);
    assert!(other.run("SCRIPT KILL").is_error("UNKILLABLE "));
    let mut last = node.connect();
    last.send(&["SHUTDOWN", "NOSAVE"]).expect("the node takes commands");
    assert!(node.wait_for_exit().success());
}

/// Subscribers are sent no messages while the server is busy; afterwards they are, wherever they are served.
#[test]
fn subscribers_and_who_waits_for_keys_go_on_afterwards() {
    let node = server(1);
    let (mut caller, mut other) = (node.connect(), node.connect());
    let (mut subscriber, mut waiter) = (node.connect(), node.connect());
    subscriber.run("SUBSCRIBE news");
    waiter.send(&["BLPOP", "list", "0"]).expect("the node takes commands");
    eventually("it waits", || (node.info("clients", "blocked_clients")? == "1").then_some(()));
    for round in 0..3 {
        keep_busy(&mut caller, &mut other, ENDLESS);
        other.run("SCRIPT KILL").expect_ok();
        was_killed(&mut caller);
        eventually("it is over", || (!is_busy(&mut other)).then_some(()));
        assert_eq!(other.run(&format!("PUBLISH news {round}")).int(), 1);
        assert_eq!(subscriber.read().expect("a message").items()[2].text(), round.to_string());
    }
    assert_eq!(other.run("RPUSH list 1").int(), 1);
    assert_eq!(waiter.read().expect("a reply").items()[1].text(), "1");
    waiter.set_timeout(Duration::from_secs(5));
    assert_eq!(waiter.run("PING"), Value::Simple("PONG".into()));
}

/// A hook's error came to the handler with hooks switched off: SCRIPT KILL said OK each time, and nothing ended.
const ENDLESS_HANDLER: &str =
    "xpcall(function() while true do end end, function() while true do end end) while true do end";

#[test]
fn a_script_is_ended_by_script_kill_shutdown_nosave_and_sigterm_whatever_it_catches() {
    let node = server(1);
    let (mut caller, mut other) = (node.connect(), node.connect());
    keep_busy(&mut caller, &mut other, ENDLESS_HANDLER);
    other.run("SCRIPT KILL").expect_ok();
    was_killed(&mut caller);
    for by_signal in [false, true] {
        let mut node = server(2);
        let (mut caller, mut other) = (node.connect(), node.connect());
        keep_busy(&mut caller, &mut other, ENDLESS_HANDLER);
        if by_signal {
            node.terminate();
        } else {
            other.send(&["SHUTDOWN", "NOSAVE"]).expect("the node takes commands");
            node.wait_for_exit();
        }
    }
}
