//! MODULE. No modules exist and none can be loaded; the subcommands reply accordingly.

use engine::{Command, CommandError, Context, Flags, Group};

use crate::help::reply_help;

const ADMIN_FLAGS: Flags = Flags::ADMIN.union(Flags::NOSCRIPT);
const LOAD_FLAGS: Flags = ADMIN_FLAGS.union(Flags::NO_ASYNC_LOADING).union(Flags::PROTECTED);

const fn new_command(name: &'static str, since: &'static str, arity: i8, summary: &'static str) -> Command {
    Command::new(name, Group::Server, since, arity, summary)
}

pub(crate) const COMMANDS: &[Command] =
    &[new_command("module", "4.0.0", -2, "Manages modules, which this server does not support.")
        .subcommands(MODULE_SUBCOMMANDS)];

const MODULE_SUBCOMMANDS: &[Command] = &[
    new_command("help", "5.0.0", 2, "Lists the subcommands.")
        .flags(Flags::LOADING.union(Flags::STALE))
        .run(help),
    new_command("list", "4.0.0", 2, "Lists the modules.")
        .flags(ADMIN_FLAGS)
        .tips(&["nondeterministic_output_order"])
        .run(list),
    new_command("load", "4.0.0", -3, "Refuses to load a module.").flags(LOAD_FLAGS).run(load),
    new_command("loadex", "7.0.0", -3, "Refuses to load a module.").flags(LOAD_FLAGS).run(load),
    new_command("unload", "4.0.0", 3, "Fails, since no module is loaded.").flags(LOAD_FLAGS).run(unload),
];

fn list(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.reply.array(0);
    Ok(())
}

fn load(_context: &mut Context<'_>) -> Result<(), CommandError> {
    Err(CommandError::text("ERR Error loading the extension: this server does not support modules."))
}

fn unload(_context: &mut Context<'_>) -> Result<(), CommandError> {
    Err(CommandError::text("ERR Error unloading module: no such module with that name"))
}

fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "MODULE",
        &[
            "LIST",
            "    Return a list of loaded modules.",
            "LOAD <path> [<arg> ...]",
            "    Load a module library from <path>, passing to it any optional arguments.",
            "LOADEX <path> [[CONFIG NAME VALUE] [CONFIG NAME VALUE]] [ARGS ...]",
            "    Load a module library from <path>, while passing it module configurations and optional \
             arguments.",
            "UNLOAD <name>",
            "    Unload a module.",
        ],
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn protected_commands_require_configuration() {
        let mut client = Client::new();
        let words = "command not allowed. If the";
        for (line, name) in [("module load x", "MODULE"), ("module unload x", "MODULE")] {
            let reply = client.run_to_text(line);
            assert!(
                reply.starts_with(&format!("-ERR {name} {words} enable-module-command option")),
                "{reply}"
            );
        }
        let settings = &client.engine.settings;
        settings.permissions.module_command.set(config::AllowedClients::Yes);
        // The test client counts as connected from another machine, so `local` does not permit the command.
        settings.permissions.debug_command.set(config::AllowedClients::Local);
        for line in ["debug populate 1", "debug nosuch", "debug object"] {
            let reply = client.run_to_text(line);
            assert!(reply.starts_with(&format!("-ERR DEBUG {words} enable-debug-command option")), "{reply}");
        }
        client.check_replies(&[
            ("module list", "*0"),
            ("module load x", "-ERR Error loading the extension: this server does not support modules."),
            ("module unload x", "-ERR Error unloading module: no such module with that name"),
            ("debug", "-ERR wrong number of arguments for 'debug' command"),
        ]);
    }
}
