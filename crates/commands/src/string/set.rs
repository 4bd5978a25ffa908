//! Implements SET, SETNX, SETEX, PSETEX and GETSET.

use clock::Millis;
use engine::{CommandError, Context, EventClass, KeyFlags};
use keyspace::{Key, PackedValue};
use resp::Args;

use super::get::find_and_reply_string;
use super::options::{AcceptedOptions, ExpiryOption, SetCondition, SetOptions};
use crate::time_arg::{TimeBase, TimeUnit, parse_expiry};

/// Key flags of SET. With the option GET, the command also returns the old value.
pub(super) fn key_flags(args: Args<'_>) -> KeyFlags {
    if args.skip(3).iter().any(|word| word.eq_ignore_ascii_case(b"get")) {
        KeyFlags::RW | KeyFlags::ACCESS | KeyFlags::UPDATE
    } else {
        KeyFlags::OW | KeyFlags::UPDATE
    }
}

pub(super) fn set(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, value) = (context.key(1)?, context.arg(2));
    if context.args.len() == 3 {
        store_string(context, &key, value, None);
        context.reply.ok();
        return Ok(());
    }
    let options = SetOptions::parse(context.args, 3, AcceptedOptions::SET)?;
    let mut expiry = options.expiry.resolve(context, "set")?;
    let found =
        if options.returns_old_value { find_and_reply_string(context, &key)? } else { context.find(&key) };
    let wanted = match (options.condition, found) {
        (SetCondition::Always, _)
        | (SetCondition::KeyMissing, None)
        | (SetCondition::KeyPresent, Some(_)) => true,
        (SetCondition::Comparison(comparison), Some(place)) => {
            comparison.is_satisfied(Some(context.string_value(&key, place)?.bytes))?
        }
        (SetCondition::Comparison(comparison), None) => comparison.is_satisfied(None)?,
        _ => false,
    };
    if !wanted {
        if !options.returns_old_value {
            context.reply.null();
        }
        return Ok(());
    }
    if !options.returns_old_value {
        context.reply.ok();
    }
    let expires = matches!(options.expiry, ExpiryOption::At { .. });
    if expires && expiry.is_some_and(|at| at <= context.now) && context.deletes_expired() {
        // The expiry is in the past, so the old value is deleted and nothing is stored.
        if let Some(place) = found {
            context.expire_now(&key, place);
        }
        return Ok(());
    }
    if let (ExpiryOption::Keep, Some(place)) = (options.expiry, found) {
        expiry = context.table_ref(&key).expiry(place);
    }
    context.put(&key, found, PackedValue::string(value), expiry);
    notify_set(context, &key, expires);
    log_set(context, &key, value, &options, expiry);
    Ok(())
}

/// Sends the event `set`, and the event `expire` if the key has an expiry.
pub(super) fn notify_set(context: &Context<'_>, key: &Key<'_>, expires: bool) {
    context.notify(EventClass::STRING, "set", key);
    if expires {
        context.notify(EventClass::GENERIC, "expire", key);
    }
}

/// Replicates SET with an absolute expiry. Options that a replica may not support are omitted: GET, and a comparison,
/// which has already succeeded. All other options are replicated verbatim.
fn log_set(
    context: &mut Context<'_>,
    key: &Key<'_>,
    value: &[u8],
    options: &SetOptions<'_>,
    expiry: Option<Millis>,
) {
    let anew = options.returns_old_value || matches!(options.condition, SetCondition::Comparison(_));
    match options.expiry {
        ExpiryOption::At { .. } => log_set_with_expiry(context, key, value, expiry),
        ExpiryOption::Keep if anew => context.log_effect(&[b"SET", key.bytes(), value, b"KEEPTTL"]),
        _ if anew => context.log_effect(&[b"SET", key.bytes(), value]),
        _ => {}
    }
}

fn log_set_with_expiry(context: &mut Context<'_>, key: &Key<'_>, value: &[u8], expiry: Option<Millis>) {
    let mut digits = itoa::Buffer::new();
    match expiry {
        Some(at) => {
            context.log_effect(&[b"SET", key.bytes(), value, b"PXAT", digits.format(at.0).as_bytes()]);
        }
        None => context.log_effect(&[b"SET", key.bytes(), value]),
    }
}

pub(super) fn setnx(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, value) = (context.key(1)?, context.arg(2));
    let missing = context.find(&key).is_none();
    if missing {
        context.put(&key, None, PackedValue::string(value), None);
        notify_set(context, &key, false);
    }
    context.reply.integer(i64::from(missing));
    Ok(())
}

pub(super) fn setex(context: &mut Context<'_>) -> Result<(), CommandError> {
    set_with_expiry(context, TimeUnit::Seconds, "setex")
}

pub(super) fn psetex(context: &mut Context<'_>) -> Result<(), CommandError> {
    set_with_expiry(context, TimeUnit::Millis, "psetex")
}

fn set_with_expiry(
    context: &mut Context<'_>,
    unit: TimeUnit,
    name: &'static str,
) -> Result<(), CommandError> {
    let (key, value) = (context.key(1)?, context.arg(3));
    let expiry = Some(parse_expiry(context.arg(2), unit, TimeBase::Now, context.now, name)?);
    store_string(context, &key, value, expiry);
    log_set_with_expiry(context, &key, value, expiry);
    context.reply.ok();
    Ok(())
}

pub(super) fn getset(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, value) = (context.key(1)?, context.arg(2));
    let found = find_and_reply_string(context, &key)?;
    context.put(&key, found, PackedValue::string(value), None);
    notify_set(context, &key, false);
    context.log_effect(&[b"SET", key.bytes(), value]);
    Ok(())
}

/// Stores a string under `key`, replacing any value, and notifies subscribers.
pub(super) fn store_string(context: &mut Context<'_>, key: &Key<'_>, value: &[u8], expiry: Option<Millis>) {
    let found = context.find(key);
    context.put(key, found, PackedValue::string(value), expiry);
    notify_set(context, key, expiry.is_some());
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn set_options_control_writes() {
        Client::new().check_replies(&[
            ("set k v", "+OK"),
            ("set k w nx", "$-1"),
            ("set k w nx get", "$1|v"),
            ("set k w xx", "+OK"),
            ("set x w xx", "$-1"),
            ("set x w xx get", "$-1"),
            ("set k v get", "$1|w"),
            ("set k w ifeq x", "$-1"),
            ("set k w ifeq v", "+OK"),
            ("set k v ifeq w get", "$1|w"),
            ("set nokey v ifeq w", "$-1"),
            ("set k v nx xx", "-ERR syntax error"),
            ("set k v nx nx", "$-1"),
            ("set k v ifeq v ifeq v", "-ERR syntax error"),
            ("set k v nx ifeq v", "-ERR syntax error"),
            ("set k v ifeq", "-ERR syntax error"),
            ("set k v ex 10 px 10", "-ERR syntax error"),
            ("set k v ex 10 ex 20", "+OK"),
            ("set k v ex 10 exat 20", "-ERR syntax error"),
            ("set k v keepttl ex 10", "-ERR syntax error"),
            ("set k v persist", "-ERR syntax error"),
            ("set k v ex", "-ERR syntax error"),
            ("set k v nosuch", "-ERR syntax error"),
            ("set k v ex 1.5", "-ERR value is not an integer or out of range"),
            ("set k v ex 0", "-ERR invalid expire time in 'set' command"),
            ("set k v exat -1", "-ERR invalid expire time in 'set' command"),
            ("set k v ex 9223372036854776", "-ERR invalid expire time in 'set' command"),
            ("set k v px 9223372036854775807", "-ERR invalid expire time in 'set' command"),
            ("set k", "-ERR wrong number of arguments for 'set' command"),
        ]);
    }

    #[test]
    fn setnx_setex_psetex_and_getset_store_strings() {
        Client::new().check_replies(&[
            ("setnx k v", ":1"),
            ("setnx k w", ":0"),
            ("getset k w", "$1|v"),
            ("getset n w", "$-1"),
            ("setex k 10 v", "+OK"),
            ("psetex k 10 v", "+OK"),
            ("setex k 0 v", "-ERR invalid expire time in 'setex' command"),
            ("psetex k -1 v", "-ERR invalid expire time in 'psetex' command"),
            ("setex k x v", "-ERR value is not an integer or out of range"),
            ("get k", "$1|v"),
        ]);
    }

    #[test]
    fn set_is_replicated_deterministically() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("set k v ex 1", "+OK"),
            ("set k w keepttl", "+OK"),
            ("set k v ifeq w keepttl", "+OK"),
            ("set k w ifeq v", "+OK"),
            ("set k v ifeq w px 5", "+OK"),
            ("set k w nx", "$-1"),
            ("setex k 1 v", "+OK"),
            ("getset k w", "$1|v"),
            ("set k v get", "$1|w"),
            ("set k v xx get keepttl", "$1|v"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 SET k v PXAT 1700000001000",
                "0 set k w keepttl",
                "0 SET k v KEEPTTL",
                "0 SET k w",
                "0 SET k v PXAT 1700000000005",
                "0 SET k v PXAT 1700000001000",
                "0 SET k w",
                "0 SET k v",
                "0 SET k v KEEPTTL",
            ]
        );
    }

    #[test]
    fn commands_send_keyspace_events() {
        Client::new().check_events(&[
            ("set k v", "set k"),
            ("set k v ex 10", "set k, expire k"),
            ("set k v nx", ""),
            ("set k v keepttl", "set k"),
            ("setnx k v", ""),
            ("setnx n v", "set n"),
            ("setex k 10 v", "set k, expire k"),
            ("psetex k 10 v", "set k, expire k"),
            ("getset k w", "set k"),
            ("getex k ex 10", "expire k"),
            ("getex k", ""),
            ("getex k persist", "persist k"),
            ("getex k exat 1", "expired k"),
            ("set k v exat 1", ""),
            ("set k v", "set k"),
            ("set k v pxat 1", "expired k"),
            ("set k v", "set k"),
            ("pexpireat k 1", "expired k"),
            ("append k x", "append k"),
            ("setrange k 3 y", "setrange k"),
            ("setrange k 0 \"\"", ""),
            ("getdel k", "del k"),
            ("incr k", "incrby k"),
            ("decrby k 3", "incrby k"),
            ("incrbyfloat k 1.5", "incrbyfloat k"),
            ("mset a 1 b 2", "set a, set b"),
            ("msetnx a 1 c 2", ""),
            ("msetnx c 1 d 2", "set c, set d"),
            ("msetex 2 a 1 b 2 ex 10", "set a, expire a, set b, expire b"),
            ("msetex 1 a 1 keepttl", "set a"),
            ("msetex 2 a 1 b 2 nx", ""),
            ("delifeq a 2", ""),
            ("delifeq a 1", "del a"),
            ("get b", ""),
        ]);
    }
}
