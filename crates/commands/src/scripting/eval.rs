//! EVAL, EVALSHA, FCALL and their read-only variants: resolve the script and its keys.

use std::sync::Arc;

use engine::{CommandError, Context, Runnable, ScriptCall, parse_sha1};
use scripting::Script;

const NO_SUCH_SCRIPT: CommandError = CommandError::text("NOSCRIPT No matching script.");

pub(super) fn eval(context: &mut Context<'_>) -> Result<ScriptCall, CommandError> {
    eval_source(context, false)
}

pub(super) fn eval_ro(context: &mut Context<'_>) -> Result<ScriptCall, CommandError> {
    eval_source(context, true)
}

pub(super) fn evalsha(context: &mut Context<'_>) -> Result<ScriptCall, CommandError> {
    eval_cached(context, false)
}

pub(super) fn evalsha_ro(context: &mut Context<'_>) -> Result<ScriptCall, CommandError> {
    eval_cached(context, true)
}

pub(super) fn fcall(context: &mut Context<'_>) -> Result<ScriptCall, CommandError> {
    call_function(context, false)
}

pub(super) fn fcall_ro(context: &mut Context<'_>) -> Result<ScriptCall, CommandError> {
    call_function(context, true)
}

/// Parses the number of keys. `not_a_number` is the error if the argument is not a number.
fn parse_key_count(context: &Context<'_>, not_a_number: CommandError) -> Result<usize, CommandError> {
    let count = context.integer_arg(2).map_err(|_| not_a_number)?;
    if count > context.args.len() as i64 - 3 {
        return Err(CommandError::text("ERR Number of keys can't be greater than number of args"));
    }
    usize::try_from(count).map_err(|_| CommandError::text("ERR Number of keys can't be negative"))
}

fn eval_source(context: &mut Context<'_>, read_only: bool) -> Result<ScriptCall, CommandError> {
    let keys = parse_key_count(context, CommandError::NotInteger)?;
    let what = match context.take_cached_script() {
        Some(found) => found,
        None => Runnable::Script(cache_script(context, context.arg(1), false)?),
    };
    build_script_call(context, what, keys, read_only)
}

fn eval_cached(context: &mut Context<'_>, read_only: bool) -> Result<ScriptCall, CommandError> {
    if context.session.is_debugging() {
        return Err(CommandError::text("ERR Please use EVAL instead of EVALSHA for debugging"));
    }
    // As in Redis, text that is not a SHA1 is reported before an invalid number of keys.
    if parse_sha1(context.arg(1)).is_none() {
        return Err(NO_SUCH_SCRIPT);
    }
    let keys = parse_key_count(context, CommandError::NotInteger)?;
    let what = match context.take_cached_script() {
        Some(found) => found,
        None => {
            let script =
                parse_sha1(context.arg(1)).and_then(|sha| context.engine.scripting.scripts.find(&sha));
            Runnable::Script(script.ok_or(NO_SUCH_SCRIPT)?)
        }
    };
    build_script_call(context, what, keys, read_only)
}

fn call_function(context: &mut Context<'_>, read_only: bool) -> Result<ScriptCall, CommandError> {
    let found = context.take_cached_script().or_else(|| {
        let (library, place) = context.engine.scripting.scripts.functions.find(context.arg(1))?;
        Some(Runnable::Function(library, place))
    });
    let what = found.ok_or(CommandError::text("ERR Function not found"))?;
    let keys = parse_key_count(context, CommandError::text("ERR Bad number of keys provided"))?;
    build_script_call(context, what, keys, read_only)
}

/// Checks that the script may run now, and returns the call for the engine to execute.
fn build_script_call(
    context: &Context<'_>,
    runnable: Runnable,
    key_count: usize,
    read_only: bool,
) -> Result<ScriptCall, CommandError> {
    context.check_script_start(runnable.flags(), read_only)?;
    if let Runnable::Script(script) = &runnable {
        script.record_use(context.now.0 as u64);
    }
    Ok(ScriptCall { runnable, declared_key_count: key_count, read_only })
}

/// Compiles a script and adds it to the cache.
pub(super) fn cache_script(
    context: &mut Context<'_>,
    text: &[u8],
    is_permanent: bool,
) -> Result<Arc<Script>, CommandError> {
    let script = Script::new(text).map_err(|error| CommandError::Text(error.to_string().into()))?;
    let script = match context.engine.scripting.scripts.find(&script.sha) {
        Some(known) => known,
        None => Arc::new(script),
    };
    context.compile_script(&script)?;
    let script = context.engine.scripting.scripts.add(script, is_permanent);
    context.cache_text(text, &script);
    Ok(script)
}
