//! Tests of sentinels whose user has exactly the rights listed in the Redis and Valkey documentation.

use std::time::Duration;

use harness::{MASTER_NAME, Node, Program, Reply, SentinelGroup, eventually, eventually_within};

const DOCUMENTED_RIGHTS: &str = "+multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish +info \
    +client|setname +client|kill +script|kill";

fn redoubt_sentinels() -> [Program; 3] {
    std::array::from_fn(|_| Program::redoubt())
}

/// Starts a group whose sentinels authenticate at every server as a user with these rights.
fn start_group_with_rights(server: &Program, rights: &str) -> SentinelGroup {
    let group = SentinelGroup::start(server, &redoubt_sentinels());
    for node in &group.servers {
        node.run(&format!("ACL SETUSER watcher on >secret allchannels {rights}")).expect_ok();
    }
    for node in &group.sentinels {
        node.run(&format!("SENTINEL SET {MASTER_NAME} auth-user watcher auth-pass secret")).expect_ok();
    }
    for node in &group.servers {
        eventually("every sentinel has signed in", || {
            let list = node.run("CLIENT LIST").text();
            (list.matches("user=watcher").count() == 2 * group.sentinels.len()).then_some(())
        });
    }
    group
}

fn all_logs(group: &SentinelGroup) -> String {
    group.sentinels.iter().map(Node::log).collect()
}

/// Asserts that after the master's death a replica takes over, the other replica follows it, and no command is denied.
fn assert_documented_rights_suffice(server: &Program) {
    let mut group = start_group_with_rights(server, DOCUMENTED_RIGHTS);
    let master = group.wait_for_master();
    group.servers[master].kill();
    let (_, took) = group.wait_for_successor(master);
    println!("{took:?}");
    group.wait_until_healthy();
    assert!(!all_logs(&group).contains("NOPERM"), "{}", all_logs(&group));
}

#[test]
fn documented_rights_suffice_for_a_redoubt_master() {
    assert_documented_rights_suffice(&Program::redoubt());
}

#[test]
fn documented_rights_suffice_for_a_redis_7_master() {
    assert_documented_rights_suffice(&Program::redis());
}

#[test]
fn documented_rights_suffice_for_a_redis_8_master() {
    let Some(redis8) = Program::redis_8() else { return };
    assert_documented_rights_suffice(&redis8);
}

#[test]
fn documented_rights_suffice_for_a_valkey_master() {
    let Some(valkey) = Program::valkey() else { return };
    assert_documented_rights_suffice(&valkey);
}

/// If one right is missing on all servers, the log names it, and the failover succeeds as soon as it is granted.
#[test]
fn missing_right_is_logged_and_failover_succeeds_once_granted() {
    let mut group = start_group_with_rights(&Program::redoubt(), &DOCUMENTED_RIGHTS.replace("+slaveof ", ""));
    let master = group.wait_for_master();
    group.servers[master].kill();
    eventually("the log says what is missing", || {
        all_logs(&group).contains("the user 'watcher' needs the rule +slaveof").then_some(())
    });
    eventually("the failover is not left standing", || {
        all_logs(&group).contains("-failover-abort-slave-timeout").then_some(())
    });
    for node in group.servers.iter().filter(|node| node.is_running()) {
        node.run("ACL SETUSER watcher +slaveof").expect_ok();
    }
    let (successor, _) = group.wait_for_successor(master);
    assert_ne!(successor, master);
}

/// Asserts that a client that writes during a coordinated failover gets replies and then a closed connection, but never
/// an error, and that no acknowledged write is lost.
fn assert_no_client_errors(server: &Program) {
    let group = SentinelGroup::start(server, &redoubt_sentinels());
    let old = group.wait_for_master();
    let mut client = group.servers[old].connect();
    client.set_timeout(Duration::from_secs(30));
    client.call(&["INCR", "counter"]);
    let writer = std::thread::spawn(move || {
        let mut told = 1;
        while let Ok(reply) = client.try_call(&["INCR", "counter"]) {
            let Reply::Int(now) = reply else { return Err(reply) };
            told = now;
        }
        Ok(told)
    });
    group.sentinels[0].run(&format!("SENTINEL FAILOVER {MASTER_NAME} COORDINATED")).expect_ok();
    let told = writer.join().expect("it ends by itself").expect("no error is seen");
    let successor = eventually_within(Duration::from_secs(20), "another is the master", || {
        Some(group.wait_for_master()).filter(|&master| master != old)
    });
    let kept: i64 = group.servers[successor].run("GET counter").text().parse().expect("a number");
    assert!(kept >= told, "told {told}, kept {kept}");
    group.wait_until_healthy();
    // The failover must leave no client paused.
    for node in &group.servers {
        assert_eq!(node.info("clients", "paused_actions").as_deref(), Some("none"));
    }
}

#[test]
fn coordinated_failover_of_redoubt_causes_no_client_errors() {
    assert_no_client_errors(&Program::redoubt());
}

#[test]
fn coordinated_failover_of_valkey_causes_no_client_errors() {
    let Some(valkey) = Program::valkey() else { return };
    assert_no_client_errors(&valkey);
}
