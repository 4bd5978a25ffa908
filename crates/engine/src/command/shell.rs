//! The interface through which the engine runs commands that the server process implements.
//!
//! Most of these commands need a file, process statistics or the role, and do not wait. They run like the engine's own
//! commands, while the caller's slots are locked, so that a transaction with INFO or ROLE is still atomic and scripts
//! may call them. The other commands wait for a disk, a replica or another node: the implementation defers them to the
//! client's connection ([`CommandOutcome::Defer`]), which holds no slot lock while it waits.

use super::Context;
use crate::error::CommandError;
use crate::outcome::CommandOutcome;
use crate::shell_commands::ShellCommand;

/// Runs commands in place of the engine; implemented by the server process.
pub trait Shell: Send + Sync + std::fmt::Debug {
    /// Runs `command` and writes its reply, or defers it to the connection.
    ///
    /// The caller may hold slot locks, so the implementation must access slots only through `context`
    /// ([`Context::with_slot`]). If the caller cannot block ([`Context::can_block`]), a waiting command such as WAIT
    /// returns at once.
    ///
    /// # Errors
    /// The error reply for the client.
    fn run_command(
        &self,
        command: ShellCommand,
        context: &mut Context<'_>,
    ) -> Result<CommandOutcome, CommandError>;
}
