//! INCREX: increments a counter within bounds and sets its expiry, in one command. Follows the documentation of Redis
//! 8.8.

use clock::Millis;
use engine::{CommandError, Context, EventClass, LazyFreeReason};
use keyspace::{EncodingHint, EntryRef, Key, PackedValue};
use resp::Protocol;

use super::options::ExpiryOption;
use crate::long_double::LongDouble;
use crate::time_arg::parse_time_option;

/// The arguments of INCREX before numbers are parsed.
#[derive(Default)]
struct IncrexArguments<'a> {
    int_increment: Option<&'a [u8]>,
    float_increment: Option<&'a [u8]>,
    lower_bound: Option<&'a [u8]>,
    upper_bound: Option<&'a [u8]>,
    is_saturating: bool,
    expiry: ExpiryOption<'a>,
    /// Whether the expiry is set only if the key has none (ENX).
    only_without_expiry: bool,
}

impl<'a> IncrexArguments<'a> {
    fn parse(context: &Context<'a>) -> Result<Self, CommandError> {
        let (mut words, args, mut index) = (Self::default(), context.args, 2);
        while let Some(word) = args.get(index) {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            let switch = match () {
                () if is("saturate") => Some(&mut words.is_saturating),
                () if is("enx") => Some(&mut words.only_without_expiry),
                () => None,
            };
            if let Some(switch) = switch {
                if std::mem::replace(switch, true) {
                    return Err(CommandError::Syntax);
                }
            } else if is("persist") {
                words.set_expiry(ExpiryOption::Persist)?;
            } else {
                index += 1;
                let value = args.get(index).ok_or(CommandError::Syntax)?;
                words.parse_value_option(word, value)?;
            }
            index += 1;
        }
        if words.int_increment.is_some() && words.float_increment.is_some()
            || words.only_without_expiry && words.expiry == ExpiryOption::Persist
        {
            return Err(CommandError::Syntax);
        }
        if words.only_without_expiry && words.expiry == ExpiryOption::Unspecified {
            return Err(CommandError::text("ERR ENX flag requires an expiration"));
        }
        Ok(words)
    }

    /// Parses an option that is followed by a value.
    fn parse_value_option(&mut self, word: &[u8], value: &'a [u8]) -> Result<(), CommandError> {
        let slot = match () {
            () if word.eq_ignore_ascii_case(b"byint") => &mut self.int_increment,
            () if word.eq_ignore_ascii_case(b"byfloat") => &mut self.float_increment,
            () if word.eq_ignore_ascii_case(b"lbound") => &mut self.lower_bound,
            () if word.eq_ignore_ascii_case(b"ubound") => &mut self.upper_bound,
            () => {
                let (unit, base) = parse_time_option(word).ok_or(CommandError::Syntax)?;
                return self.set_expiry(ExpiryOption::At { number: value, unit, base });
            }
        };
        if slot.replace(value).is_some() { Err(CommandError::Syntax) } else { Ok(()) }
    }

    fn set_expiry(&mut self, expiry: ExpiryOption<'a>) -> Result<(), CommandError> {
        let before = std::mem::replace(&mut self.expiry, expiry);
        if before == ExpiryOption::Unspecified { Ok(()) } else { Err(CommandError::Syntax) }
    }
}

/// A sum, or the direction of its overflow.
enum BoundedSum<N> {
    Exact(N),
    Below,
    Above,
}

/// The operations that INCREX needs of both integers and floating-point numbers.
trait BoundedNumber: Copy + PartialEq + Default {
    const MIN_VALUE: Self;
    const MAX_VALUE: Self;
    const EVENT_NAME: &'static str;
    const ENCODING_HINT: EncodingHint;

    fn parse_increment(word: &[u8]) -> Result<Self, CommandError>;
    fn parse_bound(word: &[u8]) -> Result<Self, CommandError>;
    fn parse_stored(text: &[u8]) -> Result<Self, CommandError>;
    fn is_greater_than(self, other: Self) -> bool;
    fn add(self, other: Self) -> BoundedSum<Self>;
    fn checked_difference(self, other: Self) -> Option<Self>;
    fn to_text(self) -> String;
    fn reply(self, context: &mut Context<'_>);
}

impl BoundedNumber for i64 {
    const MIN_VALUE: Self = Self::MIN;
    const MAX_VALUE: Self = Self::MAX;
    const EVENT_NAME: &'static str = "incrby";
    const ENCODING_HINT: EncodingHint = EncodingHint::ByContent;

    fn parse_increment(word: &[u8]) -> Result<Self, CommandError> {
        const NOT_AN_INTEGER_ERROR: CommandError =
            CommandError::text("ERR Increment is not an integer or out of range");
        resp::parse_i64(word).ok_or(NOT_AN_INTEGER_ERROR)
    }

    fn parse_bound(word: &[u8]) -> Result<Self, CommandError> {
        resp::parse_i64(word).ok_or(CommandError::NotInteger)
    }

    fn parse_stored(text: &[u8]) -> Result<Self, CommandError> {
        resp::parse_i64(text).ok_or(CommandError::NotInteger)
    }

    fn is_greater_than(self, other: Self) -> bool {
        self > other
    }

    fn add(self, other: Self) -> BoundedSum<Self> {
        match self.checked_add(other) {
            Some(sum) => BoundedSum::Exact(sum),
            None if other > 0 => BoundedSum::Above,
            None => BoundedSum::Below,
        }
    }

    fn checked_difference(self, other: Self) -> Option<Self> {
        self.checked_sub(other)
    }

    fn to_text(self) -> String {
        self.to_string()
    }

    fn reply(self, context: &mut Context<'_>) {
        context.reply.integer(self);
    }
}

impl BoundedNumber for LongDouble {
    const MIN_VALUE: Self = Self::MIN;
    const MAX_VALUE: Self = Self::MAX;
    const EVENT_NAME: &'static str = "incrbyfloat";
    const ENCODING_HINT: EncodingHint = EncodingHint::NeverInt;

    fn parse_increment(word: &[u8]) -> Result<Self, CommandError> {
        const NOT_A_FLOAT_ERROR: CommandError = CommandError::text("ERR Increment is not a valid float");
        let increment = Self::parse(word).ok_or(NOT_A_FLOAT_ERROR)?;
        if increment.is_finite() {
            Ok(increment)
        } else {
            Err(CommandError::text("ERR BYFLOAT increment cannot be Infinity"))
        }
    }

    fn parse_bound(word: &[u8]) -> Result<Self, CommandError> {
        Self::parse(word).filter(|bound| bound.is_finite()).ok_or(CommandError::NotFloat)
    }

    fn parse_stored(text: &[u8]) -> Result<Self, CommandError> {
        let stored = Self::parse(text).ok_or(CommandError::NotFloat)?;
        if stored.is_finite() { Ok(stored) } else { Err(CommandError::text("ERR value cannot be Infinity")) }
    }

    fn is_greater_than(self, other: Self) -> bool {
        self.is_greater_than(other)
    }

    fn add(self, other: Self) -> BoundedSum<Self> {
        match Self::add(self, other) {
            Some(sum) => BoundedSum::Exact(sum),
            None if other.is_greater_than(Self::ZERO) => BoundedSum::Above,
            None => BoundedSum::Below,
        }
    }

    fn checked_difference(self, other: Self) -> Option<Self> {
        Self::add(self, other.negated())
    }

    fn to_text(self) -> String {
        self.to_string()
    }

    fn reply(self, context: &mut Context<'_>) {
        let text = self.to_string();
        match context.reply.protocol() {
            Protocol::Resp2 => context.reply.bulk(text.as_bytes()),
            // A RESP3 double is written verbatim, since an `f64` would lose digits.
            Protocol::Resp3 => context.reply.raw(format!(",{text}\r\n").as_bytes()),
        }
    }
}

/// Handles `INCREX key [BYFLOAT increment | BYINT increment] [LBOUND bound] [UBOUND bound] [SATURATE] [EX s | PX ms |
/// EXAT s | PXAT ms | PERSIST] [ENX]`.
pub(super) fn increx(context: &mut Context<'_>) -> Result<(), CommandError> {
    let words = IncrexArguments::parse(context)?;
    match words.float_increment {
        Some(increment) => apply_increment(context, &words, LongDouble::parse_increment(increment)?),
        None => {
            let increment = words.int_increment.map_or(Ok(1), <i64 as BoundedNumber>::parse_increment)?;
            apply_increment(context, &words, increment)
        }
    }
}

fn apply_increment<N: BoundedNumber>(
    context: &mut Context<'_>,
    arguments: &IncrexArguments<'_>,
    increment: N,
) -> Result<(), CommandError> {
    let lower = arguments.lower_bound.map(N::parse_bound).transpose()?.unwrap_or(N::MIN_VALUE);
    let upper = arguments.upper_bound.map(N::parse_bound).transpose()?.unwrap_or(N::MAX_VALUE);
    if lower.is_greater_than(upper) {
        return Err(CommandError::text("ERR LBOUND can't be greater than UBOUND"));
    }
    let at = arguments.expiry.resolve(context, "increx")?;
    let key = context.key(1)?;
    let found = context.find(&key);
    let before = match found {
        Some(place) => N::parse_stored(context.string_value(&key, place)?.bytes)?,
        None => N::default(),
    };
    let (after, fits) = match before.add(increment) {
        BoundedSum::Exact(sum) if sum.is_greater_than(upper) => (upper, false),
        BoundedSum::Exact(sum) if lower.is_greater_than(sum) => (lower, false),
        BoundedSum::Exact(sum) => (sum, true),
        BoundedSum::Above => (upper, false),
        BoundedSum::Below => (lower, false),
    };
    if !fits && !arguments.is_saturating {
        context.reply.array(2);
        before.reply(context);
        N::default().reply(context);
        return Ok(());
    }
    let applied =
        after.checked_difference(before).ok_or(CommandError::text("ERR applied increment would overflow"))?;
    let change = CounterChange {
        entry: found,
        new_expiry: at.filter(|_| !arguments.keeps_expiry(context, &key, found)),
        arguments,
    };
    change.store(context, &key, after.to_text().as_bytes(), N::ENCODING_HINT, N::EVENT_NAME);
    context.reply.array(2);
    after.reply(context);
    applied.reply(context);
    Ok(())
}

impl IncrexArguments<'_> {
    /// Whether ENX keeps the key's present expiry.
    fn keeps_expiry(&self, context: &Context<'_>, key: &Key<'_>, found: Option<EntryRef>) -> bool {
        self.only_without_expiry && found.is_some_and(|place| context.table_ref(key).expiry(place).is_some())
    }
}

/// The change that INCREX makes to a key.
struct CounterChange<'c> {
    entry: Option<EntryRef>,
    /// The expiry after the change; `None` if the key will have none.
    new_expiry: Option<Millis>,
    arguments: &'c IncrexArguments<'c>,
}

impl CounterChange<'_> {
    fn store(
        &self,
        context: &mut Context<'_>,
        key: &Key<'_>,
        digits: &[u8],
        encoding_hint: EncodingHint,
        event: &'static str,
    ) {
        if self.new_expiry.is_some_and(|at| at <= context.now) && context.deletes_expired() {
            if let Some(place) = self.entry {
                context.delete(key, place);
                context.notify(EventClass::GENERIC, "del", key);
                context.log_effect(&[
                    context.engine.settings.lazy_free.deletion_command(LazyFreeReason::EXPIRE),
                    key.bytes(),
                ]);
            }
            return;
        }
        let before = self.entry.and_then(|place| context.table_ref(key).expiry(place));
        let persists = self.arguments.expiry == ExpiryOption::Persist;
        let expiry = if persists { None } else { self.new_expiry.or(before) };
        context.put(key, self.entry, PackedValue::string_with_hint(digits, encoding_hint), expiry);
        context.notify(EventClass::STRING, event, key);
        if self.new_expiry.is_some() {
            context.notify(EventClass::GENERIC, "expire", key);
        } else if persists && before.is_some() {
            context.notify(EventClass::GENERIC, "persist", key);
        }
        let mut millis = itoa::Buffer::new();
        match self.new_expiry {
            Some(Millis(at)) => {
                context.log_effect(&[b"SET", key.bytes(), digits, b"PXAT", millis.format(at).as_bytes()]);
            }
            None if persists => context.log_effect(&[b"SET", key.bytes(), digits]),
            None => context.log_effect(&[b"SET", key.bytes(), digits, b"KEEPTTL"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Client;

    #[test]
    fn increx_enforces_integer_bounds() {
        let (syntax, bounds) = ("-ERR syntax error", "-ERR LBOUND can't be greater than UBOUND");
        Client::new().check_replies(&[
            ("increx n", "*2|:1|:1"),
            ("increx n byint -10", "*2|:-9|:-10"),
            ("increx n byint 100 ubound 80", "*2|:-9|:0"),
            ("increx n byint 100 ubound 80 saturate", "*2|:80|:89"),
            ("increx n byint 5 ubound 30 saturate", "*2|:30|:-50"),
            ("increx n byint -5 lbound 10 ubound 30", "*2|:25|:-5"),
            ("object encoding n", "$3|int"),
            ("increx new byint 5 lbound 10", "*2|:0|:0"),
            ("exists new", ":0"),
            ("set n 9223372036854775800", "+OK"),
            ("increx n byint 9223372036854775800", "*2|:9223372036854775800|:0"),
            ("increx n byint 9223372036854775800 saturate", "*2|:9223372036854775807|:7"),
            (
                "increx n byint 1 saturate ubound -9223372036854775808",
                "-ERR applied increment would overflow",
            ),
            ("increx n byint 1 byint 1", syntax),
            ("increx n byint 1 byfloat 1", syntax),
            ("increx n saturate saturate", syntax),
            ("increx n ex 1 ex 1", syntax),
            ("increx n ex 1 persist", syntax),
            ("increx n persist enx", syntax),
            ("increx n lbound", syntax),
            ("increx n nosuch", syntax),
            ("increx n enx", "-ERR ENX flag requires an expiration"),
            ("increx n byint 1.5", "-ERR Increment is not an integer or out of range"),
            ("increx n byfloat x", "-ERR Increment is not a valid float"),
            ("increx n byfloat inf", "-ERR BYFLOAT increment cannot be Infinity"),
            ("increx n lbound 2 ubound 1", bounds),
            ("increx n byfloat 1 lbound 2.5 ubound 2.25", bounds),
            ("increx n ubound 1.5", "-ERR value is not an integer or out of range"),
            ("increx n ex 0", "-ERR invalid expire time in 'increx' command"),
            ("rpush l a", ":1"),
            ("increx l", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("set text hello", "+OK"),
            ("increx text", "-ERR value is not an integer or out of range"),
            ("increx text byfloat 1", "-ERR value is not a valid float"),
            ("set text inf", "+OK"),
            ("increx text byfloat 1", "-ERR value cannot be Infinity"),
        ]);
    }

    #[test]
    fn increx_enforces_float_bounds() {
        let mut client = Client::new();
        client.check_replies(&[
            ("set f 1.5", "+OK"),
            ("increx f byfloat 0.25", "*2|$4|1.75|$4|0.25"),
            ("increx f byfloat 100 ubound 42.5", "*2|$4|1.75|$1|0"),
            ("increx f byfloat 100 ubound 42.5 saturate", "*2|$4|42.5|$5|40.75"),
            ("increx f byfloat -100 lbound -5.5 saturate", "*2|$4|-5.5|$3|-48"),
            ("increx new byfloat 15.5 ubound 10", "*2|$1|0|$1|0"),
            ("exists new", ":0"),
            ("increx f", "-ERR value is not an integer or out of range"),
        ]);
        client.run_to_text("hello 3");
        client.check_replies(&[("increx f byfloat 0.5", "*2|,-5|,0.5")]);
    }

    #[test]
    fn increx_sets_expiry() {
        let mut client = Client::with_recording_log();
        client.check_replies(&[
            ("increx n ex 100 enx", "*2|:1|:1"),
            ("increx n ex 500 enx", "*2|:2|:1"),
            ("ttl n", ":100"),
            ("increx n byint 2", "*2|:4|:2"),
            ("ttl n", ":100"),
            ("increx n byint 10 ubound 5 ex 7", "*2|:4|:0"),
            ("increx n byfloat 0.5 persist", "*2|$3|4.5|$3|0.5"),
            ("ttl n", ":-1"),
            ("increx n byfloat 1 exat 1", "*2|$3|5.5|$1|1"),
            ("exists n", ":0"),
            ("increx n exat 1", "*2|:1|:1"),
            ("exists n", ":0"),
        ]);
        assert_eq!(
            client.logged_commands(),
            [
                "0 SET n 1 PXAT 1700000100000",
                "0 SET n 2 KEEPTTL",
                "0 SET n 4 KEEPTTL",
                "0 SET n 4.5",
                "0 UNLINK n",
            ]
        );
        client.check_events(&[
            ("increx k byint 5", "incrby k"),
            ("increx k byfloat 0.5", "incrbyfloat k"),
            ("set k 10 ex 100", "set k, expire k"),
            ("increx k persist", "incrby k, persist k"),
            ("increx k persist", "incrby k"),
            ("increx k ex 100", "incrby k, expire k"),
            ("increx k ex 200 enx", "incrby k"),
            ("increx k ubound 1", ""),
            ("increx k exat 1", "del k"),
            ("increx k exat 1", ""),
        ]);
    }
}
