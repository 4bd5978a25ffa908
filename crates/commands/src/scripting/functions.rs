//! FUNCTION: library management.

use std::sync::atomic::Ordering;

use engine::{CommandError, Context, truncate_at_nul, wrong_subcommand_arguments};
use resp::Args;
use scripting::{Library, RestorePolicy};

use super::script::{is_flush_option, kill_running};
use crate::help::reply_help;

pub(super) fn load(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (code, options) = (context.args.len() - 1, 2..context.args.len() - 1);
    let mut replace = false;
    for index in options {
        let word = context.arg(index);
        if !word.eq_ignore_ascii_case(b"replace") {
            let shown = String::from_utf8_lossy(truncate_at_nul(word));
            return Err(CommandError::Text(format!("ERR Unknown option given: {shown}").into()));
        }
        replace = true;
    }
    let library = context.load_library(context.arg(code))?;
    let name = library.name.clone();
    context
        .engine
        .scripting
        .scripts
        .functions
        .add(library, replace)
        .map_err(|error| to_command_error(&error))?;
    context.count_changes(1);
    context.reply.bulk(name.as_bytes());
    Ok(())
}

fn to_command_error(error: &scripting::FunctionError) -> CommandError {
    CommandError::Text(error.to_string().into())
}

pub(super) fn delete(context: &mut Context<'_>) -> Result<(), CommandError> {
    if !context.engine.scripting.scripts.functions.remove(context.arg(2)) {
        return Err(CommandError::text("ERR Library not found"));
    }
    context.count_changes(1);
    context.reply.ok();
    Ok(())
}

pub(super) fn flush(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.args.len() > 3 {
        return Err(wrong_subcommand_arguments("FUNCTION", context.arg(1)));
    }
    if context.args.get(2).is_some_and(|word| !is_flush_option(word)) {
        return Err(CommandError::text("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"));
    }
    context.engine.scripting.scripts.functions.flush();
    context.count_changes(1);
    context.reply.ok();
    Ok(())
}

/// Parses the options of FUNCTION LIST: a name pattern, and whether to include the code.
fn parse_list_options(args: Args<'_>) -> Result<(Option<&[u8]>, bool), CommandError> {
    let (mut pattern, mut code, mut words) = (None, false, args.skip(2).iter());
    while let Some(word) = words.next() {
        if !code && word.eq_ignore_ascii_case(b"withcode") {
            code = true;
        } else if pattern.is_none() && word.eq_ignore_ascii_case(b"libraryname") {
            let given = words.next().ok_or(CommandError::text("ERR library name argument was not given"))?;
            pattern = Some(given);
        } else {
            let shown = String::from_utf8_lossy(word);
            return Err(CommandError::Text(format!("ERR Unknown argument {shown}").into()));
        }
    }
    Ok((pattern, code))
}

pub(super) fn list(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (pattern, code) = parse_list_options(context.args)?;
    let all = context.engine.scripting.scripts.functions.libraries();
    let fits = |name: &str| pattern.is_none_or(|pattern| glob::matches(pattern, name.as_bytes()));
    let libraries: Vec<_> = all.into_iter().filter(|library| fits(&library.name)).collect();
    context.reply.array(libraries.len());
    for library in libraries {
        reply_library(context, &library, code);
    }
    Ok(())
}

fn reply_library(context: &mut Context<'_>, library: &Library, with_code: bool) {
    let reply = &mut context.reply;
    reply.map(3 + usize::from(with_code));
    reply.bulk(b"library_name");
    reply.bulk(library.name.as_bytes());
    reply.bulk(b"engine");
    reply.bulk(b"LUA");
    reply.bulk(b"functions");
    reply.array(library.functions.len());
    for function in &library.functions {
        reply.map(3);
        reply.bulk(b"name");
        reply.bulk(function.name.as_bytes());
        reply.bulk(b"description");
        match &function.description {
            Some(text) => reply.bulk(text),
            None => reply.null(),
        }
        reply.bulk(b"flags");
        let names = function.flags.names();
        reply.set(names.len());
        names.iter().for_each(|name| reply.simple(name));
    }
    if with_code {
        reply.bulk(b"library_code");
        reply.bulk(&library.code);
    }
}

pub(super) fn stats(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (engine, nanos) = (context.engine, context.monotonic_nanos());
    let busy = engine.scripting.scripts.interpreter_states().into_iter().find(|running| running.is_busy());
    let reply = &mut context.reply;
    reply.map(2);
    reply.bulk(b"running_script");
    match busy {
        None => reply.null(),
        Some(running) => {
            let command = running.command_args();
            reply.map(3);
            reply.bulk(b"name");
            reply.bulk(command.get(1).map_or(&b""[..], Vec::as_slice));
            reply.bulk(b"command");
            reply.array(command.len());
            command.iter().for_each(|word| reply.bulk(word));
            reply.bulk(b"duration_ms");
            reply.integer((running.elapsed_nanos(nanos) / 1_000_000) as i64);
        }
    }
    let functions = &engine.scripting.scripts.functions;
    reply.bulk(b"engines");
    reply.map(1);
    reply.bulk(b"LUA");
    reply.map(2);
    reply.bulk(b"libraries_count");
    reply.integer(functions.libraries().len() as i64);
    reply.bulk(b"functions_count");
    reply.integer(functions.len() as i64);
    Ok(())
}

pub(super) fn kill(context: &mut Context<'_>) -> Result<(), CommandError> {
    kill_running(context, true)
}

pub(super) fn dump(context: &mut Context<'_>) -> Result<(), CommandError> {
    let libraries = context.engine.scripting.scripts.functions.libraries();
    let payload = persistence::dump_functions(libraries.iter().map(|library| &*library.code));
    context.reply.bulk(&payload);
    Ok(())
}

pub(super) fn restore(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.args.len() > 4 {
        return Err(wrong_subcommand_arguments("FUNCTION", context.arg(1)));
    }
    let how = match context.args.get(3) {
        None => RestorePolicy::Append,
        Some(word) if word.eq_ignore_ascii_case(b"append") => RestorePolicy::Append,
        Some(word) if word.eq_ignore_ascii_case(b"replace") => RestorePolicy::Replace,
        Some(word) if word.eq_ignore_ascii_case(b"flush") => RestorePolicy::Flush,
        Some(_) => {
            return Err(CommandError::text(
                "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ));
        }
    };
    let longest = context.engine.settings.value_limits.proto_max_bulk_len.load(Ordering::Relaxed);
    let versions = context.engine.settings.input_checks.for_payloads().versions;
    let codes = persistence::restore_functions(context.arg(2), u64::try_from(longest).unwrap_or(0), versions)
        .map_err(|error| CommandError::Text(error.to_string().into()))?;
    let libraries = codes.iter().map(|code| context.load_library(code)).collect::<Result<Vec<_>, _>>()?;
    context
        .engine
        .scripting
        .scripts
        .functions
        .add_all(libraries, how)
        .map_err(|error| to_command_error(&error))?;
    context.count_changes(1);
    context.reply.ok();
    Ok(())
}

pub(super) fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "FUNCTION",
        &[
            "LOAD [REPLACE] <FUNCTION CODE>",
            "    Create a new library with the given library name and code.",
            "DELETE <LIBRARY NAME>",
            "    Delete the given library.",
            "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
            "    Return general information on all the libraries:",
            "    * Library name",
            "    * The engine used to run the Library",
            "    * Library description",
            "    * Functions list",
            "    * Library code (if WITHCODE is given)",
            "    It also possible to get only function that matches a pattern using LIBRARYNAME argument.",
            "STATS",
            "    Return information about the current function running:",
            "    * Function name",
            "    * Command used to run the function",
            "    * Duration in MS that the function is running",
            "    If no function is running, return nil",
            "    In addition, returns a list of available engines.",
            "KILL",
            "    Kill the current running function.",
            "FLUSH [ASYNC|SYNC]",
            "    Delete all the libraries.",
            "    When called without the optional mode argument, the behavior is determined by the",
            "    lazyfree-lazy-user-flush configuration directive. Valid modes are:",
            "    * ASYNC: Asynchronously flush the libraries.",
            "    * SYNC: Synchronously flush the libraries.",
            "DUMP",
            "    Return a serialized payload representing the current libraries, can be restored using FUNCTION \
             RESTORE command",
            "RESTORE <PAYLOAD> [FLUSH|APPEND|REPLACE]",
            "    Restore the libraries represented by the given payload, it is possible to give a restore policy to",
            "    control how to handle existing libraries (default APPEND):",
            "    * FLUSH: delete all existing libraries.",
            "    * APPEND: appends the restored libraries to the existing libraries. On collision, abort.",
            "    * REPLACE: appends the restored libraries to the existing libraries, On collision, replace the old",
            "      libraries with the new libraries (notice that even on this option there is a chance of failure",
            "      in case of functions name collision with another library).",
        ],
    );
    Ok(())
}
