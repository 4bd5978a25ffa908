//! Streams, and groups of consumers that share them.
//!
//! What a command did is logged as it came out: an entry with its id, a trim by its result, what a group gave to whom
//! and when as XCLAIM. So a replica has the same stream, down to who has read what.

mod add;
mod claim;
mod common;
mod group;
mod id;
mod info;
mod pending;
mod progress;
mod range;
mod read;
#[cfg(test)]
mod tests;
mod trim;

use crate::command::{Categories, Command, Flags, Group};
use crate::keys::{Begin, Find, KeyFlags, KeySpec};

const READ: Flags = Flags::READONLY;
const WRITE: Flags = Flags::WRITE.union(Flags::FAST);
const GROW: Flags = WRITE.union(Flags::DENYOOM);
const OF_GROUP: Flags = Flags::WRITE.union(Flags::DENYOOM);
const HELP: Flags = Flags::LOADING.union(Flags::STALE);

const LOOKS: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RO)];
const READS: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RO.union(KeyFlags::ACCESS))];
const UPDATES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::UPDATE))];
const DELETES: &[KeySpec] = &[KeySpec::one(1, KeyFlags::RW.union(KeyFlags::DELETE))];
const READS_SECOND: &[KeySpec] = &[KeySpec::one(2, KeyFlags::RO.union(KeyFlags::ACCESS))];
const INSERTS_SECOND: &[KeySpec] = &[KeySpec::one(2, KeyFlags::RW.union(KeyFlags::INSERT))];
const UPDATES_SECOND: &[KeySpec] = &[KeySpec::one(2, KeyFlags::RW.union(KeyFlags::UPDATE))];
const DELETES_SECOND: &[KeySpec] = &[KeySpec::one(2, KeyFlags::RW.union(KeyFlags::DELETE))];

/// The first half of what is behind STREAMS.
const fn streams(from: i8) -> KeySpec {
    KeySpec {
        begin: Begin::Keyword { word: "STREAMS", from },
        find: Find::Range { last: -1, step: 1, limit: 2 },
        flags: KeyFlags::RO.union(KeyFlags::ACCESS),
    }
}

const READS_STREAMS: &[KeySpec] = &[streams(1)];
const READS_STREAMS_OF_GROUP: &[KeySpec] = &[streams(4)];

const VARIES: &[&str] = &["nondeterministic_output"];

/// A row of this family.
const fn stream(
    name: &'static str,
    since: &'static str,
    arity: i8,
    flags: Flags,
    keys: &'static [KeySpec],
    summary: &'static str,
) -> Command {
    Command::new(name, Group::Stream, since, arity, summary)
        .flags(flags)
        .category(Categories::STREAM)
        .keys(keys)
}

/// A command that has only subcommands.
const fn container(name: &'static str, summary: &'static str, subcommands: &'static [Command]) -> Command {
    Command::new(name, Group::Stream, "5.0.0", -2, summary).subcommands(subcommands)
}

pub(super) const COMMANDS: &[Command] = &[
    stream("xack", "5.0.0", -4, WRITE, UPDATES, "Says that entries of a stream were dealt with by a group.")
        .run(pending::xack),
    stream(
        "xadd",
        "5.0.0",
        -5,
        GROW,
        UPDATES,
        "Adds an entry to a stream, which is made if it is not there.",
    )
    .tips(VARIES)
    .run(add::xadd),
    stream(
        "xautoclaim",
        "6.2.0",
        -6,
        WRITE,
        DELETES,
        "Gives a consumer pending entries of a group that nobody dealt with for some time.",
    )
    .tips(VARIES)
    .run(claim::xautoclaim),
    stream("xclaim", "5.0.0", -6, WRITE, UPDATES, "Gives a consumer pending entries of a group.")
        .tips(VARIES)
        .run(claim::xclaim),
    stream("xdel", "5.0.0", -3, WRITE, DELETES, "Deletes entries of a stream.").run(range::xdel),
    container("xgroup", "Makes, changes and removes groups of consumers.", GROUP),
    container("xinfo", "Describes a stream, its groups and their consumers.", INFO),
    stream("xlen", "5.0.0", 2, READ.union(Flags::FAST), LOOKS, "Returns the number of entries of a stream.")
        .run(range::xlen),
    stream("xpending", "5.0.0", -3, READ, READS, "Tells which entries are pending in a group.")
        .tips(VARIES)
        .run(pending::xpending),
    stream("xrange", "5.0.0", -4, READ, READS, "Returns the entries of a stream between two ids.")
        .run(range::xrange),
    stream(
        "xread",
        "5.0.0",
        -4,
        READ,
        READS_STREAMS,
        "Returns the entries of streams behind some ids, or waits until there are any.",
    )
    .may_block(read::xread),
    stream(
        "xreadgroup",
        "5.0.0",
        -7,
        Flags::WRITE,
        READS_STREAMS_OF_GROUP,
        "Returns entries of streams that a group has not given to anybody, or a consumer's own.",
    )
    .may_block(read::xreadgroup),
    stream(
        "xrevrange",
        "5.0.0",
        -4,
        READ,
        READS,
        "Returns the entries of a stream between two ids, from the last to the first.",
    )
    .run(range::xrevrange),
    stream("xsetid", "5.0.0", -3, GROW, UPDATES, "Sets the id that a stream gave last.").run(add::xsetid),
    stream("xtrim", "5.0.0", -4, Flags::WRITE, DELETES, "Deletes the first entries of a stream.")
        .tips(VARIES)
        .run(trim::xtrim),
];

const GROUP: &[Command] = &[
    stream("create", "5.0.0", -5, OF_GROUP, INSERTS_SECOND, "Makes a group.").run(group::create),
    stream("createconsumer", "6.2.0", 5, OF_GROUP, INSERTS_SECOND, "Makes a consumer of a group.")
        .run(group::create_consumer),
    stream("delconsumer", "5.0.0", 5, Flags::WRITE, DELETES_SECOND, "Removes a consumer of a group.")
        .run(group::delete_consumer),
    stream("destroy", "5.0.0", 4, Flags::WRITE, DELETES_SECOND, "Removes a group.").run(group::destroy),
    stream("help", "5.0.0", 2, HELP, &[], "Tells what the subcommands do.").run(group::help),
    stream("setid", "5.0.0", -5, Flags::WRITE, UPDATES_SECOND, "Sets the id that a group gave out last.")
        .run(group::set_id),
];

const INFO: &[Command] = &[
    stream("consumers", "5.0.0", 4, READ, READS_SECOND, "Describes the consumers of a group.")
        .tips(VARIES)
        .run(info::consumers),
    stream("groups", "5.0.0", 3, READ, READS_SECOND, "Describes the groups of a stream.").run(info::groups),
    stream("help", "5.0.0", 2, HELP, &[], "Tells what the subcommands do.").run(info::help),
    stream("stream", "5.0.0", -3, READ, READS_SECOND, "Describes a stream.").run(info::stream),
];
