//! The command catalogue used by access control.

use std::collections::BTreeMap;

use crate::category::Categories;

/// A command's index in the list passed to [`CommandCatalogue::new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub usize);

/// All commands and subcommands of a server or a sentinel.
#[derive(Debug, Default)]
pub struct CommandCatalogue {
    commands: Vec<CatalogueEntry>,
    by_name: BTreeMap<String, CommandId>,
}

#[derive(Debug)]
struct CatalogueEntry {
    /// The full name in lower case: `name`, or `container|sub` for a subcommand.
    name: String,
    categories: Categories,
    subcommands: Vec<CommandId>,
}

impl CommandCatalogue {
    /// Builds a catalogue from full command names (`container|sub` for a subcommand, which must follow its
    /// container) and their categories.
    ///
    /// # Panics
    /// If a subcommand precedes its container.
    #[must_use]
    pub fn new(commands: impl IntoIterator<Item = (String, Categories)>) -> Self {
        let mut catalogue = Self::default();
        for (name, categories) in commands {
            let id = CommandId(catalogue.commands.len());
            if let Some((container, _)) = name.split_once('|') {
                let container = catalogue.by_name[container];
                catalogue.commands[container.0].subcommands.push(id);
            }
            catalogue.by_name.insert(name.clone(), id);
            catalogue.commands.push(CatalogueEntry { name, categories, subcommands: Vec::new() });
        }
        catalogue
    }

    /// Finds a command by its full name, ignoring case.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<CommandId> {
        let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
        self.by_name.get(&name).copied()
    }

    /// The full name of a command in lower case, with `|` between a container and its subcommand.
    #[must_use]
    pub fn name(&self, id: CommandId) -> &str {
        &self.commands[id.0].name
    }

    /// The full name of the command with this index, or `None` if the index is out of range.
    #[must_use]
    pub fn name_at(&self, index: usize) -> Option<&str> {
        self.commands.get(index).map(|listed| listed.name.as_str())
    }

    pub(crate) fn subcommands(&self, id: CommandId) -> &[CommandId] {
        &self.commands[id.0].subcommands
    }

    /// All commands and subcommands that have at least one of the given categories.
    pub fn in_category(&self, category: Categories) -> impl Iterator<Item = CommandId> {
        let within = move |listed: &CatalogueEntry| listed.categories.intersects(category);
        (0..self.commands.len()).map(CommandId).filter(move |id| within(&self.commands[id.0]))
    }

    /// Number of commands, including subcommands.
    #[must_use]
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Whether the catalogue has no commands.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }
}
