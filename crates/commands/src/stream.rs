//! Stream commands, including consumer groups.
//!
//! Commands are replicated by their result: an entry with its id, a trim as its exact bound, a delivery to a consumer
//! as XCLAIM with the time. A replica therefore has the same entries and the same pending entries.

mod add;
mod claim;
mod common;
mod group;
mod id;
mod idempotence;
mod info;
mod overdue;
mod pending;
mod progress;
mod range;
mod read;
mod references;
#[cfg(test)]
mod tests;
mod trim;
mod value;

use engine::{Command, Group, KeySpec};

use super::estimates;
use super::rows::*;

family!(stream, Stream, STREAM);

/// Key specs of XREAD: the keys are the first half of the arguments after STREAMS.
const XREAD_KEYS: &[KeySpec] = &[KeySpec::keys_after("STREAMS", 1, 2, key::READ)];
const XREADGROUP_KEYS: &[KeySpec] = &[KeySpec::keys_after("STREAMS", 4, 2, key::READ)];

const UPDATE_DELETE_KEY: &[KeySpec] = &[KeySpec::single_key(1, key::UPDATE.union(key::DELETE))];

/// Creates a container command, which has only subcommands.
const fn container_command(
    name: &'static str,
    summary: &'static str,
    subcommands: &'static [Command],
) -> Command {
    Command::new(name, Group::Stream, "5.0.0", -2, summary).subcommands(subcommands)
}

pub(super) const COMMANDS: &[Command] = &[
    stream("xack", "5.0.0", -4, WRITE_FAST, UPDATE_KEY, "Acknowledges pending entries of a group.")
        .run(pending::xack),
    stream(
        "xackdel",
        "8.2.0",
        -6,
        WRITE_FAST,
        UPDATE_DELETE_KEY,
        "Acknowledges entries of a stream for a group and deletes them.",
    )
    .run(references::xackdel),
    stream(
        "xadd",
        "5.0.0",
        -5,
        WRITE_DENYOOM_FAST,
        UPDATE_KEY,
        "Adds an entry to a stream, which is created if necessary.",
    )
    .tips(NONDETERMINISTIC_TIPS)
    .run(add::xadd),
    stream(
        "xautoclaim",
        "6.2.0",
        -6,
        WRITE_FAST,
        DELETE_KEY,
        "Transfers idle pending entries to a consumer.",
    )
    .tips(NONDETERMINISTIC_TIPS)
    .run(claim::xautoclaim),
    stream(
        "xcfgset",
        "8.6.0",
        -2,
        WRITE_FAST,
        UPDATE_KEY,
        "Configures the deduplication window of idempotent producers.",
    )
    .run(idempotence::xcfgset),
    stream("xclaim", "5.0.0", -6, WRITE_FAST, UPDATE_KEY, "Transfers pending entries to a consumer.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(claim::xclaim),
    stream("xdel", "5.0.0", -3, WRITE_FAST, DELETE_KEY, "Deletes entries of a stream.").run(range::xdel),
    stream(
        "xdelex",
        "8.2.0",
        -5,
        WRITE_FAST,
        DELETE_KEY,
        "Deletes entries of a stream and optionally their pending entries.",
    )
    .run(references::xdelex),
    container_command("xgroup", "Manages consumer groups.", XGROUP_SUBCOMMANDS),
    stream(
        "xidmprecord",
        "8.6.2",
        5,
        WRITE_DENYOOM_FAST,
        UPDATE_KEY,
        "Records an entry as a message of an idempotent producer.",
    )
    .run(idempotence::xidmprecord),
    container_command("xinfo", "Describes a stream, its groups and their consumers.", XINFO_SUBCOMMANDS),
    stream("xlen", "5.0.0", 2, READ_FAST, METADATA_KEY, "Returns the number of entries of a stream.")
        .run(range::xlen),
    stream("xpending", "5.0.0", -3, READ, READ_KEY, "Returns the pending entries of a group.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(pending::xpending),
    stream("xrange", "5.0.0", -4, READ, READ_KEY, "Returns the entries of a stream between two ids.")
        .run(range::xrange)
        .with_estimate_and_pinned_reads(estimates::entries_cost::<100>),
    stream(
        "xread",
        "5.0.0",
        -4,
        READ,
        XREAD_KEYS,
        "Returns the entries after given ids, or blocks until there are any.",
    )
    .parse_keys(read::parse_xread_keys)
    .may_block(read::xread),
    stream(
        "xreadgroup",
        "5.0.0",
        -7,
        WRITE,
        XREADGROUP_KEYS,
        "Returns new entries of a group, or a consumer's pending ones.",
    )
    .parse_keys(read::parse_xread_keys)
    .may_block(read::xreadgroup),
    stream(
        "xrevrange",
        "5.0.0",
        -4,
        READ,
        READ_KEY,
        "Returns the entries of a stream between two ids in reverse order.",
    )
    .run(range::xrevrange)
    .with_estimate_and_pinned_reads(estimates::entries_cost::<100>),
    stream("xsetid", "5.0.0", -3, WRITE_DENYOOM_FAST, UPDATE_KEY, "Sets the last id of a stream.")
        .run(add::xsetid),
    stream("xtrim", "5.0.0", -4, WRITE, DELETE_KEY, "Deletes the first entries of a stream.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(trim::xtrim),
];

const XGROUP_SUBCOMMANDS: &[Command] = &[
    stream("create", "5.0.0", -5, WRITE_DENYOOM, INSERT_KEY_AT_2, "Creates a consumer group.")
        .run(group::create),
    stream("createconsumer", "6.2.0", 5, WRITE_DENYOOM, INSERT_KEY_AT_2, "Creates a consumer in a group.")
        .run(group::create_consumer),
    stream("delconsumer", "5.0.0", 5, WRITE, DELETE_KEY_AT_2, "Deletes a consumer from a group.")
        .run(group::delete_consumer),
    stream("destroy", "5.0.0", 4, WRITE, DELETE_KEY_AT_2, "Deletes a consumer group.").run(group::destroy),
    stream("help", "5.0.0", 2, HELP_FLAGS, &[], "Describes the subcommands.").run(group::help),
    stream("setid", "5.0.0", -5, WRITE, UPDATE_KEY_AT_2, "Sets the last delivered id of a group.")
        .run(group::set_id),
];

const XINFO_SUBCOMMANDS: &[Command] = &[
    stream("consumers", "5.0.0", 4, READ, READ_KEY_AT_2, "Describes the consumers of a group.")
        .tips(NONDETERMINISTIC_TIPS)
        .run(info::reply_consumers),
    stream("groups", "5.0.0", 3, READ, READ_KEY_AT_2, "Describes the groups of a stream.")
        .run(info::reply_groups),
    stream("help", "5.0.0", 2, HELP_FLAGS, &[], "Describes the subcommands.").run(info::help),
    stream("stream", "5.0.0", -3, READ, READ_KEY_AT_2, "Describes a stream.").run(info::reply_stream_info),
];
