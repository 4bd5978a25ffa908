//! Value types of parameters: parsing from a line or CONFIG SET, and formatting.
//!
//! Each kind is a small type with an associated value type, so that the compiler checks the rows of the parameter table
//! (`parameters.rs`) and the types of the keys. [`Field`] is a type-erased kind for code that handles all parameters
//! alike: configuration files, CONFIG GET and SET, CONFIG REWRITE.

mod list;
mod number;
mod word;

use std::fmt;
use std::sync::Arc;

pub(crate) use list::{
    output_limits, percentiles, replica_of, save, score_adjustments, shutdown_words, words,
};
pub(crate) use number::{
    at_least, bytes, clamped, millis, number, octal, optional_port, seconds, share_of_memory, wide_bytes,
};
pub(crate) use word::{
    announced_address, append_file_name, append_folder_name, choice, dump_file_name, event_letters, hostname,
    ipv4, ipv6, one_of, optional, path, plain_name, switch, text, title_template, zone,
};

pub use list::{MasterAddress, OutputLimit, OutputLimits, SavePoint};
pub use number::MemoryShare;

use crate::key::Key;
use crate::parameters::Values;
use crate::rewrite::quoted;

/// A string that is cheap to clone.
pub type Text = Arc<str>;

/// A value type with its parser and formatter.
pub(crate) trait Kind: Sync {
    /// The parsed value.
    type Value: Clone + PartialEq + fmt::Debug;

    /// Parses arguments; the error is the reason. `before` is the current value, if there is one, for parameters that
    /// allow partial changes.
    fn parse(&self, words: &[String], before: Option<&Self::Value>) -> Result<Self::Value, String>;

    /// Formats the value for CONFIG GET. [`Kind::parse`] accepts the result as one argument.
    fn show(&self, value: &Self::Value) -> String;

    /// Formats the value as configuration lines without the parameter's name.
    fn lines(&self, value: &Self::Value) -> Vec<String> {
        vec![quoted(&self.show(value))]
    }

    /// Whether several lines together form one value.
    fn is_cumulative(&self) -> bool {
        false
    }

    /// Describes the valid values for docs/CONFIGURATION.md.
    #[cfg(test)]
    fn describe(&self) -> String;
}

/// A parameter's field in [`Values`] and its kind.
pub(crate) struct Typed<K: Kind>
where
    K::Value: 'static,
{
    pub(crate) key: Key<K::Value>,
    pub(crate) kind: K,
}

/// Type-erased access to a parameter.
pub(crate) trait Field: Sync {
    /// Parses the arguments and sets the value; the error is the reason.
    fn set(&self, values: &mut Values, words: &[String]) -> Result<(), String>;
    /// Copies the value from one snapshot to another.
    fn copy(&self, from: &Values, to: &mut Values);
    /// Whether both snapshots have the same value.
    fn is_equal(&self, one: &Values, other: &Values) -> bool;
    /// Formats the value for CONFIG GET.
    fn show(&self, values: &Values) -> String;
    /// Formats the value as configuration lines without the parameter's name.
    fn lines(&self, values: &Values) -> Vec<String>;
    /// Whether these arguments, applied to the defaults, give the present value.
    fn is_set_by(&self, words: &[String], values: &Values, defaults: &Values) -> bool;
    /// Describes the valid values for docs/CONFIGURATION.md.
    #[cfg(test)]
    fn describe(&self) -> String;
}

impl<K: Kind> Field for Typed<K> {
    fn set(&self, values: &mut Values, words: &[String]) -> Result<(), String> {
        let value = self.kind.parse(words, Some(&values[self.key]))?;
        *(self.key.write)(values) = value;
        Ok(())
    }

    fn copy(&self, from: &Values, to: &mut Values) {
        (self.key.write)(to).clone_from(&from[self.key]);
    }

    fn is_equal(&self, one: &Values, other: &Values) -> bool {
        one[self.key] == other[self.key]
    }

    fn show(&self, values: &Values) -> String {
        self.kind.show(&values[self.key])
    }

    fn lines(&self, values: &Values) -> Vec<String> {
        self.kind.lines(&values[self.key])
    }

    fn is_set_by(&self, words: &[String], values: &Values, defaults: &Values) -> bool {
        let said = self.kind.parse(words, Some(&defaults[self.key]));
        !self.kind.is_cumulative() && said.is_ok_and(|said| said == values[self.key])
    }

    #[cfg(test)]
    fn describe(&self) -> String {
        self.kind.describe()
    }
}

/// Parses the default value; an invalid default is a bug.
pub(crate) fn default_of<K: Kind>(kind: &K, text: &str) -> K::Value {
    kind.parse(&[text.to_owned()], None).expect("a test reads every default")
}

const WRONG_COUNT: &str = "wrong number of arguments";

/// Returns the only argument of a single-valued parameter.
fn only(words: &[String]) -> Result<&str, String> {
    match words {
        [word] => Ok(word),
        _ => Err(WRONG_COUNT.to_owned()),
    }
}

/// Splits the arguments of a multi-valued parameter, which CONFIG SET passes as one argument.
fn spread(words: &[String]) -> Vec<&str> {
    match words {
        [word] => word.split_ascii_whitespace().collect(),
        words => words.iter().map(String::as_str).collect(),
    }
}

/// Like [`spread`], but repeated spaces produce empty words.
fn split(words: &[String]) -> Vec<&str> {
    match words {
        [word] => word.split(' ').collect(),
        words => words.iter().map(String::as_str).collect(),
    }
}

/// Joins values with spaces.
fn join<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(" ")
}

/// One configuration line with all words; no words give an empty string.
fn line_of(words: String) -> Vec<String> {
    vec![if words.is_empty() { quoted("") } else { words }]
}

/// Formats words for docs/CONFIGURATION.md.
#[cfg(test)]
fn listed<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
