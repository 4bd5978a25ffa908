//! Implements EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT and PERSIST.

use engine::{CommandError, Context};

use crate::time_arg::{ExpireCondition, TimeBase, TimeUnit, to_absolute};

fn set_expiry(
    context: &mut Context<'_>,
    unit: TimeUnit,
    base: TimeBase,
    name: &'static str,
) -> Result<(), CommandError> {
    let when = ExpireCondition::parse(context, 3..context.args.len())?;
    let number = context.integer_arg(2)?;
    let at = to_absolute(number, unit, base, context.now).ok_or(CommandError::InvalidExpire(name))?;
    let key = context.key(1)?;
    let mut done = false;
    if let Some(place) = context.find(&key)
        && when.is_satisfied(context.table_ref(&key).expiry(place), at)
    {
        context.expire_at(&key, place, at);
        done = true;
    }
    context.reply.integer(i64::from(done));
    Ok(())
}

pub(super) fn expire(context: &mut Context<'_>) -> Result<(), CommandError> {
    set_expiry(context, TimeUnit::Seconds, TimeBase::Now, "expire")
}

pub(super) fn pexpire(context: &mut Context<'_>) -> Result<(), CommandError> {
    set_expiry(context, TimeUnit::Millis, TimeBase::Now, "pexpire")
}

pub(super) fn expireat(context: &mut Context<'_>) -> Result<(), CommandError> {
    set_expiry(context, TimeUnit::Seconds, TimeBase::Epoch, "expireat")
}

pub(super) fn pexpireat(context: &mut Context<'_>) -> Result<(), CommandError> {
    set_expiry(context, TimeUnit::Millis, TimeBase::Epoch, "pexpireat")
}

pub(super) fn persist(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.find(&key);
    let done = found.is_some_and(|place| context.persist(&key, place));
    context.reply.integer(i64::from(done));
    Ok(())
}

#[cfg(test)]
mod tests {
    use engine::NodeFlags;

    use crate::testing::Client;

    #[test]
    fn expire_commands_apply_times_and_conditions() {
        let both = "-ERR NX and XX, GT or LT options at the same time are not compatible";
        Client::new().check_replies(&[
            ("set k v", "+OK"),
            ("expire k 10 xx", ":0"),
            ("expire k 10 gt", ":0"),
            ("expire k 10 nx", ":1"),
            ("expire k 10 nx", ":0"),
            ("expire k 20 gt", ":1"),
            ("expire k 10 gt", ":0"),
            ("expire k 10 lt", ":1"),
            ("expire k 20 lt", ":0"),
            ("expire k 20 xx gt", ":1"),
            ("ttl k", ":20"),
            ("persist k", ":1"),
            ("persist k", ":0"),
            ("persist nosuch", ":0"),
            ("expire k 10 lt", ":1"),
            ("expire nosuch 10", ":0"),
            ("expire k x", "-ERR value is not an integer or out of range"),
            ("expire k 10 nx xx", both),
            ("expire k 10 nx lt", both),
            ("expire k 10 gt lt", "-ERR GT and LT options at the same time are not compatible"),
            ("expire k 10 nosuch", "-ERR Unsupported option nosuch"),
            ("expire k 9223372036854775807", "-ERR invalid expire time in 'expire' command"),
            ("pexpire k 9223372036854775807", "-ERR invalid expire time in 'pexpire' command"),
            ("expireat k 9223372036854776", "-ERR invalid expire time in 'expireat' command"),
            ("pexpireat k 9223372036854775807", ":1"),
            ("expire k -1 gt", ":0"),
            ("expire k -1", ":1"),
            ("exists k", ":0"),
        ]);
    }

    #[test]
    fn expiries_are_replicated_as_absolute_times_or_deletions() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("set k v", "+OK"),
            ("expire k 1", ":1"),
            ("pexpire k 1", ":1"),
            ("expireat k 1800000000", ":1"),
            ("persist k", ":1"),
            ("pexpireat k 1", ":1"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 set k v",
                "0 PEXPIREAT k 1700000001000",
                "0 PEXPIREAT k 1700000000001",
                "0 PEXPIREAT k 1800000000000",
                "0 PERSIST k",
                "0 UNLINK k",
            ]
        );
    }

    #[test]
    fn replica_hides_expired_keys() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[("set k v px 10", "+OK")]);
        client.engine.settings.set_node_flag(NodeFlags::REPLICA, true);
        client.now.0 += 10;
        client.check_replies(&[("get k", "$-1"), ("ttl k", ":-2"), ("exists k", ":0"), ("dbsize", ":1")]);
        assert_eq!(client.logged_commands(), ["0 SET k v PXAT 1700000000010"]);
    }
}
