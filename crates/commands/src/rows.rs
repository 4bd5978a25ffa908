//! Helpers for command table rows: flag combinations and key specs.

use engine::{Flags, KeyFlags, KeySpec};

/// Defines a function that builds the rows of one command family, so that each row need not repeat the family's group,
/// ACL category and defaults.
macro_rules! family {
    ($row:ident, $group:ident, $category:ident $(, $also:ident)?) => {
        /// Creates a command of this family.
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
pub(super) const WRITE_DENYOOM: Flags = WRITE.union(Flags::DENYOOM);
pub(super) const WRITE_DENYOOM_FAST: Flags = WRITE_DENYOOM.union(Flags::FAST);
/// Flags of HELP subcommands.
pub(super) const HELP_FLAGS: Flags = Flags::LOADING.union(Flags::STALE);

/// Command tip: the order of the reply's elements is not deterministic.
pub(super) const NONDETERMINISTIC_ORDER_TIPS: &[&str] = &["nondeterministic_output_order"];
/// Command tip: the reply is not deterministic.
pub(super) const NONDETERMINISTIC_TIPS: &[&str] = &["nondeterministic_output"];

/// Combinations of key flags.
pub(super) mod key {
    use engine::KeyFlags;

    /// The command returns metadata of the value, such as its type or length.
    pub(crate) const METADATA: KeyFlags = KeyFlags::RO;
    pub(crate) const READ: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);
    pub(crate) const UPDATE: KeyFlags = KeyFlags::RW.union(KeyFlags::UPDATE);
    /// The command returns and changes a part of the value.
    pub(crate) const READ_UPDATE: KeyFlags = UPDATE.union(KeyFlags::ACCESS);
    pub(crate) const INSERT: KeyFlags = KeyFlags::RW.union(KeyFlags::INSERT);
    pub(crate) const DELETE: KeyFlags = KeyFlags::RW.union(KeyFlags::DELETE);
    /// The command returns and deletes a part of the value.
    pub(crate) const POP: KeyFlags = DELETE.union(KeyFlags::ACCESS);
    /// The command overwrites the value.
    pub(crate) const OVERWRITE: KeyFlags = KeyFlags::OW.union(KeyFlags::UPDATE);
    /// The command creates a value if the key does not exist.
    pub(crate) const CREATE: KeyFlags = KeyFlags::OW.union(KeyFlags::INSERT);
    pub(crate) const REMOVE: KeyFlags = KeyFlags::RM.union(KeyFlags::DELETE);
}

// Key specs of commands with one key, which is argument 1.
pub(super) const METADATA_KEY: &[KeySpec] = &[KeySpec::single_key(1, key::METADATA)];
pub(super) const READ_KEY: &[KeySpec] = &[KeySpec::single_key(1, key::READ)];
pub(super) const UPDATE_KEY: &[KeySpec] = &[KeySpec::single_key(1, key::UPDATE)];
pub(super) const READ_UPDATE_KEY: &[KeySpec] = &[KeySpec::single_key(1, key::READ_UPDATE)];
pub(super) const INSERT_KEY: &[KeySpec] = &[KeySpec::single_key(1, key::INSERT)];
pub(super) const DELETE_KEY: &[KeySpec] = &[KeySpec::single_key(1, key::DELETE)];
pub(super) const POP_KEY: &[KeySpec] = &[KeySpec::single_key(1, key::POP)];
pub(super) const OVERWRITE_KEY: &[KeySpec] = &[KeySpec::single_key(1, key::OVERWRITE)];

// Key specs of commands with one key, which follows the subcommand's name.
pub(super) const METADATA_KEY_AT_2: &[KeySpec] = &[KeySpec::single_key(2, key::METADATA)];
pub(super) const READ_KEY_AT_2: &[KeySpec] = &[KeySpec::single_key(2, key::READ)];
pub(super) const UPDATE_KEY_AT_2: &[KeySpec] = &[KeySpec::single_key(2, key::UPDATE)];
pub(super) const INSERT_KEY_AT_2: &[KeySpec] = &[KeySpec::single_key(2, key::INSERT)];
pub(super) const DELETE_KEY_AT_2: &[KeySpec] = &[KeySpec::single_key(2, key::DELETE)];

// Key specs of commands whose remaining arguments are all keys.
pub(super) const METADATA_KEYS: &[KeySpec] = &[KeySpec::key_range(1, -1, 1, key::METADATA)];
pub(super) const READ_KEYS: &[KeySpec] = &[KeySpec::key_range(1, -1, 1, key::READ)];
pub(super) const REMOVE_KEYS: &[KeySpec] = &[KeySpec::key_range(1, -1, 1, key::REMOVE)];

// Key specs of commands with two keys or more, sources and destinations.
/// An element moves from the first key to the second key.
pub(super) const POP_AND_INSERT_KEYS: &[KeySpec] =
    &[KeySpec::single_key(1, key::POP), KeySpec::single_key(2, key::INSERT)];
/// The command reads the second key and stores the result under the first key.
pub(super) const OVERWRITE_FROM_KEY: &[KeySpec] =
    &[KeySpec::single_key(1, key::OVERWRITE), KeySpec::single_key(2, key::READ)];
/// The command reads all keys but the first, and stores the result under the first key.
pub(super) const OVERWRITE_FROM_KEYS: &[KeySpec] =
    &[KeySpec::single_key(1, key::OVERWRITE), KeySpec::key_range(2, -1, 1, key::READ)];

// Key specs of commands that pop elements from the first non-empty key.
/// The keys are all arguments except the last one, which is a timeout.
pub(super) const POP_KEYS: &[KeySpec] = &[KeySpec::key_range(1, -2, 1, key::POP)];
/// The keys follow an argument that holds their number.
pub(super) const POP_COUNTED_KEYS: &[KeySpec] = &[KeySpec::counted_keys(1, key::POP)];
/// The keys follow a timeout and an argument that holds the number of keys.
pub(super) const POP_COUNTED_KEYS_AT_2: &[KeySpec] = &[KeySpec::counted_keys(2, key::POP)];
/// The keys follow an argument that holds their number.
pub(super) const READ_COUNTED_KEYS: &[KeySpec] = &[KeySpec::counted_keys(1, key::READ)];

/// Adds the flag for key specs whose access depends on other arguments.
pub(super) const fn with_variable_flags(flags: KeyFlags) -> KeyFlags {
    flags.union(KeyFlags::VARIABLE_FLAGS)
}
