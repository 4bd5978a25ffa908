//! Compares CLUSTER subcommands, their errors, and the replies of other commands in cluster mode with a real Redis in
//! the same state.
//!
//! Two Redoubt nodes and two Redis nodes run the same commands. Ids and ports differ between the two pairs, so requests
//! and compared replies use the placeholders `<me>`, `<other>` and `<port>`. Changes of Redis 7.2 over 7.0 are left out
//! (CLUSTER REPLICATE with more than an id, MYSHARDID, new fields of LINKS and SHARDS).

use std::fmt::Write as _;

use harness::{Connection, Node, Program, Reply, eventually};

/// Two nodes that run the same program, named `<me>` and `<other>` in requests and replies.
struct ComparedCluster {
    nodes: [Node; 2],
    connections: [Connection; 2],
    placeholders: Vec<(String, &'static str)>,
}

impl ComparedCluster {
    fn start(program: &Program) -> Self {
        let nodes = [Node::start_clustered(program), Node::start_clustered(program)];
        let mut names = Vec::new();
        for (node, (id, bus, port)) in
            nodes.iter().zip([("<me>", "<mybus>", "<myport>"), ("<other>", "<bus>", "<port>")])
        {
            names.push((node.run("CLUSTER MYID").text(), id));
            // The longer number must be replaced first, because it may contain the shorter one.
            names.push(((u32::from(node.port) + 10_000).to_string(), bus));
            names.push((node.port.to_string(), port));
        }
        let links = [nodes[0].connect(), nodes[1].connect()];
        Self { nodes, connections: links, placeholders: names }
    }

    /// Sends a line to node `index` and returns the reply. `""` in the line is an empty argument.
    fn reply_to(&mut self, index: usize, line: &str) -> String {
        let line =
            self.placeholders.iter().fold(line.to_owned(), |line, (name, sign)| line.replace(sign, name));
        let words: Vec<&str> = line.split(' ').map(|word| if word == "\"\"" { "" } else { word }).collect();
        let reply = format!("{:?}", self.connections[index].call(&words));
        self.placeholders.iter().fold(reply, |reply, (name, sign)| reply.replace(name, sign))
    }

    fn wait_for(&self, index: usize, line: &str, expected: &str) {
        eventually(&format!("{line} on {} shows {expected}", self.nodes[index].port), || {
            format!("{:?}", self.nodes[index].run(line)).contains(expected).then_some(())
        });
    }
}

/// Redoubt and Redis, and the differences found so far.
struct ClusterPair {
    redoubt: ComparedCluster,
    reference: ComparedCluster,
    difference_report: String,
}

impl ClusterPair {
    fn start() -> Self {
        Self::start_with_reference(&Program::redis())
    }

    fn start_with_reference(reference: &Program) -> Self {
        Self {
            redoubt: ComparedCluster::start(&Program::redoubt()),
            reference: ComparedCluster::start(reference),
            difference_report: String::new(),
        }
    }

    /// Compares the replies line by line. The prefix `2: ` sends a line to the second node.
    fn compare_commands(&mut self, lines: &str) {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (index, sent) = line.strip_prefix("2: ").map_or((0, line), |sent| (1, sent));
            let (ours, theirs) = (self.redoubt.reply_to(index, sent), self.reference.reply_to(index, sent));
            if ours != theirs {
                let _ = write!(self.difference_report, "{line}\n    here   {ours}\n    Redis  {theirs}\n");
            }
        }
    }

    /// Waits until the node gives the expected reply, in both Redoubt's and the reference cluster.
    fn wait_for(&self, index: usize, line: &str, expected: &str) {
        self.redoubt.wait_for(index, line, expected);
        self.reference.wait_for(index, line, expected);
    }

    fn assert_no_differences(&self) {
        assert!(self.difference_report.is_empty(), "answers differ from Redis:\n{}", self.difference_report);
    }
}

const INVALID_ARGUMENTS: &str = r#"
CLUSTER
CLUSTER NOSUCH
CLUSTER NOSUCH a b
CLUSTER ADDSLOTS
CLUSTER ADDSLOTS x
CLUSTER ADDSLOTS -1
CLUSTER ADDSLOTS 16384
CLUSTER ADDSLOTS 1 1
CLUSTER ADDSLOTS 99999999999999999999
CLUSTER ADDSLOTS 1.5
CLUSTER ADDSLOTSRANGE
CLUSTER ADDSLOTSRANGE 1
CLUSTER ADDSLOTSRANGE 1 2 3
CLUSTER ADDSLOTSRANGE 5 1
CLUSTER ADDSLOTSRANGE 1 16384
CLUSTER ADDSLOTSRANGE a 2
CLUSTER ADDSLOTSRANGE 1 5 3 8
CLUSTER DELSLOTS
CLUSTER DELSLOTS 5
CLUSTER DELSLOTS x
CLUSTER DELSLOTSRANGE 5
CLUSTER DELSLOTSRANGE 1 2
CLUSTER DELSLOTSRANGE 2 1
CLUSTER BUMPEPOCH x
CLUSTER BUMPEPOCH
CLUSTER BUMPEPOCH
CLUSTER SET-CONFIG-EPOCH
CLUSTER SET-CONFIG-EPOCH x
CLUSTER SET-CONFIG-EPOCH -1
CLUSTER SET-CONFIG-EPOCH 0
CLUSTER SET-CONFIG-EPOCH 5
2: CLUSTER SET-CONFIG-EPOCH -1
2: CLUSTER SET-CONFIG-EPOCH x
2: CLUSTER SET-CONFIG-EPOCH 0
2: CLUSTER SET-CONFIG-EPOCH 5
2: CLUSTER SET-CONFIG-EPOCH 6
CLUSTER COUNT-FAILURE-REPORTS
CLUSTER COUNT-FAILURE-REPORTS nosuch
CLUSTER COUNT-FAILURE-REPORTS <me>
CLUSTER COUNTKEYSINSLOT
CLUSTER COUNTKEYSINSLOT x
CLUSTER COUNTKEYSINSLOT -1
CLUSTER COUNTKEYSINSLOT 16384
CLUSTER COUNTKEYSINSLOT 0
CLUSTER GETKEYSINSLOT
CLUSTER GETKEYSINSLOT 0
CLUSTER GETKEYSINSLOT x 1
CLUSTER GETKEYSINSLOT 0 x
CLUSTER GETKEYSINSLOT 0 -1
CLUSTER GETKEYSINSLOT 16384 1
CLUSTER GETKEYSINSLOT 0 10
CLUSTER KEYSLOT
CLUSTER KEYSLOT a b
CLUSTER KEYSLOT foo
CLUSTER KEYSLOT {a}b
CLUSTER KEYSLOT ""
CLUSTER FAILOVER
CLUSTER FAILOVER FORCE
CLUSTER FAILOVER NOSUCH
CLUSTER FAILOVER FORCE x
CLUSTER FORGET
CLUSTER FORGET nosuch
CLUSTER FORGET <me>
CLUSTER MEET
CLUSTER MEET a
CLUSTER MEET 127.0.0.1 x
CLUSTER MEET 127.0.0.1 0
CLUSTER MEET 127.0.0.1 70000
CLUSTER MEET 127.0.0.1 -5
CLUSTER MEET nosuchhost 7000
CLUSTER MEET 127.0.0.1 7000 x
CLUSTER MEET 127.0.0.1 7000 70000
CLUSTER MEET 127.0.0.1 7000 17000 5
CLUSTER MEET 300.0.0.1 7000
CLUSTER MYID x
CLUSTER MYID
CLUSTER NODES x
CLUSTER INFO x
CLUSTER REPLICAS
CLUSTER REPLICAS nosuch
CLUSTER REPLICAS <me>
CLUSTER SLAVES <me>
CLUSTER REPLICATE
CLUSTER REPLICATE nosuch
CLUSTER REPLICATE <me>
CLUSTER RESET nosuch
CLUSTER RESET soft x
CLUSTER SAVECONFIG x
CLUSTER SAVECONFIG
CLUSTER SETSLOT
CLUSTER SETSLOT x
CLUSTER SETSLOT 1
CLUSTER SETSLOT 1 NOSUCH
CLUSTER SETSLOT 1 MIGRATING
CLUSTER SETSLOT x STABLE
CLUSTER SETSLOT 16384 STABLE
CLUSTER SETSLOT 1 STABLE
CLUSTER SETSLOT 1 MIGRATING nosuch
CLUSTER SETSLOT 1 MIGRATING <me>
CLUSTER SETSLOT 1 IMPORTING nosuch
CLUSTER SETSLOT 1 NODE nosuch
CLUSTER SETSLOT 1 NODE
CLUSTER SHARDS x
CLUSTER SLOTS x
CLUSTER LINKS x
CLUSTER LINKS
CLUSTER FLUSHSLOTS x
CLUSTER FLUSHSLOTS
CLUSTER SLOTS
GET foo
SET foo bar
EXISTS
"#;

const SINGLE_NODE_COMMANDS: &str = r"
SET foo bar
CLUSTER COUNTKEYSINSLOT 12182
CLUSTER GETKEYSINSLOT 12182 0
CLUSTER GETKEYSINSLOT 12182 10
MGET foo bar
MSET {a}1 1 {a}2 2
SELECT 1
SELECT 0
SWAPDB 0 1
COPY foo {foo}2 DB 1
MOVE foo 1
ASKING
READONLY
READWRITE
ASKING x
READONLY x
CLUSTER SLOTS
CLUSTER FLUSHSLOTS
CLUSTER RESET
CLUSTER RESET HARD
CLUSTER REPLICATE <me>
REPLICAOF 127.0.0.1 7000
SLAVEOF NO ONE
CLUSTER DELSLOTS 5 5
CLUSTER DELSLOTS 5
CLUSTER DELSLOTS 5
CLUSTER ADDSLOTS 5
";

const SLOT_MOVE_COMMANDS: &str = r"
CLUSTER COUNT-FAILURE-REPORTS <other>
CLUSTER SETSLOT 5 MIGRATING nosuch
CLUSTER SETSLOT 5 IMPORTING <other>
CLUSTER SETSLOT 5 IMPORTING <me>
2: CLUSTER SETSLOT 5 MIGRATING <me>
2: CLUSTER SETSLOT 5 IMPORTING nosuch
2: CLUSTER ADDSLOTS 5
2: CLUSTER REPLICATE <other>
2: CLUSTER FAILOVER
2: CLUSTER ADDSLOTS 5
2: CLUSTER SETSLOT 5 NODE <me>
CLUSTER SETSLOT 12182 MIGRATING <other>
2: CLUSTER SETSLOT 12182 IMPORTING <me>
GET foo
GET {foo}nosuch
MGET foo {foo}nosuch
SET {foo}nosuch 1
2: GET foo
2: ASKING
2: GET foo
2: ASKING
2: MGET foo {foo}2
2: GET foo
CLUSTER SETSLOT 12182 NODE <other>
CLUSTER SETSLOT 12182 STABLE
CLUSTER FORGET <other> x
2: SELECT 1
2: GET bar
2: CLUSTER KEYSLOT bar
";

const REPLICA_COMMANDS: &str = r"
2: CLUSTER REPLICATE <me>
2: CLUSTER REPLICATE <other>
CLUSTER REPLICATE <other>
2: CLUSTER FORGET <me>
2: CLUSTER REPLICAS <other>
2: CLUSTER SETSLOT 5 STABLE
2: CLUSTER SETSLOT 5 NODE <other>
2: CLUSTER ADDSLOTS 5
2: CLUSTER FLUSHSLOTS
2: CLUSTER FAILOVER NOSUCH
2: CLUSTER FAILOVER FORCE TAKEOVER
2: GET foo
2: READONLY
2: GET foo
2: SET foo 2
2: READWRITE
2: GET foo
2: REPLICAOF NO ONE
2: CLUSTER RESET x
2: CLUSTER SET-CONFIG-EPOCH 9
CLUSTER SET-CONFIG-EPOCH 9
CLUSTER REPLICAS <other>
2: CLUSTER COUNTKEYSINSLOT 12182
2: CLUSTER GETKEYSINSLOT 12182 5
2: CLUSTER SLOTS
CLUSTER SLOTS
2: CLUSTER BUMPEPOCH
CLUSTER FAILOVER
CLUSTER DELSLOTSRANGE 0 5
CLUSTER RESET
FLUSHALL
CLUSTER RESET
";

#[test]
fn replies_of_single_cluster_node_match_redis() {
    let mut pair = ClusterPair::start();
    pair.compare_commands(INVALID_ARGUMENTS);
    pair.compare_commands(
        "CLUSTER ADDSLOTSRANGE 0 16000\nCLUSTER ADDSLOTS 5\nCLUSTER ADDSLOTSRANGE 16001 16383 5 6\nGET foo",
    );
    pair.compare_commands("CLUSTER ADDSLOTSRANGE 16001 16383");
    pair.wait_for(0, "CLUSTER INFO", "cluster_state:ok");
    pair.compare_commands(SINGLE_NODE_COMMANDS);
    pair.assert_no_differences();
}

#[test]
fn replies_of_two_cluster_nodes_match_redis() {
    let mut pair = ClusterPair::start();
    pair.compare_commands(
        "CLUSTER ADDSLOTSRANGE 0 16383\n2: CLUSTER SET-CONFIG-EPOCH 5\nCLUSTER MEET 127.0.0.1 <port>",
    );
    for index in [0, 1] {
        pair.wait_for(index, "CLUSTER INFO", "cluster_known_nodes:2");
        pair.wait_for(index, "CLUSTER INFO", "cluster_state:ok");
    }
    pair.compare_commands("SET foo bar");
    pair.compare_commands(SLOT_MOVE_COMMANDS);
    pair.compare_commands("2: CLUSTER REPLICATE <me>");
    pair.wait_for(1, "ROLE", "connected");
    pair.wait_for(0, "CLUSTER NODES", "slave");
    for index in [0, 1] {
        let second = |side: &ComparedCluster| side.nodes[1].port.to_string();
        pair.redoubt.wait_for(index, "CLUSTER SLOTS", &second(&pair.redoubt));
        pair.reference.wait_for(index, "CLUSTER SLOTS", &second(&pair.reference));
    }
    pair.compare_commands(REPLICA_COMMANDS);
    pair.assert_no_differences();
}

const FLUSHSLOT_COMMANDS: &str = r"
2: CLUSTER FLUSHSLOT 12182
CLUSTER FLUSHSLOT
CLUSTER FLUSHSLOT -1
CLUSTER FLUSHSLOT 16384
CLUSTER FLUSHSLOT x nosuch
CLUSTER FLUSHSLOT 12182 nosuch
CLUSTER FLUSHSLOT 12182 sync x
DBSIZE
MULTI
CLUSTER FLUSHSLOT 12182 sync
SET {foo}3 1
EXEC
DBSIZE
CLUSTER FLUSHSLOT 5 ASYNC
DBSIZE
COMMAND INFO cluster|flushslot
";

/// FLUSHSLOT deletes keys of every database, so the user needs access to all of them.
#[test]
fn flushslot_requires_access_to_all_databases() {
    let node = Node::start(&Program::redoubt(), "--cluster-enabled yes --cluster-databases 4");
    node.run("CLUSTER ADDSLOTSRANGE 0 16383").expect_ok();
    let mut client = node.connect();
    eventually("it serves", || {
        (client.call_line("SET {foo}1 1") == Reply::Simple("OK".to_owned())).then_some(())
    });
    for (rights, may) in [("db=0", false), ("db=0,1,2,3", false), ("alldbs", true)] {
        node.run(&format!("ACL SETUSER some reset on nopass +@all ~* {rights}")).expect_ok();
        let mut some = node.connect();
        some.call_line("AUTH some x").expect_ok();
        let reply = some.call_line("CLUSTER FLUSHSLOT 12182");
        assert_eq!(reply.is_error("NOPERM"), !may, "{rights}: {reply:?}");
        assert_eq!(client.call_line("EXISTS {foo}1"), Reply::Int(i64::from(!may)), "{rights}");
    }
}

const REPLICATE_NO_ONE_COMMANDS: &str = r"
2: CLUSTER REPLICATE NO
2: CLUSTER REPLICATE NO TWO
2: CLUSTER REPLICATE NO ONE x
2: CLUSTER REPLICATE nosuch ONE
CLUSTER REPLICATE NO ONE
2: CLUSTER REPLICATE no one
2: CLUSTER REPLICATE NO ONE
2: SET bar 1
";

/// These commands exist since Valkey 9. A replica also deletes the keys of a slot that its master flushes, and deletes
/// all its keys when REPLICATE NO ONE makes it an empty master.
#[test]
fn flushslot_and_replicate_no_one_match_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let mut pair = ClusterPair::start_with_reference(&valkey);
    pair.compare_commands("CLUSTER ADDSLOTSRANGE 0 16383\nCLUSTER MEET 127.0.0.1 <port>");
    for index in [0, 1] {
        pair.wait_for(index, "CLUSTER INFO", "cluster_known_nodes:2");
        pair.wait_for(index, "CLUSTER INFO", "cluster_state:ok");
    }
    pair.compare_commands("2: CLUSTER REPLICATE <me>\nSET foo 1\nSET {foo}2 1\nSET other 1");
    pair.wait_for(1, "INFO replication", "master_link_status:up");
    pair.wait_for(1, "DBSIZE", ":3");
    pair.wait_for(0, "CLUSTER NODES", "slave");
    pair.compare_commands(FLUSHSLOT_COMMANDS);
    pair.wait_for(1, "CLUSTER GETKEYSINSLOT 12182 9", "{foo}3");
    pair.wait_for(1, "DBSIZE", ":2");
    pair.compare_commands(REPLICATE_NO_ONE_COMMANDS);
    for side in [&pair.redoubt, &pair.reference] {
        let [master, free] = &side.nodes;
        eventually("it is empty", || (free.run("DBSIZE") == Reply::Int(0)).then_some(()));
        assert_eq!(free.info("replication", "role").as_deref(), Some("master"));
        assert_ne!(free.run("CLUSTER MYSHARDID"), master.run("CLUSTER MYSHARDID"));
        eventually("its master knows", || {
            let nodes = format!("{:?}", master.run("CLUSTER NODES"));
            (!nodes.contains("slave")).then_some(())
        });
        assert_eq!(master.run("DBSIZE"), Reply::Int(2));
        assert_eq!(master.run("CLUSTER COUNTKEYSINSLOT 12182"), Reply::Int(1));
    }
    pair.assert_no_differences();
}

const CLUSTERSCAN_COMMANDS: &str = r"
CLUSTERSCAN 0
2: CLUSTERSCAN 0
2: CLUSTERSCAN 0 SLOT 5
2: CLUSTERSCAN 0-{06S}-0
CLUSTERSCAN 0-{06S}-0 SLOT 0
CLUSTERSCAN 0-{06S}-0 SLOT 1
CLUSTERSCAN 0-{06S}-0 MATCH {460}*
2: CLUSTERSCAN 0-{06S}-0 nosuch
CLUSTERSCAN 0-{06S}-0 nosuch
CLUSTERSCAN {06S}
CLUSTERSCAN {06S} SLOT x
CLUSTERSCAN 0-{06S}-0
MULTI
CLUSTERSCAN 0-{06S}-0 SLOT 0
EXEC
MULTI
CLUSTERSCAN 0-{06S}-0
CLUSTERSCAN 0-{460}-0
EXEC
EVAL return(redis.call('CLUSTERSCAN','0-{06S}-0')) 0
EVAL return(redis.call('CLUSTERSCAN',KEYS[1])) 1 0-{06S}-0
2: EVAL return(redis.call('CLUSTERSCAN','0-{06S}-0')) 0
CLUSTER SETSLOT 5 MIGRATING <other>
CLUSTERSCAN 0-{460}-0 SLOT 5
CLUSTERSCAN 0-{06S}-0
2: CLUSTER SETSLOT 5 IMPORTING <me>
2: ASKING
2: CLUSTERSCAN 0-{460}-0 SLOT 5
2: CLUSTERSCAN 0-{460}-0 SLOT 5
CLUSTER SETSLOT 5 STABLE
2: CLUSTER SETSLOT 5 STABLE
COMMAND INFO clusterscan
COMMAND GETKEYS CLUSTERSCAN 0
COMMAND GETKEYSANDFLAGS CLUSTERSCAN 0
COMMAND INFO cluster|slot-stats
CLUSTER SLOT-STATS SLOTSRANGE 8190 8193
2: CLUSTER SLOT-STATS SLOTSRANGE 8190 8193
CLUSTER SLOT-STATS ORDERBY key-count LIMIT 2 ASC
CLUSTER SLOT-STATS ORDERBY cpu-usec LIMIT 2
CONFIG SET cluster-slot-stats-enabled yes
CLUSTER SLOT-STATS SLOTSRANGE 0 1
GET {06S}
SET {06S} 2
CONFIG RESETSTAT
GET {06S}
SET {06S} 2
CLUSTER SLOT-STATS ORDERBY network-bytes-out LIMIT x
CLUSTER SLOT-STATS ORDERBY memory-bytes
";

/// These commands exist since Valkey 9.1. The second node has the slots from 8192 on; scans that start at the first
/// node are sent to both nodes.
#[test]
fn clusterscan_and_slot_stats_match_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let mut pair = ClusterPair::start_with_reference(&valkey);
    pair.compare_commands("CLUSTER ADDSLOTSRANGE 0 8191\n2: CLUSTER ADDSLOTSRANGE 8192 16383");
    pair.compare_commands("CLUSTER MEET 127.0.0.1 <port>");
    for index in [0, 1] {
        pair.wait_for(index, "CLUSTER INFO", "cluster_known_nodes:2");
        pair.wait_for(index, "CLUSTER INFO", "cluster_state:ok");
    }
    pair.compare_commands("SET {06S} 1\nSET {460}a 1");
    pair.compare_commands(CLUSTERSCAN_COMMANDS);
    // Execution times differ between servers.
    for side in [&mut pair.redoubt, &mut pair.reference] {
        let told = side.reply_to(0, "CLUSTER SLOT-STATS ORDERBY network-bytes-in LIMIT 1");
        assert!(told.contains("\"network-bytes-in\", :55, \"network-bytes-out\", :12"), "{told}");
    }
    pair.assert_no_differences();
}

/// CLUSTERSCAN returns every key of all nodes if the client follows the redirections in its cursors.
#[test]
fn clusterscan_returns_every_key() {
    let mut side = ComparedCluster::start(&Program::redoubt());
    for (index, line) in [
        (0, "CLUSTER ADDSLOTSRANGE 0 5000 9000 12000"),
        (1, "CLUSTER ADDSLOTSRANGE 5001 8999 12001 16383"),
        (0, "CLUSTER MEET 127.0.0.1 <port>"),
    ] {
        assert!(side.reply_to(index, line).contains("OK"), "{line}");
    }
    [0, 1].iter().for_each(|index| side.wait_for(*index, "CLUSTER INFO", "cluster_state:ok"));
    let mut missing = std::collections::BTreeSet::new();
    for number in 0..3000 {
        let line = format!("SET key:{number} 1");
        if !side.reply_to(0, &line).contains("OK") {
            assert!(side.reply_to(1, &line).contains("OK"));
        }
        missing.insert(format!("key:{number}"));
    }
    let (mut cursor, mut calls) = ("0".to_owned(), 0);
    loop {
        let words = ["CLUSTERSCAN", &cursor, "COUNT", "100"];
        let page = [0, 1].iter().map(|index| side.connections[*index].call(&words));
        let page = page.into_iter().find(|page| !page.is_error("MOVED")).expect("a node serves each slot");
        for key in page.items()[1].items() {
            missing.remove(&key.text());
        }
        cursor = page.items()[0].text();
        calls += 1;
        if cursor == "0" {
            break;
        }
    }
    assert!(missing.is_empty() && calls < 60, "{} are missing after {calls} calls", missing.len());
}

const CLUSTER_DOWN_COMMANDS: &str = r"
GET {06S}
SET {06S} 1
EXISTS bar
EVAL return(1) 1 {06S}
SPUBLISH {06S} x
MULTI
GET {06S}
EXEC
CONFIG SET cluster-allow-pubsubshard-when-down no
SPUBLISH {06S} x
SSUBSCRIBE {06S}
CONFIG SET cluster-allow-pubsubshard-when-down yes
SPUBLISH {06S} x
CONFIG SET cluster-allow-reads-when-down yes
GET {06S}
SET {06S} 1
EXISTS bar
EVAL return(1) 1 {06S}
EVAL_RO return(redis.call('GET',KEYS[1])) 1 {06S}
MULTI
GET {06S}
SET {06S} 1
EXEC
MULTI
GET {06S}
EXEC
CLUSTERSCAN 0-{06S}-0 SLOT 0
CONFIG SET cluster-allow-reads-when-down no
GET {06S}
CLUSTERSCAN 0-{06S}-0 SLOT 0
CONFIG SET cluster-allow-pubsubshard-when-down no
";

/// The parameters decide which commands a node with only some of the slots accepts when full coverage is required.
#[test]
fn cluster_allow_when_down_parameters_match_valkey() {
    let Some(valkey) = Program::valkey() else { return };
    let mut pair = ClusterPair::start_with_reference(&valkey);
    pair.compare_commands("CLUSTER ADDSLOTSRANGE 0 100");
    pair.wait_for(0, "CLUSTER INFO", "cluster_slots_assigned:101");
    pair.wait_for(0, "CLUSTER INFO", "cluster_state:fail");
    pair.compare_commands(CLUSTER_DOWN_COMMANDS);
    pair.compare_commands("CONFIG SET cluster-require-full-coverage no");
    pair.wait_for(0, "CLUSTER INFO", "cluster_state:ok");
    pair.compare_commands("SET {06S} 1\nGET {06S}\nEXISTS bar\nSPUBLISH {06S} x");
    pair.assert_no_differences();
}
