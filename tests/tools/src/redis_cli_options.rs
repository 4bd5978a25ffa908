//! Tests of MEMORY DOCTOR and of the options of `redis-cli` that inspect a server: --bigkeys, --memkeys, --hotkeys,
//! --stat and --latency.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use harness::{Node, Program};

/// Starts a server with keys of every type, some of which are accessed often.
fn start_with_data() -> (Node, String) {
    let node =
        Node::start(&Program::redoubt(), "--save  --maxmemory-policy allkeys-lfu --enable-debug-command yes");
    let mut connection = node.connect();
    connection.call_line("DEBUG POPULATE 1000 small 10").expect_ok();
    connection.call(&["SET", "large", &"x".repeat(100_000)]).expect_ok();
    for line in [
        "RPUSH list a b c d",
        "HSET hash f v g w",
        "SADD set a b c",
        "ZADD zset 1 a 2 b",
        "XADD stream * f v",
    ] {
        connection.call_line(line);
    }
    for _ in 0..2000 {
        connection.call_line("GET large");
    }
    let port = node.address().rsplit(':').next().expect("a port").to_owned();
    (node, port)
}

fn run_redis_cli(port: &str, options: &[&str]) -> String {
    harness::redis_cli(&[&["-p", port], options].concat()).expect("it succeeds")
}

#[test]
fn redis_cli_finds_large_and_hot_keys() {
    let (_node, port) = start_with_data();
    let text = run_redis_cli(&port, &["--bigkeys"]);
    for line in [
        "Sampled 1006 keys in the keyspace!",
        "Biggest string found \"large\" has 100000 bytes",
        "Biggest   list found \"list\" has 4 items",
        "Biggest   hash found \"hash\" has 2 fields",
        "Biggest    set found \"set\" has 3 members",
        "Biggest   zset found \"zset\" has 2 members",
        "Biggest stream found \"stream\" has 1 entries",
    ] {
        assert!(text.replace("'\"", "\"").replace("\"'", "\"").contains(line), "{line}:\n{text}");
    }
    let text = run_redis_cli(&port, &["--memkeys"]);
    assert!(text.contains("Biggest string found '\"large\"' has"), "{text}");
    assert!(text.contains("Sampled 1006 keys in the keyspace!"), "{text}");
    let text = run_redis_cli(&port, &["--hotkeys"]);
    let hottest = text.lines().find(|line| line.starts_with("hot key found with counter:"));
    assert!(hottest.is_some_and(|line| line.ends_with("keyname: \"large\"")), "{text}");
}

#[test]
fn redis_cli_shows_live_statistics_and_latency() {
    let (node, port) = start_with_data();
    let mut cli = Command::new("redis-cli")
        .args(["-p", &port, "--stat", "-i", "0.05"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli is there");
    let lines = BufReader::new(cli.stdout.take().expect("its output is ours")).lines();
    let lines: Vec<String> = lines.take(6).map(|line| line.expect("text")).collect();
    cli.kill().and_then(|()| cli.wait()).expect("it ends");
    assert!(lines[1].starts_with("keys       mem      clients blocked requests"), "{lines:?}");
    for line in &lines[2..] {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(words[0] == "1006" && words[1].ends_with(['K', 'M']) && words[2] == "1", "{lines:?}");
    }
    let text = self::run_redis_cli(&port, &["--latency", "--raw", "-i", "1"]);
    let numbers: Vec<f64> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    assert!(numbers.len() == 4 && numbers[3] > 10.0, "least, most, mean and samples: {text}");
    let advice = node.run("MEMORY DOCTOR").text();
    assert!(advice.contains("Sam"), "{advice}");
}

/// Some options of redis-server test the machine instead of starting a server.
#[test]
fn server_examines_system_and_memory_on_request() {
    let redoubt = |arguments: &[&str]| {
        let program = Program::redoubt();
        let mut command = Command::new(program.binary());
        harness::run_to_end(command.arg("server").args(arguments))
    };
    let (_, printed) = redoubt(&["--check-system"]);
    assert!(printed.contains("overcommit"), "{printed}");
    let (status, printed) = redoubt(&["--test-memory", "4", "2"]);
    assert!(status.success() && printed.contains("Pass 2 of 2"), "{printed}");
    assert!(printed.contains("Your memory passed this test."), "{printed}");
    for wrong in [&["--test-memory"][..], &["--test-memory", "x"], &["--test-memory", "1", "0"]] {
        let (status, printed) = redoubt(wrong);
        assert!(!status.success() && printed.contains("in megabytes"), "{wrong:?}: {printed}");
    }
}
