//! The commands of a server, or of a sentinel, and its shell.

use std::sync::{Arc, OnceLock, Weak};

use resp::Args;
use slot_routing::Slot;
use smallvec::SmallVec;

use super::Reach;
use super::registry::{Registered, Registry};
use super::shell::Shell;

/// The commands that a server or a sentinel has, and the shell that carries some of them out.
#[derive(Debug)]
pub struct Commands {
    /// By the names that clients call them.
    registry: &'static Registry,
    /// By their own names, whatever clients call them.
    own_names: &'static Registry,
    /// None in a test and in a sentinel.
    shell: OnceLock<Weak<dyn Shell>>,
}

impl Commands {
    /// These commands, by their own names.
    #[must_use]
    pub fn new(registry: &'static Registry) -> Self {
        Self { registry, own_names: registry, shell: OnceLock::new() }
    }

    /// The same by other names; see [`Registry::rename`].
    #[must_use]
    pub fn called(self, registry: &'static Registry) -> Self {
        Self { registry, ..self }
    }

    /// From now on this carries out the commands of the shell that need no waiting. The first one stays.
    pub fn set_shell(&self, shell: Weak<dyn Shell>) {
        // A second one would be another server's.
        let set = self.shell.set(shell);
        debug_assert!(set.is_ok(), "commands belong to one server");
    }

    pub(crate) fn shell(&self) -> Option<Arc<dyn Shell>> {
        self.shell.get().and_then(Weak::upgrade)
    }

    /// The commands by the names that clients call them.
    #[inline]
    #[must_use]
    pub fn registry(&self) -> &'static Registry {
        self.registry
    }

    /// The commands by their own names: a master says by these what it does of its own accord.
    pub(crate) fn own_names(&self) -> &'static Registry {
        self.own_names
    }

    /// The slots of the keys of a command that a log has, by its own name; `None` if there is no such command.
    #[must_use]
    pub fn slots_of(&self, args: Args<'_>) -> Option<SmallVec<[Slot; 4]>> {
        let entry = self.own_names.lookup(args)?;
        let mut slots = SmallVec::new();
        entry.command.visit_keys(args, &mut |index, _| slots.extend(args.get(index).map(Slot::of_key)));
        if entry.command.reach == Reach::NamedSlot {
            let number = args.get(2).and_then(resp::parse_i64).and_then(|number| u16::try_from(number).ok());
            slots.extend(number.and_then(Slot::new));
        }
        Some(slots)
    }

    /// The command of this number.
    #[inline]
    #[must_use]
    pub fn entry(&self, number: usize) -> &'static Registered {
        self.registry.all()[number]
    }
}
