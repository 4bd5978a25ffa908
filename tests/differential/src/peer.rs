//! The reference servers for comparisons.

use harness::Program;

/// A server with which the replies of some tables are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceServer {
    /// Valkey 9.1 or later, the reference for everything that it supports.
    Valkey,
    /// Redis 8.6 or later, for commands that only Redis has.
    Redis8,
    /// Redis 7.0, the oldest server that Redoubt replicates with.
    Redis7,
}

impl ReferenceServer {
    /// Returns the server named in the first line of a table, or else Valkey.
    pub(crate) fn from_table(table: &str) -> Self {
        match table.lines().next().and_then(|line| line.strip_prefix("@ ")) {
            None => Self::Valkey,
            Some("redis86-server") => Self::Redis8,
            Some("redis-server") => Self::Redis7,
            Some(other) => panic!("nobody is called {other}"),
        }
    }

    /// The program of this server. Returns `None`, and prints a line, if it is not installed; only Redis 7.0 must be
    /// installed.
    #[must_use]
    pub fn program(self) -> Option<Program> {
        match self {
            Self::Valkey => Program::valkey(),
            Self::Redis8 => Program::redis_8(),
            Self::Redis7 => Some(Program::redis()),
        }
    }
}
