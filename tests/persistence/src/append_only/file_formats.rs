//! Tests of the AOF format variants: a base in RESP, timestamps, files left by other versions and by crashes, and the
//! check tools.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Node, Program, Reply, eventually, run_to_end};

const SERVER_OPTIONS: &str = "--save  --appendonly yes --enable-debug-command yes";
const RESP_BASE_OPTION: &str = "--aof-use-rdb-preamble no";

fn wait_until_loaded(node: &Node) {
    eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
}

fn aof_dir(node: &Node) -> PathBuf {
    node.folder().join("appendonlydir")
}

fn manifest_file_names(node: &Node) -> Vec<String> {
    let manifest = fs::read_to_string(aof_dir(node).join("appendonly.aof.manifest")).expect("a manifest");
    manifest.lines().map(|line| line.split(' ').nth(1).expect("a name").to_owned()).collect()
}

fn rewrite_count(node: &Node) -> u64 {
    node.info("persistence", "aof_rewrites").expect("it is shown").parse().expect("a number")
}

fn rewrite_aof(node: &Node) {
    let before = rewrite_count(node);
    node.run("BGREWRITEAOF");
    eventually("the rewrite ends", || (rewrite_count(node) > before).then_some(()));
    assert_eq!(node.info("persistence", "aof_last_bgrewrite_status").as_deref(), Some("ok"));
}

fn copy_aof_files(from: &Node, to: &Node) {
    let _ = fs::remove_dir_all(aof_dir(to));
    fs::create_dir_all(aof_dir(to)).expect("a folder");
    for file in fs::read_dir(aof_dir(from)).expect("the folder").filter_map(Result::ok) {
        fs::copy(file.path(), aof_dir(to).join(file.file_name())).expect("a copy");
    }
}

/// Writes values of every type, small and large, some with an expiry, to two databases.
fn fill_with_all_types(node: &Node) {
    let mut connection = node.connect();
    for line in [
        "SET string value",
        "SET number 12345",
        "SET soon x PXAT 4102444800123",
        "RPUSH list a 1 -300",
        "SADD integers 1 2 3",
        "SADD words a b",
        "ZADD scores 1 a 2.5 b -inf c inf d 1e22 e",
        "HSET hash a 1 b 2",
        "PEXPIREAT hash 4102444800456",
        "XADD stream 1-1 a 1 b 2",
        "XADD stream 1-2 a 3",
        "XADD stream 2-0 c 4",
        "XDEL stream 1-2",
        "XADD empty 5-5 a 1",
        "XDEL empty 5-5",
        "XGROUP CREATE stream group 0",
        "XGROUP CREATECONSUMER stream group idle",
        "XREADGROUP GROUP group worker COUNT 1 STREAMS stream >",
        "XGROUP CREATE empty none 0 MKSTREAM",
        "SELECT 3",
        "SET other db",
    ] {
        let reply = connection.call_line(line);
        assert!(!reply.is_error("ERR"), "{line}: {reply:?}");
    }
    for number in 0..3000 {
        let (element, score) = (format!("element {number}"), number.to_string());
        for words in [
            &["RPUSH", "long", &element][..],
            &["SADD", "many", &element],
            &["ZADD", "board", &score, &element],
            &["HSET", "fields", &element, &score],
            &["XADD", "log", &format!("{number}-1"), "n", &score],
        ] {
            connection.send(words).expect("it is sent");
        }
    }
    (0..15_000).for_each(|_| drop(connection.read().expect("it is answered")));
}

#[test]
fn resp_base_has_all_data_and_redis_loads_it() {
    let mut ours = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} {RESP_BASE_OPTION}"));
    fill_with_all_types(&ours);
    rewrite_aof(&ours);
    ours.run("SET after rewrite").expect_ok();
    let base = manifest_file_names(&ours)[0].clone();
    assert!(base.ends_with(".base.aof"), "{base}");
    assert!(fs::read(aof_dir(&ours).join(base)).expect("the base").starts_with(b"*"));
    let digest = ours.run("DEBUG DIGEST");
    let groups = ours.run("XINFO STREAM stream FULL");
    assert!(ours.terminate().success());
    ours.launch();
    wait_until_loaded(&ours);
    assert_eq!(ours.run("DEBUG DIGEST"), digest);
    let pending = |reply: &Reply| format!("{reply:?}").matches("worker").count();
    assert_eq!(pending(&ours.run("XINFO STREAM stream FULL")), pending(&groups));
    let mut theirs = Node::prepare(&Program::redis(), &format!("{SERVER_OPTIONS} {RESP_BASE_OPTION}"));
    copy_aof_files(&ours, &theirs);
    theirs.launch();
    wait_until_loaded(&theirs);
    assert_eq!(theirs.run("DEBUG DIGEST"), digest);
    for line in ["XPENDING stream group", "XINFO GROUPS stream", "XINFO GROUPS empty", "XLEN empty"] {
        assert_eq!(theirs.run(line), ours.run(line), "{line}");
    }
    // Redis rewrites the base file that it loaded from Redoubt, and Redoubt must load the new one.
    theirs.run("SET from redis").expect_ok();
    theirs.run("BGREWRITEAOF");
    eventually("the rewrite ends", || {
        (theirs.info("persistence", "aof_rewrite_in_progress")? == "0"
            && manifest_file_names(&theirs)[0] != manifest_file_names(&ours)[0])
            .then_some(())
    });
    let digest = theirs.run("DEBUG DIGEST");
    assert!(theirs.terminate().success());
    copy_aof_files(&theirs, &ours);
    ours.kill();
    copy_aof_files(&theirs, &ours);
    ours.launch();
    wait_until_loaded(&ours);
    assert_eq!(ours.run("DEBUG DIGEST"), digest);
}

#[test]
fn each_rewrite_uses_the_configured_base_format() {
    let node = Node::start(&Program::redoubt(), SERVER_OPTIONS);
    for (value, end) in [("no", ".base.aof"), ("yes", ".base.rdb"), ("no", ".base.aof")] {
        node.run(&format!("CONFIG SET aof-use-rdb-preamble {value}")).expect_ok();
        rewrite_aof(&node);
        assert!(manifest_file_names(&node)[0].ends_with(end), "{:?}", manifest_file_names(&node));
    }
}

#[test]
fn aof_is_rewritten_automatically_after_growth() {
    let node = Node::start(
        &Program::redoubt(),
        &format!("{SERVER_OPTIONS} --auto-aof-rewrite-min-size 50kb --auto-aof-rewrite-percentage 100"),
    );
    let before = rewrite_count(&node);
    let mut connection = node.connect();
    let value = "v".repeat(1000);
    (0..30).for_each(|_| connection.call(&["SET", "key", &value]).expect_ok());
    assert_eq!(rewrite_count(&node), before, "the file is below auto-aof-rewrite-min-size");
    let size = || node.info("persistence", "aof_current_size").and_then(|size| size.parse::<u64>().ok());
    (0..100).for_each(|_| connection.call(&["SET", "key", &value]).expect_ok());
    eventually("the file is rewritten", || (rewrite_count(&node) > before).then_some(()));
    eventually("the file is small again", || (size()? < 60_000).then_some(()));
    node.run("CONFIG SET auto-aof-rewrite-percentage 0").expect_ok();
    let before = rewrite_count(&node);
    (0..200).for_each(|_| connection.call(&["SET", "key", &value]).expect_ok());
    eventually("all is written", || (size()? > 200_000).then_some(()));
    assert_eq!(rewrite_count(&node), before);
}

#[test]
fn check_aof_truncates_to_a_timestamp() {
    let mut node = Node::start(
        &Program::redoubt(),
        &format!("{SERVER_OPTIONS} --aof-timestamp-enabled yes --appendfsync always"),
    );
    node.run("SET key early").expect_ok();
    let text = || {
        String::from_utf8_lossy(
            &fs::read(aof_dir(&node).join(&manifest_file_names(&node)[1])).expect("it is there"),
        )
        .into_owned()
    };
    // The increment may have been created in the second before the first write, so only a timestamp after the first
    // write counts.
    let text = eventually("a timestamp follows the first write", || {
        node.run("SET key late").expect_ok();
        Some(text()).filter(|text| text.split_once("early").is_some_and(|(_, after)| after.contains("#TS:")))
    });
    let (before, _) = text.split_once("early").expect("the first write");
    let first: i64 = before
        .rsplit("#TS:")
        .next()
        .and_then(|rest| rest.lines().next())
        .expect("it is there")
        .parse()
        .expect("seconds");
    node.kill();
    let manifest = aof_dir(&node).join("appendonly.aof.manifest");
    let script = "echo y | \"$0\" check-aof --truncate-to-timestamp \"$1\" \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(Program::redoubt().binary()).arg(first.to_string()).arg(&manifest);
    let (status, output) = run_to_end(&mut command);
    assert!(status.success() && output.contains("Successfully truncated"), "{output}");
    let mut theirs = Node::prepare(&Program::redis(), SERVER_OPTIONS);
    copy_aof_files(&node, &theirs);
    node.launch();
    theirs.launch();
    for node in [&node, &theirs] {
        wait_until_loaded(node);
        // Both writes may have happened within the first second, so the truncated file may contain either value.
        assert!(["early", "late"].contains(&node.run("GET key").text().as_str()));
    }
    assert_eq!(node.run("GET key"), theirs.run("GET key"));
}

/// A state of the AOF directory after a crash: its description, the files to add, the manifest, and the expected number
/// of keys.
type CrashPoint<'a> = (&'a str, Vec<(&'a str, &'a [u8])>, String, i64);

/// The crash points of a rewrite that replaces the base and increment `names`; `old` is the manifest before the
/// rewrite.
fn rewrite_crash_points<'a>(names: &[String], old_manifest: &str, base: &'a [u8]) -> [CrashPoint<'a>; 6] {
    let third = "*3\r\n$3\r\nSET\r\n$5\r\nthird\r\n$1\r\n3\r\n";
    let next = "file appendonly.aof.9.incr.aof seq 9 type i\n";
    let moved = format!(
        "file new.base.rdb seq 9 type b\nfile {} seq 1 type h\nfile {} seq 1 type h\n{next}",
        names[0], names[1]
    );
    [
        ("the next increment was made", vec![("appendonly.aof.9.incr.aof", b"")], old_manifest.to_owned(), 2),
        (
            "it was named",
            vec![("appendonly.aof.9.incr.aof", third.as_bytes())],
            format!("{old_manifest}{next}"),
            3,
        ),
        (
            "the base was half written",
            vec![("temp-1.base", b"REDIS"), ("appendonly.aof.9.incr.aof", b"")],
            format!("{old_manifest}{next}"),
            2,
        ),
        ("the manifest was half written", vec![("temp-1.manifest", b"file")], old_manifest.to_owned(), 2),
        (
            "the base was put in place",
            vec![("new.base.rdb", base), ("appendonly.aof.9.incr.aof", third.as_bytes())],
            format!("{old_manifest}{next}"),
            3,
        ),
        (
            "the manifest names it",
            vec![("new.base.rdb", base), ("appendonly.aof.9.incr.aof", third.as_bytes())],
            moved,
            2,
        ),
    ]
}

/// The test recreates the directory as a crash at each step of a rewrite leaves it.
#[test]
fn no_data_is_lost_by_a_crash_at_any_step_of_a_rewrite() {
    let mut node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --appendfsync always"));
    node.run("SET first 1").expect_ok();
    rewrite_aof(&node);
    node.run("SET second 2").expect_ok();
    node.kill();
    let at = |name: &str| aof_dir(&node).join(name);
    let manifest = at("appendonly.aof.manifest");
    let before: Vec<(PathBuf, Vec<u8>)> = fs::read_dir(aof_dir(&node))
        .expect("the folder")
        .map(|file| file.expect("a file").path())
        .map(|path| (path.clone(), fs::read(&path).expect("it can be read")))
        .collect();
    let old = fs::read_to_string(&manifest).expect("a manifest");
    let names = manifest_file_names(&node);
    let base_bytes = fs::read(at(&names[0])).expect("the base");
    for (step, files, text, keys) in rewrite_crash_points(&names, &old, &base_bytes) {
        fs::remove_dir_all(aof_dir(&node)).and_then(|()| fs::create_dir(aof_dir(&node))).expect("a folder");
        before.iter().for_each(|(path, bytes)| fs::write(path, bytes).expect("it can be written"));
        files.iter().for_each(|(name, bytes)| {
            fs::write(aof_dir(&node).join(name), bytes).expect("it can be written");
        });
        fs::write(&manifest, text).expect("it can be written");
        node.launch();
        wait_until_loaded(&node);
        assert_eq!(node.run("DBSIZE"), Reply::Int(keys), "{step}");
        node.run("SET later 1").expect_ok();
        node.kill();
        let left = fs::read_dir(aof_dir(&node)).expect("the folder").filter_map(Result::ok);
        let left: Vec<String> = left.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
        let named = fs::read_to_string(&manifest).expect("a manifest");
        assert!(
            !named.contains("type h") && !left.iter().any(|name| name.starts_with("temp-")),
            "{step}: {left:?}"
        );
        node.launch();
        wait_until_loaded(&node);
        assert_eq!(node.run("DBSIZE"), Reply::Int(keys + 1), "{step}");
        node.kill();
    }
    // A missing file that the manifest names means lost data, so the server must refuse to start.
    fs::remove_file(aof_dir(&node).join(&self::manifest_file_names(&node)[0])).expect("it was there");
    node.spawn();
    assert!(!node.wait_for_exit_before_relaunch().success());
    assert!(node.log().contains("No such file"), "{}", node.log());
}

/// Before Redis 7 the AOF was a single file, with or without an RDB preamble. It must become the base.
#[test]
fn single_file_of_an_old_version_becomes_the_base() {
    let commands = "*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n2\r\n";
    let source = Node::start(&Program::redis(), "--save ");
    source.run("SET a 1").expect_ok();
    source.run("SAVE").expect_ok();
    let preamble = fs::read(source.folder().join("dump.rdb")).expect("it was saved");
    for (begin, keys) in [(&b""[..], 1), (&preamble, 2)] {
        let mut node = Node::prepare(&Program::redoubt(), SERVER_OPTIONS);
        let file = node.folder().join("appendonly.aof");
        fs::write(&file, [begin, commands.as_bytes(), b"*1\r\n"].concat()).expect("a file");
        let path = file.to_str().expect("a plain path");
        let (ok, output) = run_under_name("redis-check-aof", node.folder(), &[path]);
        assert!(!ok && output.contains("--fix"), "{output}");
        node.launch();
        wait_until_loaded(&node);
        assert_eq!(node.run("DBSIZE"), Reply::Int(keys));
        assert_eq!(node.run("GET b").text(), "2");
        assert_eq!(manifest_file_names(&node)[0], "appendonly.aof");
        rewrite_aof(&node);
        node.run("SET c 3").expect_ok();
        assert!(node.terminate().success());
        assert!(!aof_dir(&node).join("appendonly.aof").exists(), "the old file is deleted after the rewrite");
        node.launch();
        wait_until_loaded(&node);
        assert_eq!(node.run("DBSIZE"), Reply::Int(keys + 1));
    }
}

fn run_under_name(name: &str, folder: &Path, arguments: &[&str]) -> (bool, String) {
    let link = folder.join(name);
    let _ = fs::remove_file(&link);
    symlink(Program::redoubt().binary(), &link).expect("a link");
    let (status, output) = run_to_end(Command::new(link).args(arguments));
    (status.success(), output)
}

#[test]
fn check_tools_run_under_redis_and_valkey_names() {
    let mut node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --appendfsync always"));
    node.run("SET a 1").expect_ok();
    node.run("SAVE").expect_ok();
    node.kill();
    let place = node.folder().to_owned();
    let (rdb, manifest) = (place.join("dump.rdb"), aof_dir(&node).join("appendonly.aof.manifest"));
    let (rdb, manifest) = (rdb.to_str().expect("plain"), manifest.to_str().expect("plain"));
    for family in ["redis", "valkey"] {
        let (ok, output) = run_under_name(&format!("{family}-check-rdb"), &place, &[rdb]);
        assert!(ok && output.contains("RDB looks OK"), "{output}");
        let (ok, output) = run_under_name(&format!("{family}-check-aof"), &place, &[manifest]);
        assert!(ok && output.contains("All AOF files and manifest are valid"), "{output}");
        let (ok, output) = run_under_name(&format!("{family}-check-rdb"), &place, &[manifest]);
        assert!(!ok && output.contains("wrong signature"), "{output}");
    }
}

/// Limits the size of files that the server can write, to simulate a disk that is full at this size.
fn limit_file_size(node: &Node, bytes: &str) {
    let options = [format!("--pid={}", node.pid()), format!("--fsize={bytes}:unlimited")];
    let set = Command::new("prlimit").args(options).status();
    assert!(set.expect("prlimit is part of util-linux").success());
}

/// The disk fills up while the base file, the manifest or the next increment is written. Whichever write fails, the old
/// files must still hold the data, both after a kill and after space is freed.
#[test]
fn no_data_is_lost_when_the_disk_fills_at_any_point_of_a_rewrite() {
    let mut node = Node::start(&Program::redoubt(), &format!("{SERVER_OPTIONS} --appendfsync always"));
    for number in 0..20 {
        node.run(&format!("SET key:{number} {number}")).expect_ok();
    }
    for (round, bytes) in [0, 1, 30, 70, 110, 150, 230, 400, 700, 2000].into_iter().enumerate() {
        let failed = |node: &Node| node.info("persistence", "aof_rewrites_consecutive_failures");
        limit_file_size(&node, &bytes.to_string());
        node.run("BGREWRITEAOF");
        eventually("the rewrite ends or is blocked", || {
            let done = node.info("persistence", "aof_rewrite_in_progress")? == "0";
            let stuck = node.info("persistence", "aof_last_write_status")? == "err";
            (done || stuck).then_some(())
        });
        if round % 2 == 0 {
            limit_file_size(&node, "unlimited");
            eventually("there is room again", || {
                (node.info("persistence", "aof_last_write_status")? == "ok").then_some(())
            });
            eventually("the rewrite ends", || {
                (node.info("persistence", "aof_rewrite_in_progress")? == "0").then_some(())
            });
            rewrite_aof(&node);
            assert_eq!(failed(&node).as_deref(), Some("0"));
            assert_eq!(manifest_file_names(&node).len(), 2, "{:?}", manifest_file_names(&node));
        }
        node.kill();
        node.launch();
        wait_until_loaded(&node);
        assert_eq!(node.run("DBSIZE"), Reply::Int(20), "{bytes}");
        assert_eq!(node.run("GET key:19").text(), "19");
        let left = fs::read_dir(aof_dir(&node)).expect("the folder").filter_map(Result::ok);
        let temporary = left.filter(|file| file.file_name().to_string_lossy().starts_with("temp-"));
        assert_eq!(temporary.count(), 0, "{bytes}");
    }
}

/// Versions before Redis 7 wrote a single file outside the AOF directory. The server must migrate this file even if the
/// directory exists already, and if an earlier migration crashed before it moved the file.
#[test]
fn old_single_file_is_migrated_and_appended_to() {
    let options = "--save  --appendonly yes --appendfsync always --auto-aof-rewrite-percentage 0";
    let old = "*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n";
    let manifest = "file appendonly.aof seq 1 type b\n";
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        for (has_folder, manifest) in [(false, None), (true, None), (true, Some(manifest))] {
            let mut node = Node::prepare(&program, options);
            fs::write(node.folder().join("appendonly.aof"), old).expect("it is written");
            if has_folder {
                fs::create_dir(aof_dir(&node)).expect("a folder");
            }
            if let Some(manifest) = manifest {
                fs::write(aof_dir(&node).join("appendonly.aof.manifest"), manifest).expect("it is written");
            }
            node.launch();
            // The server is killed before any rewrite, so the data is in the old file and one increment.
            for expected in [2, 3] {
                eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
                let mut connection = node.connect();
                connection.call_line("SELECT 3").expect_ok();
                assert_eq!(connection.call_line("INCR a").int(), expected, "{has_folder} {manifest:?}");
                node.kill();
                node.launch();
            }
            assert!(!node.folder().join("appendonly.aof").exists());
            assert!(node.log().contains("Successfully migrated an old-style AOF file (appendonly.aof)"));
        }
    }
}

/// The offsets of two increments leave a gap, as if the increment between them were lost.
#[test]
fn gap_between_increments_prevents_startup() {
    let mut node = Node::start(&Program::redoubt(), "--save  --appendonly yes --appendfsync always");
    node.run("SET a 1").expect_ok();
    node.kill();
    let manifest = aof_dir(&node).join("appendonly.aof.manifest");
    let increment = aof_dir(&node).join(&manifest_file_names(&node)[1]);
    let text = fs::read_to_string(&increment).expect("it is there");
    let (_, last) = text.rsplit_once("#REPL:").expect("the increment has an offset record");
    let (place, commands) = last.split_once("\r\n").expect("a line");
    let (history, offset) = place.split_once(' ').expect("a history and an offset");
    let end = offset.parse::<usize>().expect("a number") + commands.len();
    let set = "*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n2\r\n";
    for (skipped, starts) in [(0, true), (7, false)] {
        let later = format!("#REPL:{history} {}\r\n{set}", end + skipped);
        fs::write(aof_dir(&node).join("later"), later).expect("it is written");
        let named = fs::read_to_string(&manifest).expect("a manifest");
        fs::write(&manifest, format!("{named}file later seq 77 type i\n")).expect("it is written");
        node.spawn();
        if starts {
            eventually("the data is loaded", || {
                (node.try_connect().ok()?.call_line("GET b") == Reply::Bulk(b"2".to_vec())).then_some(())
            });
            node.kill();
        } else {
            assert!(!node.wait_for_exit().success());
            assert!(node.log().contains("does not begin where"), "{}", node.log());
        }
        fs::write(&manifest, named).expect("it is written");
    }
}
