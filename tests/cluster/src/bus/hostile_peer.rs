//! A hostile peer replays recorded bus packets whole, truncated and with false lengths. The node must survive without
//! leaking files or memory and close the links of malformed packets, and the cluster state must not change.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use harness::{
    Cluster, Node, Program, cluster_info_field, eventually, fill_cluster, find_lost_keys, slot_owner,
};

const HEADER_BYTES: usize = 2256;
const MAX_MEMORY_GROWTH: u64 = 64 << 20;
const GOSSIP_ENTRY_BYTES: usize = 104;
/// Byte offset of a packet's length field.
const PACKET_LENGTH_OFFSET: usize = 4;
const GOSSIP_COUNT_OFFSET: usize = 14;
const EXTENSIONS_OFFSET: usize = 2214;

type RecordedPackets = Arc<Mutex<Vec<Vec<u8>>>>;

/// Forwards one direction of a connection and records each packet. At its end, it also closes the other direction.
fn forward_link(mut from: TcpStream, mut to: TcpStream, packets: &RecordedPackets) {
    while let Some(packet) = read_packet(&mut from) {
        if to.write_all(&packet).is_err() {
            break;
        }
        packets.lock().expect("no thread fails").push(packet);
    }
    for end in [from, to] {
        // The socket may be closed already.
        let _ = end.shutdown(Shutdown::Both);
    }
}

fn read_packet(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut packet = vec![0; 8];
    from.read_exact(&mut packet).ok()?;
    let length = u32::from_be_bytes(packet[PACKET_LENGTH_OFFSET..8].try_into().ok()?) as usize;
    packet.resize(length, 0);
    from.read_exact(&mut packet[8..]).ok()?;
    Some(packet)
}

/// Puts a recording proxy between the other nodes and a node's bus port. The proxy runs until the test process ends.
fn record_bus_traffic(node: &Node) -> RecordedPackets {
    let packets = RecordedPackets::default();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let (port, bus) = (listener.local_addr().expect("it is bound").port(), node.port + 10_000);
    let kept = packets.clone();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", bus))) else { continue };
            let ends = (client.try_clone().expect("a handle"), server.try_clone().expect("a handle"));
            let recordings = (kept.clone(), kept.clone());
            thread::spawn(move || forward_link(client, server, &recordings.0));
            thread::spawn(move || forward_link(ends.1, ends.0, &recordings.1));
        }
    });
    node.run(&format!("CONFIG SET cluster-announce-bus-port {port}")).expect_ok();
    packets
}

/// Sends bytes to a node's bus and closes the sending side; the node must then close the connection.
fn send_and_expect_close(node: &Node, description: &str, bytes: &[u8]) {
    let mut stream = node.connect_to_bus().unwrap_or_else(|error| panic!("{description}: {error}"));
    // The node may close the connection before all bytes are sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
    let ended = stream.read_to_end(&mut Vec::new());
    let open = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!open, "{description}: the link stays open");
}

/// The offset of each extension of a packet.
fn extension_offsets(packet: &[u8]) -> Vec<usize> {
    let short = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let mut at = HEADER_BYTES + short(GOSSIP_COUNT_OFFSET) * GOSSIP_ENTRY_BYTES;
    let mut found = Vec::new();
    for _ in 0..short(EXTENSIONS_OFFSET) {
        found.push(at);
        at += u32::from_be_bytes(packet[at..at + 4].try_into().expect("four bytes")) as usize;
    }
    assert_eq!(at, packet.len(), "the recording has whole packets");
    found
}

/// Malformed variants of a packet. The node must refuse each one and close its link.
fn malformed_variants(packet: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let with = |at: usize, bytes: &[u8]| {
        let mut packet = packet.to_vec();
        packet[at..at + bytes.len()].copy_from_slice(bytes);
        packet
    };
    let honest = |mut cut: Vec<u8>| {
        let length = cut.len() as u32;
        cut[PACKET_LENGTH_OFFSET..8].copy_from_slice(&length.to_be_bytes());
        cut
    };
    let mut lies = vec![
        ("a length of nothing", with(PACKET_LENGTH_OFFSET, &[0; 4])),
        ("a length of 4 GiB", with(PACKET_LENGTH_OFFSET, &[0xff; 4])),
        ("a length one too small", with(PACKET_LENGTH_OFFSET, &(packet.len() as u32 - 1).to_be_bytes())),
        ("a length one too large", with(PACKET_LENGTH_OFFSET, &(packet.len() as u32 + 1).to_be_bytes())),
        ("65,535 gossip entries", with(GOSSIP_COUNT_OFFSET, &[0xff; 2])),
        ("65,535 extensions", with(EXTENSIONS_OFFSET, &[0xff; 2])),
        ("no extensions", with(EXTENSIONS_OFFSET, &[0; 2])),
    ];
    for at in extension_offsets(packet) {
        lies.push(("a packet that ends before an extension", honest(packet[..at].to_vec())));
        lies.push(("a packet that ends in an extension's header", honest(packet[..at + 6].to_vec())));
        lies.push(("a packet that ends in an extension", honest(packet[..at + 9].to_vec())));
        for length in [0, 4, 7, 9, packet.len() as u32, u32::MAX] {
            lies.push(("an extension's length that lies", with(at, &length.to_be_bytes())));
        }
    }
    for at in (8..packet.len()).step_by(97) {
        lies.push(("half a packet", packet[..at].to_vec()));
    }
    lies
}

/// The slot claims of the masters, without fields that change by themselves.
fn slot_claims(node: &Node) -> Vec<String> {
    let nodes = node.run("CLUSTER NODES").text();
    let mut lines: Vec<String> = nodes
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let flags = words[2].replace("myself,", "");
            format!("{} {} {flags} {} {} {:?}", words[0], words[1], words[3], words[6], &words[8..])
        })
        .collect();
    lines.sort();
    lines
}

fn count_open_files(node: &Node) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", node.pid())).expect("the process runs").count()
}

/// Records packets of all members, then fails over and moves nodes. Every recorded packet is now outdated: the slots of
/// the first master have a new owner, and nodes have new addresses and ids.
fn record_outdated_packets() -> (Cluster, Vec<Vec<u8>>, Vec<String>) {
    let cluster = Cluster::start(&Program::redoubt(), 3, 1);
    cluster.nodes[0].run("CONFIG SET cluster-announce-hostname one.example").expect_ok();
    let recordings = [0, 3].map(|node| record_bus_traffic(&cluster.nodes[node]));
    let keys = fill_cluster(&cluster, "key", 500);
    eventually("packets of all members were recorded", || {
        recordings.iter().all(|packets| packets.lock().expect("no thread fails").len() > 60).then_some(())
    });
    let packets =
        recordings.iter().flat_map(|packets| packets.lock().expect("no thread fails").clone()).collect();
    cluster.nodes[3].run("CLUSTER FAILOVER").expect_ok();
    cluster.wait_for_owner(0, |port| port == cluster.nodes[3].port);
    for node in [0, 3] {
        cluster.nodes[node].run("CONFIG SET cluster-announce-bus-port 0").expect_ok();
    }
    cluster.nodes[0].run("CONFIG SET cluster-announce-hostname uno.example").expect_ok();
    // Each pair of nodes has two links.
    let wanted = 2 * (cluster.nodes.len() - 1);
    for node in &cluster.nodes {
        eventually("all links stand", || (node.run("CLUSTER LINKS").items().len() == wanted).then_some(()));
    }
    eventually("the old master is a replica", || {
        (cluster.nodes[0].info("replication", "master_link_status")? == "up").then_some(())
    });
    (cluster, packets, keys)
}

/// Waits until all nodes agree on the slot owners and know each node's own address.
fn wait_for_agreement(cluster: &Cluster) -> Vec<String> {
    eventually("all have one view", || {
        let mut views = cluster.nodes.iter().map(slot_claims);
        let first = views.next()?;
        let bus = |node: &Node| first.iter().any(|line| line.contains(&format!("@{}", node.port + 10_000)));
        let whole = cluster.nodes.iter().all(bus) && first.iter().any(|line| line.contains("uno.example"));
        (whole && views.all(|view| view == first)).then_some(first)
    })
}

#[test]
fn replayed_and_malformed_packets_do_not_change_cluster() {
    let (cluster, packets, keys) = record_outdated_packets();
    let expected = wait_for_agreement(&cluster);
    let before: Vec<(u64, usize)> =
        cluster.nodes.iter().map(|node| (node.resident_bytes(), count_open_files(node))).collect();

    // Every node receives all whole packets twice, in recorded and in reverse order.
    for node in &cluster.nodes {
        let (forth, back) = (packets.concat(), packets.iter().rev().flatten().copied().collect::<Vec<u8>>());
        send_and_expect_close(node, "replayed packets", &forth);
        send_and_expect_close(node, "replayed packets in reverse", &back);
        let owner = slot_owner(&mut node.connect(), 0);
        assert_eq!(owner, Some(cluster.nodes[3].port), "an outdated claim counts for nothing");
    }
    assert_eq!(wait_for_agreement(&cluster), expected, "after replayed packets");

    // Only PING, PONG and MEET have extensions.
    let rich =
        packets.iter().filter(|packet| packet[12..14] < [0, 3][..] && !extension_offsets(packet).is_empty());
    let rich: Vec<&Vec<u8>> = rich.collect();
    assert!(!rich.is_empty(), "some packet has extensions");
    for packet in [rich[0], rich[rich.len() / 2], rich[rich.len() - 1]] {
        for (what, bytes) in malformed_variants(packet) {
            send_and_expect_close(&cluster.nodes[1], what, &bytes);
        }
    }
    assert_eq!(wait_for_agreement(&cluster), expected, "after malformed packets");
    cluster.wait_until_ok();
    assert_eq!(find_lost_keys(&cluster, &keys), Vec::<String>::new());
    for (node, (resident, files)) in cluster.nodes.iter().zip(before) {
        let now = node.resident_bytes();
        assert!(now < resident + MAX_MEMORY_GROWTH, "{resident} bytes have become {now}");
        let what = format!(
            "of {} open files at {} no more than {files} are left",
            count_open_files(node),
            node.port
        );
        eventually(&what, || (count_open_files(node) <= files + 2).then_some(()));
        assert!(!node.log().contains("panicked"), "{}", node.log());
        assert_eq!(
            cluster_info_field(&mut node.connect(), "cluster_current_epoch"),
            current_epoch(&cluster.nodes[3])
        );
    }
}

fn current_epoch(node: &Node) -> Option<String> {
    cluster_info_field(&mut node.connect(), "cluster_current_epoch")
}
