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
    set("sadd", "1.0.0", -3, GROW_FAST, INSERTS, "Adds members to a set, which is made if it is not there.")
        .names_element()
        .run(change::sadd),
    set("scard", "1.0.0", 2, READ_FAST, LOOKS, "Returns the number of members of a set.").run(read::scard),
    set("sdiff", "1.0.0", -2, READ, READS_ALL, "Returns what the first set has and no other one.")
        .tips(ANY_ORDER)
        .run(combine::sdiff)
        .long(estimates::elements::<200>),
    set("sdiffstore", "1.0.0", -3, GROW, STORES_OF_ALL, "Stores what the first set has and no other one.")
        .run(combine::sdiffstore)
        .long(estimates::elements::<300>),
    set("sinter", "1.0.0", -2, READ, READS_ALL, "Returns what all sets have.")
        .tips(ANY_ORDER)
        .run(combine::sinter)
        .long(estimates::smallest::<100>),
    set("sintercard", "7.0.0", -3, READ, READS_COUNTED, "Returns how many members all sets have.")
        .run(combine::sintercard)
        .long(estimates::smallest::<100>),
    set("sinterstore", "1.0.0", -3, GROW, STORES_OF_ALL, "Stores what all sets have.")
        .run(combine::sinterstore)
        .long(estimates::smallest::<200>),
    set("sismember", "1.0.0", 3, READ_FAST, LOOKS, "Says whether a set has a member.")
        .names_element()
        .run(read::sismember),
    set("smembers", "1.0.0", 2, READ, READS, "Returns all members of a set.")
        .tips(ANY_ORDER)
        .run(read::smembers)
        .long_with_pinned_reads(estimates::elements::<40>),
    set("smismember", "6.2.0", -3, READ_FAST, READS, "Says of several members whether a set has them.")
        .names_element()
        .run(read::smismember),
    set("smove", "1.0.0", 4, WRITE_FAST, MOVES, "Moves a member from one set to another.").run(change::smove),
    set("spop", "1.0.0", -2, WRITE_FAST, TAKES, "Removes random members of a set and returns them.")
        .tips(VARIES)
        .run(pop::spop),
    set("srandmember", "1.0.0", -2, READ, READS, "Returns random members of a set.")
        .tips(VARIES)
        .run(random::srandmember)
        .long(estimates::counted::<100>),
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
    set("sunion", "1.0.0", -2, READ, READS_ALL, "Returns what any of the sets has.")
        .tips(ANY_ORDER)
        .run(combine::sunion)
        .long_with_pinned_reads(estimates::elements::<400>),
    set("sunionstore", "1.0.0", -3, GROW, STORES_OF_ALL, "Stores what any of the sets has.")
        .run(combine::sunionstore)
        .long(estimates::elements::<500>),
];
