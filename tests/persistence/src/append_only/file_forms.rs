//! The forms of an append-only file: a base of commands, times between commands, files as other versions and crashes left
//! them, and the tools that look at them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Node, Program, Value, eventually, run_to_end};

const OPTIONS: &str = "--save  --appendonly yes --enable-debug-command yes";
const COMMANDS: &str = "--aof-use-rdb-preamble no";

fn is_loaded(node: &Node) {
    eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
}

fn folder(node: &Node) -> PathBuf {
    node.folder().join("appendonlydir")
}

fn names(node: &Node) -> Vec<String> {
    let manifest = fs::read_to_string(folder(node).join("appendonly.aof.manifest")).expect("a manifest");
    manifest.lines().map(|line| line.split(' ').nth(1).expect("a name").to_owned()).collect()
}

fn rewrites(node: &Node) -> u64 {
    node.info("persistence", "aof_rewrites").expect("it is shown").parse().expect("a number")
}

fn rewrite(node: &Node) {
    let before = rewrites(node);
    node.run("BGREWRITEAOF");
    eventually("the rewrite ends", || (rewrites(node) > before).then_some(()));
    assert_eq!(node.info("persistence", "aof_last_bgrewrite_status").as_deref(), Some("ok"));
}

fn copy_files(from: &Node, to: &Node) {
    let _ = fs::remove_dir_all(folder(to));
    fs::create_dir_all(folder(to)).expect("a folder");
    for file in fs::read_dir(folder(from)).expect("the folder").filter_map(Result::ok) {
        fs::copy(file.path(), folder(to).join(file.file_name())).expect("a copy");
    }
}

/// Values of every type, small and large, with times, in two databases.
fn fill(node: &Node) {
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
        let reply = connection.run(line);
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
fn a_base_of_commands_has_all_the_data_and_a_redis_loads_it() {
    let mut ours = Node::start(&Program::redoubt(), &format!("{OPTIONS} {COMMANDS}"));
    fill(&ours);
    rewrite(&ours);
    ours.run("SET after rewrite").expect_ok();
    let base = names(&ours)[0].clone();
    assert!(base.ends_with(".base.aof"), "{base}");
    assert!(fs::read(folder(&ours).join(base)).expect("the base").starts_with(b"*"));
    let digest = ours.run("DEBUG DIGEST");
    let groups = ours.run("XINFO STREAM stream FULL");
    assert!(ours.terminate().success());
    ours.launch();
    is_loaded(&ours);
    assert_eq!(ours.run("DEBUG DIGEST"), digest);
    let pending = |reply: &Value| format!("{reply:?}").matches("worker").count();
    assert_eq!(pending(&ours.run("XINFO STREAM stream FULL")), pending(&groups));
    let mut theirs = Node::prepare(&Program::redis(), &format!("{OPTIONS} {COMMANDS}"));
    copy_files(&ours, &theirs);
    theirs.launch();
    is_loaded(&theirs);
    assert_eq!(theirs.run("DEBUG DIGEST"), digest);
    for line in ["XPENDING stream group", "XINFO GROUPS stream", "XINFO GROUPS empty", "XLEN empty"] {
        assert_eq!(theirs.run(line), ours.run(line), "{line}");
    }
    // And what that makes of it.
    theirs.run("SET from redis").expect_ok();
    theirs.run("BGREWRITEAOF");
    eventually("the rewrite ends", || {
        (theirs.info("persistence", "aof_rewrite_in_progress")? == "0"
            && names(&theirs)[0] != names(&ours)[0])
            .then_some(())
    });
    let digest = theirs.run("DEBUG DIGEST");
    assert!(theirs.terminate().success());
    copy_files(&theirs, &ours);
    ours.kill();
    copy_files(&theirs, &ours);
    ours.launch();
    is_loaded(&ours);
    assert_eq!(ours.run("DEBUG DIGEST"), digest);
}

#[test]
fn the_form_of_the_base_is_chosen_with_each_rewrite() {
    let node = Node::start(&Program::redoubt(), OPTIONS);
    for (value, end) in [("no", ".base.aof"), ("yes", ".base.rdb"), ("no", ".base.aof")] {
        node.run(&format!("CONFIG SET aof-use-rdb-preamble {value}")).expect_ok();
        rewrite(&node);
        assert!(names(&node)[0].ends_with(end), "{:?}", names(&node));
    }
}

#[test]
fn a_file_that_has_grown_enough_is_rewritten_by_itself() {
    let node = Node::start(
        &Program::redoubt(),
        &format!("{OPTIONS} --auto-aof-rewrite-min-size 50kb --auto-aof-rewrite-percentage 100"),
    );
    let before = rewrites(&node);
    let mut connection = node.connect();
    let value = "v".repeat(1000);
    (0..30).for_each(|_| connection.call(&["SET", "key", &value]).expect_ok());
    assert_eq!(rewrites(&node), before, "it is too small");
    let size = || node.info("persistence", "aof_current_size").and_then(|size| size.parse::<u64>().ok());
    (0..100).for_each(|_| connection.call(&["SET", "key", &value]).expect_ok());
    eventually("it is rewritten", || (rewrites(&node) > before).then_some(()));
    eventually("it is small again", || (size()? < 60_000).then_some(()));
    node.run("CONFIG SET auto-aof-rewrite-percentage 0").expect_ok();
    let before = rewrites(&node);
    (0..200).for_each(|_| connection.call(&["SET", "key", &value]).expect_ok());
    eventually("all is written", || (size()? > 200_000).then_some(()));
    assert_eq!(rewrites(&node), before);
}

#[test]
fn with_times_a_file_is_cut_back_to_one_of_them() {
    let mut node = Node::start(
        &Program::redoubt(),
        &format!("{OPTIONS} --aof-timestamp-enabled yes --appendfsync always"),
    );
    node.run("SET key early").expect_ok();
    let text = || {
        String::from_utf8_lossy(&fs::read(folder(&node).join(&names(&node)[1])).expect("it is there"))
            .into_owned()
    };
    // The file may have been begun in the second before the first write, so only a stamp behind it counts.
    let text = eventually("another second", || {
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
    let manifest = folder(&node).join("appendonly.aof.manifest");
    let script = "echo y | \"$0\" check-aof --truncate-to-timestamp \"$1\" \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(Program::redoubt().binary()).arg(first.to_string()).arg(&manifest);
    let (status, said) = run_to_end(&mut command);
    assert!(status.success() && said.contains("Successfully truncated"), "{said}");
    let mut theirs = Node::prepare(&Program::redis(), OPTIONS);
    copy_files(&node, &theirs);
    node.launch();
    theirs.launch();
    for node in [&node, &theirs] {
        is_loaded(node);
        // A write of the first second may be in both.
        assert!(["early", "late"].contains(&node.run("GET key").text().as_str()));
    }
    assert_eq!(node.run("GET key"), theirs.run("GET key"));
}

/// A step: its description; the files in the folder beside those of before; the manifest; the number of keys.
type Step<'a> = (&'a str, Vec<(&'a str, &'a [u8])>, String, i64);

/// The steps of a rewrite of the base and the increment of these names, as `old` has them.
fn steps_of_a_rewrite<'a>(names: &[String], old: &str, base: &'a [u8]) -> [Step<'a>; 6] {
    let third = "*3\r\n$3\r\nSET\r\n$5\r\nthird\r\n$1\r\n3\r\n";
    let next = "file appendonly.aof.9.incr.aof seq 9 type i\n";
    let moved = format!(
        "file new.base.rdb seq 9 type b\nfile {} seq 1 type h\nfile {} seq 1 type h\n{next}",
        names[0], names[1]
    );
    [
        ("the next increment was made", vec![("appendonly.aof.9.incr.aof", b"")], old.to_owned(), 2),
        ("it was named", vec![("appendonly.aof.9.incr.aof", third.as_bytes())], format!("{old}{next}"), 3),
        (
            "the base was half written",
            vec![("temp-1.base", b"REDIS"), ("appendonly.aof.9.incr.aof", b"")],
            format!("{old}{next}"),
            2,
        ),
        ("the manifest was half written", vec![("temp-1.manifest", b"file")], old.to_owned(), 2),
        (
            "the base was put in place",
            vec![("new.base.rdb", base), ("appendonly.aof.9.incr.aof", third.as_bytes())],
            format!("{old}{next}"),
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

/// The folder is as a crash leaves it, at each step of a rewrite.
#[test]
fn a_rewrite_that_was_cut_short_anywhere_leaves_the_data() {
    let mut node = Node::start(&Program::redoubt(), &format!("{OPTIONS} --appendfsync always"));
    node.run("SET first 1").expect_ok();
    rewrite(&node);
    node.run("SET second 2").expect_ok();
    node.kill();
    let at = |name: &str| folder(&node).join(name);
    let manifest = at("appendonly.aof.manifest");
    let before: Vec<(PathBuf, Vec<u8>)> = fs::read_dir(folder(&node))
        .expect("the folder")
        .map(|file| file.expect("a file").path())
        .map(|path| (path.clone(), fs::read(&path).expect("it can be read")))
        .collect();
    let old = fs::read_to_string(&manifest).expect("a manifest");
    let names = names(&node);
    let base_bytes = fs::read(at(&names[0])).expect("the base");
    for (step, files, text, keys) in steps_of_a_rewrite(&names, &old, &base_bytes) {
        fs::remove_dir_all(folder(&node)).and_then(|()| fs::create_dir(folder(&node))).expect("a folder");
        before.iter().for_each(|(path, bytes)| fs::write(path, bytes).expect("it can be written"));
        files
            .iter()
            .for_each(|(name, bytes)| fs::write(folder(&node).join(name), bytes).expect("it can be written"));
        fs::write(&manifest, text).expect("it can be written");
        node.launch();
        is_loaded(&node);
        assert_eq!(node.run("DBSIZE"), Value::Int(keys), "{step}");
        node.run("SET later 1").expect_ok();
        node.kill();
        let left = fs::read_dir(folder(&node)).expect("the folder").filter_map(Result::ok);
        let left: Vec<String> = left.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
        let named = fs::read_to_string(&manifest).expect("a manifest");
        assert!(
            !named.contains("type h") && !left.iter().any(|name| name.starts_with("temp-")),
            "{step}: {left:?}"
        );
        node.launch();
        is_loaded(&node);
        assert_eq!(node.run("DBSIZE"), Value::Int(keys + 1), "{step}");
        node.kill();
    }
    // A file that the manifest names and that is not there is no crash but a loss.
    fs::remove_file(folder(&node).join(&self::names(&node)[0])).expect("it was there");
    node.spawn();
    assert!(!node.ended().success());
    assert!(node.log().contains("No such file"), "{}", node.log());
}

/// Before Redis 7 there was one file beside the RDB, with or without an RDB at its begin.
#[test]
fn one_file_of_an_old_version_becomes_the_base() {
    let commands = "*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n2\r\n";
    let source = Node::start(&Program::redis(), "--save ");
    source.run("SET a 1").expect_ok();
    source.run("SAVE").expect_ok();
    let preamble = fs::read(source.folder().join("dump.rdb")).expect("it was saved");
    for (begin, keys) in [(&b""[..], 1), (&preamble, 2)] {
        let mut node = Node::prepare(&Program::redoubt(), OPTIONS);
        let file = node.folder().join("appendonly.aof");
        fs::write(&file, [begin, commands.as_bytes(), b"*1\r\n"].concat()).expect("a file");
        let path = file.to_str().expect("a plain path");
        let (ok, said) = called("redis-check-aof", node.folder(), &[path]);
        assert!(!ok && said.contains("--fix"), "{said}");
        node.launch();
        is_loaded(&node);
        assert_eq!(node.run("DBSIZE"), Value::Int(keys));
        assert_eq!(node.run("GET b").text(), "2");
        assert_eq!(names(&node)[0], "appendonly.aof");
        rewrite(&node);
        node.run("SET c 3").expect_ok();
        assert!(node.terminate().success());
        assert!(!folder(&node).join("appendonly.aof").exists(), "it is history");
        node.launch();
        is_loaded(&node);
        assert_eq!(node.run("DBSIZE"), Value::Int(keys + 1));
    }
}

fn called(name: &str, folder: &Path, arguments: &[&str]) -> (bool, String) {
    let link = folder.join(name);
    let _ = fs::remove_file(&link);
    symlink(Program::redoubt().binary(), &link).expect("a link");
    let (status, said) = run_to_end(Command::new(link).args(arguments));
    (status.success(), said)
}

#[test]
fn the_tools_go_by_the_names_that_users_know() {
    let mut node = Node::start(&Program::redoubt(), &format!("{OPTIONS} --appendfsync always"));
    node.run("SET a 1").expect_ok();
    node.run("SAVE").expect_ok();
    node.kill();
    let place = node.folder().to_owned();
    let (rdb, manifest) = (place.join("dump.rdb"), folder(&node).join("appendonly.aof.manifest"));
    let (rdb, manifest) = (rdb.to_str().expect("plain"), manifest.to_str().expect("plain"));
    for family in ["redis", "valkey"] {
        let (ok, said) = called(&format!("{family}-check-rdb"), &place, &[rdb]);
        assert!(ok && said.contains("RDB looks OK"), "{said}");
        let (ok, said) = called(&format!("{family}-check-aof"), &place, &[manifest]);
        assert!(ok && said.contains("All AOF files and manifest are valid"), "{said}");
        let (ok, said) = called(&format!("{family}-check-rdb"), &place, &[manifest]);
        assert!(!ok && said.contains("wrong signature"), "{said}");
    }
}

/// Files may grow to so many bytes and no further: a disk that is full at that place.
fn limit(node: &Node, bytes: &str) {
    let options = [format!("--pid={}", node.pid()), format!("--fsize={bytes}:unlimited")];
    let set = Command::new("prlimit").args(options).status();
    assert!(set.expect("prlimit is part of util-linux").success());
}

/// The base, the manifest and the increment that it names are written at a place where the disk is full: whatever of it
/// fails, the files that there were are the data, after a kill as well as when there is room again.
#[test]
fn a_rewrite_that_finds_no_room_at_any_place_leaves_the_data() {
    let mut node = Node::start(&Program::redoubt(), &format!("{OPTIONS} --appendfsync always"));
    for number in 0..20 {
        node.run(&format!("SET key:{number} {number}")).expect_ok();
    }
    for (round, bytes) in [0, 1, 30, 70, 110, 150, 230, 400, 700, 2000].into_iter().enumerate() {
        let failed = |node: &Node| node.info("persistence", "aof_rewrites_consecutive_failures");
        limit(&node, &bytes.to_string());
        node.run("BGREWRITEAOF");
        eventually("it has failed or not", || {
            let done = node.info("persistence", "aof_rewrite_in_progress")? == "0";
            let stuck = node.info("persistence", "aof_last_write_status")? == "err";
            (done || stuck).then_some(())
        });
        if round % 2 == 0 {
            limit(&node, "unlimited");
            eventually("there is room again", || {
                (node.info("persistence", "aof_last_write_status")? == "ok").then_some(())
            });
            eventually("it ends", || {
                (node.info("persistence", "aof_rewrite_in_progress")? == "0").then_some(())
            });
            rewrite(&node);
            assert_eq!(failed(&node).as_deref(), Some("0"));
            assert_eq!(names(&node).len(), 2, "{:?}", names(&node));
        }
        node.kill();
        node.launch();
        is_loaded(&node);
        assert_eq!(node.run("DBSIZE"), Value::Int(20), "{bytes}");
        assert_eq!(node.run("GET key:19").text(), "19");
        let left = fs::read_dir(folder(&node)).expect("the folder").filter_map(Result::ok);
        let temporary = left.filter(|file| file.file_name().to_string_lossy().starts_with("temp-"));
        assert_eq!(temporary.count(), 0, "{bytes}");
    }
}

/// Versions before Redis 7 left a single file beside the folder: commands, or an RDB and commands behind it. It is
/// taken in also where a server that did so died before the file was moved, and where the folder was there already.
#[test]
fn an_old_single_file_is_taken_in_and_gone_on_with() {
    let options = "--save  --appendonly yes --appendfsync always --auto-aof-rewrite-percentage 0";
    let old = "*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n";
    let manifest = "file appendonly.aof seq 1 type b\n";
    for program in [Some(Program::redoubt()), Program::valkey()].into_iter().flatten() {
        for (has_folder, manifest) in [(false, None), (true, None), (true, Some(manifest))] {
            let mut node = Node::prepare(&program, options);
            fs::write(node.folder().join("appendonly.aof"), old).expect("it is written");
            if has_folder {
                fs::create_dir(folder(&node)).expect("a folder");
            }
            if let Some(manifest) = manifest {
                fs::write(folder(&node).join("appendonly.aof.manifest"), manifest).expect("it is written");
            }
            node.launch();
            // Killed with no base since, so what is there is the old file and an increment.
            for expected in [2, 3] {
                eventually("the data is loaded", || (!node.run("GET x").is_error("LOADING")).then_some(()));
                let mut connection = node.connect();
                connection.run("SELECT 3").expect_ok();
                assert_eq!(connection.run("INCR a").int(), expected, "{has_folder} {manifest:?}");
                node.kill();
                node.launch();
            }
            assert!(!node.folder().join("appendonly.aof").exists());
            assert!(node.log().contains("Successfully migrated an old-style AOF file (appendonly.aof)"));
        }
    }
}

/// An increment is lost, and another that is whole follows.
#[test]
fn increments_that_do_not_join_stop_the_start() {
    let mut node = Node::start(&Program::redoubt(), "--save  --appendonly yes --appendfsync always");
    node.run("SET a 1").expect_ok();
    node.kill();
    let manifest = folder(&node).join("appendonly.aof.manifest");
    let increment = folder(&node).join(&names(&node)[1]);
    let text = fs::read_to_string(&increment).expect("it is there");
    let (_, last) = text.rsplit_once("#REPL:").expect("it says its place");
    let (place, commands) = last.split_once("\r\n").expect("a line");
    let (history, offset) = place.split_once(' ').expect("a history and an offset");
    let end = offset.parse::<usize>().expect("a number") + commands.len();
    let set = "*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n2\r\n";
    for (skipped, starts) in [(0, true), (7, false)] {
        let later = format!("#REPL:{history} {}\r\n{set}", end + skipped);
        fs::write(folder(&node).join("later"), later).expect("it is written");
        let named = fs::read_to_string(&manifest).expect("a manifest");
        fs::write(&manifest, format!("{named}file later seq 77 type i\n")).expect("it is written");
        node.spawn();
        if starts {
            eventually("the data is loaded", || {
                (node.try_connect().ok()?.run("GET b") == Value::Bulk(b"2".to_vec())).then_some(())
            });
            node.kill();
        } else {
            assert!(!node.wait_for_exit().success());
            assert!(node.log().contains("does not begin where"), "{}", node.log());
        }
        fs::write(&manifest, named).expect("it is written");
    }
}
