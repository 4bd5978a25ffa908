//! On whose behalf a command runs: a client, a transaction, a script, or replication.

use crate::session::{CommandOrigin, Session};

/// On whose behalf a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A client that sent the command outside of a transaction.
    Client,
    /// EXEC, for which admission was checked for the whole transaction.
    Exec,
    /// A running script; a refused command is an error of its call.
    Script,
    /// A blocked client, whose command runs again.
    Waiter,
    /// The master's replication stream or a persistence file, whose commands always apply.
    Master,
    /// The source node of a slot import. This node logs the commands as its own.
    SlotMigrationSource,
}

impl Caller {
    /// Returns the caller of the commands that the session sends.
    pub(crate) fn of_session(session: &Session) -> Self {
        match session.origin() {
            CommandOrigin::Client => Self::Client,
            CommandOrigin::Master => Self::Master,
            CommandOrigin::SlotMigrationSource => Self::SlotMigrationSource,
        }
    }

    /// Returns the caller of commands inside EXEC or a script; commands of the master stay [`Caller::Master`].
    pub(crate) fn for_nested_command(self, session: &Session) -> Self {
        match session.origin() {
            CommandOrigin::Client => self,
            CommandOrigin::Master => Self::Master,
            CommandOrigin::SlotMigrationSource => Self::SlotMigrationSource,
        }
    }

    /// Returns whether a script that needs more locks may start again. Its caller must not have run other commands
    /// before the script, and must be able to release all its locks.
    pub(crate) fn may_restart(self) -> bool {
        match self {
            Self::Client | Self::Master | Self::SlotMigrationSource => true,
            Self::Exec | Self::Script | Self::Waiter => false,
        }
    }
}
