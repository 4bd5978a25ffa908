//! Implements RENAME, RENAMENX, MOVE and COPY.

use engine::{CommandError, Context, EventClass, RequestKeys};
use keyspace::{EntryRef, Key};
use resp::Args;

use crate::connection::parse_db_index;
use crate::rows::key;

const SAME_KEY_ERROR: CommandError = CommandError::text("ERR source and destination objects are the same");

pub(super) fn rename(context: &mut Context<'_>) -> Result<(), CommandError> {
    rename_key(context, true)?;
    context.reply.ok();
    Ok(())
}

pub(super) fn renamenx(context: &mut Context<'_>) -> Result<(), CommandError> {
    let renamed = rename_key(context, false)?;
    context.reply.integer(i64::from(renamed));
    Ok(())
}

/// Moves the value to the new name. Without `replace` (RENAMENX), nothing is moved if the target exists. Returns
/// whether the key was renamed.
fn rename_key(context: &mut Context<'_>, replace: bool) -> Result<bool, CommandError> {
    let (from, to) = (context.key(1)?, context.key(2)?);
    context.find(&from).ok_or(CommandError::NoSuchKey)?;
    if from.bytes() == to.bytes() || !replace && context.find(&to).is_some() {
        return Ok(false);
    }
    let db = context.session.db();
    rename_value(context, &from, db, &to);
    context.publish_new_key(db, &to);
    context.notify(EventClass::GENERIC, "rename_from", &from);
    context.notify(EventClass::GENERIC, "rename_to", &to);
    Ok(true)
}

/// Moves a value with its expiry to key `to` of database `db`, replacing any existing value. Takes constant time
/// regardless of the size of the value.
fn rename_value(context: &mut Context<'_>, from: &Key<'_>, db: u16, to: &Key<'_>) {
    if let Some(there) = context.find_in(db, to) {
        let dropped = context.slots.slot_mut(to.slot()).table(db).remove(there, to);
        context.discard(dropped);
    }
    // Look the entry up again: both keys may share a table, and removing the target may have moved the source.
    let place = context.find(from).expect("the caller has seen it");
    let table = context.table(from);
    let expiry = table.expiry(place);
    let value = table.detach(place, from);
    context.slots.slot_mut(to.slot()).table(db).attach(to, value, expiry);
    context.report_modified(from);
    context.report_modified_without_counting_change(db, to);
}

/// Copies a value with its expiry to a key of database `db`.
fn copy_value(
    context: &mut Context<'_>,
    from: &Key<'_>,
    entry_ref: EntryRef,
    db: u16,
    to: &Key<'_>,
    target_entry: Option<EntryRef>,
) {
    let table = context.table_ref(from);
    let (expiry, value) = (table.expiry(entry_ref), table.copy(entry_ref));
    context.put_value_in(db, to, target_entry, value, expiry);
}

pub(super) fn move_key(context: &mut Context<'_>) -> Result<(), CommandError> {
    if context.engine.is_cluster_with_one_database() {
        return Err(CommandError::text("ERR MOVE is not allowed in cluster mode"));
    }
    let key = context.key(1)?;
    let to = parse_db_index(context, context.integer_arg(2)?)?;
    if to == context.session.db() {
        return Err(SAME_KEY_ERROR);
    }
    let moved = match context.find(&key) {
        Some(_) if context.find_in(to, &key).is_none() => {
            rename_value(context, &key, to, &key);
            context.notify(EventClass::GENERIC, "move_from", &key);
            context.notify_in(to, EventClass::GENERIC, "move_to", &key);
            true
        }
        _ => false,
    };
    context.reply.integer(i64::from(moved));
    Ok(())
}

/// An option of COPY.
enum CopyOption {
    Replace,
    /// The option DB; holds the index of the argument with the database number.
    Db(usize),
    Unknown,
}

fn parse_copy_options(args: Args<'_>) -> impl Iterator<Item = CopyOption> {
    let mut index = 3;
    std::iter::from_fn(move || {
        let word = args.get(index)?;
        index += 1;
        match () {
            () if word.eq_ignore_ascii_case(b"replace") => Some(CopyOption::Replace),
            () if word.eq_ignore_ascii_case(b"db") && index < args.len() => {
                index += 1;
                Some(CopyOption::Db(index - 1))
            }
            () => Some(CopyOption::Unknown),
        }
    })
}

/// Keys of COPY. The target key counts in every database that a DB option names, though only the last one is used. A
/// request with an unknown option or an invalid number has no keys.
pub(super) fn parse_copy_keys(args: Args<'_>) -> RequestKeys {
    let keys = RequestKeys::default().key(1, key::READ).key(2, key::OVERWRITE);
    let number = |option| match option {
        CopyOption::Replace => None,
        CopyOption::Db(place) => Some(args.get(place).and_then(resp::parse_i64)),
        CopyOption::Unknown => Some(None),
    };
    let numbers: Option<Vec<i64>> = parse_copy_options(args).filter_map(number).collect();
    let is_malformed = |option| match option {
        CopyOption::Db(place) => args.get(place).and_then(resp::parse_i64).is_none(),
        CopyOption::Replace | CopyOption::Unknown => false,
    };
    keys.databases(numbers.unwrap_or_default()).invalid_database(parse_copy_options(args).any(is_malformed))
}

/// Handles `COPY source destination [DB number] [REPLACE]`.
pub(super) fn copy(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (from, to) = (context.key(1)?, context.key(2)?);
    let (mut db, mut replace) = (context.session.db(), false);
    for option in parse_copy_options(context.args) {
        match option {
            CopyOption::Replace => replace = true,
            CopyOption::Db(place) => {
                let number = context.integer_arg(place)?;
                if context.engine.is_cluster_with_one_database() && number != 0 {
                    return Err(CommandError::text(
                        "ERR Copying to another database is not allowed in cluster mode",
                    ));
                }
                db = parse_db_index(context, number)?;
            }
            CopyOption::Unknown => return Err(CommandError::Syntax),
        }
    }
    if db == context.session.db() && from.bytes() == to.bytes() {
        return Err(SAME_KEY_ERROR);
    }
    let there = context.find_in(db, &to);
    let copied = match context.find_for_read(&from) {
        Some(place) if there.is_none() || replace => {
            // Look the target up again: reading the source may have deleted it as expired and moved entries of the
            // table.
            let there = there.and_then(|_| context.find_in(db, &to));
            copy_value(context, &from, place, db, &to, there);
            context.publish_new_key(db, &to);
            context.notify_in(db, EventClass::GENERIC, "copy_to", &to);
            true
        }
        _ => false,
    };
    context.reply.integer(i64::from(copied));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn rename_moves_value_to_new_key() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("set a 1 px 1000", "+OK"),
            ("rename nosuch b", "-ERR no such key"),
            ("rename nosuch nosuch", "-ERR no such key"),
            ("rename a a", "+OK"),
            ("renamenx a a", ":0"),
            ("set {a}2 2", "+OK"),
            ("rename a {a}2", "+OK"),
            ("pttl {a}2", ":1000"),
            ("exists a", ":0"),
            ("set b 1", "+OK"),
            ("renamenx {a}2 b", ":0"),
            ("renamenx {a}2 c", ":1"),
            ("mget b c {a}2", "*3|$1|1|$1|1|$-1"),
        ]);
        assert_eq!(
            client.logged_commands()[1..],
            ["0 set {a}2 2", "0 rename a {a}2", "0 set b 1", "0 renamenx {a}2 c"]
        );
    }

    #[test]
    fn renamenx_ignores_expired_target() {
        let mut client = Client::new();
        client.check_replies(&[("set {k}a 1", "+OK"), ("set {k}b 2 px 1", "+OK")]);
        client.now.0 += 1;
        client.check_replies(&[("renamenx {k}a {k}b", ":1"), ("get {k}b", "$1|1"), ("copy {k}b {k}a", ":1")]);
    }

    #[test]
    fn copy_duplicates_values() {
        let same = "-ERR source and destination objects are the same";
        Client::new().check_replies(&[
            ("set a 1 px 1000", "+OK"),
            ("copy a b", ":1"),
            ("pttl b", ":1000"),
            ("copy a b", ":0"),
            ("set b 2", "+OK"),
            ("copy a b replace", ":1"),
            ("get b", "$1|1"),
            ("copy nosuch b replace", ":0"),
            ("get b", "$1|1"),
            ("copy a a", same),
            ("copy a a db 0", same),
            ("copy a a db 1", ":1"),
            ("copy a a db 1", ":0"),
            ("copy a a db 99", "-ERR DB index is out of range"),
            ("copy a a db x", "-ERR value is not an integer or out of range"),
            ("copy a b nosuch", "-ERR syntax error"),
            ("copy a b db", "-ERR syntax error"),
            ("select 1", "+OK"),
            ("get a", "$1|1"),
        ]);
    }

    #[test]
    fn move_transfers_keys_between_databases() {
        Client::new().check_replies(&[
            ("set a 1 px 1000", "+OK"),
            ("move a 0", "-ERR source and destination objects are the same"),
            ("move a 99", "-ERR DB index is out of range"),
            ("move a x", "-ERR value is not an integer or out of range"),
            ("move nosuch 1", ":0"),
            ("move a 1", ":1"),
            ("exists a", ":0"),
            ("set a 2", "+OK"),
            ("move a 1", ":0"),
            ("select 1", "+OK"),
            ("get a", "$1|1"),
            ("pttl a", ":1000"),
        ]);
    }

    #[test]
    fn renamed_and_copied_hashes_keep_all_fields() {
        for fields in [1, 40, 3000] {
            let mut client = Client::new();
            for field in 0..fields {
                client.call(&["hset", "{h}1", &format!("f{field}"), &format!("value {field}")]);
            }
            client.check_replies(&[
                ("pexpire {h}1 5000", ":1"),
                ("copy {h}1 other", ":1"),
                ("set {h}2 x", "+OK"),
            ]);
            let digest = client.run_to_text("debug digest-value {h}1");
            client.check_replies(&[
                ("rename {h}1 {h}2", "+OK"),
                ("exists {h}1", ":0"),
                ("pttl {h}2", ":5000"),
            ]);
            assert_eq!(client.run_to_text("debug digest-value {h}2"), digest);
            assert_eq!(client.run_to_text("debug digest-value other"), digest);
            client.check_replies(&[("renamenx {h}2 b", ":1"), ("move b 3", ":1"), ("exists b", ":0")]);
            client.check_replies(&[("select 3", "+OK"), ("pttl b", ":5000")]);
            assert_eq!(client.run_to_text("debug digest-value b"), digest);
            client.check_replies(&[("unlink b", ":1"), ("dbsize", ":0")]);
        }
    }

    /// Regression test: the `new` event was sent only if the target key did not exist before.
    #[test]
    fn replacing_a_key_sends_new_event() {
        let mut client = Client::new();
        client.engine.settings.set_notified_event_classes(engine::EventClass::NEW);
        client.check_events(&[
            ("set a 1", "new a, set a"),
            ("set b 2", "new b, set b"),
            ("set b 3", "set b"),
            ("copy a b", ""),
            ("copy a b replace", "new b, copy_to b"),
            ("rename a b", "new b, rename_from a, rename_to b"),
            ("renamenx b c", "new c, rename_from b, rename_to c"),
            ("rename c c", ""),
            ("move c 1", "new@1 c, move_from c, move_to@1 c"),
            ("msetex 1 m 1 pxat 1", "new m, set m, expire m"),
            ("hsetex h pxat 1 fields 1 f v", "new h, hset h, hexpire h, hexpired h, del h"),
        ]);
    }

    #[test]
    fn writable_replica_replaces_expired_target() {
        let mut client = Client::new();
        client.check_replies(&[("set a 1 px 10", "+OK"), ("set b 2", "+OK")]);
        client.now.0 += 10;
        client.engine.settings.set_node_flag(engine::NodeFlags::REPLICA, true);
        client.check_replies(&[("get a", "$-1"), ("dbsize", ":2"), ("rename b a", "+OK"), ("dbsize", ":1")]);
        client.check_replies(&[("get a", "$1|2")]);
    }
}
