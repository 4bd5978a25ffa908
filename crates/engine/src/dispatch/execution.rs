//! Command execution, shared by all callers: clients, EXEC, scripts, and blocked clients that are being served.
//!
//! The caller has locked the slots and checked admission ([`super::admission`]). This module invokes the command
//! ([`Context::invoke`]), collects its effects, and counts errors and replies with them. The caller decides when
//! effects are logged: after a client's command, or at the end of a whole EXEC or script.

use keyspace::Key;
use resp::Args;

use super::ExecutedCommand;
use super::background::MIN_RECORDED_NANOS;
use super::slots::run_handler;
use crate::command::{Caller, CommandRunner, Context, RegisteredCommand};
use crate::engine::Engine;
use crate::error::CommandError;
use crate::outcome::CommandOutcome;
use crate::session::CommandOrigin;
use crate::settings::Measurements;
use crate::shell_commands::ShellCommand;
use crate::stats::add;

#[derive(Clone, Copy)]
pub(super) struct LockedCommand<'a> {
    pub(super) entry: &'static RegisteredCommand,
    pub(super) args: Args<'a>,
    /// The command's first key and its argument index, if already hashed.
    pub(super) key: Option<&'a (usize, Key<'a>)>,
    pub(super) holds_all_slots: bool,
}

/// Result of a handler. Most handlers always run to completion, so their result is zero-sized.
pub(super) trait HandlerResult {
    /// Returns whether the command has completed.
    fn is_done(&self) -> bool;
    /// Converts the result to the outcome type of handlers that may also block.
    fn into_outcome(self) -> CommandOutcome;
}

impl HandlerResult for () {
    #[inline(always)]
    fn is_done(&self) -> bool {
        true
    }

    fn into_outcome(self) -> CommandOutcome {
        CommandOutcome::Done
    }
}

impl HandlerResult for CommandOutcome {
    #[inline(always)]
    fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    fn into_outcome(self) -> Self {
        self
    }
}

/// Runs a command whose slots are locked, and collects its effects.
#[inline(always)]
pub(super) fn execute<'r, T>(
    context: &mut Context<'r>,
    call: LockedCommand<'r>,
    handler: impl FnOnce(&mut Context<'r>) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    context.begin_command(call.entry, call.args, call.key, call.holds_all_slots);
    let outcome = run_handler(context, call.entry.command, handler);
    if context.session.tracks_reads() {
        context.record_reads(call.entry.command);
    }
    context.worker.effects.end_command(call.args);
    outcome
}

impl Context<'_> {
    pub(super) fn invoke(
        &mut self,
        entry: &'static RegisteredCommand,
    ) -> Result<CommandOutcome, CommandError> {
        match entry.command.runner {
            CommandRunner::Engine(handler) => handler(self).map(|()| CommandOutcome::Done),
            CommandRunner::MayBlock(handler) => handler(self),
            CommandRunner::Script(find) => {
                let script = find(self)?;
                self.run_script(&script)
            }
            CommandRunner::Shell(command) => self.run_shell_command(command),
            CommandRunner::Node(command) => Ok(CommandOutcome::Defer(command)),
            CommandRunner::Exec => Err(CommandError::WrongArity(entry.full_name.clone())),
            CommandRunner::Container => {
                let name = self.args.get(1).unwrap_or_default().to_vec();
                Err(CommandError::UnknownSubcommand { container: entry.command.name, name })
            }
        }
    }

    /// Lets the server process run a command. A master's stream refers to commands by their original names.
    fn run_shell_command(&mut self, command: ShellCommand) -> Result<CommandOutcome, CommandError> {
        match (self.session.origin(), self.commands.shell()) {
            (CommandOrigin::Client, Some(shell)) => shell.run_command(command, self),
            (CommandOrigin::Client, None) => Err(CommandError::text("ERR This server has no shell")),
            (CommandOrigin::Master | CommandOrigin::SlotMigrationSource, _) => Ok(CommandOutcome::Done),
        }
    }
}

impl Engine {
    /// Runs a command inside EXEC or a script, or for a blocked client; counts it, and replies with its error if it
    /// fails. Such a command must not wait: if it blocks or must run on the client's connection, nothing is done and
    /// the caller decides ([`CommandOutcome::Block`], [`CommandOutcome::Defer`]). Otherwise the result is
    /// [`CommandOutcome::Done`].
    pub(super) fn execute_nested<'r>(
        &self,
        context: &mut Context<'r>,
        call: LockedCommand<'r>,
    ) -> CommandOutcome {
        let (start, begin) = (context.reply.len(), context.monotonic_nanos());
        let failure = match execute(context, call, |context| context.invoke(call.entry)) {
            Ok(outcome @ (CommandOutcome::Defer(_) | CommandOutcome::Block(_))) => return outcome,
            Ok(CommandOutcome::Done) => None,
            Ok(outcome) => Some(outcome.into_error()),
            Err(error) => Some(error),
        };
        let nanos = context.monotonic_nanos().saturating_sub(begin);
        let measures = self.record_call(context, call.entry, call.args, start, nanos);
        if nanos >= MIN_RECORDED_NANOS {
            self.record_script_time(context.worker, call.entry, call.args, begin + nanos, nanos);
        }
        if let Some(error) = failure {
            context.reply_failure(call.entry, start, &error);
        }
        // Slot costs of EXEC and of scripts are charged once for the whole, not per command.
        if measures.contains(Measurements::SLOTS) && context.caller == Caller::Waiter {
            self.charge_command(context, call.entry, call.args, start, nanos);
        }
        CommandOutcome::Done
    }

    /// Counts a command whose reply begins at `reply_start`; returns the enabled optional measurements.
    #[inline(always)]
    pub(super) fn record_call(
        &self,
        context: &mut Context<'_>,
        entry: &'static RegisteredCommand,
        args: Args<'_>,
        reply_start: usize,
        nanos: u64,
    ) -> Measurements {
        let ran = ExecutedCommand {
            entry,
            args,
            nanos,
            reply_len: context.reply.len().saturating_sub(reply_start),
        };
        self.record_execution(&context.worker.stats, context.session, context.now, &ran)
    }
}

impl Context<'_> {
    /// Replies with the error that stopped a command before its execution, and counts the error.
    pub(super) fn reply_rejection(&mut self, entry: Option<&RegisteredCommand>, error: &CommandError) {
        if let Some(entry) = entry {
            add(&self.worker.stats.commands[entry.index].rejected_calls, 1);
        }
        self.reply_error(error);
    }

    /// Replies with the error of a command whose reply begins at `reply_start`, and counts the error.
    #[cold]
    pub(super) fn reply_failure(
        &mut self,
        entry: &RegisteredCommand,
        reply_start: usize,
        error: &CommandError,
    ) {
        self.reply.truncate(reply_start);
        let stats = &self.worker.stats.commands[entry.index];
        // Redirections count as rejected calls, not as failed ones.
        add(if error.is_refusal() { &stats.rejected_calls } else { &stats.failed_calls }, 1);
        self.reply_error(error);
    }
}
