//! Test hosts on a network that can be partitioned: Linux network namespaces joined by bridges.
//!
//! Each host is a namespace with one interface. The peer of that interface is a port of a bridge in another namespace,
//! the hub; the machine's own network is not changed. A host is isolated by moving its port to another bridge, so that
//! packets are silently lost, as with a broken cable. To block one direction between two hosts, the sender gets a wrong
//! hardware address for the receiver. The link of a host can also be impaired ([`LinkImpairment`]).
//!
//! Namespaces outlive processes. A test that creates namespaces first removes those of test processes that have ended.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::Connection;
use crate::impairment::{ImpairedLink, LinkImpairment};
use crate::namespace::enter_namespace;

const NAME_PREFIX: &str = "redoubt-test";
/// A hardware address that no host has.
const UNUSED_MAC: &str = "02:00:00:00:ff:ff";

/// A host in a [`TestNetwork`], on which servers can be started.
#[derive(Debug, Clone)]
pub struct TestHost {
    namespace: String,
    /// The IP address of the host's only interface.
    pub ip: IpAddr,
}

impl TestHost {
    /// Returns the words that must precede a command to run it on this host.
    pub(crate) fn command_prefix(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.namespace]
    }

    pub(crate) fn namespace_path(&self) -> PathBuf {
        path_of_namespace(&self.namespace)
    }

    /// Connects to a server on this host from the same host, which works despite any partition.
    pub(crate) fn connect(&self, port: u16) -> std::io::Result<Connection> {
        let namespace = self.namespace_path();
        // A network namespace is a property of a thread, so a new thread enters it. The socket remains in the namespace
        // after the thread has ended.
        let connecting = thread::spawn(move || {
            enter_namespace(&namespace)?;
            Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        });
        connecting.join().expect("a thread that only connects")
    }
}

/// A network of test hosts. Dropping this value removes the hosts.
#[derive(Debug)]
pub struct TestNetwork {
    hub_namespace: String,
    /// The hosts. Partitions and impairments refer to them by index.
    pub hosts: Vec<TestHost>,
    ports: Mutex<Vec<HubPort>>,
}

/// The port of a host in the hub.
#[derive(Debug, Default)]
struct HubPort {
    /// Number of the bridge to which the port belongs.
    bridge: u8,
    /// The impaired link between port and bridge, if there is one.
    impaired_link: Option<ImpairedLink>,
}

impl TestNetwork {
    /// Creates a network of `hosts` hosts.
    ///
    /// # Errors
    /// The system lacks a feature or does not permit its use; the error names it.
    pub fn create(hosts: u8) -> Result<Self, String> {
        static NETWORK_COUNT: AtomicU16 = AtomicU16::new(0);
        if !rustix::process::geteuid().is_root() {
            return Err("only root may make network namespaces".into());
        }
        remove_leftover_namespaces();
        let own =
            format!("{NAME_PREFIX}-{}-{}", std::process::id(), NETWORK_COUNT.fetch_add(1, Ordering::Relaxed));
        let hub = format!("{own}-hub");
        run_iproute(&["netns", "add", &hub])?;
        let mut network = Self { hub_namespace: hub, hosts: Vec::new(), ports: Mutex::default() };
        for side in 0..=hosts {
            let bridge = bridge_name(side);
            network.run_in_hub(&["link", "add", &bridge, "type", "bridge"])?;
            network.run_in_hub(&["link", "set", &bridge, "up"])?;
        }
        for number in 0..hosts {
            network.add_host(&own, number)?;
        }
        Ok(network)
    }

    fn add_host(&mut self, name_prefix: &str, number: u8) -> Result<(), String> {
        let namespace = format!("{name_prefix}-{number}");
        run_iproute(&["netns", "add", &namespace])?;
        let address = Ipv4Addr::new(10, 77, 0, number + 1);
        self.hosts.push(TestHost { namespace: namespace.clone(), ip: address.into() });
        self.lock_ports().push(HubPort::default());
        let port = hub_interface_name(number.into());
        self.run_in_hub(&["link", "add", &port, "type", "veth", "peer", "eth0", "netns", &namespace])?;
        self.run_in_hub(&["link", "set", &port, "master", &bridge_name(0), "up"])?;
        let inside = |words: &[&str]| run_iproute(&[&["-n", &namespace], words].concat());
        inside(&["link", "set", "lo", "up"])?;
        inside(&["addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
        inside(&["link", "set", "eth0", "up"])
    }

    /// Partitions the network into groups of hosts. All hosts that are in none of `groups` form another group.
    ///
    /// # Panics
    /// A system command fails.
    pub fn partition(&self, groups: &[&[usize]]) {
        for (side, group) in groups.iter().enumerate() {
            for &host in *group {
                self.connect_port(host, side as u8 + 1);
            }
        }
    }

    /// Drops all packets from `from` to the hosts in `to`, but not in the other direction.
    ///
    /// # Panics
    /// A system command fails.
    pub fn drop_packets(&self, from: usize, to: &[usize]) {
        for &to in to {
            let address = self.hosts[to].ip.to_string();
            let words =
                ["neigh", "replace", &address, "lladdr", UNUSED_MAC, "nud", "permanent", "dev", "eth0"];
            self.run_on_host(from, &words);
        }
    }

    /// Impairs the link of a host until [`repair_link`](Self::repair_link) is called. Faults are drawn from the seed.
    ///
    /// # Errors
    /// The machine has no TAP devices.
    ///
    /// # Panics
    /// The link is already impaired, or a system command fails.
    pub fn impair_link(&self, host: usize, impairment: LinkImpairment, seed: u64) -> Result<(), String> {
        let mut ports = self.lock_ports();
        let line = &mut ports[host].impaired_link;
        assert!(line.is_none(), "the line of host {host} is bad already");
        let (own, near, far) = (format!("line{host}"), format!("near{host}"), far_tap_name(host));
        let laid = ImpairedLink::start(
            path_of_namespace(&self.hub_namespace),
            [near.clone(), far.clone()],
            impairment,
            seed,
        );
        *line = Some(laid.map_err(|error| format!("this machine has no TAP devices: {error}"))?);
        let side = bridge_name(ports[host].bridge);
        let words: [&[&str]; 5] = [
            &["link", "add", &own, "type", "bridge"],
            &["link", "set", &own, "up"],
            &["link", "set", &near, "master", &own, "up"],
            &["link", "set", &far, "master", &side, "up"],
            &["link", "set", &hub_interface_name(host), "master", &own],
        ];
        words.into_iter().try_for_each(|words| self.run_in_hub(words))
    }

    /// Repairs the impaired link of a host. Packets in transit are lost.
    ///
    /// # Panics
    /// A system command fails.
    pub fn repair_link(&self, host: usize) {
        let mut ports = self.lock_ports();
        if ports[host].impaired_link.take().is_some() {
            let words: [&[&str]; 2] = [
                &["link", "set", &hub_interface_name(host), "master", &bridge_name(ports[host].bridge)],
                &["link", "del", &format!("line{host}")],
            ];
            words.into_iter().for_each(|words| self.run_ip(words));
        }
    }

    /// Ends all partitions.
    ///
    /// # Panics
    /// A system command fails.
    pub fn heal_partition(&self) {
        for host in 0..self.hosts.len() {
            self.connect_port(host, 0);
            self.run_on_host(host, &["neigh", "flush", "nud", "permanent", "dev", "eth0"]);
        }
    }

    fn connect_port(&self, host: usize, bridge: u8) {
        let own = &mut self.lock_ports()[host];
        own.bridge = bridge;
        let device = if own.impaired_link.is_some() { far_tap_name(host) } else { hub_interface_name(host) };
        self.run_ip(&["link", "set", &device, "master", &bridge_name(bridge)]);
    }

    fn lock_ports(&self) -> MutexGuard<'_, Vec<HubPort>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_ip(&self, words: &[&str]) {
        self.run_in_hub(words).expect("the test's own network can be changed");
    }

    fn run_on_host(&self, host: usize, words: &[&str]) {
        let words = [&["-n", &self.hosts[host].namespace], words].concat();
        run_iproute(&words).expect("the test's own network can be changed");
    }

    fn run_in_hub(&self, words: &[&str]) -> Result<(), String> {
        run_iproute(&[&["-n", &self.hub_namespace], words].concat())
    }
}

impl Drop for TestNetwork {
    fn drop(&mut self) {
        let names = self.hosts.iter().map(|host| &host.namespace).chain([&self.hub_namespace]);
        for name in names {
            // If this fails, the next test removes the namespace.
            let _ = run_iproute(&["netns", "del", name]);
        }
    }
}

/// Returns the name of the interface in the hub that is connected to the host.
fn hub_interface_name(host: usize) -> String {
    format!("port{host}")
}

/// Returns the name of the TAP device on the common bridge's side of an impaired link.
fn far_tap_name(host: usize) -> String {
    format!("far{host}")
}

fn path_of_namespace(namespace: &str) -> PathBuf {
    Path::new("/run/netns").join(namespace)
}

fn bridge_name(number: u8) -> String {
    format!("side{number}")
}

/// Runs iproute2's `ip` with these arguments.
fn run_iproute(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).output();
    let output =
        output.map_err(|error| format!("iproute2 is missing (scripts/install-test-tools): {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("this machine allows no network namespaces: ip {}: {}", words.join(" "), said.trim()))
}

/// Removes the namespaces of test processes that have ended.
fn remove_leftover_namespaces() {
    let Ok(names) = std::fs::read_dir("/run/netns") else { return };
    for name in names.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let Some(rest) = name.strip_prefix(NAME_PREFIX) else { continue };
        let pid = rest.split('-').nth(1).unwrap_or_default();
        if !Path::new("/proc").join(pid).exists() {
            // Another test may already have removed the namespace.
            let _ = run_iproute(&["netns", "del", &name]);
        }
    }
}
