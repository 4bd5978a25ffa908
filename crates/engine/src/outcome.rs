//! The result type of command handlers, which is passed on up to the client's connection.

use crate::error::CommandError;
use crate::shell_commands::NodeCommand;
use crate::waiting::KeyWait;

/// What becomes of a command. Unless the result is `Done` or `Fail`, the command has changed nothing and written no
/// reply.
#[derive(Debug)]
pub enum CommandOutcome {
    /// The command ran, and its reply is written.
    Done,
    /// The command waits for keys.
    Block(KeyWait),
    /// The command waits until a pause ends.
    Pause,
    /// The command must start again with permission to lock undeclared slots.
    Restart,
    /// The command must run on another worker, to which its connection moves.
    Offload(OffloadReason),
    /// The client's connection must run the command, since it waits for more than keys.
    Defer(NodeCommand),
    /// The command failed or was refused with this error.
    Fail(CommandError),
}

/// Why a command does not run on its connection's own worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffloadReason {
    /// The command is slow, or a slow command holds its slots.
    SlowCommand,
    /// Another thread has kept one of the command's slots locked for some time.
    SlotsLocked,
    /// The command needs all slots, and another thread has kept one of them locked for some time.
    AllSlotsLocked,
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

    /// Returns the error for a command that may not wait or move but must complete now.
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
