//! The commands there are, as access control sees them.

use std::collections::BTreeMap;

use crate::category::Categories;

/// A command's number: its place in the list that [`Catalogue::new`] was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub usize);

/// All commands and subcommands of a server, or of a sentinel.
#[derive(Debug, Default)]
pub struct Catalogue {
    commands: Vec<Listed>,
    by_name: BTreeMap<String, CommandId>,
}

#[derive(Debug)]
struct Listed {
    /// `name`, or `container|sub`; lower case.
    name: String,
    categories: Categories,
    subcommands: Vec<CommandId>,
}

impl Catalogue {
    /// Commands with their full names (`container|sub` for a subcommand, after its container) and their
    /// categories.
    ///
    /// # Panics
    /// If a subcommand stands before its container.
    #[must_use]
    pub fn new(rows: impl IntoIterator<Item = (String, Categories)>) -> Self {
        let mut catalogue = Self::default();
        for (name, categories) in rows {
            let id = CommandId(catalogue.commands.len());
            if let Some((container, _)) = name.split_once('|') {
                let container = catalogue.by_name[container];
                catalogue.commands[container.0].subcommands.push(id);
            }
            catalogue.by_name.insert(name.clone(), id);
            catalogue.commands.push(Listed { name, categories, subcommands: Vec::new() });
        }
        catalogue
    }

    /// The command with that full name, in any case.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<CommandId> {
        let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
        self.by_name.get(&name).copied()
    }

    /// The full name of a command, in lower case.
    #[must_use]
    pub fn name(&self, id: CommandId) -> &str {
        &self.commands[id.0].name
    }

    /// The full name of the command of this number, if there is one.
    #[must_use]
    pub fn name_of(&self, number: usize) -> Option<&str> {
        self.commands.get(number).map(|listed| listed.name.as_str())
    }

    pub(crate) fn subcommands(&self, id: CommandId) -> &[CommandId] {
        &self.commands[id.0].subcommands
    }

    /// Every command of a category, by number.
    pub fn of(&self, category: Categories) -> impl Iterator<Item = CommandId> {
        let within = move |listed: &Listed| listed.categories.intersects(category);
        (0..self.commands.len()).map(CommandId).filter(move |id| within(&self.commands[id.0]))
    }

    /// How many commands there are, subcommands among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }
}
