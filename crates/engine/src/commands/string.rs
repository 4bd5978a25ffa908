//! Strings.

mod counter;
mod get;
mod lcs;
mod multi;
mod options;
mod range;
mod set;

use crate::command::{Categories, Command, Flags, Group};
use crate::keys::{Begin, Find, KeyFlags, KeySpec};

pub(super) const COMMANDS: &[Command] = &[
    Command::new(
        "append",
        Group::String,
        "2.0.0",
        3,
        "Adds text to the end of a string; a missing key counts as empty.",
    )
    .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST))
    .category(Categories::STRING)
    .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::INSERT))])
    .run(range::append),
    Command::new(
        "decr",
        Group::String,
        "1.0.0",
        2,
        "Takes one from the integer at a key; a missing key counts as 0.",
    )
    .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST))
    .category(Categories::STRING)
    .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))])
    .run(counter::decr),
    Command::new(
        "decrby",
        Group::String,
        "1.0.0",
        3,
        "Takes a number from the integer at a key; a missing key counts as 0.",
    )
    .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST))
    .category(Categories::STRING)
    .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))])
    .run(counter::decrby),
    Command::new("delex", Group::String, "8.4.0", -2, "Deletes a key if its string is, or is not, as said.")
        .flags(Flags::FAST.union(Flags::WRITE))
        .category(Categories::STRING)
        .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::DELETE).union(KeyFlags::VARIABLE_FLAGS))])
        .run(get::delex),
    Command::new("delifeq", Group::String, "9.0.0", 3, "Deletes a key if its string equals the given one.")
        .flags(Flags::FAST.union(Flags::WRITE))
        .category(Categories::STRING)
        .keys(&[KeySpec::one(1, KeyFlags::RM.union(KeyFlags::DELETE))])
        .run(get::delifeq),
    Command::new("digest", Group::String, "8.4.0", 2, "Returns the digest of a string.")
        .flags(Flags::FAST.union(Flags::READONLY))
        .category(Categories::STRING)
        .keys(&[KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))])
        .run(get::digest_of),
    Command::new("get", Group::String, "1.0.0", 2, "Returns the string value of a key.")
        .flags(Flags::READONLY.union(Flags::FAST))
        .category(Categories::STRING)
        .keys(&[KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))])
        .run(get::get),
    Command::new(
        "getdel",
        Group::String,
        "6.2.0",
        2,
        "Returns the string value of a key and deletes the key.",
    )
    .flags(Flags::WRITE.union(Flags::FAST))
    .category(Categories::STRING)
    .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::DELETE))])
    .run(get::getdel),
    Command::new(
        "getex",
        Group::String,
        "6.2.0",
        -2,
        "Returns the string value of a key and changes when it expires.",
    )
    .flags(Flags::WRITE.union(Flags::FAST))
    .category(Categories::STRING)
    .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))])
    .run(get::getex),
    Command::new("getrange", Group::String, "2.4.0", 4, "Returns a part of a string.")
        .flags(Flags::READONLY)
        .category(Categories::STRING)
        .keys(&[KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))])
        .run(range::getrange),
    Command::new("getset", Group::String, "1.0.0", 3, "Sets a key to a string and returns what it held.")
        .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST))
        .category(Categories::STRING)
        .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))])
        .run(set::getset),
    Command::new(
        "incr",
        Group::String,
        "1.0.0",
        2,
        "Adds one to the integer at a key; a missing key counts as 0.",
    )
    .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST))
    .category(Categories::STRING)
    .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))])
    .run(counter::incr),
    Command::new(
        "incrby",
        Group::String,
        "1.0.0",
        3,
        "Adds a number to the integer at a key; a missing key counts as 0.",
    )
    .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST))
    .category(Categories::STRING)
    .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))])
    .run(counter::incrby),
    Command::new(
        "incrbyfloat",
        Group::String,
        "2.6.0",
        3,
        "Adds a number to the floating point number at a key.",
    )
    .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST))
    .category(Categories::STRING)
    .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))])
    .run(counter::incrbyfloat),
    Command::new("lcs", Group::String, "7.0.0", -3, "Finds the longest common subsequence of two strings.")
        .flags(Flags::READONLY)
        .category(Categories::STRING)
        .keys(&[KeySpec::range(1, 1, 1, KeyFlags::RO.union(KeyFlags::ACCESS))])
        .run(lcs::lcs),
    Command::new("mget", Group::String, "1.0.0", -2, "Returns the string values of several keys.")
        .flags(Flags::READONLY.union(Flags::FAST))
        .category(Categories::STRING)
        .keys(&[KeySpec::range(1, -1, 1, KeyFlags::RO.union(KeyFlags::ACCESS))])
        .tips(&["request_policy:multi_shard"])
        .run(multi::mget),
    Command::new("mset", Group::String, "1.0.1", -3, "Sets several keys to strings at once.")
        .flags(Flags::WRITE.union(Flags::DENYOOM))
        .category(Categories::STRING)
        .keys(&[KeySpec::range(1, -1, 2, KeyFlags::OW.union(KeyFlags::UPDATE))])
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .run(multi::mset),
    Command::new("msetex", Group::String, "9.1.0", -4, "Sets several keys to strings that expire together.")
        .flags(Flags::WRITE.union(Flags::DENYOOM))
        .category(Categories::STRING)
        .keys(&[KeySpec {
            begin: Begin::Index(1),
            find: Find::KeyNum { count_at: 0, first: 1, step: 2 },
            flags: KeyFlags::OW.union(KeyFlags::UPDATE),
        }])
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .run(multi::msetex),
    Command::new(
        "msetnx",
        Group::String,
        "1.0.1",
        -3,
        "Sets several keys to strings, if none of them is there.",
    )
    .flags(Flags::WRITE.union(Flags::DENYOOM))
    .category(Categories::STRING)
    .keys(&[KeySpec::range(1, -1, 2, KeyFlags::OW.union(KeyFlags::INSERT))])
    .run(multi::msetnx),
    Command::new(
        "psetex",
        Group::String,
        "2.6.0",
        4,
        "Sets a key to a string that expires after some milliseconds.",
    )
    .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::BRIEF))
    .category(Categories::STRING)
    .keys(&[KeySpec::one(1, KeyFlags::OW.union(KeyFlags::UPDATE))])
    .run(set::psetex),
    Command::new("set", Group::String, "1.0.0", -3, "Sets a key to a string, whatever it held.")
        .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::BRIEF))
        .category(Categories::STRING)
        .keys(&[KeySpec::one(
            1,
            KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE).union(KeyFlags::VARIABLE_FLAGS),
        )])
        .run(set::set),
    Command::new(
        "setex",
        Group::String,
        "2.0.0",
        4,
        "Sets a key to a string that expires after some seconds.",
    )
    .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::BRIEF))
    .category(Categories::STRING)
    .keys(&[KeySpec::one(1, KeyFlags::OW.union(KeyFlags::UPDATE))])
    .run(set::setex),
    Command::new("setnx", Group::String, "1.0.0", 3, "Sets a key to a string, if the key is not there.")
        .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST))
        .category(Categories::STRING)
        .keys(&[KeySpec::one(1, KeyFlags::OW.union(KeyFlags::INSERT))])
        .run(set::setnx),
    Command::new("setrange", Group::String, "2.2.0", 4, "Overwrites a part of a string.")
        .flags(Flags::WRITE.union(Flags::DENYOOM))
        .category(Categories::STRING)
        .keys(&[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))])
        .run(range::setrange),
    Command::new("strlen", Group::String, "2.2.0", 2, "Returns the length of a string.")
        .flags(Flags::READONLY.union(Flags::FAST))
        .category(Categories::STRING)
        .keys(&[KeySpec::one(1, KeyFlags::RO)])
        .run(get::strlen),
    Command::new(
        "substr",
        Group::String,
        "1.0.0",
        4,
        "Returns a part of a string; the old name of GETRANGE.",
    )
    .flags(Flags::READONLY)
    .category(Categories::STRING)
    .keys(&[KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))])
    .run(range::getrange),
];
