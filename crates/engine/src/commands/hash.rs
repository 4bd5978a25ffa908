//! Hashes.
//!
//! A field whose time has come is nobody's: it is treated as missing, and it goes by a cycle of active expiry
//! or when a command writes where it was. What a command logs must not depend on whether the field is still
//! there: a command that decides by it (HSETNX, HINCRBY) is logged as what came of it.

mod expire;
mod fields;
mod get;
mod number;
mod options;
mod random;
mod scan;
mod set;
mod timed;

use crate::command::{Categories, Command, Flags, Group};
use crate::keys::{KeyFlags, KeySpec};

const READ: Flags = Flags::READONLY.union(Flags::FAST);
const WRITE: Flags = Flags::WRITE.union(Flags::FAST);
const GROW: Flags = WRITE.union(Flags::DENYOOM);

const LOOKS: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RO)];
const READS: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))];
const UPDATES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))];
const INSERTS: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::INSERT))];
const DELETES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::DELETE))];
const TAKES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE))];
const CHANGES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))];

/// A row of this family.
const fn hash(
    name: &'static str,
    since: &'static str,
    arity: i8,
    flags: Flags,
    keys: &'static [KeySpec],
    summary: &'static str,
) -> Command {
    Command::new(name, Group::Hash, since, arity, summary)
        .flags(flags)
        .category(Categories::HASH)
        .keys(keys)
        .names_part()
}

pub(super) const COMMANDS: &[Command] = &[
    hash("hdel", "2.0.0", -3, WRITE, DELETES, "Deletes fields of a hash, and the hash with its last field.")
        .run(set::hdel),
    hash("hexists", "2.0.0", 3, READ, LOOKS, "Says whether a hash has a field.").run(get::hexists),
    hash("hexpire", "9.0.0", -6, WRITE, UPDATES, "Makes fields of a hash expire after some seconds.")
        .run(expire::hexpire),
    hash(
        "hexpireat",
        "9.0.0",
        -6,
        WRITE,
        UPDATES,
        "Makes fields of a hash expire at a Unix time in seconds.",
    )
    .run(expire::hexpireat),
    hash(
        "hexpiretime",
        "9.0.0",
        -5,
        READ,
        READS,
        "Returns the Unix times in seconds at which fields of a hash expire.",
    )
    .run(expire::hexpiretime),
    hash("hget", "2.0.0", 3, READ, READS, "Returns the value of a field of a hash.").run(get::hget),
    hash("hgetall", "2.0.0", 2, Flags::READONLY, READS, "Returns all fields of a hash and their values.")
        .tips(&["nondeterministic_output_order"])
        .run(get::hgetall),
    hash("hgetdel", "9.1.0", -5, WRITE, TAKES, "Returns the values of fields of a hash and deletes them.")
        .run(timed::hgetdel),
    hash(
        "hgetex",
        "9.0.0",
        -5,
        WRITE,
        CHANGES,
        "Returns the values of fields of a hash and changes when they expire.",
    )
    .run(timed::hgetex),
    hash("hincrby", "2.0.0", 4, GROW, CHANGES, "Adds a number to the integer in a field of a hash.")
        .run(number::hincrby),
    hash(
        "hincrbyfloat",
        "2.6.0",
        4,
        GROW,
        CHANGES,
        "Adds a number to the floating point number in a field of a hash.",
    )
    .run(number::hincrbyfloat),
    hash("hkeys", "2.0.0", 2, Flags::READONLY, READS, "Returns the names of all fields of a hash.")
        .tips(&["nondeterministic_output_order"])
        .run(get::hkeys),
    hash("hlen", "2.0.0", 2, READ, LOOKS, "Returns the number of fields of a hash.").run(get::hlen),
    hash("hmget", "2.0.0", -3, READ, READS, "Returns the values of several fields of a hash.")
        .run(get::hmget),
    hash("hmset", "2.0.0", -4, GROW, UPDATES, "Sets several fields of a hash; the old name of HSET.")
        .run(set::hmset),
    hash("hpersist", "9.0.0", -5, WRITE, UPDATES, "Makes fields of a hash stay that would have expired.")
        .run(expire::hpersist),
    hash("hpexpire", "9.0.0", -6, WRITE, UPDATES, "Makes fields of a hash expire after some milliseconds.")
        .run(expire::hpexpire),
    hash(
        "hpexpireat",
        "9.0.0",
        -6,
        WRITE,
        UPDATES,
        "Makes fields of a hash expire at a Unix time in milliseconds.",
    )
    .run(expire::hpexpireat),
    hash(
        "hpexpiretime",
        "9.0.0",
        -5,
        READ,
        READS,
        "Returns the Unix times in milliseconds at which fields of a hash expire.",
    )
    .run(expire::hpexpiretime),
    hash("hpttl", "9.0.0", -5, READ, READS, "Returns for how many milliseconds fields of a hash will stay.")
        .run(expire::hpttl),
    hash("hrandfield", "6.2.0", -2, Flags::READONLY, READS, "Returns random fields of a hash.")
        .tips(&["nondeterministic_output"])
        .run(random::hrandfield),
    hash(
        "hscan",
        "2.8.0",
        -3,
        Flags::READONLY,
        READS,
        "Returns some fields of a hash and a cursor for more.",
    )
    .tips(&["nondeterministic_output"])
    .run(scan::hscan),
    hash("hset", "2.0.0", -4, GROW, UPDATES, "Sets fields of a hash, which is made if it is not there.")
        .run(set::hset),
    hash("hsetex", "9.0.0", -6, GROW, INSERTS, "Sets fields of a hash that expire together.")
        .run(timed::hsetex),
    hash("hsetnx", "2.0.0", 4, GROW, INSERTS, "Sets a field of a hash, if the field is not there.")
        .run(set::hsetnx),
    hash("hstrlen", "3.2.0", 3, READ, LOOKS, "Returns the length of the value of a field of a hash.")
        .run(get::hstrlen),
    hash("httl", "9.0.0", -5, READ, READS, "Returns for how many seconds fields of a hash will stay.")
        .run(expire::httl),
    hash("hvals", "2.0.0", 2, Flags::READONLY, READS, "Returns all values of a hash.")
        .tips(&["nondeterministic_output_order"])
        .run(get::hvals),
];
