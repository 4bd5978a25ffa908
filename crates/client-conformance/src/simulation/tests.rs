//! Tests the simulated nodes from a client's point of view, without sockets.

use super::*;

const CLUSTER_SCENARIO: &str = "
story: two masters and a replica
theme: maps
mode: cluster
nodes:
  a: {slots: [0-8191]}
  b: {slots: [8192-16383]}
  r: {replica_of: a}
rules:
  - {on: INCR, key: cut, times: 1, do: cut}
  - {on: GET, key: busy, skip: 1, for_ms: 100, do: {error: 'TRYAGAIN $slot $b'}}
steps: []
";

struct Client {
    simulation: ClusterSimulation,
    now_ms: u64,
}

impl Client {
    fn new() -> Self {
        let scenario = Scenario::parse("t", CLUSTER_SCENARIO).unwrap();
        Self { simulation: ClusterSimulation::new(&scenario, &[1001, 1002, 1003]).unwrap(), now_ms: 0 }
    }

    fn open(&mut self, node: &str) -> ConnectionId {
        let node = self.simulation.node_index(node).unwrap();
        self.simulation.handle_open(self.now_ms, node).unwrap()
    }

    fn actions_after_command(&mut self, id: ConnectionId, line: &str) -> Vec<ConnectionAction> {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        self.simulation.handle_command(self.now_ms, id, &args)
    }

    fn send_command(&mut self, id: ConnectionId, line: &str) -> String {
        match &self.actions_after_command(id, line)[..] {
            [ConnectionAction::Send(_, bytes)] => String::from_utf8(bytes.clone()).unwrap(),
            other => panic!("{line}: {other:?}"),
        }
    }
}

#[test]
fn key_is_served_only_by_the_owner_of_its_slot() {
    let mut client = Client::new();
    let (a, b, r) = (client.open("a"), client.open("b"), client.open("r"));
    // foo is in slot 12182, bar in 5061.
    assert_eq!(client.send_command(a, "SET foo 1"), "-MOVED 12182 127.0.0.1:1002\r\n");
    assert_eq!(client.send_command(b, "SET foo 1"), "+OK\r\n");
    assert_eq!(client.send_command(a, "SET bar 2"), "+OK\r\n");
    assert_eq!(client.send_command(r, "GET bar"), "-MOVED 5061 127.0.0.1:1001\r\n");
    client.send_command(r, "READONLY");
    assert_eq!(client.send_command(r, "GET bar"), "$1\r\n2\r\n");
    assert_eq!(client.send_command(r, "SET bar 3"), "-MOVED 5061 127.0.0.1:1001\r\n");
    assert_eq!(
        client.send_command(a, "MGET foo bar"),
        "-CROSSSLOT Keys in request don't hash to the same slot\r\n"
    );
    client.send_command(a, "ASKING");
    assert_eq!(client.send_command(a, "GET foo"), "$1\r\n1\r\n");
    assert_eq!(client.send_command(a, "GET foo"), "-MOVED 12182 127.0.0.1:1002\r\n");
    let effects: Vec<String> =
        client.simulation.executed_commands.iter().map(|executed| format_command(&executed.args)).collect();
    assert_eq!(effects, ["SET foo 1", "SET bar 2", "GET bar", "GET foo"]);
    assert_eq!(client.simulation.refused_commands.len(), 5);
}

#[test]
fn truncated_reply_belongs_to_an_executed_command() {
    let mut client = Client::new();
    let a = client.open("a");
    let b = client.open("b");
    let here = if slot_of("cut") < 8192 { a } else { b };
    assert_eq!(
        client.actions_after_command(here, "INCR cut"),
        [ConnectionAction::Send(here, b":1".to_vec()), ConnectionAction::Close(here)]
    );
    assert_eq!(client.send_command(here, "INCR cut"), ":2\r\n", "once only");
}

#[test]
fn fault_rule_applies_only_within_its_limits() {
    let mut client = Client::new();
    let node = if slot_of("busy") < 8192 { "a" } else { "b" };
    let id = client.open(node);
    assert_eq!(client.send_command(id, "GET busy"), "$-1\r\n");
    let refusal = format!("-TRYAGAIN {} 127.0.0.1:1002\r\n", slot_of("busy"));
    for (ms, reply) in [(10, &refusal[..]), (109, &refusal), (110, "$-1\r\n"), (500, "$-1\r\n")] {
        client.now_ms = ms;
        assert_eq!(client.send_command(id, "GET busy"), reply, "{ms}");
    }
}

#[test]
fn promoted_replica_owns_the_slots_except_in_stale_views() {
    let mut client = Client::new();
    let (b, r) = (client.open("b"), client.open("r"));
    let event =
        NodeEvent::ReportMap { node: "b".to_owned(), map: ReportedMap::Initial, times: None, after_ms: 0 };
    client.simulation.handle_event(1, &event);
    client.simulation.handle_event(1, &NodeEvent::Promote { node: "r".to_owned(), after_ms: 0 });
    assert_eq!(client.send_command(r, "SET bar 1"), "+OK\r\n");
    assert_eq!(client.send_command(b, "SET bar 1"), "-MOVED 5061 127.0.0.1:1001\r\n");
    assert!(
        client.send_command(r, "CLUSTER SLOTS").contains(":0\r\n:8191\r\n*4\r\n$9\r\n127.0.0.1\r\n:1003\r\n")
    );
    assert!(
        client.send_command(b, "CLUSTER SLOTS").contains(":0\r\n:8191\r\n*4\r\n$9\r\n127.0.0.1\r\n:1001\r\n")
    );
}

#[test]
fn transaction_is_atomic() {
    let mut client = Client::new();
    let a = client.open("a");
    client.send_command(a, "MULTI");
    assert_eq!(client.send_command(a, "INCR bar"), "+QUEUED\r\n");
    assert!(client.simulation.executed_commands.is_empty());
    client.send_command(a, "INCR foo");
    assert!(client.send_command(a, "EXEC").starts_with("-EXECABORT"));
    assert!(client.simulation.executed_commands.is_empty());
    client.send_command(a, "MULTI");
    client.send_command(a, "INCR bar");
    assert_eq!(client.send_command(a, "EXEC"), "*1\r\n:1\r\n");
    assert_eq!(client.simulation.executed_commands.len(), 1);
}

#[test]
fn subscribers_of_a_migrated_slot_get_sunsubscribe() {
    let mut client = Client::new();
    let (a, b) = (client.open("a"), client.open("b"));
    assert!(client.send_command(a, "SSUBSCRIBE foo").starts_with("-MOVED 12182"));
    client.send_command(b, "SSUBSCRIBE foo");
    client.send_command(a, "SUBSCRIBE foo");
    assert_eq!(client.simulation.publish(0, "foo", "x").len(), 2);
    let event = NodeEvent::MoveSlot { key: "foo".to_owned(), to: "a".to_owned(), after_ms: 0 };
    let told = client.simulation.handle_event(0, &event);
    assert_eq!(
        told,
        [ConnectionAction::Send(b, b"*3\r\n$12\r\nsunsubscribe\r\n$3\r\nfoo\r\n:0\r\n".to_vec())]
    );
    assert_eq!(client.simulation.publish(0, "foo", "y").len(), 1);
}

#[test]
fn silent_node_does_not_reply_and_rejecting_node_counts_connections() {
    let mut client = Client::new();
    let a = client.open("a");
    let net = |state| NodeEvent::SetConnectionHandling { node: "a".to_owned(), state, after_ms: 0 };
    assert_eq!(
        client.simulation.handle_event(0, &net(ConnectionHandling::NeverReply)),
        [ConnectionAction::ChangeConnectionHandling(0)]
    );
    assert!(client.actions_after_command(a, "PING").is_empty());
    client.simulation.handle_event(0, &net(ConnectionHandling::CloseAtOnce));
    assert_eq!(client.simulation.handle_open(0, 0), None);
    assert_eq!(client.simulation.log.last().unwrap().event, LogEvent::ConnectionRejected);
}

#[test]
fn blocked_clients_are_served_in_order() {
    let mut client = Client::new();
    let (first, second, other) = (client.open("a"), client.open("a"), client.open("a"));
    assert_eq!(client.actions_after_command(first, "BLPOP bar 0"), [ConnectionAction::Send(first, vec![])]);
    client.actions_after_command(second, "BLPOP bar 1");
    assert!(client.actions_after_command(first, "PING").is_empty(), "it is behind what waits");
    assert_eq!(
        (client.simulation.next_deadline(first), client.simulation.next_deadline(second)),
        (None, Some(1000))
    );
    let sent = client.actions_after_command(other, "RPUSH bar x");
    let item = b"*2\r\n$3\r\nbar\r\n$1\r\nx\r\n".to_vec();
    let sends = [
        ConnectionAction::Send(other, b":1\r\n".to_vec()),
        ConnectionAction::Send(first, item),
        ConnectionAction::Send(first, b"+PONG\r\n".to_vec()),
    ];
    assert_eq!(sent, sends);
    assert!(client.simulation.handle_timeout(999, second).is_empty());
    assert_eq!(
        client.simulation.handle_timeout(1000, second),
        [ConnectionAction::Send(second, b"$-1\r\n".to_vec())]
    );
    let effects: Vec<String> =
        client.simulation.executed_commands.iter().map(|executed| format_command(&executed.args)).collect();
    assert_eq!(effects, ["RPUSH bar x", "BLPOP bar 0"]);
}

#[test]
fn blocked_client_is_redirected_when_its_slot_moves() {
    let mut client = Client::new();
    let a = client.open("a");
    client.actions_after_command(a, "BRPOP bar 0");
    let event = NodeEvent::MoveSlot { key: "bar".to_owned(), to: "b".to_owned(), after_ms: 0 };
    let told = client.simulation.handle_event(0, &event);
    assert_eq!(told, [ConnectionAction::Send(a, b"-MOVED 5061 127.0.0.1:1002\r\n".to_vec())]);
    let push =
        NodeEvent::RunCommand { command: ["RPUSH", "bar", "x"].map(str::to_owned).to_vec(), after_ms: 0 };
    assert!(client.simulation.handle_event(0, &push).is_empty(), "nobody waits any more");
}

#[test]
fn script_is_cached_only_on_the_node_that_loaded_it() {
    let mut client = Client::new();
    let (a, b) = (client.open("a"), client.open("b"));
    let eval = |name: &str, script: &str, key: &str| [name, script, "1", key].map(str::to_owned).to_vec();
    let (text, _, _) = script_that_calls(&["INCR".to_owned(), "bar".to_owned()]);
    let digest = "61636018f4e6b5817b89791bbed242f93fa089e3";
    let told = client.simulation.handle_command(0, a, &eval("EVAL", &text, "bar"));
    assert_eq!(told, [ConnectionAction::Send(a, b":1\r\n".to_vec())]);
    let loaded = client.simulation.handle_command(0, b, &["SCRIPT", "EXISTS", digest].map(str::to_owned));
    assert_eq!(loaded, [ConnectionAction::Send(b, b"*1\r\n:0\r\n".to_vec())]);
    let unknown = client.simulation.handle_command(0, b, &eval("EVALSHA", digest, "foo"));
    assert_eq!(
        unknown,
        [ConnectionAction::Send(b, b"-NOSCRIPT No matching script. Please use EVAL.\r\n".to_vec())]
    );
    assert_eq!(format_command(&client.simulation.executed_commands[0].args), "INCR bar");
}

#[test]
fn tracking_client_gets_one_invalidation_per_change() {
    let mut client = Client::new();
    let (a, other) = (client.open("a"), client.open("a"));
    client.send_command(a, "HELLO 3");
    assert_eq!(client.send_command(a, "CLIENT TRACKING ON"), "+OK\r\n");
    client.send_command(a, "GET bar");
    let told = ConnectionAction::Send(a, b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nbar\r\n".to_vec());
    assert_eq!(client.actions_after_command(other, "SET bar 1")[1..], *std::slice::from_ref(&told));
    assert_eq!(
        client.actions_after_command(other, "SET bar 2").len(),
        1,
        "it has been told, and has not read since"
    );
    client.send_command(a, "GET bar");
    let event = NodeEvent::MoveSlot { key: "bar".to_owned(), to: "b".to_owned(), after_ms: 0 };
    assert_eq!(client.simulation.handle_event(0, &event), [told]);
}

#[test]
fn node_keeps_its_id_and_slots_at_a_new_address() {
    let mut client = Client::new();
    let r = client.open("b");
    let before = client.send_command(r, "CLUSTER NODES");
    client
        .simulation
        .handle_event(0, &NodeEvent::ChangeAddress { node: "a".to_owned(), to: "r".to_owned(), after_ms: 0 });
    let after = client.send_command(r, "CLUSTER NODES");
    let id =
        before.lines().find(|line| line.contains(":1001@")).unwrap().split(' ').next().unwrap().to_owned();
    assert!(after.contains(&format!("{id} 127.0.0.1:1003@")), "{after}");
    assert!(!after.contains(":1001@") && after.contains("0-8191"), "{after}");
}

const SENTINEL_SCENARIO: &str = "
story: a master, a replica and a sentinel
theme: sentinels
mode: sentinel
nodes:
  m: {}
  r: {replica_of: m}
  s: {sentinel: true}
steps: []
";

fn sentinel_group() -> Client {
    let scenario = Scenario::parse("t", SENTINEL_SCENARIO).unwrap();
    Client { simulation: ClusterSimulation::new(&scenario, &[1001, 1002, 1003]).unwrap(), now_ms: 0 }
}

#[test]
fn role_change_by_sentinels_closes_client_connections() {
    let mut client = sentinel_group();
    let (waits, idle, watches) = (client.open("m"), client.open("r"), client.open("s"));
    client.actions_after_command(waits, "BLPOP list 0");
    let promote = NodeEvent::Promote { node: "r".to_owned(), after_ms: 0 };
    let actions = client.simulation.handle_event(0, &promote);
    assert_eq!(actions, [ConnectionAction::Close(waits), ConnectionAction::Close(idle)], "without a word");
    assert!(client.simulation.is_open(watches) && !client.simulation.is_open(waits));
    assert_eq!(client.actions_after_command(idle, "PING"), [], "what comes late on it finds nobody");
    let again = client.open("m");
    assert_eq!(
        client.send_command(again, "SET k 1"),
        "-READONLY You can't write against a read only replica.\r\n"
    );
}

#[test]
fn sentinel_reports_stale_master_for_a_number_of_queries() {
    let mut client = sentinel_group();
    let sentinel = client.open("s");
    let view =
        NodeEvent::ReportMap { node: "s".to_owned(), map: ReportedMap::Initial, times: Some(2), after_ms: 0 };
    client.simulation.handle_event(0, &view);
    client.simulation.handle_event(0, &NodeEvent::Promote { node: "r".to_owned(), after_ms: 0 });
    let told = ["1001", "1001", "1002", "1002"];
    for port in told {
        let reply = client.send_command(sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster");
        assert!(reply.contains(port), "{reply}");
        // Other queries do not count towards the limited number of false replies.
        client.send_command(sentinel, "SENTINEL SENTINELS mymaster");
    }
}
