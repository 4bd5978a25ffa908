//! Command table rows of commands on keys of any type; the handlers are in the submodules.

mod dump;
mod expire;
pub(super) mod flush;
mod keys;
mod object;
mod rename;
mod scan;
mod ttl;

pub(super) use object::reference_count;

use engine::{Categories, Command, DatabaseAccess, Flags, Group, KeySpec, LogRole};

use super::estimates;
use super::rows::*;

family!(generic, Generic, KEYSPACE);
family!(server, Server, KEYSPACE);

const ALL_SHARDS_TIPS: &[&str] = &["request_policy:all_shards", "response_policy:all_succeeded"];
const SUMMED_OVER_SHARDS_TIPS: &[&str] = &["request_policy:multi_shard", "response_policy:agg_sum"];

pub(super) const COMMANDS: &[Command] = &[
    generic(
        "copy",
        "6.2.0",
        -3,
        WRITE_DENYOOM,
        &[KeySpec::single_key(1, key::READ), KeySpec::single_key(2, key::OVERWRITE)],
        "Copies a key's value to another key.",
    )
    .parse_keys(rename::parse_copy_keys)
    .run(rename::copy)
    .with_estimate(estimates::copy_cost::<200>),
    server("dbsize", "1.0.0", 1, READ_FAST, &[], "Returns the number of keys in the database.")
        .tips(&["request_policy:all_shards", "response_policy:agg_sum"])
        .run(scan::dbsize)
        .visits_each_slot(),
    generic("del", "1.0.0", -2, WRITE, REMOVE_KEYS, "Deletes keys.")
        .tips(SUMMED_OVER_SHARDS_TIPS)
        .run(keys::del),
    generic("dump", "2.6.0", 2, READ, READ_KEY, "Returns a serialized form of a key's value.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(dump::dump)
        .with_estimate(estimates::copy_cost::<60>),
    generic("exists", "1.0.0", -2, READ_FAST, METADATA_KEYS, "Returns the number of existing keys.")
        .tips(SUMMED_OVER_SHARDS_TIPS)
        .run(keys::exists),
    generic("expire", "1.0.0", -3, WRITE_FAST, UPDATE_KEY, "Makes a key expire after some seconds.")
        .run(expire::expire),
    generic("expireat", "1.2.0", -3, WRITE_FAST, UPDATE_KEY, "Makes a key expire at a Unix time in seconds.")
        .run(expire::expireat),
    generic(
        "expiretime",
        "7.0.0",
        2,
        READ_FAST,
        READ_KEY,
        "Returns the Unix time in seconds at which a key expires.",
    )
    .run(ttl::expiretime),
    server("flushall", "1.0.0", -1, WRITE.union(Flags::ALL_DBS), &[], "Deletes all keys of all databases.")
        .category(Categories::DANGEROUS)
        .tips(ALL_SHARDS_TIPS)
        .log_role(LogRole::ChangesUnnamedKeys)
        .run(flush::flushall)
        .with_estimate(estimates::flush_cost)
        .locks_all_slots(),
    server("flushdb", "1.0.0", -1, WRITE, &[], "Deletes all keys of the database.")
        .category(Categories::DANGEROUS)
        .tips(ALL_SHARDS_TIPS)
        .log_role(LogRole::ChangesUnnamedKeys)
        .run(flush::flushdb)
        .with_estimate(estimates::flush_cost)
        .locks_all_slots(),
    generic("keys", "1.0.0", 2, READ, &[], "Returns all key names that match a pattern.")
        .category(Categories::DANGEROUS)
        .tips(&["request_policy:all_shards", "nondeterministic_output_order"])
        .may_offload(scan::keys)
        .with_estimate(estimates::key_listing_cost)
        .visits_each_slot(),
    generic("move", "1.0.0", 3, WRITE_FAST, READ_UPDATE_KEY, "Moves a key to another database.")
        .databases(DatabaseAccess::CurrentAndAt(2))
        .run(rename::move_key),
    generic("persist", "2.2.0", 2, WRITE_FAST, UPDATE_KEY, "Removes the expiry of a key.")
        .run(expire::persist),
    generic("pexpire", "2.6.0", -3, WRITE_FAST, UPDATE_KEY, "Makes a key expire after some milliseconds.")
        .run(expire::pexpire),
    generic(
        "pexpireat",
        "2.6.0",
        -3,
        WRITE_FAST,
        UPDATE_KEY,
        "Makes a key expire at a Unix time in milliseconds.",
    )
    .run(expire::pexpireat),
    generic(
        "pexpiretime",
        "7.0.0",
        2,
        READ_FAST,
        READ_KEY,
        "Returns the Unix time in milliseconds at which a key expires.",
    )
    .run(ttl::pexpiretime),
    generic(
        "pttl",
        "2.6.0",
        2,
        READ_FAST,
        READ_KEY,
        "Returns the remaining time to live of a key in milliseconds.",
    )
    .tips(NONDETERMINISTIC_TIPS)
    .run(ttl::pttl),
    generic(
        "randomkey",
        "1.0.0",
        1,
        READ.union(Flags::TOUCHES_ARBITRARY_KEYS),
        &[],
        "Returns the name of a random key.",
    )
    .tips(&["request_policy:all_shards", "response_policy:special", "nondeterministic_output"])
    .run(scan::randomkey)
    .visits_each_slot(),
    generic(
        "rename",
        "1.0.0",
        3,
        WRITE,
        &[KeySpec::single_key(1, key::POP), KeySpec::single_key(2, key::OVERWRITE)],
        "Renames a key and overwrites the new name.",
    )
    .run(rename::rename),
    generic(
        "renamenx",
        "1.0.0",
        3,
        WRITE_FAST,
        &[KeySpec::single_key(1, key::POP), KeySpec::single_key(2, key::CREATE)],
        "Renames a key unless the new name exists.",
    )
    .run(rename::renamenx),
    generic("restore", "2.6.0", -4, WRITE_DENYOOM, OVERWRITE_KEY, "Creates a key from a serialized value.")
        .category(Categories::DANGEROUS)
        .run(dump::restore)
        .with_estimate(estimates::request_cost::<4>),
    server(
        "restore-asking",
        "3.0.0",
        -4,
        WRITE_DENYOOM.union(Flags::ASKING),
        OVERWRITE_KEY,
        "Restores a key during a slot migration; used between servers.",
    )
    .category(Categories::DANGEROUS)
    .run(dump::restore)
    .with_estimate(estimates::request_cost::<4>),
    generic(
        "scan",
        "2.8.0",
        -2,
        READ.union(Flags::TOUCHES_ARBITRARY_KEYS),
        &[],
        "Returns some key names and a cursor for the next ones.",
    )
    .tips(&["nondeterministic_output", "request_policy:special", "response_policy:special"])
    .run(scan::scan)
    .visits_each_slot(),
    server("swapdb", "4.0.0", 3, WRITE_FAST, &[], "Swaps two databases.")
        .category(Categories::DANGEROUS)
        .databases(DatabaseAccess::OnlyAt(&[1, 2]))
        .log_role(LogRole::ChangesUnnamedKeys)
        .run(flush::swapdb)
        .locks_all_slots(),
    generic(
        "touch",
        "3.2.1",
        -2,
        READ_FAST,
        METADATA_KEYS,
        "Returns the number of existing keys and updates their access time.",
    )
    .tips(SUMMED_OVER_SHARDS_TIPS)
    .run(keys::touch),
    generic(
        "ttl",
        "1.0.0",
        2,
        READ_FAST,
        READ_KEY,
        "Returns the remaining time to live of a key in seconds.",
    )
    .tips(NONDETERMINISTIC_TIPS)
    .run(ttl::ttl),
    generic("type", "1.0.0", 2, READ_FAST, METADATA_KEY, "Returns the type of a key's value.")
        .run(keys::type_of),
    generic(
        "unlink",
        "4.0.0",
        -2,
        WRITE_FAST,
        REMOVE_KEYS,
        "Deletes keys and frees large values in the background.",
    )
    .tips(SUMMED_OVER_SHARDS_TIPS)
    .run(keys::del),
    Command::new("object", Group::Generic, "2.2.3", -2, "Inspects the representation of values.")
        .subcommands(OBJECT_SUBCOMMANDS),
];
const OBJECT_SUBCOMMANDS: &[Command] = &[
    generic("encoding", "2.2.3", 3, READ, METADATA_KEY_AT_2, "Returns the encoding of a value.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(object::object_encoding),
    generic(
        "freq",
        "4.0.0",
        3,
        READ,
        METADATA_KEY_AT_2,
        "Returns the access frequency of a key on a logarithmic scale.",
    )
    .tips(NONDETERMINISTIC_TIPS)
    .run(object::object_freq),
    generic("help", "6.2.0", 2, HELP_FLAGS, &[], "Lists the subcommands.").run(object::help),
    generic("idletime", "2.2.3", 3, READ, METADATA_KEY_AT_2, "Returns the idle time of a key in seconds.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(object::object_idletime),
    generic("refcount", "2.2.3", 3, READ, METADATA_KEY_AT_2, "Returns the reference count of a value.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(object::object_refcount),
];
