//! LMOVE and RPOPLPUSH: moves of elements between lists.

use engine::{CommandError, Context, EventClass};
use keyspace::{EntryRef, ItemDigits, Key, ListEnd};
use smallvec::SmallVec;

use super::elements::ListAccess;
use super::elements::{pop_event, push_event, reply_item};
use super::options::parse_list_end;

pub(super) fn lmove(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (from, to) = (parse_list_end(context.arg(3))?, parse_list_end(context.arg(4))?);
    if !move_element(context, from, to)? {
        context.reply.null();
    }
    Ok(())
}

pub(super) fn rpoplpush(context: &mut Context<'_>) -> Result<(), CommandError> {
    if !move_element(context, ListEnd::Tail, ListEnd::Head)? {
        context.reply.null();
    }
    Ok(())
}

/// Moves an element from one end of the first list to one end of the second list and replies with the element. Returns
/// whether the first list had an element.
pub(super) fn move_element(
    context: &mut Context<'_>,
    from: ListEnd,
    to: ListEnd,
) -> Result<bool, CommandError> {
    let (source, target) = (context.key(1)?, context.key(2)?);
    let Some(place) = context.find_list(&source)? else { return Ok(false) };
    context.find_list(&target)?;
    let list = context.list_at(&source, place);
    let index = if from == ListEnd::Head { 0 } else { list.len() - 1 };
    let item = list.get(index).expect("no list is empty");
    let element: SmallVec<[u8; 256]> = item.bytes(&mut ItemDigits::default()).into();
    reply_item(&mut context.reply, element[..].into());
    if source.bytes() == target.bytes() {
        rotate_list(context, &source, place, from, to, &element);
        return Ok(true);
    }
    // Reading the target may have deleted it as expired and moved entries, because both keys may share a table.
    let limit = context.engine.settings.value_limits.list_limit();
    let there = context.peek(&target);
    let table = context.table(&target);
    let elements = std::iter::once(&element[..]);
    match there {
        None => table.list_create(&target, to, elements, limit),
        Some(there) => table.list_push(there, &target, to, elements, limit),
    };
    // LMOVE is one change for `rdb_changes_since_last_save`; the pop already counted it.
    context.report_modified_without_counting_change(context.session.db(), &target);
    context.notify(EventClass::LIST, push_event(to), &target);
    if let Some(place) = context.peek(&source) {
        context.pop(&source, place, from, 1);
    }
    Ok(true)
}

/// Moves an element from one end of a list to an end of the same list.
fn rotate_list(
    context: &mut Context<'_>,
    key: &Key<'_>,
    entry_ref: EntryRef,
    from: ListEnd,
    to: ListEnd,
    element: &[u8],
) {
    let limit = context.engine.settings.value_limits.list_limit();
    let place = context.remove_end_elements(key, entry_ref, from, 1);
    context.table(key).list_push(place, key, to, std::iter::once(element), limit);
    context.report_modified(key);
    context.notify(EventClass::LIST, push_event(to), key);
    context.notify(EventClass::LIST, pop_event(from), key);
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn lmove_moves_between_lists() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("lmove a b left right", "$-1"),
            ("rpoplpush a b", "$-1"),
            ("rpush a 1 2 3", ":3"),
            ("lmove a b left right", "$1|1"),
            ("lmove a b right left", "$1|3"),
            ("rpoplpush b c", "$1|1"),
            ("lmove a a LEFT RIGHT", "$1|2"),
            ("lmove a c left left", "$1|2"),
            ("exists a", ":0"),
            ("lrange c 0 -1", "*2|$1|2|$1|1"),
            ("rpoplpush c c", "$1|1"),
            ("lrange c 0 -1", "*2|$1|1|$1|2"),
            ("lmove c c left left", "$1|1"),
            ("lrange c 0 -1", "*2|$1|1|$1|2"),
            ("set s x", "+OK"),
            ("lmove s a left left", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("lmove c s left left", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("lmove nosuch s left left", "$-1"),
            ("lmove c b up left", "-ERR syntax error"),
            ("llen c", ":2"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 rpush a 1 2 3",
                "0 lmove a b left right",
                "0 lmove a b right left",
                "0 rpoplpush b c",
                "0 lmove a a LEFT RIGHT",
                "0 lmove a c left left",
                "0 rpoplpush c c",
                "0 lmove c c left left",
                "0 set s x",
            ]
        );
    }

    #[test]
    fn lmove_recreates_expired_target() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[("rpush a 1 2", ":2"), ("rpush {a}b x", ":1"), ("pexpire {a}b 10", ":1")]);
        client.now.0 += 10;
        client.check_replies(&[
            ("lmove a {a}b left right", "$1|1"),
            ("lrange {a}b 0 -1", "*1|$1|1"),
            ("ttl {a}b", ":-1"),
        ]);
        assert_eq!(client.logged_commands().split_off(3), ["0 UNLINK {a}b", "0 lmove a {a}b left right"]);
    }
}
