//! When keys go: EXPIRE and its kin.

use bitflags::bitflags;
use clock::Millis;

use crate::commands::time_arg::{Base, Unit, absolute};
use crate::context::Context;
use crate::error::{CommandError, quoted};

bitflags! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct When: u8 {
        /// Only if the key does not expire yet.
        const NX = 1;
        /// Only if it does.
        const XX = 1 << 1;
        /// Only if it then expires later.
        const GT = 1 << 2;
        /// Only if it then expires earlier.
        const LT = 1 << 3;
    }
}

impl When {
    fn parse(context: &Context<'_>) -> Result<Self, CommandError> {
        let mut when = Self::empty();
        for word in context.args.from(3).iter() {
            when |= match () {
                () if word.eq_ignore_ascii_case(b"nx") => Self::NX,
                () if word.eq_ignore_ascii_case(b"xx") => Self::XX,
                () if word.eq_ignore_ascii_case(b"gt") => Self::GT,
                () if word.eq_ignore_ascii_case(b"lt") => Self::LT,
                () => {
                    let text = format!("ERR Unsupported option {}", quoted(word, word.len()));
                    return Err(CommandError::Text(text.into()));
                }
            };
        }
        if when.contains(Self::NX) && when != Self::NX {
            return Err(CommandError::text(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if when.contains(Self::GT | Self::LT) {
            return Err(CommandError::text("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(when)
    }

    /// Whether an expiry `before` may become `after`. No expiry counts as the latest of all.
    fn allows(self, before: Option<Millis>, after: Millis) -> bool {
        let refused = self.contains(Self::NX) && before.is_some()
            || self.contains(Self::XX) && before.is_none()
            || self.contains(Self::GT) && before.is_none_or(|before| after <= before)
            || self.contains(Self::LT) && before.is_some_and(|before| after >= before);
        !refused
    }
}

fn change(context: &mut Context<'_>, unit: Unit, base: Base, name: &'static str) -> Result<(), CommandError> {
    let when = When::parse(context)?;
    let number = context.integer(2)?;
    let at = absolute(number, unit, base, context.now).ok_or(CommandError::InvalidExpire(name))?;
    let key = context.key(1);
    let mut done = false;
    if let Some(place) = context.find(&key)
        && when.allows(context.table(&key).expiry(place), at)
    {
        context.expire_at(&key, place, at);
        done = true;
    }
    context.reply.integer(i64::from(done));
    Ok(())
}

pub(super) fn expire(context: &mut Context<'_>) -> Result<(), CommandError> {
    change(context, Unit::Seconds, Base::Now, "expire")
}

pub(super) fn pexpire(context: &mut Context<'_>) -> Result<(), CommandError> {
    change(context, Unit::Millis, Base::Now, "pexpire")
}

pub(super) fn expireat(context: &mut Context<'_>) -> Result<(), CommandError> {
    change(context, Unit::Seconds, Base::Epoch, "expireat")
}

pub(super) fn pexpireat(context: &mut Context<'_>) -> Result<(), CommandError> {
    change(context, Unit::Millis, Base::Epoch, "pexpireat")
}

pub(super) fn persist(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1);
    let found = context.find(&key);
    let done = found.is_some_and(|place| context.persist(&key, place));
    context.reply.integer(i64::from(done));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::testing::Client;

    #[test]
    fn times_and_conditions() {
        let both = "-ERR NX and XX, GT or LT options at the same time are not compatible";
        Client::new().table(&[
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
    fn the_log_gets_absolute_times_and_deletions() {
        let mut client = Client::logged();
        client.table(&[
            ("set k v", "+OK"),
            ("expire k 1", ":1"),
            ("pexpire k 1", ":1"),
            ("expireat k 1800000000", ":1"),
            ("persist k", ":1"),
            ("pexpireat k 1", ":1"),
        ]);
        assert_eq!(
            client.log(),
            [
                "0 set k v",
                "0 PEXPIREAT k 1700000001000",
                "0 PEXPIREAT k 1700000000001",
                "0 PEXPIREAT k 1800000000000",
                "0 PERSIST k",
                "0 DEL k",
            ]
        );
    }

    #[test]
    fn a_replica_hides_what_its_master_has_not_deleted_yet() {
        let mut client = Client::logged();
        client.table(&[("set k v px 10", "+OK")]);
        client.engine.settings.replica.store(true, Ordering::Relaxed);
        client.now.0 += 10;
        client.table(&[("get k", "$-1"), ("ttl k", ":-2"), ("exists k", ":0"), ("dbsize", ":1")]);
        assert_eq!(client.log(), ["0 SET k v PXAT 1700000000010"]);
    }
}
