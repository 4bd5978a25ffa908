//! What the tests of client libraries share: servers in each mode, and the cells of the table in docs/clients.md.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness::{Cluster, Group, MASTER, Node, PortClaim, Program, claim_port, eventually, slot_owner};
use tempfile::TempDir;

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

    fn servers(self) -> usize {
        match self {
            Self::Standalone => 1,
            Self::Sentinel => 3,
            Self::Cluster => 6,
        }
    }
}

/// Why a feature has no mark, or nothing if it works.
pub type Outcome = Result<Option<&'static str>, Box<dyn Error + Send + Sync>>;

/// A key in the first range of slots.
pub const KEY: &str = "key:0";

/// Servers, each with a port for TLS as well.
#[derive(Debug)]
pub struct Place {
    /// Which kind.
    pub mode: Mode,
    /// Those with data.
    pub servers: Vec<Node>,
    /// The sentinels, if any.
    pub sentinels: Vec<Node>,
    tls: Vec<PortClaim>,
    certificates: TempDir,
}

impl Place {
    /// Starts it.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(mode: Mode) -> Self {
        let certificates = TempDir::new().expect("a temporary folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/make-certificates");
        let made = Command::new(script).arg(certificates.path()).stderr(Stdio::null()).status();
        assert!(made.expect("the script runs").success());
        let path = |name: &str| certificates.path().join(name).display().to_string();
        let tls: Vec<PortClaim> = (0..mode.servers()).map(|_| claim_port()).collect();
        let prepare = |number: usize| {
            let mut node = Node::prepare(&Program::redoubt(), "");
            if number < mode.servers() {
                node.add_options("--save --repl-diskless-sync-delay 0");
            }
            if let Some(claim) = tls.get(number) {
                node.add_options(&format!(
                    "--tls-port {} --tls-auth-clients no --tls-cert-file {} --tls-key-file {} --tls-ca-cert-file {}",
                    claim.port,
                    path("server.crt"),
                    path("server.key"),
                    path("ca.crt")
                ));
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
                group.hurry();
                (group.servers, group.sentinels)
            }
        };
        Self { mode, servers, sentinels, tls, certificates }
    }

    /// Their ports.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(|node| node.port).collect()
    }

    /// Their ports for TLS.
    #[must_use]
    pub fn tls_ports(&self) -> Vec<u16> {
        self.tls.iter().map(|claim| claim.port).collect()
    }

    /// The authority's certificate.
    ///
    /// # Panics
    /// If it is gone.
    #[must_use]
    pub fn authority(&self) -> Vec<u8> {
        fs::read(self.certificates.path().join("ca.crt")).expect("the script made it")
    }

    /// Has each server do something.
    ///
    /// # Panics
    /// If one does not answer.
    pub fn on_servers(&self, line: &str) {
        for node in &self.servers {
            node.run(line);
        }
    }

    /// Kills the master of [`KEY`]; gives its number.
    ///
    /// # Panics
    /// If there is none.
    pub fn kill_master(&mut self) -> usize {
        let port = match self.mode {
            Mode::Cluster => slot_owner(&mut self.servers[0].connect(), harness::slot_of(KEY)),
            _ => self.sentinels.first().and_then(|sentinel| {
                let reply = sentinel.run(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {MASTER}"));
                reply.items()[1].text().parse().ok()
            }),
        };
        let number = self.servers.iter().position(|node| Some(node.port) == port).expect("a master");
        self.servers[number].kill();
        number
    }

    /// Starts it again, and waits until it is a replica.
    ///
    /// # Panics
    /// If it does not become one.
    pub fn restart(&mut self, number: usize) {
        self.servers[number].launch();
        eventually("the dead one is a replica", || {
            (self.servers[number].info("replication", "master_link_status")? == "up").then_some(())
        });
    }
}

/// The cells of one library in one mode with one protocol.
#[derive(Debug)]
pub struct Table {
    client: &'static str,
    mode: Mode,
    protocol: u8,
    failed: Vec<String>,
}

impl Table {
    /// None yet.
    #[must_use]
    pub fn new(client: &'static str, mode: Mode, protocol: u8) -> Self {
        Self { client, mode, protocol, failed: Vec::new() }
    }

    /// Writes a line for scripts/clients-page, if it asks for one.
    ///
    /// # Panics
    /// If that cannot be written.
    pub fn note(&mut self, feature: &str, outcome: Outcome) {
        let result = match outcome {
            Ok(None) => "yes",
            Ok(Some(why)) => why,
            Err(error) => {
                self.failed.push(format!("{feature}: {error}"));
                "failed"
            }
        };
        let Some(folder) = std::env::var_os("CLIENTS_TABLE") else { return };
        let file = PathBuf::from(folder).join("rust.jsonl");
        let mut file = File::options().create(true).append(true).open(file).expect("the folder is there");
        let (client, mode, protocol) = (self.client, self.mode.name(), self.protocol);
        let cell = format!(
            "{{\"client\":\"{client}\",\"mode\":\"{mode}\",\"protocol\":{protocol},\"feature\":\"{feature}\",\"result\":\"{result}\"}}\n"
        );
        file.write_all(cell.as_bytes()).expect("the file can be written to");
    }

    /// Panics if something failed.
    ///
    /// # Panics
    /// See above.
    pub fn finish(self) {
        assert!(self.failed.is_empty(), "{} {:?}: {:#?}", self.client, self.mode, self.failed);
    }
}
