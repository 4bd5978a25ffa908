//! `redoubt testkit`, as a test in another language uses it: lines of JSON in, lines of JSON out.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use harness::{Connection, Program, Value as Reply, eventually, redis_cli, run_to_end};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Kit {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Kit {
    fn start(arguments: &[&str]) -> (Self, Value) {
        let mut command = Command::new(Program::redoubt().binary());
        command.arg("testkit").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (requests, answers) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        let mut kit = Self { child, requests, answers: BufReader::new(answers) };
        let began = kit.answer();
        (kit, began["ok"].clone())
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer comes");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn ask(&mut self, request: &Value) -> Value {
        let requests = self.requests.as_mut().expect("it is not ended");
        writeln!(requests, "{request}").expect("it reads");
        let answer = self.answer();
        assert_eq!(answer["id"], request["id"], "{answer}");
        answer
    }

    fn done(&mut self, request: &Value) -> Value {
        let answer = self.ask(request);
        assert!(answer["error"].is_null(), "{request}: {answer}");
        answer["ok"].clone()
    }

    fn refused(&mut self, request: &Value, why: &str) {
        let answer = self.ask(request);
        let said = answer["error"].as_str().unwrap_or_default();
        assert!(said.contains(why), "{request}: {answer}");
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}

fn port(place: &Value, node: usize) -> u16 {
    place["nodes"][node]["port"].as_u64().expect("a port") as u16
}

fn run(place: &Value, node: usize, line: &str) -> Reply {
    Connection::open(("127.0.0.1", port(place, node))).expect("it listens").run(line)
}

fn roles(place: &Value) -> Vec<&str> {
    let nodes = place["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node["role"].as_str().unwrap_or("none")).collect()
}

/// The folders of all nodes lie in this one.
fn folder(place: &Value) -> PathBuf {
    let node = Path::new(place["nodes"][0]["folder"].as_str().expect("a path"));
    node.parent().expect("the test kit's own").to_owned()
}

fn is_clean(place: &Value) -> bool {
    let nodes = place["nodes"].as_array().expect("nodes");
    let refuses = |node| Connection::open(("127.0.0.1", port(place, node))).is_err();
    (0..nodes.len()).all(refuses) && !folder(place).exists()
}

/// A master dies and comes back empty; another freezes; a slot moves; a replica takes over. At the end nothing is left.
#[test]
fn a_cluster_is_broken_and_mended_on_request() {
    let (mut kit, place) = Kit::start(&["cluster"]);
    assert_eq!(roles(&place), ["master", "master", "master", "replica", "replica", "replica"]);
    // Slot 5061. WAIT waits for what its own connection wrote.
    let mut master = Connection::open(("127.0.0.1", port(&place, 0))).expect("it listens");
    master.run("SET bar 1").expect_ok();
    assert_eq!(master.run("WAIT 1 20000").int(), 1);

    kit.done(&json!({"id": 1, "do": "kill", "node": 0}));
    let took = kit.done(&json!({"id": 2, "do": "wait", "until": "replaced", "node": 0, "seconds": 60}));
    assert!(took["seconds"].is_f64());
    assert_eq!(run(&place, 3, "GET bar").text(), "1");
    kit.done(&json!({"id": 3, "do": "restart", "node": 0, "data": false}));
    kit.done(&json!({"id": 4, "do": "wait", "until": "whole", "seconds": 60}));
    assert_eq!(run(&place, 0, "DBSIZE").int(), 1, "its new master gave it its data");

    kit.done(&json!({"id": 5, "do": "move-slot", "slot": 5061, "to": 1}));
    assert_eq!(run(&place, 1, "GET bar").text(), "1");
    kit.done(&json!({"id": 6, "do": "failover", "node": 0}));
    kit.done(&json!({"id": 7, "do": "freeze", "node": 2}));
    kit.done(&json!({"id": 8, "do": "wait", "until": "replaced", "node": 2, "seconds": 60}));
    kit.done(&json!({"id": 9, "do": "thaw", "node": 2}));
    kit.done(&json!({"id": 10, "do": "wait", "until": "whole", "seconds": 60}));
    let shown = kit.done(&json!({"id": 11, "do": "show"}));
    assert_eq!(roles(&shown), ["master", "master", "replica", "replica", "replica", "master"]);
    drop(kit);
    assert!(is_clean(&place));
}

/// Sentinels replace a master that only the network has taken from them, and its clients still reach it.
#[test]
fn a_partition_needs_no_privileges() {
    let (mut kit, place) = Kit::start(&["sentinel", "--partitions"]);
    assert_eq!(roles(&place), ["master", "replica", "replica", "sentinel", "sentinel", "sentinel"]);
    kit.done(&json!({"id": "cut", "do": "partition", "groups": [[0]]}));
    kit.done(&json!({"id": "away", "do": "wait", "until": "replaced", "node": 0, "seconds": 60}));
    assert_eq!(run(&place, 0, "ROLE").items()[0].text(), "master", "it knows of nothing");
    kit.done(&json!({"id": "whole", "do": "heal"}));
    kit.done(&json!({"id": "back", "do": "wait", "until": "whole", "seconds": 60}));
    assert_eq!(run(&place, 0, "ROLE").items()[0].text(), "slave");
    let new = kit.done(&json!({"id": "again", "do": "failover"}));
    assert!(new["node"].is_u64());
}

/// A group that speaks TLS: whatever sentinels say of its servers is where they speak it, also after a failover.
#[test]
fn a_group_speaks_tls_throughout() {
    let certificates = TempDir::new().expect("a folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/make-certificates");
    let (status, printed) = run_to_end(Command::new(script).arg(certificates.path()));
    assert!(status.success(), "{printed}");
    let folder = certificates.path().to_str().expect("a path of text");
    let (mut kit, place) = Kit::start(&["sentinel", "--tls", folder]);
    assert_eq!(roles(&place), ["master", "replica", "replica", "sentinel", "sentinel", "sentinel"]);
    let tls_port = |node: &Value| node["tls_port"].as_u64().expect("a port for TLS");
    let told = |place: &Value| {
        let told = run(place, 3, "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster").items()[1].text();
        let nodes = place["nodes"].as_array().expect("nodes");
        nodes.iter().position(|node| tls_port(node).to_string() == told)
    };
    assert_eq!(told(&place), Some(0));
    let replicas = format!("{:?}", run(&place, 4, "SENTINEL REPLICAS mymaster"));
    assert!((1..3).all(|node| replicas.contains(&tls_port(&place["nodes"][node]).to_string())), "{replicas}");
    kit.done(&json!({"id": 1, "do": "kill", "node": 0}));
    kit.done(&json!({"id": 2, "do": "wait", "until": "replaced", "node": 0, "seconds": 60}));
    kit.done(&json!({"id": 3, "do": "restart", "node": 0}));
    kit.done(&json!({"id": 4, "do": "wait", "until": "whole", "seconds": 60}));
    let shown = kit.done(&json!({"id": 5, "do": "show"}));
    let master = told(&shown).expect("a server");
    assert_eq!(shown["nodes"][0]["master"], json!(master), "the dead one follows its successor");
    let successor = tls_port(&shown["nodes"][master]).to_string();
    let over_tls = ["-p", &successor, "--tls", "--cacert", &format!("{folder}/ca.crt"), "SET", "k", "v"];
    assert_eq!(redis_cli(&over_tls).expect("it answers").trim(), "OK");
}

/// The test's process is killed, and the test kit's own with it: what it started ends all the same.
#[test]
fn nothing_is_left_when_everybody_dies() {
    let (mut kit, place) = Kit::start(&["cluster", "--replicas", "0"]);
    assert!(!is_clean(&place));
    kit.child.kill().expect("a child can be killed");
    eventually("the sweeper has swept", || is_clean(&place).then_some(()));
}

/// Each mistake is answered, and what stands goes on standing.
#[test]
fn mistakes_are_answered() {
    let (mut kit, place) = Kit::start(&["server", "--option", "--maxmemory 100mb"]);
    assert_eq!(run(&place, 0, "CONFIG GET maxmemory").items()[1].text(), "104857600");
    kit.refused(&json!({"id": 1, "do": "kill", "node": 7}), "there is no node 7");
    kit.refused(&json!({"id": 2, "do": "partition", "groups": [[0]]}), "without \"partitions\": true");
    kit.refused(&json!({"id": 3, "do": "thaw", "node": 0}), "not frozen");
    kit.refused(&json!({"id": 4, "do": "failover"}), "has no replica");
    kit.refused(&json!({"id": 5, "do": "show", "place": "attic"}), "there is no deployment attic");
    kit.refused(
        &json!({"id": 6, "do": "start", "kind": "server", "options": ["--no-such-thing 1"]}),
        "ended at its start",
    );
    kit.refused(&json!({"id": null, "do": "dance"}), "unknown variant");
    let second = kit.done(&json!({"id": 7, "do": "start", "kind": "server"}));
    kit.refused(&json!({"id": 8, "do": "kill", "node": 0}), "several deployments are running");
    kit.done(&json!({"id": 9, "do": "end", "place": second["place"]}));
    assert_eq!(run(&place, 0, "PING").text(), "PONG");
}
