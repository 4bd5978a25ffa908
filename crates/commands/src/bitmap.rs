//! Strings as bit arrays. Bit 0 is the most significant bit of the first byte.

mod bits;
mod combine;
mod count;
mod field;
mod integer;
mod position;

use engine::{Command, CommandError, Context, Flags, KeySpec};

use super::estimates;
use super::rows::*;

family!(bitmap, Bitmap, BITMAP);

pub(super) const COMMANDS: &[Command] = &[
    bitmap("bitcount", "2.6.0", -2, READ, READ_KEY, "Counts the bits of a string that are set.")
        .run(count::bitcount)
        .with_estimate(estimates::bytes_cost::<50>),
    bitmap(
        "bitfield",
        "3.2.0",
        -2,
        WRITE_DENYOOM,
        &[KeySpec::single_key(1, with_variable_flags(key::READ_UPDATE))],
        "Reads, sets and counts integers of any width within a string.",
    )
    .key_use(field::key_flags)
    .run(field::bitfield),
    bitmap("bitfield_ro", "6.0.0", -2, READ_FAST, READ_KEY, "Reads integers of any width within a string.")
        .run(field::bitfield_ro),
    bitmap(
        "bitop",
        "2.6.0",
        -4,
        WRITE_DENYOOM,
        &[KeySpec::single_key(2, key::OVERWRITE), KeySpec::key_range(3, -1, 1, key::READ)],
        "Computes a bitwise operation over strings and stores the result.",
    )
    .run(combine::bitop)
    .with_estimate(estimates::bytes_cost::<100>),
    bitmap("bitpos", "2.8.7", -3, READ, READ_KEY, "Finds the first set or clear bit.")
        .run(position::bitpos)
        .with_estimate(estimates::bytes_cost::<50>),
    bitmap("getbit", "2.2.0", 3, READ_FAST, READ_KEY, "Returns a bit of a string; bits past the end are 0.")
        .run(count::getbit),
    bitmap(
        "setbit",
        "2.2.0",
        4,
        WRITE_DENYOOM.union(Flags::LINEAR_IN_ARGS),
        READ_UPDATE_KEY,
        "Sets or clears a bit of a string, which is extended as needed.",
    )
    .run(count::setbit),
];

/// Parses argument `index` as a bit offset within the maximum string length. With a `width`, `#n` means the offset of
/// the n-th integer of `width` bits.
fn parse_bit_offset(context: &Context<'_>, index: usize, width: Option<u32>) -> Result<u64, CommandError> {
    let text = context.arg(index);
    let (text, times) = match (text.strip_prefix(b"#"), width) {
        (Some(number), Some(width)) => (number, u64::from(width)),
        _ => (text, 1),
    };
    let number = resp::parse_i64(text).and_then(|number| u64::try_from(number).ok());
    let offset = number.and_then(|number| number.checked_mul(times));
    let most =
        context.engine.settings.value_limits.proto_max_bulk_len.load(std::sync::atomic::Ordering::Relaxed);
    let fits = |offset: &u64| {
        // Commands from the master are not limited by `proto-max-bulk-len`, but no string can exceed `isize::MAX`
        // bytes.
        let bytes = if context.session.origin().is_stream() { isize::MAX as i64 } else { most };
        offset / 8 < bytes.unsigned_abs()
    };
    offset.filter(fits).ok_or(CommandError::text("ERR bit offset is not an integer or out of range"))
}

/// The unit of a range: bytes or bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RangeUnit {
    Byte,
    Bit,
}

impl RangeUnit {
    /// Parses the unit from argument `index`; without the argument, the unit is bytes.
    fn parse(context: &Context<'_>, index: usize) -> Result<Self, CommandError> {
        match context.args.get(index) {
            None => Ok(Self::Byte),
            Some(word) if word.eq_ignore_ascii_case(b"byte") => Ok(Self::Byte),
            Some(word) if word.eq_ignore_ascii_case(b"bit") => Ok(Self::Bit),
            Some(_) => Err(CommandError::Syntax),
        }
    }

    /// The length of a string of `bytes` bytes in this unit.
    fn length_in_unit(self, bytes: usize) -> i64 {
        match self {
            Self::Byte => bytes as i64,
            Self::Bit => bytes as i64 * 8,
        }
    }

    /// Converts `start` and `end` (both inclusive, negative values count from the end) to a range of bits in a string
    /// of `bytes` bytes.
    fn bit_range(self, bytes: usize, start: i64, end: i64) -> std::ops::Range<u64> {
        let len = self.length_in_unit(bytes);
        let place = |index: i64| if index < 0 { (len + index).max(0) } else { index };
        let (first, last) = (place(start), place(end).min(len - 1));
        if first > last {
            return 0..0;
        }
        let each = if self == Self::Byte { 8 } else { 1 };
        first as u64 * each..(last as u64 + 1) * each
    }
}
