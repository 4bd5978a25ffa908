//! Finding a command by name, and numbering all commands for statistics.

use std::sync::LazyLock;

use resp::Args;

use crate::command::Command;
use crate::commands::TABLE;
use crate::error::CommandError;

/// A command of the table with what is derived from its row once.
#[derive(Debug)]
pub struct Registered {
    pub command: &'static Command,
    /// Its place in every per-command array.
    pub index: usize,
    /// `name`, or `container|sub`.
    pub full_name: String,
    /// The place of its key, if it has one key at a fixed place.
    pub(crate) single_key: Option<usize>,
    subcommands: Vec<&'static Registered>,
}

/// All commands, by number and by name. The table is part of the program, so this is made once.
#[derive(Debug)]
pub struct Registry {
    all: Vec<&'static Registered>,
    top: Vec<&'static Registered>,
    /// Open addressing over the commands' names, a power of two long.
    buckets: Vec<Option<&'static Registered>>,
}

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::build);

impl Registry {
    /// The registry of this program's command table.
    #[must_use]
    pub fn the() -> &'static Self {
        &REGISTRY
    }

    fn build() -> Self {
        let mut registry = Self { all: Vec::new(), top: Vec::new(), buckets: Vec::new() };
        for command in TABLE.iter().flat_map(|family| family.iter()) {
            let top = registry.register(command, None);
            registry.top.push(top);
        }
        registry.buckets = vec![None; (registry.top.len() * 4).next_power_of_two()];
        for &entry in &registry.top {
            let mut bucket = registry.bucket(entry.command.name.as_bytes());
            while registry.buckets[bucket].is_some() {
                bucket = (bucket + 1) % registry.buckets.len();
            }
            registry.buckets[bucket] = Some(entry);
        }
        registry
    }

    fn register(&mut self, command: &'static Command, container: Option<&str>) -> &'static Registered {
        let full_name = match container {
            Some(container) => format!("{container}|{}", command.name),
            None => command.name.to_owned(),
        };
        let single_key = match command.keys {
            [only] => only.single(),
            _ => None,
        };
        let index = self.all.len();
        let children = command.subcommands.iter();
        // The container's number comes first, so its place is taken before its children's.
        let placeholder: &'static Registered = Box::leak(Box::new(Registered {
            command,
            index,
            full_name: full_name.clone(),
            single_key,
            subcommands: Vec::new(),
        }));
        self.all.push(placeholder);
        let subcommands: Vec<_> = children.map(|child| self.register(child, Some(command.name))).collect();
        if subcommands.is_empty() {
            return placeholder;
        }
        let entry = Box::leak(Box::new(Registered { command, index, full_name, single_key, subcommands }));
        self.all[index] = entry;
        entry
    }

    fn bucket(&self, name: &[u8]) -> usize {
        // FNV-1a over the lower-case letters: names are short and few.
        let hash = name.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0000_01b3)
        });
        (hash >> 20) as usize & (self.buckets.len() - 1)
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

    /// The command of that name, in any case.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<&'static Registered> {
        let mut bucket = self.bucket(name);
        while let Some(entry) = self.buckets[bucket] {
            if entry.command.name.as_bytes().eq_ignore_ascii_case(name) {
                return Some(entry);
            }
            bucket = (bucket + 1) % self.buckets.len();
        }
        None
    }

    /// The command or subcommand that a request names.
    pub fn resolve(&self, args: Args<'_>) -> Result<&'static Registered, CommandError> {
        let name = args.get(0).unwrap_or_default();
        let Some(entry) = self.find(name) else {
            return Err(CommandError::UnknownCommand {
                name: name.to_vec(),
                args: args.iter().skip(1).take(20).map(<[u8]>::to_vec).collect(),
            });
        };
        match args.get(1) {
            Some(name) if !entry.subcommands.is_empty() => entry.subcommand(name).ok_or_else(|| {
                CommandError::UnknownSubcommand { container: entry.command.name, name: name.to_vec() }
            }),
            _ => Ok(entry),
        }
    }
}

impl Registered {
    /// Its subcommand of that name, in any case.
    #[must_use]
    pub fn subcommand(&self, name: &[u8]) -> Option<&'static Registered> {
        self.subcommands.iter().copied().find(|sub| sub.command.name.as_bytes().eq_ignore_ascii_case(name))
    }

    #[must_use]
    pub fn subcommands(&self) -> &[&'static Registered] {
        &self.subcommands
    }
}
