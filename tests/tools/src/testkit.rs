//! Tests of `redoubt testkit` as a test in another language uses it, by exchanging JSON lines.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use harness::{Connection, Program, Reply, eventually, redis_cli, run_to_end};
use serde_json::{Value, json};
use tempfile::TempDir;

struct TestkitProcess {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl TestkitProcess {
    fn start(arguments: &[&str]) -> (Self, Value) {
        let mut command = Command::new(Program::redoubt().binary());
        command.arg("testkit").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (requests, answers) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        let mut kit = Self { child, requests, answers: BufReader::new(answers) };
        let began = kit.read_answer();
        (kit, began["ok"].clone())
    }

    fn read_answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer comes");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn send_request(&mut self, request: &Value) -> Value {
        let requests = self.requests.as_mut().expect("it is not ended");
        writeln!(requests, "{request}").expect("it reads");
        let answer = self.read_answer();
        assert_eq!(answer["id"], request["id"], "{answer}");
        answer
    }

    fn expect_ok(&mut self, request: &Value) -> Value {
        let answer = self.send_request(request);
        assert!(answer["error"].is_null(), "{request}: {answer}");
        answer["ok"].clone()
    }

    fn expect_error(&mut self, request: &Value, reason: &str) {
        let answer = self.send_request(request);
        let said = answer["error"].as_str().unwrap_or_default();
        assert!(said.contains(reason), "{request}: {answer}");
    }
}

impl Drop for TestkitProcess {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}

fn node_port(deployment: &Value, node: usize) -> u16 {
    deployment["nodes"][node]["port"].as_u64().expect("a port") as u16
}

fn run_on_node(deployment: &Value, node: usize, line: &str) -> Reply {
    Connection::open(("127.0.0.1", node_port(deployment, node))).expect("it listens").call_line(line)
}

fn node_roles(deployment: &Value) -> Vec<&str> {
    let nodes = deployment["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node["role"].as_str().unwrap_or("none")).collect()
}

/// The folder that contains the folders of all nodes.
fn deployment_folder(deployment: &Value) -> PathBuf {
    let node = Path::new(deployment["nodes"][0]["folder"].as_str().expect("a path"));
    node.parent().expect("the test kit's own").to_owned()
}

fn has_no_leftovers(deployment: &Value) -> bool {
    let nodes = deployment["nodes"].as_array().expect("nodes");
    let refuses = |node| Connection::open(("127.0.0.1", node_port(deployment, node))).is_err();
    (0..nodes.len()).all(refuses) && !deployment_folder(deployment).exists()
}

/// In one cluster a master dies and restarts empty, another master freezes, a slot moves, and a replica takes over. At
/// the end no process or folder is left.
#[test]
fn testkit_injects_and_repairs_cluster_failures() {
    let (mut kit, deployment) = TestkitProcess::start(&["cluster"]);
    assert_eq!(node_roles(&deployment), ["master", "master", "master", "replica", "replica", "replica"]);
    // The key is in slot 5061, which belongs to the first node. WAIT covers only writes of its own connection.
    let mut master = Connection::open(("127.0.0.1", node_port(&deployment, 0))).expect("it listens");
    master.call_line("SET bar 1").expect_ok();
    assert_eq!(master.call_line("WAIT 1 20000").int(), 1);

    kit.expect_ok(&json!({"id": 1, "do": "kill", "node": 0}));
    let took = kit.expect_ok(&json!({"id": 2, "do": "wait", "until": "replaced", "node": 0, "seconds": 60}));
    assert!(took["seconds"].is_f64());
    assert_eq!(run_on_node(&deployment, 3, "GET bar").text(), "1");
    kit.expect_ok(&json!({"id": 3, "do": "restart", "node": 0, "data": false}));
    kit.expect_ok(&json!({"id": 4, "do": "wait", "until": "whole", "seconds": 60}));
    assert_eq!(run_on_node(&deployment, 0, "DBSIZE").int(), 1, "it has the data of its new master");

    kit.expect_ok(&json!({"id": 5, "do": "move-slot", "slot": 5061, "to": 1}));
    assert_eq!(run_on_node(&deployment, 1, "GET bar").text(), "1");
    kit.expect_ok(&json!({"id": 6, "do": "failover", "node": 0}));
    kit.expect_ok(&json!({"id": 7, "do": "freeze", "node": 2}));
    kit.expect_ok(&json!({"id": 8, "do": "wait", "until": "replaced", "node": 2, "seconds": 60}));
    kit.expect_ok(&json!({"id": 9, "do": "thaw", "node": 2}));
    kit.expect_ok(&json!({"id": 10, "do": "wait", "until": "whole", "seconds": 60}));
    let shown = kit.expect_ok(&json!({"id": 11, "do": "show"}));
    assert_eq!(node_roles(&shown), ["master", "master", "replica", "replica", "replica", "master"]);
    drop(kit);
    assert!(has_no_leftovers(&deployment));
}

/// Sentinels replace a master that a partition separates from them, although clients still reach it.
#[test]
fn testkit_partitions_network_without_privileges() {
    let (mut kit, deployment) = TestkitProcess::start(&["sentinel", "--partitions"]);
    assert_eq!(node_roles(&deployment), ["master", "replica", "replica", "sentinel", "sentinel", "sentinel"]);
    kit.expect_ok(&json!({"id": "cut", "do": "partition", "groups": [[0]]}));
    kit.expect_ok(&json!({"id": "away", "do": "wait", "until": "replaced", "node": 0, "seconds": 60}));
    assert_eq!(
        run_on_node(&deployment, 0, "ROLE").items()[0].text(),
        "master",
        "it does not know of its replacement"
    );
    kit.expect_ok(&json!({"id": "whole", "do": "heal"}));
    kit.expect_ok(&json!({"id": "back", "do": "wait", "until": "whole", "seconds": 60}));
    assert_eq!(run_on_node(&deployment, 0, "ROLE").items()[0].text(), "slave");
    let new = kit.expect_ok(&json!({"id": "again", "do": "failover"}));
    assert!(new["node"].is_u64());
}

/// In a group with TLS, the sentinels announce the TLS ports of the servers, even after a failover.
#[test]
fn sentinel_group_uses_tls_for_all_connections() {
    let certificates = TempDir::new().expect("a folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/make-certificates");
    let (status, printed) = run_to_end(Command::new(script).arg(certificates.path()));
    assert!(status.success(), "{printed}");
    let folder = certificates.path().to_str().expect("a path of text");
    let (mut kit, deployment) = TestkitProcess::start(&["sentinel", "--tls", folder]);
    assert_eq!(node_roles(&deployment), ["master", "replica", "replica", "sentinel", "sentinel", "sentinel"]);
    let tls_port = |node: &Value| node["tls_port"].as_u64().expect("a port for TLS");
    let told = |deployment: &Value| {
        let told = run_on_node(deployment, 3, "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster").items()[1].text();
        let nodes = deployment["nodes"].as_array().expect("nodes");
        nodes.iter().position(|node| tls_port(node).to_string() == told)
    };
    assert_eq!(told(&deployment), Some(0));
    let replicas = format!("{:?}", run_on_node(&deployment, 4, "SENTINEL REPLICAS mymaster"));
    assert!(
        (1..3).all(|node| replicas.contains(&tls_port(&deployment["nodes"][node]).to_string())),
        "{replicas}"
    );
    kit.expect_ok(&json!({"id": 1, "do": "kill", "node": 0}));
    kit.expect_ok(&json!({"id": 2, "do": "wait", "until": "replaced", "node": 0, "seconds": 60}));
    kit.expect_ok(&json!({"id": 3, "do": "restart", "node": 0}));
    kit.expect_ok(&json!({"id": 4, "do": "wait", "until": "whole", "seconds": 60}));
    let shown = kit.expect_ok(&json!({"id": 5, "do": "show"}));
    let master = told(&shown).expect("a server");
    assert_eq!(shown["nodes"][0]["master"], json!(master), "the killed master replicates its successor");
    let successor = tls_port(&shown["nodes"][master]).to_string();
    let over_tls = ["-p", &successor, "--tls", "--cacert", &format!("{folder}/ca.crt"), "SET", "k", "v"];
    assert_eq!(redis_cli(&over_tls).expect("it answers").trim(), "OK");
}

/// The started servers must end even if both the test process and the testkit process are killed.
#[test]
fn started_processes_end_when_testkit_is_killed() {
    let (mut kit, deployment) = TestkitProcess::start(&["cluster", "--replicas", "0"]);
    assert!(!has_no_leftovers(&deployment));
    kit.child.kill().expect("a child can be killed");
    eventually("everything is cleaned up", || has_no_leftovers(&deployment).then_some(()));
}

/// Every invalid request gets an error, and the running deployment is not affected.
#[test]
fn testkit_reports_invalid_requests() {
    let (mut kit, deployment) = TestkitProcess::start(&["server", "--option", "--maxmemory 100mb"]);
    assert_eq!(run_on_node(&deployment, 0, "CONFIG GET maxmemory").items()[1].text(), "104857600");
    kit.expect_error(&json!({"id": 1, "do": "kill", "node": 7}), "there is no node 7");
    kit.expect_error(&json!({"id": 2, "do": "partition", "groups": [[0]]}), "without \"partitions\": true");
    kit.expect_error(&json!({"id": 3, "do": "thaw", "node": 0}), "not frozen");
    kit.expect_error(&json!({"id": 4, "do": "failover"}), "has no replica");
    kit.expect_error(&json!({"id": 5, "do": "show", "place": "attic"}), "there is no deployment attic");
    kit.expect_error(
        &json!({"id": 6, "do": "start", "kind": "server", "options": ["--no-such-thing 1"]}),
        "ended at its start",
    );
    kit.expect_error(&json!({"id": null, "do": "dance"}), "unknown variant");
    let second = kit.expect_ok(&json!({"id": 7, "do": "start", "kind": "server"}));
    kit.expect_error(&json!({"id": 8, "do": "kill", "node": 0}), "several deployments are running");
    kit.expect_ok(&json!({"id": 9, "do": "end", "place": second["place"]}));
    assert_eq!(run_on_node(&deployment, 0, "PING").text(), "PONG");
}
