//! Whom replies are compared with.

use harness::Program;

/// A server that is the reference for some tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Redis 7.0, for what it has.
    Redis,
    /// Valkey 9.1 or later, for what is newer than that.
    Valkey,
}

impl Peer {
    /// The one that the first line of a table names.
    pub(crate) fn of_table(table: &str) -> Self {
        match table.lines().next().and_then(|line| line.strip_prefix("@ ")) {
            None => Self::Redis,
            Some("valkey-server") => Self::Valkey,
            Some(other) => panic!("nobody is called {other}"),
        }
    }

    /// Its program. Redis must be there; of Valkey, none if this machine has none, or an older one.
    #[must_use]
    pub fn program(self) -> Option<Program> {
        match self {
            Self::Redis => Some(Program::redis()),
            Self::Valkey => Program::valkey(),
        }
    }
}
