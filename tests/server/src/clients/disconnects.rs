//! Tests of blocked clients, and of their pending commands when they disconnect.

use harness::{Connection, Node, Program, Reply, eventually};

fn start_with_operator() -> (Node, Connection) {
    let node = Node::start(&Program::redoubt(), "--save ");
    let operator = node.connect();
    (node, operator)
}

fn clients_info_field(operator: &mut Connection, field: &str) -> String {
    harness::info_field(operator, "clients", field).expect("INFO has it")
}

fn wait_until_only_operator_is_connected(operator: &mut Connection) {
    eventually("disconnected clients are removed", || {
        (clients_info_field(operator, "connected_clients") == "1").then_some(())
    });
    assert_eq!(clients_info_field(operator, "blocked_clients"), "0");
}

/// When a client held by CLIENT PAUSE disconnects, it is removed at once and its request is never executed.
#[test]
fn disconnected_clients_lose_their_paused_commands() {
    let (node, mut operator) = start_with_operator();
    operator.call_line("CLIENT PAUSE 3600000 WRITE").expect_ok();
    let mut waiting = Vec::new();
    for index in 0..20 {
        let mut client = node.connect();
        client.send(&["SET", &format!("key:{index}"), "v"]).expect("sent");
        client.send(&["SET", &format!("behind:{index}"), "v"]).expect("sent");
        waiting.push(client);
    }
    eventually("all clients are blocked", || {
        (clients_info_field(&mut operator, "blocked_clients") == "20").then_some(())
    });
    let list = operator.call_line("CLIENT LIST").text();
    assert_eq!(list.matches(" flags=b ").count(), 20, "{list}");
    let held = list.lines().find(|line| line.contains(" flags=b ")).and_then(|line| line.split(' ').next());
    let id = held.and_then(|word| word.strip_prefix("id=")).expect("its number").to_owned();
    assert_eq!(
        operator.call(&["CLIENT", "UNBLOCK", &id]),
        Reply::Int(0),
        "CLIENT UNBLOCK does not end a pause"
    );
    drop(waiting);
    wait_until_only_operator_is_connected(&mut operator);
    operator.call_line("CLIENT UNPAUSE").expect_ok();
    assert_eq!(operator.call_line("DBSIZE"), Reply::Int(0));
}

/// The client's next command arrives while WAIT blocks, and then the client disconnects.
#[test]
fn client_that_disconnects_in_wait_loses_its_pending_commands() {
    let (node, mut operator) = start_with_operator();
    for timeout in ["0", "3600000"] {
        let mut client = node.connect();
        client.send(&["WAIT", "1", timeout]).expect("sent");
        client.send(&["SET", "behind", "v"]).expect("sent");
        eventually("the client is blocked", || {
            (clients_info_field(&mut operator, "blocked_clients") == "1").then_some(())
        });
        drop(client);
        wait_until_only_operator_is_connected(&mut operator);
        assert_eq!(operator.call_line("GET behind"), Reply::NullBulk);
    }
}

#[test]
fn client_unblock_ends_the_wait_command() {
    let (node, mut operator) = start_with_operator();
    let mut client = node.connect();
    let id = client.call_line("CLIENT ID").int().to_string();
    let mut end = |how: &[&str]| {
        eventually("the client is blocked", || {
            (clients_info_field(&mut operator, "blocked_clients") == "1").then_some(())
        });
        let list = operator.call(&["CLIENT", "LIST", "ID", &id]).text();
        assert!(list.contains(" flags=b ") && list.contains(" cmd=wait "), "{list}");
        let words = [&["CLIENT", "UNBLOCK", &id], how].concat();
        assert_eq!(operator.call(&words), Reply::Int(1));
        assert_eq!(operator.call(&words), Reply::Int(0), "the client is no longer blocked");
    };
    client.send(&["WAIT", "1", "0"]).expect("sent");
    end(&[]);
    assert_eq!(client.read().expect("an answer"), Reply::Int(0));
    client.send(&["WAIT", "1", "0"]).expect("sent");
    client.send(&["PING"]).expect("sent");
    end(&["ERROR"]);
    let error = client.read().expect("an answer");
    assert_eq!(error, Reply::Error("UNBLOCKED client unblocked via CLIENT UNBLOCK".to_owned()));
    assert_eq!(client.read().expect("an answer"), Reply::Simple("PONG".to_owned()));
}

/// Replies to earlier commands are sent although a later WAIT blocks. Inside EXEC, WAIT does not block.
#[test]
fn wait_does_not_delay_earlier_replies() {
    let (node, mut operator) = start_with_operator();
    operator.call(&["SET", "large", &"x".repeat(32 << 20)]).expect_ok();
    let mut client = node.connect();
    client.send(&["GET", "large"]).expect("sent");
    client.send(&["WAIT", "1", "0"]).expect("sent");
    eventually("the client is blocked", || {
        (clients_info_field(&mut operator, "blocked_clients") == "1").then_some(())
    });
    assert_eq!(client.read().expect("the value").text().len(), 32 << 20);

    let mut client = node.connect();
    client.call_line("MULTI").expect_ok();
    client.call_line("WAIT 1 0");
    assert_eq!(client.call_line("EXEC"), Reply::Array(vec![Reply::Int(0)]));
}

#[test]
fn client_in_wait_is_unblocked_when_its_master_becomes_a_replica() {
    let (node, mut operator) = start_with_operator();
    let mut client = node.connect();
    client.send(&["WAIT", "1", "0"]).expect("sent");
    eventually("the client is blocked", || {
        (clients_info_field(&mut operator, "blocked_clients") == "1").then_some(())
    });
    operator.call_line("REPLICAOF 127.0.0.1 1").expect_ok();
    let text = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
    assert_eq!(client.read().expect("an answer"), Reply::Error(text.to_owned()));
    assert!(client.read().is_err(), "the connection is closed, as in Redis");
}

/// CLIENT REPLY SKIP suppresses only the reply of WAIT, even if earlier replies are sent while WAIT blocks.
#[test]
fn client_reply_skip_before_wait_keeps_earlier_replies() {
    let (node, mut operator) = start_with_operator();
    operator.call(&["SET", "large", &"x".repeat(16 << 20)]).expect_ok();
    let mut client = node.connect();
    let id = client.call_line("CLIENT ID").int().to_string();
    client.send(&["GET", "large"]).expect("sent");
    client.send(&["CLIENT", "REPLY", "SKIP"]).expect("sent");
    client.send(&["WAIT", "1", "0"]).expect("sent");
    client.send(&["PING"]).expect("sent");
    eventually("the client is blocked", || {
        (clients_info_field(&mut operator, "blocked_clients") == "1").then_some(())
    });
    assert_eq!(client.read().expect("the value").text().len(), 16 << 20);
    assert_eq!(operator.call(&["CLIENT", "UNBLOCK", &id]), Reply::Int(1));
    assert_eq!(client.read().expect("an answer"), Reply::Simple("PONG".to_owned()));
}
