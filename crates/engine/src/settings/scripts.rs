//! Settings of script execution.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use config::{Values, keys};

/// Settings of script execution.
#[derive(Debug)]
pub struct ScriptSettings {
    /// Milliseconds after which a script blocks the server (`busy-reply-threshold`); 0 means never.
    pub busy_reply_threshold: AtomicI64,
    /// Whether scripts have `getfenv` and `setfenv` (`lua-enable-insecure-api`).
    pub lua_deprecated_api: AtomicBool,
}

impl Default for ScriptSettings {
    fn default() -> Self {
        Self { busy_reply_threshold: AtomicI64::new(5000), lua_deprecated_api: AtomicBool::new(false) }
    }
}

impl ScriptSettings {
    pub(super) fn configure(&self, values: &Values) {
        let threshold = values[keys::BUSY_REPLY_THRESHOLD].as_millis();
        self.busy_reply_threshold.store(i64::try_from(threshold).unwrap_or(i64::MAX), Ordering::Relaxed);
        self.lua_deprecated_api.store(values[keys::LUA_ENABLE_INSECURE_API], Ordering::Relaxed);
    }
}
