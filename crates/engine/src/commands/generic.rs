//! Commands on keys of any type.

mod dump;
mod expire;
mod flush;
mod keys;
mod object;
mod rename;
mod scan;
mod ttl;

pub(super) use object::references;

use crate::command::{Categories, Command, Databases, Flags, Group};
use crate::keys::{KeyFlags, KeySpec};

pub(super) const COMMANDS: &[Command] = &[
    Command::new("copy", Group::Generic, "6.2.0", -3, "Copies a key's value to another key.")
        .flags(Flags::WRITE.union(Flags::DENYOOM))
        .category(Categories::KEYSPACE)
        .keys(&[
            KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS)),
            KeySpec::one(2, KeyFlags::OW.union(KeyFlags::UPDATE)),
        ])
        .databases(Databases::AlsoBehind("db"))
        .run(rename::copy),
    Command::new("dbsize", Group::Server, "1.0.0", 1, "Returns the number of keys in the database.")
        .flags(Flags::READONLY.union(Flags::FAST))
        .category(Categories::KEYSPACE)
        .tips(&["request_policy:all_shards", "response_policy:agg_sum"])
        .run(scan::dbsize)
        .each_slot(),
    Command::new("del", Group::Generic, "1.0.0", -2, "Deletes keys.")
        .flags(Flags::WRITE)
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::range(1, -1, 1, KeyFlags::RM.union(KeyFlags::DELETE))])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .run(keys::del),
    Command::new("dump", Group::Generic, "2.6.0", 2, "Returns a serialized form of a key's value.")
        .flags(Flags::READONLY)
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))])
        .tips(&["nondeterministic_output"])
        .run(dump::dump),
    Command::new("exists", Group::Generic, "1.0.0", -2, "Counts how many of the keys are there.")
        .flags(Flags::READONLY.union(Flags::FAST))
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::range(1, -1, 1, KeyFlags::RO)])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .run(keys::exists),
    Command::new("expire", Group::Generic, "1.0.0", -3, "Makes a key expire after some seconds.")
        .flags(Flags::WRITE.union(Flags::FAST))
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))])
        .run(expire::expire),
    Command::new("expireat", Group::Generic, "1.2.0", -3, "Makes a key expire at a Unix time in seconds.")
        .flags(Flags::WRITE.union(Flags::FAST))
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))])
        .run(expire::expireat),
    Command::new(
        "expiretime",
        Group::Generic,
        "7.0.0",
        2,
        "Returns the Unix time in seconds at which a key expires.",
    )
    .flags(Flags::READONLY.union(Flags::FAST))
    .category(Categories::KEYSPACE)
    .keys(&[KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))])
    .run(ttl::expiretime),
    Command::new("flushall", Group::Server, "1.0.0", -1, "Deletes all keys of all databases.")
        .flags(Flags::WRITE.union(Flags::ALL_DBS))
        .category(Categories::DANGEROUS.union(Categories::KEYSPACE))
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .run(flush::flushall)
        .all_slots(),
    Command::new("flushdb", Group::Server, "1.0.0", -1, "Deletes all keys of the database.")
        .flags(Flags::WRITE)
        .category(Categories::DANGEROUS.union(Categories::KEYSPACE))
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .run(flush::flushdb)
        .all_slots(),
    Command::new("keys", Group::Generic, "1.0.0", 2, "Returns all key names that match a pattern.")
        .flags(Flags::READONLY)
        .category(Categories::DANGEROUS.union(Categories::KEYSPACE))
        .tips(&["request_policy:all_shards", "nondeterministic_output_order"])
        .run(scan::keys)
        .each_slot(),
    Command::new("move", Group::Generic, "1.0.0", 3, "Moves a key to another database.")
        .flags(Flags::WRITE.union(Flags::FAST))
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))])
        .databases(Databases::Also(2))
        .run(rename::move_key),
    Command::new("persist", Group::Generic, "2.2.0", 2, "Makes a key stay that would have expired.")
        .flags(Flags::WRITE.union(Flags::FAST))
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))])
        .run(expire::persist),
    Command::new("pexpire", Group::Generic, "2.6.0", -3, "Makes a key expire after some milliseconds.")
        .flags(Flags::WRITE.union(Flags::FAST))
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))])
        .run(expire::pexpire),
    Command::new(
        "pexpireat",
        Group::Generic,
        "2.6.0",
        -3,
        "Makes a key expire at a Unix time in milliseconds.",
    )
    .flags(Flags::WRITE.union(Flags::FAST))
    .category(Categories::KEYSPACE)
    .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))])
    .run(expire::pexpireat),
    Command::new(
        "pexpiretime",
        Group::Generic,
        "7.0.0",
        2,
        "Returns the Unix time in milliseconds at which a key expires.",
    )
    .flags(Flags::READONLY.union(Flags::FAST))
    .category(Categories::KEYSPACE)
    .keys(&[KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))])
    .run(ttl::pexpiretime),
    Command::new("pttl", Group::Generic, "2.6.0", 2, "Returns for how many milliseconds a key will stay.")
        .flags(Flags::READONLY.union(Flags::FAST))
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))])
        .tips(&["nondeterministic_output"])
        .run(ttl::pttl),
    Command::new("randomkey", Group::Generic, "1.0.0", 1, "Returns the name of a random key.")
        .flags(Flags::READONLY.union(Flags::TOUCHES_ARBITRARY_KEYS))
        .category(Categories::KEYSPACE)
        .tips(&["request_policy:all_shards", "response_policy:special", "nondeterministic_output"])
        .run(scan::randomkey)
        .each_slot(),
    Command::new("rename", Group::Generic, "1.0.0", 3, "Gives a key another name, whatever had that name.")
        .flags(Flags::WRITE)
        .category(Categories::KEYSPACE)
        .keys(&[
            KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE)),
            KeySpec::one(2, KeyFlags::OW.union(KeyFlags::UPDATE)),
        ])
        .run(rename::rename),
    Command::new("renamenx", Group::Generic, "1.0.0", 3, "Gives a key another name, if no key has it.")
        .flags(Flags::WRITE.union(Flags::FAST))
        .category(Categories::KEYSPACE)
        .keys(&[
            KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE)),
            KeySpec::one(2, KeyFlags::OW.union(KeyFlags::INSERT)),
        ])
        .run(rename::renamenx),
    Command::new("restore", Group::Generic, "2.6.0", -4, "Makes a key from the serialized form of a value.")
        .flags(Flags::WRITE.union(Flags::DENYOOM))
        .category(Categories::DANGEROUS.union(Categories::KEYSPACE))
        .keys(&[KeySpec::one(1, KeyFlags::OW.union(KeyFlags::UPDATE))])
        .run(dump::restore),
    Command::new(
        "restore-asking",
        Group::Server,
        "3.0.0",
        -4,
        "RESTORE as nodes of a cluster send it for a slot on the move.",
    )
    .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::ASKING))
    .category(Categories::DANGEROUS.union(Categories::KEYSPACE))
    .keys(&[KeySpec::one(1, KeyFlags::OW.union(KeyFlags::UPDATE))])
    .run(dump::restore),
    Command::new(
        "scan",
        Group::Generic,
        "2.8.0",
        -2,
        "Returns some key names and a cursor for the next ones.",
    )
    .flags(Flags::READONLY.union(Flags::TOUCHES_ARBITRARY_KEYS))
    .category(Categories::KEYSPACE)
    .tips(&["nondeterministic_output", "request_policy:special", "response_policy:special"])
    .run(scan::scan)
    .each_slot(),
    Command::new("swapdb", Group::Server, "4.0.0", 3, "Exchanges two databases.")
        .flags(Flags::WRITE.union(Flags::FAST))
        .category(Categories::DANGEROUS.union(Categories::KEYSPACE))
        .databases(Databases::Only(&[1, 2]))
        .run(flush::swapdb)
        .all_slots(),
    Command::new(
        "touch",
        Group::Generic,
        "3.2.1",
        -2,
        "Counts how many of the keys are there and marks them as used.",
    )
    .flags(Flags::READONLY.union(Flags::FAST))
    .category(Categories::KEYSPACE)
    .keys(&[KeySpec::range(1, -1, 1, KeyFlags::RO)])
    .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
    .run(keys::touch),
    Command::new("ttl", Group::Generic, "1.0.0", 2, "Returns for how many seconds a key will stay.")
        .flags(Flags::READONLY.union(Flags::FAST))
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))])
        .tips(&["nondeterministic_output"])
        .run(ttl::ttl),
    Command::new("type", Group::Generic, "1.0.0", 2, "Returns the type of a key's value.")
        .flags(Flags::READONLY.union(Flags::FAST))
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::one(1, KeyFlags::RO)])
        .run(keys::type_of),
    Command::new("unlink", Group::Generic, "4.0.0", -2, "Deletes keys; large values are freed later.")
        .flags(Flags::WRITE.union(Flags::FAST))
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::range(1, -1, 1, KeyFlags::RM.union(KeyFlags::DELETE))])
        .tips(&["request_policy:multi_shard", "response_policy:agg_sum"])
        .run(keys::del),
    Command::new("object", Group::Generic, "2.2.3", -2, "Looks inside keys.").subcommands(OBJECT),
];
const OBJECT: &[Command] = &[
    Command::new("encoding", Group::Generic, "2.2.3", 3, "Returns how a key's value is kept in memory.")
        .flags(Flags::READONLY)
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::one(2, KeyFlags::RO)])
        .tips(&["nondeterministic_output"])
        .run(object::object_encoding),
    Command::new(
        "freq",
        Group::Generic,
        "4.0.0",
        3,
        "Returns how often a key has been used, on a logarithmic scale.",
    )
    .flags(Flags::READONLY)
    .category(Categories::KEYSPACE)
    .keys(&[KeySpec::one(2, KeyFlags::RO)])
    .tips(&["nondeterministic_output"])
    .run(object::freq),
    Command::new("help", Group::Generic, "6.2.0", 2, "Lists the subcommands.")
        .flags(Flags::LOADING.union(Flags::STALE))
        .category(Categories::KEYSPACE)
        .run(object::help),
    Command::new(
        "idletime",
        Group::Generic,
        "2.2.3",
        3,
        "Returns for how many seconds a key has not been used.",
    )
    .flags(Flags::READONLY)
    .category(Categories::KEYSPACE)
    .keys(&[KeySpec::one(2, KeyFlags::RO)])
    .tips(&["nondeterministic_output"])
    .run(object::idletime),
    Command::new("refcount", Group::Generic, "2.2.3", 3, "Returns how many references a key's value has.")
        .flags(Flags::READONLY)
        .category(Categories::KEYSPACE)
        .keys(&[KeySpec::one(2, KeyFlags::RO)])
        .tips(&["nondeterministic_output"])
        .run(object::refcount),
];
