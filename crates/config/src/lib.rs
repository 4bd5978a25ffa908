//! The configuration: the table of parameters, their values, and the sources of values: files in redis.conf syntax, the
//! command line in redis-server's form, and CONFIG SET.
//!
//! Text is parsed once, when a value is set. The program reads typed values by [`keys`]:
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
//! A snapshot of all values ([`Values`]) is immutable; a change publishes a new one. Readers therefore take no lock,
//! and code that needs several consistent values reads them from one snapshot.
#![forbid(unsafe_code)]

mod choices;
mod explain;
mod file;
mod key;
mod kind;
mod parameters;
mod replacing;
mod rewrite;
mod unsupported;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::{ArcSwap, Guard};
use parking_lot::{Mutex, RwLock};

pub use choices::{
    AllowedClients, AppendFsync, DisklessLoad, EvictionPolicy, LogFormat, LogLevel, LogTimestamp,
    OomScoreMode, PubsubDefault, ShutdownWord, Supervised, SyslogFacility, TlsAuthClients, TlsUserField,
};
pub use explain::{ExplainedLine, LineEffect, explain_configuration};
pub use file::{ConfigError, ConfigSource};
pub use file::{arguments_to_lines, is_file_argument};
pub use key::Key;
pub use kind::{MasterAddress, MemorySize, OutputLimit, OutputLimits, SavePoint, Text};
pub use parameters::{Values, keys};
pub use replacing::{ReplaceMethod, replace_atomically, replace_content};
pub use rewrite::RewriteExtent;
pub use unsupported::{not_needed_notes, unsupported_warnings};

use parameters::{Id, PARAMETERS, Parameter};

/// The current configuration of a server.
#[derive(Debug)]
pub struct Config {
    values: ArcSwap<Values>,
    /// Serializes writers while they prepare the next snapshot.
    write_lock: Mutex<()>,
    defaults: Values,
    /// The `rename-command` lines in file order.
    command_renames: RwLock<Vec<CommandRename>>,
    /// The `user` lines in file order.
    user_lines: RwLock<Vec<UserLine>>,
    /// Whether a `save` line was loaded, which replaces the default save points.
    has_save_lines: AtomicBool,
}

/// A `user` line: a name and the ACL rules of that user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserLine {
    /// The arguments of `user`, starting with the user's name.
    arguments: Vec<String>,
    location: ConfigError,
}

impl UserLine {
    /// The arguments of `user` as bytes, for the ACL parser.
    #[must_use]
    pub fn arguments(&self) -> Vec<Vec<u8>> {
        self.arguments.iter().map(|word| word.clone().into_bytes()).collect()
    }

    /// Creates an error that points to this line and gives `reason`.
    #[must_use]
    pub fn error(&self, reason: &str) -> ConfigError {
        ConfigError { reason: reason.to_owned(), ..self.location.clone() }
    }
}

/// A `rename-command` line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRename {
    /// The command's original name, in any case.
    pub original_name: String,
    /// The command's new name. An empty name disables the command.
    pub new_name: String,
    location: ConfigError,
}

impl CommandRename {
    /// Creates an error that points to this line and gives `reason`.
    #[must_use]
    pub fn error(&self, reason: &str) -> ConfigError {
        ConfigError { reason: reason.to_owned(), ..self.location.clone() }
    }
}

/// The reason why CONFIG SET refused a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetError {
    /// No parameter has the given name.
    UnknownParameter,
    /// The parameter can be set only at startup.
    Immutable,
    /// The parameter is protected (`enable-protected-configs`), and the connection is not trusted.
    Protected,
    /// The parameter does not accept the value; holds the reason.
    Invalid(String),
}

/// The parameters that a CONFIG SET changed.
#[derive(Debug, Clone)]
pub struct ChangedParameters {
    previous_values: Arc<Values>,
    changed_ids: Vec<Id>,
}

impl ChangedParameters {
    /// Whether the CONFIG SET changed the value of this parameter.
    #[must_use]
    pub fn contains<T>(&self, key: Key<T>) -> bool {
        self.changed_ids.contains(&key.id)
    }

    /// The snapshot of all values before the change.
    #[must_use]
    pub fn previous_values(&self) -> &Values {
        &self.previous_values
    }

    /// The names of the changed parameters in request order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.changed_ids.iter().map(|id| id.name())
    }
}

impl Default for Config {
    fn default() -> Self {
        let defaults = Values::default();
        Self {
            values: ArcSwap::from_pointee(defaults.clone()),
            write_lock: Mutex::default(),
            defaults,
            command_renames: RwLock::default(),
            has_save_lines: AtomicBool::new(false),
            user_lines: RwLock::default(),
        }
    }
}

impl Config {
    /// Returns a copy of one parameter's current value. To read several parameters, use [`Config::values`].
    #[must_use]
    #[inline]
    pub fn get<T: Clone>(&self, key: Key<T>) -> T {
        self.values.load()[key].clone()
    }

    /// The current snapshot of all parameters, which later changes do not affect.
    #[must_use]
    #[inline]
    pub fn values(&self) -> Guard<Arc<Values>> {
        self.values.load()
    }

    /// Whether a parameter has its default value.
    #[must_use]
    pub fn is_default<T>(&self, key: Key<T>) -> bool {
        self.has_default_value(key.id)
    }

    fn has_default_value(&self, id: Id) -> bool {
        id.parameter().field.has_equal_value(&self.values(), &self.defaults)
    }

    /// Overrides the default of a parameter, for defaults that depend on the machine.
    pub fn set_default<T: Clone>(&mut self, key: Key<T>, value: T) {
        *(key.setter)(&mut self.defaults) = value.clone();
        self.set_value(key, value);
    }

    /// Sets a parameter from code without parsing, for values that are detected at startup or set by other commands.
    pub fn set_value<T>(&self, key: Key<T>, value: T) {
        let _turn = self.write_lock.lock();
        let mut values = Values::clone(&self.values());
        *(key.setter)(&mut values) = value;
        self.values.store(Arc::new(values));
    }

    /// Sets a parameter as from a configuration file; immutable parameters are allowed.
    ///
    /// # Errors
    /// The parameter does not exist, or the value is invalid.
    pub fn load(&self, name: &str, words: &[String]) -> Result<(), SetError> {
        let row = find_parameter(name).ok_or(SetError::UnknownParameter)?;
        let _turn = self.write_lock.lock();
        let mut values = Values::clone(&self.values());
        row.field.parse_and_set(&mut values, words).map_err(SetError::Invalid)?;
        self.values.store(Arc::new(values));
        Ok(())
    }

    /// Sets parameters at run time, all or none. `trusted` allows protected parameters. Returns the parameters whose
    /// value changed.
    ///
    /// # Errors
    /// The first parameter that cannot be set, with the reason; no parameter is changed then.
    pub fn set(
        &self,
        changes: &[(String, String)],
        trusted: bool,
    ) -> Result<ChangedParameters, (String, SetError)> {
        let _turn = self.write_lock.lock();
        let before = self.values.load_full();
        let mut values = Values::clone(&before);
        let mut changed = Vec::new();
        // Validate all names before any value, as in Redis.
        let mut rows = Vec::with_capacity(changes.len());
        for (index, (name, value)) in changes.iter().enumerate() {
            rows.push((find_settable(name, trusted).map_err(|error| (name.clone(), error))?, name, value));
            if changes[..index].iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
                return Err((name.clone(), SetError::Invalid("duplicate parameter".to_owned())));
            }
        }
        for (row, name, value) in rows {
            let fail = |reason| (name.clone(), SetError::Invalid(reason));
            row.field.parse_and_set(&mut values, std::slice::from_ref(value)).map_err(fail)?;
            if !row.field.has_equal_value(&values, &before) {
                changed.push(row.id);
            }
        }
        check_bus_protection(&values, &changed)?;
        self.values.store(Arc::new(values));
        Ok(ChangedParameters { previous_values: before, changed_ids: changed })
    }

    /// Restores the previous values of the changed parameters, for callers that fail to apply the changes.
    pub fn revert(&self, changes: &ChangedParameters) {
        let _turn = self.write_lock.lock();
        let mut values = Values::clone(&self.values());
        for id in &changes.changed_ids {
            id.parameter().field.copy_value(&changes.previous_values, &mut values);
        }
        self.values.store(Arc::new(values));
    }

    /// Returns all parameters that CONFIG GET lists, including aliases, with their values as text in table order.
    #[must_use]
    pub fn visible_parameters(&self) -> Vec<(&'static str, String)> {
        let values = self.values();
        let shown = PARAMETERS.iter().filter(|row| !row.hidden);
        shown
            .flat_map(|row| {
                let value = row.field.format_value(&values);
                row.names().map(move |name| (name, value.clone()))
            })
            .collect()
    }

    /// Looks up a parameter that CONFIG GET does not list, case-insensitively. Returns its name and its value as text.
    #[must_use]
    pub fn find_hidden_parameter(&self, name: &str) -> Option<(&'static str, String)> {
        let row = find_parameter(name).filter(|row| row.hidden)?;
        let name = row.names().find(|known| known.eq_ignore_ascii_case(name))?;
        Some((name, row.field.format_value(&self.values())))
    }

    /// The `rename-command` lines in file order.
    #[must_use]
    pub fn command_renames(&self) -> Vec<CommandRename> {
        self.command_renames.read().clone()
    }

    /// The `user` lines in file order.
    #[must_use]
    pub fn user_lines(&self) -> Vec<UserLine> {
        self.user_lines.read().clone()
    }
}

/// Checks that `cluster-bus-port-protected-mode` is enabled only together with `tls-cluster`, which makes nodes present
/// certificates. The check uses the values after all changes, whatever the order of the changes.
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

fn find_settable(name: &str, trusted: bool) -> Result<&'static Parameter, SetError> {
    let row = find_parameter(name).ok_or(SetError::UnknownParameter)?;
    if !row.mutable {
        return Err(SetError::Immutable);
    }
    if row.protected && !trusted {
        return Err(SetError::Protected);
    }
    Ok(row)
}

fn find_parameter(name: &str) -> Option<&'static Parameter> {
    PARAMETERS.iter().find(|row| row.has_name(name))
}

#[cfg(test)]
mod page;

#[cfg(test)]
mod tests;
