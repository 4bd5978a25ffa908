//! Implements SETBIT, GETBIT and BITCOUNT.

use engine::{CommandError, Context, EventClass};
use keyspace::{EncodingHint, PackedValue, StringRef};

use super::bits::count_ones_in;
use super::{RangeUnit, parse_bit_offset};

pub(super) fn setbit(context: &mut Context<'_>) -> Result<(), CommandError> {
    let offset = parse_bit_offset(context, 2, None)?;
    let wanted = match context.integer_arg(3) {
        Ok(bit @ (0 | 1)) => bit as u8,
        _ => return Err(CommandError::text("ERR bit is not an integer or out of range")),
    };
    let key = context.key(1)?;
    let found = context.find_typed::<StringRef<'_>>(&key)?;
    let len = match found {
        Some(place) => context.string_value(&key, place)?.bytes.len(),
        None => 0,
    };
    let (byte, shift) = ((offset / 8) as usize, 7 - offset % 8);
    let place = match found {
        Some(place) => place,
        None => context.table(&key).insert(&key, PackedValue::string(b""), None),
    };
    let (_, bytes) = context.table(&key).edit_string(place, &key, len.max(byte + 1), EncodingHint::Raw);
    let before = bytes[byte] >> shift & 1;
    bytes[byte] ^= (before ^ wanted) << shift;
    if before != wanted || byte >= len {
        context.report_modified(&key);
        context.notify(EventClass::STRING, "setbit", &key);
    }
    context.reply.integer(i64::from(before));
    Ok(())
}

pub(super) fn getbit(context: &mut Context<'_>) -> Result<(), CommandError> {
    let offset = parse_bit_offset(context, 2, None)?;
    let key = context.key(1)?;
    let found = context.read_typed::<StringRef<'_>>(&key)?;
    let byte = match found {
        Some(place) => context.string_value(&key, place)?.bytes.get((offset / 8) as usize).copied(),
        None => None,
    };
    context.reply.integer(i64::from(byte.unwrap_or(0) >> (7 - offset % 8) & 1));
    Ok(())
}

/// Handles `BITCOUNT key [start [end [BYTE | BIT]]]`.
pub(super) fn bitcount(context: &mut Context<'_>) -> Result<(), CommandError> {
    let words = context.args.len();
    if words > 5 {
        return Err(CommandError::Syntax);
    }
    let start = if words > 2 { context.integer_arg(2)? } else { 0 };
    let end = if words > 3 { context.integer_arg(3)? } else { -1 };
    let unit = RangeUnit::parse(context, 4)?;
    let key = context.key(1)?;
    let Some(place) = context.read_typed::<StringRef<'_>>(&key)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let bytes = context.string_value(&key, place)?.bytes;
    // A reversed range is empty even if both ends lie before the start of the string.
    let is_crossed = start < 0 && end < 0 && start > end;
    let ones = if is_crossed { 0 } else { count_ones_in(bytes, &unit.bit_range(bytes.len(), start, end)) };
    context.reply.integer(ones as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

    #[test]
    fn setbit_and_getbit_access_single_bits() {
        let offset = "-ERR bit offset is not an integer or out of range";
        let bit = "-ERR bit is not an integer or out of range";
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("setbit k 7 1", ":0"),
            ("setbit k 7 1", ":1"),
            ("setbit k 7 0", ":1"),
            ("getbit k 7", ":0"),
            ("setbit k 100 0", ":0"),
            ("strlen k", ":13"),
            ("getbit k 4294967295", ":0"),
            ("getbit nosuch 1", ":0"),
            ("setbit k 4294967296 1", offset),
            ("setbit k -1 1", offset),
            ("setbit k x 1", offset),
            ("setbit k #1 1", offset),
            ("getbit nosuch x", offset),
            ("setbit k 1 2", bit),
            ("setbit k 1 x", bit),
            ("set s 1", "+OK"),
            ("object encoding s", "$3|int"),
            ("setbit s 7 1", ":1"),
            ("object encoding s", "$3|raw"),
            ("hset h a 1", ":1"),
            ("setbit h 1 1", WRONG_TYPE),
            ("getbit h 1", WRONG_TYPE),
        ]);
        assert_eq!(
            client.logged_commands(),
            ["0 setbit k 7 1", "0 setbit k 7 0", "0 setbit k 100 0", "0 set s 1", "0 hset h a 1"]
        );
    }

    #[test]
    fn setbit_extends_string_up_to_limit() {
        let mut client = Client::new();
        client.check_replies(&[
            ("setbit k 4294967295 1", ":0"),
            ("strlen k", ":536870912"),
            ("getbit k 4294967295", ":1"),
            ("bitcount k", ":1"),
            ("bitpos k 1", ":4294967295"),
        ]);
    }

    #[test]
    fn bitcount_counts_set_bits() {
        let not_integer = "-ERR value is not an integer or out of range";
        Client::new().check_replies(&[
            ("set f foobar", "+OK"),
            ("bitcount f", ":26"),
            ("bitcount f 0 0", ":4"),
            ("bitcount f 1 1", ":6"),
            ("bitcount f 1 1 byte", ":6"),
            ("bitcount f 5 30 bit", ":17"),
            ("bitcount f -10 -1 bit", ":5"),
            ("bitcount f -1 -10", ":0"),
            ("bitcount f -100 -90", ":4"),
            ("bitcount f 3 100", ":10"),
            ("bitcount f 10 100", ":0"),
            ("bitcount f -1", ":4"),
            ("bitcount f -9223372036854775808 9223372036854775807", ":26"),
            ("bitcount f 9223372036854775808 1", not_integer),
            ("bitcount f 0 x", not_integer),
            ("bitcount f 0 1 nosuch", "-ERR syntax error"),
            ("bitcount f 0 1 bit bit", "-ERR syntax error"),
            ("bitcount nosuch", ":0"),
            ("bitcount nosuch x 1", not_integer),
            ("bitcount nosuch 0 1 nosuch", "-ERR syntax error"),
            ("bitcount f -90 -100", ":0"),
            ("set e \"\"", "+OK"),
            ("bitcount e", ":0"),
            ("bitcount e 0 -1 bit", ":0"),
            ("hset h a 1", ":1"),
            ("bitcount h x 1", not_integer),
            ("bitcount h 1 1", WRONG_TYPE),
        ]);
    }
}
