//! Servers that reject commands, and failed handovers.

use super::world::{World, server};
use crate::SentinelInput;

const SWITCHED: &str = "+switch-master mymaster 10.0.0.1 6379 10.0.0.2 6379";
const PROMOTION_ABORTED: &str = "-failover-abort-slave-timeout master mymaster 10.0.0.1 6379";

fn deny(world: &mut World, number: u8, command: &'static str) {
    world.servers.get_mut(&server(number)).unwrap().denies.insert(command);
}

fn logged_lines(world: &World, words: &str) -> usize {
    world.log.iter().filter(|line| line.contains(words)).count()
}

/// The sentinel's user on the best replica lacks a required right. The log names the ACL rule, the failover is aborted
/// at once, and the next failover promotes the other replica.
#[test]
fn replica_without_promotion_rights_is_skipped_and_the_missing_rule_logged() {
    let mut world = World::new("sentinel auth-user mymaster watcher\nsentinel auth-pass mymaster p\n");
    deny(&mut world, 2, "SLAVEOF");
    world.kill(&server(1));
    world.advance_time(3000);
    assert!(world.has_event(PROMOTION_ABORTED), "{:?}", world.events);
    assert!(world.has_event("+switch-master mymaster 10.0.0.1 6379 10.0.0.3 6379"), "{:?}", world.events);
    let rule = "Permission denied by 10.0.0.2:6379: the user 'watcher' needs the rule +slaveof";
    assert_eq!(logged_lines(&world, rule), 1, "{:?}", world.log);
    assert!(
        logged_lines(&world, "10.0.0.2:6379 did not do what it was told to: NOPERM") > 0,
        "{:?}",
        world.log
    );
    // The replica refuses to follow the new master as well, and the failover does not wait for this replica.
    assert!(world.has_event("+failover-end master mymaster 10.0.0.1 6379"), "{:?}", world.events);
}

/// No replica can be promoted. Attempts continue with growing delays until the right is granted.
#[test]
fn failover_denied_everywhere_succeeds_once_allowed() {
    let mut world = World::new("");
    deny(&mut world, 2, "SLAVEOF");
    deny(&mut world, 3, "SLAVEOF");
    world.kill(&server(1));
    world.advance_time(8000);
    let attempts = world.events.iter().filter(|event| *event == PROMOTION_ABORTED).count();
    assert!((2..=4).contains(&attempts), "{:?}", world.events);
    assert_eq!(logged_lines(&world, "needs the rule +slaveof"), 2, "once for each: {:?}", world.log);
    world.servers.get_mut(&server(2)).unwrap().denies.clear();
    world.advance_time(20_000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
}

/// The old master waits for a handover to a replica that has been promoted since. The sentinel cancels the handover.
#[test]
fn old_master_stuck_in_a_handover_is_reconfigured() {
    let mut world = World::new("");
    world.servers.get_mut(&server(1)).unwrap().hands_over = true;
    world.kill(&server(1));
    world.advance_time(3000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    world.servers.get_mut(&server(1)).unwrap().alive = true;
    world.advance_time(30_000);
    assert!(
        logged_lines(&world, "did not do what it was told to: ERR REPLICAOF not allowed while failing over")
            > 0
    );
    assert_eq!(world.servers[&server(1)].master, Some(server(2)), "{:?}", world.log);
}

/// The sentinel's user lacks the rights for a handover, which the documentation does not grant. A normal failover
/// continues without a handover, a coordinated failover is aborted, and both log the missing right.
#[test]
fn denied_handover_is_skipped_or_aborts_a_coordinated_failover() {
    for (word, switched) in [("", true), (" COORDINATED", false)] {
        let mut world = World::new("");
        deny(&mut world, 1, "FAILOVER");
        assert_eq!(world.command(&format!("SENTINEL FAILOVER mymaster{word}")), "+OK\r\n");
        world.advance_time(3000);
        assert_eq!(world.has_event(SWITCHED), switched, "{:?}", world.events);
        assert_eq!(world.has_event(PROMOTION_ABORTED), !switched, "{:?}", world.events);
        assert_eq!(logged_lines(&world, "needs the rule +failover"), 1, "{:?}", world.log);
    }
}

/// Clients of a master that hands over get no errors: their writes wait, and their connections are closed once the new
/// master is ready. The pause is not longer than necessary.
#[test]
fn handover_pauses_clients_and_disconnects_them() {
    let mut world = World::new("sentinel failover-timeout mymaster 5000\n");
    assert_eq!(world.command("SENTINEL FAILOVER mymaster COORDINATED"), "+OK\r\n");
    world.advance_time(3000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    let settled = [
        "MULTI",
        "CONFIG REWRITE",
        "CLIENT KILL TYPE normal",
        "CLIENT KILL TYPE pubsub",
        "CLIENT UNPAUSE",
        "EXEC",
    ];
    let old = world.sent_to(&server(1));
    let asked = ["MULTI", "CLIENT PAUSE 5000 WRITE", "FAILOVER TO 10.0.0.2 6379 TIMEOUT 5000", "EXEC"];
    assert_eq!(old[1..5], asked, "after SUBSCRIBE");
    assert_eq!(old[5..], settled);
    assert_eq!(world.sent_to(&server(2))[1..], settled);
}

/// PUBLISH is a write, so a hello message would wait for the end of the pause, and with it the commands that end the
/// pause.
#[test]
fn paused_master_gets_no_hello_messages() {
    let mut world = World::new("sentinel failover-timeout mymaster 60000\n");
    world.ignores_failover = true;
    world.advance_time(5000);
    world.command("SENTINEL FAILOVER mymaster COORDINATED");
    world.advance_time(200);
    assert!(world.sent_to(&server(1)).contains(&"CLIENT PAUSE 60000 WRITE"));
    let hello_count = |world: &World, to: u8| {
        let requests = world.periodic_requests.iter();
        requests.filter(|(_, addr, request)| *addr == server(to) && *request == "PUBLISH").count()
    };
    let before = [1, 2].map(|to| hello_count(&world, to));
    world.advance_time(20_000);
    assert_eq!(hello_count(&world, 1), before[0]);
    assert!(hello_count(&world, 2) > before[1] + 5, "the replicas get them as usual");
}

/// If the master rejects the handover, or its replica dies first, writes resume at once.
#[test]
fn failed_handover_resumes_writes() {
    let mut world = World::new("");
    world.refuses_failover = true;
    world.command("SENTINEL FAILOVER mymaster COORDINATED");
    world.advance_time(200);
    assert!(world.has_event(PROMOTION_ABORTED), "{:?}", world.events);
    assert!(world.sent_to(&server(1)).contains(&"CLIENT UNPAUSE"));
    assert_eq!(logged_lines(&world, "The master 10.0.0.1:6379 refused to hand over: ERR FAILOVER target"), 1);

    let mut world = World::new("");
    world.ignores_failover = true;
    world.command("SENTINEL FAILOVER mymaster COORDINATED");
    world.advance_time(200);
    world.kill(&server(2));
    world.advance_time(2000);
    assert!(world.has_event(PROMOTION_ABORTED), "{:?}", world.events);
    let sent = world.sent_to(&server(1));
    assert!(sent.ends_with(&["FAILOVER ABORT", "CLIENT UNPAUSE"]), "{sent:?}");
}

/// The failover does not wait for the time limit of a handover whose master dies.
#[test]
fn master_that_dies_during_a_handover_is_replaced() {
    for word in ["", " COORDINATED"] {
        let mut world = World::new("");
        world.ignores_failover = true;
        world.command(&format!("SENTINEL FAILOVER mymaster{word}"));
        world.advance_time(200);
        world.kill(&server(1));
        world.advance_time(2000);
        assert!(world.has_event(SWITCHED), "{word}: {:?}", world.events);
    }
}

/// The link to the old master breaks before its clients are disconnected. They are disconnected when the link is up
/// again.
#[test]
fn unreachable_old_master_gets_its_final_commands_later() {
    let mut world = World::new("");
    world.command("SENTINEL FAILOVER mymaster COORDINATED");
    world.breaks_after_failover = true;
    world.advance_time(3000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    assert!(world.sent_to(&server(1)).contains(&"CLIENT UNPAUSE"), "{:?}", world.sent_to(&server(1)));
}

/// A replica that is loading rejects REPLICAOF, and the command is not repeated every two seconds.
#[test]
fn server_that_refuses_to_follow_is_not_asked_repeatedly() {
    let mut world = World::new("");
    deny(&mut world, 3, "SLAVEOF");
    world.kill(&server(1));
    world.advance_time(60_000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    let told = world.events.iter().filter(|event| event.starts_with("+fix-slave-config")).count();
    assert!((2..=6).contains(&told), "{told} times: {:?}", world.events);
}

/// A server rejects the password: the sentinel shows the server as disconnected, logs the reason, and retries until the
/// password is right.
#[test]
fn wrong_password_counts_as_disconnected() {
    let flags = |world: &mut World| {
        let shown = world.command("SENTINEL MASTER mymaster");
        shown.split("\r\n").skip_while(|line| *line != "flags").nth(2).unwrap().to_owned()
    };
    let mut world = World::new("sentinel auth-pass mymaster old\n");
    assert_eq!(flags(&mut world), "master");
    world.password = Some("new");
    world.command("SENTINEL SET mymaster auth-pass wrong");
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..90 {
        world.advance_time(10);
        seen.insert(flags(&mut world));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["master,disconnected"]);
    world.advance_time(2000);
    assert_eq!(
        flags(&mut world),
        "s_down,master,disconnected".replace("s_down,", "s_down,o_down,"),
        "its quorum is 1"
    );
    assert_eq!(
        logged_lines(
            &world,
            "Authentication of the user 'default' failed at 10.0.0.1:6379. It says: WRONGPASS"
        ),
        1
    );
    world.command("SENTINEL SET mymaster auth-pass new");
    world.advance_time(2000);
    assert_eq!(flags(&mut world), "master");
}

/// A replica is unreachable during a switch and returns as a replica of the healthy old master. It is reconfigured
/// within seconds.
#[test]
fn replica_that_missed_the_switch_is_reconfigured() {
    let mut world = World::new("");
    world.kill(&server(3));
    world.advance_time(1500);
    world.command("SENTINEL FAILOVER mymaster");
    world.advance_time(1000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    world.servers.get_mut(&server(3)).unwrap().alive = true;
    world.advance_time(6000);
    assert_eq!(world.servers[&server(3)].master, Some(server(2)), "{:?}", world.events);
}

/// A replica is frozen during a failover. The sentinel sends it one more command after a while, and ends the failover
/// without it long before the timeout.
#[test]
fn failover_waits_only_once_for_a_frozen_replica() {
    let mut world = World::new("");
    world.command("SENTINEL SET mymaster down-after-milliseconds 60000");
    world.command("SENTINEL DEBUG slave-reconf-timeout 2000");
    world.servers.get_mut(&server(3)).unwrap().frozen = true;
    world.command("SENTINEL FAILOVER mymaster");
    world.advance_time(1500);
    assert!(!world.has_event(SWITCHED), "{:?}", world.events);
    world.advance_time(3000);
    let events = |word: &str| {
        let wanted = format!("{word} slave 10.0.0.3:6379 10.0.0.3 6379 @ mymaster 10.0.0.1 6379");
        world.events.iter().filter(|event| **event == wanted).count()
    };
    let told = ["+slave-reconf-sent", "-slave-reconf-sent-timeout", "+slave-reconf-done"].map(events);
    assert_eq!(told, [2, 1, 0], "{:?}", world.events);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    assert!(!world.has_event("+failover-end-for-timeout master mymaster 10.0.0.1 6379"));
}

/// Found by the simulator (6 nodes, seed 313): a slow disk delayed a promotion until its sentinel had lost the
/// leadership.
#[test]
fn promotion_is_decided_once_the_votes_are_on_disk() {
    let mut world = World::new("");
    world.has_slow_disk = true;
    world.kill(&server(1));
    world.advance_time(2000);
    assert!(world.has_event("+elected-leader master mymaster 10.0.0.1 6379"), "{:?}", world.events);
    assert!(!world.sent_to(&server(2)).contains(&"SLAVEOF NO ONE"), "{:?}", world.sent);
    world.has_slow_disk = false;
    world.input(SentinelInput::Written { journal_bytes: 0 });
    world.advance_time(200);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
}
