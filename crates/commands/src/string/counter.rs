//! Implements INCR, DECR, INCRBY, DECRBY and INCRBYFLOAT.

use engine::{CommandError, Context, EventClass};
use keyspace::{EncodingHint, EntryRef, Key, PackedValue};

use crate::long_double::LongDouble;

pub(super) fn incr(context: &mut Context<'_>) -> Result<(), CommandError> {
    increment_by(context, 1)
}

pub(super) fn decr(context: &mut Context<'_>) -> Result<(), CommandError> {
    increment_by(context, -1)
}

pub(super) fn incrby(context: &mut Context<'_>) -> Result<(), CommandError> {
    let amount = context.integer_arg(2)?;
    increment_by(context, amount)
}

pub(super) fn decrby(context: &mut Context<'_>) -> Result<(), CommandError> {
    let amount = context.integer_arg(2)?;
    let amount = amount.checked_neg().ok_or(CommandError::text("ERR decrement would overflow"))?;
    increment_by(context, amount)
}

fn increment_by(context: &mut Context<'_>, amount: i64) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.find(&key);
    // Avoid `ok_or`: constructing and dropping the error has a cost even when it is unused.
    let before = match found {
        Some(place) => {
            let Some(before) = resp::parse_i64(context.string_value(&key, place)?.bytes) else {
                return Err(CommandError::NotInteger);
            };
            before
        }
        None => 0,
    };
    let Some(sum) = before.checked_add(amount) else { return Err(CommandError::Overflow) };
    let mut digits = itoa::Buffer::new();
    store_number(context, &key, found, digits.format(sum).as_bytes(), EncodingHint::ByContent);
    context.notify(EventClass::STRING, "incrby", &key);
    context.reply.integer(sum);
    Ok(())
}

pub(super) fn incrbyfloat(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.find(&key);
    let before = match found {
        Some(place) => {
            LongDouble::parse(context.string_value(&key, place)?.bytes).ok_or(CommandError::NotFloat)?
        }
        None => LongDouble::ZERO,
    };
    let amount = LongDouble::parse(context.arg(2)).ok_or(CommandError::NotFloat)?;
    let sum = before.add(amount).ok_or(CommandError::NaNOrInfinity)?;
    let text = sum.to_string();
    store_number(context, &key, found, text.as_bytes(), EncodingHint::NeverInt);
    context.notify(EventClass::STRING, "incrbyfloat", &key);
    // Replicate the result: floating-point arithmetic may differ on the replica's machine.
    context.log_effect(&[b"SET", key.bytes(), text.as_bytes(), b"KEEPTTL"]);
    context.reply.bulk(text.as_bytes());
    Ok(())
}

/// Stores a number as the value of a key. The key keeps its expiry.
fn store_number(
    context: &mut Context<'_>,
    key: &Key<'_>,
    found: Option<EntryRef>,
    digits: &[u8],
    encoding_hint: EncodingHint,
) {
    let expiry = found.and_then(|place| context.table_ref(key).expiry(place));
    context.put(key, found, PackedValue::string_with_hint(digits, encoding_hint), expiry);
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn incr_commands_add_integers() {
        let not_integer = "-ERR value is not an integer or out of range";
        Client::new().check_replies(&[
            ("incr n", ":1"),
            ("incrby n 41", ":42"),
            ("decr n", ":41"),
            ("decrby n 42", ":-1"),
            ("get n", "$2|-1"),
            ("incrby n 1.5", not_integer),
            ("set n 9223372036854775807", "+OK"),
            ("incr n", "-ERR increment or decrement would overflow"),
            ("decrby n -1", "-ERR increment or decrement would overflow"),
            ("decrby n -9223372036854775808", "-ERR decrement would overflow"),
            ("set n \" 1\"", "+OK"),
            ("incr n", not_integer),
            ("set n \"\"", "+OK"),
            ("incr n", not_integer),
            ("set n 01", "+OK"),
            ("incr n", not_integer),
        ]);
    }

    #[test]
    fn whole_float_sum_does_not_get_integer_encoding() {
        Client::new().check_replies(&[
            ("incrbyfloat f 3", "$1|3"),
            ("object encoding f", "$6|embstr"),
            ("object refcount f", ":1"),
            ("expire f 1000", ":1"),
            ("copy f g", ":1"),
            ("rename g h", "+OK"),
            ("object encoding h", "$6|embstr"),
            ("incrbyfloat h 1e50", "$51|100000000000000000003583830118858923890798487404544"),
            ("object encoding h", "$3|raw"),
            ("append f 5", ":2"),
            ("object encoding f", "$3|raw"),
            ("incrbyfloat f -30", "$1|5"),
            ("object encoding f", "$6|embstr"),
            ("incr f", ":6"),
            ("object encoding f", "$3|int"),
        ]);
    }

    #[test]
    fn increment_keeps_expiry() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[("set n 1 px 100", "+OK"), ("incr n", ":2"), ("incrbyfloat n 0.5", "$3|2.5")]);
        client.now.0 += 100;
        client.check_replies(&[("get n", "$-1")]);
        assert_eq!(
            client.logged_commands(),
            ["0 SET n 1 PXAT 1700000000100", "0 incr n", "0 SET n 2.5 KEEPTTL", "0 UNLINK n"]
        );
    }

    #[test]
    fn float_increments_use_long_double_precision() {
        Client::new().check_replies(&[
            ("incrbyfloat f 10.50", "$4|10.5"),
            ("incrbyfloat f 0.1", "$4|10.6"),
            ("incrbyfloat f -5", "$3|5.6"),
            ("set f 5.0e3", "+OK"),
            ("incrbyfloat f 2.0e2", "$4|5200"),
            ("incrbyfloat f x", "-ERR value is not a valid float"),
            ("incrbyfloat f \" 1\"", "-ERR value is not a valid float"),
            ("incrbyfloat f nan", "-ERR value is not a valid float"),
            ("incrbyfloat f inf", "-ERR increment would produce NaN or Infinity"),
            ("set f x", "+OK"),
            ("incrbyfloat f 1", "-ERR value is not a valid float"),
        ]);
    }
}
