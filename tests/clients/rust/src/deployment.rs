//! Starts the servers of a test.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::{
    Cluster, Connection, Group, MASTER, Node, Program, eventually, info_field, slot_of, slot_owner,
};
use tempfile::TempDir;

use crate::key;

const HOST: &str = "127.0.0.1";

/// How the servers handle failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One server without failover.
    Standalone,
    /// A master, two replicas and three sentinels.
    Sentinel,
    /// Three masters with a replica each.
    Cluster,
}

impl Mode {
    /// The name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }

    /// The name in the table for tests in which a master is killed.
    #[must_use]
    pub fn name_with_kill(self) -> &'static str {
        match self {
            Self::Standalone => "standalone, master killed",
            Self::Sentinel => "sentinel, master killed",
            Self::Cluster => "cluster, master killed",
        }
    }

    fn servers(self) -> usize {
        match self {
            Self::Standalone => 1,
            Self::Sentinel => 3,
            Self::Cluster => 6,
        }
    }
}

/// The addresses for clients.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// The mode of the servers.
    pub mode: Mode,
    /// The ports of the data servers.
    pub ports: Vec<u16>,
    /// Their TLS ports, if they have any.
    pub tls_ports: Vec<u16>,
    /// The ports of the sentinels, if any. They use TLS if the servers do.
    pub sentinels: Vec<u16>,
    /// The certificate of the certificate authority.
    pub authority: Vec<u8>,
}

impl Addresses {
    /// Runs a command on each data server.
    ///
    /// # Panics
    /// If a server does not reply.
    pub fn on_servers(&self, line: &str) {
        for &port in &self.ports {
            let mut connection = Connection::open((HOST, port)).expect("a server answers");
            connection.run(line);
        }
    }

    /// The number of blocked clients.
    pub(crate) fn blocked_clients(&self) -> u64 {
        let blocked = |&port: &u16| {
            let mut connection = Connection::open((HOST, port)).ok()?;
            info_field(&mut connection, "clients", "blocked_clients")?.parse::<u64>().ok()
        };
        self.ports.iter().filter_map(blocked).sum()
    }
}

/// The running servers of a test.
#[derive(Debug)]
pub struct Deployment {
    /// Their addresses.
    pub addresses: Addresses,
    servers: Vec<Node>,
    sentinels: Vec<Node>,
    _certificates: TempDir,
}

impl Deployment {
    /// Starts the servers, each with a second port for TLS if `tls` is set. `CLIENTS_PROGRAM` selects other servers
    /// than Redoubt: a feature that fails with those too is a fault of the library.
    ///
    /// # Panics
    /// If a server does not start.
    #[must_use]
    pub fn start(mode: Mode, tls: bool) -> Self {
        let certificates = TempDir::new().expect("a temporary folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/make-certificates");
        let made = Command::new(script).arg(certificates.path()).stderr(Stdio::null()).status();
        assert!(made.expect("the script runs").success());
        let program = std::env::var_os("CLIENTS_PROGRAM")
            .map_or_else(Program::redoubt, |name| Program::named(Path::new(&name)));
        let prepare = |number: usize| {
            let mut node = Node::prepare(&program, "");
            if number < mode.servers() {
                node.add_options("--save --repl-diskless-sync-delay 0");
            }
            if tls {
                node.speak_tls(certificates.path());
            }
            if mode == Mode::Cluster {
                node.add_options("--cluster-enabled yes --cluster-node-timeout 2000");
            }
            node
        };
        let launched = || {
            (0..mode.servers()).map(prepare).map(|mut node| {
                node.launch();
                node
            })
        };
        let (servers, sentinels) = match mode {
            Mode::Standalone => (launched().collect(), Vec::new()),
            Mode::Cluster => (Cluster::join(launched().collect(), 3).nodes, Vec::new()),
            Mode::Sentinel => {
                let group = Group::assemble(prepare);
                group.shorten_timeouts();
                (group.servers, group.sentinels)
            }
        };
        let addresses = Addresses {
            mode,
            ports: servers.iter().map(|node| node.port).collect(),
            tls_ports: servers.iter().filter_map(Node::tls_port).collect(),
            sentinels: sentinels.iter().map(Group::port_of).collect(),
            authority: fs::read(certificates.path().join("ca.crt")).expect("the script made it"),
        };
        Self { addresses, servers, sentinels, _certificates: certificates }
    }

    /// Kills the master of the keys ([`key`]) once its replicas have all its data, and returns its index.
    pub(crate) fn kill_master(&mut self) -> usize {
        let number = match self.addresses.mode {
            Mode::Cluster => {
                let port = slot_owner(&mut self.servers[0].connect(), slot_of(&key("")));
                self.servers.iter().position(|node| Some(node.port) == port)
            }
            Mode::Standalone | Mode::Sentinel => {
                let told = self.sentinels[0].run(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {MASTER}"));
                let port = told.items()[1].text();
                self.servers.iter().position(|node| Group::port_of(node).to_string() == port)
            }
        };
        let number = number.expect("a master");
        let mut connection = self.servers[number].connect();
        connection.run(&format!("SET {} 1", key("last"))).expect_ok();
        assert!(connection.run("WAIT 1 10000").int() > 0, "no replica has what the master has");
        self.servers[number].kill();
        number
    }

    /// Restarts a server, and waits until it is a replica.
    pub(crate) fn restart(&mut self, number: usize) {
        self.servers[number].launch();
        eventually("the dead one is a replica", || {
            (self.servers[number].info("replication", "master_link_status")? == "up").then_some(())
        });
    }
}
