//! How long keys stay.

use clock::Millis;

use crate::context::Context;
use crate::error::CommandError;

/// No such key.
const MISSING: i64 = -2;
/// A key that stays.
const STAYS: i64 = -1;

fn reply(context: &mut Context<'_>, show: impl Fn(Millis, Millis) -> i64) -> Result<(), CommandError> {
    let key = context.key(1);
    let shown = match context.glance(&key) {
        None => MISSING,
        Some(place) => match context.table(&key).expiry(place) {
            None => STAYS,
            Some(at) => show(at, context.now),
        },
    };
    context.reply.integer(shown);
    Ok(())
}

fn left(at: Millis, now: Millis) -> i64 {
    at.0.saturating_sub(now.0).max(0)
}

/// To the nearest second, as Redis rounds.
fn rounded(millis: i64) -> i64 {
    (millis / 1000) + i64::from(millis % 1000 >= 500)
}

pub(super) fn ttl(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply(context, |at, now| rounded(left(at, now)))
}

pub(super) fn pttl(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply(context, left)
}

pub(super) fn expiretime(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply(context, |at, _| rounded(at.0))
}

pub(super) fn pexpiretime(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply(context, |at, _| at.0)
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn times_are_told_in_both_units() {
        Client::new().table(&[
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
