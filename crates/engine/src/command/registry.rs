//! The registry: finds commands by name and numbers them for statistics.

use std::ops::RangeInclusive;

use resp::Args;

use super::{Command, CommandRunner, Flags, Handler, LockScope};
use crate::error::{CommandError, truncate_at_nul};

/// A command with properties derived from its table row.
#[derive(Debug, Clone)]
pub struct RegisteredCommand {
    /// The row of the command table.
    pub command: &'static Command,
    /// The name that clients use: the original one unless `rename-command` changed it.
    pub client_name: &'static str,
    /// Index into arrays with one element per command. DEBUG subcommands share DEBUG's index and name.
    pub index: usize,
    /// `name`, or `container|sub`: the name in statistics, ACL and COMMAND, regardless of renaming.
    pub full_name: String,
    /// Argument index of the key, if the command has one key at a fixed position.
    pub single_key: Option<usize>,
    /// Whether the engine runs the command without any slot lock.
    pub(crate) is_lock_free: bool,
    /// Argument index of the word that probably names an element of the key's value; used for prefetching.
    pub(crate) element_position: Option<usize>,
    /// The handler, if it belongs to the engine and no configuration restricts the command.
    unrestricted_handler: Option<Handler>,
    allowed_word_counts: RangeInclusive<usize>,
    name: FoldedName,
    subcommands: Vec<&'static RegisteredCommand>,
}

/// All commands by number and name. The engine itself knows no commands; its creator passes the registry. Rows are
/// static, so the registry is built once, and a second time if `rename-command` is used.
#[derive(Debug, Clone)]
pub struct Registry {
    /// Flags without which a subcommand is left out of the registry.
    required_flags: Flags,
    commands: Vec<&'static RegisteredCommand>,
    top_level: Vec<&'static RegisteredCommand>,
    /// Open-addressing hash table over the names; its length is a power of two.
    buckets: Vec<Option<&'static RegisteredCommand>>,
}

/// Errors of renaming a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameError {
    /// No command has the old name.
    NoSuchCommand,
    /// Another command already has the new name.
    NameTaken,
}

impl std::fmt::Display for RenameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoSuchCommand => "No such command in rename-command",
            Self::NameTaken => "Target command name already exists",
        })
    }
}

impl Registry {
    /// Builds the registry of a server, with all subcommands of these rows.
    #[must_use]
    pub fn for_server(commands: impl IntoIterator<Item = &'static Command>) -> Self {
        Self::build(commands, Flags::empty())
    }

    /// Builds the registry of a sentinel, with those subcommands that are available in a sentinel
    /// ([`Flags::SENTINEL`]).
    #[must_use]
    pub fn for_sentinel(commands: impl IntoIterator<Item = &'static Command>) -> Self {
        Self::build(commands, Flags::SENTINEL)
    }

    /// Returns whether this is a sentinel's registry.
    #[must_use]
    pub fn is_sentinel_registry(&self) -> bool {
        self.required_flags.contains(Flags::SENTINEL)
    }

    /// Returns the commands for access control, numbered as in the registry.
    #[must_use]
    pub fn catalogue(&self) -> acl::CommandCatalogue {
        acl::CommandCatalogue::new(
            self.commands.iter().map(|entry| (entry.full_name.clone(), entry.command.categories())),
        )
    }

    fn build(rows: impl IntoIterator<Item = &'static Command>, required_flags: Flags) -> Self {
        let mut registry =
            Self { required_flags, commands: Vec::new(), top_level: Vec::new(), buckets: Vec::new() };
        for command in rows {
            let top = registry.register(command, None);
            registry.top_level.push(top);
        }
        registry.fill_buckets();
        registry
    }

    fn fill_buckets(&mut self) {
        self.buckets = vec![None; (self.top_level.len() * 4).next_power_of_two()];
        for &entry in &self.top_level {
            let mut bucket = entry.name.bucket(self.buckets.len());
            while self.buckets[bucket].is_some() {
                bucket = (bucket + 1) % self.buckets.len();
            }
            self.buckets[bucket] = Some(entry);
        }
    }

    /// Renames the command `from`; an empty `to` disables it.
    ///
    /// # Errors
    /// No command is named `from`, or another is already named `to`.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), RenameError> {
        let place = self.top_level.iter().position(|entry| entry.is_named(from.as_bytes()));
        let entry = self.top_level.remove(place.ok_or(RenameError::NoSuchCommand)?);
        self.fill_buckets();
        if to.is_empty() {
            return Ok(());
        }
        if self.find(to.as_bytes()).is_some() {
            return Err(RenameError::NameTaken);
        }
        let called: &'static str = String::leak(to.to_owned());
        let renamed = RegisteredCommand {
            client_name: called,
            name: FoldedName::from_command(called),
            ..entry.clone()
        };
        let renamed: &'static RegisteredCommand = Box::leak(Box::new(renamed));
        self.commands[renamed.index] = renamed;
        self.top_level.push(renamed);
        self.fill_buckets();
        Ok(())
    }

    fn register(
        &mut self,
        command: &'static Command,
        container: Option<&RegisteredCommand>,
    ) -> &'static RegisteredCommand {
        let one = container.filter(|container| container.shares_index_with_subcommands());
        let full_name = match (one, container) {
            (Some(one), _) => one.full_name.clone(),
            (None, Some(container)) => format!("{}|{}", container.command.name, command.name),
            (None, None) => command.name.to_owned(),
        };
        // A command that visits slots one by one locks them itself, and its routing argument is not a key.
        let single_key = match command.keys {
            [only] if command.lock_scope != LockScope::EachSlot => only.fixed_position(),
            _ => None,
        };
        let part = single_key.zip(command.element_offset).map(|(key, behind)| key + usize::from(behind));
        let plain = match command.runner {
            CommandRunner::Engine(handler)
                if !command.flags.intersects(Flags::PROTECTED.union(Flags::ADMIN)) =>
            {
                Some(handler)
            }
            _ => None,
        };
        let is_lock_free = matches!(command.runner, CommandRunner::Engine(_) | CommandRunner::MayBlock(_))
            && command.keys.is_empty()
            && matches!(command.lock_scope, LockScope::Keys | LockScope::EachSlot);
        let words = command.allowed_word_counts();
        let name = FoldedName::from_command(command.name);
        let index = one.map_or(self.commands.len(), |one| one.index);
        let wanted = self.required_flags;
        let children = command.subcommands.iter().filter(|child| child.flags.contains(wanted));
        // Reserve the container's number, so that it precedes the numbers of its subcommands.
        let placeholder: &'static RegisteredCommand = Box::leak(Box::new(RegisteredCommand {
            command,
            client_name: command.name,
            index,
            full_name,
            single_key,
            is_lock_free,
            element_position: part,
            unrestricted_handler: plain,
            allowed_word_counts: words,
            name,
            subcommands: Vec::new(),
        }));
        if one.is_none() {
            self.commands.push(placeholder);
        }
        let subcommands: Vec<_> = children.map(|child| self.register(child, Some(placeholder))).collect();
        if subcommands.is_empty() {
            return placeholder;
        }
        let entry = Box::leak(Box::new(RegisteredCommand { subcommands, ..placeholder.clone() }));
        self.commands[index] = entry;
        entry
    }

    /// Returns all commands and subcommands; the position of each is its number.
    #[must_use]
    pub fn commands(&self) -> &[&'static RegisteredCommand] {
        &self.commands
    }

    /// Returns all commands without subcommands.
    #[must_use]
    pub fn top_level(&self) -> &[&'static RegisteredCommand] {
        &self.top_level
    }

    /// Returns the commands that COMMAND lists, each followed by its subcommands.
    pub fn listed_commands(&self) -> impl Iterator<Item = &'static RegisteredCommand> {
        self.top_level.iter().flat_map(|entry| std::iter::once(entry).chain(entry.subcommands())).copied()
    }

    /// Finds a command by name, ignoring case.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<&'static RegisteredCommand> {
        let folded = FoldedName::new(name);
        let mut bucket = folded.bucket(self.buckets.len());
        while let Some(entry) = self.buckets[bucket] {
            if entry.name == folded && (entry.name.is_exact || entry.is_named(name)) {
                return Some(entry);
            }
            bucket = (bucket + 1) % self.buckets.len();
        }
        None
    }

    /// Finds a command by full name (`container|sub` for a subcommand), ignoring case.
    #[must_use]
    pub fn find_by_full_name(&self, name: &[u8]) -> Option<&'static RegisteredCommand> {
        match name.iter().position(|byte| *byte == b'|') {
            None => self.find(name),
            Some(bar) => {
                let container =
                    self.find(&name[..bar]).filter(|entry| !entry.shares_index_with_subcommands())?;
                container.subcommand(&name[bar + 1..])
            }
        }
    }

    /// Finds the command or subcommand of a request.
    #[inline(always)]
    #[must_use]
    pub(crate) fn lookup(&self, args: Args<'_>) -> Option<&'static RegisteredCommand> {
        let entry = self.find(args.get(0)?)?;
        if entry.subcommands.is_empty() {
            return Some(entry);
        }
        if entry.shares_index_with_subcommands() {
            return Some(entry.command_for_request(args));
        }
        args.get(1).map_or(Some(entry), |name| entry.subcommand(name))
    }

    /// Finds the command or subcommand of a request and checks the number of arguments.
    ///
    /// # Errors
    /// The command or subcommand is unknown, or the arity is wrong.
    pub fn resolve(&self, args: Args<'_>) -> Result<&'static RegisteredCommand, CommandError> {
        self.lookup(args).ok_or_else(|| {
            let name = args.get(0).unwrap_or_default();
            match (self.find(name), args.get(1)) {
                (Some(entry), Some(sub)) => {
                    CommandError::UnknownSubcommand { container: entry.client_name, name: sub.to_vec() }
                }
                _ => CommandError::UnknownCommand {
                    name: name.to_vec(),
                    args: args.iter().skip(1).take(20).map(<[u8]>::to_vec).collect(),
                },
            }
        })
    }
}

impl Registry {
    /// Checks that a request names a known command with the right arity.
    ///
    /// # Errors
    /// The error reply for the client.
    pub fn check(&self, args: Args<'_>) -> Result<&'static RegisteredCommand, CommandError> {
        let entry = self.resolve(args)?;
        if !entry.command.accepts_word_count(args.len())
            || matches!(entry.command.runner, CommandRunner::Container)
        {
            return Err(CommandError::WrongArity(entry.full_name.clone()));
        }
        Ok(entry)
    }
}

/// The first eight letters of a name in lower case and its length: the whole name of most commands, and enough to
/// distinguish nearly all others.
#[derive(Debug, Clone, Copy)]
struct FoldedName {
    prefix: u64,
    len: usize,
    /// Whether the name has at most eight characters, all of them letters, so that equal folded forms mean equal names.
    is_exact: bool,
}

impl FoldedName {
    fn new(name: &[u8]) -> Self {
        Self {
            // Set the lower-case bit of ASCII letters. This turns no other byte into a letter.
            prefix: prefix(name) | 0x2020_2020_2020_2020,
            len: name.len(),
            is_exact: false,
        }
    }

    fn from_command(name: &str) -> Self {
        let exact = name.len() <= 8 && name.bytes().all(|byte| byte.is_ascii_lowercase());
        Self { is_exact: exact, ..Self::new(name.as_bytes()) }
    }

    fn bucket(self, bucket_count: usize) -> usize {
        let hash = (self.prefix ^ self.len as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 40) as usize & (bucket_count - 1)
    }
}

/// Returns the first eight bytes of `name`, padded with zeros, using two reads that may overlap.
#[inline]
fn prefix(name: &[u8]) -> u64 {
    let four = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    match (name.first_chunk::<8>(), name.first_chunk::<4>(), name.last_chunk::<4>(), name) {
        (Some(eight), ..) => u64::from_le_bytes(*eight),
        (None, Some(first), Some(last), _) => four(first) | four(last) << (8 * (name.len() - 4)),
        (.., &[a, b, c]) => four(&[a, b, c, 0]),
        (.., &[a, b]) => four(&[a, b, 0, 0]),
        (.., &[a]) => u64::from(a),
        _ => 0,
    }
}

impl PartialEq for FoldedName {
    fn eq(&self, other: &Self) -> bool {
        (self.prefix, self.len) == (other.prefix, other.len)
    }
}

impl RegisteredCommand {
    /// Returns the handler if nothing about the request requires the slow path.
    #[inline]
    pub(crate) fn unrestricted_handler(&self, args: Args<'_>) -> Option<Handler> {
        self.unrestricted_handler.filter(|_| self.allowed_word_counts.contains(&args.len()))
    }

    fn is_named(&self, name: &[u8]) -> bool {
        self.client_name.as_bytes().eq_ignore_ascii_case(name)
    }

    /// Returns whether the subcommands share the row's index, as those of DEBUG do: they are not part of the public
    /// command set.
    fn shares_index_with_subcommands(&self) -> bool {
        self.command.flags.contains(Flags::PROTECTED)
    }

    /// Returns the command that runs this request. DEBUG subcommands are commands of their own; unknown ones are
    /// reported by DEBUG itself.
    pub(crate) fn command_for_request(&'static self, args: Args<'_>) -> &'static Self {
        if self.subcommands.is_empty() || !self.shares_index_with_subcommands() {
            return self;
        }
        let tool = args.get(1).and_then(|name| self.subcommand(name));
        tool.filter(|tool| tool.allowed_word_counts.contains(&args.len())).unwrap_or(self)
    }

    /// Finds a subcommand by name, ignoring case. As in Valkey, a subcommand's name ends at the first NUL; a command's
    /// does not.
    fn subcommand(&self, name: &[u8]) -> Option<&'static RegisteredCommand> {
        let name = truncate_at_nul(name);
        self.subcommands.iter().copied().find(|sub| sub.is_named(name))
    }

    /// Returns the subcommands, except those of DEBUG.
    #[must_use]
    pub fn subcommands(&self) -> &[&'static RegisteredCommand] {
        if self.shares_index_with_subcommands() { &[] } else { &self.subcommands }
    }
}
