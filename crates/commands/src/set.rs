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
    set("sadd", "1.0.0", -3, GROW_FAST, INSERTS, "Adds members to a set, which is created if necessary.")
        .names_element()
        .run(change::sadd),
    set("scard", "1.0.0", 2, READ_FAST, LOOKS, "Returns the number of members of a set.").run(read::scard),
    set("sdiff", "1.0.0", -2, READ, READS_ALL, "Returns the difference of sets.")
        .tips(ANY_ORDER)
        .run(combine::sdiff)
        .long(estimates::elements_cost::<200>),
    set("sdiffstore", "1.0.0", -3, GROW, STORES_OF_ALL, "Stores the difference of sets.")
        .run(combine::sdiffstore)
        .long(estimates::elements_cost::<300>),
    set("sinter", "1.0.0", -2, READ, READS_ALL, "Returns the intersection of sets.")
        .tips(ANY_ORDER)
        .run(combine::sinter)
        .long(estimates::smallest_set_cost::<100>),
    set(
        "sintercard",
        "7.0.0",
        -3,
        READ,
        READS_COUNTED,
        "Returns the cardinality of the intersection of sets.",
    )
    .run(combine::sintercard)
    .long(estimates::smallest_set_cost::<100>),
    set("sinterstore", "1.0.0", -3, GROW, STORES_OF_ALL, "Stores the intersection of sets.")
        .run(combine::sinterstore)
        .long(estimates::smallest_set_cost::<200>),
    set("sismember", "1.0.0", 3, READ_FAST, LOOKS, "Checks whether a set has a member.")
        .names_element()
        .run(read::sismember),
    set("smembers", "1.0.0", 2, READ, READS, "Returns all members of a set.")
        .tips(ANY_ORDER)
        .run(read::smembers)
        .long_with_pinned_reads(estimates::elements_cost::<40>),
    set("smismember", "6.2.0", -3, READ_FAST, READS, "Checks for several members whether a set has them.")
        .names_element()
        .run(read::smismember),
    set("smove", "1.0.0", 4, WRITE_FAST, MOVES, "Moves a member from one set to another.").run(change::smove),
    set("spop", "1.0.0", -2, WRITE_FAST, TAKES, "Removes random members of a set and returns them.")
        .tips(VARIES)
        .run(pop::spop),
    set("srandmember", "1.0.0", -2, READ, READS, "Returns random members of a set.")
        .tips(VARIES)
        .run(random::srandmember)
        .long(estimates::count_cost::<100>),
    set(
        "srem",
        "1.0.0",
        -3,
        WRITE_FAST,
        DELETES,
        "Removes members of a set, and the set with its last member.",
    )
    .names_element()
    .run(change::srem),
    set("sscan", "2.8.0", -3, READ, READS, "Returns some members of a set and a cursor for more.")
        .tips(VARIES)
        .run(scan::sscan),
    set("sunion", "1.0.0", -2, READ, READS_ALL, "Returns the union of sets.")
        .tips(ANY_ORDER)
        .run(combine::sunion)
        .long_with_pinned_reads(estimates::elements_cost::<400>),
    set("sunionstore", "1.0.0", -3, GROW, STORES_OF_ALL, "Stores the union of sets.")
        .run(combine::sunionstore)
        .long(estimates::elements_cost::<500>),
];
