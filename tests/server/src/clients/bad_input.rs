//! Bytes from strangers: each gets its error or a closed link, and no other client notices.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use harness::{Cluster, Connection, Node, Program, Value, cluster_field, eventually};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than any of these inputs may cost.
const MOST_MEMORY_GROWTH: u64 = 64 << 20;

fn server() -> Node {
    Node::start(&Program::redoubt(), "--save ")
}

/// Other clients are served, and memory has not grown past the bound.
fn is_unharmed(node: &Node, resident_before: u64) {
    let mut connection = node.connect();
    connection.run("SET unharmed yes").expect_ok();
    assert_eq!(connection.run("GET unharmed").text(), "yes");
    let resident = node.resident_bytes();
    assert!(
        resident < resident_before + MOST_MEMORY_GROWTH,
        "{resident_before} bytes have become {resident}"
    );
}

#[test]
fn random_bytes_do_no_harm() {
    let node = server();
    let before = node.resident_bytes();
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for round in 0..500 {
        let length = random.random_range(1..4000);
        let mut bytes: Vec<u8> = (0..length).map(|_| random.random()).collect();
        if round % 2 == 0 {
            // Closer to what a parser takes: small numbers after the type bytes.
            bytes = bytes.iter().map(|byte| b"*$123\r\n+-:0PING \"'"[usize::from(byte % 18)]).collect();
        }
        let mut connection = node.connect();
        // The server may close in the middle of it.
        let _ = connection.send_raw(&bytes);
        let _ = connection.end_sending();
        connection.read_to_end().expect("the server closes the link");
    }
    is_unharmed(&node, before);
}

#[test]
fn half_requests_wait_without_harm() {
    let node = server();
    let before = node.resident_bytes();
    let request = b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$5\r\nvalue\r\n";
    let mut halves: Vec<(Connection, usize)> = Vec::new();
    for cut in 1..request.len() {
        let mut connection = node.connect();
        connection.send_raw(&request[..cut]).expect("the server reads");
        halves.push((connection, cut));
    }
    is_unharmed(&node, before);
    for (mut connection, cut) in halves {
        connection.send_raw(&request[cut..]).expect("the server reads on");
        connection.read().expect("the request is whole now").expect_ok();
    }
}

#[test]
fn absurd_lengths_are_refused() {
    let node = server();
    let before = node.resident_bytes();
    let absurd: [(&[u8], &str); 5] = [
        (b"*2\r\n$3\r\nGET\r\n$1000000000000\r\n", "ERR Protocol error: invalid bulk length"),
        (b"*1\r\n$99999999999999999999999\r\n", "ERR Protocol error: invalid bulk length"),
        (b"*1\r\n$-5\r\n", "ERR Protocol error: invalid bulk length"),
        (b"*1000000000000\r\n", "ERR Protocol error: invalid multibulk length"),
        (b"*3\r\n*3\r\n", "ERR Protocol error: expected '$', got '*'"),
    ];
    for (bytes, message) in absurd {
        let mut connection = node.connect();
        connection.send_raw(bytes).expect("the server reads");
        assert_eq!(connection.read().expect("an answer"), Value::Error(message.into()));
        assert_eq!(connection.read_to_end().expect("then the link is closed"), b"");
    }
    is_unharmed(&node, before);
}

/// Promised but never sent: memory follows what arrives, not what is announced.
#[test]
fn announced_bytes_take_no_memory_before_they_come() {
    let node = server();
    let before = node.resident_bytes();
    let announcing: Vec<Connection> = (0..200)
        .map(|_| {
            let mut connection = node.connect();
            connection.send_raw(b"*2\r\n$3\r\nGET\r\n$536870912\r\nabc").expect("the server reads");
            connection
        })
        .collect();
    let many: Vec<Connection> = (0..200)
        .map(|_| {
            let mut connection = node.connect();
            connection.send_raw(b"*1048576\r\n$3\r\nDEL\r\n$1\r\na\r\n").expect("the server reads");
            connection
        })
        .collect();
    is_unharmed(&node, before);
    drop((announcing, many));
}

#[test]
fn a_nesting_bomb_is_refused() {
    let node = server();
    let before = node.resident_bytes();
    let mut connection = node.connect();
    let _ = connection.send_raw(&b"*1\r\n".repeat(1 << 20));
    let reply = connection.read().expect("an answer");
    assert_eq!(reply, Value::Error("ERR Protocol error: expected '$', got '*'".into()));
    is_unharmed(&node, before);
}

/// An inline command without an end, and one of a million words.
#[test]
fn endless_lines_are_refused() {
    let node = server();
    let before = node.resident_bytes();
    for _ in 0..20 {
        let mut connection = node.connect();
        let _ = connection.send_raw(&vec![b'a'; 1 << 17]);
        let reply = connection.read().expect("an answer");
        assert_eq!(reply, Value::Error("ERR Protocol error: too big inline request".into()));
    }
    is_unharmed(&node, before);
}

/// A client that asks for much and reads nothing is cut off at the output buffer limit.
#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let node = Node::start(&Program::redoubt(), "--save ");
    node.connect().call(&["CONFIG", "SET", "client-output-buffer-limit", "normal 8mb 0 0"]).expect_ok();
    node.connect().call(&["SET", "big", &"x".repeat(1 << 20)]).expect_ok();
    let before = node.resident_bytes();
    let mut greedy = node.connect();
    let requests = b"*2\r\n$3\r\nGET\r\n$3\r\nbig\r\n".repeat(500);
    let _ = greedy.send_raw(&requests);
    eventually("the greedy client is gone", || {
        let clients = node.run("CLIENT LIST").text();
        (clients.lines().count() == 1).then_some(())
    });
    is_unharmed(&node, before);
}

/// Twenty thousand, or as many as this machine lets a process have.
#[test]
fn idle_connections_cost_little_and_harm_nobody() {
    let limit = raise_file_limit(45_000);
    let count = (limit.saturating_sub(500)).min(20_000) as usize;
    assert!(count >= 500, "this machine allows {limit} open files");
    let node = Node::start(&Program::redoubt(), "--save  --maxclients 21000");
    let taken = node.run("CONFIG GET maxclients").items()[1].text().parse::<usize>().expect("a number");
    let count = count.min(taken - 50);
    let before = node.resident_bytes();
    let idle: Vec<TcpStream> = (0..count)
        .map(|number| {
            let mut stream = TcpStream::connect(("127.0.0.1", node.port))
                .unwrap_or_else(|error| panic!("connection {number}: {error}"));
            if number % 1000 == 999 {
                // Let the server take them before its queue is full.
                stream.write_all(b"PING\r\n").expect("the server reads");
                stream.read_exact(&mut [0; 7]).expect("the server answers");
            }
            stream
        })
        .collect();
    let mut connection = node.connect();
    connection.set_timeout(Duration::from_secs(20));
    connection.run("SET a 1").expect_ok();
    let resident = node.resident_bytes();
    let each = resident.saturating_sub(before) / count as u64;
    assert!(each < 3000, "{each} bytes for each of {count} idle connections");
    drop(idle);
    eventually("they are gone", || {
        let connected: usize = node.info("clients", "connected_clients")?.parse().ok()?;
        (connected < 10).then_some(())
    });
}

/// Sets the soft limit on open files as high as may be, up to `wanted`, and gives what it is now.
fn raise_file_limit(wanted: u64) -> u64 {
    let current = getrlimit(Resource::Nofile);
    let raised = [
        Rlimit { current: Some(wanted), maximum: Some(current.maximum.unwrap_or(wanted).max(wanted)) },
        Rlimit { current: current.maximum.map(|most| most.min(wanted)), maximum: current.maximum },
    ];
    // The first needs privileges; the second does not.
    let _ = raised.iter().find(|limit| setrlimit(Resource::Nofile, **limit).is_ok());
    getrlimit(Resource::Nofile).current.unwrap_or(wanted)
}

#[test]
fn one_client_too_many_is_told_so() {
    let node = Node::start(&Program::redoubt(), "--save  --maxclients 20");
    let clients: Vec<Connection> = (0..20).map(|_| node.connect()).map(ping).collect();
    let mut late = node.connect();
    assert_eq!(late.read().expect("an answer"), Value::Error("ERR max number of clients reached".into()));
    drop(clients);
    eventually("there is room again", || {
        node.connect().try_call(&["PING"]).ok().filter(|reply| *reply == Value::Simple("PONG".into()))
    });
}

fn ping(mut connection: Connection) -> Connection {
    assert_eq!(connection.run("PING"), Value::Simple("PONG".into()));
    connection
}

/// The packets that a stranger may write to the bus.
fn bus_packets(sender: &str) -> Vec<(&'static str, Vec<u8>)> {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let mut noise = |length: usize| (0..length).map(|_| random.random()).collect::<Vec<u8>>();
    let header = |version: u16, kind: u16, length: u32, count: u16| {
        let mut packet = vec![0; 2256];
        packet[..4].copy_from_slice(b"RCmb");
        packet[4..8].copy_from_slice(&length.to_be_bytes());
        packet[8..10].copy_from_slice(&version.to_be_bytes());
        packet[12..14].copy_from_slice(&kind.to_be_bytes());
        packet[14..16].copy_from_slice(&count.to_be_bytes());
        packet[40..80].copy_from_slice(sender.as_bytes());
        packet
    };
    let with = |mut packet: Vec<u8>, tail: Vec<u8>| {
        packet.extend(tail);
        packet
    };
    let unknown_sender = || {
        let mut packet = header(1, 0, 2256, 0);
        packet[40..80].fill(b'f');
        packet
    };
    vec![
        ("random bytes", noise(5000)),
        ("a request of a client", b"*1\r\n$4\r\nPING\r\n".to_vec()),
        ("the signature and noise", with(b"RCmb".to_vec(), noise(5000))),
        ("a wrong version", header(2, 0, 2256, 0)),
        ("version 0", header(0, 0, 2256, 0)),
        ("a length below the header's", header(1, 0, 8, 0)),
        ("a length of 4 GiB", header(1, 0, u32::MAX, 0)),
        ("a PING that counts more gossip than it carries", header(1, 0, 2256, 60_000)),
        ("a MEET that counts more gossip than it carries", header(1, 2, 2256, 3)),
        ("a FAIL without the failed node", header(1, 3, 2256, 0)),
        ("an UPDATE cut short", with(header(1, 7, 2300, 0), noise(44))),
        ("a PUBLISH with lengths beyond its end", with(header(1, 4, 2272, 0), vec![0xff; 16])),
        ("an unknown type", header(1, 99, 2256, 0)),
        ("a PING of an unknown sender", unknown_sender()),
        ("half a header", header(1, 0, 2256, 0)[..1000].to_vec()),
    ]
}

/// Whatever comes over the bus: the node lives, the cluster stays as it was, and no connection is left open by a
/// packet that announces more than it brings.
#[test]
fn strangers_on_the_bus_change_nothing() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 0);
    let node = &cluster.nodes[0];
    let sender = cluster.id(1);
    let before = node.resident_bytes();
    let view = || {
        let mut lines: Vec<String> = node
            .run("CLUSTER NODES")
            .text()
            .lines()
            .map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                format!("{} {} {:?}", fields[0], fields[2], &fields[8..])
            })
            .collect();
        lines.sort();
        lines
    };
    let expected = view();
    for (what, packet) in bus_packets(&sender) {
        for _ in 0..3 {
            let mut stream = node.connect_to_bus().unwrap_or_else(|error| panic!("{what}: {error}"));
            let _ = stream.write_all(&packet);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
            let mut answer = Vec::new();
            match stream.read_to_end(&mut answer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    panic!("{what}: the link stays open")
                }
                _ => {}
            }
        }
    }
    for (what, packet) in bus_packets(&sender).into_iter().filter(|(_, packet)| packet.len() >= 2256) {
        // Every header with some bytes changed, and the same link used on.
        let mut random = ChaCha8Rng::seed_from_u64(packet.len() as u64);
        for _ in 0..50 {
            let mut packet = packet.clone();
            for _ in 0..random.random_range(1..20) {
                let at = random.random_range(0..40.min(packet.len()));
                packet[at] = random.random();
            }
            let mut stream = node.connect_to_bus().unwrap_or_else(|error| panic!("{what}: {error}"));
            let _ = stream.write_all(&packet);
        }
    }
    is_unharmed_in(&cluster, before);
    assert_eq!(view(), expected);
}

fn is_unharmed_in(cluster: &Cluster, resident_before: u64) {
    let node = &cluster.nodes[0];
    let resident = node.resident_bytes();
    assert!(
        resident < resident_before + MOST_MEMORY_GROWTH,
        "{resident_before} bytes have become {resident}"
    );
    for node in &cluster.nodes {
        assert_eq!(cluster_field(&mut node.connect(), "cluster_state").as_deref(), Some("ok"));
    }
}

/// A web page made a browser post commands to this port: its headers come first, the body in a later segment.
#[test]
fn a_browser_cannot_post_commands() {
    let node = server();
    for headers in ["POST / HTTP/1.1\r\n", "GET key\r\nHost: localhost\r\n"] {
        let mut browser = node.connect();
        browser.send_raw(headers.as_bytes()).expect("sent");
        // The server closes the link before the body, or without having read it.
        let _ = browser.read_to_end();
        let _ = browser.send_raw(b"SET evil 1\r\n");
        assert_eq!(node.run("EXISTS evil"), Value::Int(0), "{headers}");
    }
}
