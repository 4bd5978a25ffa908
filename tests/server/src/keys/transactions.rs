//! Tests of transactions that use server commands, the cluster or replication.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use harness::{Cluster, Node, Program, Reply, eventually, keys_for_all_slots};

fn error_reply(text: &str) -> Reply {
    Reply::Error(text.into())
}

fn queue_command(connection: &mut harness::Connection, line: &str) {
    assert_eq!(connection.call_line(line), Reply::Simple("QUEUED".into()), "{line}");
}

/// A sentinel promotes a replica with this transaction of server commands.
#[test]
fn server_commands_run_within_exec() {
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
    assert_eq!(other.call_line("PING"), Reply::Simple("PONG".into()));
    let mut sentinel = replica.connect();
    eventually("the connections used for INFO are closed", || {
        (sentinel.call_line("CLIENT LIST TYPE normal").text().lines().count() == 2).then_some(())
    });
    sentinel.call_line("MULTI").expect_ok();
    let lines =
        ["REPLICAOF NO ONE", "CONFIG REWRITE", "CLIENT KILL TYPE normal", "CLIENT KILL TYPE pubsub", "ROLE"];
    for line in lines {
        queue_command(&mut sentinel, line);
    }
    let replies = sentinel.call_line("EXEC");
    let [replicaof, rewrite, killed, subscribers, role] = replies.items() else { panic!("{replies:?}") };
    replicaof.expect_ok();
    rewrite.expect_ok();
    assert_eq!((killed.int(), subscribers.int()), (1, 0));
    assert_eq!(role.items()[0].text(), "master");
    assert!(other.try_call(&["PING"]).is_err(), "the other client was disconnected");
    // The connection remains usable, including for transactions with data commands.
    sentinel.call_line("MULTI").expect_ok();
    queue_command(&mut sentinel, "INCR n");
    queue_command(&mut sentinel, "INFO server");
    let replies = sentinel.call_line("EXEC");
    assert_eq!((replies.items().len(), replies.items()[0].int()), (2, 1));
}

/// Increments a counter with WATCH, GET and EXEC until `times` transactions have succeeded.
fn count_in_transactions(mut client: harness::Connection, times: usize) -> usize {
    let mut succeeded = 0;
    while succeeded < times {
        client.call_line("WATCH counter").expect_ok();
        let next = client.call_line("GET counter").text().parse::<i64>().expect("a number") + 1;
        client.call_line("MULTI").expect_ok();
        for line in ["ROLE", &format!("SET counter {next}"), "INFO keyspace", "CONFIG GET port", "LASTSAVE"] {
            queue_command(&mut client, line);
        }
        match client.call_line("EXEC") {
            Reply::NullArray => {}
            replies => {
                assert_eq!(replies.items().len(), 5, "{replies:?}");
                succeeded += 1;
            }
        }
    }
    succeeded
}

/// Regression test: ROLE released the slot locks, and another client's write came between WATCH and the write in EXEC.
#[test]
fn transactions_with_server_commands_lose_no_updates() {
    let node = Node::start(&Program::redoubt(), "--save  --io-threads 4");
    node.run("SET counter 0").expect_ok();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let client = node.connect();
            std::thread::spawn(move || count_in_transactions(client, 200))
        })
        .collect();
    let succeeded: usize = clients.into_iter().map(|client| client.join().expect("it counts")).sum();
    assert_eq!(node.run("GET counter").text(), succeeded.to_string());
}

/// Server commands see the changes that earlier commands of their transaction made, in every database.
#[test]
fn server_commands_see_the_changes_of_their_transaction() {
    let node = Node::start(&Program::redoubt(), "--save ");
    let mut client = node.connect();
    client.call_line("MULTI").expect_ok();
    let lines = [
        "SET a 1 EX 100",
        "SELECT 3",
        "MSET b 1 c 2",
        "INFO keyspace",
        "MEMORY STATS",
        "CONFIG SET maxmemory-samples 7",
        "CONFIG GET maxmemory-samples",
        "WAIT 1 0",
        "DEL c",
        "DBSIZE",
    ];
    for line in lines {
        queue_command(&mut client, line);
    }
    let replies = client.call_line("EXEC");
    let [_, _, _, info, memory, set, get, wait, del, size] = replies.items() else { panic!("{replies:?}") };
    let info = info.text();
    assert!(info.contains("db0:keys=1,expires=1,avg_ttl="), "{info}");
    assert!(info.contains("db3:keys=2,expires=0,avg_ttl=0"), "{info}");
    assert!(memory.items().len() > 20, "{memory:?}");
    set.expect_ok();
    assert_eq!(get.items()[1].text(), "7", "CONFIG GET sees the value that CONFIG SET set before");
    assert_eq!((wait.int(), del.int(), size.int()), (0, 1, 1));
}

/// Scripts may call every command without the `noscript` flag, as in Valkey.
#[test]
fn scripts_may_call_the_same_commands_as_in_valkey() {
    let ours = Node::start(&Program::redoubt(), "--save ");
    let theirs = Program::valkey().map(|valkey| Node::start(&valkey, "--save "));
    let calls = [
        "'wait','1','1000'",
        "'waitaof','0','1','1000'",
        "'waitaof','1','1','1000'",
        "'wait','x','0'",
        "'memory','purge'",
        "'cluster','nodes'",
        "'cluster','addslots','1'",
    ];
    for call in calls {
        let script = format!("return redis.call({call})");
        let mut connection = ours.connect();
        let reply = connection.call(&["EVAL", &script, "0"]);
        if let Some(theirs) = &theirs {
            let expected = theirs.connect().call(&["EVAL", &script, "0"]);
            let error_text =
                |reply: &Reply| format!("{reply:?}").split(" script: ").next().map(str::to_owned);
            assert_eq!(error_text(&reply), error_text(&expected), "{call}");
        }
    }
    let mut connection = ours.connect();
    let mut eval = |script: &str| connection.call(&["EVAL", script, "1", "k"]);
    let info = eval("redis.call('set',KEYS[1],'v') return redis.call('info','keyspace')");
    assert!(info.text().contains("db0:keys=1,expires=0"), "{info:?}");
    assert!(eval("return redis.call('lastsave')").int() > 1_700_000_000);
    assert!(eval("return redis.call('memory','stats')").items().len() > 20);
    assert!(eval("return redis.call('memory','doctor')").text().contains("Sam"));
    for call in ["'role'", "'config','get','port'", "'bgsave'", "'acl','genpass'", "'debug','sleep','0'"] {
        let reply = eval(&format!("return redis.call({call})"));
        assert!(format!("{reply:?}").contains("command is not allowed from script"), "{call}: {reply:?}");
    }
}

/// `redis-cli --cluster fix` deletes and adds a slot in one transaction, which must work.
#[test]
fn cluster_commands_run_within_exec() {
    let node = Node::start_clustered(&Program::redoubt());
    let mut client = node.connect();
    client.call_line("MULTI").expect_ok();
    for line in ["CLUSTER ADDSLOTS 1 2 3", "CLUSTER DELSLOTS 2", "CLUSTER ADDSLOTSRANGE 4 6", "CLUSTER SLOTS"]
    {
        queue_command(&mut client, line);
    }
    let replies = client.call_line("EXEC");
    let [add, del, range, slots] = replies.items() else { panic!("{replies:?}") };
    [add, del, range].into_iter().for_each(Reply::expect_ok);
    let first = |range: &Reply| (range.items()[0].int(), range.items()[1].int());
    assert_eq!(slots.items().iter().map(first).collect::<Vec<_>>(), [(1, 1), (3, 6)]);
    // Scripts and transactions that hold a slot lock also see the current state of the cluster.
    client.call_line("CLUSTER DELSLOTS 1 3 4 5 6").expect_ok();
    client.call_line("CLUSTER ADDSLOTSRANGE 0 16383").expect_ok();
    eventually("the cluster serves", || {
        (client.call_line("SET a 1") == Reply::Simple("OK".into())).then_some(())
    });
    client.call_line("MULTI").expect_ok();
    for line in ["INCR a", "CLUSTER MYID", "CLUSTER NODES", "CLUSTER SHARDS", "CLUSTER LINKS", "GET a"] {
        queue_command(&mut client, line);
    }
    let replies = client.call_line("EXEC");
    let [incr, id, nodes, shards, links, get] = replies.items() else { panic!("{replies:?}") };
    assert_eq!((incr.int(), get.text()), (2, "2".to_owned()));
    assert!(nodes.text().contains(&id.text()), "{nodes:?}");
    assert_eq!((shards.items().len(), links.items().len()), (1, 0));
    let script = "return {redis.call('incr',KEYS[1]),redis.call('cluster','myid')}";
    let reply_of_script = client.call(&["EVAL", script, "1", "a"]);
    assert_eq!((reply_of_script.items()[0].int(), reply_of_script.items()[1].text()), (3, id.text()));
}

#[test]
fn cluster_transactions_are_limited_to_one_slot() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 0);
    let keys = keys_for_all_slots();
    let mut client = cluster.nodes[0].connect();
    client.call_line("MULTI").expect_ok();
    queue_command(&mut client, "SET {key:0}a 1");
    queue_command(&mut client, "INCR {key:0}a");
    let replies = client.call_line("EXEC");
    assert_eq!(replies, Reply::Array(vec![Reply::Simple("OK".into()), Reply::Int(2)]));

    let moved = error_reply(&format!("MOVED 8000 127.0.0.1:{}", cluster.nodes[1].port));
    client.call_line("MULTI").expect_ok();
    assert_eq!(client.call(&["SET", &keys[8000], "x"]), moved);
    queue_command(&mut client, "PING");
    assert_eq!(
        client.call_line("EXEC"),
        error_reply("EXECABORT Transaction discarded because of previous errors.")
    );

    client.call_line("MULTI").expect_ok();
    queue_command(&mut client, &format!("SET {} x", keys[0]));
    queue_command(&mut client, &format!("SET {} x", keys[1]));
    assert_eq!(
        client.call_line("EXEC"),
        error_reply("CROSSSLOT Keys in request don't hash to the same slot")
    );
    assert_eq!(client.call_line("EXEC"), error_reply("ERR EXEC without MULTI"));
    assert_eq!(client.call(&["GET", &keys[0]]), Reply::NullBulk);
}

/// A full resync replaces the dataset, so every watched key counts as changed.
#[test]
fn full_resync_fails_watched_transactions() {
    let master = Node::start(&Program::redoubt(), "--save ");
    let replica = Node::start(&Program::redoubt(), "--save ");
    let mut client = replica.connect();
    client.call_line("WATCH k").expect_ok();
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port)).expect_ok();
    eventually("the replica is linked", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    client.call_line("MULTI").expect_ok();
    queue_command(&mut client, "PING");
    assert_eq!(client.call_line("EXEC"), Reply::NullArray);
}

/// Reads the replica's requests until the command `word`, and replies to all earlier requests.
fn read_commands_until(link: &mut BufReader<TcpStream>, command: &str) -> Vec<String> {
    loop {
        let mut line = String::new();
        link.read_line(&mut line).expect("the replica sends a request");
        let count: usize = line.trim_end()[1..].parse().expect("an array");
        let mut words = Vec::new();
        for _ in 0..count {
            let (mut head, mut text) = (String::new(), String::new());
            link.read_line(&mut head).expect("a length");
            link.read_line(&mut text).expect("a word");
            words.push(text.trim_end().to_owned());
        }
        if words[0].eq_ignore_ascii_case(command) {
            return words;
        }
        let reply: &[u8] = if words[0].eq_ignore_ascii_case("PING") { b"+PONG\r\n" } else { b"+OK\r\n" };
        link.get_mut().write_all(reply).expect("the replica reads");
    }
}

fn encode_commands(lines: &[&str]) -> Vec<u8> {
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

/// The master dies in the middle of a transaction. The replica must not apply any part of the transaction, must request
/// it again from MULTI on, and must then apply all of it.
#[test]
fn transaction_interrupted_by_master_death_is_applied_atomically() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let replica = Node::start(&Program::redoubt(), "--save ");
    replica.run(&format!("REPLICAOF 127.0.0.1 {port}")).expect_ok();

    let accept = || BufReader::new(listener.accept().expect("the replica connects").0);
    let mut link = accept();
    read_commands_until(&mut link, "PSYNC");
    let empty_rdb = b"REDIS0009\xff\0\0\0\0\0\0\0\0";
    let id = "0123456789abcdef0123456789abcdef01234567";
    let head = format!("+FULLRESYNC {id} 0\r\n${}\r\n", empty_rdb.len());
    let before = encode_commands(&["SELECT 0", "SET a 1"]);
    let transaction = encode_commands(&["MULTI", "SET a 2", "SET b 2", "SET c 2", "EXEC"]);
    let half = &transaction[..transaction.len() - 30];
    link.get_mut().write_all(&[head.as_bytes(), empty_rdb, &before, half].concat()).expect("it reads");
    eventually("the replica has what came before", || {
        (replica.run("GET a") == Reply::Bulk(b"1".to_vec())).then_some(())
    });
    drop(link);

    let mut link = accept();
    let asked = read_commands_until(&mut link, "PSYNC");
    assert_eq!(asked[1..], [id.to_owned(), (before.len() + 1).to_string()]);
    assert_eq!(replica.run("GET a").text(), "1");
    assert_eq!(replica.run("EXISTS b").int(), 0);
    link.get_mut().write_all(b"+CONTINUE\r\n").expect("it reads");
    link.get_mut().write_all(&transaction).expect("it reads");
    eventually("the replica has the transaction", || {
        (replica.run("EXISTS c") == Reply::Int(1)).then_some(())
    });
    assert_eq!((replica.run("GET a").text(), replica.run("GET b").text()), ("2".into(), "2".into()));
    let offset = replica.info("replication", "slave_repl_offset").expect("the field");
    assert_eq!(offset, (before.len() + transaction.len()).to_string());
}
