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

/// Key specs: the first half of the arguments after STREAMS.
const READS_STREAMS: &[KeySpec] = &[KeySpec::keys_after("STREAMS", 1, 2, key::READ)];
const READS_STREAMS_OF_GROUP: &[KeySpec] = &[KeySpec::keys_after("STREAMS", 4, 2, key::READ)];

const UPDATES_AND_DELETES: &[KeySpec] = &[KeySpec::single_key(1, key::UPDATE.union(key::DELETE))];

/// A container command with subcommands only.
const fn container(name: &'static str, summary: &'static str, subcommands: &'static [Command]) -> Command {
    Command::new(name, Group::Stream, "5.0.0", -2, summary).subcommands(subcommands)
}

pub(super) const COMMANDS: &[Command] = &[
    stream("xack", "5.0.0", -4, WRITE_FAST, UPDATES, "Acknowledges pending entries of a group.")
        .run(pending::xack),
    stream(
        "xackdel",
        "8.2.0",
        -6,
        WRITE_FAST,
        UPDATES_AND_DELETES,
        "Acknowledges entries of a stream for a group and deletes them.",
    )
    .run(references::xackdel),
    stream(
        "xadd",
        "5.0.0",
        -5,
        GROW_FAST,
        UPDATES,
        "Adds an entry to a stream, which is created if necessary.",
    )
    .tips(VARIES)
    .run(add::xadd),
    stream("xautoclaim", "6.2.0", -6, WRITE_FAST, DELETES, "Transfers idle pending entries to a consumer.")
        .tips(VARIES)
        .run(claim::xautoclaim),
    stream(
        "xcfgset",
        "8.6.0",
        -2,
        WRITE_FAST,
        UPDATES,
        "Configures the deduplication window of idempotent producers.",
    )
    .run(idempotence::xcfgset),
    stream("xclaim", "5.0.0", -6, WRITE_FAST, UPDATES, "Transfers pending entries to a consumer.")
        .tips(VARIES)
        .run(claim::xclaim),
    stream("xdel", "5.0.0", -3, WRITE_FAST, DELETES, "Deletes entries of a stream.").run(range::xdel),
    stream(
        "xdelex",
        "8.2.0",
        -5,
        WRITE_FAST,
        DELETES,
        "Deletes entries of a stream and optionally their pending entries.",
    )
    .run(references::xdelex),
    container("xgroup", "Manages consumer groups.", GROUP),
    stream(
        "xidmprecord",
        "8.6.2",
        5,
        GROW_FAST,
        UPDATES,
        "Records an entry as a message of an idempotent producer.",
    )
    .run(idempotence::xidmprecord),
    container("xinfo", "Describes a stream, its groups and their consumers.", INFO),
    stream("xlen", "5.0.0", 2, READ_FAST, LOOKS, "Returns the number of entries of a stream.")
        .run(range::xlen),
    stream("xpending", "5.0.0", -3, READ, READS, "Returns the pending entries of a group.")
        .tips(VARIES)
        .run(pending::xpending),
    stream("xrange", "5.0.0", -4, READ, READS, "Returns the entries of a stream between two ids.")
        .run(range::xrange)
        .long_with_pinned_reads(estimates::entries_cost::<100>),
    stream(
        "xread",
        "5.0.0",
        -4,
        READ,
        READS_STREAMS,
        "Returns the entries after given ids, or blocks until there are any.",
    )
    .parse_keys(read::keys_of_xread)
    .may_block(read::xread),
    stream(
        "xreadgroup",
        "5.0.0",
        -7,
        WRITE,
        READS_STREAMS_OF_GROUP,
        "Returns new entries of a group, or a consumer's pending ones.",
    )
    .parse_keys(read::keys_of_xread)
    .may_block(read::xreadgroup),
    stream(
        "xrevrange",
        "5.0.0",
        -4,
        READ,
        READS,
        "Returns the entries of a stream between two ids in reverse order.",
    )
    .run(range::xrevrange)
    .long_with_pinned_reads(estimates::entries_cost::<100>),
    stream("xsetid", "5.0.0", -3, GROW_FAST, UPDATES, "Sets the last id of a stream.").run(add::xsetid),
    stream("xtrim", "5.0.0", -4, WRITE, DELETES, "Deletes the first entries of a stream.")
        .tips(VARIES)
        .run(trim::xtrim),
];

const GROUP: &[Command] = &[
    stream("create", "5.0.0", -5, GROW, INSERTS_SECOND, "Creates a consumer group.").run(group::create),
    stream("createconsumer", "6.2.0", 5, GROW, INSERTS_SECOND, "Creates a consumer in a group.")
        .run(group::create_consumer),
    stream("delconsumer", "5.0.0", 5, WRITE, DELETES_SECOND, "Deletes a consumer from a group.")
        .run(group::delete_consumer),
    stream("destroy", "5.0.0", 4, WRITE, DELETES_SECOND, "Deletes a consumer group.").run(group::destroy),
    stream("help", "5.0.0", 2, HELP, &[], "Describes the subcommands.").run(group::help),
    stream("setid", "5.0.0", -5, WRITE, UPDATES_SECOND, "Sets the last delivered id of a group.")
        .run(group::set_id),
];

const INFO: &[Command] = &[
    stream("consumers", "5.0.0", 4, READ, READS_SECOND, "Describes the consumers of a group.")
        .tips(VARIES)
        .run(info::consumers),
    stream("groups", "5.0.0", 3, READ, READS_SECOND, "Describes the groups of a stream.").run(info::groups),
    stream("help", "5.0.0", 2, HELP, &[], "Describes the subcommands.").run(info::help),
    stream("stream", "5.0.0", -3, READ, READS_SECOND, "Describes a stream.").run(info::stream),
];
