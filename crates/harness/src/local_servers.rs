//! Local servers as a user has them: `make` in the repository, with a folder and ports of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{Connection, PortClaim, Program, claim_ports};

/// The kinds of places that `make` starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Local {
    /// `make up`.
    Cluster,
    /// `make up-sentinel`.
    Group,
}

/// A place for local servers. Takes them down when it is dropped.
#[derive(Debug)]
pub struct LocalServers {
    /// The first of their ports.
    pub base: u16,
    local: Local,
    folder: TempDir,
    _claims: Vec<PortClaim>,
}

impl LocalServers {
    /// How many servers either has.
    pub const SERVERS: u16 = 6;

    /// A place of one of these kinds.
    #[must_use]
    pub fn new(local: Local) -> Self {
        let claims = claim_ports(Self::SERVERS);
        let folder = TempDir::new().expect("a temporary folder");
        Self { base: claims[0].port, local, folder, _claims: claims }
    }

    /// The repository.
    #[must_use]
    pub fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    /// Where the servers have their files.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        match self.local {
            Local::Cluster => self.folder.path().join("cluster"),
            Local::Group => self.folder.path().join("group"),
        }
    }

    /// Returns the output of `make`; an error if it failed.
    ///
    /// # Errors
    /// The output of `make`, if it failed.
    pub fn make(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new("make")
            .arg("--no-print-directory")
            .args(arguments)
            .current_dir(Self::root())
            .env("CLUSTER_DIR", self.folder.path().join("cluster"))
            .env("GROUP_DIR", self.folder.path().join("group"))
            .env("REDOUBT", Program::redoubt().binary())
            // A test may itself run under make.
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL")
            .output()
            .expect("make is installed");
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(text) } else { Err(text) }
    }

    /// Starts them.
    ///
    /// # Errors
    /// The output of `make`, if it failed.
    pub fn up(&self) -> Result<String, String> {
        let goal = match self.local {
            Local::Cluster => "up",
            Local::Group => "up-sentinel",
        };
        self.make(&[goal, &format!("PORT={}", self.base)])
    }

    /// Speaks to one of them.
    #[must_use]
    pub fn connect(&self, index: u16) -> Connection {
        Connection::open(("127.0.0.1", self.base + index)).expect("the server takes connections")
    }
}

impl Drop for LocalServers {
    fn drop(&mut self) {
        if self.data().exists() {
            let goal = match self.local {
                Local::Cluster => "down",
                Local::Group => "down-sentinel",
            };
            let _ = self.make(&[goal]);
        }
    }
}
