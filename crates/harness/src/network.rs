//! Hosts of their own on a network that a test can cut: Linux network namespaces, joined by bridges.
//!
//! Each host is a namespace with one interface, whose other end is a port of a bridge in one more namespace, the
//! hub; nothing of it touches the machine's own network. A host is cut off by moving its port to another bridge:
//! its packets are lost without a sign, as with a broken cable further on. One direction between two hosts is cut by
//! giving the sender a wrong hardware address for the receiver. A host's line may also be a bad one ([`Impairment`]),
//! whatever is cut.
//!
//! Namespaces outlive processes, so those whose test is gone are removed by the next test that makes some.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::Connection;
use crate::impairment::{Impairment, Line};

const PREFIX: &str = "redoubt-test";
/// A hardware address that no host has.
const NOWHERE: &str = "02:00:00:00:ff:ff";

/// A host of a [`Network`]: where a server can be started.
#[derive(Debug, Clone)]
pub struct Host {
    namespace: String,
    /// Its address within the network.
    pub ip: IpAddr,
}

impl Host {
    /// The words before a command that have it run on this host.
    pub(crate) fn prefix(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.namespace]
    }

    /// Where its namespace is found.
    pub(crate) fn path(&self) -> PathBuf {
        path_of(&self.namespace)
    }

    /// A connection to a server on this host, from the host itself: it stands however the network is cut.
    pub(crate) fn connect(&self, port: u16) -> std::io::Result<Connection> {
        let namespace = self.path();
        // A namespace is entered by a thread, a socket belongs to where it was made.
        let connecting = thread::spawn(move || {
            enter(&namespace)?;
            Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        });
        connecting.join().expect("a thread that only connects")
    }
}

/// Hosts that reach each other until they are cut. Dropping it removes them.
#[derive(Debug)]
pub struct Network {
    hub: String,
    /// Its hosts.
    pub hosts: Vec<Host>,
    ports: Mutex<Vec<Port>>,
}

/// Where a host is plugged in.
#[derive(Debug, Default)]
struct Port {
    /// The number of the bridge.
    side: u8,
    /// The line between its port and that bridge.
    line: Option<Line>,
}

impl Network {
    /// A network of so many hosts, or the reason why there cannot be one here.
    ///
    /// # Errors
    /// The feature that the system lacks, or does not allow this process.
    pub fn make(hosts: u8) -> Result<Self, String> {
        static MADE: AtomicU16 = AtomicU16::new(0);
        if !rustix::process::geteuid().is_root() {
            return Err("only root may make network namespaces".into());
        }
        remove_leftovers();
        let own = format!("{PREFIX}-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let hub = format!("{own}-hub");
        ip(&["netns", "add", &hub])?;
        let mut network = Self { hub, hosts: Vec::new(), ports: Mutex::default() };
        for side in 0..=hosts {
            let bridge = bridge(side);
            network.in_hub(&["link", "add", &bridge, "type", "bridge"])?;
            network.in_hub(&["link", "set", &bridge, "up"])?;
        }
        for number in 0..hosts {
            network.add(&own, number)?;
        }
        Ok(network)
    }

    fn add(&mut self, own: &str, number: u8) -> Result<(), String> {
        let namespace = format!("{own}-{number}");
        ip(&["netns", "add", &namespace])?;
        let address = Ipv4Addr::new(10, 77, 0, number + 1);
        self.hosts.push(Host { namespace: namespace.clone(), ip: address.into() });
        self.ports().push(Port::default());
        let port = port(number.into());
        self.in_hub(&["link", "add", &port, "type", "veth", "peer", "eth0", "netns", &namespace])?;
        self.in_hub(&["link", "set", &port, "master", &bridge(0), "up"])?;
        let inside = |words: &[&str]| ip(&[&["-n", &namespace], words].concat());
        inside(&["link", "set", "lo", "up"])?;
        inside(&["addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
        inside(&["link", "set", "eth0", "up"])
    }

    /// Parts the network: each group reaches only its own. Hosts that are not named stay together.
    ///
    /// # Panics
    /// If the system does not do as it is told.
    pub fn split(&self, groups: &[&[usize]]) {
        for (side, group) in groups.iter().enumerate() {
            for &host in *group {
                self.plug(host, side as u8 + 1);
            }
        }
    }

    /// Loses all packets from `from` to the others; packets from them arrive.
    ///
    /// # Panics
    /// If the system does not do as it is told.
    pub fn lose(&self, from: usize, to: &[usize]) {
        for &to in to {
            let address = self.hosts[to].ip.to_string();
            let words = ["neigh", "replace", &address, "lladdr", NOWHERE, "nud", "permanent", "dev", "eth0"];
            self.on_host(from, &words);
        }
    }

    /// Gives a host a bad line, until [`mend`](Self::mend). The faults are drawn from the seed.
    ///
    /// # Errors
    /// Where the machine has no TAP devices.
    ///
    /// # Panics
    /// If the host has one already, or the system does not do as it is told.
    pub fn impair(&self, host: usize, impairment: Impairment, seed: u64) -> Result<(), String> {
        let mut ports = self.ports();
        let line = &mut ports[host].line;
        assert!(line.is_none(), "the line of host {host} is bad already");
        let (own, near, far) = (format!("line{host}"), format!("near{host}"), far(host));
        let laid = Line::lay(path_of(&self.hub), [near.clone(), far.clone()], impairment, seed);
        *line = Some(laid.map_err(|error| format!("this machine has no TAP devices: {error}"))?);
        let side = bridge(ports[host].side);
        let words: [&[&str]; 5] = [
            &["link", "add", &own, "type", "bridge"],
            &["link", "set", &own, "up"],
            &["link", "set", &near, "master", &own, "up"],
            &["link", "set", &far, "master", &side, "up"],
            &["link", "set", &port(host), "master", &own],
        ];
        words.into_iter().try_for_each(|words| self.in_hub(words))
    }

    /// Gives a host a good line again; packets on their way are lost.
    ///
    /// # Panics
    /// If the system does not do as it is told.
    pub fn mend(&self, host: usize) {
        let mut ports = self.ports();
        if ports[host].line.take().is_some() {
            let words: [&[&str]; 2] = [
                &["link", "set", &port(host), "master", &bridge(ports[host].side)],
                &["link", "del", &format!("line{host}")],
            ];
            words.into_iter().for_each(|words| self.change(words));
        }
    }

    /// Ends all cuts: every host reaches every other one again.
    ///
    /// # Panics
    /// If the system does not do as it is told.
    pub fn heal(&self) {
        for host in 0..self.hosts.len() {
            self.plug(host, 0);
            self.on_host(host, &["neigh", "flush", "nud", "permanent", "dev", "eth0"]);
        }
    }

    fn plug(&self, host: usize, side: u8) {
        let own = &mut self.ports()[host];
        own.side = side;
        let device = if own.line.is_some() { far(host) } else { port(host) };
        self.change(&["link", "set", &device, "master", &bridge(side)]);
    }

    fn ports(&self) -> MutexGuard<'_, Vec<Port>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, words: &[&str]) {
        self.in_hub(words).expect("the test's own network can be changed");
    }

    fn on_host(&self, host: usize, words: &[&str]) {
        let words = [&["-n", &self.hosts[host].namespace], words].concat();
        ip(&words).expect("the test's own network can be changed");
    }

    fn in_hub(&self, words: &[&str]) -> Result<(), String> {
        ip(&[&["-n", &self.hub], words].concat())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let names = self.hosts.iter().map(|host| &host.namespace).chain([&self.hub]);
        for name in names {
            // Whatever is left is removed by the next test.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// A host's port in the hub.
fn port(host: usize) -> String {
    format!("port{host}")
}

/// The far end of its line, if that is a bad one.
fn far(host: usize) -> String {
    format!("far{host}")
}

fn path_of(namespace: &str) -> PathBuf {
    Path::new("/run/netns").join(namespace)
}

/// Moves this thread into a network namespace.
pub(crate) fn enter(namespace: &Path) -> std::io::Result<()> {
    let namespace = File::open(namespace)?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn bridge(side: u8) -> String {
    format!("side{side}")
}

/// Runs iproute2.
fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).output();
    let output =
        output.map_err(|error| format!("iproute2 is missing (scripts/install-test-tools): {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("this machine allows no network namespaces: ip {}: {}", words.join(" "), said.trim()))
}

/// Removes the namespaces of tests whose process is gone.
fn remove_leftovers() {
    let Ok(names) = std::fs::read_dir("/run/netns") else { return };
    for name in names.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let pid = rest.split('-').nth(1).unwrap_or_default();
        if !Path::new("/proc").join(pid).exists() {
            // Another test may have been faster.
            let _ = ip(&["netns", "del", &name]);
        }
    }
}
