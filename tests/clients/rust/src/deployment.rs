//! Starts and kills the servers for a client test.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::{
    Cluster, Connection, MASTER_NAME, Node, Program, SentinelGroup, eventually, info_field, slot_of,
    slot_owner,
};
use tempfile::TempDir;

use crate::test_key;

const LOCAL_HOST: &str = "127.0.0.1";

/// The kind of servers that a client connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeploymentMode {
    /// One server without failover.
    Standalone,
    /// A master, two replicas and three sentinels.
    Sentinel,
    /// Three masters with a replica each.
    Cluster,
}

impl DeploymentMode {
    /// The mode's name in the table of docs/clients.md.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }

    /// The mode's name in the table for tests in which a master is killed.
    #[must_use]
    pub fn name_with_kill(self) -> &'static str {
        match self {
            Self::Standalone => "standalone, master killed",
            Self::Sentinel => "sentinel, master killed",
            Self::Cluster => "cluster, master killed",
        }
    }

    fn server_count(self) -> usize {
        match self {
            Self::Standalone => 1,
            Self::Sentinel => 3,
            Self::Cluster => 6,
        }
    }
}

/// The addresses that clients need to connect.
#[derive(Debug, Clone)]
pub struct ServerAddresses {
    /// Whether clients connect to one server, to sentinels or to a cluster.
    pub mode: DeploymentMode,
    /// The ports of the data servers, in the order in which they were started.
    pub ports: Vec<u16>,
    /// The TLS ports of the data servers; empty without TLS.
    pub tls_ports: Vec<u16>,
    /// The ports of the sentinels; empty without sentinels. Sentinels use TLS if the servers do.
    pub sentinels: Vec<u16>,
    /// The certificate of the authority that signed the servers' certificates.
    pub ca_certificate: Vec<u8>,
}

impl ServerAddresses {
    /// Runs a command on each data server.
    ///
    /// # Panics
    /// A server does not reply.
    pub fn run_on_servers(&self, line: &str) {
        for &port in &self.ports {
            let mut connection = Connection::open((LOCAL_HOST, port)).expect("a server answers");
            connection.call_line(line);
        }
    }

    /// The number of blocked clients on all data servers.
    pub(crate) fn blocked_client_count(&self) -> u64 {
        let blocked = |&port: &u16| {
            let mut connection = Connection::open((LOCAL_HOST, port)).ok()?;
            info_field(&mut connection, "clients", "blocked_clients")?.parse::<u64>().ok()
        };
        self.ports.iter().filter_map(blocked).sum()
    }
}

/// The running servers of a test.
#[derive(Debug)]
pub struct ClientTestServers {
    /// The addresses under which clients reach the servers.
    pub addresses: ServerAddresses,
    servers: Vec<Node>,
    sentinels: Vec<Node>,
    _certificates: TempDir,
}

impl ClientTestServers {
    /// Starts the servers, each with a second port for TLS if `tls` is set. `CLIENTS_PROGRAM` selects servers other
    /// than Redoubt: if a feature fails with those servers too, the fault is the library's.
    ///
    /// # Panics
    /// A server does not start.
    #[must_use]
    pub fn start_servers(mode: DeploymentMode, uses_tls: bool) -> Self {
        let certificates = TempDir::new().expect("a temporary folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/make-certificates");
        let made = Command::new(script).arg(certificates.path()).stderr(Stdio::null()).status();
        assert!(made.expect("the script runs").success());
        let program = std::env::var_os("CLIENTS_PROGRAM")
            .map_or_else(Program::redoubt, |name| Program::from_binary(Path::new(&name)));
        let prepare = |number: usize| {
            let mut node = Node::prepare(&program, "");
            if number < mode.server_count() {
                node.add_options("--save --repl-diskless-sync-delay 0");
            }
            if uses_tls {
                node.enable_tls(certificates.path());
            }
            if mode == DeploymentMode::Cluster {
                node.add_options("--cluster-enabled yes --cluster-node-timeout 2000");
            }
            node
        };
        let launched = || {
            (0..mode.server_count()).map(prepare).map(|mut node| {
                node.launch();
                node
            })
        };
        let (servers, sentinels) = match mode {
            DeploymentMode::Standalone => (launched().collect(), Vec::new()),
            DeploymentMode::Cluster => (Cluster::join_nodes(launched().collect(), 3).nodes, Vec::new()),
            DeploymentMode::Sentinel => {
                let group = SentinelGroup::start_with_nodes(prepare);
                group.shorten_timeouts();
                (group.servers, group.sentinels)
            }
        };
        let addresses = ServerAddresses {
            mode,
            ports: servers.iter().map(|node| node.port).collect(),
            tls_ports: servers.iter().filter_map(Node::tls_port).collect(),
            sentinels: sentinels.iter().map(SentinelGroup::port_of).collect(),
            ca_certificate: fs::read(certificates.path().join("ca.crt")).expect("the script made it"),
        };
        Self { addresses, servers, sentinels, _certificates: certificates }
    }

    /// Kills the master of the keys from [`test_key`] once its replicas have all its data, and returns its index.
    pub(crate) fn kill_master(&mut self) -> usize {
        let number = match self.addresses.mode {
            DeploymentMode::Cluster => {
                let port = slot_owner(&mut self.servers[0].connect(), slot_of(&test_key("")));
                self.servers.iter().position(|node| Some(node.port) == port)
            }
            DeploymentMode::Standalone | DeploymentMode::Sentinel => {
                let told = self.sentinels[0].run(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {MASTER_NAME}"));
                let port = told.items()[1].text();
                self.servers.iter().position(|node| SentinelGroup::port_of(node).to_string() == port)
            }
        };
        let number = number.expect("a master");
        let mut connection = self.servers[number].connect();
        connection.call_line(&format!("SET {} 1", test_key("last"))).expect_ok();
        assert!(connection.call_line("WAIT 1 10000").int() > 0, "no replica has what the master has");
        self.servers[number].kill();
        number
    }

    /// Restarts a server, and waits until it has become a replica.
    pub(crate) fn restart_server(&mut self, number: usize) {
        self.servers[number].launch();
        eventually("the dead one is a replica", || {
            (self.servers[number].info("replication", "master_link_status")? == "up").then_some(())
        });
    }
}
