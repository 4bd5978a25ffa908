//! Tests of edge cases that show only over several commands or connections, compared with Valkey.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use harness::{Node, Program, Reply, eventually, eventually_within};

/// Starts Redoubt, and Valkey if it is installed.
fn start_redoubt_and_valkey(options: &str) -> Vec<Node> {
    let programs = [Some(Program::redoubt()), Program::valkey()];
    programs.into_iter().flatten().map(|program| Node::start(&program, options)).collect()
}

/// Runs `run` on each server, and asserts that the results are equal if both servers run.
fn expect_same_outcome<T: PartialEq + std::fmt::Debug>(nodes: &[Node], run: impl Fn(&Node) -> T) -> T {
    let mut outcomes: Vec<T> = nodes.iter().map(run).collect();
    if let [ours, theirs] = outcomes.as_slice() {
        assert_eq!(ours, theirs);
    }
    outcomes.swap_remove(0)
}

/// A timeout close to the maximum must not overflow into the past; larger timeouts are refused.
#[test]
fn wait_accepts_timeouts_close_to_the_maximum() {
    let nodes = start_redoubt_and_valkey("--save ");
    let refusal = expect_same_outcome(&nodes, |node| node.run("WAIT 1 9223372036854775807"));
    assert!(refusal.is_error("ERR"), "{refusal:?}");
    for line in ["WAIT 1 9223370000000000000", "WAIT 1 0"] {
        let waits = expect_same_outcome(&nodes, |node| {
            let mut client = node.connect();
            client.send(&line.split(' ').collect::<Vec<_>>()).expect("it reads");
            eventually("the client is blocked", || {
                (node.info("clients", "blocked_clients")?.parse::<u32>().ok()? > 0).then_some(())
            });
            let id = node.run("CLIENT LIST").text();
            let id = id.lines().find(|line| line.contains(" cmd=wait ")).expect("it is there");
            let id = id.trim_start_matches("id=").split(' ').next().unwrap_or_default().to_owned();
            assert_eq!(node.run(&format!("CLIENT UNBLOCK {id}")), Reply::Int(1));
            client.read().expect("an answer")
        });
        assert_eq!(waits, Reply::Int(0), "{line}");
    }
}

/// A client that sends a TLS ClientHello to a plain port is disconnected.
#[test]
fn tls_client_on_plain_port_is_disconnected() {
    let hello = [&b"\x16\x03\x01\x00\x85\x01\x00\x00\x81\x03\x03"[..], &[7; 122], b"\r\n"].concat();
    let nodes = start_redoubt_and_valkey("--save ");
    let answer = expect_same_outcome(&nodes, |node| {
        let mut stream = std::net::TcpStream::connect(node.address()).expect("a connection");
        stream.write_all(&hello).expect("it reads");
        stream.shutdown(std::net::Shutdown::Write).expect("the other half stays");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        node.run("PING");
        String::from_utf8_lossy(&answer).into_owned()
    });
    assert!(answer.starts_with("-ERR ") || answer.is_empty(), "{answer}");
}

/// During a pause of writes neither keys nor hash fields expire. After the pause both expire.
#[test]
fn hash_fields_do_not_expire_while_writes_are_paused() {
    let nodes = start_redoubt_and_valkey("--save ");
    let seen = expect_same_outcome(&nodes, |node| {
        node.run("HSET h a 1 b 2");
        // The field expires before the key, and the key's expiry is visible to EXISTS.
        node.run("HPEXPIRE h 150 FIELDS 1 a");
        node.run("SET s 1 PX 151");
        node.run("CLIENT PAUSE 60000 WRITE").expect_ok();
        eventually("the key has expired", || (node.run("EXISTS s") == Reply::Int(0)).then_some(()));
        let questions = ["HLEN h", "HGET h a", "HEXISTS h a", "HPTTL h FIELDS 1 a", "DBSIZE", "HGETALL h"];
        let held: Vec<Reply> = questions.map(|question| node.run(question)).into();
        node.run("CLIENT UNPAUSE").expect_ok();
        eventually("the field and the key expire", || {
            (node.run("HLEN h") == Reply::Int(1) && node.run("DBSIZE") == Reply::Int(1)).then_some(())
        });
        held
    });
    assert_eq!(seen.len(), 6);
}

/// An inline command that was delayed by a pause must not be unquoted a second time.
#[test]
fn paused_inline_commands_are_unquoted_once() {
    let nodes = start_redoubt_and_valkey("--save ");
    let seen = expect_same_outcome(&nodes, |node| {
        node.run("CLIENT PAUSE 60000 WRITE").expect_ok();
        let mut typed = std::net::TcpStream::connect(node.address()).expect("a connection");
        typed.write_all(b"SET \"a b\" '1\\'2'\r\nSET \"c d\" \"\\x41\"\r\n").expect("it reads");
        eventually("the command is held by the pause", || {
            let list = node.run("CLIENT LIST").text();
            list.lines().any(|line| line.contains(" cmd=set ") || line.contains("flags=b")).then_some(())
        });
        node.run("CLIENT UNPAUSE").expect_ok();
        let mut replies = [0; 10];
        typed.read_exact(&mut replies).expect("two replies");
        let mut keys: Vec<String> = node.run("KEYS *").items().iter().map(Reply::text).collect();
        keys.sort();
        let mut reader = node.connect();
        (replies, keys, reader.call(&["GET", "a b"]), reader.call(&["GET", "c d"]))
    });
    assert_eq!(seen.1, ["a b", "c d"]);
}

/// The test tries every 7-bit byte at each position of an inline command.
#[test]
fn inline_arguments_are_split_as_in_valkey() {
    let nodes = start_redoubt_and_valkey("--save ");
    let seen = expect_same_outcome(&nodes, |node| {
        let mut typed = Vec::new();
        for byte in (1..0x80).filter(|byte| *byte != b'\n').map(|byte: u8| char::from(byte)) {
            for line in [
                format!("{byte}ECHO x"),
                format!("ECHO{byte}x"),
                format!("ECHO x{byte}y"),
                format!("ECHO x{byte}"),
                format!("ECHO x {byte} "),
                format!("ECHO \"x{byte}y\""),
                format!("ECHO 'x{byte}y'"),
                format!("ECHO \"x\"{byte}y"),
                format!("ECHO 'x'{byte}'y'"),
                format!("ECHO \"x\\{byte}y\""),
            ] {
                let mut connection = std::net::TcpStream::connect(node.address()).expect("a connection");
                // An unbalanced quote closes the connection.
                connection.write_all(format!("{line}\r\nQUIT\r\n").as_bytes()).expect("it reads");
                let mut reply = Vec::new();
                connection.read_to_end(&mut reply).expect("a reply");
                typed.push((line, String::from_utf8(reply).expect("text")));
            }
        }
        typed
    });
    assert_eq!(seen.len(), 1260);
}

/// The debugger takes over the connection, so SCRIPT DEBUG is refused while other replies are pending.
#[test]
fn script_debug_is_refused_in_a_pipeline() {
    let nodes = start_redoubt_and_valkey("--save ");
    let seen = expect_same_outcome(&nodes, |node| {
        let writes = [
            "SCRIPT DEBUG NO\r\nPING\r\n",
            "PING\r\nSCRIPT DEBUG NO\r\n",
            "SCRIPT DEBUG NO\r\nSCRIPT DEBUG NO\r\n",
            "MULTI\r\nSCRIPT DEBUG NO\r\nEXEC\r\n",
            "CLIENT REPLY SKIP\r\nPING\r\nSCRIPT DEBUG NO\r\n",
        ];
        writes.map(|write| {
            let mut connection = std::net::TcpStream::connect(node.address()).expect("a connection");
            connection.write_all(format!("{write}QUIT\r\n").as_bytes()).expect("it reads");
            let mut replies = String::new();
            connection.read_to_string(&mut replies).expect("replies");
            replies
        })
    });
    assert!(seen[1].contains("outside a pipeline"), "{seen:?}");
}

/// Commands in a transaction or script see the same time, because they run atomically.
#[test]
fn time_is_constant_in_transactions_and_scripts() {
    let nodes = start_redoubt_and_valkey("--save  --enable-debug-command yes");
    let seen = expect_same_outcome(&nodes, |node| {
        let mut client = node.connect();
        let script = "local a = redis.call('time') local n = 0 for i = 1, 1e6 do n = n + i end \
                      local b = redis.call('time') return a[1] == b[1] and a[2] == b[2]";
        let in_script = client.call(&["EVAL", script, "0"]);
        for line in ["MULTI", "TIME", "DEBUG SLEEP 0.02", "TIME"] {
            client.call_line(line);
        }
        let replies = client.call_line("EXEC");
        let in_transaction = replies.items()[0] == replies.items()[2];
        let time = |client: &mut harness::Connection| client.call_line("TIME");
        let apart = time(&mut client) != {
            client.call_line("DEBUG SLEEP 0.001").expect_ok();
            time(&mut client)
        };
        (in_script, in_transaction, apart)
    });
    assert_eq!(seen, (Reply::Int(1), true, true));
}

/// Test suites of other tools start a single-node cluster and wait until its state is ok.
#[test]
fn single_node_cluster_is_ok_within_seconds() {
    for node in start_redoubt_and_valkey("--save  --cluster-enabled yes") {
        node.run("CLUSTER ADDSLOTSRANGE 0 16383").expect_ok();
        let began = Instant::now();
        eventually_within(Duration::from_secs(20), "the cluster is ok", || {
            node.run("CLUSTER INFO").text().contains("cluster_state:ok").then_some(())
        });
        println!("{:?}", began.elapsed());
        node.run("SET k v").expect_ok();
    }
}

/// `save` lines in a configuration file accumulate; `--save` on the command line replaces them.
#[test]
fn save_lines_in_a_configuration_file_accumulate() {
    let shown = |program: &Program| {
        let mut node = Node::prepare(program, "");
        let file = node.folder().join("rules.conf");
        std::fs::write(&file, "save 900 1\nsave 300 10 60 10000\n").expect("it can be written");
        node.set_configuration(&file);
        node.launch();
        node.run("CONFIG GET save").items()[1].text()
    };
    let ours = shown(&Program::redoubt());
    assert_eq!(ours, "900 1 300 10 60 10000");
    if let Some(valkey) = Program::valkey() {
        assert_eq!(ours, shown(&valkey));
    }
}
