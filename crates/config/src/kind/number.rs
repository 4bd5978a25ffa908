//! Numeric values, with and without units.

use std::marker::PhantomData;
use std::time::Duration;

use super::{ValueKind, single_argument};

/// An integer type that a parameter's value can have.
pub(crate) trait Numeric: Copy + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    /// The minimum and maximum that parameters of this type accept.
    const RANGE: (i64, i64);

    /// Converts a number within [`Numeric::RANGE`].
    fn from_i64(number: i64) -> Self;

    /// Converts the value to a number.
    fn to_i64(self) -> i64;
}

macro_rules! numeric {
    ($($type:ty: $least:expr, $most:expr;)*) => {$(
        impl Numeric for $type {
            const RANGE: (i64, i64) = ($least, $most);

            fn from_i64(number: i64) -> Self {
                Self::try_from(number).expect("a parameter's bounds fit its type")
            }

            fn to_i64(self) -> i64 {
                i64::try_from(self).expect("a parameter's value was a number of 64 bits")
            }
        }
    )*};
}

numeric! {
    u16: 0, u16::MAX as i64;
    u32: 0, u32::MAX as i64;
    i32: i32::MIN as i64, i32::MAX as i64;
    u64: 0, i64::MAX;
    usize: 0, if usize::BITS < 64 { usize::MAX as i64 } else { i64::MAX };
    i64: i64::MIN, i64::MAX;
}

/// How a number is written in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberFormat {
    /// Only decimal digits, with an optional sign.
    Decimal,
    /// A number of bytes with an optional unit (`64mb`).
    Bytes,
}

/// A number that must lie in an inclusive range.
#[derive(Debug)]
pub(crate) struct BoundedNumberKind<T> {
    min: i64,
    max: i64,
    format: NumberFormat,
    value_type: PhantomData<fn() -> T>,
}

impl<T: Numeric> BoundedNumberKind<T> {
    const fn new(min: i64, max: i64, format: NumberFormat) -> Self {
        assert!(T::RANGE.0 <= min && min <= max && max <= T::RANGE.1, "the bounds do not fit the type");
        Self { min, max, format, value_type: PhantomData }
    }
}

/// Accepts a number in this inclusive range.
pub(crate) const fn bounded_number<T: Numeric>(min: i64, max: i64) -> BoundedNumberKind<T> {
    BoundedNumberKind::new(min, max, NumberFormat::Decimal)
}

/// Accepts a number of bytes with an optional unit (`64mb`), in this inclusive range.
pub(crate) const fn byte_count<T: Numeric>(min: i64, max: i64) -> BoundedNumberKind<T> {
    BoundedNumberKind::new(min, max, NumberFormat::Bytes)
}

impl<T: Numeric> ValueKind for BoundedNumberKind<T> {
    type Value = T;

    fn parse(&self, words: &[String], _: Option<&T>) -> Result<T, String> {
        let word = single_argument(words)?;
        let number = match self.format {
            NumberFormat::Decimal => parse_integer(word)?,
            NumberFormat::Bytes => parse_optional_memory(word)
                // Parameters that allow negative values also accept a negative number without a unit.
                .or_else(|| resp::parse_i64(word.as_bytes()).filter(|_| self.min < 0))
                .ok_or(NOT_A_SIZE_ERROR)?,
        };
        check_range(number, self.min, self.max).map(T::from_i64)
    }

    fn format(&self, value: &T) -> String {
        value.to_i64().to_string()
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        let range = describe_range(self.min, self.max);
        match self.format {
            NumberFormat::Decimal => range,
            NumberFormat::Bytes => format!("bytes, {range}"),
        }
    }
}

/// A number that is clamped to a range instead of being refused.
#[derive(Debug)]
pub(crate) struct ClampedNumberKind {
    min: u32,
    max: u32,
}

/// Accepts any number and clamps it to this range.
pub(crate) const fn clamped_number(min: u32, max: u32) -> ClampedNumberKind {
    ClampedNumberKind { min, max }
}

impl ValueKind for ClampedNumberKind {
    type Value = u32;

    fn parse(&self, words: &[String], _: Option<&u32>) -> Result<u32, String> {
        let number = check_range(parse_integer(single_argument(words)?)?, 0, i64::from(i32::MAX))?;
        Ok(u32::from_i64(number).clamp(self.min, self.max))
    }

    fn format(&self, value: &u32) -> String {
        value.to_string()
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        describe_range(i64::from(self.min), i64::from(self.max))
    }
}

/// A number of bytes that is raised to a minimum instead of being refused.
#[derive(Debug)]
pub(crate) struct MinBytesKind(i64);

/// Accepts a number of bytes, and raises it to `min` if it is lower.
pub(crate) const fn min_bytes(min: i64) -> MinBytesKind {
    assert!(0 < min, "a number of bytes is not negative");
    MinBytesKind(min)
}

impl ValueKind for MinBytesKind {
    type Value = u64;

    fn parse(&self, words: &[String], _: Option<&u64>) -> Result<u64, String> {
        let bytes = parse_optional_memory(single_argument(words)?).ok_or(NOT_A_SIZE_ERROR)?;
        check_range(bytes, 1, i64::MAX).map(|bytes| u64::from_i64(bytes.max(self.0)))
    }

    fn format(&self, value: &u64) -> String {
        value.to_string()
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        format!("bytes, {}", describe_range(self.0, i64::MAX))
    }
}

/// A number of bytes that may use the full 64-bit range.
#[derive(Debug)]
pub(crate) struct UnboundedBytesKind;

/// Accepts a number of bytes in the full 64-bit range, with an optional unit (`64mb`).
pub(crate) const fn unbounded_bytes() -> UnboundedBytesKind {
    UnboundedBytesKind
}

impl ValueKind for UnboundedBytesKind {
    type Value = usize;

    fn parse(&self, words: &[String], _: Option<&usize>) -> Result<usize, String> {
        let word = single_argument(words)?;
        let bytes = if word.is_empty() { Some(0) } else { parse_unsigned_memory(word) };
        bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| NOT_A_SIZE_ERROR.to_owned())
    }

    fn format(&self, value: &usize) -> String {
        value.to_string()
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        format!("bytes, {}", describe_range(0, i64::MAX))
    }
}

/// A duration that is configured as a whole number of seconds or milliseconds.
#[derive(Debug)]
pub(crate) struct DurationKind {
    min: i64,
    max: i64,
    unit: TimeUnit,
}

#[derive(Debug, Clone, Copy)]
enum TimeUnit {
    Seconds,
    Millis,
}

/// Accepts a duration as a whole number of seconds, in this inclusive range.
pub(crate) const fn seconds(min: i64, max: i64) -> DurationKind {
    assert!(0 <= min && min <= max, "a time is not negative");
    DurationKind { min, max, unit: TimeUnit::Seconds }
}

/// Accepts a duration as a whole number of milliseconds, in this inclusive range.
pub(crate) const fn millis(min: i64, max: i64) -> DurationKind {
    assert!(0 <= min && min <= max, "a time is not negative");
    DurationKind { min, max, unit: TimeUnit::Millis }
}

impl ValueKind for DurationKind {
    type Value = Duration;

    fn parse(&self, words: &[String], _: Option<&Duration>) -> Result<Duration, String> {
        let number = check_range(parse_integer(single_argument(words)?)?, self.min, self.max)?.unsigned_abs();
        Ok(match self.unit {
            TimeUnit::Seconds => Duration::from_secs(number),
            TimeUnit::Millis => Duration::from_millis(number),
        })
    }

    fn format(&self, value: &Duration) -> String {
        match self.unit {
            TimeUnit::Seconds => value.as_secs().to_string(),
            TimeUnit::Millis => value.as_millis().to_string(),
        }
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        let unit = match self.unit {
            TimeUnit::Seconds => "seconds",
            TimeUnit::Millis => "milliseconds",
        };
        format!("{unit}, {}", describe_range(self.min, self.max))
    }
}

/// File permission bits that are written in octal.
#[derive(Debug)]
pub(crate) struct FileModeKind;

/// Accepts file permission bits in octal, such as `755`.
pub(crate) const fn file_mode() -> FileModeKind {
    FileModeKind
}

impl ValueKind for FileModeKind {
    type Value = u32;

    fn parse(&self, words: &[String], _: Option<&u32>) -> Result<u32, String> {
        match u32::from_str_radix(single_argument(words)?, 8) {
            Ok(value @ 0..=0o777) => Ok(value),
            _ => Err(NOT_AN_INTEGER_ERROR.to_owned()),
        }
    }

    fn format(&self, value: &u32) -> String {
        format!("{value:o}")
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        "octal number".to_owned()
    }
}

/// A TCP port, where 0 disables the listener.
#[derive(Debug)]
pub(crate) struct OptionalPortKind;

/// Accepts a TCP port, or 0 to disable the listener.
pub(crate) const fn optional_port() -> OptionalPortKind {
    OptionalPortKind
}

impl ValueKind for OptionalPortKind {
    type Value = Option<u16>;

    fn parse(&self, words: &[String], _: Option<&Option<u16>>) -> Result<Option<u16>, String> {
        let port = check_range(parse_integer(single_argument(words)?)?, 0, i64::from(u16::MAX))
            .map(u16::from_i64)?;
        Ok(Some(port).filter(|port| *port != 0))
    }

    fn format(&self, value: &Option<u16>) -> String {
        value.unwrap_or(0).to_string()
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        describe_range(0, i64::from(u16::MAX))
    }
}

/// An amount of memory, absolute or relative to `maxmemory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemorySize {
    /// An absolute number of bytes.
    Bytes(usize),
    /// A percentage of `maxmemory`.
    Percent(u8),
}

impl MemorySize {
    /// Converts the share to bytes. `total` is `maxmemory` in bytes.
    #[must_use]
    pub fn to_bytes(self, total: usize) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => total / 100 * usize::from(percent),
        }
    }
}

/// An absolute memory size, or a percentage of `maxmemory`.
#[derive(Debug)]
pub(crate) struct MemorySizeKind;

/// Accepts a number of bytes, or a percentage of `maxmemory` (`5%`).
pub(crate) const fn memory_size() -> MemorySizeKind {
    MemorySizeKind
}

impl ValueKind for MemorySizeKind {
    type Value = MemorySize;

    fn parse(&self, words: &[String], _: Option<&MemorySize>) -> Result<MemorySize, String> {
        let word = single_argument(words)?;
        let value = match word.strip_suffix('%') {
            Some(percent) => match percent.parse::<u32>().ok() {
                Some(101..) => return Err("percentage argument must be less or equal to 100".to_owned()),
                percent => percent.and_then(|percent| u8::try_from(percent).ok()).map(MemorySize::Percent),
            },
            None => parse_optional_memory(word).map(|bytes| MemorySize::Bytes(usize::from_i64(bytes))),
        };
        value.ok_or_else(|| "argument must be a memory or percent value".to_owned())
    }

    fn format(&self, value: &MemorySize) -> String {
        match value {
            MemorySize::Bytes(bytes) => bytes.to_string(),
            MemorySize::Percent(percent) => format!("{percent}%"),
        }
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        "bytes, or a percentage of `maxmemory` (`5%`)".to_owned()
    }
}

const NOT_AN_INTEGER_ERROR: &str = "argument couldn't be parsed into an integer";
const NOT_A_SIZE_ERROR: &str = "argument must be a memory value";

fn parse_integer(word: &str) -> Result<i64, String> {
    resp::parse_i64(word.as_bytes()).ok_or_else(|| NOT_AN_INTEGER_ERROR.to_owned())
}

fn check_range(value: i64, min: i64, max: i64) -> Result<i64, String> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(format!("argument must be between {min} and {max} inclusive"))
    }
}

/// Parses `10`, `10b`, `1k` (1000), `1kb` (1024), `1m`, `1mb`, `1g`, `1gb`, case-insensitively.
pub(super) fn parse_memory(word: &str) -> Option<i64> {
    i64::try_from(parse_unsigned_memory(word)?).ok()
}

fn parse_unsigned_memory(word: &str) -> Option<u64> {
    let lower = word.to_ascii_lowercase();
    let digits = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let unit: u64 = match &lower[digits..] {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1024,
        "m" => 1000 * 1000,
        "mb" => 1024 * 1024,
        "g" => 1000 * 1000 * 1000,
        "gb" => 1024 * 1024 * 1024,
        _ => return None,
    };
    lower[..digits].parse::<u64>().ok()?.checked_mul(unit)
}

/// Like [`parse_memory`], but an empty text is zero.
fn parse_optional_memory(word: &str) -> Option<i64> {
    if word.is_empty() { Some(0) } else { parse_memory(word) }
}

#[cfg(test)]
fn describe_range(min: i64, max: i64) -> String {
    match (min, max) {
        (min, i64::MAX) => format!("{min} or more"),
        (min, max) => format!("{min} to {max}"),
    }
}
