//! ACL: users and their permissions. The rules are those of the `acl` crate; the engine checks commands against them.

use engine::{AclCommand, Command, CommandError, Context, Flags, Group, ShellCommand};

use super::help::reply_help;

const ALLOWED_WHILE_LOADING: Flags = Flags::LOADING.union(Flags::STALE);
const NOSCRIPT: Flags = ALLOWED_WHILE_LOADING.union(Flags::NOSCRIPT);
const ADMIN: Flags = NOSCRIPT.union(Flags::ADMIN);
const ALL_NODES: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];

const fn new_row(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Server, since, arity, summary).sentinel()
}

pub(super) const COMMANDS: &[Command] =
    &[new_row("acl", "6.0.0", -2, "Manages users and their permissions.").subcommands(ACL)];

const ACL: &[Command] = &[
    new_row("cat", "6.0.0", -2, "Lists the command categories, or the commands of one.")
        .flags(NOSCRIPT)
        .run(reply_acl),
    new_row("deluser", "6.0.0", -3, "Deletes users and closes their connections.")
        .flags(ADMIN)
        .tips(ALL_NODES)
        .run(reply_acl),
    new_row("dryrun", "7.0.0", -4, "Checks whether a user may run a command, without running it.")
        .flags(ADMIN)
        .run(reply_acl),
    new_row("genpass", "6.0.0", -2, "Generates a password.")
        .flags(NOSCRIPT)
        .shell(ShellCommand::Acl(AclCommand::GenPass)),
    new_row("getuser", "6.0.0", 3, "Returns a user's rules.").flags(ADMIN).run(reply_acl),
    new_row("help", "6.0.0", 2, "Lists the subcommands.").flags(ALLOWED_WHILE_LOADING).run(help),
    new_row("list", "6.0.0", 2, "Returns all users as lines of a configuration file.")
        .flags(ADMIN)
        .run(reply_acl),
    new_row("load", "6.0.0", 2, "Reads the users from the ACL file.")
        .flags(ADMIN)
        .shell(ShellCommand::Acl(AclCommand::Load)),
    new_row("log", "6.0.0", -2, "Returns or resets the log of refused commands.").flags(ADMIN).run(reply_acl),
    new_row("save", "6.0.0", 2, "Writes the users to the ACL file.")
        .flags(ADMIN)
        .tips(ALL_NODES)
        .shell(ShellCommand::Acl(AclCommand::Save)),
    new_row("setuser", "6.0.0", -3, "Creates or changes a user.").flags(ADMIN).tips(ALL_NODES).run(reply_acl),
    new_row("users", "6.0.0", 2, "Returns the users' names.").flags(ADMIN).run(reply_acl),
    new_row("whoami", "6.0.0", 2, "Returns this connection's user.").flags(NOSCRIPT).run(reply_acl),
];

fn reply_acl(context: &mut Context<'_>) -> Result<(), CommandError> {
    let others = context.answer_acl()?;
    context.register_revoked(others);
    Ok(())
}

fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(context, "ACL", acl::HELP);
    Ok(())
}
