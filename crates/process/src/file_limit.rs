//! The system's limit of open files, which bounds how many clients there can be.

use config::{Config, keys};

/// The files that a server needs besides its clients: listeners, logs, snapshots, links.
const RESERVED_FILES: u64 = 32;

/// At the start: asks for as many file descriptors as `maxclients` needs, and lowers `maxclients` if they are refused.
pub fn raise(config: &Config) {
    let wanted = (config.get(keys::MAXCLIENTS) as u64).saturating_add(RESERVED_FILES);
    let granted = match rlimit::increase_nofile_limit(wanted) {
        Ok(granted) => granted,
        Err(error) => {
            tracing::warn!("the limit of open files cannot be raised: {error}");
            return;
        }
    };
    if granted < wanted {
        let clients = granted.saturating_sub(RESERVED_FILES).max(1);
        tracing::warn!("Current maximum open files is {granted}. maxclients has been reduced to {clients}.");
        config.put(keys::MAXCLIENTS, usize::try_from(clients).unwrap_or(usize::MAX));
    }
}

/// Asks the system for as many open files as `maxclients` needs.
///
/// # Errors
/// The text of CONFIG SET's error, with the number of clients for which there would be room.
pub fn make_room(config: &Config) -> Result<(), String> {
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
