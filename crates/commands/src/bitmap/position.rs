//! BITPOS: the position of the first set or clear bit.

use engine::{CommandError, Context};
use keyspace::StringRef;

use super::RangeUnit;
use super::bits::find_bit;

/// Handles `BITPOS key bit [start [end [BYTE | BIT]]]`.
pub(super) fn bitpos(context: &mut Context<'_>) -> Result<(), CommandError> {
    let bit = match context.integer_arg(2)? {
        0 => false,
        1 => true,
        _ => return Err(CommandError::text("ERR The bit argument must be 1 or 0.")),
    };
    let words = context.args.len();
    if words > 6 {
        return Err(CommandError::Syntax);
    }
    let start = if words > 3 { context.integer_arg(3)? } else { 0 };
    let unit = RangeUnit::parse(context, 5)?;
    let end = if words > 4 { context.integer_arg(4)? } else { -1 };
    let key = context.key(1)?;
    let Some(place) = context.read_typed::<StringRef<'_>>(&key)? else {
        // A missing key counts as an empty string, which is followed by zeros.
        context.reply.integer(if bit { -1 } else { 0 });
        return Ok(());
    };
    let bytes = context.string_value(&key, place)?.bytes;
    let range = unit.bit_range(bytes.len(), start, end);
    let position = match find_bit(bytes, &range, bit) {
        Some(at) => at as i64,
        // Without an explicit end, the string is followed by an infinite run of zeros.
        None if !bit && words < 5 && !range.is_empty() => bytes.len() as i64 * 8,
        None => -1,
    };
    context.reply.integer(position);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn bitpos_finds_first_bit() {
        let not_integer = "-ERR value is not an integer or out of range";
        Client::new().check_replies(&[
            ("set f foobar", "+OK"),
            ("bitpos f 1", ":1"),
            ("bitpos f 0", ":0"),
            ("bitpos f 1 1", ":9"),
            ("bitpos f 1 1 2", ":9"),
            ("bitpos f 1 10 20 bit", ":10"),
            ("bitpos f 1 10 20 byte", ":-1"),
            ("bitpos f 1 2 1", ":-1"),
            ("bitpos f 0 2 1", ":-1"),
            ("bitpos f 1 100", ":-1"),
            ("bitpos f 1 -1", ":41"),
            ("bitpos nosuch 1", ":-1"),
            ("bitpos nosuch 0", ":0"),
            ("bitpos nosuch 0 x", not_integer),
            ("bitpos nosuch 0 0 1 nosuch", "-ERR syntax error"),
            ("bitpos f 1 -10 -20", ":1"),
            ("bitpos f 0 -10 -20", ":0"),
            ("bitpos f 1 -1 -5", ":-1"),
            ("bitpos nosuch 2", "-ERR The bit argument must be 1 or 0."),
            ("bitpos f x", not_integer),
            ("bitpos f 1 x", not_integer),
            ("bitpos f 1 0 x", not_integer),
            ("bitpos f 1 1 2 nosuch", "-ERR syntax error"),
            ("bitpos f 1 1 2 bit bit", "-ERR syntax error"),
            ("hset h a 1", ":1"),
            ("bitpos h x", not_integer),
            ("bitpos h 1 x", not_integer),
            ("bitpos h 1 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ]);
    }

    #[test]
    fn bitpos_without_end_treats_string_as_followed_by_zeros() {
        Client::new().check_replies(&[
            ("set ff \"\\xff\\xff\\xff\"", "+OK"),
            ("bitpos ff 0", ":24"),
            ("bitpos ff 0 0", ":24"),
            ("bitpos ff 0 2", ":24"),
            ("bitpos ff 0 5", ":-1"),
            ("bitpos ff 0 0 -1", ":-1"),
            ("bitpos ff 0 1 2 bit", ":-1"),
            ("bitpos ff 1 9 9 bit", ":9"),
            ("set z \"\\x00\\x00\"", "+OK"),
            ("bitpos z 1", ":-1"),
            ("set e \"\"", "+OK"),
            ("bitpos e 0", ":-1"),
            ("bitpos e 0 0", ":-1"),
        ]);
    }
}
