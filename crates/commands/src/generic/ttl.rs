//! Implements TTL, PTTL, EXPIRETIME and PEXPIRETIME.

use clock::Millis;
use engine::{CommandError, Context};

/// Reply for a key that does not exist.
const MISSING_KEY_REPLY: i64 = -2;
/// Reply for a key without an expiry.
const NO_EXPIRY_REPLY: i64 = -1;

fn reply_ttl(context: &mut Context<'_>, convert: impl Fn(Millis, Millis) -> i64) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let shown = match context.find_for_read_without_touch(&key) {
        None => MISSING_KEY_REPLY,
        Some(place) => match context.table_ref(&key).expiry(place) {
            None => NO_EXPIRY_REPLY,
            Some(at) => convert(at, context.now),
        },
    };
    context.reply.integer(shown);
    Ok(())
}

fn remaining_millis(expiry: Millis, now: Millis) -> i64 {
    expiry.0.saturating_sub(now.0).max(0)
}

/// Rounds to the nearest second, as Redis does.
fn to_rounded_seconds(millis: i64) -> i64 {
    (millis / 1000) + i64::from(millis % 1000 >= 500)
}

pub(super) fn ttl(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_ttl(context, |at, now| to_rounded_seconds(remaining_millis(at, now)))
}

pub(super) fn pttl(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_ttl(context, remaining_millis)
}

pub(super) fn expiretime(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_ttl(context, |at, _| to_rounded_seconds(at.0))
}

pub(super) fn pexpiretime(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_ttl(context, |at, _| at.0)
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn expiry_beyond_48_bits_is_reported_exactly() {
        let mut client = Client::new();
        let far = i64::MAX;
        client.check_replies(&[
            ("set k v", "+OK"),
            (&format!("pexpireat k {far}"), ":1"),
            ("pexpiretime k", ":9223372036854775807"),
            ("pttl k", ":9223370336854775807"),
            ("ttl k", ":9223370336854776"),
            ("expiretime k", ":9223372036854776"),
            ("pexpireat k 9223372036854775806 gt", ":0"),
            ("pexpireat k 9223372036854775806 lt", ":1"),
            ("append k w", ":2"),
            ("rename k l", "+OK"),
            ("copy l k", ":1"),
            ("pexpiretime k", ":9223372036854775806"),
            ("pexpire k 1500", ":1"),
            ("pttl k", ":1500"),
            ("pexpireat k 140737488355328", ":1"),
            ("pexpiretime k", ":140737488355328"),
            ("persist k", ":1"),
            ("ttl k", ":-1"),
            ("get k", "$2|vw"),
            ("expireat l 9223372036854775", ":1"),
            ("pexpiretime l", ":9223372036854775000"),
            ("hset h f v", ":1"),
            ("pexpireat h 9000000000000000000", ":1"),
            ("hset h f longer g v", ":1"),
            ("pexpiretime h", ":9000000000000000000"),
            ("set k v pxat 9000000000000000000", "+OK"),
            ("getex k pxat 9000000000000000001", "$1|v"),
            ("set k w keepttl", "+OK"),
            ("pexpiretime k", ":9000000000000000001"),
            ("incrby k 1", "-ERR value is not an integer or out of range"),
        ]);
    }

    #[test]
    fn ttl_is_reported_in_seconds_and_milliseconds() {
        Client::new().check_replies(&[
            ("mset k v stays v", "+OK"),
            ("pexpire k 1499", ":1"),
            ("ttl k", ":1"),
            ("pttl k", ":1499"),
            ("pexpire k 1500", ":1"),
            ("ttl k", ":2"),
            ("expiretime k", ":1700000002"),
            ("pexpiretime k", ":1700000001500"),
            ("ttl stays", ":-1"),
            ("pttl stays", ":-1"),
            ("expiretime stays", ":-1"),
            ("pexpiretime stays", ":-1"),
            ("ttl nosuch", ":-2"),
            ("pttl nosuch", ":-2"),
            ("expiretime nosuch", ":-2"),
            ("pexpiretime nosuch", ":-2"),
        ]);
    }
}
