//! Local servers that are started as a user starts them: with `make` in the repository, but with separate folders and
//! ports.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{Connection, PortClaim, Program, claim_ports};

/// The set of servers that `make` starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalSetup {
    /// A cluster, started by `make up`.
    Cluster,
    /// A master with replicas and sentinels, started by `make up-sentinel`.
    SentinelGroup,
}

/// A folder and ports for local servers. Dropping this value stops the servers.
#[derive(Debug)]
pub struct LocalServers {
    /// The port of the first server. The other servers use the ports that follow.
    pub first_port: u16,
    setup: LocalSetup,
    folder: TempDir,
    _port_claims: Vec<PortClaim>,
}

impl LocalServers {
    /// Number of servers that either setup starts.
    pub const SERVER_COUNT: u16 = 6;

    /// Reserves a folder and consecutive ports without starting any server.
    #[must_use]
    pub fn new(setup: LocalSetup) -> Self {
        let claims = claim_ports(Self::SERVER_COUNT);
        let folder = TempDir::new().expect("a temporary folder");
        Self { first_port: claims[0].port, setup, folder, _port_claims: claims }
    }

    /// Returns the root folder of the repository.
    #[must_use]
    pub fn repository_root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    /// Returns the folder of the servers' files.
    #[must_use]
    pub fn data_folder(&self) -> PathBuf {
        match self.setup {
            LocalSetup::Cluster => self.folder.path().join("cluster"),
            LocalSetup::SentinelGroup => self.folder.path().join("group"),
        }
    }

    /// Runs `make` and returns its output.
    ///
    /// # Errors
    /// `make` failed; the error is its output.
    pub fn run_make(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("make")
            .arg("--no-print-directory")
            .args(arguments)
            .current_dir(Self::repository_root())
            .env("CLUSTER_DIR", self.folder.path().join("cluster"))
            .env("GROUP_DIR", self.folder.path().join("group"))
            .env("REDOUBT", Program::redoubt().binary())
            // The test itself may run under `make`, whose flags must not apply here.
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL")
            .output()
            .expect("make is installed");
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(text) } else { Err(text) }
    }

    /// Starts the servers with `make`.
    ///
    /// # Errors
    /// `make` failed; the error is its output.
    pub fn start_servers(&self) -> Result<String, String> {
        let goal = match self.setup {
            LocalSetup::Cluster => "up",
            LocalSetup::SentinelGroup => "up-sentinel",
        };
        self.run_make(&[goal, &format!("PORT={}", self.first_port)])
    }

    /// Connects to the server with this index, counted from the first port.
    #[must_use]
    pub fn connect(&self, index: u16) -> Connection {
        Connection::open(("127.0.0.1", self.first_port + index)).expect("the server takes connections")
    }
}

impl Drop for LocalServers {
    fn drop(&mut self) {
        if self.data_folder().exists() {
            let goal = match self.setup {
                LocalSetup::Cluster => "down",
                LocalSetup::SentinelGroup => "down-sentinel",
            };
            let _ = self.run_make(&[goal]);
        }
    }
}
