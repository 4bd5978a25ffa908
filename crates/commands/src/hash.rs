//! Hash commands.
//!
//! An expired field counts as missing. The active expiry cycle removes it, or the next command that writes to it. The
//! effect of a command must not depend on whether an expired field still exists physically: a command that depends on
//! the field's existence (HSETNX, HINCRBY) is replicated as its result.

mod expire;
pub(super) mod fields;
mod get;
mod number;
mod options;
mod random;
mod scan;
mod set;
mod timed;
mod value;

use engine::Command;

use super::estimates;
use super::rows::*;

family!(hash, Hash, HASH, names_element);

pub(super) const COMMANDS: &[Command] = &[
    hash(
        "hdel",
        "2.0.0",
        -3,
        WRITE_FAST,
        DELETE_KEY,
        "Deletes fields of a hash, and the hash with its last field.",
    )
    .run(set::hdel),
    hash("hexists", "2.0.0", 3, READ_FAST, METADATA_KEY, "Checks whether a hash has a field.")
        .run(get::hexists),
    hash("hexpire", "9.0.0", -6, WRITE_FAST, UPDATE_KEY, "Makes fields of a hash expire after some seconds.")
        .run(expire::hexpire),
    hash(
        "hexpireat",
        "9.0.0",
        -6,
        WRITE_FAST,
        UPDATE_KEY,
        "Makes fields of a hash expire at a Unix time in seconds.",
    )
    .run(expire::hexpireat),
    hash(
        "hexpiretime",
        "9.0.0",
        -5,
        READ_FAST,
        READ_KEY,
        "Returns the Unix times in seconds at which fields of a hash expire.",
    )
    .run(expire::hexpiretime),
    hash("hget", "2.0.0", 3, READ_FAST, READ_KEY, "Returns the value of a field of a hash.").run(get::hget),
    hash("hgetall", "2.0.0", 2, READ, READ_KEY, "Returns all fields of a hash and their values.")
        .tips(NONDETERMINISTIC_ORDER_TIPS)
        .run(get::hgetall)
        .with_estimate_and_pinned_reads(estimates::elements_cost::<60>),
    hash(
        "hgetdel",
        "9.1.0",
        -5,
        WRITE_FAST,
        POP_KEY,
        "Returns the values of fields of a hash and deletes them.",
    )
    .run(timed::hgetdel),
    hash(
        "hgetex",
        "9.0.0",
        -5,
        WRITE_FAST,
        READ_UPDATE_KEY,
        "Returns the values of hash fields and changes their expiry.",
    )
    .run(timed::hgetex),
    hash(
        "hincrby",
        "2.0.0",
        4,
        WRITE_DENYOOM_FAST,
        READ_UPDATE_KEY,
        "Adds a number to the integer in a field of a hash.",
    )
    .run(number::hincrby),
    hash(
        "hincrbyfloat",
        "2.6.0",
        4,
        WRITE_DENYOOM_FAST,
        READ_UPDATE_KEY,
        "Adds a number to the floating point number in a field of a hash.",
    )
    .run(number::hincrbyfloat),
    hash("hkeys", "2.0.0", 2, READ, READ_KEY, "Returns the names of all fields of a hash.")
        .tips(NONDETERMINISTIC_ORDER_TIPS)
        .run(get::hkeys)
        .with_estimate_and_pinned_reads(estimates::elements_cost::<40>),
    hash("hlen", "2.0.0", 2, READ_FAST, METADATA_KEY, "Returns the number of fields of a hash.")
        .run(get::hlen),
    hash("hmget", "2.0.0", -3, READ_FAST, READ_KEY, "Returns the values of several fields of a hash.")
        .run(get::hmget),
    hash(
        "hmset",
        "2.0.0",
        -4,
        WRITE_DENYOOM_FAST,
        UPDATE_KEY,
        "Sets several fields of a hash; the old name of HSET.",
    )
    .run(set::hmset),
    hash("hpersist", "9.0.0", -5, WRITE_FAST, UPDATE_KEY, "Removes the expiry of hash fields.")
        .run(expire::hpersist),
    hash(
        "hpexpire",
        "9.0.0",
        -6,
        WRITE_FAST,
        UPDATE_KEY,
        "Makes fields of a hash expire after some milliseconds.",
    )
    .run(expire::hpexpire),
    hash(
        "hpexpireat",
        "9.0.0",
        -6,
        WRITE_FAST,
        UPDATE_KEY,
        "Makes fields of a hash expire at a Unix time in milliseconds.",
    )
    .run(expire::hpexpireat),
    hash(
        "hpexpiretime",
        "9.0.0",
        -5,
        READ_FAST,
        READ_KEY,
        "Returns the Unix times in milliseconds at which fields of a hash expire.",
    )
    .run(expire::hpexpiretime),
    hash(
        "hpttl",
        "9.0.0",
        -5,
        READ_FAST,
        READ_KEY,
        "Returns the remaining time to live of hash fields in milliseconds.",
    )
    .run(expire::hpttl),
    hash("hrandfield", "6.2.0", -2, READ, READ_KEY, "Returns random fields of a hash.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(random::hrandfield)
        .with_estimate(estimates::count_cost::<100>),
    hash("hscan", "2.8.0", -3, READ, READ_KEY, "Returns some fields of a hash and a cursor for more.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(scan::hscan),
    hash(
        "hset",
        "2.0.0",
        -4,
        WRITE_DENYOOM_FAST,
        UPDATE_KEY,
        "Sets fields of a hash, which is created if necessary.",
    )
    .run(set::hset),
    hash(
        "hsetex",
        "9.0.0",
        -6,
        WRITE_DENYOOM_FAST,
        INSERT_KEY,
        "Sets fields of a hash that expire together.",
    )
    .run(timed::hsetex),
    hash("hsetnx", "2.0.0", 4, WRITE_DENYOOM_FAST, INSERT_KEY, "Sets a field of a hash unless it exists.")
        .run(set::hsetnx),
    hash(
        "hstrlen",
        "3.2.0",
        3,
        READ_FAST,
        METADATA_KEY,
        "Returns the length of the value of a field of a hash.",
    )
    .run(get::hstrlen),
    hash(
        "httl",
        "9.0.0",
        -5,
        READ_FAST,
        READ_KEY,
        "Returns the remaining time to live of hash fields in seconds.",
    )
    .run(expire::httl),
    hash("hvals", "2.0.0", 2, READ, READ_KEY, "Returns all values of a hash.")
        .tips(NONDETERMINISTIC_ORDER_TIPS)
        .run(get::hvals)
        .with_estimate_and_pinned_reads(estimates::elements_cost::<40>),
];
