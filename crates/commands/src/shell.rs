//! Command table rows of commands that the server executes outside of the engine, such as CONFIG, SAVE and SHUTDOWN.

use engine::migration::migrate_key_positions;
use engine::{
    Categories, Command, CommandError, Context, Flags, Group, KeyFlags, KeySpec, NodeCommand, RequestKeys,
    ShellCommand,
};

use super::help::reply_help;
use super::rows::{HELP_FLAGS, NONDETERMINISTIC_TIPS, key};

const ADMIN_FLAGS: Flags = Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE);

const SAVE_FLAGS: Flags = Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::NO_ASYNC_LOADING);

pub(super) const COMMANDS: &[Command] = &[
    Command::new("bgrewriteaof", Group::Server, "1.0.0", 1, "Rewrites the append-only file.")
        .flags(SAVE_FLAGS)
        .shell(ShellCommand::Bgrewriteaof),
    Command::new("bgsave", Group::Server, "1.0.0", -1, "Saves the dataset to disk in the background.")
        .flags(SAVE_FLAGS)
        .shell(ShellCommand::Bgsave),
    Command::new("config", Group::Server, "2.0.0", -2, "Reads and changes the configuration.")
        .subcommands(CONFIG_SUBCOMMANDS),
    Command::new("info", Group::Server, "1.0.0", -1, "Returns information and statistics by section.")
        .flags(Flags::LOADING.union(Flags::STALE))
        .sentinel()
        .category(Categories::DANGEROUS)
        .tips(&["nondeterministic_output", "request_policy:all_shards", "response_policy:special"])
        .shell(ShellCommand::Info)
        .visits_each_slot(),
    Command::new("lastsave", Group::Server, "1.0.0", 1, "Returns the time of the last save.")
        .flags(Flags::LOADING.union(Flags::STALE).union(Flags::FAST))
        .category(Categories::ADMIN.union(Categories::DANGEROUS))
        .tips(NONDETERMINISTIC_TIPS)
        .shell(ShellCommand::Lastsave),
    Command::new("save", Group::Server, "1.0.0", 1, "Saves the dataset to disk and blocks until done.")
        .flags(SAVE_FLAGS.union(Flags::NO_MULTI))
        .node(NodeCommand::Save),
    Command::new("migrate", Group::Generic, "2.6.0", -6, "Moves keys to another server.")
        .flags(Flags::WRITE)
        .category(Categories::KEYSPACE.union(Categories::DANGEROUS))
        .keys(&[
            KeySpec::single_key(3, key::POP),
            KeySpec::keys_after("KEYS", -2, 0, key::POP.union(KeyFlags::INCOMPLETE)),
        ])
        .parse_keys(|args| RequestKeys::default().keys(migrate_key_positions(args), key::POP))
        .tips(NONDETERMINISTIC_TIPS)
        .node(NodeCommand::Migrate),
    Command::new(
        "shutdown",
        Group::Server,
        "1.0.0",
        -1,
        "Optionally saves the dataset, and stops the server.",
    )
    .flags(ADMIN_FLAGS.union(Flags::NO_MULTI).union(Flags::ALLOW_BUSY))
    .sentinel()
    .node(NodeCommand::Shutdown),
];

const CONFIG_SUBCOMMANDS: &[Command] = &[
    Command::new("get", Group::Server, "2.0.0", -3, "Returns the parameters that match a pattern.")
        .flags(ADMIN_FLAGS)
        .shell(ShellCommand::ConfigGet),
    Command::new("help", Group::Server, "5.0.0", 2, "Lists the subcommands.")
        .flags(HELP_FLAGS)
        .run(config_help),
    Command::new("resetstat", Group::Server, "2.0.0", 2, "Resets the statistics of INFO.")
        .flags(ADMIN_FLAGS)
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .shell(ShellCommand::ConfigResetStat),
    Command::new(
        "rewrite",
        Group::Server,
        "2.8.0",
        2,
        "Rewrites the configuration file with the current values.",
    )
    .flags(ADMIN_FLAGS)
    .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
    .shell(ShellCommand::ConfigRewrite),
    Command::new("set", Group::Server, "2.0.0", -4, "Changes parameters, all or none.")
        .flags(ADMIN_FLAGS)
        .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"])
        .node(NodeCommand::ConfigSet),
];

fn config_help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "CONFIG",
        &[
            "GET <pattern>",
            "    Return parameters matching the glob-like <pattern> and their values.",
            "SET <directive> <value>",
            "    Set the configuration <directive> to <value>.",
            "RESETSTAT",
            "    Reset statistics reported by the INFO command.",
            "REWRITE",
            "    Rewrite the configuration file.",
        ],
    );
    Ok(())
}
