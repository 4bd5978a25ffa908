//! The servers of a test.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::{
    Cluster, Connection, Group, MASTER, Node, Program, eventually, info_field, slot_of, slot_owner,
};
use tempfile::TempDir;

use crate::key;

const HOST: &str = "127.0.0.1";

/// How servers find out that one is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One server.
    Standalone,
    /// A master, two replicas and three sentinels.
    Sentinel,
    /// Three masters with a replica each.
    Cluster,
}

impl Mode {
    /// As the table calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }

    /// As the table calls it where a master is killed in the middle.
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

/// Where clients connect.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// Which kind of place.
    pub mode: Mode,
    /// Of servers with data.
    pub ports: Vec<u16>,
    /// Theirs for TLS, if they speak it.
    pub tls_ports: Vec<u16>,
    /// Of sentinels, if any. They speak TLS if the servers do.
    pub sentinels: Vec<u16>,
    /// The certificate of the authority.
    pub authority: Vec<u8>,
}

impl Addresses {
    /// Has each server do something.
    ///
    /// # Panics
    /// If one does not answer.
    pub fn on_servers(&self, line: &str) {
        for &port in &self.ports {
            let mut connection = Connection::open((HOST, port)).expect("a server answers");
            connection.run(line);
        }
    }

    /// How many clients wait for an element.
    pub(crate) fn blocked_clients(&self) -> u64 {
        let blocked = |&port: &u16| {
            let mut connection = Connection::open((HOST, port)).ok()?;
            info_field(&mut connection, "clients", "blocked_clients")?.parse::<u64>().ok()
        };
        self.ports.iter().filter_map(blocked).sum()
    }
}

/// Servers.
#[derive(Debug)]
pub struct Deployment {
    /// Where they are.
    pub at: Addresses,
    servers: Vec<Node>,
    sentinels: Vec<Node>,
    _certificates: TempDir,
}

impl Deployment {
    /// Starts it, each server with a second port for TLS if wanted. `CLIENTS_PROGRAM` names other servers than
    /// Redoubt's: what fails with them too is the library's.
    ///
    /// # Panics
    /// If it does not start.
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
        let at = Addresses {
            mode,
            ports: servers.iter().map(|node| node.port).collect(),
            tls_ports: servers.iter().filter_map(Node::tls_port).collect(),
            sentinels: sentinels.iter().map(Group::port_of).collect(),
            authority: fs::read(certificates.path().join("ca.crt")).expect("the script made it"),
        };
        Self { at, servers, sentinels, _certificates: certificates }
    }

    /// Kills the master of the keys ([`key`]), with nothing on it that its replica lacks; gives its number.
    pub(crate) fn kill_master(&mut self) -> usize {
        let number = match self.at.mode {
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

    /// Starts it again, and waits until it is a replica.
    pub(crate) fn restart(&mut self, number: usize) {
        self.servers[number].launch();
        eventually("the dead one is a replica", || {
            (self.servers[number].info("replication", "master_link_status")? == "up").then_some(())
        });
    }
}
