//! The configuration: one table of parameters, their values, and where values come from: a file in
//! redis.conf's syntax, the command line in redis-server's form, CONFIG SET.

mod file;
mod kind;
mod parameters;

use parking_lot::RwLock;

pub use file::{ConfigError, Source};
pub(crate) use file::{is_file_argument, lines_of_arguments};

use parameters::{PARAMETERS, Parameter};

/// The values of all parameters, in the form that CONFIG GET shows.
#[derive(Debug)]
pub struct Config {
    values: RwLock<Vec<String>>,
}

/// Why a value was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetError {
    Unknown,
    Immutable,
    /// What is wrong with the value.
    Invalid(String),
}

impl Default for Config {
    fn default() -> Self {
        Self { values: RwLock::new(PARAMETERS.iter().map(|row| row.default.to_owned()).collect()) }
    }
}

impl Config {
    /// The value of a parameter.
    ///
    /// # Panics
    /// If there is no parameter of that name.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        let index = find(name).expect("the program asks only for parameters in its own table");
        self.values.read()[index].clone()
    }

    /// A parameter that is a number.
    #[must_use]
    pub fn integer(&self, name: &str) -> i64 {
        self.text(name).parse().expect("a number's kind was checked when it was set")
    }

    /// A parameter that is a port, or 0.
    #[must_use]
    pub fn port(&self, name: &str) -> u16 {
        u16::try_from(self.integer(name)).expect("a port's range was checked when it was set")
    }

    /// A parameter that is `yes` or `no`.
    #[must_use]
    pub fn switch(&self, name: &str) -> bool {
        self.text(name) == "yes"
    }

    /// The hard limit, the soft limit (bytes) and the soft limit's seconds of a class of clients.
    #[must_use]
    pub fn output_limit(&self, class: &str) -> (usize, usize, u64) {
        let text = self.text("client-output-buffer-limit");
        let words: Vec<&str> = text.split(' ').collect();
        let at = words.iter().position(|word| *word == class).expect("the classes are fixed");
        let number = |offset: usize| words[at + offset].parse::<u64>().expect("checked when it was set");
        (number(1) as usize, number(2) as usize, number(3))
    }

    /// Sets a parameter, as a file does: immutable ones too.
    pub fn load(&self, name: &str, words: &[String]) -> Result<(), SetError> {
        let index = find(name).ok_or(SetError::Unknown)?;
        let mut values = self.values.write();
        values[index] = PARAMETERS[index].kind.parse(words, &values[index]).map_err(SetError::Invalid)?;
        Ok(())
    }

    /// Sets parameters at run time, all or none. An error says which one it is about.
    pub fn set(&self, changes: &[(String, String)]) -> Result<(), (String, SetError)> {
        let mut values = self.values.write();
        let mut changed = values.clone();
        for (name, value) in changes {
            let fail = |error| (name.clone(), error);
            let index = find(name).ok_or_else(|| fail(SetError::Unknown))?;
            if !PARAMETERS[index].mutable {
                return Err(fail(SetError::Immutable));
            }
            let parsed = PARAMETERS[index].kind.parse(std::slice::from_ref(value), &changed[index]);
            changed[index] = parsed.map_err(|reason| fail(SetError::Invalid(reason)))?;
        }
        *values = changed;
        Ok(())
    }

    /// Every name (aliases too) with its value, in the table's order.
    #[must_use]
    pub fn all(&self) -> Vec<(&'static str, String)> {
        let values = self.values.read();
        let named = PARAMETERS.iter().zip(values.iter());
        named
            .flat_map(|(row, value)| {
                std::iter::once(row.name).chain(row.alias).map(move |name| (name, value.clone()))
            })
            .collect()
    }

    /// The parameters that differ from their defaults, by their own names.
    #[must_use]
    pub fn changed(&self) -> Vec<(&'static str, String)> {
        let values = self.values.read();
        let named = PARAMETERS.iter().zip(values.iter());
        named
            .filter(|(row, value)| row.default != **value)
            .map(|(row, value)| (row.name, value.clone()))
            .collect()
    }
}

fn find(name: &str) -> Option<usize> {
    let is_named = |row: &Parameter| {
        row.name.eq_ignore_ascii_case(name) || row.alias.is_some_and(|alias| alias.eq_ignore_ascii_case(name))
    };
    PARAMETERS.iter().position(is_named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_fits_its_kind() {
        for row in PARAMETERS {
            let words: Vec<String> = if row.default.is_empty() {
                continue;
            } else {
                row.default.split(' ').map(str::to_owned).collect()
            };
            assert_eq!(row.kind.parse(&words, row.default).as_deref(), Ok(row.default), "{}", row.name);
        }
    }

    #[test]
    fn several_changes_are_made_together_or_not_at_all() {
        let config = Config::default();
        let change = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let failed = config.set(&[change("maxclients", "5"), change("timeout", "x")]);
        assert_eq!(failed.unwrap_err().0, "timeout");
        assert_eq!(config.integer("maxclients"), 10000);
        assert_eq!(config.set(&[change("port", "1"), change("slave-priority", "7")]), Ok(()));
        assert_eq!(config.integer("replica-priority"), 7);
        let immutable = config.set(&[change("databases", "3")]);
        assert_eq!(immutable, Err(("databases".to_owned(), SetError::Immutable)));
    }
}
