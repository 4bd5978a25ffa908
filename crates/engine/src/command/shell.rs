//! The commands of the shell, as the engine has them carried out.
//!
//! Most need a file, a figure of the process or a role, and need not wait: they run where the engine's own commands
//! do, under the slots that their caller holds, if any, so that a transaction with INFO or ROLE in it is still atomic,
//! and a script may call them. The rest must wait (for a disk, a replica, another node): those the shell hands over to
//! the client's connection ([`Outcome::HandOver`]), which holds no slot while it waits.

use super::Context;
use crate::error::CommandError;
use crate::shell_commands::ShellCommand;
use crate::waiting::Outcome;

/// Carries out the commands of the shell.
pub trait Shell: Send + Sync + std::fmt::Debug {
    /// Carries `command` out and writes its reply, or hands it over.
    ///
    /// The caller may hold slots: nothing that may wait for a slot is waited for here, but by way of `context`
    /// ([`Context::with_slot`]). Where the caller cannot wait ([`Context::may_wait`]), what is asked to wait (WAIT)
    /// does not.
    ///
    /// # Errors
    /// The client is told this.
    fn carry_out(&self, command: ShellCommand, context: &mut Context<'_>) -> Result<Outcome, CommandError>;
}
