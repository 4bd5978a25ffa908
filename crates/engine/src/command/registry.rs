//! Finding a command by name, and numbering all commands for statistics.

use std::ops::RangeInclusive;

use resp::Args;

use super::{Command, Flags, Handler, Reach, Run};
use crate::error::{CommandError, until_nul};

/// A command of the table with what is derived from its row once.
#[derive(Debug, Clone)]
pub struct Registered {
    /// Its row in the table.
    pub command: &'static Command,
    /// The name by which clients call it: its own, unless the configuration says otherwise.
    pub called: &'static str,
    /// Its place in every per-command array. A tool of DEBUG has DEBUG's, and its name: it is one command.
    pub index: usize,
    /// `name`, or `container|sub`. Statistics, access control and COMMAND know it by this, whatever it is called.
    pub full_name: String,
    /// The place of its key, if it has one key at a fixed place.
    pub single_key: Option<usize>,
    /// The engine runs it by itself, and it needs no slot.
    pub(crate) is_free: bool,
    /// Where the name of a part of that key's value most likely stands: a hint for what to touch ahead.
    pub(crate) part: Option<usize>,
    /// The handler that runs it, if that is the engine's, and the configuration lets everybody run it.
    plain: Option<Handler>,
    /// How many words a request may have.
    words: RangeInclusive<usize>,
    name: Folded,
    subcommands: Vec<&'static Registered>,
}

/// All commands, by number and by name. The maker of an engine hands it in: the engine knows no command itself. The
/// rows are part of the program, so this is made once, and once more where `rename-command` gives some of them other
/// names.
#[derive(Debug, Clone)]
pub struct Registry {
    /// The flags of those subcommands that are in it.
    wanted: Flags,
    all: Vec<&'static Registered>,
    top: Vec<&'static Registered>,
    /// Open addressing over the commands' names, a power of two long.
    buckets: Vec<Option<&'static Registered>>,
}

/// Why a command cannot have another name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameError {
    /// There is no such command.
    NoSuchCommand,
    /// Another command has that name.
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
    /// The registry of a server that has these rows, with all their subcommands.
    #[must_use]
    pub fn of_server(rows: impl IntoIterator<Item = &'static Command>) -> Self {
        Self::build(rows, Flags::empty())
    }

    /// The registry of a sentinel that has these rows, with those of their subcommands that a sentinel has
    /// ([`Flags::SENTINEL`]).
    #[must_use]
    pub fn of_sentinel(rows: impl IntoIterator<Item = &'static Command>) -> Self {
        Self::build(rows, Flags::SENTINEL)
    }

    /// Whether these are a sentinel's commands.
    #[must_use]
    pub fn is_of_sentinel(&self) -> bool {
        self.wanted.contains(Flags::SENTINEL)
    }

    /// The commands as access control sees them, with the same numbers.
    #[must_use]
    pub fn catalogue(&self) -> acl::CommandCatalogue {
        acl::CommandCatalogue::new(
            self.all.iter().map(|entry| (entry.full_name.clone(), entry.command.categories())),
        )
    }

    fn build(rows: impl IntoIterator<Item = &'static Command>, wanted: Flags) -> Self {
        let mut registry = Self { wanted, all: Vec::new(), top: Vec::new(), buckets: Vec::new() };
        for command in rows {
            let top = registry.register(command, None);
            registry.top.push(top);
        }
        registry.fill_buckets();
        registry
    }

    fn fill_buckets(&mut self) {
        self.buckets = vec![None; (self.top.len() * 4).next_power_of_two()];
        for &entry in &self.top {
            let mut bucket = entry.name.bucket(self.buckets.len());
            while self.buckets[bucket].is_some() {
                bucket = (bucket + 1) % self.buckets.len();
            }
            self.buckets[bucket] = Some(entry);
        }
    }

    /// Gives the command that is called `from` the name `to`; with an empty one it cannot be called any more.
    ///
    /// # Errors
    /// If nothing is called `from`, or something `to`.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), RenameError> {
        let place = self.top.iter().position(|entry| entry.is_named(from.as_bytes()));
        let entry = self.top.remove(place.ok_or(RenameError::NoSuchCommand)?);
        self.fill_buckets();
        if to.is_empty() {
            return Ok(());
        }
        if self.find(to.as_bytes()).is_some() {
            return Err(RenameError::NameTaken);
        }
        let called: &'static str = String::leak(to.to_owned());
        let renamed = Registered { called, name: Folded::of_command(called), ..entry.clone() };
        let renamed: &'static Registered = Box::leak(Box::new(renamed));
        self.all[renamed.index] = renamed;
        self.top.push(renamed);
        self.fill_buckets();
        Ok(())
    }

    fn register(&mut self, command: &'static Command, container: Option<&Registered>) -> &'static Registered {
        let one = container.filter(|container| container.is_one_command());
        let full_name = match (one, container) {
            (Some(one), _) => one.full_name.clone(),
            (None, Some(container)) => format!("{}|{}", container.command.name, command.name),
            (None, None) => command.name.to_owned(),
        };
        // A command that goes through slots locks each by itself; the word that it is routed by is no key.
        let single_key = match command.keys {
            [only] if command.reach != Reach::EachSlot => only.single(),
            _ => None,
        };
        let part = single_key.zip(command.part).map(|(key, behind)| key + usize::from(behind));
        let plain = match command.run {
            Run::Here(handler) if !command.flags.intersects(Flags::PROTECTED.union(Flags::ADMIN)) => {
                Some(handler)
            }
            _ => None,
        };
        let is_free = matches!(command.run, Run::Here(_) | Run::MayBlock(_))
            && command.keys.is_empty()
            && matches!(command.reach, Reach::Keys | Reach::EachSlot);
        let words = command.words();
        let name = Folded::of_command(command.name);
        let index = one.map_or(self.all.len(), |one| one.index);
        let wanted = self.wanted;
        let children = command.subcommands.iter().filter(|child| child.flags.contains(wanted));
        // The container's number comes first, so its place is taken before its children's.
        let placeholder: &'static Registered = Box::leak(Box::new(Registered {
            command,
            called: command.name,
            index,
            full_name,
            single_key,
            is_free,
            part,
            plain,
            words,
            name,
            subcommands: Vec::new(),
        }));
        if one.is_none() {
            self.all.push(placeholder);
        }
        let subcommands: Vec<_> = children.map(|child| self.register(child, Some(placeholder))).collect();
        if subcommands.is_empty() {
            return placeholder;
        }
        let entry = Box::leak(Box::new(Registered { subcommands, ..placeholder.clone() }));
        self.all[index] = entry;
        entry
    }

    /// Every command and subcommand, in the order of their numbers.
    #[must_use]
    pub fn all(&self) -> &[&'static Registered] {
        &self.all
    }

    /// Every command that is not a subcommand.
    #[must_use]
    pub fn top(&self) -> &[&'static Registered] {
        &self.top
    }

    /// The commands that COMMAND shows, each command's subcommands behind it.
    pub fn shown(&self) -> impl Iterator<Item = &'static Registered> {
        self.top.iter().flat_map(|entry| std::iter::once(entry).chain(entry.subcommands())).copied()
    }

    /// The command of that name, in any case.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<&'static Registered> {
        let folded = Folded::new(name);
        let mut bucket = folded.bucket(self.buckets.len());
        while let Some(entry) = self.buckets[bucket] {
            if entry.name == folded && (entry.name.exact || entry.is_named(name)) {
                return Some(entry);
            }
            bucket = (bucket + 1) % self.buckets.len();
        }
        None
    }

    /// The command with that full name (`container|sub` for a subcommand), in any case.
    #[must_use]
    pub fn find_full(&self, name: &[u8]) -> Option<&'static Registered> {
        match name.iter().position(|byte| *byte == b'|') {
            None => self.find(name),
            Some(bar) => {
                let container = self.find(&name[..bar]).filter(|entry| !entry.is_one_command())?;
                container.subcommand(&name[bar + 1..])
            }
        }
    }

    /// The command or subcommand that a request names.
    #[inline(always)]
    #[must_use]
    pub(crate) fn lookup(&self, args: Args<'_>) -> Option<&'static Registered> {
        let entry = self.find(args.get(0)?)?;
        if entry.subcommands.is_empty() {
            return Some(entry);
        }
        if entry.is_one_command() {
            return Some(entry.row_for(args));
        }
        args.get(1).map_or(Some(entry), |name| entry.subcommand(name))
    }

    /// [`Registry::lookup`], or what to reply where there is none.
    ///
    /// # Errors
    /// There is no such command, or not with so many words.
    pub fn resolve(&self, args: Args<'_>) -> Result<&'static Registered, CommandError> {
        self.lookup(args).ok_or_else(|| {
            let name = args.get(0).unwrap_or_default();
            match (self.find(name), args.get(1)) {
                (Some(entry), Some(sub)) => {
                    CommandError::UnknownSubcommand { container: entry.called, name: sub.to_vec() }
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
    /// Whether there is such a command, with so many words.
    ///
    /// # Errors
    /// The error that a client gets otherwise.
    pub fn check(&self, args: Args<'_>) -> Result<&'static Registered, CommandError> {
        let entry = self.resolve(args)?;
        if !entry.command.accepts(args.len()) || matches!(entry.command.run, Run::Container) {
            return Err(CommandError::WrongArity(entry.full_name.clone()));
        }
        Ok(entry)
    }
}

/// A name's first eight letters in lower case and its length: all of it for most commands, and enough
/// to tell nearly all others apart.
#[derive(Debug, Clone, Copy)]
struct Folded {
    head: u64,
    len: usize,
    /// The name is short and all letters, so equal folded forms mean equal names.
    exact: bool,
}

impl Folded {
    fn new(name: &[u8]) -> Self {
        Self {
            // Sets the bit that makes a letter lower case. Only a letter becomes a letter by that.
            head: head(name) | 0x2020_2020_2020_2020,
            len: name.len(),
            exact: false,
        }
    }

    fn of_command(name: &str) -> Self {
        let exact = name.len() <= 8 && name.bytes().all(|byte| byte.is_ascii_lowercase());
        Self { exact, ..Self::new(name.as_bytes()) }
    }

    fn bucket(self, buckets: usize) -> usize {
        let hash = (self.head ^ self.len as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 40) as usize & (buckets - 1)
    }
}

/// The first eight bytes of `name`, those that it lacks zero. Read in two pieces that may overlap.
#[inline]
fn head(name: &[u8]) -> u64 {
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

impl PartialEq for Folded {
    fn eq(&self, other: &Self) -> bool {
        (self.head, self.len) == (other.head, other.len)
    }
}

impl Registered {
    /// The handler that runs such a request here, if nothing about the request may keep it from that.
    #[inline]
    pub(crate) fn plain(&self, args: Args<'_>) -> Option<Handler> {
        self.plain.filter(|_| self.words.contains(&args.len()))
    }

    fn is_named(&self, name: &[u8]) -> bool {
        self.called.as_bytes().eq_ignore_ascii_case(name)
    }

    /// Its subcommands are tools, not part of the surface.
    fn is_one_command(&self) -> bool {
        self.command.flags.contains(Flags::PROTECTED)
    }

    /// The row that runs such a request of this command: DEBUG's tools have rows of their own, and what is wrong with
    /// other words it says itself.
    pub(crate) fn row_for(&'static self, args: Args<'_>) -> &'static Self {
        if self.subcommands.is_empty() || !self.is_one_command() {
            return self;
        }
        let tool = args.get(1).and_then(|name| self.subcommand(name));
        tool.filter(|tool| tool.words.contains(&args.len())).unwrap_or(self)
    }

    /// Its subcommand of that name, in any case. As in Valkey the name ends at its first NUL; a command's does not.
    fn subcommand(&self, name: &[u8]) -> Option<&'static Registered> {
        let name = until_nul(name);
        self.subcommands.iter().copied().find(|sub| sub.is_named(name))
    }

    /// Its subcommands, those of DEBUG excepted.
    #[must_use]
    pub fn subcommands(&self) -> &[&'static Registered] {
        if self.is_one_command() { &[] } else { &self.subcommands }
    }
}
