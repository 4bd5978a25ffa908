//! Tests of ACLs on real servers: configuration and ACL files, replicas, and changes to users with open connections.

use std::fs;
use std::path::PathBuf;

use harness::{Node, Program, Reply, eventually};

fn start_server(options: &str) -> Node {
    Node::start(&Program::redoubt(), options)
}

/// Starts a server with `lines` as its configuration file; also returns the path of that file.
fn start_with_config_file(lines: &str) -> (Node, PathBuf) {
    let mut node = Node::prepare(&Program::redoubt(), "--save ");
    let file = node.folder().join("redis.conf");
    fs::write(&file, lines).expect("a file can be written");
    node.set_configuration(&file);
    node.launch();
    (node, file)
}

/// The test creates users, runs `CONFIG REWRITE` and restarts the server.
#[test]
fn users_of_the_configuration_file_survive_a_restart() {
    let (mut node, file) =
        start_with_config_file("# mine\nuser reader on >p +@read ~r:* (+set ~w:*)\nacllog-max-len 5\n");
    let mut reader = node.connect();
    assert!(reader.call_line("AUTH reader q").is_error("WRONGPASS"));
    reader.call_line("AUTH reader p").expect_ok();
    assert!(reader.call_line("GET other").is_error("NOPERM"));
    assert_eq!(reader.call_line("GET r:1"), Reply::NullBulk);
    reader.call_line("SET w:1 x").expect_ok();
    let mut admin = node.connect();
    admin.call_line("ACL SETUSER writer on >q +@all ~* &*").expect_ok();
    admin.call_line("CONFIG SET requirepass secret").expect_ok();
    admin.call_line("CONFIG REWRITE").expect_ok();
    let text = fs::read_to_string(&file).expect("it is there");
    assert!(text.starts_with("# mine\nuser reader on #"), "{text}");
    assert!(text.contains("\nuser writer on #") && !text.contains("user default"), "{text}");
    node.kill();
    node.launch();
    let mut client = node.connect();
    assert!(client.call_line("PING").is_error("NOAUTH"));
    client.call_line("AUTH writer q").expect_ok();
    assert_eq!(client.call_line("ACL WHOAMI").text(), "writer");
    client.call_line("AUTH secret").expect_ok();
    client.call_line("AUTH reader p").expect_ok();
    assert!(client.call_line("SET r:1 x").is_error("NOPERM"));
}

/// The server loads the ACL file at start and on `ACL LOAD`, as a whole or not at all. `ACL SAVE` writes it.
#[test]
fn acl_file_is_loaded_and_saved_as_a_whole() {
    let mut node = Node::prepare(&Program::redoubt(), "--save ");
    let file = node.folder().join("users.acl");
    fs::write(
        &file,
        "user default on nopass ~* &* +@all\nuser u on >p +@all ~* &*\nuser gone on nopass +@all\n",
    )
    .expect("a file can be written");
    node.add_options("--aclfile users.acl");
    node.launch();
    let (mut admin, mut user, mut gone) = (node.connect(), node.connect(), node.connect());
    user.call_line("AUTH u p").expect_ok();
    gone.call_line("AUTH gone x").expect_ok();
    fs::write(&file, "user u on >p +@all ~*\nnonsense\nuser v +nosuch\n").expect("a file can be written");
    let refused = format!("{:?}", admin.call_line("ACL LOAD"));
    assert!(refused.contains("users.acl:2 ") && refused.contains("users.acl:3:"), "{refused}");
    assert!(refused.contains("no change to the previously active ACL rules"), "{refused}");
    assert_eq!(gone.call_line("ACL WHOAMI").text(), "gone");
    fs::write(&file, "user u on >p +@all -set ~* &*\n").expect("a file can be written");
    admin.call_line("ACL LOAD").expect_ok();
    // The connection of a deleted user is closed; other connections get the new rules.
    eventually("the deleted user's connection is closed", || gone.try_call(&["PING"]).err());
    assert!(user.call_line("SET a 1").is_error("NOPERM"));
    admin.call_line("ACL SETUSER w on nopass +get ~a").expect_ok();
    admin.call_line("ACL SAVE").expect_ok();
    let saved = fs::read_to_string(&file).expect("it is there");
    assert!(saved.contains("user w on nopass ~a resetchannels -@all +get\n"), "{saved}");
    node.kill();
    node.launch();
    assert_eq!(node.run("ACL USERS").items().len(), 3);
}

#[test]
fn deleting_a_user_or_revoking_a_channel_closes_its_connections() {
    let node = start_server("--save ");
    let (mut admin, mut first, mut second) = (node.connect(), node.connect(), node.connect());
    admin.call_line("ACL SETUSER u on nopass +@all ~* &a &b").expect_ok();
    for client in [&mut first, &mut second] {
        client.call_line("AUTH u x").expect_ok();
    }
    second.call_line("SUBSCRIBE a");
    // Revoking a channel closes only the clients that are subscribed to it.
    admin.call_line("ACL SETUSER u resetchannels &a").expect_ok();
    assert_eq!(admin.call_line("PUBLISH a x").int(), 1);
    admin.call_line("ACL SETUSER u resetchannels &b").expect_ok();
    eventually("the subscriber is disconnected", || {
        (admin.call_line("PUBLISH a x").int() == 0).then_some(())
    });
    assert_eq!(first.call_line("ACL WHOAMI").text(), "u");
    assert_eq!(admin.call_line("ACL DELUSER u").int(), 1);
    eventually("the user's connection is closed", || first.try_call(&["PING"]).err());
    // A blocked client is disconnected like any other client when its user is deleted.
    admin.call_line("ACL SETUSER w on nopass +@all ~* &*").expect_ok();
    let mut waiting = node.connect();
    waiting.call_line("AUTH w x").expect_ok();
    waiting.send(&["WAIT", "1", "0"]).expect("it is sent");
    eventually("the client is blocked", || {
        (node.info("clients", "blocked_clients").as_deref() == Some("1")).then_some(())
    });
    assert_eq!(admin.call_line("CLIENT KILL USER w").int(), 1);
    assert!(waiting.read().is_err());
}

/// The replica authenticates as a user created for replication.
#[test]
fn replica_authenticates_as_masteruser() {
    let (master, replica) = (start_server("--save "), start_server("--save "));
    let mut admin = master.connect();
    admin.call_line("ACL SETUSER follower on >p +psync +replconf +ping").expect_ok();
    admin.call_line("ACL SETUSER default >secret").expect_ok();
    admin.call_line("SET k v").expect_ok();
    replica.run("CONFIG SET masteruser follower").expect_ok();
    replica.run("CONFIG SET masterauth wrong").expect_ok();
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    eventually("the master has refused the replica", || {
        let refused = admin.call_line("INFO stats").text();
        let denied = |line: &str| line.starts_with("acl_access_denied_auth:") && !line.ends_with(":0");
        refused.lines().any(denied).then_some(())
    });
    replica.run("CONFIG SET masterauth p").expect_ok();
    eventually("the replica has the data", || {
        (replica.run("GET k") == Reply::Bulk(b"v".to_vec())).then_some(())
    });
    let log = format!("{:?}", admin.call_line("ACL LOG"));
    assert!(log.contains("follower"), "{log}");
}

/// A change of a user's permissions applies at once to the connections of all I/O threads.
#[test]
fn permission_changes_apply_to_all_io_threads() {
    let node = start_server("--save --io-threads 4");
    let mut admin = node.connect();
    admin.call_line("ACL SETUSER u on nopass +@all ~* &*").expect_ok();
    let mut clients: Vec<_> = (0..8).map(|_| node.connect()).collect();
    for client in &mut clients {
        client.call_line("AUTH u x").expect_ok();
        client.call_line("SET k v").expect_ok();
    }
    admin.call_line("ACL SETUSER u -set").expect_ok();
    for client in &mut clients {
        assert!(client.call_line("SET k v").is_error("NOPERM"));
        assert_eq!(client.call_line("GET k").text(), "v");
    }
    assert_eq!(node.info("stats", "acl_access_denied_cmd").as_deref(), Some("8"));
    admin.call_line("CONFIG RESETSTAT").expect_ok();
    // As in Valkey, `CONFIG RESETSTAT` does not reset this counter.
    assert_eq!(node.info("stats", "acl_access_denied_cmd").as_deref(), Some("8"));
}

#[test]
fn invalid_or_duplicate_user_definitions_prevent_startup() {
    for (lines, reason) in [
        ("user u on\naclfile users.acl\n", "but not both"),
        ("user u +nosuch\n", "Unknown command or category name in ACL"),
        ("user u on\nuser u off\n", "Duplicate user"),
        ("aclfile nosuch.acl\n", "Error loading ACLs"),
    ] {
        let mut node = Node::prepare(&Program::redoubt(), "--save ");
        let file = node.folder().join("redis.conf");
        fs::write(&file, lines).expect("a file can be written");
        node.set_configuration(&file);
        node.spawn();
        assert!(!node.wait_for_exit_before_relaunch().success());
        let log = node.log();
        assert!(log.contains(reason), "{lines}: {log}");
    }
}

/// `ACL GENPASS` must not return the same password twice.
#[test]
fn acl_genpass_generates_random_passwords() {
    let node = start_server("--save ");
    let (one, other) = (node.run("ACL GENPASS").text(), node.run("ACL GENPASS").text());
    assert!(one.len() == 64 && one != other);
    assert_eq!(node.run("ACL GENPASS 5").text().len(), 2);
    assert!(node.run("ACL GENPASS 0").is_error("ERR"));
}
