//! Command table rows of replication. The server executes all of these commands outside of the engine.

use engine::{Categories, Command, Flags, Group, NodeCommand, ShellCommand};

const ADMIN_FLAGS: Flags = Flags::ADMIN.union(Flags::NOSCRIPT);
const SYNC_FLAGS: Flags = ADMIN_FLAGS.union(Flags::NO_ASYNC_LOADING).union(Flags::NO_MULTI);
const REPLICAOF_FLAGS: Flags = ADMIN_FLAGS.union(Flags::NO_ASYNC_LOADING).union(Flags::STALE);

pub(super) const COMMANDS: &[Command] = &[
    Command::new("failover", Group::Replication, "6.2.0", -1, "Hands the master role over to a replica.")
        .flags(ADMIN_FLAGS.union(Flags::STALE))
        .node(NodeCommand::Failover),
    Command::new(
        "psync",
        Group::Replication,
        "2.8.0",
        -3,
        "Turns the connection into a replication link; used between servers.",
    )
    .flags(SYNC_FLAGS)
    .node(NodeCommand::Psync),
    Command::new(
        "sync",
        Group::Replication,
        "1.0.0",
        1,
        "Turns the connection into a legacy replication link; used between servers.",
    )
    .flags(SYNC_FLAGS)
    .node(NodeCommand::Psync),
    Command::new(
        "replconf",
        Group::Replication,
        "3.0.0",
        -1,
        "Configures a replica's connection to its master; used between servers.",
    )
    .flags(
        ADMIN_FLAGS
            .union(Flags::LOADING)
            .union(Flags::STALE)
            .union(Flags::ALLOW_BUSY)
            .union(Flags::MASTER_TO_REPLICA),
    )
    .node(NodeCommand::Replconf),
    Command::new(
        "replicaof",
        Group::Replication,
        "5.0.0",
        3,
        "Makes the server a replica of another, or a master.",
    )
    .flags(REPLICAOF_FLAGS)
    .node(NodeCommand::Replicaof),
    Command::new(
        "slaveof",
        Group::Replication,
        "1.0.0",
        3,
        "Makes the server a replica of another, or a master.",
    )
    .flags(REPLICAOF_FLAGS)
    .node(NodeCommand::Replicaof),
    Command::new("role", Group::Replication, "2.8.12", 1, "Returns the server's replication role.")
        .flags(Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE).union(Flags::FAST))
        .sentinel()
        .category(Categories::ADMIN.union(Categories::DANGEROUS))
        .shell(ShellCommand::Role),
    Command::new(
        "wait",
        Group::Generic,
        "3.0.0",
        3,
        "Waits until a number of replicas have acknowledged the connection's writes.",
    )
    .flags(Flags::BLOCKING)
    .category(Categories::CONNECTION)
    .tips(&["request_policy:all_shards", "response_policy:agg_min"])
    .shell(ShellCommand::Wait),
    Command::new(
        "waitaof",
        Group::Generic,
        "7.2.0",
        4,
        "Waits until the connection's writes are fsynced, locally and on a number of replicas.",
    )
    .flags(Flags::BLOCKING)
    .category(Categories::CONNECTION)
    .tips(&["request_policy:all_shards", "response_policy:agg_min"])
    .shell(ShellCommand::WaitAof),
];
