//! FLUSHALL, FLUSHDB and SWAPDB. These commands lock every slot.

use std::sync::atomic::Ordering;

use engine::{CommandError, Context, Settings};

use crate::connection::parse_db_index;

/// Whether the client waits until the memory is freed. This depends on the option ASYNC or SYNC of FLUSHALL, FLUSHDB
/// and CLUSTER FLUSHSLOT, or on `lazyfree-lazy-user-flush` if no option is given. Other clients never wait, since the
/// slots are unlocked before the memory is freed.
pub(crate) fn should_wait_until_freed(
    option: Option<&[u8]>,
    settings: &Settings,
) -> Result<bool, CommandError> {
    match option {
        None => Ok(!settings.lazy_free.flush_async.load(Ordering::Relaxed)),
        Some(word) if word.eq_ignore_ascii_case(b"async") => Ok(false),
        Some(word) if word.eq_ignore_ascii_case(b"sync") => Ok(true),
        Some(_) => Err(CommandError::Syntax),
    }
}

pub(super) fn flushall(context: &mut Context<'_>) -> Result<(), CommandError> {
    flush(context, None)?;
    context.engine.settings.dataset.flushall_count.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

pub(super) fn flushdb(context: &mut Context<'_>) -> Result<(), CommandError> {
    let db = context.session.db();
    flush(context, Some(db))
}

/// Empties database `db`, or all databases if `db` is `None`.
fn flush(context: &mut Context<'_>, db: Option<u16>) -> Result<(), CommandError> {
    if context.args.len() > 2 {
        return Err(CommandError::Syntax);
    }
    let wait = should_wait_until_freed(context.args.get(1), &context.engine.settings)?;
    let removed = context.clear_databases(db, wait);
    context.engine.settings.dataset.cleared_databases.fetch_add(1, Ordering::Relaxed);
    context.engine.notifications.tracking.invalidate_all(&context.engine.clients);
    context.engine.diagnostics.hot_keys.discard_windows();
    if removed > 0 {
        context.count_changes(removed as u64);
    } else {
        // Replicate even if nothing was deleted: a replica may have keys that this server does not have.
        context.replicate();
    }
    context.reply.ok();
    Ok(())
}

pub(super) fn swapdb(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.engine.topology.is_some() {
        return Err(CommandError::text("ERR SWAPDB is not allowed in cluster mode"));
    }
    let number = |index, text| context.integer_arg(index).map_err(|_| CommandError::text(text));
    let first = number(1, "ERR invalid first DB index")?;
    let second = number(2, "ERR invalid second DB index")?;
    let (first, second) = (parse_db_index(context, first)?, parse_db_index(context, second)?);
    context.swap_databases(first, second);
    context.engine.notifications.tracking.invalidate_all(&context.engine.clients);
    context.count_changes(1);
    context.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::testing::Client;

    /// After the flush, the length of the lazy-free queue shows whether the memory is freed in the background.
    #[test]
    fn flush_without_option_follows_lazyfree_setting() {
        let mut client = Client::new();
        for (flush, lazy, elsewhere) in [
            ("flushall", true, true),
            ("flushall", false, false),
            ("flushdb", false, false),
            ("flushall async", false, true),
            ("flushdb sync", true, false),
        ] {
            client.engine.settings.lazy_free.flush_async.store(lazy, Ordering::Relaxed);
            for key in 0..20_000 {
                client.run_to_text(&format!("set {key} v"));
            }
            client.check_replies(&[(flush, "+OK"), ("dbsize", ":0")]);
            assert_eq!(client.engine.memory.lazy_free.pending_count() > 0, elsewhere, "{flush}, {lazy}");
            client.engine.memory.lazy_free.free_all();
        }
    }

    #[test]
    fn flush_and_swapdb_act_on_whole_databases() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("mset a 1 b 2", "+OK"),
            ("select 1", "+OK"),
            ("set a 3", "+OK"),
            ("swapdb 0 1", "+OK"),
            ("mget a b", "*2|$1|1|$1|2"),
            ("swapdb 1 1", "+OK"),
            ("swapdb x 1", "-ERR invalid first DB index"),
            ("swapdb 1 x", "-ERR invalid second DB index"),
            ("swapdb 1 99", "-ERR DB index is out of range"),
            ("flushdb nosuch", "-ERR syntax error"),
            ("flushdb sync async", "-ERR syntax error"),
            ("flushdb", "+OK"),
            ("dbsize", ":0"),
            ("select 0", "+OK"),
            ("dbsize", ":1"),
            ("flushall async", "+OK"),
            ("dbsize", ":0"),
            ("flushall", "+OK"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 mset a 1 b 2",
                "1 set a 3",
                "1 swapdb 0 1",
                "1 swapdb 1 1",
                "1 flushdb",
                "0 flushall async",
                "0 flushall"
            ]
        );
    }
}
