use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::LinkImpairment;
use crate::namespace::enter_namespace;
use crate::{TestHost, TestNetwork, value_or_skip};

const TEST_PORT: u16 = 7;

/// Runs `action` in a thread that has entered the network namespace of this host.
fn run_on<T: Send + 'static>(host: &TestHost, action: impl FnOnce(IpAddr) -> T + Send + 'static) -> T {
    let (path, ip) = (host.namespace_path(), host.ip);
    let making = thread::spawn(move || {
        enter_namespace(&path).expect("a host of this test");
        action(ip)
    });
    making.join().expect("no panic")
}

/// Creates two hosts, impairs the link of the first one, and connects the first host to the second. Returns `None` if
/// this machine does not support impairment.
fn connect_hosts(impairment: LinkImpairment) -> Option<(TestNetwork, TcpStream, TcpStream)> {
    let network = value_or_skip("hosts of a network", TestNetwork::create(2))?;
    let listener = run_on(&network.hosts[1], |ip| TcpListener::bind((ip, TEST_PORT)).expect("a free port"));
    let to = SocketAddr::from((network.hosts[1].ip, TEST_PORT));
    let near = run_on(&network.hosts[0], move |_| TcpStream::connect(to).expect("both are well"));
    let (far, _) = listener.accept().expect("it was connected");
    near.set_nodelay(true).expect("a socket takes it");
    far.set_nodelay(true).expect("a socket takes it");
    network.impair_link(0, impairment, 1).expect("root has TAP devices");
    Some((network, near, far))
}

/// Measures the round-trip time of one byte.
fn round_trip(near: &mut TcpStream, far: &mut TcpStream) -> Duration {
    let (began, mut byte) = (Instant::now(), [1]);
    near.write_all(&byte).expect("the other end is there");
    far.read_exact(&mut byte).expect("it comes");
    far.write_all(&byte).expect("the other end is there");
    near.read_exact(&mut byte).expect("it comes back");
    began.elapsed()
}

/// Reads a kernel counter of a host by its netstat name.
fn kernel_counter(host: &TestHost, name: &'static str) -> u64 {
    run_on(host, move |_| {
        let files = ["snmp", "netstat"].map(|file| {
            std::fs::read_to_string(Path::new("/proc/thread-self/net").join(file)).expect("Linux has it")
        });
        let lines: Vec<&str> = files.iter().flat_map(|text| text.lines()).collect();
        let values = lines
            .chunks_exact(2)
            .flat_map(|pair| pair[0].split_whitespace().zip(pair[1].split_whitespace()).collect::<Vec<_>>());
        let mut values = values.filter(|(found, _)| *found == name);
        values.next().and_then(|(_, value)| value.parse().ok()).expect("the kernel counts it")
    })
}

/// Sends `length` bytes from the second host to the first, and checks that they arrive complete and in order.
fn transfer(near: &mut TcpStream, far: &mut TcpStream, length: usize) {
    let sent: Vec<u8> = (0..length).map(|at| (at / 7) as u8).collect();
    let expected = sent.clone();
    let mut far = far.try_clone().expect("a socket can be shared");
    let sending = thread::spawn(move || far.write_all(&sent).expect("the other end is there"));
    let mut came = vec![0; length];
    near.read_exact(&mut came).expect("all of it comes");
    sending.join().expect("no panic");
    assert_eq!(came, expected);
}

#[test]
fn delay_applies_in_both_directions_until_repaired() {
    let late = LinkImpairment { delay: Duration::from_millis(40), ..LinkImpairment::default() };
    let Some((network, mut near, mut far)) = connect_hosts(late) else { return };
    assert!(round_trip(&mut near, &mut far) >= Duration::from_millis(80));
    network.repair_link(0);
    crate::eventually("the line is good again", || {
        (round_trip(&mut near, &mut far) < Duration::from_millis(40)).then_some(())
    });
}

#[test]
fn tcp_survives_loss_and_duplication() {
    let bad = LinkImpairment {
        loss_percent: 5,
        duplication_percent: 30,
        jitter: Duration::from_millis(2),
        ..LinkImpairment::default()
    };
    let Some((network, mut near, mut far)) = connect_hosts(bad) else { return };
    transfer(&mut near, &mut far, 300_000);
    // Applications notice only delays, because the kernels retransmit lost packets.
    assert!(kernel_counter(&network.hosts[1], "RetransSegs") > 0, "packets were lost");
    let twice = kernel_counter(&network.hosts[0], "TCPDSACKOldSent")
        + kernel_counter(&network.hosts[0], "TCPDSACKOfoSent");
    assert!(twice > 0, "packets came twice");
}

#[test]
fn impairment_persists_across_a_partition() {
    let late = LinkImpairment { delay: Duration::from_millis(30), ..LinkImpairment::default() };
    let Some((network, mut near, mut far)) = connect_hosts(late) else { return };
    network.partition(&[&[0]]);
    near.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket takes it");
    far.write_all(&[1]).expect("the kernel takes it");
    assert!(near.read(&mut [0]).is_err(), "nothing comes over a cut");
    network.heal_partition();
    near.set_read_timeout(None).expect("a socket takes it");
    near.read_exact(&mut [0]).expect("it comes when it is sent again");
    assert!(round_trip(&mut near, &mut far) >= Duration::from_millis(60));
}
