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
        WRITE_DENYOOM,
        POP_AND_INSERT_KEYS,
        "Moves an element from one end of a list to an end of another, or blocks.",
    )
    .may_block(blocking::blmove),
    list(
        "blmpop",
        "7.0.0",
        -5,
        WRITE,
        POP_COUNTED_KEYS_AT_2,
        "Pops elements from the first non-empty list, or blocks.",
    )
    .may_block(blocking::blmpop),
    list(
        "blpop",
        "2.0.0",
        -3,
        WRITE,
        POP_KEYS,
        "Pops the first element of the first non-empty list, or blocks.",
    )
    .may_block(blocking::blpop),
    list(
        "brpop",
        "2.0.0",
        -3,
        WRITE,
        POP_KEYS,
        "Pops the last element of the first non-empty list, or blocks.",
    )
    .may_block(blocking::brpop),
    list(
        "brpoplpush",
        "2.2.0",
        4,
        WRITE_DENYOOM,
        POP_AND_INSERT_KEYS,
        "Moves the last element of a list to the front of another, or blocks.",
    )
    .may_block(blocking::brpoplpush),
    list("lindex", "1.0.0", 3, READ, READ_KEY, "Returns an element of a list by its index.")
        .run(reading::lindex),
    list("linsert", "2.2.0", 5, WRITE_DENYOOM, INSERT_KEY, "Inserts an element before or after another one.")
        .run(changing::linsert)
        .with_estimate(estimates::elements_cost::<10>),
    list("llen", "1.0.0", 2, READ_FAST, METADATA_KEY, "Returns the number of elements of a list.")
        .run(reading::llen),
    list(
        "lmove",
        "6.2.0",
        5,
        WRITE_DENYOOM,
        POP_AND_INSERT_KEYS,
        "Moves an element from one end of a list to an end of another.",
    )
    .run(moving::lmove),
    list("lmpop", "7.0.0", -4, WRITE, POP_COUNTED_KEYS, "Pops elements from the first non-empty list.")
        .run(ends::lmpop),
    list("lpop", "1.0.0", -2, WRITE_FAST, POP_KEY, "Pops the first elements of a list.").run(ends::lpop),
    list("lpos", "6.0.6", -3, READ, READ_KEY, "Returns the indexes of elements with a value.")
        .run(reading::lpos)
        .with_estimate(estimates::elements_cost::<10>),
    list("lpush", "1.0.0", -3, WRITE_DENYOOM_FAST, INSERT_KEY, "Prepends elements to a list.")
        .run(ends::lpush),
    list("lpushx", "2.2.0", -3, WRITE_DENYOOM_FAST, INSERT_KEY, "Prepends elements to an existing list.")
        .run(ends::lpushx),
    list("lrange", "1.0.0", 4, READ, READ_KEY, "Returns the elements of a list between two indexes.")
        .run(reading::lrange)
        .with_estimate_and_pinned_reads(estimates::range_cost::<33>),
    list("lrem", "1.0.0", 4, WRITE, DELETE_KEY, "Removes elements of a list by value.")
        .run(changing::lrem)
        .with_estimate(estimates::elements_cost::<10>),
    list("lset", "1.0.0", 4, WRITE_DENYOOM, UPDATE_KEY, "Sets an element of a list by its index.")
        .run(changing::lset),
    list("ltrim", "1.0.0", 4, WRITE, DELETE_KEY, "Trims a list to a range of indexes.")
        .run(changing::ltrim)
        .with_estimate(estimates::outside_range_cost::<10>),
    list("rpop", "1.0.0", -2, WRITE_FAST, POP_KEY, "Pops the last elements of a list.").run(ends::rpop),
    list(
        "rpoplpush",
        "1.2.0",
        3,
        WRITE_DENYOOM,
        POP_AND_INSERT_KEYS,
        "Moves the last element of a list to the front of another.",
    )
    .run(moving::rpoplpush),
    list("rpush", "1.0.0", -3, WRITE_DENYOOM_FAST, INSERT_KEY, "Appends elements to a list.")
        .run(ends::rpush),
    list("rpushx", "2.2.0", -3, WRITE_DENYOOM_FAST, INSERT_KEY, "Appends elements to an existing list.")
        .run(ends::rpushx),
];
