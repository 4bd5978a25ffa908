//! Options and operator commands in realistic scenarios.

use clock::Instant;

use super::world::{World, server};
use crate::{ScriptOutcome, SentinelInput};

const PEER: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const SWITCHED: &str = "+switch-master mymaster 10.0.0.1 6379 10.0.0.2 6379";

/// The replica with the lowest run id is promoted in one transaction, then the other replica follows it.
#[test]
fn complete_failover_promotes_and_reconfigures_replicas() {
    let mut world = World::new("");
    world.kill(&server(1));
    world.advance_time(3000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    let promotion = [
        "MULTI",
        "SLAVEOF NO ONE",
        "CONFIG REWRITE",
        "CLIENT KILL TYPE normal",
        "CLIENT KILL TYPE pubsub",
        "EXEC",
    ];
    assert_eq!(world.sent_to(&server(2))[1..], promotion, "after SUBSCRIBE");
    assert!(world.sent_to(&server(3)).contains(&"SLAVEOF 10.0.0.2 6379"));
}

/// A frozen master is detected when its time limit ends. Detection may take one PING interval longer, but does not wait
/// for the next round.
#[test]
fn silence_is_detected_when_its_limit_ends() {
    let mut late = Vec::new();
    for wait in (0..100).step_by(10) {
        let mut world = World::new("");
        world.advance_time(wait);
        world.servers.get_mut(&server(1)).unwrap().frozen = true;
        let frozen = world.now;
        while !world.has_event("+sdown master mymaster 10.0.0.1 6379") {
            world.advance_time(1);
        }
        late.push(world.now.since(frozen).as_millis() - 1000);
    }
    // A PING is sent every tenth of down-after-milliseconds, give or take half a round.
    assert!(late.iter().all(|late| *late <= 155), "{late:?}");
}

/// A healthy server is pinged every second, and gets a hello message every two seconds and INFO every ten seconds.
/// Requests that are due at the same time leave together.
#[test]
fn requests_due_together_are_sent_together() {
    let mut world = World::new("sentinel down-after-milliseconds mymaster 30000\n");
    world.advance_time(15_000);
    world.periodic_requests.clear();
    world.advance_time(60_000);
    let times = |word: &str, number: u8| -> Vec<u64> {
        let to =
            world.periodic_requests.iter().filter(|(_, addr, said)| *said == word && *addr == server(number));
        to.map(|(at, ..)| at.as_millis()).collect()
    };
    for (word, period, count) in [("PING", 1000, 60), ("PUBLISH", 2000, 30), ("INFO", 10_000, 6)] {
        for number in 1..=3 {
            let times = times(word, number);
            assert!(times.len().abs_diff(count) <= 1, "{word}: {times:?}");
            let odd = times.windows(2).find(|pair| (pair[1] - pair[0]).abs_diff(period) > period / 10 + 60);
            assert_eq!(odd, None, "{word}: {times:?}");
        }
    }
    let pings = times("PING", 1);
    assert!(
        world.periodic_requests.iter().all(|(at, ..)| pings.contains(&at.as_millis())),
        "{:?}",
        world.periodic_requests
    );
}

/// Another sentinel leads a later failover to the same replica while this sentinel still reconfigures replicas under
/// its own epoch. The failover of this sentinel completes, and the later epoch is kept.
#[test]
fn later_epoch_with_the_same_master_does_not_stop_a_leader() {
    let mut world = World::new("");
    world.servers.get_mut(&server(3)).unwrap().synced = false;
    world.kill(&server(1));
    world.advance_time(1000);
    assert!(
        world.has_event("+failover-state-reconf-slaves master mymaster 10.0.0.1 6379"),
        "{:?}",
        world.events
    );
    assert!(!world.has_event(SWITCHED), "a replica is still to follow");
    let epoch = world.sentinel.status("mymaster").unwrap().config_epoch;
    let later = epoch + 5;
    let hello = format!("10.0.0.8,26380,{PEER},{later},mymaster,10.0.0.2,6379,{later}");
    assert_eq!(world.command(&format!("PUBLISH __sentinel__:hello {hello}")), ":1\r\n");
    assert_eq!(world.sentinel.status("mymaster").unwrap().config_epoch, later);
    assert!(!world.has_event(SWITCHED));
    world.servers.get_mut(&server(3)).unwrap().synced = true;
    world.advance_time(2000);
    assert!(world.has_event("+failover-end master mymaster 10.0.0.1 6379"), "{:?}", world.events);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    assert_eq!(world.sentinel.status("mymaster").unwrap().config_epoch, later);
}

/// The new master dies while a replica still synchronizes with it. The failover ends, and the next failover promotes
/// that replica.
#[test]
fn new_master_that_dies_during_reconfiguration_is_replaced() {
    let mut world = World::new("");
    world.servers.get_mut(&server(3)).unwrap().synced = false;
    world.kill(&server(1));
    world.advance_time(1000);
    assert!(!world.has_event(SWITCHED), "a replica is still to follow");
    world.kill(&server(2));
    world.advance_time(3000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    assert!(world.has_event("+switch-master mymaster 10.0.0.2 6379 10.0.0.3 6379"), "{:?}", world.events);
    assert_eq!(world.sent_to(&server(3)).iter().filter(|line| **line == "SLAVEOF NO ONE").count(), 1);
}

/// The notification script gets the event name and payload, the reconfiguration script the addresses for clients.
#[test]
fn scripts_get_event_arguments() {
    let mut world = World::new(
        "sentinel notification-script mymaster /bin/notify\nsentinel client-reconfig-script mymaster /bin/reconfig\n",
    );
    world.kill(&server(1));
    world.advance_time(3000);
    let argv: Vec<Vec<&str>> =
        world.scripts.iter().map(|(_, argv)| argv.iter().map(String::as_str).collect()).collect();
    for wanted in [
        vec!["/bin/notify", "+sdown", "master mymaster 10.0.0.1 6379"],
        vec!["/bin/notify", "+odown", "master mymaster 10.0.0.1 6379 #quorum 1/1"],
        vec!["/bin/notify", "+selected-slave", "slave 10.0.0.2:6379 10.0.0.2 6379 @ mymaster 10.0.0.1 6379"],
        vec!["/bin/reconfig", "mymaster", "leader", "start", "10.0.0.1", "6379", "10.0.0.2", "6379"],
        vec!["/bin/notify", "+switch-master", "mymaster 10.0.0.1 6379 10.0.0.2 6379"],
    ] {
        assert_eq!(argv.iter().filter(|argv| **argv == wanted).count(), 1, "{wanted:?} in {argv:?}");
    }
    assert!(!argv.iter().any(|argv| argv[1] == "+slave"), "only what is a warning goes to the script");
}

/// PENDING-SCRIPTS lists the running scripts and those that wait for a retry. A script that hangs is killed.
#[test]
fn pending_scripts_are_listed_and_killed_when_they_hang() {
    let mut world = World::new("sentinel notification-script mymaster /bin/notify\n");
    for (job, argv) in std::mem::take(&mut world.scripts) {
        assert_eq!(argv[1], "+monitor");
        world.input(SentinelInput::ScriptDone { job, outcome: ScriptOutcome::Exited(0) });
    }
    world.kill(&server(2));
    world.advance_time(400);
    assert_eq!(world.scripts.len(), 1);
    let (job, _) = world.scripts[0].clone();
    let shown = |state: &str, retry: u32| {
        let text = "slave 10.0.0.2:6379 10.0.0.2 6379 @ mymaster 10.0.0.1 6379";
        let argv = format!("*3\r\n$11\r\n/bin/notify\r\n$6\r\n+sdown\r\n${}\r\n{text}\r\n", text.len());
        let flags = format!("$5\r\nflags\r\n${}\r\n{state}\r\n", state.len());
        let retries = format!("$9\r\nretry-num\r\n$1\r\n{retry}\r\n");
        (format!("*1\r\n*8\r\n$4\r\nargv\r\n{argv}{flags}$8\r\nrun-time\r\n"), retries)
    };
    let like = |reply: &str, state: &str, retry: u32| {
        let (head, tail) = shown(state, retry);
        assert!(reply.starts_with(&head) && reply.ends_with(&tail), "{reply:?} {head:?}");
    };
    like(&world.command("SENTINEL PENDING-SCRIPTS"), "running", 0);
    world.input(SentinelInput::ScriptDone { job, outcome: ScriptOutcome::Exited(1) });
    like(&world.command("SENTINEL PENDING-SCRIPTS"), "scheduled", 1);
    world.advance_time(31_000);
    like(&world.command("SENTINEL PENDING-SCRIPTS"), "running", 1);
    world.advance_time(61_000);
    assert_eq!(world.killed_scripts, [job]);
    world.input(SentinelInput::ScriptDone { job, outcome: ScriptOutcome::Exited(0) });
    assert_eq!(world.command("SENTINEL PENDING-SCRIPTS"), "*0\r\n");
}

/// Replicas with renamed commands are promoted with the new names.
#[test]
fn renamed_commands_are_sent_with_their_new_names() {
    let mut world = World::new(
        "sentinel rename-command mymaster SLAVEOF follow\nsentinel rename-command mymaster CONFIG cfg-1\n",
    );
    world.renamed_commands = [("SLAVEOF", "follow"), ("CONFIG", "cfg-1")].into();
    world.kill(&server(1));
    world.advance_time(3000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    let sent = world.sent_to(&server(2));
    assert!(sent.contains(&"follow NO ONE") && sent.contains(&"cfg-1 REWRITE"), "{sent:?}");
    assert!(!sent.iter().any(|line| line.starts_with("SLAVEOF") || line.starts_with("CONFIG ")), "{sent:?}");
}

/// Every link authenticates first: servers use the options of the master, other sentinels those of the sentinel.
#[test]
fn links_authenticate_first() {
    let mut world = World::new(&format!(
        "sentinel auth-user mymaster watcher\nsentinel auth-pass mymaster secret\nsentinel sentinel-user peer\n\
         sentinel sentinel-pass hidden\nsentinel known-sentinel mymaster 10.0.0.3 6379 {PEER}\n"
    ));
    // The third server also acts as a sentinel, with a link of its own.
    for number in 1..=2 {
        let sent = world.sent_to(&server(number));
        assert_eq!(sent.iter().filter(|line| **line == "AUTH watcher secret").count(), 2, "{sent:?}");
    }
    let sent = world.sent_to(&server(3));
    assert_eq!(sent.iter().filter(|line| **line == "AUTH peer hidden").count(), 1, "{sent:?}");
    assert!(world.command("SENTINEL SET mymaster auth-pass other").starts_with("+OK"));
    world.advance_time(2000);
    assert!(world.sent_to(&server(1)).contains(&"AUTH watcher other"), "the links are made anew");
    let events = world.events.join("\n");
    assert!(!events.contains("other"), "a password is shown to nobody: {events}");
}

/// A coordinated failover is carried out by the master itself.
#[test]
fn coordinated_failover_asks_the_master_to_hand_over() {
    let mut world = World::new("sentinel failover-timeout mymaster 5000\n");
    assert_eq!(world.command("SENTINEL FAILOVER mymaster COORDINATED"), "+OK\r\n");
    world.advance_time(3000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    assert!(world.sent_to(&server(1)).contains(&"FAILOVER TO 10.0.0.2 6379 TIMEOUT 5000"));
    assert!(!world.sent_to(&server(2)).contains(&"SLAVEOF NO ONE"));
    assert_eq!(world.servers[&server(1)].master, Some(server(2)));
    assert!(world.sent_to(&server(2)).contains(&"CONFIG REWRITE"), "or a restart makes it a replica again");
}

/// A plain FAILOVER command loses no writes either if the master can hand over. A master that rejects the handover or
/// does not complete it is replaced.
#[test]
fn manual_failover_uses_a_handover_if_possible() {
    let mut world = World::new("");
    assert_eq!(world.command("SENTINEL FAILOVER mymaster"), "+OK\r\n");
    world.advance_time(3000);
    assert!(world.has_event(SWITCHED), "{:?}", world.events);
    assert!(world.sent_to(&server(1)).contains(&"FAILOVER TO 10.0.0.2 6379 TIMEOUT 1500"));
    assert!(!world.sent_to(&server(2)).contains(&"SLAVEOF NO ONE"));
    assert!(world.sent_to(&server(2)).contains(&"CONFIG REWRITE"), "or a restart makes it a replica again");
    for (refuses, hangs) in [(true, false), (false, true)] {
        let mut world = World::new("");
        (world.refuses_failover, world.ignores_failover) = (refuses, hangs);
        assert_eq!(world.command("SENTINEL FAILOVER mymaster"), "+OK\r\n");
        world.advance_time(5000);
        assert!(world.has_event(SWITCHED), "{:?}", world.events);
        assert!(world.sent_to(&server(2)).contains(&"SLAVEOF NO ONE"));
    }
}

/// A master restarts with a configuration that makes it a replica of one of its replicas, so no server is a master and
/// all replicas lose their master at that moment. The replicas stay eligible, and the ring is detected within seconds.
#[test]
fn master_replicating_from_its_own_replica_is_replaced() {
    let mut world = World::new("");
    world.advance_time(2000);
    let now = world.now;
    for (number, master) in [(1, 2), (2, 1), (3, 1)] {
        let server_there = world.servers.get_mut(&server(number)).unwrap();
        server_there.master = Some(server(master));
        (server_there.synced, server_there.disconnected_since) = (false, Some(now));
    }
    world.advance_time(9_000);
    assert!(world.has_event("+sdown master mymaster 10.0.0.1 6379"), "{:?}", world.events);
    let promoted = "+promoted-slave slave 10.0.0.2:6379 10.0.0.2 6379 @ mymaster 10.0.0.1 6379";
    assert!(world.has_event(promoted), "{:?}", world.events);
}

/// The replicas lost their master an hour ago. They are not promoted, because the master may return with newer data,
/// unless it returns without any data.
#[test]
fn master_without_data_is_replaced_by_an_old_replica() {
    for empty in [false, true] {
        let mut world = World::new("");
        world.advance_time(2000);
        let long_ago = Instant::from_millis(world.now.as_millis() - 80_000);
        for number in [2, 3] {
            let replica = world.servers.get_mut(&server(number)).unwrap();
            (replica.synced, replica.disconnected_since) = (false, Some(long_ago));
        }
        world.advance_time(20_000);
        if empty {
            world.servers.get_mut(&server(1)).unwrap().empty = true;
        } else {
            world.kill(&server(1));
        }
        world.advance_time(10_000);
        assert!(world.has_event("+sdown master mymaster 10.0.0.1 6379"), "{:?}", world.events);
        let promoted = "+promoted-slave slave 10.0.0.2:6379 10.0.0.2 6379 @ mymaster 10.0.0.1 6379";
        assert_eq!(world.has_event(promoted), empty, "{:?}", world.events);
    }
}

#[test]
fn simulated_crashes_happen_at_the_requested_step() {
    let elected = "+elected-leader master mymaster 10.0.0.1 6379";
    let promoted = "+promoted-slave slave 10.0.0.2:6379 10.0.0.2 6379 @ mymaster 10.0.0.1 6379";
    for (when, comes_after, comes_before) in [
        ("crash-after-election", elected, "+selected-slave"),
        ("crash-after-promotion", promoted, "+failover-end"),
    ] {
        let mut world = World::new("");
        assert_eq!(world.command(&format!("SENTINEL SIMULATE-FAILURE {when}")), "+OK\r\n");
        world.kill(&server(1));
        while !world.crashed {
            world.advance_time(10);
        }
        assert!(world.has_event(comes_after), "{when}: {:?}", world.events);
        let before = world.events.iter().position(|line| line.starts_with(comes_before));
        let after = world.events.iter().position(|line| line == comes_after);
        assert!(before.is_none_or(|before| before > after.unwrap()), "{when}: {:?}", world.events);
    }
}

/// A master crashes and restarts at once. Because it answers, it is not down, unless it loads for longer than the
/// limit.
#[test]
fn restarted_master_that_loads_too_long_is_down() {
    const REBOOT: &str = "+reboot master mymaster 10.0.0.1 6379";
    const DOWN: &str = "+sdown master mymaster 10.0.0.1 6379";
    let restart = |setting: &str, loading: bool| {
        let mut world = World::new(setting);
        let master = world.servers.get_mut(&server(1)).unwrap();
        (master.run_id, master.loading) = ("f".repeat(40), loading);
        world.advance_time(10_000);
        assert!(world.has_event(REBOOT), "{:?}", world.events);
        world
    };
    let flags = |world: &mut World| world.command("SENTINEL MASTER mymaster").contains("master_reboot");
    let period = "sentinel master-reboot-down-after-period mymaster 5000\n";
    for (setting, loading, down) in [("", true, false), (period, false, false), (period, true, true)] {
        let mut world = restart(setting, loading);
        assert_eq!(flags(&mut world), down, "{setting} {loading}");
        world.advance_time(10_000);
        assert_eq!(world.has_event(DOWN), down, "{setting} {loading}: {:?}", world.events);
        assert_eq!(world.has_event(SWITCHED), down, "{:?}", world.events);
    }
    let mut world = restart(period, true);
    world.servers.get_mut(&server(1)).unwrap().loading = false;
    world.advance_time(10_000);
    assert!(!world.has_event(DOWN) && !flags(&mut world), "{:?}", world.events);
}

/// Masters can be configured by hostname. Clients get addresses, or hostnames if these are announced.
#[test]
fn masters_can_be_configured_by_hostname() {
    let config = "sentinel resolve-hostnames yes\nsentinel myid aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n\
        sentinel monitor mymaster db.example 6379 1\n";
    let question = "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster";
    let mut world = World::with_config(config);
    assert_eq!(world.resolves, ["db.example"]);
    world.input(SentinelInput::Resolved { host: "db.example".into(), ip: "10.0.0.1".into() });
    assert_eq!(world.command(question), "*2\r\n$8\r\n10.0.0.1\r\n$4\r\n6379\r\n");
    assert_eq!(world.command("SENTINEL CONFIG SET announce-hostnames yes"), "+OK\r\n");
    assert_eq!(world.command(question), "*2\r\n$10\r\ndb.example\r\n$4\r\n6379\r\n");
    let down = "SENTINEL IS-MASTER-DOWN-BY-ADDR 10.0.0.1 6379 0 *";
    assert!(world.command(down).starts_with("*3\r\n:"), "known by its address, too");
}

/// A sentinel behind NAT announces its configured address.
#[test]
fn announced_address_is_used_in_hello_messages() {
    let mut world = World::new("");
    assert!(world.hellos.iter().all(|hello| hello.starts_with("10.0.0.9,26379,")), "{:?}", world.hellos);
    for set in ["announce-ip 192.0.2.7", "announce-port 5000"] {
        assert_eq!(world.command(&format!("SENTINEL CONFIG SET {set}")), "+OK\r\n");
    }
    world.hellos.clear();
    world.advance_time(2100);
    assert!(!world.hellos.is_empty());
    assert!(world.hellos.iter().all(|hello| hello.starts_with("192.0.2.7,5000,")), "{:?}", world.hellos);
}

/// INFO-CACHE returns the last INFO reply of each server and its age.
#[test]
fn info_cache_returns_the_last_info_with_its_age() {
    let mut world = World::new("");
    let reply = world.command("SENTINEL INFO-CACHE mymaster");
    assert!(reply.starts_with("*2\r\n$8\r\nmymaster\r\n*3\r\n*2\r\n:"), "{reply}");
    assert_eq!(reply.matches("run_id:").count(), 3, "{reply}");
}

/// SENTINEL DEBUG changes the periods of a running sentinel.
#[test]
fn debug_changes_the_periods_in_use() {
    let mut world = World::new("");
    world.advance_time(5000);
    assert_eq!(world.command("SENTINEL DEBUG publish-period 10000"), "+OK\r\n");
    world.advance_time(9000);
    world.hellos.clear();
    world.advance_time(900);
    let quiet = world.hellos.len();
    assert_eq!(world.command("SENTINEL DEBUG publish-period 100"), "+OK\r\n");
    world.advance_time(900);
    assert!(world.hellos.len() > quiet + 9, "{} then {}", quiet, world.hellos.len());
}
