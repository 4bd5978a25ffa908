//! List commands.
//!
//! A blocking command (BLPOP and similar) shares the code of its non-blocking form and may also end with "no element
//! yet". It is replicated as the non-blocking form.

mod blocking;
mod changing;
mod elements;
mod ends;
mod moving;
mod options;
mod reading;
mod value;

use engine::Command;

use super::estimates;
use super::rows::*;

family!(list, List, LIST);

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
        TAKES_FROM_COUNTED_SECOND,
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
        .run(changing::linsert)
        .long(estimates::elements::<10>),
    list("llen", "1.0.0", 2, READ_FAST, LOOKS, "Returns the number of elements of a list.")
        .run(reading::llen),
    list("lmove", "6.2.0", 5, GROW, MOVES, "Moves an element from an end of a list to an end of another.")
        .run(moving::lmove),
    list(
        "lmpop",
        "7.0.0",
        -4,
        WRITE,
        TAKES_FROM_COUNTED,
        "Takes elements out of the first list that has any.",
    )
    .run(ends::lmpop),
    list("lpop", "1.0.0", -2, WRITE_FAST, TAKES, "Takes the first elements out of a list.").run(ends::lpop),
    list("lpos", "6.0.6", -3, READ, READS, "Returns the indexes of elements of a list by their value.")
        .run(reading::lpos)
        .long(estimates::elements::<10>),
    list("lpush", "1.0.0", -3, GROW_FAST, INSERTS, "Puts elements to the front of a list.").run(ends::lpush),
    list("lpushx", "2.2.0", -3, GROW_FAST, INSERTS, "Puts elements to the front of a list that is there.")
        .run(ends::lpushx),
    list("lrange", "1.0.0", 4, READ, READS, "Returns the elements of a list between two indexes.")
        .run(reading::lrange)
        .long_with_pinned_reads(estimates::between::<33>),
    list("lrem", "1.0.0", 4, WRITE, DELETES, "Takes elements out of a list by their value.")
        .run(changing::lrem)
        .long(estimates::elements::<10>),
    list("lset", "1.0.0", 4, GROW, UPDATES, "Sets an element of a list by its index.").run(changing::lset),
    list("ltrim", "1.0.0", 4, WRITE, DELETES, "Keeps the elements of a list between two indexes.")
        .run(changing::ltrim)
        .long(estimates::trimmed::<10>),
    list("rpop", "1.0.0", -2, WRITE_FAST, TAKES, "Takes the last elements out of a list.").run(ends::rpop),
    list("rpoplpush", "1.2.0", 3, GROW, MOVES, "Moves the last element of a list to the front of another.")
        .run(moving::rpoplpush),
    list("rpush", "1.0.0", -3, GROW_FAST, INSERTS, "Puts elements at the end of a list.").run(ends::rpush),
    list("rpushx", "2.2.0", -3, GROW_FAST, INSERTS, "Puts elements at the end of a list that is there.")
        .run(ends::rpushx),
];
