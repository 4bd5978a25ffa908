//! The configuration: one table of parameters, their values, and where values come from: a file in
//! redis.conf's syntax, the command line in redis-server's form, CONFIG SET.
#![forbid(unsafe_code)]

mod file;
mod kind;
mod parameters;
mod rewrite;
mod unbuilt;

use std::sync::atomic::AtomicBool;

use parking_lot::RwLock;

pub use file::{ConfigError, Source};
pub use file::{is_file_argument, lines_of_arguments};
pub use rewrite::Extent;
pub use unbuilt::{notes, warnings};

use parameters::{PARAMETERS, Parameter};

/// The values of all parameters, in the form that CONFIG GET shows.
#[derive(Debug)]
pub struct Config {
    values: RwLock<Vec<String>>,
    defaults: Vec<String>,
    /// What the lines `rename-command` said, in their order.
    renames: RwLock<Vec<Rename>>,
    /// The lines `user`, in their order.
    users: RwLock<Vec<UserLine>>,
    /// There was a line `save`, so the default no longer counts.
    has_save_lines: AtomicBool,
}

/// A line `user`: a name, and what the user may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserLine {
    /// What follows `user`: at least a name.
    words: Vec<String>,
    line: ConfigError,
}

impl UserLine {
    /// What follows `user`, as access control reads it.
    #[must_use]
    pub fn words(&self) -> Vec<Vec<u8>> {
        self.words.iter().map(|word| word.clone().into_bytes()).collect()
    }

    /// That this line cannot be used, and why.
    #[must_use]
    pub fn fault(&self, reason: &str) -> ConfigError {
        ConfigError { reason: reason.to_owned(), ..self.line.clone() }
    }
}

/// A line `rename-command`: what a command is to be called, or nothing if it is not to be called at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// The command, by its own name.
    pub from: String,
    /// Its new name; empty takes the command away.
    pub to: String,
    line: ConfigError,
}

impl Rename {
    /// That this line cannot be used, and why.
    #[must_use]
    pub fn fault(&self, reason: &str) -> ConfigError {
        ConfigError { reason: reason.to_owned(), ..self.line.clone() }
    }
}

/// Why a value was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetError {
    /// There is no parameter of that name.
    Unknown,
    /// It can only be set at the start.
    Immutable,
    /// Not from this connection.
    Protected,
    /// What is wrong with the value.
    Invalid(String),
}

impl Default for Config {
    fn default() -> Self {
        let defaults: Vec<String> = PARAMETERS.iter().map(|row| row.default.to_owned()).collect();
        Self {
            values: RwLock::new(defaults.clone()),
            defaults,
            renames: RwLock::default(),
            has_save_lines: AtomicBool::new(false),
            users: RwLock::default(),
        }
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

    /// Whether a parameter has the value that it has without a configuration.
    #[must_use]
    pub fn is_default(&self, name: &str) -> bool {
        let index = find(name).expect("the program knows its own parameters");
        self.values.read()[index] == self.defaults[index]
    }

    /// Gives a parameter a default that depends on the machine.
    pub fn set_default(&mut self, name: &str, value: &str) {
        let index = find(name).expect("the program knows its own parameters");
        self.defaults[index] = value.to_owned();
        self.values.write()[index] = value.to_owned();
    }

    /// Sets a parameter, as a file does: immutable ones too.
    ///
    /// # Errors
    /// There is no such parameter, or the value is none for it.
    pub fn load(&self, name: &str, words: &[String]) -> Result<(), SetError> {
        let index = find(name).ok_or(SetError::Unknown)?;
        let mut values = self.values.write();
        let value = PARAMETERS[index].kind.parse(words, &values[index]).map_err(SetError::Invalid)?;
        unbuilt::check(PARAMETERS[index].name, &value).map_err(SetError::Invalid)?;
        values[index] = value;
        Ok(())
    }

    /// Sets parameters at run time, all or none; `trusted` ones may be protected. Gives back the
    /// parameters that changed, with their values before; an error says which one it is about.
    ///
    /// # Errors
    /// The first parameter that cannot be set so, and why; none is set then.
    pub fn set(
        &self,
        changes: &[(String, String)],
        trusted: bool,
    ) -> Result<Vec<(&'static str, String)>, (String, SetError)> {
        let mut values = self.values.write();
        let mut changed = values.clone();
        let mut before = Vec::new();
        // All the names are looked at before any value is.
        let mut rows = Vec::with_capacity(changes.len());
        for (name, value) in changes {
            rows.push((settable(name, trusted).map_err(|error| (name.clone(), error))?, name, value));
        }
        for (index, name, value) in rows {
            let row = &PARAMETERS[index];
            let fail = |reason| (name.clone(), SetError::Invalid(reason));
            changed[index] = row.kind.parse(std::slice::from_ref(value), &changed[index]).map_err(fail)?;
            unbuilt::check(row.name, &changed[index]).map_err(fail)?;
            if changed[index] != values[index] {
                before.push((row.name, values[index].clone()));
            }
        }
        *values = changed;
        Ok(before)
    }

    /// Takes changes back.
    pub fn restore(&self, before: Vec<(&'static str, String)>) {
        let mut values = self.values.write();
        for (name, value) in before {
            let index = find(name).expect("it was just set");
            values[index] = value;
        }
    }

    /// Every name (aliases too) with its value, in the table's order. Hidden ones are left out.
    #[must_use]
    pub fn all(&self) -> Vec<(&'static str, String)> {
        let values = self.values.read();
        let shown = PARAMETERS.iter().zip(values.iter()).filter(|(row, _)| !row.hidden);
        shown
            .flat_map(|(row, value)| {
                std::iter::once(row.name).chain(row.alias).map(move |name| (name, value.clone()))
            })
            .collect()
    }

    /// The hidden parameter of that name, in any case, with its value.
    #[must_use]
    pub fn hidden(&self, name: &str) -> Option<(&'static str, String)> {
        let index = find(name)?;
        let row = &PARAMETERS[index];
        let names = std::iter::once(row.name).chain(row.alias);
        let name = names.filter(|_| row.hidden).find(|known| known.eq_ignore_ascii_case(name))?;
        Some((name, self.values.read()[index].clone()))
    }

    /// What commands are to be called, in the order in which it was said.
    #[must_use]
    pub fn renames(&self) -> Vec<Rename> {
        self.renames.read().clone()
    }

    /// The users that lines of their own describe.
    #[must_use]
    pub fn users(&self) -> Vec<UserLine> {
        self.users.read().clone()
    }
}

/// The parameter of this name, if CONFIG SET may change it.
fn settable(name: &str, trusted: bool) -> Result<usize, SetError> {
    let index = find(name).ok_or(SetError::Unknown)?;
    let row = &PARAMETERS[index];
    if !row.mutable {
        return Err(SetError::Immutable);
    }
    if row.protected && !trusted {
        return Err(SetError::Protected);
    }
    Ok(index)
}

fn find(name: &str) -> Option<usize> {
    let is_named = |row: &Parameter| {
        row.name.eq_ignore_ascii_case(name) || row.alias.is_some_and(|alias| alias.eq_ignore_ascii_case(name))
    };
    PARAMETERS.iter().position(is_named)
}

#[cfg(test)]
mod page;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_break_a_line_of_nodes_conf_are_refused() {
        let config = Config::default();
        let names = ["cluster-announce-hostname", "cluster-announce-human-nodename", "cluster-announce-ip"];
        for name in names {
            for bad in
                ["a b", "a,b", "a\nb", "a\tb", "a\"b", "a'b", "a\\b", "a=b", "a\u{7f}b", "a\u{e9}", "a;b"]
            {
                assert!(config.load(name, &[bad.to_owned()]).is_err(), "{name} '{bad:?}'");
            }
            assert_eq!(config.load(name, &[String::new()]), Ok(()), "{name}");
        }
        for (name, good) in [
            ("cluster-announce-hostname", "redis-7.example_1.com"),
            ("cluster-announce-human-nodename", "rack-4/node_2.a"),
            ("availability-zone", "eu-central-1a"),
            ("cluster-announce-ip", "2001:db8::1"),
            ("cluster-databases", "16"),
        ] {
            assert_eq!(config.load(name, &[good.to_owned()]), Ok(()), "{name}");
        }
        for bad in ["0", "65536", "-1"] {
            assert!(config.load("cluster-databases", &[bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_default_fits_its_kind() {
        for row in PARAMETERS {
            let words: Vec<String> = match row.kind {
                _ if row.default.is_empty() => continue,
                kind::ParameterKind::Text | kind::ParameterKind::TitleTemplate => {
                    vec![row.default.to_owned()]
                }
                _ => row.default.split(' ').map(str::to_owned).collect(),
            };
            assert_eq!(row.kind.parse(&words, row.default).as_deref(), Ok(row.default), "{}", row.name);
        }
    }

    #[test]
    fn several_changes_are_made_together_or_not_at_all() {
        let config = Config::default();
        let change = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let failed = config.set(&[change("maxclients", "5"), change("timeout", "x")], false);
        assert_eq!(failed.unwrap_err().0, "timeout");
        assert_eq!(config.integer("maxclients"), 10000);
        let before = config.set(&[change("port", "1"), change("slave-priority", "7")], false);
        let before = before.unwrap();
        assert_eq!(before, [("port", "6379".to_owned()), ("replica-priority", "100".to_owned())]);
        assert_eq!(config.integer("replica-priority"), 7);
        config.restore(before);
        assert_eq!(config.integer("replica-priority"), 100);
    }

    #[test]
    fn some_parameters_are_not_for_everybody() {
        let config = Config::default();
        let set = |name: &str, value: &str, trusted| {
            config.set(&[(name.to_owned(), value.to_owned())], trusted).map_err(|(_, error)| error)
        };
        assert_eq!(set("databases", "3", true), Err(SetError::Immutable));
        assert_eq!(set("dir", "/", false), Err(SetError::Protected));
        assert!(set("dir", "/", true).is_ok());
        assert_eq!(set("nonsense", "3", true), Err(SetError::Unknown));
        assert!(matches!(set("tls-auth-clients-user", "URI", true), Err(SetError::Invalid(_))));
        assert_eq!(set("replicaof", "127.0.0.1 7000", true), Err(SetError::Immutable));
        assert_eq!(set("slaveof", "127.0.0.1 7000", true), Err(SetError::Immutable));
    }

    /// What test suites and operators of Redis and Valkey set is there for who knows its name.
    #[test]
    fn hidden_parameters_are_known_and_not_listed() {
        let config = Config::default();
        let hidden: Vec<_> = PARAMETERS.iter().filter(|row| row.hidden).map(|row| row.name).collect();
        assert!(hidden.contains(&"enable-debug-assert") && hidden.contains(&"cluster-ping-interval"));
        let listed = config.all();
        for name in hidden {
            assert!(listed.iter().all(|(shown, _)| *shown != name), "{name}");
            assert_eq!(config.hidden(name).map(|(name, _)| name), Some(name));
        }
        let change = ("Cluster-Ping-Interval".to_owned(), "500".to_owned());
        assert_eq!(config.set(&[change], false).map(|before| before.len()), Ok(1));
        assert_eq!(config.hidden("CLUSTER-PING-INTERVAL"), Some(("cluster-ping-interval", "500".to_owned())));
        assert_eq!(
            config.hidden("lua-enable-deprecated-api"),
            Some(("lua-enable-deprecated-api", "no".to_owned()))
        );
        assert_eq!(config.hidden("maxmemory"), None);
    }
}
