//! Tests of `redoubt rdb`, which lists the content of an RDB file of any server.

use std::path::{Path, PathBuf};

use harness::{Node, Program, run_to_end};
use serde_json::Value as Json;

fn run_rdb_command(file: &Path, options: &[&str]) -> (bool, String) {
    let program = Program::redoubt();
    let mut command = std::process::Command::new(program.binary());
    let (status, output) = run_to_end(command.arg("rdb").args(options).arg(file));
    (status.success(), output)
}

fn list_rdb_file(file: &Path, options: &[&str]) -> Vec<Json> {
    let (ok, output) = run_rdb_command(file, &[options, &["--format", "json"]].concat());
    assert!(ok, "{output}");
    output.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

fn testdata_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/persistence/testdata").join(name)
}

fn fill_with_all_types(node: &Node) {
    let mut connection = node.connect();
    for number in 0..2000 {
        connection.call(&["SET", &format!("user:{number}:name"), &format!("name of {number}")]).expect_ok();
    }
    for number in 0..5000 {
        let (name, score) = (format!("member:{number}"), number.to_string());
        connection.call(&["ZADD", "board", &score, &name]);
        connection.call(&["HSET", "fields", &name, &"v".repeat(30)]);
    }
    for line in ["RPUSH list a b c", "SADD set 1 2 3", "XADD stream 1-1 a 1", "SET soon x PXAT 4102444800123"]
    {
        connection.call_line(line);
    }
}

/// Compares types, element counts, encodings and expiries in the listing with the server's own replies.
fn check_listing_against_server(program: &Program) {
    let node = Node::start(program, "--save ");
    fill_with_all_types(&node);
    node.run("SAVE").expect_ok();
    let rows = list_rdb_file(&node.folder().join("dump.rdb"), &[]);
    assert_eq!(rows.len() as i64, node.run("DBSIZE").int());
    for row in rows.iter().filter(|row| !row["key"].as_str().is_some_and(|key| key.contains(":1"))) {
        let key = row["key"].as_str().expect("a name");
        assert_eq!(row["type"], node.run(&format!("TYPE {key}")).text(), "{key}");
        assert_eq!(
            row["expires_at"].as_i64().unwrap_or(-1),
            node.run(&format!("PEXPIRETIME {key}")).int(),
            "{key}"
        );
        let encoding = node.run(&format!("OBJECT ENCODING {key}")).text();
        // Redis 7.0 has no listpack encoding for small lists and sets of strings.
        if program.name() == Program::redoubt().name() || !["list", "set"].contains(&key) {
            assert_eq!(row["encoding"], encoding, "{key}");
        }
    }
    let elements = |key: &str| rows.iter().find(|row| row["key"] == key).map(|row| row["elements"].clone());
    for (key, count) in [("board", 5000), ("fields", 5000), ("list", 3), ("set", 3), ("stream", 1)] {
        assert_eq!(elements(key), Some(count.into()), "{key}");
    }
}

#[test]
fn rdb_listing_of_redoubt_file_matches_the_server() {
    check_listing_against_server(&Program::redoubt());
}

#[test]
fn rdb_listing_of_redis_file_matches_redis() {
    check_listing_against_server(&Program::redis());
}

#[test]
fn rdb_command_lists_files_of_valkey_9_and_redis_8() {
    for (file, kind, keys) in [
        ("valkey-9.1-fields.rdb", "hash", 2),
        ("valkey-9.1-stream.rdb", "stream", 3),
        ("redis-8.0-fields.rdb", "hash", 2),
        ("redis-8.0-set.rdb", "set", 4),
    ] {
        let rows = list_rdb_file(&testdata_path(file), &[]);
        assert_eq!(rows.iter().filter(|row| row["type"] == kind).count(), keys, "{file}");
        assert_eq!(rows.len(), keys);
    }
}

#[test]
fn memory_report_matches_the_servers_memory_use() {
    let node = Node::start(&Program::redoubt(), "--save ");
    let used = || node.info("memory", "used_memory").expect("it is shown").parse::<f64>().expect("a number");
    let before = used();
    let mut connection = node.connect();
    for number in 0..160_000 {
        let (key, value) = (format!("session:{number:08}:data"), format!("{number:040}"));
        connection.send(&["SET", &key, &value]).expect("it is sent");
        connection.send(&["HSET", "all", &key, &value]).expect("it is sent");
        if number % 100 == 99 {
            (0..200).for_each(|_| drop(connection.read().expect("it is answered")));
        }
    }
    let taken = used() - before;
    node.run("SAVE").expect_ok();
    let file = node.folder().join("dump.rdb");
    let (ok, output) = run_rdb_command(&file, &["--report", "--format", "json"]);
    assert!(ok, "{output}");
    let report: Json = serde_json::from_str(&output).expect("it is JSON");
    let estimated = report["total"]["bytes"].as_f64().expect("a number");
    assert!((estimated / taken - 1.0).abs() < 0.15, "{estimated} estimated, {taken} taken");
    assert_eq!(report["biggest"][0]["key"], "all");
    let prefixes = report["prefixes"].as_array().expect("a list");
    let sessions = prefixes.iter().find(|prefix| prefix["name"] == "session:*:data").expect("its prefix");
    assert_eq!(sessions["keys"], 160_000);
    let (ok, output) = run_rdb_command(&file, &["--report", "--top", "3"]);
    assert!(ok && output.contains("session:*:data") && output.contains("biggest keys"), "{output}");
    let (ok, output) = run_rdb_command(&file, &["--report", "--format", "csv", "--type", "hash"]);
    assert!(ok && output.contains("total,") && !output.contains("session:*"), "{output}");
}

/// Both the file and one value in it are larger than the memory limit of the command.
#[test]
fn rdb_command_memory_does_not_grow_with_the_file() {
    let node = Node::start(&Program::redoubt(), "--save  --rdbcompression no --enable-debug-command yes");
    node.run("DEBUG POPULATE 150000 key 1000").expect_ok();
    let mut connection = node.connect();
    let value = "v".repeat(1000);
    for batch in 0..100 {
        for number in 0..1000 {
            let field = format!("field:{}", batch * 1000 + number);
            connection.send(&["HSET", "large", &field, &value]).expect("it is sent");
        }
        (0..1000).for_each(|_| drop(connection.read().expect("it is answered")));
    }
    node.run("SAVE").expect_ok();
    let file = node.folder().join("dump.rdb");
    assert!(file.metadata().expect("it is there").len() > 250_000_000);
    let program = Program::redoubt();
    let script = "ulimit -v 130000; \"$0\" rdb --report \"$1\"";
    let mut command = std::process::Command::new("sh");
    let (status, output) = run_to_end(command.args(["-c", script]).arg(program.binary()).arg(&file));
    assert!(status.success() && output.contains("150001 keys"), "{output}");
}

#[test]
fn truncated_rdb_file_is_listed_partially_with_an_error() {
    let node = Node::start(&Program::redoubt(), "--save  --enable-debug-command yes");
    node.run("DEBUG POPULATE 1000 key 50").expect_ok();
    node.run("SAVE").expect_ok();
    let file = node.folder().join("dump.rdb");
    let bytes = std::fs::read(&file).expect("it was saved");
    std::fs::write(&file, &bytes[..bytes.len() / 2]).expect("it can be written");
    let (ok, output) = run_rdb_command(&file, &["--format", "csv"]);
    assert!(!ok && output.contains("at offset") && output.contains("unexpected end of file"), "{output}");
    assert!(output.lines().count() > 400, "{output}");
    assert!(run_rdb_command(&file, &["--report"]).1.contains("keys"));
    let (ok, output) = run_rdb_command(Path::new("/dev/null"), &[]);
    assert!(!ok && output.contains("unexpected end"), "{output}");
}
