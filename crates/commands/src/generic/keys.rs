//! Implements EXISTS, TOUCH, TYPE, DEL and UNLINK.

use engine::{CommandError, Context, EventClass};
use keyspace::{EntryRef, Key};

/// Deletes the keys of DEL or UNLINK and replies with the number of deleted keys.
pub(super) fn del(context: &mut Context<'_>) -> Result<(), CommandError> {
    let mut deleted = 0;
    for index in 1..context.args.len() {
        let key = context.key(index)?;
        if let Some(place) = context.find(&key) {
            context.delete(&key, place);
            context.notify(EventClass::GENERIC, "del", &key);
            deleted += 1;
        }
    }
    context.reply.integer(deleted);
    Ok(())
}

/// A key that is named twice counts twice.
pub(super) fn exists(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_found_key_count(context, |context, key| context.find_for_read_without_touch(key))
}

/// Like EXISTS, but counts as an access to the keys even for a client with NO-TOUCH.
pub(super) fn touch(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_found_key_count(context, |context, key| {
        let found = context.find_for_read_without_touch(key);
        if let Some(place) = found {
            let before = context.table_ref(key).usage(place);
            context.mark_used(context.session.db(), key, place, before);
        }
        found
    })
}

fn reply_found_key_count(
    context: &mut Context<'_>,
    mut find_key: impl FnMut(&mut Context<'_>, &Key<'_>) -> Option<EntryRef>,
) -> Result<(), CommandError> {
    let mut there = 0;
    for index in 1..context.args.len() {
        let key = context.key(index)?;
        there += i64::from(find_key(context, &key).is_some());
    }
    context.reply.integer(there);
    Ok(())
}

pub(super) fn type_of(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.find_for_read_without_touch(&key);
    let name = found.map_or("none", |place| context.table_ref(&key).value(place).kind().name());
    context.reply.simple(name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn exists_type_and_del_report_existing_keys() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("mset a 1 b 2", "+OK"),
            ("exists a b a nosuch", ":3"),
            ("touch a nosuch", ":1"),
            ("type a", "+string"),
            ("type nosuch", "+none"),
            ("del a nosuch a", ":1"),
            ("unlink b", ":1"),
            ("unlink b", ":0"),
            ("exists a b", ":0"),
            ("del", "-ERR wrong number of arguments for 'del' command"),
        ]);
        assert_eq!(client.logged_commands(), ["0 mset a 1 b 2", "0 del a nosuch a", "0 unlink b"]);
    }

    #[test]
    fn commands_send_keyspace_events() {
        Client::new().check_events(&[
            ("mset a 1 b 2", "set a, set b"),
            ("del a nosuch a b", "del a, del b"),
            ("set a 1", "set a"),
            ("unlink a", "del a"),
            ("set a 1", "set a"),
            ("expire a 100", "expire a"),
            ("expire a 100 nx", ""),
            ("persist a", "persist a"),
            ("persist a", ""),
            ("touch a", ""),
            ("rename a b", "rename_from a, rename_to b"),
            ("rename b b", ""),
            ("renamenx b c", "rename_from b, rename_to c"),
            ("copy c d", "copy_to d"),
            ("copy c d", ""),
            ("copy c d db 1 replace", "copy_to@1 d"),
            ("move c 3", "move_from c, move_to@3 c"),
            ("pexpireat d 1", "expired d"),
            ("select 1", ""),
            ("expire d -1", "expired@1 d"),
            ("select 0", ""),
            ("set d 1", "set d"),
        ]);
    }
}
