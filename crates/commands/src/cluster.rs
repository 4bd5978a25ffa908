//! Command table rows of CLUSTER.
//!
//! Subcommands about the keys of a slot are handled here. Subcommands that read or change the topology are executed by
//! the server process outside of the engine ([`engine::ShellCommand`]).

mod scan;
mod slot_stats;

use engine::{
    Categories, ClusterCommand as C, Command, CommandError, CommandOrigin, Context, Flags, Group, KeyFlags,
    KeySpec, NodeCommand, ShellCommand,
};
use slot_routing::Slot;

use crate::generic::flush::should_wait_until_freed;
use crate::help::reply_help;
use crate::scanning::parse_slot_argument;

const QUERY_FLAGS: Flags = Flags::LOADING.union(Flags::STALE);
const CHANGE_FLAGS: Flags = Flags::ADMIN.union(Flags::STALE).union(Flags::NO_ASYNC_LOADING);
const ADMIN_QUERY_FLAGS: Flags = Flags::ADMIN.union(Flags::STALE);
const NONDETERMINISTIC_TIPS: &[&str] = &["nondeterministic_output"];

pub(super) const COMMANDS: &[Command] = &[
    Command::new("cluster", Group::Cluster, "3.0.0", -2, "Inspects and changes the cluster.")
        .subcommands(CLUSTER_SUBCOMMANDS),
    Command::new(
        "clusterscan",
        Group::Cluster,
        "9.1.0",
        -2,
        "Returns some of a cluster's key names and a cursor for the next ones.",
    )
    .flags(Flags::READONLY.union(Flags::TOUCHES_ARBITRARY_KEYS))
    .category(Categories::KEYSPACE)
    .keys(&[KeySpec::single_key(1, KeyFlags::NOT_KEY)])
    .tips(&["nondeterministic_output", "request_policy:special", "response_policy:special"])
    .run(scan::cluster_scan)
    .visits_each_slot(),
];

/// Creates a subcommand that the server executes outside of the engine.
const fn shell_command(
    name: &'static str,
    since: &'static str,
    arity: i8,
    command: C,
    summary: &'static str,
) -> Command {
    Command::new(name, Group::Cluster, since, arity, summary).shell(ShellCommand::Cluster(command))
}

/// Creates a subcommand that the server executes outside of the engine and whose reply is not deterministic, because it
/// depends on more than the dataset.
const fn nondeterministic_command(
    name: &'static str,
    since: &'static str,
    arity: i8,
    command: C,
    summary: &'static str,
) -> Command {
    shell_command(name, since, arity, command, summary).tips(NONDETERMINISTIC_TIPS)
}

const CLUSTER_SUBCOMMANDS: &[Command] = &[
    shell_command("addslots", "3.0.0", -3, C::AddSlots, "Assigns free slots to this node.")
        .flags(CHANGE_FLAGS),
    shell_command(
        "addslotsrange",
        "7.0.0",
        -4,
        C::AddSlotsRange,
        "Assigns ranges of free slots to this node.",
    )
    .flags(CHANGE_FLAGS),
    nondeterministic_command(
        "bumpepoch",
        "3.0.0",
        2,
        C::BumpEpoch,
        "Raises this node's configuration epoch above all others.",
    )
    .flags(CHANGE_FLAGS),
    shell_command(
        "cancelslotmigrations",
        "9.0.0",
        2,
        C::CancelSlotMigrations,
        "Cancels all slot migrations from this node.",
    )
    .flags(CHANGE_FLAGS.union(Flags::ALL_DBS)),
    nondeterministic_command(
        "count-failure-reports",
        "3.0.0",
        3,
        C::CountFailureReports,
        "Returns the number of failure reports for a node.",
    )
    .flags(ADMIN_QUERY_FLAGS),
    Command::new("countkeysinslot", Group::Cluster, "3.0.0", 3, "Counts a slot's keys.")
        .flags(Flags::STALE)
        .run(count_keys_in_slot)
        .visits_each_slot(),
    shell_command("delslots", "3.0.0", -3, C::DelSlots, "Marks slots as unassigned in this node's view.")
        .flags(CHANGE_FLAGS),
    shell_command(
        "delslotsrange",
        "7.0.0",
        -4,
        C::DelSlotsRange,
        "Marks ranges of slots as unassigned in this node's view.",
    )
    .flags(CHANGE_FLAGS),
    // CLUSTER FAILOVER blocks the client. A master also sends it to its replicas, to notify them that it pauses writes.
    shell_command("failover", "3.0.0", -2, C::Failover, "Starts a failover of this replica's master.")
        .node(NodeCommand::Cluster(C::Failover))
        .flags(CHANGE_FLAGS.union(Flags::MASTER_TO_REPLICA)),
    nondeterministic_command(
        "failovers",
        "1.0.0",
        -2,
        C::Failovers,
        "Returns the steps of the latest failovers.",
    )
    .flags(ADMIN_QUERY_FLAGS),
    Command::new("flushslot", Group::Cluster, "9.0.0", -3, "Deletes all keys of a slot.")
        .flags(Flags::WRITE.union(Flags::ADMIN).union(Flags::NO_ASYNC_LOADING).union(Flags::ALL_DBS))
        .category(Categories::KEYSPACE)
        .run(flush_slot)
        .locks_named_slot(),
    shell_command("flushslots", "3.0.0", 2, C::FlushSlots, "Unassigns all slots of this node.")
        .flags(CHANGE_FLAGS),
    shell_command("forget", "3.0.0", 3, C::Forget, "Removes a node.").flags(CHANGE_FLAGS),
    Command::new("getkeysinslot", Group::Cluster, "3.0.0", 4, "Returns key names of a slot.")
        .flags(Flags::STALE)
        .tips(NONDETERMINISTIC_TIPS)
        .run(get_keys_in_slot)
        .visits_each_slot(),
    shell_command(
        "getslotmigrations",
        "9.0.0",
        2,
        C::GetSlotMigrations,
        "Lists slot migrations from and to this node.",
    )
    .flags(CHANGE_FLAGS),
    Command::new("help", Group::Cluster, "5.0.0", 2, "Describes the subcommands of CLUSTER.")
        .flags(QUERY_FLAGS)
        .run(help),
    nondeterministic_command("info", "3.0.0", 2, C::Info, "Returns the state of the cluster.")
        .flags(QUERY_FLAGS),
    Command::new("keyslot", Group::Cluster, "3.0.0", 3, "Returns the hash slot of a key.")
        .flags(Flags::STALE)
        .run(key_slot),
    nondeterministic_command("links", "7.0.0", 2, C::Links, "Lists the links to other nodes.")
        .flags(Flags::STALE),
    shell_command("meet", "3.0.0", -4, C::Meet, "Adds a node to the cluster.").flags(CHANGE_FLAGS),
    shell_command("migrateslots", "9.0.0", -4, C::MigrateSlots, "Migrates slots to other nodes atomically.")
        .flags(CHANGE_FLAGS.union(Flags::ALL_DBS)),
    shell_command("migration", "8.4.0", -4, C::Migration, "Imports slots atomically, as in Redis.")
        .flags(CHANGE_FLAGS.union(Flags::ALL_DBS)),
    shell_command("myid", "3.0.0", 2, C::MyId, "Returns the id of this node.").flags(QUERY_FLAGS),
    nondeterministic_command("myshardid", "7.2.0", 2, C::MyShardId, "Returns the id of this node's shard.")
        .flags(QUERY_FLAGS),
    nondeterministic_command("nodes", "3.0.0", 2, C::Nodes, "Lists the nodes known to this node.")
        .flags(QUERY_FLAGS),
    nondeterministic_command("replicas", "5.0.0", 3, C::Replicas, "Lists the replicas of a master.")
        .flags(ADMIN_QUERY_FLAGS),
    shell_command("replicate", "3.0.0", -3, C::Replicate, "Makes this node a replica of a master.")
        .flags(CHANGE_FLAGS),
    shell_command("reset", "3.0.0", -2, C::Reset, "Resets this node's cluster state.")
        .flags(ADMIN_QUERY_FLAGS.union(Flags::NOSCRIPT)),
    shell_command("saveconfig", "3.0.0", 2, C::SaveConfig, "Saves nodes.conf.").flags(CHANGE_FLAGS),
    shell_command("set-config-epoch", "3.0.0", 3, C::SetConfigEpoch, "Sets the epoch of a new node.")
        .flags(CHANGE_FLAGS),
    // CLUSTER SETSLOT may block, even if it arrives in the replication stream.
    shell_command(
        "setslot",
        "3.0.0",
        -4,
        C::SetSlot,
        "Starts, completes or cancels the migration of a slot.",
    )
    .node(NodeCommand::Cluster(C::SetSlot))
    .flags(CHANGE_FLAGS.union(Flags::MAY_REPLICATE)),
    nondeterministic_command("shards", "7.0.0", 2, C::Shards, "Lists the shards: their slots and nodes.")
        .flags(QUERY_FLAGS),
    nondeterministic_command("slaves", "3.0.0", 3, C::Replicas, "Lists the replicas of a master.")
        .flags(ADMIN_QUERY_FLAGS),
    Command::new(
        "slot-stats",
        Group::Cluster,
        "8.0.0",
        -4,
        "Returns key counts and resource usage of this node's slots.",
    )
    .flags(QUERY_FLAGS)
    .tips(&["nondeterministic_output", "request_policy:all_shards"])
    .run(slot_stats::slot_stats)
    .visits_each_slot(),
    nondeterministic_command("slots", "3.0.0", 2, C::Slots, "Lists ranges of slots with their nodes.")
        .flags(QUERY_FLAGS),
    // Internal commands between nodes; the target of a migration forwards them to its replicas.
    Command::new(
        "syncslots",
        Group::Cluster,
        "9.0.0",
        -3,
        "Transfers slots between two nodes; used between servers.",
    )
    .node(NodeCommand::Cluster(C::SyncSlots))
    .flags(CHANGE_FLAGS.union(Flags::MAY_REPLICATE)),
];

const HELP: &[&str] = &[
    "ADDSLOTS <slot> [<slot> ...]",
    "    Assign slots to current node.",
    "ADDSLOTSRANGE <start slot> <end slot> [<start slot> <end slot> ...]",
    "    Assign slots which are between <start-slot> and <end-slot> to current node.",
    "BUMPEPOCH",
    "    Advance the cluster config epoch.",
    "COUNT-FAILURE-REPORTS <node-id>",
    "    Return number of failure reports for <node-id>.",
    "COUNTKEYSINSLOT <slot>",
    "    Return the number of keys in <slot>.",
    "DELSLOTS <slot> [<slot> ...]",
    "    Delete slots information from current node.",
    "DELSLOTSRANGE <start slot> <end slot> [<start slot> <end slot> ...]",
    "    Delete slots information which are between <start-slot> and <end-slot> from current node.",
    "FAILOVER [FORCE|TAKEOVER]",
    "    Promote current replica node to being a master.",
    "FAILOVERS [JSON]",
    "    Show the last failovers step by step, in milliseconds from the first suspicion.",
    "FORGET <node-id>",
    "    Remove a node from the cluster.",
    "GETKEYSINSLOT <slot> <count>",
    "    Return key names stored by current node in a slot.",
    "FLUSHSLOTS",
    "    Delete current node own slots information.",
    "INFO",
    "    Return information about the cluster.",
    "KEYSLOT <key>",
    "    Return the hash slot for <key>.",
    "MEET <ip> <port> [<bus-port>]",
    "    Connect nodes into a working cluster.",
    "MYID",
    "    Return the node id.",
    "MYSHARDID",
    "    Return the node's shard id.",
    "NODES",
    "    Return cluster configuration seen by node. Output format:",
    "    <id> <ip:port> <flags> <master> <pings> <pongs> <epoch> <link> <slot> ...",
    "REPLICATE <node-id>",
    "    Configure current node as replica to <node-id>.",
    "RESET [HARD|SOFT]",
    "    Reset current node (default: soft).",
    "SET-CONFIG-EPOCH <epoch>",
    "    Set config epoch of current node.",
    "SETSLOT <slot> (IMPORTING <node-id>|MIGRATING <node-id>|STABLE|NODE <node-id>)",
    "    Set slot state.",
    "REPLICAS <node-id>",
    "    Return <node-id> replicas.",
    "MIGRATESLOTS SLOTSRANGE start-slot end-slot [start-slot end-slot ...] NODE node-id \
     [SLOTSRANGE start-slot end-slot [start-slot end-slot ...] NODE node-id ...]",
    "    Migrate the specified slot ranges from this node to the specified node.",
    "CANCELSLOTMIGRATIONS ALL",
    "    Cancel all migrations.",
    "GETSLOTMIGRATIONS",
    "    Get information about ongoing and recently finished slot imports and exports.",
    "SAVECONFIG",
    "    Force saving cluster configuration on disk.",
    "SLOTS",
    "    Return information about slots range mappings. Each range is made of:",
    "    start, end, master and replicas IP addresses, ports and ids",
    "SLOT-STATS",
    "    Return an array of slot usage statistics for slots assigned to the current node.",
    "SHARDS",
    "    Return information about slot range mappings and the nodes associated with them.",
    "LINKS",
    "    Return information about all network links between this node and its peers.",
    "    Output format is an array where each array element is a map containing attributes of a link",
];

fn require_cluster_mode(context: &Context<'_>) -> Result<(), CommandError> {
    match context.engine.topology {
        Some(_) => Ok(()),
        None => Err(CommandError::text("ERR This instance has cluster support disabled")),
    }
}

fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    require_cluster_mode(context)?;
    reply_help(context, "CLUSTER", HELP);
    Ok(())
}

fn key_slot(context: &mut Context<'_>) -> Result<(), CommandError> {
    let slot = Slot::of_key(context.arg(2));
    context.reply.integer(i64::from(slot.number()));
    Ok(())
}

fn parse_slot(number: i64) -> Option<Slot> {
    u16::try_from(number).ok().and_then(Slot::new)
}

fn count_keys_in_slot(context: &mut Context<'_>) -> Result<(), CommandError> {
    require_cluster_mode(context)?;
    let slot = parse_slot(context.integer_arg(2)?).ok_or(CommandError::text("ERR Invalid slot"))?;
    let count = context.slot_key_count(slot);
    context.reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

/// CLUSTER FLUSHSLOT slot [ASYNC | SYNC]: deletes the slot's keys in all databases, whether or not this node serves the
/// slot.
fn flush_slot(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.session.origin() == CommandOrigin::Client {
        require_cluster_mode(context)?;
    }
    if context.args.len() > 4 {
        return Err(invalid_subcommand(context.arg(1)));
    }
    let slot = parse_slot_argument(context.arg(2))?;
    let wait = should_wait_until_freed(context.args.get(3), &context.engine.settings)?;
    context.clear_slot(slot, wait);
    context.reply.ok();
    Ok(())
}

/// The error for an unknown subcommand or wrong arguments. The error quotes the subcommand as the client sent it, cut
/// at 128 bytes as in Valkey.
fn invalid_subcommand(subcommand: &[u8]) -> CommandError {
    let subcommand = String::from_utf8_lossy(&subcommand[..subcommand.len().min(128)]);
    let text =
        format!("ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try CLUSTER HELP.");
    CommandError::Text(text.into())
}

fn get_keys_in_slot(context: &mut Context<'_>) -> Result<(), CommandError> {
    require_cluster_mode(context)?;
    let (slot, count) = (context.integer_arg(2)?, context.integer_arg(3)?);
    let (Some(slot), Ok(count)) = (parse_slot(slot), usize::try_from(count)) else {
        return Err(CommandError::text("ERR Invalid slot or number of keys"));
    };
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let db = context.session.db();
    if count > 0 {
        context.with_slot(slot, |data| {
            let Some(table) = data.existing_table(db).filter(|_| !data.is_hidden()) else { return };
            table.scan(0, count, &mut |item| {
                if keys.len() < count {
                    keys.push(item.key.to_vec());
                }
            });
        });
    }
    context.reply.array(keys.len());
    for key in keys {
        context.reply.bulk(&key);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn cluster_commands_fail_without_cluster_mode() {
        let disabled = "-ERR This instance has cluster support disabled";
        Client::new().check_replies(&[
            ("asking", disabled),
            ("cluster keyslot a", ":15495"),
            ("cluster countkeysinslot 1", disabled),
            ("cluster help", disabled),
            ("cluster nosuch", "-ERR unknown subcommand 'nosuch'. Try CLUSTER HELP."),
            ("cluster keyslot", "-ERR wrong number of arguments for 'cluster|keyslot' command"),
        ]);
    }

    #[test]
    fn slot_key_count_uses_selected_database() {
        Client::in_cluster_with_databases(3).check_replies(&[
            ("set foo{t} 1", "+OK"),
            ("select 2", "+OK"),
            ("mset bar{t} 1 baz{t} 2", "+OK"),
            ("cluster countkeysinslot 15891", ":2"),
            ("move bar{t} 1", ":1"),
            ("cluster getkeysinslot 15891 10", "*1|$6|baz{t}"),
            ("select 1", "+OK"),
            ("cluster getkeysinslot 15891 10", "*1|$6|bar{t}"),
            ("select 0", "+OK"),
            ("cluster getkeysinslot 15891 10", "*1|$6|foo{t}"),
            ("select 3", "-ERR DB index is out of range"),
        ]);
        Client::in_cluster().check_replies(&[("select 1", "-ERR SELECT is not allowed in cluster mode")]);
    }

    #[test]
    fn flushslot_deletes_keys_in_all_databases() {
        let mut client = Client::in_cluster_with_databases(3);
        let wrong = "-ERR unknown subcommand or wrong number of arguments for 'flushslot'. Try CLUSTER HELP.";
        let range = "-ERR Invalid or out of range slot";
        client.check_replies(&[
            ("set foo{t} 1", "+OK"),
            ("set other 1", "+OK"),
            ("select 2", "+OK"),
            ("mset bar{t} 1", "+OK"),
            ("select 1", "+OK"),
            ("cluster flushslot 16384", range),
            ("cluster flushslot -1", range),
            ("cluster flushslot x nosuch", range),
            ("cluster flushslot 15891 nosuch", "-ERR syntax error"),
            ("cluster flushslot 15891 sync x", wrong),
            ("cluster flushslot", "-ERR wrong number of arguments for 'cluster|flushslot' command"),
            ("cluster flushslot 15891 async", "+OK"),
            ("cluster flushslot 15891", "+OK"),
            ("cluster flushslot 15891 SYNC", "+OK"),
            ("set more{t} 1", "+OK"),
            ("multi", "+OK"),
            ("cluster flushslot 15891", "+QUEUED"),
            ("set last{t} 1", "+QUEUED"),
            ("exec", "*2|+OK|+OK"),
            ("dbsize", ":1"),
            ("select 2", "+OK"),
            ("dbsize", ":0"),
            ("select 0", "+OK"),
            ("dbsize", ":1"),
            ("eval \"return redis.call('cluster', 'flushslot', '15891')\" 0", "+OK"),
            ("select 1", "+OK"),
            ("dbsize", ":0"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 set foo{t} 1",
                "0 set other 1",
                "2 mset bar{t} 1",
                "1 cluster flushslot 15891 async",
                "1 set more{t} 1",
                "1 MULTI",
                "1 cluster flushslot 15891",
                "1 set last{t} 1",
                "1 EXEC",
                "0 cluster flushslot 15891"
            ]
        );
    }

    #[test]
    fn slot_keys_are_counted_and_listed() {
        Client::in_cluster().check_replies(&[
            ("asking", "+OK"),
            ("readonly", "+OK"),
            ("readwrite", "+OK"),
            ("cluster keyslot foo", ":12182"),
            ("mset foo{t} 1 bar{t} 2", "+OK"),
            ("cluster keyslot {t}", ":15891"),
            ("cluster countkeysinslot 15891", ":2"),
            ("cluster countkeysinslot 1", ":0"),
            ("cluster countkeysinslot 16384", "-ERR Invalid slot"),
            ("cluster countkeysinslot x", "-ERR value is not an integer or out of range"),
            ("cluster getkeysinslot 15891 0", "*0"),
            ("cluster getkeysinslot 1 10", "*0"),
            ("cluster getkeysinslot 1 -1", "-ERR Invalid slot or number of keys"),
            ("cluster getkeysinslot 70000 1", "-ERR Invalid slot or number of keys"),
            ("del foo{t}", ":1"),
            ("cluster getkeysinslot 15891 10", "*1|$6|bar{t}"),
        ]);
    }
}
