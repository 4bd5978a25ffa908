//! Servers that refuse what a sentinel orders, and hand-overs that go wrong, each told as a short story.

use super::world::{World, server};

const SWITCHED: &str = "+switch-master mymaster 10.0.0.1 6379 10.0.0.2 6379";
const NOT_PROMOTED: &str = "-failover-abort-slave-timeout master mymaster 10.0.0.1 6379";

fn deny(world: &mut World, number: u8, command: &'static str) {
    world.servers.get_mut(&server(number)).unwrap().denies.insert(command);
}

fn said(world: &World, words: &str) -> usize {
    world.log.iter().filter(|line| line.contains(words)).count()
}

/// The best replica's user may not do what a sentinel must do: the log names the rule, that failover ends at once and
/// the next one takes the other replica.
#[test]
fn a_replica_that_may_not_be_promoted_is_passed_over_and_the_missing_rule_is_said() {
    let mut world = World::new("sentinel auth-user mymaster watcher\nsentinel auth-pass mymaster p\n");
    deny(&mut world, 2, "SLAVEOF");
    world.kill(&server(1));
    world.pass(3000);
    assert!(world.has_event(NOT_PROMOTED), "{:?}", world.events);
    assert!(world.has_event("+switch-master mymaster 10.0.0.1 6379 10.0.0.3 6379"), "{:?}", world.events);
    let rule = "Permission denied by 10.0.0.2:6379: the user 'watcher' needs the rule +slaveof";
    assert_eq!(said(&world, rule), 1, "{:?}", world.log);
    assert!(said(&world, "10.0.0.2:6379 did not do what it was told to: NOPERM") > 0, "{:?}", world.log);
    // It does not follow either, and nobody waits for it.
    assert!(world.has_event("+failover-end master mymaster 10.0.0.1 6379"), "{:?}", world.events);
}

/// Nobody may be promoted: it is tried again, later and later, until a right is given.
#[test]
fn a_failover_that_was_denied_everywhere_is_done_once_it_is_allowed() {
    let mut world = World::new("");
    deny(&mut world, 2, "SLAVEOF");
    deny(&mut world, 3, "SLAVEOF");
    world.kill(&server(1));
    world.pass(8000);
    let attempts = world.events.iter().filter(|event| *event == NOT_PROMOTED).count();
    assert!((2..=4).contains(&attempts), "{:?}", world.events);
    assert_eq!(said(&world, "needs the rule +slaveof"), 2, "once for each: {:?}", world.log);
    world.servers.get_mut(&server(2)).unwrap().denies.clear();
    world.pass(20_000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
}

/// An operator's FAILOVER waits for a replica that has meanwhile been promoted: it is called off.
#[test]
fn an_old_master_that_hands_over_for_ever_is_made_to_follow() {
    let mut world = World::new("");
    world.servers.get_mut(&server(1)).unwrap().hands_over = true;
    world.kill(&server(1));
    world.pass(3000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    world.servers.get_mut(&server(1)).unwrap().alive = true;
    world.pass(30_000);
    assert!(said(&world, "did not do what it was told to: ERR REPLICAOF not allowed while failing over") > 0);
    assert_eq!(world.servers[&server(1)].master, Some(server(2)), "{:?}", world.log);
}

/// A user without the rights of a hand-over, which the documents do not give it: an operator's failover is done
/// without, a coordinated one is not, and both say what is missing.
#[test]
fn a_hand_over_that_is_denied_is_done_without_or_given_up() {
    for (word, switched) in [("", true), (" COORDINATED", false)] {
        let mut world = World::new("");
        deny(&mut world, 1, "FAILOVER");
        assert_eq!(world.command(&format!("SENTINEL FAILOVER mymaster{word}")), "+OK\r\n");
        world.pass(3000);
        assert_eq!(world.has_event(SWITCHED), switched, "{:?}", world.events);
        assert_eq!(world.has_event(NOT_PROMOTED), !switched, "{:?}", world.events);
        assert_eq!(said(&world, "needs the rule +failover"), 1, "{:?}", world.log);
    }
}

/// Clients of a master that hands over hear no error: their writes wait, and their connections end once the new one is
/// there. A pause does not last longer than needed.
#[test]
fn a_master_that_hands_over_holds_its_clients_and_sends_them_away() {
    let mut world = World::new("sentinel failover-timeout mymaster 5000\n");
    assert_eq!(world.command("SENTINEL FAILOVER mymaster COORDINATED"), "+OK\r\n");
    world.pass(3000);
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

/// The master refuses, or its replica dies first: its clients may write again at once.
#[test]
fn a_hand_over_that_fails_ends_the_pause() {
    let mut world = World::new("");
    world.refuses_failover = true;
    world.command("SENTINEL FAILOVER mymaster COORDINATED");
    world.pass(200);
    assert!(world.has_event(NOT_PROMOTED), "{:?}", world.events);
    assert!(world.sent_to(&server(1)).contains(&"CLIENT UNPAUSE"));
    assert_eq!(said(&world, "The master 10.0.0.1:6379 refused to hand over: ERR FAILOVER target"), 1);

    let mut world = World::new("");
    world.ignores_failover = true;
    world.command("SENTINEL FAILOVER mymaster COORDINATED");
    world.pass(200);
    world.kill(&server(2));
    world.pass(2000);
    assert!(world.has_event(NOT_PROMOTED), "{:?}", world.events);
    let sent = world.sent_to(&server(1));
    assert!(sent.ends_with(&["FAILOVER ABORT", "CLIENT UNPAUSE"]), "{sent:?}");
}

/// The master dies while it hands over: nobody waits for the time that it was given.
#[test]
fn a_master_that_dies_while_it_hands_over_is_replaced() {
    for word in ["", " COORDINATED"] {
        let mut world = World::new("");
        world.ignores_failover = true;
        world.command(&format!("SENTINEL FAILOVER mymaster{word}"));
        world.pass(200);
        world.kill(&server(1));
        world.pass(2000);
        assert!(world.has_event(SWITCHED), "{word}: {:?}", world.events);
    }
}

/// The link to the old master breaks before its clients were sent away: they are when it stands again.
#[test]
fn an_old_master_that_is_out_of_reach_settles_later() {
    let mut world = World::new("");
    world.command("SENTINEL FAILOVER mymaster COORDINATED");
    world.breaks_after_failover = true;
    world.pass(3000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    assert!(world.sent_to(&server(1)).contains(&"CLIENT UNPAUSE"), "{:?}", world.sent_to(&server(1)));
}

/// A replica that still loads its data refuses to follow, and is not told so every two seconds.
#[test]
fn a_server_that_refuses_to_follow_is_given_time() {
    let mut world = World::new("");
    deny(&mut world, 3, "SLAVEOF");
    world.kill(&server(1));
    world.pass(60_000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    let told = world.events.iter().filter(|event| event.starts_with("+fix-slave-config")).count();
    assert!((2..=6).contains(&told), "{told} times: {:?}", world.events);
}

/// A server wants a password that the sentinel has not: it counts as disconnected, the log says why, and it is tried
/// again until the password is right.
#[test]
fn a_wrong_password_is_no_connection() {
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
        world.pass(10);
        seen.insert(flags(&mut world));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["master,disconnected"]);
    world.pass(2000);
    assert_eq!(
        flags(&mut world),
        "s_down,master,disconnected".replace("s_down,", "s_down,o_down,"),
        "its quorum is 1"
    );
    assert_eq!(
        said(&world, "Authentication of the user 'default' failed at 10.0.0.1:6379. It says: WRONGPASS"),
        1
    );
    world.command("SENTINEL SET mymaster auth-pass new");
    world.pass(2000);
    assert_eq!(flags(&mut world), "master");
}

/// A replica is out of reach during a switch and comes back following its old master, which is well: it is led to the
/// new master in seconds.
#[test]
fn a_replica_that_missed_the_switch_is_led_to_the_new_master() {
    let mut world = World::new("");
    world.kill(&server(3));
    world.pass(1500);
    world.command("SENTINEL FAILOVER mymaster");
    world.pass(1000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    world.servers.get_mut(&server(3)).unwrap().alive = true;
    world.pass(6000);
    assert_eq!(world.servers[&server(3)].master, Some(server(2)), "{:?}", world.events);
}

/// A replica stands still during a failover: it is told once more after a while, and the failover ends without it, long
/// before its own timeout.
#[test]
fn a_replica_that_stands_still_is_waited_for_once() {
    let mut world = World::new("");
    world.command("SENTINEL SET mymaster down-after-milliseconds 60000");
    world.command("SENTINEL DEBUG slave-reconf-timeout 2000");
    world.servers.get_mut(&server(3)).unwrap().frozen = true;
    world.command("SENTINEL FAILOVER mymaster");
    world.pass(1500);
    assert!(!world.has_event(SWITCHED), "{:?}", world.events);
    world.pass(3000);
    let events = |word: &str| {
        let wanted = format!("{word} slave 10.0.0.3:6379 10.0.0.3 6379 @ mymaster 10.0.0.1 6379");
        world.events.iter().filter(|event| **event == wanted).count()
    };
    let told = ["+slave-reconf-sent", "-slave-reconf-sent-timeout", "+slave-reconf-done"].map(events);
    assert_eq!(told, [2, 1, 0], "{:?}", world.events);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    assert!(!world.has_event("+failover-end-for-timeout master mymaster 10.0.0.1 6379"));
}
