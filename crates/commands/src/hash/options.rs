//! Arguments shared by all commands with `FIELDS`: the fields, the expiry and the conditions.

use bitflags::bitflags;
use clock::Millis;
use engine::{CommandError, Context};
use resp::Args;

use crate::time_arg::{TimeBase, TimeUnit, parse_time_option, to_absolute};

const NUMFIELDS_ERROR: CommandError =
    CommandError::text("ERR numfields should be greater than 0 and match the provided number of fields");

/// The fields of a command whose only option is FIELDS, at argument 2.
pub(super) fn parse_fields_first<'a>(context: &Context<'a>) -> Result<Args<'a>, CommandError> {
    if !context.arg(2).eq_ignore_ascii_case(b"fields") {
        return Err(CommandError::Syntax);
    }
    parse_fields_at(context, Some(2), 1)
}

/// Finds the word FIELDS, starting at argument `from`.
pub(super) fn find_fields_option(args: Args<'_>, from: usize) -> Option<usize> {
    (from..args.len()).find(|&index| args[index].eq_ignore_ascii_case(b"fields"))
}

/// Returns the fields after the word FIELDS, which is argument `fields_index`. Each field has `args_per_field`
/// arguments. The count after FIELDS must match the number of remaining arguments exactly.
pub(super) fn parse_fields_at<'a>(
    context: &Context<'a>,
    fields_index: Option<usize>,
    args_per_field: usize,
) -> Result<Args<'a>, CommandError> {
    let word = fields_index.filter(|word| word + 1 < context.args.len()).ok_or(NUMFIELDS_ERROR)?;
    let count = context.integer_arg(word + 1)?;
    let rest = context.args.skip(word + 2);
    match usize::try_from(count) {
        Ok(count) if count > 0 && count.checked_mul(args_per_field) == Some(rest.len()) => Ok(rest),
        _ => Err(NUMFIELDS_ERROR),
    }
}

/// Parses an expiry for fields. A time in the past is allowed and deletes the fields immediately. As in Valkey, any
/// time that fits in milliseconds is accepted.
pub(super) fn parse_time(
    context: &Context<'_>,
    index: usize,
    unit: TimeUnit,
    base: TimeBase,
    name: &'static str,
) -> Result<Millis, CommandError> {
    let number = context.integer_arg(index)?;
    let invalid = CommandError::InvalidExpire(name);
    if number < 0 {
        return Err(invalid);
    }
    to_absolute(number, unit, base, context.now).ok_or(invalid)
}

bitflags! {
    /// The options that a command accepts in addition to EX, PX, EXAT and PXAT.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct AcceptedOptions: u8 {
        const KEEPTTL = 1;
        const PERSIST = 1 << 1;
        /// The conditions NX and XX on the key, and FNX and FXX on the fields.
        const CONDITIONS = 1 << 2;
    }
}

/// The change to a field's expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ExpiryOption {
    #[default]
    Unspecified,
    Keep,
    Persist,
    At(Millis),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct HashFieldOptions {
    expiry: ExpiryOption,
    /// Argument index of the time, its unit, and whether it is relative.
    time: Option<(usize, TimeUnit, TimeBase)>,
    /// Required existence of the key (XX or NX).
    pub(super) key_must_exist: Option<bool>,
    /// Required existence of all fields (FXX) or of none (FNX).
    pub(super) fields_must_exist: Option<bool>,
}

impl HashFieldOptions {
    /// Parses the options from argument 2 up to FIELDS, then the fields (`args_per_field` arguments each), and last the
    /// time. If a request has several errors, this order reports the same error as Valkey.
    pub(super) fn parse<'a>(
        context: &Context<'a>,
        allowed: AcceptedOptions,
        args_per_field: usize,
    ) -> Result<(Self, Args<'a>), CommandError> {
        let mut options = Self::default();
        let mut index = 2;
        while let Some(word) = context.args.get(index) {
            let is = |name: &str, words: AcceptedOptions| {
                allowed.contains(words) && word.eq_ignore_ascii_case(name.as_bytes())
            };
            match () {
                () if word.eq_ignore_ascii_case(b"fields") => {
                    let fields = parse_fields_at(context, Some(index), args_per_field)?;
                    return Ok((options, fields));
                }
                () if is("nx", AcceptedOptions::CONDITIONS) => {
                    set_condition_once(&mut options.key_must_exist, false)?;
                }
                () if is("xx", AcceptedOptions::CONDITIONS) => {
                    set_condition_once(&mut options.key_must_exist, true)?;
                }
                () if is("fnx", AcceptedOptions::CONDITIONS) => {
                    set_condition_once(&mut options.fields_must_exist, false)?;
                }
                () if is("fxx", AcceptedOptions::CONDITIONS) => {
                    set_condition_once(&mut options.fields_must_exist, true)?;
                }
                () => {
                    if options.time.is_some() || options.expiry != ExpiryOption::Unspecified {
                        return Err(CommandError::Syntax);
                    }
                    match () {
                        () if is("keepttl", AcceptedOptions::KEEPTTL) => options.expiry = ExpiryOption::Keep,
                        () if is("persist", AcceptedOptions::PERSIST) => {
                            options.expiry = ExpiryOption::Persist;
                        }
                        () => {
                            let (unit, base) = parse_time_option(word).ok_or(CommandError::Syntax)?;
                            index += 1;
                            context.args.get(index).ok_or(CommandError::Syntax)?;
                            options.time = Some((index, unit, base));
                        }
                    }
                }
            }
            index += 1;
        }
        Err(NUMFIELDS_ERROR)
    }

    /// Returns the change to the fields' expiry. Call this after the key condition is met, because as in Valkey, an
    /// invalid time is an error only in that case.
    pub(super) fn expiry(
        &self,
        context: &Context<'_>,
        name: &'static str,
    ) -> Result<ExpiryOption, CommandError> {
        match self.time {
            Some((index, unit, base)) => Ok(ExpiryOption::At(parse_time(context, index, unit, base, name)?)),
            None => Ok(self.expiry),
        }
    }
}

fn set_condition_once(condition: &mut Option<bool>, value: bool) -> Result<(), CommandError> {
    match condition.replace(value) {
        None => Ok(()),
        Some(_) => Err(CommandError::Syntax),
    }
}
