//! Tests of client-side caching: clients get invalidation messages for the keys that they have read.

use harness::{Connection, Node, Program, Reply};

fn start_server() -> Node {
    Node::start(&Program::redoubt(), "--save ")
}

/// Opens a RESP3 connection.
fn connect_with_resp3(node: &Node) -> Connection {
    let mut connection = node.connect();
    assert!(matches!(connection.call_line("HELLO 3"), Reply::Map(_)));
    connection
}

fn invalidation_push(keys: &[&str]) -> Reply {
    let keys = keys.iter().map(|key| Reply::Bulk(key.as_bytes().to_vec())).collect();
    Reply::Push(vec![Reply::Bulk(b"invalidate".to_vec()), Reply::Array(keys)])
}

fn next_message(connection: &mut Connection) -> Reply {
    connection.read().expect("a message comes")
}

#[test]
fn reader_gets_one_invalidation_per_changed_key() {
    let node = start_server();
    let (mut reader, mut writer) = (connect_with_resp3(&node), node.connect());
    reader.call_line("CLIENT TRACKING ON").expect_ok();
    writer.call_line("MSET a 1 b 1 c 1").expect_ok();
    reader.call_line("MGET a b");
    assert_eq!(node.info("clients", "tracking_clients").as_deref(), Some("1"));
    assert_eq!(node.info("stats", "tracking_total_keys").as_deref(), Some("2"));
    // No client has read `c`, and `a` is invalidated only once.
    writer.call_line("MSET c 2 a 2").expect_ok();
    writer.call_line("SET a 3").expect_ok();
    writer.call_line("DEL b");
    assert_eq!(next_message(&mut reader), invalidation_push(&["a"]));
    assert_eq!(next_message(&mut reader), invalidation_push(&["b"]));
    // Without NOLOOP, a client also gets invalidation messages for its own changes, after the reply.
    reader.call_line("GET a");
    reader.call_line("SET a 4").expect_ok();
    assert_eq!(next_message(&mut reader), invalidation_push(&["a"]));
    reader.call_line("CLIENT TRACKING ON NOLOOP").expect_ok();
    reader.call_line("GET a");
    reader.call_line("SET a 5").expect_ok();
    assert_eq!(reader.call_line("PING"), Reply::Simple("PONG".into()));
    // Keys are invalidated by expiry, by a transaction and by FLUSHALL.
    writer.call_line("SET short 1 PX 60").expect_ok();
    reader.call_line("GET short");
    assert_eq!(next_message(&mut reader), invalidation_push(&["short"]));
    reader.call_line("MULTI").expect_ok();
    reader.call_line("GET c");
    reader.call_line("EXEC");
    writer.call_line("MULTI").expect_ok();
    writer.call_line("INCR c");
    writer.call_line("EXEC");
    assert_eq!(next_message(&mut reader), invalidation_push(&["c"]));
    writer.call_line("FLUSHALL").expect_ok();
    assert_eq!(
        next_message(&mut reader),
        Reply::Push(vec![Reply::Bulk(b"invalidate".to_vec()), Reply::Null])
    );
    reader.call_line("CLIENT TRACKING OFF").expect_ok();
    assert_eq!(node.info("clients", "tracking_clients").as_deref(), Some("0"));
}

#[test]
fn client_caching_applies_to_the_next_command_only() {
    let node = start_server();
    let (mut reader, mut writer) = (connect_with_resp3(&node), node.connect());
    reader.call_line("CLIENT TRACKING ON OPTIN").expect_ok();
    reader.call_line("GET a");
    reader.call_line("CLIENT CACHING YES").expect_ok();
    reader.call_line("GET b");
    reader.call_line("GET c");
    writer.call_line("MSET a 1 c 1 b 1").expect_ok();
    assert_eq!(next_message(&mut reader), invalidation_push(&["b"]));
    reader.call_line("CLIENT TRACKING OFF").expect_ok();
    reader.call_line("CLIENT TRACKING ON OPTOUT").expect_ok();
    reader.call_line("GET a");
    reader.call_line("CLIENT CACHING NO").expect_ok();
    reader.call_line("GET b");
    writer.call_line("MSET b 2 a 2").expect_ok();
    assert_eq!(next_message(&mut reader), invalidation_push(&["a"]));
    assert_eq!(reader.call_line("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn broadcast_mode_invalidates_prefixes_without_reads() {
    let node = start_server();
    let (mut listener, mut writer) = (connect_with_resp3(&node), node.connect());
    listener.call_line("CLIENT TRACKING ON BCAST PREFIX user: PREFIX item:").expect_ok();
    assert_eq!(node.info("stats", "tracking_total_prefixes").as_deref(), Some("2"));
    for key in ["other", "user:1", "item:7", "user:1"] {
        writer.call_line(&format!("SET {key} x")).expect_ok();
    }
    for key in ["user:1", "item:7", "user:1"] {
        assert_eq!(next_message(&mut listener), invalidation_push(&[key]));
    }
    drop(listener);
    harness::eventually("no client tracks keys", || {
        (node.info("stats", "tracking_total_prefixes")? == "0").then_some(())
    });
}

/// Changes by pipelined commands arrive in one message per prefix, each key once and in order.
#[test]
fn pipelined_changes_are_reported_in_one_message() {
    let servers = [Some(Program::redoubt()), Program::valkey()];
    for program in servers.into_iter().flatten() {
        let node = Node::start(&program, "--save ");
        let (mut listener, mut writer) = (connect_with_resp3(&node), node.connect());
        listener.call_line("CLIENT TRACKING ON BCAST PREFIX a PREFIX b NOLOOP").expect_ok();
        writer.call_line("MSET a2 1 b1 1 c 1 a1 1").expect_ok();
        assert_eq!(next_message(&mut listener), invalidation_push(&["a1", "a2"]));
        assert_eq!(next_message(&mut listener), invalidation_push(&["b1"]));
        writer.send_raw(b"SET a3 1\r\nDEL a1\r\nMULTI\r\nSET a2 1\r\nINCR a3\r\nEXEC\r\n").expect("sent");
        assert_eq!(next_message(&mut listener), invalidation_push(&["a1", "a2", "a3"]), "{}", program.name());
        (0..6).for_each(|_| drop(writer.read().expect("a reply")));
        // NOLOOP suppresses messages about the client's own changes.
        listener.send_raw(b"SET a1 1\r\nPING\r\n").expect("sent");
        listener.read().expect("a reply").expect_ok();
        assert_eq!(listener.read().expect("a reply"), Reply::Simple("PONG".into()));
        writer.call_line("SET a9 x PX 30").expect_ok();
        assert_eq!(next_message(&mut listener), invalidation_push(&["a9"]));
        assert_eq!(next_message(&mut listener), invalidation_push(&["a9"]), "the key has expired");
        writer.call_line("FLUSHALL").expect_ok();
        assert_eq!(
            next_message(&mut listener),
            Reply::Push(vec![Reply::Bulk(b"invalidate".to_vec()), Reply::Null])
        );
    }
}

/// With RESP2, another connection receives the invalidation messages through a channel.
#[test]
fn invalidations_can_be_redirected() {
    let node = start_server();
    let (mut reader, mut listener, mut writer) = (node.connect(), node.connect(), node.connect());
    let id = listener.call_line("CLIENT ID").int();
    listener.call_line("SUBSCRIBE __redis__:invalidate");
    reader.call_line(&format!("CLIENT TRACKING ON REDIRECT {id}")).expect_ok();
    assert_eq!(reader.call_line("CLIENT GETREDIR"), Reply::Int(id));
    reader.call_line("GET a");
    writer.call_line("SET a 1").expect_ok();
    let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
    let message =
        Reply::Array(vec![bulk("message"), bulk("__redis__:invalidate"), Reply::Array(vec![bulk("a")])]);
    assert_eq!(next_message(&mut listener), message);
    drop(listener);
    harness::eventually("the listener is gone", || {
        reader.call_line("GET a");
        writer.call_line("SET a 2");
        reader.call_line("CLIENT INFO").text().contains("flags=tR").then_some(())
    });
}
