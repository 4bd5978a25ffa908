//! Times as clients write them.

use clock::Millis;

use crate::error::CommandError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Millis,
}

/// What a time counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Now,
    Epoch,
}

/// An expiry as SET and its kin take it: it must lie after the epoch and fit in milliseconds.
pub(super) fn parse_expire(
    number: &[u8],
    unit: Unit,
    base: Base,
    now: Millis,
    command: &'static str,
) -> Result<Millis, CommandError> {
    let number = resp::parse_i64(number).ok_or(CommandError::NotInteger)?;
    let invalid = CommandError::InvalidExpire(command);
    if number <= 0 {
        return Err(invalid);
    }
    absolute(number, unit, base, now).ok_or(invalid)
}

/// The time `number` units after its base, if milliseconds can say it.
pub(super) fn absolute(number: i64, unit: Unit, base: Base, now: Millis) -> Option<Millis> {
    let millis = match unit {
        Unit::Seconds => number.checked_mul(1000)?,
        Unit::Millis => number,
    };
    match base {
        Base::Now => now.0.checked_add(millis).map(Millis),
        Base::Epoch => Some(Millis(millis)),
    }
}
