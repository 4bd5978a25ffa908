//! SCRIPT: the script cache.

use engine::{CommandError, Context, DebugMode, parse_sha1, truncate_at_nul, wrong_subcommand_arguments};
use scripting::KillResult;

use super::eval::cache_script;
use crate::help::reply_help;

pub(super) fn load(context: &mut Context<'_>) -> Result<(), CommandError> {
    let script = cache_script(context, context.arg(2), true)?;
    context.reply.bulk(&script.sha);
    Ok(())
}

pub(super) fn exists(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.reply.array(context.args.len() - 2);
    for index in 2..context.args.len() {
        let known = parse_sha1(context.arg(index))
            .is_some_and(|sha| context.engine.scripting.scripts.find(&sha).is_some());
        context.reply.integer(i64::from(known));
    }
    Ok(())
}

pub(super) fn show_script(context: &mut Context<'_>) -> Result<(), CommandError> {
    let script = parse_sha1(context.arg(2)).and_then(|sha| context.engine.scripting.scripts.find(&sha));
    let script = script.ok_or(CommandError::text("NOSCRIPT No matching script."))?;
    context.reply.bulk(&script.text);
    Ok(())
}

pub(super) fn flush(context: &mut Context<'_>) -> Result<(), CommandError> {
    let fits = match context.args.get(2) {
        None => context.args.len() == 2,
        Some(word) => context.args.len() == 3 && is_flush_option(word),
    };
    if !fits {
        return Err(CommandError::text("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
    }
    context.engine.scripting.scripts.flush();
    context.reply.ok();
    Ok(())
}

pub(super) fn is_flush_option(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"sync") || word.eq_ignore_ascii_case(b"async")
}

pub(super) fn kill(context: &mut Context<'_>) -> Result<(), CommandError> {
    kill_running(context, false)
}

/// Kills the running function if `is_function` is set, and otherwise the running script.
pub(super) fn kill_running(context: &mut Context<'_>, is_function: bool) -> Result<(), CommandError> {
    match context.engine.scripting.scripts.kill(is_function) {
        KillResult::Stopped => {
            context.reply.ok();
            Ok(())
        }
        KillResult::NotBusy => Err(CommandError::text("NOTBUSY No scripts in execution right now.")),
        KillResult::Unkillable => Err(CommandError::text(
            "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait \
             the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
        )),
        KillResult::WrongKind => {
            let script =
                "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
            let other =
                "BUSY Valkey is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.";
            Err(CommandError::text(if is_function { script } else { other }))
        }
    }
}

/// Handles `SCRIPT DEBUG mode [engine]`.
pub(super) fn debug(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.args.len() > 4 {
        return Err(wrong_subcommand_arguments("SCRIPT", context.arg(1)));
    }
    let is_pipelined = !context.reply.is_empty();
    if is_pipelined || !context.can_block() {
        return Err(CommandError::text("ERR SCRIPT DEBUG must be called outside a pipeline"));
    }
    if let Some(name) = context.args.get(3).filter(|name| !name.eq_ignore_ascii_case(b"lua")) {
        let name = String::from_utf8_lossy(truncate_at_nul(name));
        let text = format!("ERR No scripting engine found with name '{name}' to enable debug");
        return Err(CommandError::Text(text.into()));
    }
    let word = context.arg(2);
    let mode = match word.to_ascii_lowercase().as_slice() {
        b"no" => None,
        b"yes" => Some(DebugMode::CopiedData),
        b"sync" => Some(DebugMode::RealData),
        _ => return Err(CommandError::text("ERR Use SCRIPT DEBUG YES/SYNC/NO")),
    };
    context.session.set_debug_mode(mode);
    context.reply.ok();
    Ok(())
}

pub(super) fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "SCRIPT",
        &[
            "DEBUG (YES|SYNC|NO)",
            "    Set the debug mode for subsequent scripts executed.",
            "EXISTS <sha1> [<sha1> ...]",
            "    Return information about the existence of the scripts in the script cache.",
            "FLUSH [ASYNC|SYNC]",
            "    Flush the Lua scripts cache. Very dangerous on replicas.",
            "    When called without the optional mode argument, the behavior is determined by the",
            "    lazyfree-lazy-user-flush configuration directive. Valid modes are:",
            "    * ASYNC: Asynchronously flush the scripts cache.",
            "    * SYNC: Synchronously flush the scripts cache.",
            "KILL",
            "    Kill the currently executing Lua script.",
            "LOAD <script>",
            "    Load a script into the scripts cache without executing it.",
        ],
    );
    Ok(())
}
