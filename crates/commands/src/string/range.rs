//! Implements APPEND, SETRANGE and GETRANGE.

use std::sync::atomic::Ordering;

use engine::{CommandError, Context, EventClass};
use keyspace::{EncodingHint, PackedValue, StringRef};

/// Checks that the string stays within `proto-max-bulk-len`.
fn check_string_len(context: &Context<'_>, len: usize, added: usize) -> Result<usize, CommandError> {
    let most = context.engine.settings.value_limits.proto_max_bulk_len.load(Ordering::Relaxed);
    match len.checked_add(added) {
        Some(total) if total as u64 <= most as u64 || context.session.origin().is_stream() => Ok(total),
        _ => Err(CommandError::StringTooLong),
    }
}

pub(super) fn append(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, tail) = (context.key(1)?, context.arg(2));
    let total = match context.find(&key) {
        None => {
            context.put(&key, None, PackedValue::string(tail), None);
            tail.len()
        }
        Some(place) => {
            let len = context.string_value(&key, place)?.bytes.len();
            let total = check_string_len(context, len, tail.len())?;
            let (_, bytes) = context.table(&key).edit_string(place, &key, total, EncodingHint::Raw);
            bytes[len..].copy_from_slice(tail);
            context.report_modified(&key);
            total
        }
    };
    context.notify(EventClass::STRING, "append", &key);
    context.reply.integer(total as i64);
    Ok(())
}

pub(super) fn setrange(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, part) = (context.key(1)?, context.arg(3));
    let offset = context.integer_arg(2)?;
    let offset = usize::try_from(offset).map_err(|_| CommandError::text("ERR offset is out of range"))?;
    let found = context.find(&key);
    let len = match found {
        Some(place) => context.string_value(&key, place)?.bytes.len(),
        None => 0,
    };
    if part.is_empty() {
        context.reply.integer(len as i64);
        return Ok(());
    }
    let end = check_string_len(context, offset, part.len())?;
    let total = len.max(end);
    let place = match found {
        Some(place) => place,
        None => context.table(&key).insert(&key, PackedValue::string(b""), None),
    };
    let (_, bytes) = context.table(&key).edit_string(place, &key, total, EncodingHint::Raw);
    bytes[offset..end].copy_from_slice(part);
    context.report_modified(&key);
    context.notify(EventClass::STRING, "setrange", &key);
    context.reply.integer(total as i64);
    Ok(())
}

pub(super) fn getrange(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let (start, end) = (context.integer_arg(2)?, context.integer_arg(3)?);
    let Some(place) = context.find_for_read(&key) else {
        context.reply.bulk(b"");
        return Ok(());
    };
    context.string_value(&key, place)?;
    let (table, reply) = context.table_and_reply(&key);
    if let Some(string) = table.typed_value::<StringRef<'_>>(place) {
        reply.bulk(inclusive_slice(string.bytes, start, end));
    }
    Ok(())
}

/// The bytes from `start` to `end`, both inclusive. Negative positions count from the end.
fn inclusive_slice(bytes: &[u8], start: i64, end: i64) -> &[u8] {
    if start < 0 && end < 0 && start > end {
        return b"";
    }
    let len = bytes.len() as i64;
    let place = |index: i64| if index < 0 { (len + index).max(0) } else { index };
    let (start, end) = (place(start), place(end).min(len - 1));
    if start > end { b"" } else { &bytes[start as usize..=end as usize] }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::testing::Client;

    #[test]
    fn getrange_and_setrange_access_substrings() {
        Client::new().check_replies(&[
            ("append k hello", ":5"),
            ("append k \" world\"", ":11"),
            ("getrange k 0 4", "$5|hello"),
            ("getrange k -5 -1", "$5|world"),
            ("getrange k -1 -5", "$0|"),
            ("getrange k 5 2", "$0|"),
            ("getrange k -100 100", "$11|hello world"),
            ("getrange k -100 -50", "$1|h"),
            ("getrange k 11 20", "$0|"),
            ("getrange k 0 x", "-ERR value is not an integer or out of range"),
            ("getrange nosuch 0 1", "$0|"),
            ("substr k 1 2", "$2|el"),
            ("getrange k -9223372036854775808 9223372036854775807", "$11|hello world"),
            ("setrange k 6 there", ":11"),
            ("setrange k 6 \"\"", ":11"),
            ("setrange nosuch 6 \"\"", ":0"),
            ("get nosuch", "$-1"),
            ("setrange n 2 x", ":3"),
            ("getrange n 2 2", "$1|x"),
            ("strlen n", ":3"),
            ("setrange k -1 x", "-ERR offset is out of range"),
            ("setrange k x x", "-ERR value is not an integer or out of range"),
            ("get k", "$11|hello there"),
        ]);
    }

    #[test]
    fn string_length_limit_is_enforced() {
        let mut client = Client::new();
        client.engine.settings.value_limits.proto_max_bulk_len.store(8, Ordering::Relaxed);
        let refused = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)";
        client.check_replies(&[
            ("append k 12345678", ":8"),
            ("append k 9", refused),
            ("setrange k 8 9", refused),
            ("setrange n 9223372036854775807 x", refused),
            ("setrange n 7 x", ":8"),
        ]);
    }
}
