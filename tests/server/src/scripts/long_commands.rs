//! Commands that take long: they run on a background worker, and no client notices but by what it need not wait for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use harness::{Connection, Node, Program, Value, eventually};

const ELEMENTS: usize = 200_000;

fn server(options: &str) -> Node {
    Node::start(&Program::redoubt(), &format!("--save  --io-threads 1 --busy-reply-threshold 0 {options}"))
}

/// A list that takes long to sort.
fn fill(connection: &mut Connection, key: &str) {
    let script = "for i = 1, ARGV[1] do redis.call('RPUSH', KEYS[1], i * 7919 % ARGV[1]) end";
    connection.call(&["EVAL", script, "1", key, &ELEMENTS.to_string()]);
}

/// How often another client is served while one client's request runs.
fn served_during(node: &Node, request: &[&str]) -> usize {
    served_with(node, request, "b")
}

/// The same for a client that reads this key.
fn served_with(node: &Node, request: &[&str], key: &str) -> usize {
    let (mut slow, mut other) = (node.connect(), node.connect());
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    other.run(&format!("SET {key} 1")).expect_ok();
    thread::scope(|scope| {
        scope.spawn(|| {
            // The other is at it when this begins.
            thread::sleep(Duration::from_millis(20));
            begun.store(true, Ordering::Release);
            slow.call(request);
            over.store(true, Ordering::Release);
        });
        let mut served = 0;
        while !over.load(Ordering::Acquire) {
            let counts = begun.load(Ordering::Acquire);
            other.run(&format!("GET {key}"));
            served += usize::from(counts);
        }
        served
    })
}

/// Whether a request of a client of this name runs in the background, or waits there.
fn is_in_background(other: &mut Connection, name: &str) -> bool {
    let wanted = [format!(" name={name} "), " background=1".to_owned()];
    let list = other.run("CLIENT LIST").text();
    list.lines().any(|line| wanted.iter().all(|part| line.contains(part)))
}

fn goes_to_background(other: &mut Connection, name: &str) {
    eventually("it is in the background", || is_in_background(other, name).then_some(()));
}

/// A client with a name.
fn named(node: &Node, name: &str) -> Connection {
    let mut connection = node.connect();
    connection.run(&format!("CLIENT SETNAME {name}")).expect_ok();
    connection
}

/// A script that nobody knows yet keeps the only worker, and another thread serves its clients meanwhile.
#[test]
fn a_worker_that_one_command_keeps_is_relieved() {
    let (with, without) = (server(""), server("--long-command-threads 0"));
    let mut round = 0;
    let mut is_seen = || {
        round += 1;
        let script = format!("{SPINS} -- {round}");
        let request = ["EVAL", &script, "1", "k", "0.3"];
        // Some may be served before it is read.
        served_during(&with, &request) > 10 + 2 * served_during(&without, &request)
    };
    assert!((0..5).any(|_| is_seen()));
}

/// Clients of a worker that one command keeps, who wait for messages or want what it holds, and new ones.
#[test]
fn every_client_of_a_kept_worker_is_served() {
    let node = server("");
    let (mut slow, mut listener, mut other) = (node.connect(), node.connect(), node.connect());
    listener.run("SUBSCRIBE c");
    let served = |round: usize| {
        slow.send(&["EVAL", &format!("{SPINS} -- {round}"), "1", "k", "0.5"]).expect("a connection");
        thread::sleep(Duration::from_millis(50));
        let mut same = named(&node, "same");
        same.send(&["GET", "k"]).expect("a connection");
        other.run("PUBLISH c m");
        assert_eq!(listener.read().expect("a message").items().len(), 3);
        while !slow.has_unread_data() && !is_in_background(&mut other, "same") {}
        other.run("SET b 1").expect_ok();
        let first = !slow.has_unread_data();
        let count = slow.read().expect("a reply").int();
        first && same.read().expect("a reply") == Value::Bulk(count.to_string().into_bytes())
    };
    assert!((0..5).any(served));
}

/// A client that waits for a key on a worker that one command keeps is served elsewhere, or gives up there in time.
#[test]
fn who_waits_for_a_key_on_a_kept_worker_is_served() {
    let node = server("");
    let (mut slow, mut other, mut popper, mut gives_up) =
        (node.connect(), node.connect(), node.connect(), node.connect());
    let served = |round: usize| {
        popper.send(&["BLPOP", "queue", "0"]).expect("a connection");
        gives_up.send(&["BLPOP", "nothing", "0.1"]).expect("a connection");
        eventually("they wait", || node.info("clients", "blocked_clients").filter(|count| count == "2"));
        // Words that are sent meanwhile are run when that is over.
        popper.send(&["ECHO", "behind"]).expect("a connection");
        slow.send(&["EVAL", &format!("{SPINS} -- {round}"), "1", "k", "0.5"]).expect("a connection");
        thread::sleep(Duration::from_millis(50));
        assert_eq!(other.run("RPUSH queue a").int(), 1);
        assert_eq!(popper.read().expect("a reply").items()[1], Value::Bulk(b"a".to_vec()));
        assert_eq!(popper.read().expect("a reply"), Value::Bulk(b"behind".to_vec()));
        assert_eq!(gives_up.read().expect("a reply"), Value::NullArray);
        let first = !slow.has_unread_data();
        slow.read().expect("a reply");
        first
    };
    assert!((0..5).any(served));
    // One that leaves while it waits waits no more.
    popper.send(&["BLPOP", "queue", "0"]).expect("a connection");
    popper.send(&["ECHO", "behind"]).expect("a connection");
    eventually("it waits", || node.info("clients", "blocked_clients").filter(|count| count == "1"));
    drop(popper);
    eventually("nobody waits", || node.info("clients", "blocked_clients").filter(|count| count == "0"));
}

/// Where a command runs is shown while it does, and afterwards.
#[test]
fn it_is_seen_where_a_command_ran() {
    let node = server("--latency-monitor-threshold 20 --slowlog-log-slower-than 20000");
    let (mut slow, mut other) = (named(&node, "slow"), node.connect());
    for (place, has_event) in [("worker", false), ("background", true)] {
        spin(&mut slow, "k", "0.3");
        if has_event {
            goes_to_background(&mut other, "slow");
        }
        slow.read().expect("a reply");
        let entry = other.run("SLOWLOG GET 1 WITHTHREAD").items()[0].items().to_vec();
        assert_eq!(entry[6], Value::Bulk(place.into()));
        let events = other.run("LATENCY LATEST").items().to_vec();
        let named = |name: &str| events.iter().any(|event| event.items()[0].text() == name);
        assert!(named("command") && named("background-command") == has_event, "{events:?}");
    }
    assert!(!other.run("CLIENT LIST").text().contains("background=1"));
}

/// Of many places a search takes long only if its area has many.
#[test]
fn a_search_is_long_by_the_places_in_its_area() {
    let node = server("--slowlog-log-slower-than 0");
    let mut connection = node.connect();
    let fill = "for i = 1, 30000 do redis.call('GEOADD', KEYS[1], i % 173 / 173, i / 30000, i) end";
    connection.call(&["EVAL", fill, "1", "places"]);
    for (line, place) in [
        ("GEOSEARCH places FROMLONLAT 0.5 0.5 BYRADIUS 900 km", "background"),
        ("GEOSEARCH places FROMMEMBER 15000 BYBOX 900 900 km", "background"),
        ("GEOSEARCH places FROMLONLAT 0.5 0.5 BYRADIUS 900 km COUNT 5 ANY", "worker"),
        ("GEOSEARCH places FROMLONLAT 0.5 0.5 BYRADIUS 500 m", "worker"),
        ("GEORADIUS places 0.5 0.5 900 km COUNT 10", "background"),
        ("GEORADIUSBYMEMBER places 15000 300 m", "worker"),
        ("GEOSEARCHSTORE {places}near places FROMLONLAT 0.5 0.5 BYRADIUS 900 km", "background"),
    ] {
        connection.run(line);
        let entry = connection.run("SLOWLOG GET 1 WITHTHREAD").items()[0].items().to_vec();
        assert_eq!(entry[6], Value::Bulk(place.into()), "{line}");
    }
}

/// The waits for what others hold are counted and shown.
#[test]
fn it_is_seen_how_long_commands_waited_for_slots() {
    let node = server("--latency-monitor-threshold 20");
    let (mut slow, mut other) = (named(&node, "slow"), node.connect());
    let mut is_seen = || {
        spin(&mut slow, "k", "0.2");
        // On a machine that does other things it may be over already.
        thread::sleep(Duration::from_millis(20));
        other.run("GET k");
        slow.read().expect("a reply");
        let events = other.run("LATENCY LATEST").items().to_vec();
        events.iter().any(|event| event.items()[0].text() == "slot-wait")
    };
    assert!((0..5).any(|_| is_seen()));
    let figure = |name| node.info("stats", name).and_then(|value| value.parse::<u64>().ok());
    assert!(figure("slot_waits") >= Some(1) && figure("slot_longest_wait_usec") >= Some(20_000));
    other.run("CONFIG RESETSTAT").expect_ok();
    assert_eq!(figure("slot_longest_wait_usec"), Some(0));
}

/// With no background worker the only worker sorts, and answers nobody meanwhile.
#[test]
fn another_client_of_the_same_worker_is_served_meanwhile() {
    let (with, without) = (server(""), server("--long-command-threads 0"));
    for node in [&with, &without] {
        fill(&mut node.connect(), "list");
    }
    let request = ["SORT", "list", "ALPHA", "LIMIT", "0", "1"];
    // Some may be served before it is read.
    let is_seen = || served_during(&with, &request) > 10 + 2 * served_during(&without, &request);
    assert!((0..5).any(|_| is_seen()));
}

/// Replies come in the order of their requests, on both ways.
#[test]
fn a_pipeline_keeps_its_order() {
    let lines = [
        "SET a 1",
        "LRANGE list 0 -1",
        "GET a",
        "MULTI",
        "INCR a",
        "LRANGE list 0 -1",
        "INCR a",
        "EXEC",
        "GET a",
        "CLIENT REPLY SKIP",
        "LRANGE list 0 -1",
        "PING",
        "SORT list LIMIT 0 1",
        "SELECT 1",
        "GET a",
        "SELECT 0",
        "KEYS a",
        "DUMP nothing",
        "COPY list other",
        "LLEN other",
        "ASKING",
        "LINDEX list 0",
        "SMEMBERS a",
        "NOSUCH",
        "LLEN",
        "DISCARD",
        "EVAL return(1) 0",
        "SINTER list",
        "XRANGE nothing - +",
        "ZRANGEBYSCORE scores -inf (5 LIMIT 1 3",
        "ZREVRANGEBYSCORE scores +inf 199990 WITHSCORES",
        "ZRANGE scores (17 +inf BYSCORE LIMIT 0 2",
        "ZRANGE scores 5 x",
        "ZRANGESTORE best scores -3 -1",
        "ZREMRANGEBYSCORE scores -inf 199000",
        "ZCARD scores",
        "SRANDMEMBER nothing -5",
        "LTRIM list -3 -1",
        "LINSERT list AFTER x y",
        "LRANGE list 0 -1",
        "ECHO last",
    ];
    let replies = ["--long-command-threads 0", "", "--long-command-threshold 0"].map(|options| {
        let node = server(options);
        let mut client = node.connect();
        fill(&mut client, "list");
        client.run("SORT list ALPHA LIMIT 0 1");
        let script = "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], i, i) end";
        client.call(&["EVAL", script, "1", "scores", &ELEMENTS.to_string()]);
        let words = lines.map(|line| line.split(' ').collect::<Vec<_>>());
        client.send_all(&words).expect("a connection");
        // CLIENT REPLY SKIP and the command behind it have none.
        (0..lines.len() - 2).map(|_| client.read().expect("a reply")).collect::<Vec<_>>()
    });
    for (number, reply) in replies[0].iter().enumerate() {
        for other in &replies[1..] {
            assert!(*reply == other[number], "reply {number}");
        }
    }
    assert_eq!(replies[0].last(), Some(&Value::Bulk(b"last".to_vec())));
}

/// A command that holds its slot for long is not waited for on the worker, whatever the other client's command is.
#[test]
fn who_wants_the_same_key_waits_alone() {
    let node = server("");
    let (mut slow, mut same, mut other) = (named(&node, "slow"), node.connect(), node.connect());
    // Known to be long once it has run.
    spin(&mut slow, "k", "0.1");
    slow.read().expect("a reply");
    // On a machine that does other things the others may come too late.
    let mut are_served_first = |round: i64| {
        spin(&mut slow, "k", "0.5");
        goes_to_background(&mut other, "slow");
        same.send(&["GET", "k"]).expect("a connection");
        for _ in 0..10 {
            other.run("SET other 1").expect_ok();
        }
        let first = !slow.has_unread_data();
        assert_eq!(slow.read().expect("a reply"), Value::Int(round));
        let seen = same.read().expect("a reply");
        first && seen == Value::Bulk(round.to_string().into_bytes())
    };
    assert!((2..7).any(&mut are_served_first));
}

/// A client that is ended while its command runs in the background is gone when that has run, and what it sent behind it
/// is not run.
#[test]
fn a_client_that_is_killed_meanwhile_does_nothing_more() {
    let node = server("--long-command-threshold 0");
    let (mut slow, mut other) = (node.connect(), node.connect());
    fill(&mut slow, "list");
    let id = slow.run("CLIENT ID").int();
    slow.send(&["SORT", "list", "ALPHA", "STORE", "sorted"]).expect("a connection");
    thread::sleep(Duration::from_millis(20));
    slow.send(&["SET", "after", "1"]).expect("a connection");
    other.run(&format!("CLIENT KILL ID {id}"));
    assert_eq!(other.run("EXISTS after"), Value::Int(0));
    slow.read_to_end().expect("it is closed");
    assert_eq!(other.run("EXISTS after"), Value::Int(0));
}

/// Keeps a core busy for so many seconds, and holds the slot of its key meanwhile.
const SPINS: &str =
    "local over = os.clock() + ARGV[1] while os.clock() < over do end return redis.call('INCR', KEYS[1])";

/// Has a client run a script in the background for so long.
fn spin(connection: &mut Connection, key: &str, seconds: &str) {
    connection.send(&["EVAL", SPINS, "1", key, seconds]).expect("a connection");
}

/// It is not idle, neither while it runs nor while it waits for others to end.
#[test]
fn a_client_is_not_closed_as_idle_meanwhile() {
    let node = server("--long-command-threshold 0 --timeout 1");
    let (mut first, mut second) = (node.connect(), node.connect());
    spin(&mut first, "k", "1.5");
    thread::sleep(Duration::from_millis(50));
    spin(&mut second, "k", "0.01");
    assert_eq!(first.read().expect("a reply"), Value::Int(1));
    assert_eq!(second.read().expect("a reply"), Value::Int(2));
}

/// A waiting client, its timeout and the one that serves it go by the background too.
#[test]
fn a_blocked_client_is_served_from_the_background() {
    let node = server("--long-command-threshold 0");
    let (mut waits, mut other) = (node.connect(), node.connect());
    assert_eq!(waits.run("BLPOP nothing 0.05"), Value::NullArray);
    waits.send(&["BLPOP", "l", "0"]).expect("a connection");
    eventually("it waits", || node.info("clients", "blocked_clients").filter(|count| count == "1"));
    assert_eq!(other.run("RPUSH l a").int(), 1);
    assert_eq!(waits.read().expect("a reply").items()[1], Value::Bulk(b"a".to_vec()));
}

/// A client that watched a key, and queued commands, finds both as they were.
#[test]
fn a_transaction_goes_whole() {
    let node = server("--long-command-threshold 0");
    let (mut client, mut other) = (node.connect(), node.connect());
    for (changes, reply) in [(false, "OK"), (true, "")] {
        client.run("WATCH k").expect_ok();
        client.run("MULTI").expect_ok();
        assert_eq!(client.run("SET k 1"), Value::Simple("QUEUED".into()));
        if changes {
            other.run("SET k 2").expect_ok();
        }
        match client.run("EXEC") {
            Value::Array(replies) => assert_eq!(replies, [Value::Simple(reply.into())]),
            none => assert!(changes, "{none:?}"),
        }
    }
}

/// Monitors see each command once, in the order in which they ran, and not when its connection went away.
#[test]
fn a_monitor_sees_each_command_once() {
    let node = server("--long-command-threshold 0");
    let (mut monitor, mut client) = (node.connect(), node.connect());
    monitor.run("MONITOR").expect_ok();
    client.run_all(&["SET k 1", "GET k", "MULTI", "INCR k", "EXEC", "GET k"]);
    let words = ["\"SET\" \"k\"", "\"GET\"", "\"MULTI\"", "\"INCR\"", "\"EXEC\"", "\"GET\""];
    for word in words {
        let line = monitor.read().expect("a line").text();
        assert!(line.contains(word), "{word}: {line}");
    }
}

/// CLIENT PAUSE holds what comes in the background, too, and FLUSHALL waits for what runs there.
#[test]
fn a_pause_and_a_flush_hold_for_the_background() {
    let node = server("--long-command-threshold 0");
    let (mut slow, mut other) = (node.connect(), node.connect());
    other.run("CLIENT PAUSE 100000 WRITE").expect_ok();
    slow.send(&["SET", "k", "1"]).expect("a connection");
    assert_eq!(other.run("EXISTS k").int(), 0);
    assert!(!slow.has_unread_data());
    other.run("CLIENT UNPAUSE").expect_ok();
    slow.read().expect("a reply").expect_ok();
    spin(&mut slow, "k", "0.3");
    thread::sleep(Duration::from_millis(50));
    other.run("FLUSHALL").expect_ok();
    assert_eq!(slow.read().expect("a reply"), Value::Int(2));
    assert_eq!(other.run("DBSIZE").int(), 0);
}

/// A client that loses its user while its request waits in the background does not run it.
#[test]
fn a_user_that_is_deleted_meanwhile_runs_nothing_more() {
    let node = server("--long-command-threads 1");
    let (mut slow, mut gone, mut other) = (named(&node, "slow"), node.connect(), node.connect());
    other.run("ACL SETUSER u on nopass ~* +@all").expect_ok();
    gone.run("AUTH u x").expect_ok();
    gone.run("CLIENT SETNAME gone").expect_ok();
    spin(&mut slow, "k", "0.05");
    slow.read().expect("a reply");
    spin(&mut slow, "k", "0.5");
    goes_to_background(&mut other, "slow");
    // It is there and may not have begun.
    thread::sleep(Duration::from_millis(50));
    // It waits behind the other.
    gone.send(&["SET", "k", "gone"]).expect("a connection");
    goes_to_background(&mut other, "gone");
    assert_eq!(other.run("ACL DELUSER u").int(), 1);
    gone.read_to_end().expect("it is closed");
    assert_eq!(slow.read().expect("a reply"), Value::Int(2));
    assert_eq!(other.run("GET k"), Value::Bulk(b"2".to_vec()));
}

/// A user that loses a right while its command runs in the background has it for that command and no more.
#[test]
fn a_right_that_is_taken_away_meanwhile_is_gone_with_the_next_command() {
    let node = server("");
    let (mut slow, mut other) = (named(&node, "slow"), node.connect());
    other.run("ACL SETUSER u on nopass ~* +@all").expect_ok();
    slow.run("AUTH u x").expect_ok();
    spin(&mut slow, "k", "0.05");
    assert_eq!(slow.read().expect("a reply"), Value::Int(1));
    spin(&mut slow, "k", "0.5");
    goes_to_background(&mut other, "slow");
    thread::sleep(Duration::from_millis(50));
    spin(&mut slow, "k", "0.01");
    other.run("ACL SETUSER u -eval").expect_ok();
    assert_eq!(slow.read().expect("a reply"), Value::Int(2));
    let refused = slow.read().expect("a reply");
    assert!(matches!(&refused, Value::Error(text) if text.starts_with("NOPERM")), "{refused:?}");
    assert_eq!(other.run("GET k"), Value::Bulk(b"2".to_vec()));
}

/// The log has the effects in the order of the replies.
#[test]
fn a_replica_follows_what_ran_in_the_background() {
    let master = server("--long-command-threshold 0");
    let replica = Node::start(&Program::redoubt(), "--save  --io-threads 1");
    let (host, port) = (master.ip().to_string(), master.address());
    let port = port.rsplit(':').next().expect("a port").to_owned();
    replica.connect().call(&["REPLICAOF", &host, &port]).expect_ok();
    let mut clients = [master.connect(), master.connect()];
    for round in 0..100 {
        for client in &mut clients {
            client.send(&["APPEND", "k", &format!("{round},")]).expect("a connection");
        }
        for client in &mut clients {
            client.read().expect("a reply");
        }
    }
    let whole = master.run("GET k");
    eventually("the replica has all of it", || (replica.run("GET k") == whole).then_some(()));
}

/// A command that has begun in the background when the server is told to stop, or to hand over, ends before that: a
/// change that was answered is kept.
#[test]
fn a_stop_and_a_failover_find_a_command_in_the_background() {
    let mut node = server("--long-command-threshold 0 --appendonly yes");
    let mut slow = node.connect();
    spin(&mut slow, "k", "0.3");
    thread::sleep(Duration::from_millis(50));
    assert!(node.terminate().success());
    let answered = slow.read().is_ok_and(|reply| reply == Value::Int(1));
    node.launch();
    let kept = node.run("GET k");
    assert!(!answered || kept != Value::NullBulk, "answered and lost");

    let master = server("--long-command-threshold 0");
    let replica = server(&format!("--long-command-threshold 0 --replicaof 127.0.0.1 {}", master.port));
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    let mut slow = master.connect();
    spin(&mut slow, "k", "0.3");
    thread::sleep(Duration::from_millis(50));
    master.run(&format!("FAILOVER TO 127.0.0.1 {}", replica.port)).expect_ok();
    assert_eq!(slow.read().expect("a reply"), Value::Int(1));
    eventually("they have changed places", || {
        (replica.info("replication", "role")? == "master" && master.info("replication", "role")? == "slave")
            .then_some(())
    });
    for node in [&replica, &master] {
        assert_ne!(node.run("GET k"), Value::NullBulk, "what was answered is at both");
    }
}

/// A command that wants all slots waits for one that stays locked without holding the others: a cut, a flush, a walk.
#[test]
fn who_wants_all_slots_makes_nobody_wait() {
    let node = server("--enable-debug-command yes");
    let (mut slow, mut other) = (node.connect(), node.connect());
    // Known to be long from now on, so it runs in the background; with a comment nobody knows it.
    spin(&mut slow, "k", "0.1");
    slow.read().expect("a reply");
    let mut are_served = |request: &str, comment: &str| {
        let script = format!("{SPINS}{comment}");
        slow.send(&["EVAL", &script, "1", "k", "0.5"]).expect("a connection");
        thread::sleep(Duration::from_millis(20));
        let mut wants = node.connect();
        wants.send(&request.split_whitespace().collect::<Vec<_>>()).expect("a connection");
        for key in 0..100 {
            other.run(&format!("SET key:{key} 1")).expect_ok();
        }
        let first = !slow.has_unread_data();
        assert!(!slow.read().expect("a reply").is_error(""));
        let reply = wants.read().expect("a reply");
        assert!(!reply.is_error(""), "{request}: {reply:?}");
        eventually("nothing is saved", || {
            let saves = ["rdb_bgsave_in_progress", "aof_rewrite_in_progress"];
            saves.iter().all(|field| node.info("persistence", field).as_deref() == Some("0")).then_some(())
        });
        first
    };
    for request in
        ["BGSAVE", "BGREWRITEAOF", "KEYS *", "MEMORY STATS", "FUNCTION FLUSH", "SWAPDB 0 1", "FLUSHALL"]
    {
        // On a machine that does other things the others may come too late.
        assert!((0..5).any(|_| are_served(request, "")), "{request}");
        assert!((0..5).any(|round| are_served(request, &format!(" -- {request} {round}"))), "{request}");
    }
}

/// KEYS tells of one moment: a key that is renamed all the time is there once, beside few keys and many.
#[test]
fn keys_are_those_of_one_moment() {
    let node = Node::start(&Program::redoubt(), "--save  --io-threads 2");
    for count in ["0", "3000"] {
        let (mut renames, mut asks) = (node.connect(), node.connect());
        let fill = "for i = 1, ARGV[1] do redis.call('SET', 'key:' .. i, i) end";
        asks.call(&["EVAL", fill, "0", count]);
        asks.run("SET here 1").expect_ok();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    renames.run("RENAME here there").expect_ok();
                    renames.run("RENAME there here").expect_ok();
                }
            });
            let seen: Vec<usize> = (0..2000).map(|_| asks.run("KEYS *here").items().len()).collect();
            is_over.store(true, Ordering::Release);
            assert_eq!(seen, [1; 2000], "beside {count} keys");
        });
    }
}

/// Commands that only read a large value let others have its slot meanwhile.
#[test]
fn a_slot_is_free_while_its_large_value_is_read() {
    let node = server("");
    let mut connection = node.connect();
    fill(&mut connection, "{k}list");
    connection.call(&["SORT", "{k}list", "ALPHA", "STORE", "{k}texts"]);
    connection.call(&[
        "EVAL",
        "for i = 1, 300000 do redis.call('ZADD', KEYS[1], i, i) end",
        "1",
        "{k}scored",
    ]);
    for request in [
        &["SORT", "{k}list", "ALPHA"][..],
        &["SORT", "{k}texts", "ALPHA"],
        &["ZRANGE", "{k}scored", "0", "-1"],
        &["ZUNION", "2", "{k}scored", "{k}none"],
    ] {
        // On a machine that does other things the other may come too late.
        assert!((0..5).any(|_| served_with(&node, request, "{k}other") > 10), "{request:?}");
    }
}

/// A value of some kilobytes that is kept in one piece is not read in parts: nothing of it would be.
#[test]
fn a_packed_value_is_read_in_the_background_too() {
    let node = server("--long-command-threshold 0");
    let mut connection = node.connect();
    let fill = "for i = 1, 120 do redis.call('HSET', KEYS[1], i, string.rep('x', 60)) \
                redis.call('SADD', KEYS[2], i .. string.rep('x', 60)) \
                redis.call('RPUSH', KEYS[3], string.rep('x', 60)) \
                redis.call('ZADD', KEYS[4], i, i .. string.rep('x', 60)) end \
                redis.call('XADD', KEYS[5], '1-1', 'field', 'value')";
    connection.call(&["EVAL", fill, "5", "hash", "set", "list", "scored", "stream"]);
    for (line, count) in [
        ("HGETALL hash", 240),
        ("HKEYS hash", 120),
        ("SMEMBERS set", 120),
        ("LRANGE list 0 -1", 120),
        ("SORT set ALPHA", 120),
        ("SORT list ALPHA", 120),
        ("ZRANGE scored 0 -1", 120),
        ("SUNION set none", 120),
        ("ZUNION 3 scored none set", 120),
        ("XRANGE stream - +", 1),
    ] {
        assert_eq!(connection.run(line).items().len(), count, "{line}");
    }
}

/// Whatever is added first in the background: small inputs, or what lies in other slots.
#[test]
fn a_union_is_the_same_in_the_background() {
    let nodes = ["--long-command-threshold 0", "--long-command-threads 0"].map(server);
    let mut both = nodes.each_ref().map(Node::connect);
    let fill = "for i = 1, 3000 do redis.call('ZADD', KEYS[1], i / 7, i) redis.call('ZADD', KEYS[2], i / 3, i * 2) \
                redis.call('SADD', KEYS[3], i * 3) redis.call('ZADD', KEYS[4], 1e16, i % 50) end";
    for request in [
        vec!["EVAL", fill, "4", "a", "b", "c", "few"],
        vec!["ZUNION", "2", "a", "b", "WITHSCORES"],
        vec!["ZUNION", "5", "a", "few", "b", "none", "c", "WITHSCORES"],
        vec!["ZUNION", "3", "a", "c", "a", "WEIGHTS", "0.1", "0.2", "0.3", "WITHSCORES"],
        vec!["ZUNION", "4", "c", "b", "few", "a", "WEIGHTS", "-1", "inf", "3", "0.7", "WITHSCORES"],
        vec!["ZUNION", "3", "b", "c", "a", "AGGREGATE", "MIN", "WITHSCORES"],
        vec!["ZRANGE", "a", "(5", "300", "BYSCORE", "LIMIT", "3", "900", "WITHSCORES"],
        vec!["ZREVRANGE", "b", "100", "-100"],
    ] {
        let [here, there] = both.each_mut().map(|connection| connection.call(&request));
        assert_eq!(here, there, "{request:?}");
    }
}

/// The number that an entry of the stream has as its id and its field's value.
fn entry_number(entry: &Value) -> i64 {
    let [id, fields] = entry.items() else { panic!("an entry: {entry:?}") };
    let number = fields.items()[1].text();
    assert_eq!(id.text(), format!("{number}-1"));
    number.parse().expect("a number")
}

/// Each value has `len` numbers that follow one another.
fn check_values_of_one_moment(reads: &mut Connection, len: usize) {
    let numbers = |reply: Value| -> Vec<i64> {
        let parse = |value: &Value| value.text().parse().expect("a number");
        reply.items().iter().map(parse).collect()
    };
    let are_consecutive =
        |numbers: &[i64]| numbers.len() == len && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1);
    assert!(are_consecutive(&numbers(reads.run("LRANGE list 0 -1"))));
    let part = numbers(reads.run("LRANGE list 5000 -5001"));
    assert_eq!((part.len(), part[len - 10_001] - part[0]), (len - 10_000, len as i64 - 10_001));
    assert!(are_consecutive(&numbers(reads.run("SORT list"))));
    let mut members = numbers(reads.run("SMEMBERS set"));
    members.sort_unstable();
    assert!(are_consecutive(&members));
    assert!(are_consecutive(&numbers(reads.run("SORT set"))));
    assert_eq!(numbers(reads.run("HVALS hash")).iter().sum::<i64>(), len as i64);
    assert!(are_consecutive(&numbers(reads.run("ZRANGE scored 0 -1"))));
    let mut falling = numbers(reads.run("ZRANGE scored +inf -inf BYSCORE REV LIMIT 0 100000"));
    falling.reverse();
    assert!(are_consecutive(&falling));
    let entries = reads.run("XRANGE stream - +").items().iter().map(entry_number).collect::<Vec<_>>();
    assert!(are_consecutive(&entries));
    // The small set has 0, which no other has.
    let mut members = numbers(reads.run("SUNION small set"));
    members.sort_unstable();
    assert!(members.remove(0) == 0 && are_consecutive(&members));
    let mut weighed = numbers(reads.run("ZUNION 3 scored small set WEIGHTS 1 1 3 AGGREGATE MAX"));
    weighed.sort_unstable();
    assert!(weighed.remove(0) == 0 && are_consecutive(&weighed));
}

/// Such a command tells of one moment, whatever others write meanwhile.
#[test]
fn a_large_value_is_read_as_it_is_at_one_moment() {
    const LEN: usize = 20_000;
    let node = server("--long-command-threshold 0 --io-threads 2");
    let (mut reads, mut writes) = (node.connect(), node.connect());
    let fill = "for i = 1, ARGV[1] do redis.call('RPUSH', KEYS[1], i) redis.call('SADD', KEYS[2], i) \
                redis.call('HSET', KEYS[3], i, 1) redis.call('ZADD', KEYS[4], i, i) \
                redis.call('XADD', KEYS[5], i .. '-1', 'n', i) end \
                redis.call('SADD', KEYS[6], 0)";
    reads.call(&["EVAL", fill, "6", "list", "set", "hash", "scored", "stream", "small", &LEN.to_string()]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for next in LEN + 1.. {
                let first = next - LEN;
                writes.run("MULTI").expect_ok();
                for line in [
                    format!("RPUSH list {next}"),
                    "LPOP list".to_owned(),
                    format!("SADD set {next}"),
                    format!("SREM set {first}"),
                    format!("HINCRBY hash {} 1", next % LEN + 1),
                    format!("HINCRBY hash {} -1", first * 7 % LEN + 1),
                    format!("ZADD scored {next} {next}"),
                    format!("ZREM scored {first}"),
                    format!("XADD stream MAXLEN = {LEN} {next}-1 n {next}"),
                ] {
                    writes.run(&line);
                }
                writes.run("EXEC");
                if is_over.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        for _ in 0..20 {
            check_values_of_one_moment(&mut reads, LEN);
        }
        is_over.store(true, Ordering::Release);
    });
}
