//! Transactions where more than one process, or more than the engine, is concerned.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use cluster_tests::key_for_every_slot;
use harness::{Cluster, Node, Program, Value, eventually};

fn error(text: &str) -> Value {
    Value::Error(text.into())
}

fn queue(connection: &mut harness::Connection, line: &str) {
    assert_eq!(connection.run(line), Value::Simple("QUEUED".into()), "{line}");
}

/// What a sentinel sends to promote a replica.
#[test]
fn commands_of_the_shell_run_within_exec() {
    let master = Node::start(&Program::redoubt(), "--save ");
    let mut replica = Node::prepare(&Program::redoubt(), "");
    let file = replica.folder().join("redis.conf");
    std::fs::write(&file, "save \"\"\n").expect("the folder can be written to");
    replica.set_configuration(&file);
    replica.launch();
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    let mut other = replica.connect();
    assert_eq!(other.run("PING"), Value::Simple("PONG".into()));
    let mut sentinel = replica.connect();
    eventually("those who asked for INFO are gone", || {
        (sentinel.run("CLIENT LIST TYPE normal").text().lines().count() == 2).then_some(())
    });
    sentinel.run("MULTI").expect_ok();
    let lines =
        ["REPLICAOF NO ONE", "CONFIG REWRITE", "CLIENT KILL TYPE normal", "CLIENT KILL TYPE pubsub", "ROLE"];
    for line in lines {
        queue(&mut sentinel, line);
    }
    let replies = sentinel.run("EXEC");
    let [replicaof, rewrite, killed, subscribers, role] = replies.items() else { panic!("{replies:?}") };
    replicaof.expect_ok();
    rewrite.expect_ok();
    assert_eq!((killed.int(), subscribers.int()), (1, 0));
    assert_eq!(role.items()[0].text(), "master");
    assert!(other.try_call(&["PING"]).is_err(), "the other client was disconnected");
    // The connection goes on, also with a transaction that only the engine needs.
    sentinel.run("MULTI").expect_ok();
    queue(&mut sentinel, "INCR n");
    queue(&mut sentinel, "INFO server");
    let replies = sentinel.run("EXEC");
    assert_eq!((replies.items().len(), replies.items()[0].int()), (2, 1));
}

#[test]
fn in_a_cluster_a_transaction_lives_in_one_slot() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 0);
    let keys = key_for_every_slot();
    let mut client = cluster.nodes[0].connect();
    client.run("MULTI").expect_ok();
    queue(&mut client, "SET {key:0}a 1");
    queue(&mut client, "INCR {key:0}a");
    let replies = client.run("EXEC");
    assert_eq!(replies, Value::Array(vec![Value::Simple("OK".into()), Value::Int(2)]));

    let moved = error(&format!("MOVED 8000 127.0.0.1:{}", cluster.nodes[1].port));
    client.run("MULTI").expect_ok();
    assert_eq!(client.call(&["SET", &keys[8000], "x"]), moved);
    queue(&mut client, "PING");
    assert_eq!(client.run("EXEC"), error("EXECABORT Transaction discarded because of previous errors."));

    client.run("MULTI").expect_ok();
    queue(&mut client, &format!("SET {} x", keys[0]));
    queue(&mut client, &format!("SET {} x", keys[1]));
    assert_eq!(client.run("EXEC"), error("CROSSSLOT Keys in request don't hash to the same slot"));
    assert_eq!(client.run("EXEC"), error("ERR EXEC without MULTI"));
    assert_eq!(client.call(&["GET", &keys[0]]), Value::NullBulk);
}

/// A full synchronisation replaces everything, so whoever watches sees a change.
#[test]
fn a_full_synchronisation_touches_what_is_watched() {
    let master = Node::start(&Program::redoubt(), "--save ");
    let replica = Node::start(&Program::redoubt(), "--save ");
    let mut client = replica.connect();
    client.run("WATCH k").expect_ok();
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    client.run("MULTI").expect_ok();
    queue(&mut client, "PING");
    assert_eq!(client.run("EXEC"), Value::NullArray);
}

/// Reads requests of a replica until one begins with this word, and answers the others.
fn answer_until(link: &mut BufReader<TcpStream>, word: &str) -> Vec<String> {
    loop {
        let mut line = String::new();
        link.read_line(&mut line).expect("the replica speaks");
        let count: usize = line.trim_end()[1..].parse().expect("an array");
        let mut words = Vec::new();
        for _ in 0..count {
            let (mut head, mut text) = (String::new(), String::new());
            link.read_line(&mut head).expect("a length");
            link.read_line(&mut text).expect("a word");
            words.push(text.trim_end().to_owned());
        }
        if words[0].eq_ignore_ascii_case(word) {
            return words;
        }
        let reply: &[u8] = if words[0].eq_ignore_ascii_case("PING") { b"+PONG\r\n" } else { b"+OK\r\n" };
        link.get_mut().write_all(reply).expect("the replica reads");
    }
}

fn wire(lines: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        bytes.extend(format!("*{}\r\n", words.len()).into_bytes());
        for word in words {
            bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
        }
    }
    bytes
}

/// A master dies in the middle of a transaction's bytes. The replica shows nothing of it, asks for it again from
/// its MULTI on, and then shows all of it.
#[test]
fn a_transaction_that_a_lost_link_cut_is_applied_whole_or_not_at_all() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let replica = Node::start(&Program::redoubt(), "--save ");
    replica.run(&format!("REPLICAOF 127.0.0.1 {port}")).expect_ok();

    let accept = || BufReader::new(listener.accept().expect("the replica connects").0);
    let mut link = accept();
    answer_until(&mut link, "PSYNC");
    let empty_rdb = b"REDIS0009\xff\0\0\0\0\0\0\0\0";
    let id = "0123456789abcdef0123456789abcdef01234567";
    let head = format!("+FULLRESYNC {id} 0\r\n${}\r\n", empty_rdb.len());
    let before = wire(&["SELECT 0", "SET a 1"]);
    let transaction = wire(&["MULTI", "SET a 2", "SET b 2", "SET c 2", "EXEC"]);
    let half = &transaction[..transaction.len() - 30];
    link.get_mut().write_all(&[head.as_bytes(), empty_rdb, &before, half].concat()).expect("it reads");
    eventually("the replica has what came before", || {
        (replica.run("GET a") == Value::Bulk(b"1".to_vec())).then_some(())
    });
    drop(link);

    let mut link = accept();
    let asked = answer_until(&mut link, "PSYNC");
    assert_eq!(asked[1..], [id.to_owned(), (before.len() + 1).to_string()]);
    assert_eq!(replica.run("GET a").text(), "1");
    assert_eq!(replica.run("EXISTS b").int(), 0);
    link.get_mut().write_all(b"+CONTINUE\r\n").expect("it reads");
    link.get_mut().write_all(&transaction).expect("it reads");
    eventually("the replica has the transaction", || {
        (replica.run("EXISTS c") == Value::Int(1)).then_some(())
    });
    assert_eq!((replica.run("GET a").text(), replica.run("GET b").text()), ("2".into(), "2".into()));
    let offset = replica.info("replication", "slave_repl_offset").expect("the field");
    assert_eq!(offset, (before.len() + transaction.len()).to_string());
}
