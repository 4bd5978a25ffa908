//! Tests of MONITOR: which commands are fed to which clients.

use std::sync::atomic::Ordering;

use clock::Millis;
use engine::{CommandOrigin, ConnectionInfo, NodeFlags, Session};

use crate::testing::Client as Tester;

/// Connects another client that runs MONITOR.
fn start_monitor(client: &Tester) -> Session {
    let connect = || client.engine.clients.connect(ConnectionInfo::default(), Millis(0), Box::new(|| ()));
    // This connection takes client id 1, so that the monitor gets another id.
    let (_, seen) = (connect(), connect());
    let mut session = Session::for_client(seen, CommandOrigin::Client, true);
    client.engine.start_monitor(&mut session);
    session
}

/// Returns the commands that were fed to the monitor since the last call, without their timestamps.
fn monitor_output(monitor: &Session) -> Vec<String> {
    let mut seen = Vec::new();
    monitor.take_messages(&mut seen);
    let lines = String::from_utf8(seen).unwrap();
    lines.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

#[test]
fn monitor_hides_admin_commands_and_passwords() {
    let mut client = Tester::new();
    let monitor = start_monitor(&client);
    let table: &[(&str, &[&str])] = &[
        ("set a \"x\\\"\\n\\x01\"", &[r#"[0 ] "set" "a" "x\"\n\x01""#]),
        ("GET a", &[r#"[0 ] "GET" "a""#]),
        ("set b 1\nget b", &[r#"[0 ] "set" "b" "1""#, r#"[0 ] "get" "b""#]),
        ("auth secret", &[r#"[0 ] "auth" "(redacted)""#]),
        ("slowlog get", &[]),
        ("nosuch x", &[]),
        ("get", &[]),
        ("select 3", &[r#"[3 ] "select" "3""#]),
        ("client id", &[r#"[3 ] "client" "id""#]),
    ];
    for (line, expected) in table {
        client.run_to_text(line);
        assert_eq!(monitor_output(&monitor), *expected, "{line}");
    }
}

#[test]
fn monitor_shows_transactions_and_scripts_on_execution() {
    let mut client = Tester::new();
    let monitor = start_monitor(&client);
    for line in ["multi", "set a 1", "monitor"] {
        client.run_to_text(line);
    }
    assert_eq!(monitor_output(&monitor), [r#"[0 ] "multi""#]);
    let reply = client.run_to_text("exec");
    assert_eq!(reply, "*2\r\n+OK\r\n-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n");
    assert_eq!(monitor_output(&monitor), [r#"[0 ] "set" "a" "1""#, r#"[0 ] "exec""#]);
    let script = "redis.call('set',KEYS[1],'2') redis.call('select',3) redis.pcall('get',1)";
    client.call(&["eval", script, "1", "a"]);
    let seen = monitor_output(&monitor);
    assert!(seen[0].starts_with("[0 ] \"eval\" "), "{seen:?}");
    let calls = [r#"[0 lua] "set" "a" "2""#, r#"[3 lua] "select" "3""#, r#"[3 lua] "get" "1""#];
    assert_eq!(seen[1..], calls);
}

#[test]
fn monitoring_stops_with_last_monitor() {
    let mut client = Tester::new();
    let mut first = start_monitor(&client);
    assert!(client.run_to_text("monitor").starts_with("+OK\r\n"));
    assert_eq!(client.engine.notifications.monitors.client_count(), 2);
    assert!(client.run_to_text("reset").ends_with("+RESET\r\n"));
    assert!(client.engine.settings.node_flags().contains(NodeFlags::MONITORED));
    client.engine.disconnect(&mut first);
    assert!(!client.engine.settings.node_flags().contains(NodeFlags::MONITORED));
    assert_eq!(client.run_to_text("get a"), "$-1\r\n");
}

#[test]
fn client_that_does_not_read_is_disconnected() {
    let mut client = Tester::new();
    client.engine.notifications.monitors.output_limit.store(200, Ordering::Relaxed);
    let monitor = start_monitor(&client);
    for _ in 0..20 {
        client.run_to_text("get some-key");
    }
    assert!(monitor.client().exceeded_output_limit());
}
