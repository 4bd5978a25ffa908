//! Lists the callers that can execute each command, and checks that the tests of this package run it through each of
//! them.
//!
//! A test collects in [`ExecutedCommands`] the commands that its caller executed without error; at its end [`ExecutedCommands::missing_commands`]
//! returns the commands that the caller can execute and did not. Exceptions need a reason: `elsewhere.in` lists
//! commands, or some of their options, that no caller runs here; `callers.tsv` lists commands that one caller does not
//! run. Entries of `callers.tsv` that turn out to be unnecessary are reported too.
//!
//! | caller | can execute | tested by |
//! | --- | --- | --- |
//! | client | every command | `tests/replies.rs`, one after another |
//! | EXEC | those without `no_multi` | `tests/replies.rs`, in transactions |
//! | script | those without `noscript` | `tests/replies.rs`, in scripts |
//! | unblocked client | those with `blocking` | `tests/blocking.rs` |
//! | master | those with `write` | `tests/replicas.rs`, by the stream; `tests/stream.rs`, word by word |
//! | loader | those with `write` | `tests/replicas.rs`, by the append-only file and by a snapshot |

use std::collections::{BTreeMap, BTreeSet};

use harness::{Node, Reply};

/// Commands that no caller in this package runs, with the place where they are tested or the reason why not. A
/// container command includes all its subcommands.
const COMMANDS_TESTED_ELSEWHERE: &[(&str, &str)] = include!("elsewhere.in");
/// Reasons why a caller does not run a command. The columns are the caller or `Any`, the command, and the reason.
const EXEMPTIONS_TABLE: &str = include_str!("callers.tsv");

/// A way in which a command gets executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandCaller {
    /// A client that sends commands one after another.
    Client,
    /// EXEC, which runs the queued commands of a transaction.
    Exec,
    /// A Lua script or function.
    Script,
    /// A blocked client whose command is executed again.
    UnblockedClient,
    /// A replica that applies its master's stream.
    Master,
    /// A server that loads its own AOF or snapshot.
    Loader,
}

impl CommandCaller {
    /// Whether this caller can execute a command with these command flags.
    #[must_use]
    pub fn can_execute(self, flags: &BTreeSet<String>) -> bool {
        match self {
            Self::Client => true,
            Self::Exec => !flags.contains("no_multi"),
            Self::Script => !flags.contains("noscript"),
            Self::UnblockedClient => flags.contains("blocking"),
            Self::Master | Self::Loader => flags.contains("write"),
        }
    }

    /// The reason why this caller does not run a command, if it is exempt.
    fn exemption_reason(self, command: &str) -> Option<&'static str> {
        let caller = format!("{self:?}");
        let exempt = EXEMPTIONS_TABLE.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let columns: Vec<&str> = line.split('\t').collect();
            <[&str; 3]>::try_from(columns).unwrap_or_else(|_| panic!("three columns: {line}"))
        });
        let is_of = |name: &str| name == caller || name == "Any";
        let mut own = exempt.filter(|[name, listed, _]| is_of(name) && covers_command(listed, command));
        own.next().map(|[.., reason]| reason)
    }
}

/// The reason why the tables lack this command or some of its options; `None` if the tables must have all of it.
#[must_use]
pub fn tested_elsewhere_reason(command: &str) -> Option<&'static str> {
    COMMANDS_TESTED_ELSEWHERE
        .iter()
        .find(|(listed, _)| covers_command(listed, command))
        .map(|(_, reason)| *reason)
}

/// Whether `listed` names this command or its container command.
fn covers_command(listed_command: &str, command: &str) -> bool {
    command.strip_prefix(listed_command).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// The flags of each command of a server, keyed by upper-case names; subcommands include their container's name.
#[derive(Debug, Clone)]
pub struct CommandFlags(BTreeMap<String, BTreeSet<String>>);

impl CommandFlags {
    /// Reads the flags of all commands with COMMAND.
    #[must_use]
    pub fn from_node(node: &Node) -> Self {
        let mut table = Self(BTreeMap::new());
        table.add_entries(&node.run("COMMAND"));
        table
    }

    fn add_entries(&mut self, entries: &Reply) {
        for entry in entries.items() {
            let fields = entry.items();
            if !fields[9].items().is_empty() {
                self.add_entries(&fields[9]);
                continue;
            }
            let flags = fields[2].items().iter().map(Reply::text).collect();
            self.0.insert(fields[0].text().to_uppercase().replace('|', " "), flags);
        }
    }

    /// The names of the commands that have this flag.
    pub fn commands_with_flag<'a>(&'a self, flag: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(_, flags)| flags.contains(flag)).map(|(name, _)| name.as_str())
    }

    /// The name of the command or subcommand in a request.
    #[must_use]
    pub fn command_name(&self, words: &[Vec<u8>]) -> Option<&str> {
        let upper = |words: &[Vec<u8>]| String::from_utf8_lossy(&words.join(&b' ')).to_uppercase();
        let names = [words.get(..1), words.get(..2)].into_iter().flatten().map(upper);
        let mut found = names.filter_map(|name| self.0.get_key_value(&name));
        found.next().map(|(name, _)| name.as_str())
    }
}

/// The commands that were executed without error, per caller.
#[derive(Debug)]
pub struct ExecutedCommands {
    command_flags: CommandFlags,
    executed_commands: BTreeSet<(CommandCaller, String)>,
}

impl ExecutedCommands {
    /// Creates an empty record with the command table of this server.
    #[must_use]
    pub fn for_server(node: &Node) -> Self {
        Self { command_flags: CommandFlags::from_node(node), executed_commands: BTreeSet::new() }
    }

    /// Creates an empty record without a command table, for tests.
    #[cfg(test)]
    pub(crate) fn without_command_flags() -> Self {
        Self { command_flags: CommandFlags(BTreeMap::new()), executed_commands: BTreeSet::new() }
    }

    /// Records that a command was executed.
    pub fn add(&mut self, caller: CommandCaller, words: &[Vec<u8>]) {
        self.executed_commands
            .extend(self.command_flags.command_name(words).map(|name| (caller, name.to_owned())));
    }

    /// Adds the commands executed in another run, which used the same command table.
    pub fn merge(&mut self, other: Self) {
        self.executed_commands.extend(other.executed_commands);
    }

    /// Returns one line for each command that the caller can execute but did not, and for each exemption that is not
    /// needed.
    #[must_use]
    pub fn missing_commands(&self, caller: CommandCaller) -> Vec<String> {
        let of = |(name, flags): (&String, &BTreeSet<String>)| {
            let ran = self.executed_commands.contains(&(caller, name.clone()));
            match (ran, caller.exemption_reason(name)) {
                (true, Some(reason)) => Some(format!("{name} ran with {caller:?}, in spite of: {reason}")),
                (false, None) if caller.can_execute(flags) && tested_elsewhere_reason(name).is_none() => {
                    Some(format!("{name} did not run with {caller:?}"))
                }
                (true, None) | (false, _) => None,
            }
        };
        self.command_flags.0.iter().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executed_commands(callers: &[CommandCaller], lines: &[&str]) -> ExecutedCommands {
        let flags = |flags: &[&str]| flags.iter().map(|flag| (*flag).to_owned()).collect::<BTreeSet<_>>();
        let table = BTreeMap::from([
            ("BLPOP".to_owned(), flags(&["write", "blocking"])),
            ("GET".to_owned(), flags(&["readonly"])),
            ("MONITOR".to_owned(), flags(&["noscript"])),
            ("WAIT".to_owned(), flags(&["blocking"])),
            ("XGROUP CREATE".to_owned(), flags(&["write"])),
        ]);
        let mut executed =
            ExecutedCommands { command_flags: CommandFlags(table), executed_commands: BTreeSet::new() };
        for line in lines {
            let words: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            callers.iter().for_each(|caller| executed.add(*caller, &words));
        }
        executed
    }

    #[test]
    fn commands_missing_from_callers_coverage_are_reported() {
        let all = executed_commands(
            &[CommandCaller::Exec, CommandCaller::UnblockedClient],
            &["blpop l 0", "get a", "xgroup CREATE s g 0"],
        );
        assert_eq!(all.missing_commands(CommandCaller::UnblockedClient), Vec::<String>::new());
        assert_eq!(all.missing_commands(CommandCaller::Script).len(), 4, "another caller's");
        let some = executed_commands(
            &[CommandCaller::UnblockedClient, CommandCaller::Loader],
            &["get a", "xgroup", "nosuch"],
        );
        assert_eq!(
            some.missing_commands(CommandCaller::UnblockedClient),
            ["BLPOP did not run with UnblockedClient"]
        );
        let of_loader = ["BLPOP did not run with Loader", "XGROUP CREATE did not run with Loader"];
        assert_eq!(some.missing_commands(CommandCaller::Loader), of_loader);
    }

    #[test]
    fn outdated_exclusion_reasons_are_reported() {
        let lines = ["blpop l 0", "wait 0 0"];
        let missing_commands = executed_commands(&[CommandCaller::UnblockedClient], &lines)
            .missing_commands(CommandCaller::UnblockedClient);
        assert_eq!(missing_commands.len(), 1, "{missing_commands:?}");
        assert!(
            missing_commands[0].starts_with("WAIT ran with UnblockedClient, in spite of: "),
            "{missing_commands:?}"
        );
    }

    #[test]
    fn container_command_is_replaced_by_its_subcommands() {
        assert!(covers_command("CLUSTER", "CLUSTER NODES") && covers_command("GET", "GET"));
        assert!(!covers_command("CLUSTER", "CLUSTERSCAN") && !covers_command("CLUSTER NODES", "CLUSTER"));
    }
}
