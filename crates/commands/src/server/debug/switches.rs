//! DEBUG subcommands that toggle behaviour or trigger an action.

use std::sync::atomic::Ordering;

use engine::{CommandError, Context, wrong_subcommand_arguments};

/// Replies OK without effect, for switches of mechanisms that this server lacks.
pub(super) fn reply_ok_without_effect(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.reply.ok();
    Ok(())
}

/// Handles `DEBUG REPLYBUFFER PEAK-RESET-TIME time | RESIZING 0|1`.
pub(super) fn reply_buffer(context: &mut Context<'_>) -> Result<(), CommandError> {
    let word = context.arg(2);
    if !word.eq_ignore_ascii_case(b"peak-reset-time") && !word.eq_ignore_ascii_case(b"resizing") {
        return Err(wrong_subcommand_arguments("DEBUG", context.arg(1)));
    }
    reply_ok_without_effect(context)
}

/// Handles `DEBUG SLOTMIGRATION PREVENT-PAUSE|PREVENT-FAILOVER 0|1`.
pub(super) fn slot_migration(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (word, settings) = (context.arg(2), &context.engine.settings);
    let switch = match () {
        () if word.eq_ignore_ascii_case(b"prevent-pause") => &settings.debug.prevent_migration_pause,
        () if word.eq_ignore_ascii_case(b"prevent-failover") => &settings.debug.prevent_migration_failover,
        () => return Err(wrong_subcommand_arguments("DEBUG", context.arg(1))),
    };
    let value = context.args.get(3).ok_or_else(|| wrong_subcommand_arguments("DEBUG", context.arg(1)))?;
    switch.store(resp::parse_i64(value).is_some_and(|value| value != 0), Ordering::Relaxed);
    reply_ok_without_effect(context)
}

/// Handles `DEBUG PROTECT-CLIENT id`.
pub(super) fn protect_client(context: &mut Context<'_>) -> Result<(), CommandError> {
    let id = resp::parse_i64(context.arg(2)).and_then(|id| u64::try_from(id).ok());
    let id = id.ok_or(CommandError::text("ERR Invalid client id"))?;
    let client = context.engine.clients.find(id).ok_or(CommandError::text("ERR No such client"))?;
    client.protect();
    reply_ok_without_effect(context)
}

/// Handles `DEBUG CLIENT-ENFORCE-REPLY-LIST 0|1`.
pub(super) fn client_enforce_reply_list(context: &mut Context<'_>) -> Result<(), CommandError> {
    let on = resp::parse_i64(context.arg(2)).is_some_and(|value| value != 0);
    context.engine.clients.use_reply_lists(on);
    reply_ok_without_effect(context)
}

pub(super) fn set_disable_deny_scripts(context: &mut Context<'_>) -> Result<(), CommandError> {
    let on = context.arg(2) == b"1";
    context.engine.settings.debug.scripts_may_call_all.store(on, Ordering::Relaxed);
    reply_ok_without_effect(context)
}

pub(super) fn set_skip_checksum_validation(context: &mut Context<'_>) -> Result<(), CommandError> {
    let on = context.arg(2) == b"1";
    context.engine.settings.debug.skip_checksums.store(on, Ordering::Relaxed);
    reply_ok_without_effect(context)
}

/// Handles `DEBUG PAUSE-AFTER-FORK 0|1`.
pub(super) fn pause_after_fork(context: &mut Context<'_>) -> Result<(), CommandError> {
    let on = context.arg(2) == b"1";
    context.engine.settings.debug.stops_at_snapshots.store(on, Ordering::Relaxed);
    reply_ok_without_effect(context)
}

/// Handles `DEBUG REPLICATE word [word ...]`: sends a command to replicas and the AOF without executing it.
pub(super) fn replicate(context: &mut Context<'_>) -> Result<(), CommandError> {
    let words: Vec<&[u8]> = context.args.iter().skip(2).collect();
    context.log_effect(&words);
    reply_ok_without_effect(context)
}

/// Handles `DEBUG LEAK text`.
pub(super) fn debug_leak(context: &mut Context<'_>) -> Result<(), CommandError> {
    Box::leak(Box::<[u8]>::from(context.arg(2)));
    reply_ok_without_effect(context)
}

/// Number of random pairs of a pattern and a text to match.
const PATTERN_ROUNDS: u64 = 100_000;

/// Handles `DEBUG STRINGMATCH-TEST`: fuzzes the glob matcher for crashes and excessive run time.
pub(super) fn stringmatch_test(context: &mut Context<'_>) -> Result<(), CommandError> {
    const PATTERN_LETTERS: &[u8] = b"*?[]^-\\ab\0\xff";
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ context.now.0 as u64;
    let mut next = |most: usize| {
        // The numbers come from Knuth's linear congruential generator; their quality does not matter here.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most
    };
    let (mut pattern, mut text) = (Vec::new(), Vec::new());
    for _ in 0..PATTERN_ROUNDS {
        pattern.clear();
        text.clear();
        (0..next(16)).for_each(|_| pattern.push(PATTERN_LETTERS[next(PATTERN_LETTERS.len())]));
        (0..next(16)).for_each(|_| text.push(PATTERN_LETTERS[next(PATTERN_LETTERS.len())]));
        let _ = std::hint::black_box(glob::matches(&pattern, &text));
    }
    context.reply.simple("Apparently the server did not crash: test passed");
    Ok(())
}
