//! ACL: users and their permissions. The rules are those of the `acl` crate; the engine checks commands against them.

use engine::{AclCommand, Command, CommandError, Context, Flags, Group, ShellCommand};

use super::help::reply_help;

const ALLOWED_WHILE_LOADING: Flags = Flags::LOADING.union(Flags::STALE);
const NOSCRIPT_FLAGS: Flags = ALLOWED_WHILE_LOADING.union(Flags::NOSCRIPT);
const ADMIN_FLAGS: Flags = NOSCRIPT_FLAGS.union(Flags::ADMIN);
const ALL_NODES_TIPS: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];

const fn new_command(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Server, since, arity, summary).sentinel()
}

pub(super) const COMMANDS: &[Command] =
    &[new_command("acl", "6.0.0", -2, "Manages users and their permissions.").subcommands(ACL_SUBCOMMANDS)];

const ACL_SUBCOMMANDS: &[Command] = &[
    new_command("cat", "6.0.0", -2, "Lists the command categories, or the commands of one.")
        .flags(NOSCRIPT_FLAGS)
        .run(run_acl_subcommand),
    new_command("deluser", "6.0.0", -3, "Deletes users and closes their connections.")
        .flags(ADMIN_FLAGS)
        .tips(ALL_NODES_TIPS)
        .run(run_acl_subcommand),
    new_command("dryrun", "7.0.0", -4, "Checks whether a user may run a command, without running it.")
        .flags(ADMIN_FLAGS)
        .run(run_acl_subcommand),
    new_command("genpass", "6.0.0", -2, "Generates a password.")
        .flags(NOSCRIPT_FLAGS)
        .shell(ShellCommand::Acl(AclCommand::GenPass)),
    new_command("getuser", "6.0.0", 3, "Returns a user's rules.").flags(ADMIN_FLAGS).run(run_acl_subcommand),
    new_command("help", "6.0.0", 2, "Lists the subcommands.").flags(ALLOWED_WHILE_LOADING).run(help),
    new_command("list", "6.0.0", 2, "Returns all users as lines of a configuration file.")
        .flags(ADMIN_FLAGS)
        .run(run_acl_subcommand),
    new_command("load", "6.0.0", 2, "Reads the users from the ACL file.")
        .flags(ADMIN_FLAGS)
        .shell(ShellCommand::Acl(AclCommand::Load)),
    new_command("log", "6.0.0", -2, "Returns or resets the log of refused commands.")
        .flags(ADMIN_FLAGS)
        .run(run_acl_subcommand),
    new_command("save", "6.0.0", 2, "Writes the users to the ACL file.")
        .flags(ADMIN_FLAGS)
        .tips(ALL_NODES_TIPS)
        .shell(ShellCommand::Acl(AclCommand::Save)),
    new_command("setuser", "6.0.0", -3, "Creates or changes a user.")
        .flags(ADMIN_FLAGS)
        .tips(ALL_NODES_TIPS)
        .run(run_acl_subcommand),
    new_command("users", "6.0.0", 2, "Returns the users' names.").flags(ADMIN_FLAGS).run(run_acl_subcommand),
    new_command("whoami", "6.0.0", 2, "Returns this connection's user.")
        .flags(NOSCRIPT_FLAGS)
        .run(run_acl_subcommand),
];

fn run_acl_subcommand(context: &mut Context<'_>) -> Result<(), CommandError> {
    let others = context.run_acl_subcommand()?;
    context.register_revoked(others);
    Ok(())
}

fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(context, "ACL", acl::HELP);
    Ok(())
}
