//! Sorted sets.

pub(super) mod add;
mod bounds;
mod combine;
mod look;
pub(super) mod members;
mod pop;
mod random;
mod range;
mod remove;
mod scan;

use crate::command::{Categories, Command, Flags, Group};
use crate::keys::{Begin, Find, KeyFlags, KeySpec};

const READ: Flags = Flags::READONLY.union(Flags::FAST);
const WRITE: Flags = Flags::WRITE.union(Flags::FAST);
const GROW: Flags = WRITE.union(Flags::DENYOOM);
const STORE: Flags = Flags::WRITE.union(Flags::DENYOOM);

const READ_KEY: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);
const STORED: KeyFlags = KeyFlags::OW.union(KeyFlags::UPDATE);
const TAKEN: KeyFlags = KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE);

const LOOKS: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RO)];
const READS: &[KeySpec] = &[KeySpec::one(1, READ_KEY)];
const UPDATES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))];
const CHANGES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))];
const DELETES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::DELETE))];
const TAKES: &[KeySpec] = &[KeySpec::one(1, TAKEN)];
const STORES: &[KeySpec] = &[KeySpec::one(1, STORED), KeySpec::one(2, READ_KEY)];
const COMBINES: &[KeySpec] = &[counted(1, READ_KEY)];
const STORES_COMBINED: &[KeySpec] = &[KeySpec::one(1, STORED), counted(2, READ_KEY)];
const TAKES_FIRST: &[KeySpec] = &[counted(1, TAKEN)];
const WAITS_FIRST: &[KeySpec] = &[counted(2, TAKEN)];
const WAITS: &[KeySpec] = &[KeySpec::range(1, -2, 1, TAKEN)];

/// Keys behind their number, which stands there.
const fn counted(index: u8, flags: KeyFlags) -> KeySpec {
    KeySpec { begin: Begin::Index(index), find: Find::KeyNum { count_at: 0, first: 1, step: 1 }, flags }
}

/// A row of this family.
const fn sorted_set(
    name: &'static str,
    since: &'static str,
    arity: i8,
    flags: Flags,
    keys: &'static [KeySpec],
    summary: &'static str,
) -> Command {
    Command::new(name, Group::SortedSet, since, arity, summary)
        .flags(flags)
        .category(Categories::SORTEDSET)
        .keys(keys)
}

pub(super) const COMMANDS: &[Command] = &[
    sorted_set(
        "bzmpop",
        "7.0.0",
        -5,
        Flags::WRITE,
        WAITS_FIRST,
        "Takes members with the lowest or highest scores out of the first sorted set that has any, or waits.",
    )
    .may_block(pop::bzmpop),
    sorted_set(
        "bzpopmax",
        "5.0.0",
        -3,
        WRITE,
        WAITS,
        "Takes the member with the highest score out of the first sorted set that has any, or waits.",
    )
    .may_block(pop::bzpopmax),
    sorted_set(
        "bzpopmin",
        "5.0.0",
        -3,
        WRITE,
        WAITS,
        "Takes the member with the lowest score out of the first sorted set that has any, or waits.",
    )
    .may_block(pop::bzpopmin),
    sorted_set(
        "zadd",
        "1.2.0",
        -4,
        GROW,
        UPDATES,
        "Adds members to a sorted set, or gives them other scores.",
    )
    .names_part_at(2)
    .run(add::zadd),
    sorted_set("zcard", "1.2.0", 2, READ, LOOKS, "Returns the number of members of a sorted set.")
        .run(look::zcard),
    sorted_set(
        "zcount",
        "2.0.0",
        4,
        READ,
        READS,
        "Counts the members of a sorted set with scores in a range.",
    )
    .run(look::zcount),
    sorted_set(
        "zdiff",
        "6.2.0",
        -3,
        Flags::READONLY,
        COMBINES,
        "Returns the members of a sorted set that are in none of the others.",
    )
    .run(combine::zdiff),
    sorted_set(
        "zdiffstore",
        "6.2.0",
        -4,
        STORE,
        STORES_COMBINED,
        "Stores the members of a sorted set that are in none of the others.",
    )
    .run(combine::zdiffstore),
    sorted_set(
        "zincrby",
        "1.2.0",
        4,
        GROW,
        CHANGES,
        "Adds a number to the score of a member of a sorted set.",
    )
    .names_part_at(2)
    .run(add::zincrby),
    sorted_set(
        "zinter",
        "6.2.0",
        -3,
        Flags::READONLY,
        COMBINES,
        "Returns the members that several sorted sets have in common.",
    )
    .run(combine::zinter),
    sorted_set(
        "zintercard",
        "7.0.0",
        -3,
        Flags::READONLY,
        COMBINES,
        "Counts the members that several sorted sets have in common.",
    )
    .run(combine::zintercard),
    sorted_set(
        "zinterstore",
        "2.0.0",
        -4,
        STORE,
        STORES_COMBINED,
        "Stores the members that several sorted sets have in common.",
    )
    .run(combine::zinterstore),
    sorted_set(
        "zlexcount",
        "2.8.9",
        4,
        READ,
        READS,
        "Counts the members of a sorted set in a range of names.",
    )
    .run(look::zlexcount),
    sorted_set(
        "zmpop",
        "7.0.0",
        -4,
        Flags::WRITE,
        TAKES_FIRST,
        "Takes members with the lowest or highest scores out of the first sorted set that has any.",
    )
    .run(pop::zmpop),
    sorted_set("zmscore", "6.2.0", -3, READ, READS, "Returns the scores of several members of a sorted set.")
        .names_part()
        .run(look::zmscore),
    sorted_set(
        "zpopmax",
        "5.0.0",
        -2,
        WRITE,
        TAKES,
        "Takes the members with the highest scores out of a sorted set.",
    )
    .run(pop::zpopmax),
    sorted_set(
        "zpopmin",
        "5.0.0",
        -2,
        WRITE,
        TAKES,
        "Takes the members with the lowest scores out of a sorted set.",
    )
    .run(pop::zpopmin),
    sorted_set("zrandmember", "6.2.0", -2, Flags::READONLY, READS, "Returns random members of a sorted set.")
        .tips(&["nondeterministic_output"])
        .run(random::zrandmember),
    sorted_set(
        "zrange",
        "1.2.0",
        -4,
        Flags::READONLY,
        READS,
        "Returns the members of a sorted set in a range of ranks, scores or names.",
    )
    .run(range::zrange),
    sorted_set(
        "zrangebylex",
        "2.8.9",
        -4,
        Flags::READONLY,
        READS,
        "Returns the members of a sorted set in a range of names.",
    )
    .run(range::zrangebylex),
    sorted_set(
        "zrangebyscore",
        "1.0.5",
        -4,
        Flags::READONLY,
        READS,
        "Returns the members of a sorted set with scores in a range.",
    )
    .run(range::zrangebyscore),
    sorted_set(
        "zrangestore",
        "6.2.0",
        -5,
        STORE,
        STORES,
        "Stores the members of a sorted set in a range under another key.",
    )
    .run(range::zrangestore),
    sorted_set(
        "zrank",
        "2.0.0",
        -3,
        READ,
        READS,
        "Returns how many members of a sorted set stand before one.",
    )
    .names_part()
    .run(look::zrank),
    sorted_set(
        "zrem",
        "1.2.0",
        -3,
        WRITE,
        DELETES,
        "Removes members of a sorted set, and the sorted set with its last member.",
    )
    .names_part()
    .run(remove::zrem),
    sorted_set(
        "zremrangebylex",
        "2.8.9",
        4,
        Flags::WRITE,
        DELETES,
        "Removes the members of a sorted set in a range of names.",
    )
    .run(remove::zremrangebylex),
    sorted_set(
        "zremrangebyrank",
        "2.0.0",
        4,
        Flags::WRITE,
        DELETES,
        "Removes the members of a sorted set in a range of ranks.",
    )
    .run(remove::zremrangebyrank),
    sorted_set(
        "zremrangebyscore",
        "1.2.0",
        4,
        Flags::WRITE,
        DELETES,
        "Removes the members of a sorted set with scores in a range.",
    )
    .run(remove::zremrangebyscore),
    sorted_set(
        "zrevrange",
        "1.2.0",
        -4,
        Flags::READONLY,
        READS,
        "Returns the members of a sorted set in a range of ranks counted from the last.",
    )
    .run(range::zrevrange),
    sorted_set(
        "zrevrangebylex",
        "2.8.9",
        -4,
        Flags::READONLY,
        READS,
        "Returns the members of a sorted set in a range of names, the last first.",
    )
    .run(range::zrevrangebylex),
    sorted_set(
        "zrevrangebyscore",
        "2.2.0",
        -4,
        Flags::READONLY,
        READS,
        "Returns the members of a sorted set with scores in a range, the highest first.",
    )
    .run(range::zrevrangebyscore),
    sorted_set(
        "zrevrank",
        "2.0.0",
        -3,
        READ,
        READS,
        "Returns how many members of a sorted set stand behind one.",
    )
    .names_part()
    .run(look::zrevrank),
    sorted_set(
        "zscan",
        "2.8.0",
        -3,
        Flags::READONLY,
        READS,
        "Returns some members of a sorted set with their scores and a cursor for more.",
    )
    .tips(&["nondeterministic_output"])
    .run(scan::zscan),
    sorted_set("zscore", "1.2.0", 3, READ, READS, "Returns the score of a member of a sorted set.")
        .names_part()
        .run(look::zscore),
    sorted_set(
        "zunion",
        "6.2.0",
        -3,
        Flags::READONLY,
        COMBINES,
        "Returns the members of several sorted sets, their scores added up.",
    )
    .run(combine::zunion),
    sorted_set(
        "zunionstore",
        "2.0.0",
        -4,
        STORE,
        STORES_COMBINED,
        "Stores the members of several sorted sets, their scores added up.",
    )
    .run(combine::zunionstore),
];
