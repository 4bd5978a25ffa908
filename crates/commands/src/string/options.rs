//! Conditions and expiry options of SET, GETEX and MSETEX.

use bitflags::bitflags;
use clock::Millis;
use engine::{CommandError, Context};
use resp::Args;

use crate::time_arg::{TimeBase, TimeUnit, parse_expiry, parse_time_option};

bitflags! {
    /// The options that a command accepts in addition to EX, PX, EXAT and PXAT.
    #[derive(Debug, Clone, Copy)]
    pub(super) struct AcceptedOptions: u8 {
        const NX_XX = 1;
        /// The conditions IFEQ, IFNE, IFDEQ and IFDNE, which compare the stored string.
        const COMPARISONS = 1 << 1;
        const GET = 1 << 2;
        const KEEPTTL = 1 << 3;
        const PERSIST = 1 << 4;

        const SET = Self::NX_XX.bits() | Self::COMPARISONS.bits() | Self::GET.bits() | Self::KEEPTTL.bits();
        const GETEX = Self::PERSIST.bits();
        const MSETEX = Self::NX_XX.bits() | Self::KEEPTTL.bits();
    }
}

/// The condition for setting a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum SetCondition<'a> {
    #[default]
    Always,
    /// NX: the key must not exist.
    KeyMissing,
    /// XX: the key must exist.
    KeyPresent,
    /// IFEQ, IFNE, IFDEQ or IFDNE.
    Comparison(Comparison<'a>),
}

/// A comparison of the stored string with a value or a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Comparison<'a> {
    operand: ComparisonValue<'a>,
    /// Whether the stored string must equal the operand; otherwise it must differ. A missing key equals no operand.
    must_be_equal: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ComparisonValue<'a> {
    Value(&'a [u8]),
    /// A digest as hexadecimal digits. As in Redis, the digits are validated only if the key exists.
    Digest(&'a [u8]),
}

/// Number of hexadecimal digits of a digest.
const DIGEST_DIGITS: usize = 16;

/// The digest of a string as in Redis: XXH3-64 without a seed.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

impl<'a> Comparison<'a> {
    /// Whether the word is IFEQ, IFNE, IFDEQ or IFDNE.
    pub(super) fn is_comparison_option(word: &[u8]) -> bool {
        [&b"ifeq"[..], b"ifne", b"ifdeq", b"ifdne"].iter().any(|known| word.eq_ignore_ascii_case(known))
    }

    /// Parses a comparison option and its value.
    pub(super) fn parse(word: &[u8], value: &'a [u8]) -> Self {
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        let with = if is("ifeq") || is("ifne") {
            ComparisonValue::Value(value)
        } else {
            ComparisonValue::Digest(value)
        };
        Self { operand: with, must_be_equal: is("ifeq") || is("ifdeq") }
    }

    /// Whether the comparison holds for the stored string, which is `None` if the key does not exist.
    ///
    /// # Errors
    /// The digest to compare with has an invalid length.
    pub(super) fn is_satisfied(self, stored: Option<&[u8]>) -> Result<bool, CommandError> {
        let is_that = match (stored, self.operand) {
            (None, _) => false,
            (Some(bytes), ComparisonValue::Value(value)) => bytes == value,
            (Some(_), ComparisonValue::Digest(digits)) if digits.len() != DIGEST_DIGITS => {
                return Err(CommandError::text("ERR must be exactly 16 hexadecimal characters"));
            }
            (Some(bytes), ComparisonValue::Digest(digits)) => {
                format!("{:016x}", digest(bytes)).as_bytes().eq_ignore_ascii_case(digits)
            }
        };
        Ok(is_that == self.must_be_equal)
    }
}

/// The expiry requested by a command's options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ExpiryOption<'a> {
    /// No option was given: a command that sets a key clears its expiry, and a command that reads a key keeps it.
    #[default]
    Unspecified,
    Keep,
    Persist,
    /// The options EX, PX, EXAT and PXAT, with the number that is not parsed yet.
    At {
        number: &'a [u8],
        unit: TimeUnit,
        base: TimeBase,
    },
}

impl ExpiryOption<'_> {
    /// Returns the requested expiry time, or `None` if the options request none.
    pub(super) fn resolve(
        &self,
        context: &Context<'_>,
        command: &'static str,
    ) -> Result<Option<Millis>, CommandError> {
        match *self {
            Self::At { number, unit, base } => {
                parse_expiry(number, unit, base, context.now, command).map(Some)
            }
            _ => Ok(None),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SetOptions<'a> {
    pub(super) condition: SetCondition<'a>,
    pub(super) expiry: ExpiryOption<'a>,
    /// Whether the command replies with the old value (GET).
    pub(super) returns_old_value: bool,
}

impl<'a> SetOptions<'a> {
    /// Parses the arguments from index `from` on.
    pub(super) fn parse(args: Args<'a>, from: usize, allowed: AcceptedOptions) -> Result<Self, CommandError> {
        let mut options = Self::default();
        let mut index = from;
        while let Some(word) = args.get(index) {
            let is = |name: &str, words: AcceptedOptions| {
                allowed.contains(words) && word.eq_ignore_ascii_case(name.as_bytes())
            };
            let condition = match () {
                () if is("nx", AcceptedOptions::NX_XX) => Some(SetCondition::KeyMissing),
                () if is("xx", AcceptedOptions::NX_XX) => Some(SetCondition::KeyPresent),
                () if allowed.contains(AcceptedOptions::COMPARISONS)
                    && Comparison::is_comparison_option(word) =>
                {
                    index += 1;
                    let value = args.get(index).ok_or(CommandError::Syntax)?;
                    Some(SetCondition::Comparison(Comparison::parse(word, value)))
                }
                () => None,
            };
            if let Some(condition) = condition {
                // An option may be repeated, except for comparisons. A different condition is an error.
                let repeated =
                    options.condition == condition && !matches!(condition, SetCondition::Comparison(_));
                if options.condition != SetCondition::Always && !repeated {
                    return Err(CommandError::Syntax);
                }
                options.condition = condition;
            } else if is("get", AcceptedOptions::GET) {
                options.returns_old_value = true;
            } else {
                let expiry = if is("keepttl", AcceptedOptions::KEEPTTL) {
                    ExpiryOption::Keep
                } else if is("persist", AcceptedOptions::PERSIST) {
                    ExpiryOption::Persist
                } else {
                    let (unit, base) = parse_time_option(word).ok_or(CommandError::Syntax)?;
                    index += 1;
                    ExpiryOption::At { number: args.get(index).ok_or(CommandError::Syntax)?, unit, base }
                };
                options.expiry = merge_expiry(options.expiry, expiry)?;
            }
            index += 1;
        }
        Ok(options)
    }
}

/// Combines two expiry options. If the same option is repeated, its last value wins; different options conflict.
fn merge_expiry<'a>(
    first: ExpiryOption<'a>,
    second: ExpiryOption<'a>,
) -> Result<ExpiryOption<'a>, CommandError> {
    let kind = |expiry: ExpiryOption<'_>| match expiry {
        ExpiryOption::At { unit, base, .. } => Some((unit, base)),
        _ => None,
    };
    let alike = first == ExpiryOption::Unspecified
        || first == second
        || (kind(first).is_some() && kind(first) == kind(second));
    if alike { Ok(second) } else { Err(CommandError::Syntax) }
}
