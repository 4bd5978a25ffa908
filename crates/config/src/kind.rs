//! Value types of parameters: parsing from a line or CONFIG SET, and formatting.
//!
//! Each kind is a small type with an associated value type, so that the compiler checks the rows of the parameter table
//! (`parameters.rs`) and the types of the keys. [`ParameterField`] is a type-erased kind for code that handles all
//! parameters alike: configuration files, CONFIG GET and SET, CONFIG REWRITE.

mod list;
mod number;
mod word;

use std::fmt;
use std::sync::Arc;

pub(crate) use list::{
    oom_adjustments, optional_master, output_limits, percentile_list, save_points, shutdown_options,
    word_list,
};
pub(crate) use number::{
    bounded_number, byte_count, clamped_number, file_mode, memory_size, millis, min_bytes, optional_port,
    seconds, unbounded_bytes,
};
pub(crate) use word::{
    announced_address, append_directory_name, append_file_name, availability_zone, dump_file_name, enum_word,
    event_letters, fixed_word, hostname, ipv4, ipv6, node_name, optional_text, path, process_title, text,
    yes_no,
};

pub use list::{MasterAddress, OutputLimit, OutputLimits, SavePoint};
pub use number::MemorySize;

use crate::key::Key;
use crate::parameters::Values;
use crate::rewrite::quote_word;

/// A string that is cheap to clone.
pub type Text = Arc<str>;

/// A type of parameter values, with its parser and formatter.
pub(crate) trait ValueKind: Sync {
    /// The type of the parsed value, which code reads by a [`Key`].
    type Value: Clone + PartialEq + fmt::Debug;

    /// Parses the arguments of a configuration line or CONFIG SET. `previous` is the current value, if there is one,
    /// for parameters that allow partial changes. The error is the reason for the refusal.
    fn parse(&self, words: &[String], previous: Option<&Self::Value>) -> Result<Self::Value, String>;

    /// Formats the value for CONFIG GET. [`ValueKind::parse`] accepts the result as one argument.
    fn format(&self, value: &Self::Value) -> String;

    /// Formats the value as configuration lines without the parameter's name.
    fn config_lines(&self, value: &Self::Value) -> Vec<String> {
        vec![quote_word(&self.format(value))]
    }

    /// Whether several lines together form one value.
    fn is_cumulative(&self) -> bool {
        false
    }

    /// Describes the valid values for docs/CONFIGURATION.md.
    #[cfg(test)]
    fn describe_values(&self) -> String;
}

/// The field of a parameter in [`Values`], and the kind that parses and formats it.
pub(crate) struct TypedField<K: ValueKind>
where
    K::Value: 'static,
{
    pub(crate) key: Key<K::Value>,
    pub(crate) kind: K,
}

/// Access to a parameter's value for code that does not know the value's type.
pub(crate) trait ParameterField: Sync {
    /// Parses the arguments and sets the value. The error is the reason for the refusal.
    fn parse_and_set(&self, values: &mut Values, words: &[String]) -> Result<(), String>;
    /// Copies the value from one snapshot to another.
    fn copy_value(&self, from: &Values, to: &mut Values);
    /// Whether both snapshots have the same value.
    fn has_equal_value(&self, one: &Values, other: &Values) -> bool;
    /// Formats the value for CONFIG GET.
    fn format_value(&self, values: &Values) -> String;
    /// Formats the value as configuration lines without the parameter's name.
    fn config_lines(&self, values: &Values) -> Vec<String>;
    /// Whether these words, applied to the default, give the value in `values`.
    fn words_match_value(&self, words: &[String], values: &Values, defaults: &Values) -> bool;
    /// Describes the valid values for docs/CONFIGURATION.md.
    #[cfg(test)]
    fn describe_values(&self) -> String;
}

impl<K: ValueKind> ParameterField for TypedField<K> {
    fn parse_and_set(&self, values: &mut Values, words: &[String]) -> Result<(), String> {
        let value = self.kind.parse(words, Some(&values[self.key]))?;
        *(self.key.setter)(values) = value;
        Ok(())
    }

    fn copy_value(&self, from: &Values, to: &mut Values) {
        (self.key.setter)(to).clone_from(&from[self.key]);
    }

    fn has_equal_value(&self, one: &Values, other: &Values) -> bool {
        one[self.key] == other[self.key]
    }

    fn format_value(&self, values: &Values) -> String {
        self.kind.format(&values[self.key])
    }

    fn config_lines(&self, values: &Values) -> Vec<String> {
        self.kind.config_lines(&values[self.key])
    }

    fn words_match_value(&self, words: &[String], values: &Values, defaults: &Values) -> bool {
        let said = self.kind.parse(words, Some(&defaults[self.key]));
        !self.kind.is_cumulative() && said.is_ok_and(|said| said == values[self.key])
    }

    #[cfg(test)]
    fn describe_values(&self) -> String {
        self.kind.describe_values()
    }
}

/// Parses the default value from the table. An invalid default is a bug and panics.
pub(crate) fn parse_default<K: ValueKind>(kind: &K, text: &str) -> K::Value {
    kind.parse(&[text.to_owned()], None).expect("a test reads every default")
}

const WRONG_COUNT_ERROR: &str = "wrong number of arguments";

/// Returns the only argument of a single-valued parameter.
fn single_argument(words: &[String]) -> Result<&str, String> {
    match words {
        [word] => Ok(word),
        _ => Err(WRONG_COUNT_ERROR.to_owned()),
    }
}

/// Splits the arguments of a multi-valued parameter, which CONFIG SET passes as one argument.
fn split_arguments(words: &[String]) -> Vec<&str> {
    match words {
        [word] => word.split_ascii_whitespace().collect(),
        words => words.iter().map(String::as_str).collect(),
    }
}

/// Like [`split_arguments`], but repeated spaces produce empty words.
fn split_keeping_empty(words: &[String]) -> Vec<&str> {
    match words {
        [word] => word.split(' ').collect(),
        words => words.iter().map(String::as_str).collect(),
    }
}

/// Joins values with spaces.
fn join_values<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(" ")
}

/// Returns one configuration line with all words. Without words, the line is a quoted empty string.
fn single_line(words: String) -> Vec<String> {
    vec![if words.is_empty() { quote_word("") } else { words }]
}

/// Formats words for docs/CONFIGURATION.md.
#[cfg(test)]
fn format_word_list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
