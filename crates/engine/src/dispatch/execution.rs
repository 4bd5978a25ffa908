//! How a command runs, for every caller: a client, EXEC, a script, or the change that a client waited for.
//!
//! Its caller has locked its slots and has asked whether it may run ([`super::admission`]). Here it is run
//! ([`Context::invoke`]), what it changed is noted, and what it cost and failed with is counted and replied. Where its
//! effects go is its caller's: a client's are appended when it ends, those of EXEC and of a script when the whole does.

use std::convert::Infallible;

use keyspace::Key;
use resp::Args;

use super::Ran;
use super::background::NOTED_NANOS;
use super::slots::handle;
use crate::command::{Caller, Context, Registered, Run};
use crate::engine::Engine;
use crate::error::CommandError;
use crate::session::Origin;
use crate::settings::Measures;
use crate::shell_commands::{NodeCommand, ShellCommand};
use crate::stats::add;
use crate::waiting::Outcome;

/// A command whose slots are locked.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) entry: &'static Registered,
    pub(super) args: Args<'a>,
    /// Its first key, behind its place, if that was hashed before.
    pub(super) key: Option<&'a (usize, Key<'a>)>,
    /// Whether every slot is locked.
    pub(super) holds_all: bool,
}

/// Whether a caller can begin again with a script that needs more than it holds and has written nothing: only one that
/// can give back everything has a way to say so.
pub(super) trait Restart {
    /// Says that the command is to begin again; a type without values where that cannot be.
    type Again;
    /// `None` where it cannot.
    const AGAIN: Option<Self::Again>;
}

/// A client's command can begin again.
pub(super) struct Restartable;
/// A command of EXEC or of a script cannot: it is one of several.
pub(super) struct Final;

/// The command is to begin again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Again;

impl Restart for Restartable {
    type Again = Again;
    const AGAIN: Option<Again> = Some(Again);
}

impl Restart for Final {
    type Again = Infallible;
    const AGAIN: Option<Infallible> = None;
}

/// The outcome of a handler that did not fail. Most can only end, and their outcome takes no memory.
pub(super) trait Ending {
    /// The command is to begin again.
    type Again;
    /// Whether it has ended.
    fn is_done(&self) -> bool;
    /// The same among all that there may be.
    fn into_outcome(self) -> Outcome<Self::Again>;
}

impl Ending for () {
    type Again = Infallible;

    #[inline(always)]
    fn is_done(&self) -> bool {
        true
    }

    fn into_outcome(self) -> Outcome<Infallible> {
        Outcome::Done
    }
}

impl<A> Ending for Outcome<A> {
    type Again = A;

    #[inline(always)]
    fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    fn into_outcome(self) -> Self {
        self
    }
}

/// The outcome of a command that is one of several.
pub(super) enum Part {
    /// Its reply is written, or its error.
    Replied,
    /// It found nothing, and has written nothing: a client's would wait.
    Nothing(fn(&mut resp::Writer<'_>)),
    /// It must wait, and has done nothing.
    HandOver(NodeCommand),
}

/// Runs a command under the locks of its slots, and notes what it changed.
#[inline(always)]
pub(super) fn execute<'r, T>(
    context: &mut Context<'r>,
    call: Call<'r>,
    handler: impl FnOnce(&mut Context<'r>) -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    context.begin(call.entry, call.args, call.key, call.holds_all);
    let outcome = handle(context, call.entry.command, handler);
    if context.session.tracks {
        context.note_reads(call.entry.command);
    }
    context.worker.effects.end_command(call.args);
    outcome
}

impl Context<'_> {
    /// Runs what carries a command out.
    pub(super) fn invoke<R: Restart>(
        &mut self,
        entry: &'static Registered,
    ) -> Result<Outcome<R::Again>, CommandError> {
        match entry.command.run {
            Run::Here(handler) => handler(self).map(|()| Outcome::Done),
            Run::MayBlock(handler) => handler(self).map(Outcome::widen),
            Run::Script(find) => {
                let script = find(self)?;
                self.run_script::<R>(&script)
            }
            Run::Shell(command) => self.carry_out(command).map(Outcome::widen),
            Run::Node(command) => Ok(Outcome::HandOver(command)),
            Run::Exec => Err(CommandError::WrongArity(entry.full_name.clone())),
            Run::Container => {
                let name = self.args.get(1).unwrap_or_default().to_vec();
                Err(CommandError::UnknownSubcommand { container: entry.command.name, name })
            }
        }
    }

    /// Has a command of the shell carried out. A master that says one means itself.
    fn carry_out(&mut self, command: ShellCommand) -> Result<Outcome, CommandError> {
        match (self.session.origin, self.commands.shell()) {
            (Origin::Client, Some(shell)) => shell.carry_out(command, self),
            (Origin::Client, None) => Err(CommandError::text("ERR This server has no shell")),
            (Origin::Master | Origin::Source, _) => Ok(Outcome::Done),
        }
    }
}

impl Engine {
    /// Runs a command that is one of several, counts it, and replies with its error if it failed. Its client does not
    /// wait for it.
    pub(super) fn execute_part<'r>(&self, context: &mut Context<'r>, call: Call<'r>) -> Part {
        let (start, begin) = (context.reply.len(), context.nanos());
        let outcome = execute(context, call, |context| context.invoke::<Final>(call.entry));
        match outcome {
            Ok(Outcome::HandOver(command)) => return Part::HandOver(command),
            Ok(Outcome::Block(wait)) => return Part::Nothing(wait.nothing),
            Ok(Outcome::Done) | Err(_) => {}
        }
        let nanos = context.nanos().saturating_sub(begin);
        let measures = self.count(context, (call.entry, call.args), start, nanos);
        if nanos >= NOTED_NANOS {
            self.note_time(context.worker, (call.entry, call.args), begin + nanos, nanos);
        }
        if let Err(error) = outcome {
            context.fail(call.entry, start, &error);
        }
        // A command of EXEC or of a script counts with the whole.
        if measures.contains(Measures::SLOTS) && context.caller == Caller::Waiter {
            self.count_slot(context, (call.entry, call.args), start, nanos);
        }
        Part::Replied
    }

    /// Counts a command whose reply began at `start`; says what is measured besides.
    #[inline(always)]
    pub(super) fn count(
        &self,
        context: &mut Context<'_>,
        (entry, args): (&'static Registered, Args<'_>),
        start: usize,
        nanos: u64,
    ) -> Measures {
        let ran = Ran { entry, args, nanos, reply_len: context.reply.len().saturating_sub(start) };
        self.account(&context.worker.stats, context.session, context.now, &ran)
    }
}

impl Context<'_> {
    /// Replies with the error that kept a command from running, and counts it.
    pub(super) fn reject(&mut self, entry: Option<&Registered>, error: &CommandError) {
        if let Some(entry) = entry {
            add(&self.worker.stats.commands[entry.index].rejected, 1);
        }
        self.refuse(error);
    }

    /// Replies with the error of a command whose reply began at `start`, and counts it.
    #[cold]
    pub(super) fn fail(&mut self, entry: &Registered, start: usize, error: &CommandError) {
        self.reply.truncate(start);
        let stats = &self.worker.stats.commands[entry.index];
        // A redirection is not the command's failure.
        add(if error.is_refusal() { &stats.rejected } else { &stats.failed }, 1);
        self.refuse(error);
    }
}
