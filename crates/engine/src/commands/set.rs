//! Sets.
//!
//! What is chosen by chance is logged as what came of it; everything else does the same wherever it is run.

mod change;
mod combine;
mod pop;
mod random;
mod read;
mod scan;
mod sources;

use crate::command::{Categories, Command, Flags, Group};
use crate::keys::{Begin, Find, KeyFlags, KeySpec};

const READ: Flags = Flags::READONLY.union(Flags::FAST);
const WRITE: Flags = Flags::WRITE.union(Flags::FAST);
const STORE: Flags = Flags::WRITE.union(Flags::DENYOOM);

const ACCESS: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);
const LOOKS: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RO)];
const READS: &[KeySpec] = &[KeySpec::one(1, ACCESS)];
const INSERTS: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::INSERT))];
const DELETES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::DELETE))];
const TAKES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE))];
const MOVES: &[KeySpec] = &[
    KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE)),
    KeySpec::one(2, KeyFlags::RW.union(KeyFlags::INSERT)),
];
const READS_ALL: &[KeySpec] = &[KeySpec::range(1, -1, 1, ACCESS)];
const STORES: &[KeySpec] =
    &[KeySpec::one(1, KeyFlags::OW.union(KeyFlags::UPDATE)), KeySpec::range(2, -1, 1, ACCESS)];
const COUNTED: &[KeySpec] = &[KeySpec {
    begin: Begin::Index(1),
    find: Find::KeyNum { count_at: 0, first: 1, step: 1 },
    flags: ACCESS,
}];

const ANY_ORDER: &[&str] = &["nondeterministic_output_order"];
const BY_CHANCE: &[&str] = &["nondeterministic_output"];

/// A row of this family.
const fn set(
    name: &'static str,
    since: &'static str,
    arity: i8,
    flags: Flags,
    keys: &'static [KeySpec],
    summary: &'static str,
) -> Command {
    Command::new(name, Group::Set, since, arity, summary).flags(flags).category(Categories::SET).keys(keys)
}

pub(super) const COMMANDS: &[Command] = &[
    set(
        "sadd",
        "1.0.0",
        -3,
        WRITE.union(Flags::DENYOOM),
        INSERTS,
        "Adds members to a set, which is made if it is not there.",
    )
    .names_part()
    .run(change::sadd),
    set("scard", "1.0.0", 2, READ, LOOKS, "Returns the number of members of a set.").run(read::scard),
    set("sdiff", "1.0.0", -2, Flags::READONLY, READS_ALL, "Returns what the first set has and no other one.")
        .tips(ANY_ORDER)
        .run(combine::sdiff),
    set("sdiffstore", "1.0.0", -3, STORE, STORES, "Stores what the first set has and no other one.")
        .run(combine::sdiffstore),
    set("sinter", "1.0.0", -2, Flags::READONLY, READS_ALL, "Returns what all sets have.")
        .tips(ANY_ORDER)
        .run(combine::sinter),
    set("sintercard", "7.0.0", -3, Flags::READONLY, COUNTED, "Returns how many members all sets have.")
        .run(combine::sintercard),
    set("sinterstore", "1.0.0", -3, STORE, STORES, "Stores what all sets have.").run(combine::sinterstore),
    set("sismember", "1.0.0", 3, READ, LOOKS, "Says whether a set has a member.")
        .names_part()
        .run(read::sismember),
    set("smembers", "1.0.0", 2, Flags::READONLY, READS, "Returns all members of a set.")
        .tips(ANY_ORDER)
        .run(read::smembers),
    set("smismember", "6.2.0", -3, READ, READS, "Says of several members whether a set has them.")
        .names_part()
        .run(read::smismember),
    set("smove", "1.0.0", 4, WRITE, MOVES, "Moves a member from one set to another.").run(change::smove),
    set("spop", "1.0.0", -2, WRITE, TAKES, "Removes random members of a set and returns them.")
        .tips(BY_CHANCE)
        .run(pop::spop),
    set("srandmember", "1.0.0", -2, Flags::READONLY, READS, "Returns random members of a set.")
        .tips(BY_CHANCE)
        .run(random::srandmember),
    set("srem", "1.0.0", -3, WRITE, DELETES, "Removes members of a set, and the set with its last member.")
        .names_part()
        .run(change::srem),
    set("sscan", "2.8.0", -3, Flags::READONLY, READS, "Returns some members of a set and a cursor for more.")
        .tips(BY_CHANCE)
        .run(scan::sscan),
    set("sunion", "1.0.0", -2, Flags::READONLY, READS_ALL, "Returns what any of the sets has.")
        .tips(ANY_ORDER)
        .run(combine::sunion),
    set("sunionstore", "1.0.0", -3, STORE, STORES, "Stores what any of the sets has.")
        .run(combine::sunionstore),
];
