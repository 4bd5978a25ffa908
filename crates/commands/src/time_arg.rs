//! Parsing of expiry and timeout arguments.

use std::ops::Range;

use bitflags::bitflags;
use clock::Millis;
use engine::{CommandError, Context, quote};

use crate::long_double::LongDouble;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeUnit {
    Seconds,
    Millis,
}

/// The reference point of a time: now or the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeBase {
    Now,
    Epoch,
}

/// Parses an expiry as SET does: the number must be positive, and the time in milliseconds must not overflow.
pub(super) fn parse_expiry(
    number: &[u8],
    unit: TimeUnit,
    base: TimeBase,
    now: Millis,
    command: &'static str,
) -> Result<Millis, CommandError> {
    let number = resp::parse_i64(number).ok_or(CommandError::NotInteger)?;
    let invalid = CommandError::InvalidExpire(command);
    if number <= 0 {
        return Err(invalid);
    }
    to_absolute(number, unit, base, now).ok_or(invalid)
}

/// Returns the absolute time that is `number` units after its base, or `None` on overflow.
pub(super) fn to_absolute(number: i64, unit: TimeUnit, base: TimeBase, now: Millis) -> Option<Millis> {
    let millis = match unit {
        TimeUnit::Seconds => number.checked_mul(1000)?,
        TimeUnit::Millis => number,
    };
    match base {
        TimeBase::Now => now.0.checked_add(millis).map(Millis),
        TimeBase::Epoch => Some(Millis(millis)),
    }
}

/// Parses argument `index` as a blocking timeout: a number of seconds, which may have a fraction. Returns the deadline,
/// or `None` if there is no limit.
pub(super) fn parse_timeout(context: &Context<'_>, index: usize) -> Result<Option<Millis>, CommandError> {
    let seconds = LongDouble::parse(context.arg(index))
        .map(LongDouble::to_double)
        .ok_or(CommandError::text("ERR timeout is not a float or out of range"))?;
    let millis = (seconds * 1000.0).ceil();
    if millis < 0.0 {
        return Err(CommandError::text("ERR timeout is negative"));
    }
    // The cast saturates, and the addition below then fails because of the overflow.
    match millis as i64 {
        0 => Ok(None),
        millis => match context.now.0.checked_add(millis) {
            Some(until) => Ok(Some(Millis(until))),
            None => Err(CommandError::text("ERR timeout is out of range")),
        },
    }
}

/// Returns the unit and base of a time if the word is EX, PX, EXAT or PXAT.
pub(super) fn parse_time_option(word: &[u8]) -> Option<(TimeUnit, TimeBase)> {
    match () {
        () if word.eq_ignore_ascii_case(b"ex") => Some((TimeUnit::Seconds, TimeBase::Now)),
        () if word.eq_ignore_ascii_case(b"px") => Some((TimeUnit::Millis, TimeBase::Now)),
        () if word.eq_ignore_ascii_case(b"exat") => Some((TimeUnit::Seconds, TimeBase::Epoch)),
        () if word.eq_ignore_ascii_case(b"pxat") => Some((TimeUnit::Millis, TimeBase::Epoch)),
        () => None,
    }
}

bitflags! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct ExpireCondition: u8 {
        /// The expiry changes only if the key or field has none yet.
        const NX = 1;
        /// The expiry changes only if the key or field already has one.
        const XX = 1 << 1;
        /// The expiry changes only if the new expiry is later than the present one.
        const GT = 1 << 2;
        /// The expiry changes only if the new expiry is earlier than the present one.
        const LT = 1 << 3;
    }
}

impl ExpireCondition {
    /// Parses NX, XX, GT and LT at these arguments.
    pub(super) fn parse(context: &Context<'_>, indexes: Range<usize>) -> Result<Self, CommandError> {
        let mut when = Self::empty();
        for word in indexes.filter_map(|index| context.args.get(index)) {
            when |= match () {
                () if word.eq_ignore_ascii_case(b"nx") => Self::NX,
                () if word.eq_ignore_ascii_case(b"xx") => Self::XX,
                () if word.eq_ignore_ascii_case(b"gt") => Self::GT,
                () if word.eq_ignore_ascii_case(b"lt") => Self::LT,
                () => {
                    let text = format!("ERR Unsupported option {}", quote(word, word.len()));
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

    /// Whether the conditions allow the expiry to change from `before` to `after`. No expiry counts as infinitely late.
    pub(super) fn is_satisfied(self, before: Option<Millis>, after: Millis) -> bool {
        let refused = self.contains(Self::NX) && before.is_some()
            || self.contains(Self::XX) && before.is_none()
            || self.contains(Self::GT) && before.is_none_or(|before| after <= before)
            || self.contains(Self::LT) && before.is_some_and(|before| after >= before);
        !refused
    }
}
