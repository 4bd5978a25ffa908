//! The command set of a server or sentinel, and the server process that runs some of the commands.

use std::sync::{Arc, OnceLock, Weak};

use resp::Args;
use slot_routing::Slot;
use smallvec::SmallVec;

use super::registry::{RegisteredCommand, Registry};
use super::shell::Shell;
use super::{LockScope, LogRole};

/// The command set of a server or sentinel, and the server process that runs some of the commands.
#[derive(Debug)]
pub struct CommandSet {
    /// The commands by the names that clients use, which `rename-command` may change.
    registry: &'static Registry,
    by_original_name: &'static Registry,
    /// The server process; unset in tests and in sentinels.
    shell: OnceLock<Weak<dyn Shell>>,
}

impl CommandSet {
    /// Creates a command set with the original names.
    #[must_use]
    pub fn new(registry: &'static Registry) -> Self {
        Self { registry, by_original_name: registry, shell: OnceLock::new() }
    }

    /// Sets the renamed commands; see [`Registry::rename`].
    #[must_use]
    pub fn with_renames(self, registry: &'static Registry) -> Self {
        Self { registry, ..self }
    }

    /// Sets the server process; only the first call has an effect.
    pub fn set_shell(&self, shell: Weak<dyn Shell>) {
        // A second call would come from another server, which must not take over the commands.
        let set = self.shell.set(shell);
        debug_assert!(set.is_ok(), "commands belong to one server");
    }

    pub(crate) fn shell(&self) -> Option<Arc<dyn Shell>> {
        self.shell.get().and_then(Weak::upgrade)
    }

    /// Returns the commands by the names that clients use.
    #[inline]
    #[must_use]
    pub fn registry(&self) -> &'static Registry {
        self.registry
    }

    /// Returns the commands by their original names, which a master uses in its own log entries.
    pub(crate) fn by_original_name(&self) -> &'static Registry {
        self.by_original_name
    }

    /// Returns the role of a logged command and the slots of its keys, or `None` if the command is unknown.
    #[must_use]
    pub fn decode_logged(&self, args: Args<'_>) -> Option<(LogRole, SmallVec<[Slot; 4]>)> {
        let entry = self.by_original_name.lookup(args)?;
        let mut slots = SmallVec::new();
        entry.command.visit_keys(args, &mut |index, _| slots.extend(args.get(index).map(Slot::of_key)));
        if entry.command.lock_scope == LockScope::NamedSlot {
            let number = args.get(2).and_then(resp::parse_i64).and_then(|number| u16::try_from(number).ok());
            slots.extend(number.and_then(Slot::new));
        }
        Some((entry.command.log_role, slots))
    }

    /// Returns the command with this number ([`RegisteredCommand::index`]).
    #[inline]
    #[must_use]
    pub fn command_by_number(&self, number: usize) -> &'static RegisteredCommand {
        self.registry.commands()[number]
    }
}
