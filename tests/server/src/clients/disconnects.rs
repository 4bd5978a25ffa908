//! Clients that wait, and what becomes of what they sent when they leave meanwhile.

use harness::{Connection, Node, Program, Value, eventually};

fn start() -> (Node, Connection) {
    let node = Node::start(&Program::redoubt(), "--save ");
    let operator = node.connect();
    (node, operator)
}

fn clients(operator: &mut Connection, field: &str) -> String {
    harness::info_field(operator, "clients", field).expect("INFO has it")
}

fn wait_until_only_the_operator_is_left(operator: &mut Connection) {
    eventually("those who left are forgotten", || {
        (clients(operator, "connected_clients") == "1").then_some(())
    });
    assert_eq!(clients(operator, "blocked_clients"), "0");
}

/// A pause would last an hour. A client that hangs up is gone at once, and its request is never carried out.
#[test]
fn commands_held_by_a_pause_are_dropped_with_their_clients() {
    let (node, mut operator) = start();
    operator.run("CLIENT PAUSE 3600000 WRITE").expect_ok();
    let mut waiting = Vec::new();
    for index in 0..20 {
        let mut client = node.connect();
        client.send(&["SET", &format!("key:{index}"), "v"]).expect("sent");
        client.send(&["SET", &format!("behind:{index}"), "v"]).expect("sent");
        waiting.push(client);
    }
    eventually("all are held", || (clients(&mut operator, "blocked_clients") == "20").then_some(()));
    let list = operator.run("CLIENT LIST").text();
    assert_eq!(list.matches(" flags=b ").count(), 20, "{list}");
    let held = list.lines().find(|line| line.contains(" flags=b ")).and_then(|line| line.split(' ').next());
    let id = held.and_then(|word| word.strip_prefix("id=")).expect("its number").to_owned();
    assert_eq!(operator.call(&["CLIENT", "UNBLOCK", &id]), Value::Int(0), "a pause is for everybody");
    drop(waiting);
    wait_until_only_the_operator_is_left(&mut operator);
    operator.run("CLIENT UNPAUSE").expect_ok();
    assert_eq!(operator.run("DBSIZE"), Value::Int(0));
}

/// Its next command had already arrived when it left.
#[test]
fn a_client_that_leaves_while_it_waits_for_replicas_is_gone_with_what_it_sent_behind() {
    let (node, mut operator) = start();
    for timeout in ["0", "3600000"] {
        let mut client = node.connect();
        client.send(&["WAIT", "1", timeout]).expect("sent");
        client.send(&["SET", "behind", "v"]).expect("sent");
        eventually("it waits", || (clients(&mut operator, "blocked_clients") == "1").then_some(()));
        drop(client);
        wait_until_only_the_operator_is_left(&mut operator);
        assert_eq!(operator.run("GET behind"), Value::NullBulk);
    }
}

#[test]
fn an_operator_ends_a_wait_for_replicas() {
    let (node, mut operator) = start();
    let mut client = node.connect();
    let id = client.run("CLIENT ID").int().to_string();
    let mut end = |how: &[&str]| {
        eventually("it waits", || (clients(&mut operator, "blocked_clients") == "1").then_some(()));
        let list = operator.call(&["CLIENT", "LIST", "ID", &id]).text();
        assert!(list.contains(" flags=b ") && list.contains(" cmd=wait "), "{list}");
        let words = [&["CLIENT", "UNBLOCK", &id], how].concat();
        assert_eq!(operator.call(&words), Value::Int(1));
        assert_eq!(operator.call(&words), Value::Int(0), "it waits no longer");
    };
    client.send(&["WAIT", "1", "0"]).expect("sent");
    end(&[]);
    assert_eq!(client.read().expect("an answer"), Value::Int(0));
    client.send(&["WAIT", "1", "0"]).expect("sent");
    client.send(&["PING"]).expect("sent");
    end(&["ERROR"]);
    let error = client.read().expect("an answer");
    assert_eq!(error, Value::Error("UNBLOCKED client unblocked via CLIENT UNBLOCK".to_owned()));
    assert_eq!(client.read().expect("an answer"), Value::Simple("PONG".to_owned()));
}

/// Earlier replies are sent however long the next command waits, and within EXEC no command waits.
#[test]
fn a_wait_keeps_nobody_from_its_earlier_replies() {
    let (node, mut operator) = start();
    operator.call(&["SET", "large", &"x".repeat(32 << 20)]).expect_ok();
    let mut client = node.connect();
    client.send(&["GET", "large"]).expect("sent");
    client.send(&["WAIT", "1", "0"]).expect("sent");
    eventually("it waits", || (clients(&mut operator, "blocked_clients") == "1").then_some(()));
    assert_eq!(client.read().expect("the value").text().len(), 32 << 20);

    let mut client = node.connect();
    client.run("MULTI").expect_ok();
    client.run("WAIT 1 0");
    assert_eq!(client.run("EXEC"), Value::Array(vec![Value::Int(0)]));
}

/// A client that waits for a master's replicas is unblocked once that master follows another.
#[test]
fn a_wait_ends_when_the_node_follows_another() {
    let (node, mut operator) = start();
    let mut client = node.connect();
    client.send(&["WAIT", "1", "0"]).expect("sent");
    eventually("it waits", || (clients(&mut operator, "blocked_clients") == "1").then_some(()));
    operator.run("REPLICAOF 127.0.0.1 1").expect_ok();
    let text = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
    assert_eq!(client.read().expect("an answer"), Value::Error(text.to_owned()));
    assert!(client.read().is_err(), "the connection is closed, as in Redis");
}

/// The reply that a client does not want is left out also if earlier ones were sent while its command waited.
#[test]
fn a_muted_wait_leaves_earlier_replies_alone() {
    let (node, mut operator) = start();
    operator.call(&["SET", "large", &"x".repeat(16 << 20)]).expect_ok();
    let mut client = node.connect();
    let id = client.run("CLIENT ID").int().to_string();
    client.send(&["GET", "large"]).expect("sent");
    client.send(&["CLIENT", "REPLY", "SKIP"]).expect("sent");
    client.send(&["WAIT", "1", "0"]).expect("sent");
    client.send(&["PING"]).expect("sent");
    eventually("it waits", || (clients(&mut operator, "blocked_clients") == "1").then_some(()));
    assert_eq!(client.read().expect("the value").text().len(), 16 << 20);
    assert_eq!(operator.call(&["CLIENT", "UNBLOCK", &id]), Value::Int(1));
    assert_eq!(client.read().expect("an answer"), Value::Simple("PONG".to_owned()));
}
