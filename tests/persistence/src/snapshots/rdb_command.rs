//! `redoubt rdb`: the content of a file, whichever server wrote it.

use std::path::{Path, PathBuf};

use harness::{Node, Program, run_to_end};
use serde_json::Value as Json;

fn rdb(file: &Path, options: &[&str]) -> (bool, String) {
    let program = Program::redoubt();
    let mut command = std::process::Command::new(program.binary());
    let (status, said) = run_to_end(command.arg("rdb").args(options).arg(file));
    (status.success(), said)
}

fn rows(file: &Path, options: &[&str]) -> Vec<Json> {
    let (ok, said) = rdb(file, &[options, &["--format", "json"]].concat());
    assert!(ok, "{said}");
    said.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/persistence/testdata").join(name)
}

fn fill(node: &Node) {
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
        connection.run(line);
    }
}

/// Types, numbers of elements, names of encodings and times are those that the server itself says.
fn says_what_the_server_says(program: &Program) {
    let node = Node::start(program, "--save ");
    fill(&node);
    node.run("SAVE").expect_ok();
    let rows = rows(&node.folder().join("dump.rdb"), &[]);
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
        // Redis 7.0 has no small lists and sets of words under their later names.
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
fn of_our_own_file_it_says_what_the_server_says() {
    says_what_the_server_says(&Program::redoubt());
}

#[test]
fn of_a_file_of_a_real_redis_too() {
    says_what_the_server_says(&Program::redis());
}

#[test]
fn files_of_valkey_9_and_redis_8_are_listed() {
    for (file, kind, keys) in [
        ("valkey-9.1-fields.rdb", "hash", 2),
        ("valkey-9.1-stream.rdb", "stream", 3),
        ("redis-8.0-fields.rdb", "hash", 2),
        ("redis-8.0-set.rdb", "set", 4),
    ] {
        let rows = rows(&fixture(file), &[]);
        assert_eq!(rows.iter().filter(|row| row["type"] == kind).count(), keys, "{file}");
        assert_eq!(rows.len(), keys);
    }
}

#[test]
fn a_report_says_what_takes_the_memory_as_the_server_has_it() {
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
    let (ok, said) = rdb(&file, &["--report", "--format", "json"]);
    assert!(ok, "{said}");
    let report: Json = serde_json::from_str(&said).expect("it is JSON");
    let reckoned = report["total"]["bytes"].as_f64().expect("a number");
    assert!((reckoned / taken - 1.0).abs() < 0.15, "{reckoned} reckoned, {taken} taken");
    assert_eq!(report["biggest"][0]["key"], "all");
    let prefixes = report["prefixes"].as_array().expect("a list");
    let sessions = prefixes.iter().find(|prefix| prefix["name"] == "session:*:data").expect("its prefix");
    assert_eq!(sessions["keys"], 160_000);
    let (ok, said) = rdb(&file, &["--report", "--top", "3"]);
    assert!(ok && said.contains("session:*:data") && said.contains("biggest keys"), "{said}");
    let (ok, said) = rdb(&file, &["--report", "--format", "csv", "--type", "hash"]);
    assert!(ok && said.contains("total,") && !said.contains("session:*"), "{said}");
}

/// With far less memory than the file is long, one large value in it included.
#[test]
fn memory_does_not_grow_with_the_file() {
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
    let (status, said) = run_to_end(command.args(["-c", script]).arg(program.binary()).arg(&file));
    assert!(status.success() && said.contains("150001 keys"), "{said}");
}

#[test]
fn a_file_that_is_cut_shows_what_is_before_that_and_fails() {
    let node = Node::start(&Program::redoubt(), "--save  --enable-debug-command yes");
    node.run("DEBUG POPULATE 1000 key 50").expect_ok();
    node.run("SAVE").expect_ok();
    let file = node.folder().join("dump.rdb");
    let bytes = std::fs::read(&file).expect("it was saved");
    std::fs::write(&file, &bytes[..bytes.len() / 2]).expect("it can be written");
    let (ok, said) = rdb(&file, &["--format", "csv"]);
    assert!(!ok && said.contains("at offset") && said.contains("unexpected end of file"), "{said}");
    assert!(said.lines().count() > 400, "{said}");
    assert!(rdb(&file, &["--report"]).1.contains("keys"));
    let (ok, said) = rdb(Path::new("/dev/null"), &[]);
    assert!(!ok && said.contains("unexpected end"), "{said}");
}
