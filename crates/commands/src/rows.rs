//! Helpers for command table rows: flag combinations and key specs.

use engine::{Flags, KeyFlags, KeySpec};

/// Defines a function that builds the rows of one command family, with its name, group, ACL category and shared
/// defaults.
macro_rules! family {
    ($row:ident, $group:ident, $category:ident $(, $also:ident)?) => {
        /// Builds a row of this family.
        const fn $row(
            name: &'static str,
            since: &'static str,
            arity: i8,
            flags: engine::Flags,
            keys: &'static [engine::KeySpec],
            summary: &'static str,
        ) -> engine::Command {
            engine::Command::new(name, engine::Group::$group, since, arity, summary)
                .flags(flags)
                .category(engine::Categories::$category)
                .keys(keys)
                $(.$also())?
        }
    };
}
pub(super) use family;

pub(super) const READ: Flags = Flags::READONLY;
pub(super) const READ_FAST: Flags = READ.union(Flags::FAST);
pub(super) const WRITE: Flags = Flags::WRITE;
pub(super) const WRITE_FAST: Flags = WRITE.union(Flags::FAST);
/// Flags of writes that may need memory.
pub(super) const GROW: Flags = WRITE.union(Flags::DENYOOM);
pub(super) const GROW_FAST: Flags = GROW.union(Flags::FAST);
/// Flags of HELP subcommands.
pub(super) const HELP: Flags = Flags::LOADING.union(Flags::STALE);

/// Command tip: the order of the reply's elements is not deterministic.
pub(super) const ANY_ORDER: &[&str] = &["nondeterministic_output_order"];
/// Command tip: the reply is not deterministic.
pub(super) const VARIES: &[&str] = &["nondeterministic_output"];

/// Combinations of key flags.
pub(super) mod key {
    use engine::KeyFlags;

    /// Returns metadata of the value, such as its type or length.
    pub(crate) const LOOK: KeyFlags = KeyFlags::RO;
    pub(crate) const READ: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);
    pub(crate) const UPDATE: KeyFlags = KeyFlags::RW.union(KeyFlags::UPDATE);
    /// Returns and changes part of the value.
    pub(crate) const CHANGE: KeyFlags = UPDATE.union(KeyFlags::ACCESS);
    pub(crate) const INSERT: KeyFlags = KeyFlags::RW.union(KeyFlags::INSERT);
    pub(crate) const DELETE: KeyFlags = KeyFlags::RW.union(KeyFlags::DELETE);
    /// Returns and deletes part of the value.
    pub(crate) const TAKE: KeyFlags = DELETE.union(KeyFlags::ACCESS);
    /// Overwrites the value.
    pub(crate) const STORE: KeyFlags = KeyFlags::OW.union(KeyFlags::UPDATE);
    /// Creates a value if the key does not exist.
    pub(crate) const CREATE: KeyFlags = KeyFlags::OW.union(KeyFlags::INSERT);
    pub(crate) const REMOVE: KeyFlags = KeyFlags::RM.union(KeyFlags::DELETE);
}

// One key, argument 1.
pub(super) const LOOKS: &[KeySpec] = &[KeySpec::single_key(1, key::LOOK)];
pub(super) const READS: &[KeySpec] = &[KeySpec::single_key(1, key::READ)];
pub(super) const UPDATES: &[KeySpec] = &[KeySpec::single_key(1, key::UPDATE)];
pub(super) const CHANGES: &[KeySpec] = &[KeySpec::single_key(1, key::CHANGE)];
pub(super) const INSERTS: &[KeySpec] = &[KeySpec::single_key(1, key::INSERT)];
pub(super) const DELETES: &[KeySpec] = &[KeySpec::single_key(1, key::DELETE)];
pub(super) const TAKES: &[KeySpec] = &[KeySpec::single_key(1, key::TAKE)];
pub(super) const STORES: &[KeySpec] = &[KeySpec::single_key(1, key::STORE)];

// One key after the subcommand's name.
pub(super) const LOOKS_SECOND: &[KeySpec] = &[KeySpec::single_key(2, key::LOOK)];
pub(super) const READS_SECOND: &[KeySpec] = &[KeySpec::single_key(2, key::READ)];
pub(super) const UPDATES_SECOND: &[KeySpec] = &[KeySpec::single_key(2, key::UPDATE)];
pub(super) const INSERTS_SECOND: &[KeySpec] = &[KeySpec::single_key(2, key::INSERT)];
pub(super) const DELETES_SECOND: &[KeySpec] = &[KeySpec::single_key(2, key::DELETE)];

// All remaining arguments are keys.
pub(super) const LOOKS_AT_ALL: &[KeySpec] = &[KeySpec::range(1, -1, 1, key::LOOK)];
pub(super) const READS_ALL: &[KeySpec] = &[KeySpec::range(1, -1, 1, key::READ)];
pub(super) const REMOVES_ALL: &[KeySpec] = &[KeySpec::range(1, -1, 1, key::REMOVE)];

// Two keys or more: sources and destinations.
/// An element moves from the first key to the second.
pub(super) const MOVES: &[KeySpec] =
    &[KeySpec::single_key(1, key::TAKE), KeySpec::single_key(2, key::INSERT)];
/// Reads the second key and stores the result under the first.
pub(super) const STORES_ONE: &[KeySpec] =
    &[KeySpec::single_key(1, key::STORE), KeySpec::single_key(2, key::READ)];
/// Reads all keys but the first and stores the result there.
pub(super) const STORES_OF_ALL: &[KeySpec] =
    &[KeySpec::single_key(1, key::STORE), KeySpec::range(2, -1, 1, key::READ)];

// Elements are popped from the first non-empty key.
/// The keys come before a timeout.
pub(super) const TAKES_FROM_ANY: &[KeySpec] = &[KeySpec::range(1, -2, 1, key::TAKE)];
/// The keys come after their number.
pub(super) const TAKES_FROM_COUNTED: &[KeySpec] = &[KeySpec::counted_keys(1, key::TAKE)];
/// The keys come after a timeout and their number.
pub(super) const TAKES_FROM_COUNTED_SECOND: &[KeySpec] = &[KeySpec::counted_keys(2, key::TAKE)];
/// The keys come after their number.
pub(super) const READS_COUNTED: &[KeySpec] = &[KeySpec::counted_keys(1, key::READ)];

/// Adds the flag for key specs whose access depends on other arguments.
pub(super) const fn variable(flags: KeyFlags) -> KeyFlags {
    flags.union(KeyFlags::VARIABLE_FLAGS)
}
