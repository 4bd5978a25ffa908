//! The ways in which a client can give the same commands.

use crate::{Caller, Command};

/// Commands of one transaction.
const TOGETHER: usize = 6;
/// Scripts that call the command that they are given, by the version of RESP in which its reply reaches them.
const CALLERS: [(Protocol, &str); 2] = [
    (Protocol::V2, "return redis.pcall(unpack(ARGV))"),
    (Protocol::V3, "redis.setresp(3) return redis.pcall(unpack(ARGV))"),
];

/// The RESP version a sequence begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2.
    V2,
    /// RESP3.
    V3,
}

/// How a client gives its commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// One after another.
    Alone,
    /// Some at a time between MULTI and EXEC.
    Transaction,
    /// Each by a script that calls it.
    Script,
}

impl Way {
    /// The caller that the commands have this way.
    #[must_use]
    pub fn caller(self) -> Caller {
        match self {
            Self::Alone => Caller::Client,
            Self::Transaction => Caller::Exec,
            Self::Script => Caller::Script,
        }
    }

    /// The commands as they are sent.
    #[must_use]
    pub fn give(self, protocol: Protocol, commands: Vec<Command>) -> Vec<Command> {
        match self {
            Self::Alone => commands,
            Self::Transaction => {
                let bracket = |word: &str| vec![word.as_bytes().to_vec()];
                let together = |some: &[Command]| [&[bracket("MULTI")], some, &[bracket("EXEC")]].concat();
                let runs = commands.chunk_by(|one, next| !comes_last(one) && !comes_last(next));
                runs.flat_map(|run| run.chunks(TOGETHER)).flat_map(together).collect()
            }
            Self::Script => commands.into_iter().map(|command| call(protocol, command)).collect(),
        }
    }
}

/// Whether this server carries a command out behind the rest of a transaction that holds keys, by choice: such a command
/// has a transaction of its own here.
fn comes_last(command: &Command) -> bool {
    ["CONFIG", "MIGRATE"]
        .iter()
        .any(|name| command.first().is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes())))
}

fn call(protocol: Protocol, command: Command) -> Command {
    let caller = CALLERS.iter().find(|(version, _)| *version == protocol).map_or("", |(_, script)| script);
    ["EVAL", caller, "0"].iter().map(|word| word.as_bytes().to_vec()).chain(command).collect()
}

/// The command that `command` comes to: what a script of [`Way::Script`] calls, or else itself.
pub(crate) fn called(command: &[Vec<u8>]) -> &[Vec<u8>] {
    match command {
        [eval, script, _, called @ ..]
            if eval == b"EVAL" && CALLERS.iter().any(|(_, caller)| script == caller.as_bytes()) =>
        {
            called
        }
        _ => command,
    }
}
