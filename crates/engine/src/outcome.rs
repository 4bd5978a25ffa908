//! What becomes of a command: one type from its handler to its connection.

use crate::error::CommandError;
use crate::shell_commands::NodeCommand;
use crate::waiting::KeyWait;

/// What became of a command. Unless it ran or failed, it has written and changed nothing.
#[derive(Debug)]
pub enum CommandOutcome {
    /// It ran, and its reply is written.
    Done,
    /// It waits for keys.
    Block(KeyWait),
    /// It waits until a pause ends.
    Pause,
    /// It must start again with permission to lock undeclared slots.
    Restart,
    /// It runs on another worker, to which its connection moves.
    Offload(OffloadReason),
    /// Its connection runs it, since it waits for more than keys.
    Defer(NodeCommand),
    /// It failed or was refused with this error.
    Fail(CommandError),
}

/// Why a command does not run on its connection's own worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffloadReason {
    /// It is slow, or a slow command holds its slots.
    SlowCommand,
    /// Another thread has kept its slots locked for some time.
    SlotsLocked,
}

impl From<CommandError> for CommandOutcome {
    fn from(error: CommandError) -> Self {
        Self::Fail(error)
    }
}

impl CommandOutcome {
    /// Returns whether the request has not run and will start again, here or elsewhere.
    pub(crate) fn is_deferred(&self) -> bool {
        match self {
            Self::Pause | Self::Offload(_) => true,
            Self::Done | Self::Block(_) | Self::Restart | Self::Defer(_) | Self::Fail(_) => false,
        }
    }

    /// Returns the error for a command that must complete now.
    pub(crate) fn into_error(self) -> CommandError {
        match self {
            Self::Fail(error) => error,
            Self::Restart => CommandError::text("ERR the script did not run"),
            Self::Done | Self::Block(_) | Self::Pause | Self::Offload(_) | Self::Defer(_) => {
                CommandError::Busy
            }
        }
    }
}
