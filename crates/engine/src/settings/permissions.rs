//! Permissions that parameters give to no client, to all clients, or only to clients on this host.

use std::sync::atomic::{AtomicU8, Ordering};

use config::{AllowedClients, Values, keys};

/// A parameter with the values `no`, `yes` and `local`, which give a permission to no client, to all clients, or only
/// to clients on this host.
#[derive(Debug, Default)]
pub struct ClientPermission(AtomicU8);

const ALL_CLIENTS: u8 = 1;
const LOCAL_CLIENTS: u8 = 2;

impl ClientPermission {
    /// Sets which clients have the permission.
    pub fn set(&self, allowed: AllowedClients) {
        let value = match allowed {
            AllowedClients::Yes => ALL_CLIENTS,
            AllowedClients::Local => LOCAL_CLIENTS,
            AllowedClients::No => 0,
        };
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns whether a client has the permission. `is_local` says whether the client runs on this host.
    #[must_use]
    pub fn allows(&self, is_local: bool) -> bool {
        match self.0.load(Ordering::Relaxed) {
            ALL_CLIENTS => true,
            LOCAL_CLIENTS => is_local,
            _ => false,
        }
    }
}

/// Which clients may run administrative commands that are off by default.
#[derive(Debug, Default)]
pub struct PermissionSettings {
    /// Who may call DEBUG (`enable-debug-command`).
    pub debug_command: ClientPermission,
    /// Who may call MODULE LOAD and related commands (`enable-module-command`).
    pub module_command: ClientPermission,
    /// Who may change protected parameters with CONFIG SET (`enable-protected-configs`).
    pub protected_configs: ClientPermission,
}

impl PermissionSettings {
    pub(super) fn configure(&self, values: &Values) {
        for (permission, key) in [
            (&self.debug_command, keys::ENABLE_DEBUG_COMMAND),
            (&self.module_command, keys::ENABLE_MODULE_COMMAND),
            (&self.protected_configs, keys::ENABLE_PROTECTED_CONFIGS),
        ] {
            permission.set(values[key]);
        }
    }
}
