//! Set commands.
//!
//! Commands that select random members are replicated by their result; all others are deterministic and replicated as
//! they are.

mod change;
mod combine;
mod pop;
mod random;
mod read;
mod scan;
mod sources;
mod value;

use engine::Command;

use super::estimates;
use super::rows::*;

family!(set, Set, SET);

pub(super) const COMMANDS: &[Command] = &[
    set(
        "sadd",
        "1.0.0",
        -3,
        WRITE_DENYOOM_FAST,
        INSERT_KEY,
        "Adds members to a set, which is created if necessary.",
    )
    .names_element()
    .run(change::sadd),
    set("scard", "1.0.0", 2, READ_FAST, METADATA_KEY, "Returns the number of members of a set.")
        .run(read::scard),
    set("sdiff", "1.0.0", -2, READ, READ_KEYS, "Returns the difference of sets.")
        .tips(NONDETERMINISTIC_ORDER_TIPS)
        .run(combine::sdiff)
        .with_estimate(estimates::elements_cost::<200>),
    set("sdiffstore", "1.0.0", -3, WRITE_DENYOOM, OVERWRITE_FROM_KEYS, "Stores the difference of sets.")
        .run(combine::sdiffstore)
        .with_estimate(estimates::elements_cost::<300>),
    set("sinter", "1.0.0", -2, READ, READ_KEYS, "Returns the intersection of sets.")
        .tips(NONDETERMINISTIC_ORDER_TIPS)
        .run(combine::sinter)
        .with_estimate(estimates::smallest_set_cost::<100>),
    set(
        "sintercard",
        "7.0.0",
        -3,
        READ,
        READ_COUNTED_KEYS,
        "Returns the cardinality of the intersection of sets.",
    )
    .run(combine::sintercard)
    .with_estimate(estimates::smallest_set_cost::<100>),
    set("sinterstore", "1.0.0", -3, WRITE_DENYOOM, OVERWRITE_FROM_KEYS, "Stores the intersection of sets.")
        .run(combine::sinterstore)
        .with_estimate(estimates::smallest_set_cost::<200>),
    set("sismember", "1.0.0", 3, READ_FAST, METADATA_KEY, "Checks whether a set has a member.")
        .names_element()
        .run(read::sismember),
    set("smembers", "1.0.0", 2, READ, READ_KEY, "Returns all members of a set.")
        .tips(NONDETERMINISTIC_ORDER_TIPS)
        .run(read::smembers)
        .with_estimate_and_pinned_reads(estimates::elements_cost::<40>),
    set("smismember", "6.2.0", -3, READ_FAST, READ_KEY, "Checks for several members whether a set has them.")
        .names_element()
        .run(read::smismember),
    set("smove", "1.0.0", 4, WRITE_FAST, POP_AND_INSERT_KEYS, "Moves a member from one set to another.")
        .run(change::smove),
    set("spop", "1.0.0", -2, WRITE_FAST, POP_KEY, "Removes random members of a set and returns them.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(pop::spop),
    set("srandmember", "1.0.0", -2, READ, READ_KEY, "Returns random members of a set.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(random::srandmember)
        .with_estimate(estimates::count_cost::<100>),
    set(
        "srem",
        "1.0.0",
        -3,
        WRITE_FAST,
        DELETE_KEY,
        "Removes members of a set, and the set with its last member.",
    )
    .names_element()
    .run(change::srem),
    set("sscan", "2.8.0", -3, READ, READ_KEY, "Returns some members of a set and a cursor for more.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(scan::sscan),
    set("sunion", "1.0.0", -2, READ, READ_KEYS, "Returns the union of sets.")
        .tips(NONDETERMINISTIC_ORDER_TIPS)
        .run(combine::sunion)
        .with_estimate_and_pinned_reads(estimates::elements_cost::<400>),
    set("sunionstore", "1.0.0", -3, WRITE_DENYOOM, OVERWRITE_FROM_KEYS, "Stores the union of sets.")
        .run(combine::sunionstore)
        .with_estimate(estimates::elements_cost::<500>),
];
