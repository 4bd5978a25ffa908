//! How the families write their rows of the command table: what a command may do, and what it does with its keys.

use engine::{Flags, KeyFlags, KeySpec};

/// Defines the function that makes a row of a family: its name, the group and the category, and what else all rows say.
macro_rules! family {
    ($row:ident, $group:ident, $category:ident $(, $also:ident)?) => {
        /// A row of this family.
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
/// Writes what may need memory.
pub(super) const GROW: Flags = WRITE.union(Flags::DENYOOM);
pub(super) const GROW_FAST: Flags = GROW.union(Flags::FAST);
/// HELP, which tells what the subcommands do.
pub(super) const HELP: Flags = Flags::LOADING.union(Flags::STALE);

/// Hints for clients: the same data may be told in another order.
pub(super) const ANY_ORDER: &[&str] = &["nondeterministic_output_order"];
/// The same data may give another reply.
pub(super) const VARIES: &[&str] = &["nondeterministic_output"];

/// The uses that a command makes of a key.
pub(super) mod key {
    use engine::KeyFlags;

    /// Something about its value is told, but nothing of it.
    pub(crate) const LOOK: KeyFlags = KeyFlags::RO;
    pub(crate) const READ: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);
    pub(crate) const UPDATE: KeyFlags = KeyFlags::RW.union(KeyFlags::UPDATE);
    /// Something of its value is told and changed.
    pub(crate) const CHANGE: KeyFlags = UPDATE.union(KeyFlags::ACCESS);
    pub(crate) const INSERT: KeyFlags = KeyFlags::RW.union(KeyFlags::INSERT);
    pub(crate) const DELETE: KeyFlags = KeyFlags::RW.union(KeyFlags::DELETE);
    /// Something of its value is told and deleted.
    pub(crate) const TAKE: KeyFlags = DELETE.union(KeyFlags::ACCESS);
    /// It gets another value, whatever it had.
    pub(crate) const STORE: KeyFlags = KeyFlags::OW.union(KeyFlags::UPDATE);
    /// It gets a value if it has none.
    pub(crate) const CREATE: KeyFlags = KeyFlags::OW.union(KeyFlags::INSERT);
    pub(crate) const REMOVE: KeyFlags = KeyFlags::RM.union(KeyFlags::DELETE);
}

// A single key, the first argument.
pub(super) const LOOKS: &[KeySpec] = &[KeySpec::one(1, key::LOOK)];
pub(super) const READS: &[KeySpec] = &[KeySpec::one(1, key::READ)];
pub(super) const UPDATES: &[KeySpec] = &[KeySpec::one(1, key::UPDATE)];
pub(super) const CHANGES: &[KeySpec] = &[KeySpec::one(1, key::CHANGE)];
pub(super) const INSERTS: &[KeySpec] = &[KeySpec::one(1, key::INSERT)];
pub(super) const DELETES: &[KeySpec] = &[KeySpec::one(1, key::DELETE)];
pub(super) const TAKES: &[KeySpec] = &[KeySpec::one(1, key::TAKE)];
pub(super) const STORES: &[KeySpec] = &[KeySpec::one(1, key::STORE)];

// A single key behind a subcommand's name.
pub(super) const LOOKS_SECOND: &[KeySpec] = &[KeySpec::one(2, key::LOOK)];
pub(super) const READS_SECOND: &[KeySpec] = &[KeySpec::one(2, key::READ)];
pub(super) const UPDATES_SECOND: &[KeySpec] = &[KeySpec::one(2, key::UPDATE)];
pub(super) const INSERTS_SECOND: &[KeySpec] = &[KeySpec::one(2, key::INSERT)];
pub(super) const DELETES_SECOND: &[KeySpec] = &[KeySpec::one(2, key::DELETE)];

// Keys to the end.
pub(super) const LOOKS_AT_ALL: &[KeySpec] = &[KeySpec::range(1, -1, 1, key::LOOK)];
pub(super) const READS_ALL: &[KeySpec] = &[KeySpec::range(1, -1, 1, key::READ)];
pub(super) const REMOVES_ALL: &[KeySpec] = &[KeySpec::range(1, -1, 1, key::REMOVE)];

// A source and where it goes, or the other way round.
/// An element goes from the first key to the second.
pub(super) const MOVES: &[KeySpec] = &[KeySpec::one(1, key::TAKE), KeySpec::one(2, key::INSERT)];
/// A command that reads its second key and stores the result under the first.
pub(super) const STORES_ONE: &[KeySpec] = &[KeySpec::one(1, key::STORE), KeySpec::one(2, key::READ)];
/// A command that reads all further keys and stores the result under the first.
pub(super) const STORES_OF_ALL: &[KeySpec] =
    &[KeySpec::one(1, key::STORE), KeySpec::range(2, -1, 1, key::READ)];

// Elements are taken from the first key that has any.
/// The keys stand before a timeout.
pub(super) const TAKES_FROM_ANY: &[KeySpec] = &[KeySpec::range(1, -2, 1, key::TAKE)];
/// Their number stands before them.
pub(super) const TAKES_FROM_COUNTED: &[KeySpec] = &[KeySpec::counted(1, key::TAKE)];
/// The same behind a timeout.
pub(super) const TAKES_FROM_COUNTED_SECOND: &[KeySpec] = &[KeySpec::counted(2, key::TAKE)];
/// Keys behind their number.
pub(super) const READS_COUNTED: &[KeySpec] = &[KeySpec::counted(1, key::READ)];

/// The same key flags, where they depend on other words.
pub(super) const fn variable(flags: KeyFlags) -> KeyFlags {
    flags.union(KeyFlags::VARIABLE_FLAGS)
}
