//! The limit of open files, which bounds the number of clients.

use config::{Config, keys};

/// File descriptors that are needed for other purposes than clients, such as listeners, logs, snapshots and links.
const RESERVED_FILES: u64 = 32;

/// Raises the limit at startup to what `maxclients` needs, or lowers `maxclients` if that fails.
pub fn raise_at_startup(config: &Config) {
    let wanted = (config.get(keys::MAXCLIENTS) as u64).saturating_add(RESERVED_FILES);
    let granted = match rlimit::increase_nofile_limit(wanted) {
        Ok(granted) => granted,
        Err(error) => {
            tracing::warn!("cannot raise the limit of open files: {error}");
            return;
        }
    };
    if granted < wanted {
        let clients = granted.saturating_sub(RESERVED_FILES).max(1);
        tracing::warn!("Current maximum open files is {granted}. maxclients has been reduced to {clients}.");
        config.set_value(keys::MAXCLIENTS, usize::try_from(clients).unwrap_or(usize::MAX));
    }
}

/// Raises the limit to what `maxclients` needs.
///
/// # Errors
/// The error reply to CONFIG SET, with the number of clients that is possible.
pub fn raise_for_config_set(config: &Config) -> Result<(), String> {
    let wanted = (config.get(keys::MAXCLIENTS) as u64).saturating_add(RESERVED_FILES);
    let granted = rlimit::increase_nofile_limit(wanted).unwrap_or(0);
    if granted >= wanted {
        return Ok(());
    }
    let possible = granted.saturating_sub(RESERVED_FILES);
    Err(format!(
        "The operating system is not able to handle the specified number of clients, try with {possible}"
    ))
}
