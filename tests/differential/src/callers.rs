//! The callers that each command can have, from its flags, and whether the tests of this package play it with each.
//!
//! A test gathers in [`Played`] what ran with its caller and did not fail; at its end [`Played::lacking`] names the
//! commands that this caller can have and that did not run. Where a command cannot be played there is a reason: in
//! `elsewhere.in` for all callers and some of its words, in `callers.tsv` for its whole, by callers. A reason of the latter for a command that was played all the
//! same is named too, so that the reasons stay true.
//!
//! | caller | can have | played by |
//! | --- | --- | --- |
//! | client | every command | `tests/replies.rs`, one after another |
//! | EXEC | those without `no_multi` | `tests/replies.rs`, in transactions |
//! | script | those without `noscript` | `tests/replies.rs`, in scripts |
//! | client that waited | those with `blocking` | `tests/blocking.rs` |
//! | master | those with `write` | `tests/replicas.rs`, by the stream; `tests/stream.rs`, word by word |
//! | loader | those with `write` | `tests/replicas.rs`, by the append-only file and by a snapshot |

use std::collections::{BTreeMap, BTreeSet};

use harness::{Node, Value};

/// Commands that no caller is played with here, and where they are tested or why not. A container stands for all its
/// subcommands.
const ELSEWHERE: &[(&str, &str)] = include!("elsewhere.in");
/// Reasons why a command does not run with a caller: the caller or `Any`, the command, the reason, between tabs.
const EXEMPT: &str = include_str!("callers.tsv");

/// A caller that a command can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// A client that sends one after another.
    Client,
    /// EXEC.
    Exec,
    /// A script.
    Script,
    /// A client that waited, for which the command is run again.
    Waiter,
    /// A replica, with what its master says.
    Master,
    /// A server that loads what it wrote.
    Loader,
}

impl Caller {
    /// Whether it can have a command with these flags.
    #[must_use]
    pub fn can_have(self, flags: &BTreeSet<String>) -> bool {
        match self {
            Self::Client => true,
            Self::Exec => !flags.contains("no_multi"),
            Self::Script => !flags.contains("noscript"),
            Self::Waiter => flags.contains("blocking"),
            Self::Master | Self::Loader => flags.contains("write"),
        }
    }

    /// Why a command is not played with it alone.
    fn own_reason(self, command: &str) -> Option<&'static str> {
        let caller = format!("{self:?}");
        let exempt = EXEMPT.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let columns: Vec<&str> = line.split('\t').collect();
            <[&str; 3]>::try_from(columns).unwrap_or_else(|_| panic!("three columns: {line}"))
        });
        let is_of = |name: &str| name == caller || name == "Any";
        let mut own = exempt.filter(|[name, listed, _]| is_of(name) && stands_for(listed, command));
        own.next().map(|[.., reason]| reason)
    }
}

/// Why the tables have no form of this command, or not with all its words, if it is tested elsewhere.
#[must_use]
pub fn tested_elsewhere(command: &str) -> Option<&'static str> {
    ELSEWHERE.iter().find(|(listed, _)| stands_for(listed, command)).map(|(_, reason)| *reason)
}

/// Whether a name of a list means this command: it is the same, or its container.
fn stands_for(listed: &str, command: &str) -> bool {
    command.strip_prefix(listed).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// The flags of each command of a server, by names in capitals; a subcommand's stands behind its container's.
#[derive(Debug, Clone)]
pub struct Table(BTreeMap<String, BTreeSet<String>>);

impl Table {
    /// As the server tells them.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let mut table = Self(BTreeMap::new());
        table.gather(&node.run("COMMAND"));
        table
    }

    fn gather(&mut self, entries: &Value) {
        for entry in entries.items() {
            let fields = entry.items();
            if !fields[9].items().is_empty() {
                self.gather(&fields[9]);
                continue;
            }
            let flags = fields[2].items().iter().map(Value::text).collect();
            self.0.insert(fields[0].text().to_uppercase().replace('|', " "), flags);
        }
    }

    /// The commands with this flag.
    pub fn with<'a>(&'a self, flag: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(_, flags)| flags.contains(flag)).map(|(name, _)| name.as_str())
    }

    /// The name of the command that these words are, if there is one.
    #[must_use]
    pub fn name_of(&self, words: &[Vec<u8>]) -> Option<&str> {
        let upper = |words: &[Vec<u8>]| String::from_utf8_lossy(&words.join(&b' ')).to_uppercase();
        let names = [words.get(..1), words.get(..2)].into_iter().flatten().map(upper);
        let mut found = names.filter_map(|name| self.0.get_key_value(&name));
        found.next().map(|(name, _)| name.as_str())
    }
}

/// The commands that ran and did not fail, by their callers.
#[derive(Debug)]
pub struct Played {
    table: Table,
    names: BTreeSet<(Caller, String)>,
}

impl Played {
    /// None yet, of the commands of this server.
    #[must_use]
    pub fn none_of(node: &Node) -> Self {
        Self { table: Table::of(node), names: BTreeSet::new() }
    }

    /// None of no commands, for tests.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { table: Table(BTreeMap::new()), names: BTreeSet::new() }
    }

    /// A command of these words ran.
    pub fn add(&mut self, caller: Caller, words: &[Vec<u8>]) {
        self.names.extend(self.table.name_of(words).map(|name| (caller, name.to_owned())));
    }

    /// Adds all that ran elsewhere, with the same commands to choose from.
    pub fn join(&mut self, other: Self) {
        self.names.extend(other.names);
    }

    /// The mismatches of what the caller can have and what was played, a line each.
    #[must_use]
    pub fn lacking(&self, caller: Caller) -> Vec<String> {
        let of = |(name, flags): (&String, &BTreeSet<String>)| {
            let ran = self.names.contains(&(caller, name.clone()));
            match (ran, caller.own_reason(name)) {
                (true, Some(reason)) => Some(format!("{name} ran with {caller:?}, in spite of: {reason}")),
                (false, None) if caller.can_have(flags) && tested_elsewhere(name).is_none() => {
                    Some(format!("{name} did not run with {caller:?}"))
                }
                (true, None) | (false, _) => None,
            }
        };
        self.table.0.iter().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(callers: &[Caller], lines: &[&str]) -> Played {
        let flags = |flags: &[&str]| flags.iter().map(|flag| (*flag).to_owned()).collect::<BTreeSet<_>>();
        let table = BTreeMap::from([
            ("BLPOP".to_owned(), flags(&["write", "blocking"])),
            ("GET".to_owned(), flags(&["readonly"])),
            ("MONITOR".to_owned(), flags(&["noscript"])),
            ("WAIT".to_owned(), flags(&["blocking"])),
            ("XGROUP CREATE".to_owned(), flags(&["write"])),
        ]);
        let mut played = Played { table: Table(table), names: BTreeSet::new() };
        for line in lines {
            let words: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            callers.iter().for_each(|caller| played.add(*caller, &words));
        }
        played
    }

    #[test]
    fn a_command_that_a_caller_can_have_and_that_did_not_run_is_named() {
        let all = played(&[Caller::Exec, Caller::Waiter], &["blpop l 0", "get a", "xgroup CREATE s g 0"]);
        assert_eq!(all.lacking(Caller::Waiter), Vec::<String>::new());
        assert_eq!(all.lacking(Caller::Script).len(), 4, "another caller's");
        let some = played(&[Caller::Waiter, Caller::Loader], &["get a", "xgroup", "nosuch"]);
        assert_eq!(some.lacking(Caller::Waiter), ["BLPOP did not run with Waiter"]);
        let of_loader = ["BLPOP did not run with Loader", "XGROUP CREATE did not run with Loader"];
        assert_eq!(some.lacking(Caller::Loader), of_loader);
    }

    #[test]
    fn a_reason_that_is_not_true_any_more_is_named() {
        let lines = ["blpop l 0", "wait 0 0"];
        let lacking = played(&[Caller::Waiter], &lines).lacking(Caller::Waiter);
        assert_eq!(lacking.len(), 1, "{lacking:?}");
        assert!(lacking[0].starts_with("WAIT ran with Waiter, in spite of: "), "{lacking:?}");
    }

    #[test]
    fn a_container_stands_for_its_subcommands_alone() {
        assert!(stands_for("CLUSTER", "CLUSTER NODES") && stands_for("GET", "GET"));
        assert!(!stands_for("CLUSTER", "CLUSTERSCAN") && !stands_for("CLUSTER NODES", "CLUSTER"));
    }
}
