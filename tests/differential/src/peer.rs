//! The servers that replies are compared with.

use harness::Program;

/// A server that is the reference for some tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Valkey 9.1 or later, which is right about all it has.
    Valkey,
    /// Redis 8.6 or later, for what only it has.
    Redis8,
    /// Redis 7.0, for the formats that one of its kind on the other side of a wire understands.
    Redis,
}

impl Peer {
    /// The one that the first line of a table names, or else Valkey.
    pub(crate) fn of_table(table: &str) -> Self {
        match table.lines().next().and_then(|line| line.strip_prefix("@ ")) {
            None => Self::Valkey,
            Some("redis86-server") => Self::Redis8,
            Some("redis-server") => Self::Redis,
            Some(other) => panic!("nobody is called {other}"),
        }
    }

    /// Its program; none, and a line about it, where this machine has none. Redis 7.0 must be there.
    #[must_use]
    pub fn program(self) -> Option<Program> {
        match self {
            Self::Valkey => Program::valkey(),
            Self::Redis8 => Program::redis8(),
            Self::Redis => Some(Program::redis()),
        }
    }
}
