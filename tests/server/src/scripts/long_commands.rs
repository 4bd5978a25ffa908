//! Tests of slow commands: they run on a background worker, and other clients wait only for the keys in use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use harness::{Connection, Node, Program, Reply, eventually};

const ELEMENT_COUNT: usize = 200_000;

fn start_server(options: &str) -> Node {
    Node::start(&Program::redoubt(), &format!("--save  --io-threads 1 --busy-reply-threshold 0 {options}"))
}

/// Creates a list that takes long to sort.
fn fill_list(connection: &mut Connection, key: &str) {
    let script = "for i = 1, ARGV[1] do redis.call('RPUSH', KEYS[1], i * 7919 % ARGV[1]) end";
    connection.call(&["EVAL", script, "1", key, &ELEMENT_COUNT.to_string()]);
}

/// Counts how often another client, which reads and writes `key`, is served while `request` runs.
fn count_replies_during(node: &Node, request: &[&str], key: &str) -> usize {
    let (mut slow, mut other) = (node.connect(), node.connect());
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    other.call_line(&format!("SET {key} 1")).expect_ok();
    thread::scope(|scope| {
        scope.spawn(|| {
            // The pause lets the other client start first.
            thread::sleep(Duration::from_millis(20));
            begun.store(true, Ordering::Release);
            slow.call(request);
            over.store(true, Ordering::Release);
        });
        let mut served = 0;
        while !over.load(Ordering::Acquire) {
            let counts = begun.load(Ordering::Acquire);
            other.call_line(&format!("GET {key}"));
            served += usize::from(counts);
        }
        served
    })
}

/// Whether a request of the client with this name runs or waits in the background.
fn is_in_background(other: &mut Connection, name: &str) -> bool {
    let wanted = [format!(" name={name} "), " background=1".to_owned()];
    let list = other.call_line("CLIENT LIST").text();
    list.lines().any(|line| wanted.iter().all(|part| line.contains(part)))
}

fn wait_until_in_background(other: &mut Connection, name: &str) {
    eventually("the request is in the background", || is_in_background(other, name).then_some(()));
}

/// Opens a connection and sets its client name.
fn connect_with_name(node: &Node, name: &str) -> Connection {
    let mut connection = node.connect();
    connection.call_line(&format!("CLIENT SETNAME {name}")).expect_ok();
    connection
}

/// A script that holds the slot of the key `k` until [`Self::end`] is called.
struct EndlessScript {
    script_connection: Connection,
    /// A client that waits for the key, and whose waiting shows that the script has begun.
    waiting_client: Connection,
    control_connection: Connection,
}

impl EndlessScript {
    /// The script's text. It runs until a client subscribes to `end`.
    const SCRIPT_TEXT: &str = "local over = os.clock() + ARGV[1] \
                        while os.clock() < over and redis.call('PUBSUB', 'NUMSUB', 'end')[2] == 0 do end \
                        return redis.call('GET', KEYS[1])";

    /// Runs the script for a short time, after which its statistics classify it as slow.
    fn classify_as_slow(node: &Node) {
        node.connect().call(&["EVAL", Self::SCRIPT_TEXT, "1", "k", "0.1"]);
    }

    /// Starts the script and returns once the script holds the key. A different `comment` makes it a new script, for
    /// which the server has no statistics.
    fn start(node: &Node, comment: &str) -> Self {
        let text = format!("{}{comment}", Self::SCRIPT_TEXT);
        let (mut script, control) = (node.connect(), node.connect());
        script.send(&["EVAL", &text, "1", "k", "100"]).expect("a connection");
        let mut started = Self {
            script_connection: script,
            waiting_client: connect_with_name(node, "waiting"),
            control_connection: control,
        };
        while !started.is_blocking_readers() {}
        started
    }

    /// Sends a GET of the key, which is answered at once if the script has not begun.
    fn is_blocking_readers(&mut self) -> bool {
        self.waiting_client.send(&["GET", "k"]).expect("a connection");
        let Self { waiting_client: waiting, control_connection: control, .. } = self;
        let waits = eventually("the reader waits or is served", || {
            if waiting.has_unread_data() {
                return Some(false);
            }
            is_in_background(control, "waiting").then_some(true)
        });
        if !waits {
            self.waiting_client.read().expect("a reply");
        }
        waits
    }

    /// Ends the script, which must still be running. Returns the reply of the client that waited for the key.
    fn end(mut self) -> Reply {
        assert!(!self.script_connection.has_unread_data() && !self.waiting_client.has_unread_data());
        self.control_connection.call_line("SUBSCRIBE end");
        let result = self.script_connection.read().expect("a reply");
        self.control_connection.call_line("UNSUBSCRIBE end");
        let reply = self.waiting_client.read().expect("a reply");
        assert_eq!(result, reply);
        reply
    }
}

/// A new script has no statistics, so it blocks the only worker. A spare worker then serves the other clients:
/// subscribers, clients with other keys, and new clients.
#[test]
fn all_clients_of_a_blocked_worker_are_served() {
    let node = start_server("");
    let (mut listener, mut other) = (node.connect(), node.connect());
    listener.call_line("SUBSCRIBE c");
    let script = EndlessScript::start(&node, "");
    other.call_line("PUBLISH c m");
    assert_eq!(listener.read().expect("a message").items().len(), 3);
    other.call_line("SET b 1").expect_ok();
    assert_eq!(node.connect().call_line("GET b"), Reply::Bulk(b"1".to_vec()));
    assert_eq!(script.end(), Reply::NullBulk);
}

/// A client in BLPOP on a blocked worker is served by another worker, and it times out on time.
#[test]
fn blocked_clients_of_a_blocked_worker_are_served() {
    let node = start_server("");
    let (mut other, mut popper, mut gives_up) = (node.connect(), node.connect(), node.connect());
    popper.send(&["BLPOP", "queue", "0"]).expect("a connection");
    gives_up.send(&["BLPOP", "nothing", "1"]).expect("a connection");
    eventually("both clients are blocked", || {
        node.info("clients", "blocked_clients").filter(|count| count == "2")
    });
    // Commands that the client sends while BLPOP waits must run after the wait.
    popper.send(&["ECHO", "behind"]).expect("a connection");
    let script = EndlessScript::start(&node, "");
    assert_eq!(other.call_line("RPUSH queue a").int(), 1);
    assert_eq!(popper.read().expect("a reply").items()[1], Reply::Bulk(b"a".to_vec()));
    assert_eq!(popper.read().expect("a reply"), Reply::Bulk(b"behind".to_vec()));
    assert_eq!(gives_up.read().expect("a reply"), Reply::NullArray);
    script.end();
    // A client that disconnects during its wait is no longer counted as blocked.
    popper.send(&["BLPOP", "queue", "0"]).expect("a connection");
    popper.send(&["ECHO", "behind"]).expect("a connection");
    eventually("the client is blocked", || {
        node.info("clients", "blocked_clients").filter(|count| count == "1")
    });
    drop(popper);
    eventually("no client is blocked", || {
        node.info("clients", "blocked_clients").filter(|count| count == "0")
    });
}

/// The slow log and the latency monitor show where a command ran.
#[test]
fn slowlog_and_latency_monitor_show_background_commands() {
    let node = start_server("--latency-monitor-threshold 20 --slowlog-log-slower-than 20000");
    let (mut slow, mut other) = (connect_with_name(&node, "slow"), node.connect());
    for (place, has_event) in [("worker", false), ("background", true)] {
        send_spin_script(&mut slow, "k", "0.3");
        if has_event {
            wait_until_in_background(&mut other, "slow");
        }
        slow.read().expect("a reply");
        let entry = other.call_line("SLOWLOG GET 1 WITHTHREAD").items()[0].items().to_vec();
        assert_eq!(entry[6], Reply::Bulk(place.into()));
        let events = other.call_line("LATENCY LATEST").items().to_vec();
        let named = |name: &str| events.iter().any(|event| event.items()[0].text() == name);
        assert!(named("command") && named("background-command") == has_event, "{events:?}");
    }
    assert!(!other.call_line("CLIENT LIST").text().contains("background=1"));
}

/// A search is slow only if its area contains many members, however large the key is.
#[test]
fn geo_search_with_many_members_in_its_area_runs_in_background() {
    let node = start_server("--slowlog-log-slower-than 0");
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
        connection.call_line(line);
        let entry = connection.call_line("SLOWLOG GET 1 WITHTHREAD").items()[0].items().to_vec();
        assert_eq!(entry[6], Reply::Bulk(place.into()), "{line}");
    }
}

/// Waits for slot locks appear in the latency monitor and in INFO.
#[test]
fn waits_for_slot_locks_are_reported() {
    let node = start_server("--latency-monitor-threshold 20");
    let script = EndlessScript::start(&node, "");
    // The wait is longer than the threshold of the latency monitor.
    thread::sleep(Duration::from_millis(30));
    script.end();
    let events = node.run("LATENCY LATEST").items().to_vec();
    assert!(events.iter().any(|event| event.items()[0].text() == "slot-wait"), "{events:?}");
    let figure = |name| node.info("stats", name).and_then(|value| value.parse::<u64>().ok());
    assert!(figure("slot_waits") >= Some(1) && figure("slot_longest_wait_usec") >= Some(20_000));
    node.run("CONFIG RESETSTAT").expect_ok();
    assert_eq!(figure("slot_longest_wait_usec"), Some(0));
}

/// The only worker runs SORT itself if there are no background workers.
#[test]
fn sort_runs_in_background() {
    for (options, place) in [("", "background"), ("--long-command-threads 0", "worker")] {
        let node = start_server(&format!("--slowlog-log-slower-than 0 {options}"));
        let mut connection = node.connect();
        fill_list(&mut connection, "list");
        connection.call_line("SORT list ALPHA LIMIT 0 1");
        let entry = connection.call_line("SLOWLOG GET 1 WITHTHREAD").items()[0].items().to_vec();
        assert_eq!(entry[6], Reply::Bulk(place.into()), "{options}");
    }
}

/// Replies must be equal and in order whether commands run in the background or not.
#[test]
fn pipelines_with_background_commands_keep_their_order() {
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
        let node = start_server(options);
        let mut client = node.connect();
        fill_list(&mut client, "list");
        client.call_line("SORT list ALPHA LIMIT 0 1");
        let script = "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], i, i) end";
        client.call(&["EVAL", script, "1", "scores", &ELEMENT_COUNT.to_string()]);
        let words = lines.map(|line| line.split(' ').collect::<Vec<_>>());
        client.send_all(&words).expect("a connection");
        // CLIENT REPLY SKIP and the command after it have no reply.
        (0..lines.len() - 2).map(|_| client.read().expect("a reply")).collect::<Vec<_>>()
    });
    for (number, reply) in replies[0].iter().enumerate() {
        for other in &replies[1..] {
            assert!(*reply == other[number], "reply {number}");
        }
    }
    assert_eq!(replies[0].last(), Some(&Reply::Bulk(b"last".to_vec())));
}

/// A client that needs a slot locked by a slow command waits without blocking its worker for others.
#[test]
fn slow_command_blocks_only_clients_of_its_key() {
    let node = start_server("");
    node.run("SET k 1").expect_ok();
    EndlessScript::classify_as_slow(&node);
    let mut other = node.connect();
    let script = EndlessScript::start(&node, "");
    for _ in 0..10 {
        other.call_line("SET other 1").expect_ok();
    }
    assert_eq!(script.end(), Reply::Bulk(b"1".to_vec()));
}

/// A client is killed while its command runs in the background. Its connection is closed when the command ends, and its
/// next command does not run.
#[test]
fn client_killed_during_background_command_executes_no_further_command() {
    let node = start_server("--long-command-threshold 0");
    let (mut slow, mut other) = (node.connect(), node.connect());
    fill_list(&mut slow, "list");
    let id = slow.call_line("CLIENT ID").int();
    slow.send(&["SORT", "list", "ALPHA", "STORE", "sorted"]).expect("a connection");
    thread::sleep(Duration::from_millis(20));
    slow.send(&["SET", "after", "1"]).expect("a connection");
    other.call_line(&format!("CLIENT KILL ID {id}"));
    assert_eq!(other.call_line("EXISTS after"), Reply::Int(0));
    slow.read_to_end().expect("it is closed");
    assert_eq!(other.call_line("EXISTS after"), Reply::Int(0));
}

/// A script that runs for the given number of seconds while it holds the slot of its key.
const SPIN_SCRIPT: &str =
    "local over = os.clock() + ARGV[1] while os.clock() < over do end return redis.call('INCR', KEYS[1])";

/// Sends the spinning script without waiting for its reply.
fn send_spin_script(connection: &mut Connection, key: &str, seconds: &str) {
    connection.send(&["EVAL", SPIN_SCRIPT, "1", key, seconds]).expect("a connection");
}

/// A client is not idle while its command runs, nor while the command waits for other commands.
#[test]
fn client_is_not_idle_during_a_background_command() {
    let node = start_server("--long-command-threshold 0 --timeout 1");
    let (mut first, mut second) = (node.connect(), node.connect());
    send_spin_script(&mut first, "k", "1.5");
    thread::sleep(Duration::from_millis(50));
    send_spin_script(&mut second, "k", "0.01");
    assert_eq!(first.read().expect("a reply"), Reply::Int(1));
    assert_eq!(second.read().expect("a reply"), Reply::Int(2));
}

/// A blocking command, its timeout and the command that unblocks its client all run in the background.
#[test]
fn blocking_commands_work_in_the_background() {
    let node = start_server("--long-command-threshold 0");
    let (mut waits, mut other) = (node.connect(), node.connect());
    assert_eq!(waits.call_line("BLPOP nothing 0.05"), Reply::NullArray);
    waits.send(&["BLPOP", "l", "0"]).expect("a connection");
    eventually("the client is blocked", || {
        node.info("clients", "blocked_clients").filter(|count| count == "1")
    });
    assert_eq!(other.call_line("RPUSH l a").int(), 1);
    assert_eq!(waits.read().expect("a reply").items()[1], Reply::Bulk(b"a".to_vec()));
}

/// WATCH and queued commands keep working when transactions run in the background.
#[test]
fn transactions_work_in_the_background() {
    let node = start_server("--long-command-threshold 0");
    let (mut client, mut other) = (node.connect(), node.connect());
    for (changes, reply) in [(false, "OK"), (true, "")] {
        client.call_line("WATCH k").expect_ok();
        client.call_line("MULTI").expect_ok();
        assert_eq!(client.call_line("SET k 1"), Reply::Simple("QUEUED".into()));
        if changes {
            other.call_line("SET k 2").expect_ok();
        }
        match client.call_line("EXEC") {
            Reply::Array(replies) => assert_eq!(replies, [Reply::Simple(reply.into())]),
            none => assert!(changes, "{none:?}"),
        }
    }
}

/// MONITOR shows each command once, when it is executed and not when it is handed to the background.
#[test]
fn monitor_shows_background_commands_once() {
    let node = start_server("--long-command-threshold 0");
    let (mut monitor, mut client) = (node.connect(), node.connect());
    monitor.call_line("MONITOR").expect_ok();
    client.call_lines(&["SET k 1", "GET k", "MULTI", "INCR k", "EXEC", "GET k"]);
    let words = ["\"SET\" \"k\"", "\"GET\"", "\"MULTI\"", "\"INCR\"", "\"EXEC\"", "\"GET\""];
    for word in words {
        let line = monitor.read().expect("a line").text();
        assert!(line.contains(word), "{word}: {line}");
    }
}

/// CLIENT PAUSE also delays commands that would run in the background, and FLUSHALL waits for running background
/// commands.
#[test]
fn pause_and_flush_apply_to_background_commands() {
    let node = start_server("--long-command-threshold 0");
    let (mut slow, mut other) = (node.connect(), node.connect());
    other.call_line("CLIENT PAUSE 100000 WRITE").expect_ok();
    slow.send(&["SET", "k", "1"]).expect("a connection");
    assert_eq!(other.call_line("EXISTS k").int(), 0);
    assert!(!slow.has_unread_data());
    other.call_line("CLIENT UNPAUSE").expect_ok();
    slow.read().expect("a reply").expect_ok();
    send_spin_script(&mut slow, "k", "0.3");
    thread::sleep(Duration::from_millis(50));
    other.call_line("FLUSHALL").expect_ok();
    assert_eq!(slow.read().expect("a reply"), Reply::Int(2));
    assert_eq!(other.call_line("DBSIZE").int(), 0);
}

/// A request that waits in the background does not run after its user is deleted.
#[test]
fn deleted_user_runs_no_waiting_background_command() {
    let node = start_server("--long-command-threads 1");
    let (mut slow, mut gone, mut other) = (connect_with_name(&node, "slow"), node.connect(), node.connect());
    other.call_line("ACL SETUSER u on nopass ~* +@all").expect_ok();
    gone.call_line("AUTH u x").expect_ok();
    gone.call_line("CLIENT SETNAME gone").expect_ok();
    send_spin_script(&mut slow, "k", "0.05");
    slow.read().expect("a reply");
    send_spin_script(&mut slow, "k", "0.5");
    wait_until_in_background(&mut other, "slow");
    // The first request may be queued but not started yet.
    thread::sleep(Duration::from_millis(50));
    // The second request waits for the first one.
    gone.send(&["SET", "k", "gone"]).expect("a connection");
    wait_until_in_background(&mut other, "gone");
    assert_eq!(other.call_line("ACL DELUSER u").int(), 1);
    gone.read_to_end().expect("it is closed");
    assert_eq!(slow.read().expect("a reply"), Reply::Int(2));
    assert_eq!(other.call_line("GET k"), Reply::Bulk(b"2".to_vec()));
}

/// A permission revoked while a command runs in the background applies from the next command on.
#[test]
fn revoked_permission_applies_after_the_background_command() {
    let node = start_server("");
    let (mut slow, mut other) = (connect_with_name(&node, "slow"), node.connect());
    other.call_line("ACL SETUSER u on nopass ~* +@all").expect_ok();
    slow.call_line("AUTH u x").expect_ok();
    send_spin_script(&mut slow, "k", "0.05");
    assert_eq!(slow.read().expect("a reply"), Reply::Int(1));
    send_spin_script(&mut slow, "k", "0.5");
    wait_until_in_background(&mut other, "slow");
    thread::sleep(Duration::from_millis(50));
    send_spin_script(&mut slow, "k", "0.01");
    other.call_line("ACL SETUSER u -eval").expect_ok();
    assert_eq!(slow.read().expect("a reply"), Reply::Int(2));
    let refused = slow.read().expect("a reply");
    assert!(matches!(&refused, Reply::Error(text) if text.starts_with("NOPERM")), "{refused:?}");
    assert_eq!(other.call_line("GET k"), Reply::Bulk(b"2".to_vec()));
}

/// The replication log has the writes of background commands in the order of their replies.
#[test]
fn background_writes_are_replicated_in_order() {
    let master = start_server("--long-command-threshold 0");
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

/// Before a shutdown or failover, commands that run in the background must finish, so that no acknowledged write is
/// lost.
#[test]
fn shutdown_and_failover_wait_for_background_commands() {
    let mut node = start_server("--long-command-threshold 0 --appendonly yes");
    let mut slow = node.connect();
    send_spin_script(&mut slow, "k", "0.3");
    thread::sleep(Duration::from_millis(50));
    assert!(node.terminate().success());
    let answered = slow.read().is_ok_and(|reply| reply == Reply::Int(1));
    node.launch();
    let kept = node.run("GET k");
    assert!(!answered || kept != Reply::NullBulk, "an acknowledged write was lost");

    let master = start_server("--long-command-threshold 0");
    let replica = start_server(&format!("--long-command-threshold 0 --replicaof 127.0.0.1 {}", master.port));
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    let mut slow = master.connect();
    send_spin_script(&mut slow, "k", "0.3");
    thread::sleep(Duration::from_millis(50));
    master.run(&format!("FAILOVER TO 127.0.0.1 {}", replica.port)).expect_ok();
    assert_eq!(slow.read().expect("a reply"), Reply::Int(1));
    eventually("the roles are swapped", || {
        (replica.info("replication", "role")? == "master" && master.info("replication", "role")? == "slave")
            .then_some(())
    });
    for node in [&replica, &master] {
        assert_ne!(node.run("GET k"), Reply::NullBulk, "acknowledged writes are on both servers");
    }
}

/// A command that needs all slots (a save, a flush, a scan) waits for a locked slot, and must not hold the free slots
/// during that time.
#[test]
fn commands_that_lock_all_slots_do_not_block_others() {
    let node = start_server("--enable-debug-command yes");
    let (mut other, mut control) = (node.connect(), node.connect());
    // The script itself is now classified as slow and runs in the background. With another comment, it is a new script
    // without statistics.
    EndlessScript::classify_as_slow(&node);
    let mut check = |request: &str, comment: &str| {
        let mut slow = node.connect();
        let script = format!("{}{comment}", EndlessScript::SCRIPT_TEXT);
        slow.send(&["EVAL", &script, "1", "k", "60"]).expect("a connection");
        thread::sleep(Duration::from_millis(20));
        let mut wants = node.connect();
        wants.send(&request.split_whitespace().collect::<Vec<_>>()).expect("a connection");
        for key in 0..100 {
            other.call_line(&format!("SET key:{key} 1")).expect_ok();
        }
        assert!(!slow.has_unread_data(), "{request}{comment}: the script has ended");
        control.call_line("SUBSCRIBE end");
        assert!(!slow.read().expect("a reply").is_error(""));
        control.call_line("UNSUBSCRIBE end");
        let reply = wants.read().expect("a reply");
        assert!(!reply.is_error(""), "{request}: {reply:?}");
        eventually("no save is in progress", || {
            let saves = ["rdb_bgsave_in_progress", "aof_rewrite_in_progress"];
            saves.iter().all(|field| node.info("persistence", field).as_deref() == Some("0")).then_some(())
        });
    };
    for request in
        ["BGSAVE", "BGREWRITEAOF", "KEYS *", "MEMORY STATS", "FUNCTION FLUSH", "SWAPDB 0 1", "FLUSHALL"]
    {
        check(request, "");
        check(request, &format!(" -- {request}"));
    }
}

// Try several times, because the fixed duration of the script may be over before the other client is served.
#[test]
fn waiting_commands_do_not_delay_commands_with_free_slots() {
    let node = start_server("--long-command-threads 1");
    EndlessScript::classify_as_slow(&node);
    let script = EndlessScript::start(&node, "");
    let waiting: Vec<_> = ["KEYS *", "FUNCTION FLUSH", "GET k", "FLUSHALL", "MGET k l", "DBSIZE"]
        .iter()
        .cycle()
        .take(30)
        .map(|request| {
            let mut client = node.connect();
            client.send(&request.split_whitespace().collect::<Vec<_>>()).expect("a connection");
            client
        })
        .collect();
    let mut other = node.connect();
    for key in 0..200 {
        other.call_line(&format!("SET key:{key} 1")).expect_ok();
    }
    script.end();
    for mut client in waiting {
        assert!(!client.read().expect("a reply").is_error(""));
    }
}

/// KEYS is atomic: a key that is renamed constantly appears exactly once, whether there are few or many other keys.
#[test]
fn keys_command_is_atomic() {
    let node = Node::start(&Program::redoubt(), "--save  --io-threads 2");
    for count in ["0", "3000"] {
        let (mut renames, mut asks) = (node.connect(), node.connect());
        let fill = "for i = 1, ARGV[1] do redis.call('SET', 'key:' .. i, i) end";
        asks.call(&["EVAL", fill, "0", count]);
        asks.call_line("SET here 1").expect_ok();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    renames.call_line("RENAME here there").expect_ok();
                    renames.call_line("RENAME there here").expect_ok();
                }
            });
            let seen: Vec<usize> = (0..2000).map(|_| asks.call_line("KEYS *here").items().len()).collect();
            is_over.store(true, Ordering::Release);
            assert_eq!(seen, [1; 2000], "beside {count} keys");
        });
    }
}

/// Read-only commands on large values release the slot lock while they read.
#[test]
fn slot_is_unlocked_while_its_large_value_is_read() {
    let node = start_server("");
    let mut connection = node.connect();
    fill_list(&mut connection, "{k}list");
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
        // On a busy machine, the other client may start too late, so the test is repeated.
        eventually(&format!("another client is served during {request:?}"), || {
            (count_replies_during(&node, request, "{k}other") > 10).then_some(())
        });
    }
}

/// A compact value of a few kilobytes cannot be read in parts, so a background command must read it as a whole.
#[test]
fn compact_values_can_be_read_in_the_background() {
    let node = start_server("--long-command-threshold 0");
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
        assert_eq!(connection.call_line(line).items().len(), count, "{line}");
    }
}

/// Sums of floats depend on the order of addition, so ZUNION must add in the same order in the background.
#[test]
fn zunion_in_the_background_has_the_same_result() {
    let nodes = ["--long-command-threshold 0", "--long-command-threads 0"].map(start_server);
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

/// Returns the number of a stream entry, which is both its id and the value of its field.
fn stream_entry_number(entry: &Reply) -> i64 {
    let [id, fields] = entry.items() else { panic!("an entry: {entry:?}") };
    let number = fields.items()[1].text();
    assert_eq!(id.text(), format!("{number}-1"));
    number.parse().expect("a number")
}

/// Checks that each value contains `len` consecutive numbers, as it does between two transactions.
fn check_reads_are_atomic(connection: &mut Connection, len: usize) {
    let numbers = |reply: Reply| -> Vec<i64> {
        let parse = |value: &Reply| value.text().parse().expect("a number");
        reply.items().iter().map(parse).collect()
    };
    let are_consecutive =
        |numbers: &[i64]| numbers.len() == len && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1);
    assert!(are_consecutive(&numbers(connection.call_line("LRANGE list 0 -1"))));
    let part = numbers(connection.call_line("LRANGE list 5000 -5001"));
    assert_eq!((part.len(), part[len - 10_001] - part[0]), (len - 10_000, len as i64 - 10_001));
    assert!(are_consecutive(&numbers(connection.call_line("SORT list"))));
    let mut members = numbers(connection.call_line("SMEMBERS set"));
    members.sort_unstable();
    assert!(are_consecutive(&members));
    assert!(are_consecutive(&numbers(connection.call_line("SORT set"))));
    assert_eq!(numbers(connection.call_line("HVALS hash")).iter().sum::<i64>(), len as i64);
    assert!(are_consecutive(&numbers(connection.call_line("ZRANGE scored 0 -1"))));
    let mut falling = numbers(connection.call_line("ZRANGE scored +inf -inf BYSCORE REV LIMIT 0 100000"));
    falling.reverse();
    assert!(are_consecutive(&falling));
    let entries =
        connection.call_line("XRANGE stream - +").items().iter().map(stream_entry_number).collect::<Vec<_>>();
    assert!(are_consecutive(&entries));
    // The number 0 is only in the small set.
    let mut members = numbers(connection.call_line("SUNION small set"));
    members.sort_unstable();
    assert!(members.remove(0) == 0 && are_consecutive(&members));
    let mut weighed = numbers(connection.call_line("ZUNION 3 scored small set WEIGHTS 1 1 3 AGGREGATE MAX"));
    weighed.sort_unstable();
    assert!(weighed.remove(0) == 0 && are_consecutive(&weighed));
}

/// Background reads are atomic whatever other clients write.
#[test]
fn background_reads_of_large_values_are_atomic() {
    const VALUE_LEN: usize = 20_000;
    let node = start_server("--long-command-threshold 0 --io-threads 2");
    let (mut reads, mut writes) = (node.connect(), node.connect());
    let fill = "for i = 1, ARGV[1] do redis.call('RPUSH', KEYS[1], i) redis.call('SADD', KEYS[2], i) \
                redis.call('HSET', KEYS[3], i, 1) redis.call('ZADD', KEYS[4], i, i) \
                redis.call('XADD', KEYS[5], i .. '-1', 'n', i) end \
                redis.call('SADD', KEYS[6], 0)";
    reads.call(&[
        "EVAL",
        fill,
        "6",
        "list",
        "set",
        "hash",
        "scored",
        "stream",
        "small",
        &VALUE_LEN.to_string(),
    ]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for next in VALUE_LEN + 1.. {
                let first = next - VALUE_LEN;
                writes.call_line("MULTI").expect_ok();
                for line in [
                    format!("RPUSH list {next}"),
                    "LPOP list".to_owned(),
                    format!("SADD set {next}"),
                    format!("SREM set {first}"),
                    format!("HINCRBY hash {} 1", next % VALUE_LEN + 1),
                    format!("HINCRBY hash {} -1", first * 7 % VALUE_LEN + 1),
                    format!("ZADD scored {next} {next}"),
                    format!("ZREM scored {first}"),
                    format!("XADD stream MAXLEN = {VALUE_LEN} {next}-1 n {next}"),
                ] {
                    writes.call_line(&line);
                }
                writes.call_line("EXEC");
                if is_over.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        for _ in 0..20 {
            check_reads_are_atomic(&mut reads, VALUE_LEN);
        }
        is_over.store(true, Ordering::Release);
    });
}
