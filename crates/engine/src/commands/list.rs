//! Lists.
//!
//! What waits (BLPOP and its kin) is the command that does not, with one more outcome: nothing there yet. It is logged
//! as the one that does not wait.

mod blocking;
mod changing;
mod elements;
mod ends;
mod moving;
mod options;
mod reading;

use crate::command::{Categories, Command, Flags, Group};
use crate::keys::{Begin, Find, KeyFlags, KeySpec};

const WRITE: Flags = Flags::WRITE;
const GROW: Flags = Flags::WRITE.union(Flags::DENYOOM);
const FAST: Flags = Flags::WRITE.union(Flags::FAST);
const GROW_FAST: Flags = GROW.union(Flags::FAST);
const READ: Flags = Flags::READONLY;

const TAKEN: KeyFlags = KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE);
const ADDED: KeyFlags = KeyFlags::RW.union(KeyFlags::INSERT);

const LOOKS: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RO)];
const READS: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))];
const SETS: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))];
const INSERTS: &[KeySpec] = &[KeySpec::one(1, ADDED)];
const DELETES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::DELETE))];
const TAKES: &[KeySpec] = &[KeySpec::one(1, TAKEN)];
const TAKES_FROM_ANY: &[KeySpec] = &[KeySpec::range(1, -2, 1, TAKEN)];
const MOVES: &[KeySpec] = &[KeySpec::one(1, TAKEN), KeySpec::one(2, ADDED)];

/// Keys behind their number, which is argument `index`.
const fn counted(index: u8) -> KeySpec {
    let find = Find::KeyNum { count_at: 0, first: 1, step: 1 };
    KeySpec { begin: Begin::Index(index), find, flags: TAKEN }
}

const fn list(
    name: &'static str,
    since: &'static str,
    arity: i8,
    flags: Flags,
    keys: &'static [KeySpec],
    summary: &'static str,
) -> Command {
    Command::new(name, Group::List, since, arity, summary).flags(flags).category(Categories::LIST).keys(keys)
}

pub(super) const COMMANDS: &[Command] = &[
    list(
        "blmove",
        "6.2.0",
        6,
        GROW,
        MOVES,
        "Moves an element from an end of a list to an end of another, or waits for one.",
    )
    .may_block(blocking::blmove),
    list(
        "blmpop",
        "7.0.0",
        -5,
        WRITE,
        &[counted(2)],
        "Takes elements out of the first list that has any, or waits for one.",
    )
    .may_block(blocking::blmpop),
    list(
        "blpop",
        "2.0.0",
        -3,
        WRITE,
        TAKES_FROM_ANY,
        "Takes the first element out of the first list that has any, or waits for one.",
    )
    .may_block(blocking::blpop),
    list(
        "brpop",
        "2.0.0",
        -3,
        WRITE,
        TAKES_FROM_ANY,
        "Takes the last element out of the first list that has any, or waits for one.",
    )
    .may_block(blocking::brpop),
    list(
        "brpoplpush",
        "2.2.0",
        4,
        GROW,
        MOVES,
        "Moves the last element of a list to the front of another, or waits for one.",
    )
    .may_block(blocking::brpoplpush),
    list("lindex", "1.0.0", 3, READ, READS, "Returns an element of a list by its index.")
        .run(reading::lindex),
    list("linsert", "2.2.0", 5, GROW, INSERTS, "Puts an element before or behind another of a list.")
        .run(changing::linsert),
    list("llen", "1.0.0", 2, READ.union(Flags::FAST), LOOKS, "Returns the number of elements of a list.")
        .run(reading::llen),
    list("lmove", "6.2.0", 5, GROW, MOVES, "Moves an element from an end of a list to an end of another.")
        .run(moving::lmove),
    list("lmpop", "7.0.0", -4, WRITE, &[counted(1)], "Takes elements out of the first list that has any.")
        .run(ends::lmpop),
    list("lpop", "1.0.0", -2, FAST, TAKES, "Takes the first elements out of a list.").run(ends::lpop),
    list("lpos", "6.0.6", -3, READ, READS, "Returns the indexes of elements of a list by their value.")
        .run(reading::lpos),
    list("lpush", "1.0.0", -3, GROW_FAST, INSERTS, "Puts elements to the front of a list.").run(ends::lpush),
    list("lpushx", "2.2.0", -3, GROW_FAST, INSERTS, "Puts elements to the front of a list that is there.")
        .run(ends::lpushx),
    list("lrange", "1.0.0", 4, READ, READS, "Returns the elements of a list between two indexes.")
        .run(reading::lrange),
    list("lrem", "1.0.0", 4, WRITE, DELETES, "Takes elements out of a list by their value.")
        .run(changing::lrem),
    list("lset", "1.0.0", 4, GROW, SETS, "Sets an element of a list by its index.").run(changing::lset),
    list("ltrim", "1.0.0", 4, WRITE, DELETES, "Keeps the elements of a list between two indexes.")
        .run(changing::ltrim),
    list("rpop", "1.0.0", -2, FAST, TAKES, "Takes the last elements out of a list.").run(ends::rpop),
    list("rpoplpush", "1.2.0", 3, GROW, MOVES, "Moves the last element of a list to the front of another.")
        .run(moving::rpoplpush),
    list("rpush", "1.0.0", -3, GROW_FAST, INSERTS, "Puts elements at the end of a list.").run(ends::rpush),
    list("rpushx", "2.2.0", -3, GROW_FAST, INSERTS, "Puts elements at the end of a list that is there.")
        .run(ends::rpushx),
];
