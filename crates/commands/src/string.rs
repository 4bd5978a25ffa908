//! Command table rows of the string commands; the handlers are in the submodules.

mod counter;
mod get;
mod increx;
mod lcs;
mod multi;
mod options;
mod range;
mod set;
mod value;

use engine::{BeginSearch, Command, FindKeys, Flags, KeySpec};

use super::rows::*;

family!(string, String, STRING);

const SPLIT_OVER_SHARDS_TIPS: &[&str] = &["request_policy:multi_shard", "response_policy:all_succeeded"];

pub(super) const COMMANDS: &[Command] = &[
    string(
        "append",
        "2.0.0",
        3,
        WRITE_DENYOOM_FAST,
        INSERT_KEY,
        "Adds text to the end of a string; a missing key counts as empty.",
    )
    .run(range::append),
    string(
        "decr",
        "1.0.0",
        2,
        WRITE_DENYOOM_FAST,
        READ_UPDATE_KEY,
        "Decrements the integer at a key by one; a missing key counts as 0.",
    )
    .run(counter::decr),
    string(
        "decrby",
        "1.0.0",
        3,
        WRITE_DENYOOM_FAST,
        READ_UPDATE_KEY,
        "Decrements the integer at a key by a number; a missing key counts as 0.",
    )
    .run(counter::decrby),
    string(
        "delex",
        "8.4.0",
        -2,
        WRITE_FAST,
        &[KeySpec::single_key(1, with_variable_flags(key::DELETE))],
        "Deletes a key if its value meets a condition.",
    )
    .run(get::delex),
    string(
        "delifeq",
        "9.0.0",
        3,
        WRITE_FAST,
        &[KeySpec::single_key(1, key::REMOVE)],
        "Deletes a key if its value equals the given string.",
    )
    .run(get::delifeq),
    string("digest", "8.4.0", 2, READ_FAST, READ_KEY, "Returns the digest of a string.")
        .run(get::reply_digest),
    string("get", "1.0.0", 2, READ_FAST, READ_KEY, "Returns the string value of a key.").run(get::get),
    string(
        "getdel",
        "6.2.0",
        2,
        WRITE_FAST,
        POP_KEY,
        "Returns the string value of a key and deletes the key.",
    )
    .run(get::getdel),
    string(
        "getex",
        "6.2.0",
        -2,
        WRITE_FAST,
        READ_UPDATE_KEY,
        "Returns the string value of a key and changes its expiry.",
    )
    .run(get::getex),
    string("getrange", "2.4.0", 4, READ, READ_KEY, "Returns a part of a string.").run(range::getrange),
    string(
        "getset",
        "1.0.0",
        3,
        WRITE_DENYOOM_FAST,
        READ_UPDATE_KEY,
        "Sets a key to a string and returns the old value.",
    )
    .run(set::getset),
    string(
        "incr",
        "1.0.0",
        2,
        WRITE_DENYOOM_FAST,
        READ_UPDATE_KEY,
        "Increments the integer at a key by one; a missing key counts as 0.",
    )
    .run(counter::incr),
    string(
        "incrby",
        "1.0.0",
        3,
        WRITE_DENYOOM_FAST,
        READ_UPDATE_KEY,
        "Adds a number to the integer at a key; a missing key counts as 0.",
    )
    .run(counter::incrby),
    string(
        "incrbyfloat",
        "2.6.0",
        3,
        WRITE_DENYOOM_FAST,
        READ_UPDATE_KEY,
        "Adds a number to the floating point number at a key.",
    )
    .run(counter::incrbyfloat),
    string(
        "increx",
        "8.8.0",
        -2,
        WRITE_DENYOOM_FAST,
        READ_UPDATE_KEY,
        "Increments a number within bounds and sets the key's expiry.",
    )
    .run(increx::increx),
    string(
        "lcs",
        "7.0.0",
        -3,
        READ,
        &[KeySpec::key_range(1, 1, 1, key::READ)],
        "Finds the longest common subsequence of two strings.",
    )
    .run(lcs::lcs),
    string("mget", "1.0.0", -2, READ_FAST, READ_KEYS, "Returns the string values of several keys.")
        .tips(&["request_policy:multi_shard"])
        .run(multi::mget),
    string(
        "mset",
        "1.0.1",
        -3,
        WRITE_DENYOOM,
        &[KeySpec::key_range(1, -1, 2, key::OVERWRITE)],
        "Sets several keys to strings at once.",
    )
    .tips(SPLIT_OVER_SHARDS_TIPS)
    .run(multi::mset),
    string(
        "msetex",
        "9.1.0",
        -4,
        WRITE_DENYOOM,
        &[KeySpec {
            search_start: BeginSearch::Index(1),
            find_keys: FindKeys::KeyNum { count_position: 0, first_key_position: 1, step: 2 },
            flags: key::OVERWRITE,
        }],
        "Sets several keys to strings that expire together.",
    )
    .tips(SPLIT_OVER_SHARDS_TIPS)
    .run(multi::msetex),
    string(
        "msetnx",
        "1.0.1",
        -3,
        WRITE_DENYOOM,
        &[KeySpec::key_range(1, -1, 2, key::CREATE)],
        "Sets several keys to strings if none of them exists.",
    )
    .run(multi::msetnx),
    string(
        "psetex",
        "2.6.0",
        4,
        WRITE_DENYOOM.union(Flags::LINEAR_IN_ARGS),
        OVERWRITE_KEY,
        "Sets a key to a string that expires after some milliseconds.",
    )
    .run(set::psetex),
    string(
        "set",
        "1.0.0",
        -3,
        WRITE_DENYOOM.union(Flags::LINEAR_IN_ARGS),
        &[KeySpec::single_key(1, with_variable_flags(key::READ_UPDATE))],
        "Sets a key to a string and overwrites any value.",
    )
    .key_use(set::key_flags)
    .run(set::set),
    string(
        "setex",
        "2.0.0",
        4,
        WRITE_DENYOOM.union(Flags::LINEAR_IN_ARGS),
        OVERWRITE_KEY,
        "Sets a key to a string that expires after some seconds.",
    )
    .run(set::setex),
    string(
        "setnx",
        "1.0.0",
        3,
        WRITE_DENYOOM_FAST,
        &[KeySpec::single_key(1, key::CREATE)],
        "Sets a key to a string unless it exists.",
    )
    .run(set::setnx),
    string("setrange", "2.2.0", 4, WRITE_DENYOOM, UPDATE_KEY, "Overwrites a part of a string.")
        .run(range::setrange),
    string("strlen", "2.2.0", 2, READ_FAST, METADATA_KEY, "Returns the length of a string.").run(get::strlen),
    string("substr", "1.0.0", 4, READ, READ_KEY, "Returns a part of a string; the old name of GETRANGE.")
        .run(range::getrange),
];
