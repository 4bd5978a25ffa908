//! The configuration: one table of parameters, their values, and where values come from: a file in
//! redis.conf's syntax, the command line in redis-server's form, CONFIG SET.
//!
//! Text is read once, when a value is set; the program reads values of its own types, by [`keys`]:
//!
//! ```
//! use config::{Config, keys};
//!
//! let config = Config::default();
//! let timeout: std::time::Duration = config.get(keys::CLUSTER_NODE_TIMEOUT);
//! assert_eq!(timeout.as_secs(), 15);
//! let values = config.values();
//! assert!(values[keys::PORT] == 6379 && values[keys::TLS_PORT] == 0);
//! ```
//!
//! All values of one moment are a snapshot ([`Values`]), which is never changed: a change makes another and publishes
//! it. So readers take no lock, and those that need several values of one moment hold a snapshot.
#![forbid(unsafe_code)]

mod choices;
mod explain;
mod file;
mod key;
mod kind;
mod parameters;
mod replacing;
mod rewrite;
mod unbuilt;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::{ArcSwap, Guard};
use parking_lot::{Mutex, RwLock};

pub use choices::{
    Allowed, AppendFsync, DisklessLoad, EvictionPolicy, LogFormat, LogLevel, LogTimestamp, OomScoreMode,
    PubsubDefault, ShutdownWord, Supervised, SyslogFacility, TlsAuthClients, TlsUserField,
};
pub use explain::{Explained, Meaning, explain};
pub use file::{ConfigError, Source};
pub use file::{is_file_argument, lines_of_arguments};
pub use key::Key;
pub use kind::{MasterAddress, MemoryShare, OutputLimit, OutputLimits, SavePoint, Text};
pub use parameters::{Values, keys};
pub use replacing::{Replaced, replace_content, replace_whole};
pub use rewrite::Extent;
pub use unbuilt::{notes, warnings};

use parameters::{Id, PARAMETERS, Parameter};

/// The values of all parameters.
#[derive(Debug)]
pub struct Config {
    values: ArcSwap<Values>,
    /// Held while the next snapshot is made.
    changing: Mutex<()>,
    defaults: Values,
    /// The lines `rename-command`, in their order.
    renames: RwLock<Vec<Rename>>,
    /// The lines `user`, in their order.
    users: RwLock<Vec<UserLine>>,
    /// There was a line `save`, so the default no longer counts.
    has_save_lines: AtomicBool,
}

/// A line `user`: a name and the rules of that user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserLine {
    /// The words after `user`: at least a name.
    words: Vec<String>,
    line: ConfigError,
}

impl UserLine {
    /// The words after `user`, as access control reads them.
    #[must_use]
    pub fn words(&self) -> Vec<Vec<u8>> {
        self.words.iter().map(|word| word.clone().into_bytes()).collect()
    }

    /// The error that this line cannot be used.
    #[must_use]
    pub fn fault(&self, reason: &str) -> ConfigError {
        ConfigError { reason: reason.to_owned(), ..self.line.clone() }
    }
}

/// A line `rename-command`: a command and its new name, or none if the command is taken away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// The command, by its own name.
    pub from: String,
    /// Its new name; empty takes the command away.
    pub to: String,
    line: ConfigError,
}

impl Rename {
    /// The error that this line cannot be used.
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
    /// The value cannot be used, and why.
    Invalid(String),
}

/// Parameters that CONFIG SET gave another value.
#[derive(Debug, Clone)]
pub struct Changes {
    before: Arc<Values>,
    changed: Vec<Id>,
}

impl Changes {
    /// Whether this parameter is among them.
    #[must_use]
    pub fn has<T>(&self, key: Key<T>) -> bool {
        self.changed.contains(&key.id)
    }

    /// The values of all parameters before.
    #[must_use]
    pub fn before(&self) -> &Values {
        &self.before
    }

    /// Their names, in the order in which they were given.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.changed.iter().map(|id| id.name())
    }
}

impl Default for Config {
    fn default() -> Self {
        let defaults = Values::default();
        Self {
            values: ArcSwap::from_pointee(defaults.clone()),
            changing: Mutex::default(),
            defaults,
            renames: RwLock::default(),
            has_save_lines: AtomicBool::new(false),
            users: RwLock::default(),
        }
    }
}

impl Config {
    /// The value of a parameter.
    #[must_use]
    #[inline]
    pub fn get<T: Clone>(&self, key: Key<T>) -> T {
        self.values.load()[key].clone()
    }

    /// The values of all parameters as they are now.
    #[must_use]
    #[inline]
    pub fn values(&self) -> Guard<Arc<Values>> {
        self.values.load()
    }

    /// Whether a parameter has the value that it has without a configuration.
    #[must_use]
    pub fn is_default<T>(&self, key: Key<T>) -> bool {
        self.has_default(key.id)
    }

    fn has_default(&self, id: Id) -> bool {
        id.row().field.is_equal(&self.values(), &self.defaults)
    }

    /// Gives a parameter a default that depends on the machine.
    pub fn set_default<T: Clone>(&mut self, key: Key<T>, value: T) {
        *(key.write)(&mut self.defaults) = value.clone();
        self.put(key, value);
    }

    /// Sets a parameter to what the program has found out or was told by another command.
    pub fn put<T>(&self, key: Key<T>, value: T) {
        let _turn = self.changing.lock();
        let mut values = Values::clone(&self.values());
        *(key.write)(&mut values) = value;
        self.values.store(Arc::new(values));
    }

    /// Sets a parameter, as a file does: fixed ones too.
    ///
    /// # Errors
    /// There is no such parameter, or the value is none for it.
    pub fn load(&self, name: &str, words: &[String]) -> Result<(), SetError> {
        let row = find(name).ok_or(SetError::Unknown)?;
        let _turn = self.changing.lock();
        let mut values = Values::clone(&self.values());
        row.field.set(&mut values, words).map_err(SetError::Invalid)?;
        self.values.store(Arc::new(values));
        Ok(())
    }

    /// Sets parameters at run time, all or none; with `trusted` also protected ones. Returns the parameters whose
    /// value is another now; an error names the parameter at fault.
    ///
    /// # Errors
    /// The first parameter that cannot be set so, and why; none is set then.
    pub fn set(&self, changes: &[(String, String)], trusted: bool) -> Result<Changes, (String, SetError)> {
        let _turn = self.changing.lock();
        let before = self.values.load_full();
        let mut values = Values::clone(&before);
        let mut changed = Vec::new();
        // All the names are looked at before any value is.
        let mut rows = Vec::with_capacity(changes.len());
        for (index, (name, value)) in changes.iter().enumerate() {
            rows.push((settable(name, trusted).map_err(|error| (name.clone(), error))?, name, value));
            if changes[..index].iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
                return Err((name.clone(), SetError::Invalid("duplicate parameter".to_owned())));
            }
        }
        for (row, name, value) in rows {
            let fail = |reason| (name.clone(), SetError::Invalid(reason));
            row.field.set(&mut values, std::slice::from_ref(value)).map_err(fail)?;
            if !row.field.is_equal(&values, &before) {
                changed.push(row.id);
            }
        }
        check_bus_protection(&values, &changed)?;
        self.values.store(Arc::new(values));
        Ok(Changes { before, changed })
    }

    /// Takes changes back.
    pub fn restore(&self, changes: &Changes) {
        let _turn = self.changing.lock();
        let mut values = Values::clone(&self.values());
        for id in &changes.changed {
            id.row().field.copy(&changes.before, &mut values);
        }
        self.values.store(Arc::new(values));
    }

    /// Every name (aliases too) with its value as text, in the table's order. Hidden ones are left out.
    #[must_use]
    pub fn all(&self) -> Vec<(&'static str, String)> {
        let values = self.values();
        let shown = PARAMETERS.iter().filter(|row| !row.hidden);
        shown
            .flat_map(|row| {
                let value = row.field.show(&values);
                row.names().map(move |name| (name, value.clone()))
            })
            .collect()
    }

    /// The hidden parameter of that name, in any case, with its value as text.
    #[must_use]
    pub fn hidden(&self, name: &str) -> Option<(&'static str, String)> {
        let row = find(name).filter(|row| row.hidden)?;
        let name = row.names().find(|known| known.eq_ignore_ascii_case(name))?;
        Some((name, row.field.show(&self.values())))
    }

    /// The new names of commands, in the order of their lines.
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
/// `cluster-bus-port-protected-mode` asks for a bus whose nodes show certificates (`tls-cluster`). Judged by what all
/// changes together make, in whichever order they stand.
fn check_bus_protection(values: &Values, changed: &[Id]) -> Result<(), (String, SetError)> {
    let is_open = values[keys::CLUSTER_ENABLED]
        && values[keys::CLUSTER_BUS_PORT_PROTECTED_MODE]
        && !values[keys::TLS_CLUSTER];
    let fail = |name: &str, reason: &str| Err((name.to_owned(), SetError::Invalid(reason.to_owned())));
    if is_open && changed.contains(&Id::CLUSTER_BUS_PORT_PROTECTED_MODE) {
        let reason = "can't enable cluster-bus-port-protected-mode while tls-cluster is disabled";
        return fail("cluster-bus-port-protected-mode", reason);
    }
    if is_open && changed.contains(&Id::TLS_CLUSTER) {
        let reason = "can't disable tls-cluster while cluster-bus-port-protected-mode is enabled";
        return fail("tls-cluster", reason);
    }
    Ok(())
}

fn settable(name: &str, trusted: bool) -> Result<&'static Parameter, SetError> {
    let row = find(name).ok_or(SetError::Unknown)?;
    if !row.mutable {
        return Err(SetError::Immutable);
    }
    if row.protected && !trusted {
        return Err(SetError::Protected);
    }
    Ok(row)
}

fn find(name: &str) -> Option<&'static Parameter> {
    PARAMETERS.iter().find(|row| row.is_called(name))
}

#[cfg(test)]
mod page;

#[cfg(test)]
mod tests;
