//! HINCRBY and HINCRBYFLOAT. The field keeps its expiry.

use clock::Millis;
use engine::{CommandError, Context, EventClass};
use keyspace::{EntryRef, Field, Key};

use super::fields::HashAccess;
use super::set::log_hset;
use crate::long_double::LongDouble;

pub(super) fn hincrby(context: &mut Context<'_>) -> Result<(), CommandError> {
    let amount = context.integer_arg(3)?;
    let (key, name) = (context.key(1)?, context.arg(2));
    let (found, before) = find_previous_field(context, &key, name)?;
    let number = match &before {
        PreviousField::Live { value, .. } => {
            resp::parse_i64(value).ok_or(CommandError::text("ERR hash value is not an integer"))?
        }
        PreviousField::Missing | PreviousField::Expired => 0,
    };
    let sum = number.checked_add(amount).ok_or(CommandError::Overflow)?;
    let mut digits = itoa::Buffer::new();
    let value = digits.format(sum).as_bytes();
    let hidden = matches!(before, PreviousField::Expired);
    let expiry = before.expiry();
    context.set_field(&key, found, Field { name, value, expiry });
    context.report_modified(&key);
    context.notify_expired_fields_replaced(&key, hidden);
    context.notify(EventClass::HASH, "hincrby", &key);
    if hidden {
        log_hset(context, &key, name, value);
    }
    context.reply.integer(sum);
    Ok(())
}

pub(super) fn hincrbyfloat(context: &mut Context<'_>) -> Result<(), CommandError> {
    let amount = LongDouble::parse(context.arg(3)).ok_or(CommandError::NotFloat)?;
    if !amount.is_finite() {
        return Err(CommandError::text("ERR value is NaN or Infinity"));
    }
    let (key, name) = (context.key(1)?, context.arg(2));
    let (found, before) = find_previous_field(context, &key, name)?;
    let number = match &before {
        PreviousField::Live { value, .. } => {
            LongDouble::parse(value).ok_or(CommandError::text("ERR hash value is not a float"))?
        }
        PreviousField::Missing | PreviousField::Expired => LongDouble::ZERO,
    };
    let sum = number.add(amount).ok_or(CommandError::NaNOrInfinity)?.to_string();
    let expiry = before.expiry();
    context.set_field(&key, found, Field { name, value: sum.as_bytes(), expiry });
    context.report_modified(&key);
    context.notify_expired_fields_replaced(&key, matches!(before, PreviousField::Expired));
    context.notify(EventClass::HASH, "hincrbyfloat", &key);
    // Replicate the result: floating-point arithmetic may differ on the replica's machine.
    replicate_result(context, &key, name, sum.as_bytes(), expiry);
    context.reply.bulk(sum.as_bytes());
    Ok(())
}

/// The state of a field before HINCRBY or HINCRBYFLOAT.
enum PreviousField {
    Missing,
    /// The field exists but has expired.
    Expired,
    Live {
        value: smallvec::SmallVec<[u8; 32]>,
        expiry: Option<Millis>,
    },
}

impl PreviousField {
    fn expiry(&self) -> Option<Millis> {
        match self {
            Self::Live { expiry, .. } => *expiry,
            Self::Missing | Self::Expired => None,
        }
    }
}

fn find_previous_field(
    context: &mut Context<'_>,
    key: &Key<'_>,
    name: &[u8],
) -> Result<(Option<EntryRef>, PreviousField), CommandError> {
    let now = context.field_expiry_cutoff();
    let found = context.find_hash(key)?;
    let before = match found.and_then(|place| context.hash_at(key, place).get(name)) {
        None => PreviousField::Missing,
        Some(field) if !field.is_live_at(now) => PreviousField::Expired,
        Some(field) => PreviousField::Live { value: field.value.into(), expiry: field.expiry },
    };
    Ok((found, before))
}

fn replicate_result(
    context: &mut Context<'_>,
    key: &Key<'_>,
    name: &[u8],
    value: &[u8],
    expiry: Option<Millis>,
) {
    log_hset(context, key, name, value);
    if let Some(at) = expiry {
        // HSET clears the expiry, so HPEXPIREAT is replicated after it.
        let mut digits = itoa::Buffer::new();
        let at = digits.format(at.0).as_bytes();
        context.log_effect(&[b"HPEXPIREAT", key.bytes(), at, b"FIELDS", b"1", name]);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn hincrby_adds_integers() {
        Client::new().check_replies(&[
            ("hset h s v", ":1"),
            ("hincrby h s 1", "-ERR hash value is not an integer"),
            ("hincrby h n x", "-ERR value is not an integer or out of range"),
            ("hincrby h n 5", ":5"),
            ("hincrby h n -6", ":-1"),
            ("hincrby h n 9223372036854775807", ":9223372036854775806"),
            ("hincrby h n 2", "-ERR increment or decrement would overflow"),
            ("hset h sp \" 1\" e \"\"", ":2"),
            ("hincrby h sp 1", "-ERR hash value is not an integer"),
            ("hincrby h e 1", "-ERR hash value is not an integer"),
            ("hincrby new n 3", ":3"),
            ("hgetall new", "*2|$1|n|$1|3"),
        ]);
    }

    #[test]
    fn float_increments_use_long_double_precision() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("hset h s v i inf x nan", ":3"),
            ("hincrbyfloat h s 1.5", "-ERR hash value is not a float"),
            ("hincrbyfloat h n inf", "-ERR value is NaN or Infinity"),
            ("hincrbyfloat h s -inf", "-ERR value is NaN or Infinity"),
            ("hincrbyfloat h n nan", "-ERR value is not a valid float"),
            ("hincrbyfloat h n x", "-ERR value is not a valid float"),
            ("hincrbyfloat h i 1", "-ERR increment would produce NaN or Infinity"),
            ("hincrbyfloat h n 10.5", "$4|10.5"),
            ("hincrbyfloat h n 0.1", "$4|10.6"),
            ("hincrbyfloat h n -10.6", "$1|0"),
        ]);
        assert_eq!(client.logged_commands()[1..], ["0 HSET h n 10.5", "0 HSET h n 10.6", "0 HSET h n 0"]);
    }
}
