//! The ways in which a client can execute a sequence of commands.

use crate::{Command, CommandCaller};

/// The maximum number of commands in one transaction.
const BATCH_SIZE: usize = 6;
/// Scripts that call the command in their arguments, by the RESP version of the reply.
const CALLING_SCRIPTS: [(Protocol, &str); 2] = [
    (Protocol::V2, "return redis.pcall(unpack(ARGV))"),
    (Protocol::V3, "redis.setresp(3) return redis.pcall(unpack(ARGV))"),
];

/// The RESP version at the start of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2, the default of new connections.
    V2,
    /// RESP3, selected by HELLO 3.
    V3,
}

/// How a client executes commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutionMode {
    /// The client sends one command after another.
    Sequential,
    /// Groups of commands between MULTI and EXEC.
    Transaction,
    /// The client calls each command from a script.
    Script,
}

impl ExecutionMode {
    /// The caller under which the executed commands are recorded.
    #[must_use]
    pub fn caller(self) -> CommandCaller {
        match self {
            Self::Sequential => CommandCaller::Client,
            Self::Transaction => CommandCaller::Exec,
            Self::Script => CommandCaller::Script,
        }
    }

    /// Wraps the commands for this way of execution.
    #[must_use]
    pub fn wrap_commands(self, protocol: Protocol, commands: Vec<Command>) -> Vec<Command> {
        match self {
            Self::Sequential => commands,
            Self::Transaction => {
                let bracket = |word: &str| vec![word.as_bytes().to_vec()];
                let together = |some: &[Command]| [&[bracket("MULTI")], some, &[bracket("EXEC")]].concat();
                let runs = commands
                    .chunk_by(|one, next| !needs_own_transaction(one) && !needs_own_transaction(next));
                runs.flat_map(|run| run.chunks(BATCH_SIZE)).flat_map(together).collect()
            }
            Self::Script => commands.into_iter().map(|command| call_from_script(protocol, command)).collect(),
        }
    }
}

/// Whether Redoubt intentionally executes the command after all other commands of its transaction. Such a command is
/// sent in a separate transaction.
fn needs_own_transaction(command: &Command) -> bool {
    ["CONFIG", "MIGRATE"]
        .iter()
        .any(|name| command.first().is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes())))
}

fn call_from_script(protocol: Protocol, command: Command) -> Command {
    let caller =
        CALLING_SCRIPTS.iter().find(|(version, _)| *version == protocol).map_or("", |(_, script)| script);
    ["EVAL", caller, "0"].iter().map(|word| word.as_bytes().to_vec()).chain(command).collect()
}

/// The command that a script of [`ExecutionMode::Script`] calls, or else the command itself.
pub(crate) fn called_command(command: &[Vec<u8>]) -> &[Vec<u8>] {
    match command {
        [eval, script, _, called @ ..]
            if eval == b"EVAL" && CALLING_SCRIPTS.iter().any(|(_, caller)| script == caller.as_bytes()) =>
        {
            called
        }
        _ => command,
    }
}
