//! Command table rows of the sorted set commands; the handlers are in the submodules.

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
mod value;

use engine::{Command, KeySpec};

use super::estimates;
use super::rows::*;

family!(sorted_set, SortedSet, SORTEDSET);

const OVERWRITE_FROM_COUNTED_KEYS: &[KeySpec] =
    &[KeySpec::single_key(1, key::OVERWRITE), KeySpec::counted_keys(2, key::READ)];

pub(super) const COMMANDS: &[Command] = &[
    sorted_set(
        "bzmpop",
        "7.0.0",
        -5,
        WRITE,
        POP_COUNTED_KEYS_AT_2,
        "Pops members with the lowest or highest scores from the first non-empty sorted set, or blocks.",
    )
    .may_block(pop::bzmpop),
    sorted_set(
        "bzpopmax",
        "5.0.0",
        -3,
        WRITE_FAST,
        POP_KEYS,
        "Pops the member with the highest score from the first non-empty sorted set, or blocks.",
    )
    .may_block(pop::bzpopmax),
    sorted_set(
        "bzpopmin",
        "5.0.0",
        -3,
        WRITE_FAST,
        POP_KEYS,
        "Pops the member with the lowest score from the first non-empty sorted set, or blocks.",
    )
    .may_block(pop::bzpopmin),
    sorted_set(
        "zadd",
        "1.2.0",
        -4,
        WRITE_DENYOOM_FAST,
        UPDATE_KEY,
        "Adds members to a sorted set or changes their scores.",
    )
    .names_element_at(2)
    .run(add::zadd),
    sorted_set(
        "zcard",
        "1.2.0",
        2,
        READ_FAST,
        METADATA_KEY,
        "Returns the number of members of a sorted set.",
    )
    .run(look::zcard),
    sorted_set(
        "zcount",
        "2.0.0",
        4,
        READ_FAST,
        READ_KEY,
        "Counts the members of a sorted set with scores in a range.",
    )
    .run(look::zcount),
    sorted_set(
        "zdiff",
        "6.2.0",
        -3,
        READ,
        READ_COUNTED_KEYS,
        "Returns the members of a sorted set that are in none of the others.",
    )
    .run(combine::zdiff)
    .with_estimate(estimates::elements_cost::<200>),
    sorted_set(
        "zdiffstore",
        "6.2.0",
        -4,
        WRITE_DENYOOM,
        OVERWRITE_FROM_COUNTED_KEYS,
        "Stores the members of a sorted set that are in none of the others.",
    )
    .run(combine::zdiffstore)
    .with_estimate(estimates::elements_cost::<400>),
    sorted_set(
        "zincrby",
        "1.2.0",
        4,
        WRITE_DENYOOM_FAST,
        READ_UPDATE_KEY,
        "Adds a number to the score of a member of a sorted set.",
    )
    .names_element_at(2)
    .run(add::zincrby),
    sorted_set(
        "zinter",
        "6.2.0",
        -3,
        READ,
        READ_COUNTED_KEYS,
        "Returns the members that several sorted sets have in common.",
    )
    .run(combine::zinter)
    .with_estimate(estimates::smallest_set_cost::<300>),
    sorted_set(
        "zintercard",
        "7.0.0",
        -3,
        READ,
        READ_COUNTED_KEYS,
        "Counts the members that several sorted sets have in common.",
    )
    .run(combine::zintercard)
    .with_estimate(estimates::smallest_set_cost::<200>),
    sorted_set(
        "zinterstore",
        "2.0.0",
        -4,
        WRITE_DENYOOM,
        OVERWRITE_FROM_COUNTED_KEYS,
        "Stores the members that several sorted sets have in common.",
    )
    .run(combine::zinterstore)
    .with_estimate(estimates::smallest_set_cost::<500>),
    sorted_set(
        "zlexcount",
        "2.8.9",
        4,
        READ_FAST,
        READ_KEY,
        "Counts the members of a sorted set in a range of names.",
    )
    .run(look::zlexcount),
    sorted_set(
        "zmpop",
        "7.0.0",
        -4,
        WRITE,
        POP_COUNTED_KEYS,
        "Pops members with the lowest or highest scores from the first non-empty sorted set.",
    )
    .run(pop::zmpop),
    sorted_set(
        "zmscore",
        "6.2.0",
        -3,
        READ_FAST,
        READ_KEY,
        "Returns the scores of several members of a sorted set.",
    )
    .names_element()
    .run(look::zmscore),
    sorted_set("zpopmax", "5.0.0", -2, WRITE_FAST, POP_KEY, "Pops the members with the highest scores.")
        .run(pop::zpopmax),
    sorted_set("zpopmin", "5.0.0", -2, WRITE_FAST, POP_KEY, "Pops the members with the lowest scores.")
        .run(pop::zpopmin),
    sorted_set("zrandmember", "6.2.0", -2, READ, READ_KEY, "Returns random members of a sorted set.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(random::zrandmember)
        .with_estimate(estimates::count_cost::<100>),
    sorted_set(
        "zrange",
        "1.2.0",
        -4,
        READ,
        READ_KEY,
        "Returns the members of a sorted set in a range of ranks, scores or names.",
    )
    .run(range::zrange)
    .with_estimate_and_pinned_reads(|request| range::estimated_cost::<50>(request, range::ANY_RANGE)),
    sorted_set(
        "zrangebylex",
        "2.8.9",
        -4,
        READ,
        READ_KEY,
        "Returns the members of a sorted set in a range of names.",
    )
    .run(range::zrangebylex)
    .with_estimate_and_pinned_reads(|request| range::estimated_cost::<50>(request, range::BY_LEX)),
    sorted_set(
        "zrangebyscore",
        "1.0.5",
        -4,
        READ,
        READ_KEY,
        "Returns the members of a sorted set with scores in a range.",
    )
    .run(range::zrangebyscore)
    .with_estimate_and_pinned_reads(|request| range::estimated_cost::<50>(request, range::BY_SCORE)),
    sorted_set(
        "zrangestore",
        "6.2.0",
        -5,
        WRITE_DENYOOM,
        OVERWRITE_FROM_KEY,
        "Stores the members of a sorted set in a range under another key.",
    )
    .run(range::zrangestore)
    .with_estimate(|request| range::estimated_cost::<500>(request, range::ZRANGESTORE)),
    sorted_set(
        "zrank",
        "2.0.0",
        -3,
        READ_FAST,
        READ_KEY,
        "Returns the rank of a member, lowest score first.",
    )
    .names_element()
    .run(look::zrank),
    sorted_set(
        "zrem",
        "1.2.0",
        -3,
        WRITE_FAST,
        DELETE_KEY,
        "Removes members of a sorted set, and the sorted set with its last member.",
    )
    .names_element()
    .run(remove::zrem),
    sorted_set(
        "zremrangebylex",
        "2.8.9",
        4,
        WRITE,
        DELETE_KEY,
        "Removes the members of a sorted set in a range of names.",
    )
    .run(remove::zremrangebylex)
    .with_estimate(|request| range::estimated_cost::<200>(request, range::BY_LEX)),
    sorted_set(
        "zremrangebyrank",
        "2.0.0",
        4,
        WRITE,
        DELETE_KEY,
        "Removes the members of a sorted set in a range of ranks.",
    )
    .run(remove::zremrangebyrank)
    .with_estimate(|request| range::estimated_cost::<200>(request, range::BY_RANKS)),
    sorted_set(
        "zremrangebyscore",
        "1.2.0",
        4,
        WRITE,
        DELETE_KEY,
        "Removes the members of a sorted set with scores in a range.",
    )
    .run(remove::zremrangebyscore)
    .with_estimate(|request| range::estimated_cost::<200>(request, range::BY_SCORE)),
    sorted_set(
        "zrevrange",
        "1.2.0",
        -4,
        READ,
        READ_KEY,
        "Returns the members of a sorted set in a range of ranks counted from the last.",
    )
    .run(range::zrevrange)
    .with_estimate_and_pinned_reads(|request| range::estimated_cost::<50>(request, range::REVERSE_RANKS)),
    sorted_set(
        "zrevrangebylex",
        "2.8.9",
        -4,
        READ,
        READ_KEY,
        "Returns the members of a sorted set in a range of names, the last first.",
    )
    .run(range::zrevrangebylex)
    .with_estimate_and_pinned_reads(|request| range::estimated_cost::<50>(request, range::REVERSE_LEX)),
    sorted_set(
        "zrevrangebyscore",
        "2.2.0",
        -4,
        READ,
        READ_KEY,
        "Returns the members of a sorted set with scores in a range, the highest first.",
    )
    .run(range::zrevrangebyscore)
    .with_estimate_and_pinned_reads(|request| range::estimated_cost::<50>(request, range::REVERSE_SCORES)),
    sorted_set(
        "zrevrank",
        "2.0.0",
        -3,
        READ_FAST,
        READ_KEY,
        "Returns the rank of a member, highest score first.",
    )
    .names_element()
    .run(look::zrevrank),
    sorted_set(
        "zscan",
        "2.8.0",
        -3,
        READ,
        READ_KEY,
        "Returns some members of a sorted set with their scores and a cursor for more.",
    )
    .tips(NONDETERMINISTIC_TIPS)
    .run(scan::zscan),
    sorted_set("zscore", "1.2.0", 3, READ_FAST, READ_KEY, "Returns the score of a member of a sorted set.")
        .names_element()
        .run(look::zscore),
    sorted_set(
        "zunion",
        "6.2.0",
        -3,
        READ,
        READ_COUNTED_KEYS,
        "Returns the union of several sorted sets with combined scores.",
    )
    .run(combine::zunion)
    .with_estimate_and_pinned_reads(estimates::elements_cost::<500>),
    sorted_set(
        "zunionstore",
        "2.0.0",
        -4,
        WRITE_DENYOOM,
        OVERWRITE_FROM_COUNTED_KEYS,
        "Stores the union of several sorted sets with combined scores.",
    )
    .run(combine::zunionstore)
    .with_estimate(estimates::elements_cost::<700>),
];
