//! Tests of malformed input from clients and on the cluster bus: the sender gets an error or is disconnected, and other
//! clients are not affected.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use harness::{Cluster, Connection, Node, Program, Reply, cluster_info_field, eventually};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The maximum growth of resident memory that a test accepts, in bytes.
const MAX_MEMORY_GROWTH: u64 = 64 << 20;

fn start_server() -> Node {
    Node::start(&Program::redoubt(), "--save ")
}

/// Checks that other clients are served and that resident memory has grown less than `MAX_MEMORY_GROWTH`.
fn assert_healthy(node: &Node, resident_before: u64) {
    let mut connection = node.connect();
    connection.call_line("SET unharmed yes").expect_ok();
    assert_eq!(connection.call_line("GET unharmed").text(), "yes");
    let resident = node.resident_bytes();
    assert!(resident < resident_before + MAX_MEMORY_GROWTH, "{resident_before} bytes have become {resident}");
}

#[test]
fn server_survives_random_bytes() {
    let node = start_server();
    let before = node.resident_bytes();
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for round in 0..500 {
        let length = random.random_range(1..4000);
        let mut bytes: Vec<u8> = (0..length).map(|_| random.random()).collect();
        if round % 2 == 0 {
            // Uses mostly protocol bytes, so that more of the input passes the parser's first checks.
            bytes = bytes.iter().map(|byte| b"*$123\r\n+-:0PING \"'"[usize::from(byte % 18)]).collect();
        }
        let mut connection = node.connect();
        // The server may close the connection while this client still sends.
        let _ = connection.send_raw(&bytes);
        let _ = connection.shut_down_sending();
        connection.read_to_end().expect("the server closes the link");
    }
    assert_healthy(&node, before);
}

#[test]
fn incomplete_requests_are_completed_by_later_packets() {
    let node = start_server();
    let before = node.resident_bytes();
    let request = b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$5\r\nvalue\r\n";
    let mut halves: Vec<(Connection, usize)> = Vec::new();
    for cut in 1..request.len() {
        let mut connection = node.connect();
        connection.send_raw(&request[..cut]).expect("the server reads");
        halves.push((connection, cut));
    }
    assert_healthy(&node, before);
    for (mut connection, cut) in halves {
        connection.send_raw(&request[cut..]).expect("the server reads on");
        connection.read().expect("the request is whole now").expect_ok();
    }
}

#[test]
fn out_of_range_lengths_are_refused() {
    let node = start_server();
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
        assert_eq!(connection.read().expect("an answer"), Reply::Error(message.into()));
        assert_eq!(connection.read_to_end().expect("then the link is closed"), b"");
    }
    assert_healthy(&node, before);
}

/// The client announces large arguments but never sends them. Memory must grow with received bytes only.
#[test]
fn announced_lengths_allocate_no_memory() {
    let node = start_server();
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
    assert_healthy(&node, before);
    drop((announcing, many));
}

#[test]
fn nested_multibulk_requests_are_refused() {
    let node = start_server();
    let before = node.resident_bytes();
    let mut connection = node.connect();
    let _ = connection.send_raw(&b"*1\r\n".repeat(1 << 20));
    let reply = connection.read().expect("an answer");
    assert_eq!(reply, Reply::Error("ERR Protocol error: expected '$', got '*'".into()));
    assert_healthy(&node, before);
}

/// An inline command without a line end is refused when it exceeds the length limit.
#[test]
fn oversized_inline_requests_are_refused() {
    let node = start_server();
    let before = node.resident_bytes();
    for _ in 0..20 {
        let mut connection = node.connect();
        let _ = connection.send_raw(&vec![b'a'; 1 << 17]);
        let reply = connection.read().expect("an answer");
        assert_eq!(reply, Reply::Error("ERR Protocol error: too big inline request".into()));
    }
    assert_healthy(&node, before);
}

/// A client that requests much data and reads nothing is disconnected at the output buffer limit.
#[test]
fn client_that_does_not_read_is_disconnected() {
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
    assert_healthy(&node, before);
}

/// The test opens 20,000 connections, or as many as the limit on open files allows.
#[test]
fn idle_connections_use_little_memory() {
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
                // Wait for the server to accept the connections before the listen queue overflows.
                stream.write_all(b"PING\r\n").expect("the server reads");
                stream.read_exact(&mut [0; 7]).expect("the server answers");
            }
            stream
        })
        .collect();
    let mut connection = node.connect();
    connection.set_timeout(Duration::from_secs(20));
    connection.call_line("SET a 1").expect_ok();
    let resident = node.resident_bytes();
    let each = resident.saturating_sub(before) / count as u64;
    assert!(each < 3000, "{each} bytes for each of {count} idle connections");
    drop(idle);
    eventually("the idle clients are disconnected", || {
        let connected: usize = node.info("clients", "connected_clients")?.parse().ok()?;
        (connected < 10).then_some(())
    });
}

/// Raises the soft limit on open files up to `requested_limit`; returns the new limit.
fn raise_file_limit(requested_limit: u64) -> u64 {
    let current = getrlimit(Resource::Nofile);
    let raised = [
        Rlimit {
            current: Some(requested_limit),
            maximum: Some(current.maximum.unwrap_or(requested_limit).max(requested_limit)),
        },
        Rlimit { current: current.maximum.map(|most| most.min(requested_limit)), maximum: current.maximum },
    ];
    // Raising the hard limit needs privileges; if that fails, raise only the soft limit.
    let _ = raised.iter().find(|limit| setrlimit(Resource::Nofile, **limit).is_ok());
    getrlimit(Resource::Nofile).current.unwrap_or(requested_limit)
}

#[test]
fn clients_beyond_maxclients_get_an_error() {
    let node = Node::start(&Program::redoubt(), "--save  --maxclients 20");
    let clients: Vec<Connection> = (0..20).map(|_| node.connect()).map(check_ping).collect();
    let mut late = node.connect();
    assert_eq!(late.read().expect("an answer"), Reply::Error("ERR max number of clients reached".into()));
    drop(clients);
    eventually("there is room again", || {
        node.connect().try_call(&["PING"]).ok().filter(|reply| *reply == Reply::Simple("PONG".into()))
    });
}

fn check_ping(mut connection: Connection) -> Connection {
    assert_eq!(connection.call_line("PING"), Reply::Simple("PONG".into()));
    connection
}

/// Malformed or misleading packets that an unknown peer may send to the cluster bus.
fn malformed_bus_packets(sender: &str) -> Vec<(&'static str, Vec<u8>)> {
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

/// The node must survive all packets, keep its view of the cluster, and close the connection of a packet that is
/// shorter than its header claims.
#[test]
fn malformed_bus_packets_do_not_change_the_cluster() {
    let cluster = Cluster::start(&Program::redoubt(), 3, 0);
    let node = &cluster.nodes[0];
    let sender = cluster.node_id(1);
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
    for (description, packet) in malformed_bus_packets(&sender) {
        for _ in 0..3 {
            let mut stream = node.connect_to_bus().unwrap_or_else(|error| panic!("{description}: {error}"));
            let _ = stream.write_all(&packet);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
            let mut answer = Vec::new();
            match stream.read_to_end(&mut answer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    panic!("{description}: the link stays open")
                }
                _ => {}
            }
        }
    }
    for (description, packet) in
        malformed_bus_packets(&sender).into_iter().filter(|(_, packet)| packet.len() >= 2256)
    {
        // Change random header bytes of every complete packet.
        let mut random = ChaCha8Rng::seed_from_u64(packet.len() as u64);
        for _ in 0..50 {
            let mut packet = packet.clone();
            for _ in 0..random.random_range(1..20) {
                let at = random.random_range(0..40.min(packet.len()));
                packet[at] = random.random();
            }
            let mut stream = node.connect_to_bus().unwrap_or_else(|error| panic!("{description}: {error}"));
            let _ = stream.write_all(&packet);
        }
    }
    assert_cluster_healthy(&cluster, before);
    assert_eq!(view(), expected);
}

fn assert_cluster_healthy(cluster: &Cluster, resident_before: u64) {
    let node = &cluster.nodes[0];
    let resident = node.resident_bytes();
    assert!(resident < resident_before + MAX_MEMORY_GROWTH, "{resident_before} bytes have become {resident}");
    for node in &cluster.nodes {
        assert_eq!(cluster_info_field(&mut node.connect(), "cluster_state").as_deref(), Some("ok"));
    }
}

/// A web page can make a browser post commands to this port. The headers arrive first, the body in a later segment.
#[test]
fn http_post_requests_execute_no_commands() {
    let node = start_server();
    for headers in ["POST / HTTP/1.1\r\n", "GET key\r\nHost: localhost\r\n"] {
        let mut browser = node.connect();
        browser.send_raw(headers.as_bytes()).expect("sent");
        // The server closes the connection before it reads the body.
        let _ = browser.read_to_end();
        let _ = browser.send_raw(b"SET evil 1\r\n");
        assert_eq!(node.run("EXISTS evil"), Reply::Int(0), "{headers}");
    }
}
