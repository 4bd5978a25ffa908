//! Implements MGET, MSET, MSETNX and MSETEX.

use clock::Millis;
use engine::{CommandError, Context};
use keyspace::{PackedValue, StringRef};
use resp::Args;

use super::options::{AcceptedOptions, ExpiryOption, SetCondition, SetOptions};
use super::set::{notify_set, store_string};

pub(super) fn mget(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.reply.array(context.args.len() - 1);
    for index in 1..context.args.len() {
        let key = context.key(index)?;
        let found = context.find_for_read(&key);
        let (table, reply) = context.table_and_reply(&key);
        match found.and_then(|place| table.typed_value::<StringRef<'_>>(place)) {
            Some(string) => reply.bulk(string.bytes),
            None => reply.null(),
        }
    }
    Ok(())
}

/// The indexes of the keys in `key value [key value ...]`, which starts at argument 1.
fn key_indexes_of_pairs(
    args: Args<'_>,
    name: &str,
) -> Result<impl Iterator<Item = usize> + use<>, CommandError> {
    if args.len().is_multiple_of(2) {
        return Err(CommandError::WrongArity(name.to_owned()));
    }
    Ok((1..args.len()).step_by(2))
}

pub(super) fn mset(context: &mut Context<'_>) -> Result<(), CommandError> {
    for index in key_indexes_of_pairs(context.args, "mset")? {
        let (key, value) = (context.key(index)?, context.arg(index + 1));
        store_string(context, &key, value, None);
    }
    context.reply.ok();
    Ok(())
}

pub(super) fn msetnx(context: &mut Context<'_>) -> Result<(), CommandError> {
    for index in key_indexes_of_pairs(context.args, "msetnx")? {
        let key = context.key(index)?;
        if context.find(&key).is_some() {
            context.reply.integer(0);
            return Ok(());
        }
    }
    for index in key_indexes_of_pairs(context.args, "msetnx")? {
        // If the request names a key twice, the last value wins.
        let (key, value) = (context.key(index)?, context.arg(index + 1));
        store_string(context, &key, value, None);
    }
    context.reply.integer(1);
    Ok(())
}

/// Handles `MSETEX numkeys key value [key value ...] [NX | XX] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]`.
pub(super) fn msetex(context: &mut Context<'_>) -> Result<(), CommandError> {
    let count = resp::parse_i64(context.arg(1)).filter(|count| (1..=i64::from(i32::MAX)).contains(count));
    let count = count.ok_or(CommandError::text("ERR invalid numkeys value or out of range"))? as usize;
    if context.args.len() < 2 + count * 2 {
        return Err(CommandError::Syntax);
    }
    let options = SetOptions::parse(context.args, 2 + count * 2, AcceptedOptions::MSETEX)?;
    let at = options.expiry.resolve(context, "msetex")?;
    let places = || (0..count).map(|pair| 2 + pair * 2);
    for index in places() {
        let key = context.key(index)?;
        let there = context.find(&key).is_some();
        if there && options.condition == SetCondition::KeyMissing
            || !there && options.condition == SetCondition::KeyPresent
        {
            context.reply.integer(0);
            return Ok(());
        }
    }
    for index in places() {
        let (key, value) = (context.key(index)?, context.arg(index + 1));
        let found = context.find(&key);
        let kept = found.filter(|_| options.expiry == ExpiryOption::Keep);
        let expiry = at.or(kept.and_then(|place| context.table_ref(&key).expiry(place)));
        context.put(&key, found, PackedValue::string(value), expiry);
        if found.is_none() {
            context.publish_new_key(context.session.db(), &key);
        }
        notify_set(context, &key, at.is_some());
    }
    log_msetex(context, 2 + count * 2, &options.expiry, at);
    context.reply.integer(1);
    Ok(())
}

/// Replicates MSETEX without its condition and with an absolute expiry.
fn log_msetex(
    context: &mut Context<'_>,
    options_index: usize,
    expiry: &ExpiryOption<'_>,
    expiry_time: Option<Millis>,
) {
    let (args, mut digits) = (context.args, itoa::Buffer::new());
    let mut effect: Vec<&[u8]> = args.iter().take(options_index).collect();
    match expiry_time {
        Some(at) => effect.extend([&b"PXAT"[..], digits.format(at.0).as_bytes()]),
        None if *expiry == ExpiryOption::Keep => effect.push(b"KEEPTTL"),
        None => {}
    }
    context.log_effect(&effect);
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn multi_key_commands_read_and_set_several_strings() {
        Client::new().check_replies(&[
            ("mset a 1 b 2", "+OK"),
            ("mget a nosuch b a", "*4|$1|1|$-1|$1|2|$1|1"),
            ("mset a 1 b", "-ERR wrong number of arguments for 'mset' command"),
            ("msetnx a 5 c 3", ":0"),
            ("mget a c", "*2|$1|1|$-1"),
            ("msetnx c 3 c 4", ":1"),
            ("get c", "$1|4"),
            ("msetnx c 3 c", "-ERR wrong number of arguments for 'msetnx' command"),
        ]);
    }

    #[test]
    fn msetex_sets_all_or_none() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("msetex 2 a 1 b 2 ex 10 nx", ":1"),
            ("msetex 2 a 5 c 6 nx", ":0"),
            ("msetex 2 a 5 c 6 xx", ":0"),
            ("msetex 1 a 5 keepttl", ":1"),
            ("mget a b c", "*3|$1|5|$1|2|$-1"),
            ("msetex 0 a 5", "-ERR invalid numkeys value or out of range"),
            ("msetex x a 5", "-ERR invalid numkeys value or out of range"),
            ("msetex 2 a 5 b", "-ERR syntax error"),
            ("msetex 1 a 5 get", "-ERR syntax error"),
            ("msetex 1 a 5 ex 0", "-ERR invalid expire time in 'msetex' command"),
        ]);
        assert_eq!(
            client.logged_commands(),
            ["0 msetex 2 a 1 b 2 PXAT 1700000010000", "0 msetex 1 a 5 KEEPTTL",]
        );
    }
}
