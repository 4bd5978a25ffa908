//! The kinds of values: how the words of a line or of CONFIG SET become a value, and how the value is shown.
//!
//! Each kind is a small type that knows its value's type, so that a row of the table (`parameters.rs`) is checked by
//! the compiler: the kind says of which type the value is, the key gives it to readers. [`Field`] is a kind without its
//! type, for those that treat all parameters alike: files, CONFIG GET and SET, CONFIG REWRITE.

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

/// A text that is cheap to hand out.
pub type Text = Arc<str>;

/// A kind of value.
pub(crate) trait Kind: Sync {
    /// Its values.
    type Value: Clone + PartialEq + fmt::Debug;

    /// The value that the words stand for, or why they are refused. `before` is the value so far, if there is one:
    /// some parameters change a part of it.
    fn parse(&self, words: &[String], before: Option<&Self::Value>) -> Result<Self::Value, String>;

    /// As CONFIG GET shows it. [`Kind::parse`] reads it as one word.
    fn show(&self, value: &Self::Value) -> String;

    /// The lines of a file that set it, without the parameter's name.
    fn lines(&self, value: &Self::Value) -> Vec<String> {
        vec![quoted(&self.show(value))]
    }

    /// Whether a value may be spread over several lines.
    fn adds_up(&self) -> bool {
        false
    }

    /// The values, for the page of parameters.
    #[cfg(test)]
    fn describe(&self) -> String;
}

/// A parameter's place among the values, and its kind.
pub(crate) struct Typed<K: Kind>
where
    K::Value: 'static,
{
    pub(crate) key: Key<K::Value>,
    pub(crate) kind: K,
}

/// A parameter of any type.
pub(crate) trait Field: Sync {
    /// Sets it to the value of the words, or says why they are refused.
    fn set(&self, values: &mut Values, words: &[String]) -> Result<(), String>;
    /// Sets it to what it is in `from`.
    fn copy(&self, from: &Values, to: &mut Values);
    /// Whether it is the same in both.
    fn is_equal(&self, one: &Values, other: &Values) -> bool;
    /// As CONFIG GET shows it.
    fn show(&self, values: &Values) -> String;
    /// The lines of a file that set it, without its name.
    fn lines(&self, values: &Values) -> Vec<String>;
    /// Whether these words alone already say it.
    fn is_said_by(&self, words: &[String], values: &Values, defaults: &Values) -> bool;
    /// The values, for the page of parameters.
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

    fn is_said_by(&self, words: &[String], values: &Values, defaults: &Values) -> bool {
        let said = self.kind.parse(words, Some(&defaults[self.key]));
        !self.kind.adds_up() && said.is_ok_and(|said| said == values[self.key])
    }

    #[cfg(test)]
    fn describe(&self) -> String {
        self.kind.describe()
    }
}

/// The value that a parameter has without a configuration.
pub(crate) fn default_of<K: Kind>(kind: &K, text: &str) -> K::Value {
    kind.parse(&[text.to_owned()], None).expect("a test reads every default")
}

const WRONG_COUNT: &str = "wrong number of arguments";

/// The one word of a parameter that takes one.
fn only(words: &[String]) -> Result<&str, String> {
    match words {
        [word] => Ok(word),
        _ => Err(WRONG_COUNT.to_owned()),
    }
}

/// The words of a parameter that takes several: CONFIG SET gives them as one argument.
fn spread(words: &[String]) -> Vec<&str> {
    match words {
        [word] => word.split_ascii_whitespace().collect(),
        words => words.iter().map(String::as_str).collect(),
    }
}

/// The same for those of which a blank too many is an empty word.
fn split(words: &[String]) -> Vec<&str> {
    match words {
        [word] => word.split(' ').collect(),
        words => words.iter().map(String::as_str).collect(),
    }
}

/// Values with blanks between them.
fn join<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(" ")
}

/// Several words on one line, or the empty word.
fn line_of(words: String) -> Vec<String> {
    vec![if words.is_empty() { quoted("") } else { words }]
}

/// Words for the page of parameters.
#[cfg(test)]
fn listed<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
