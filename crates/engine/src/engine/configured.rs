//! Applies configuration parameters to the components of the engine.

use std::sync::atomic::Ordering;

use config::{PubsubDefault, Values, keys};

use super::Engine;
use crate::hot_keys::HotKeyWindowSettings;
use crate::settings::NodeFlags;

impl Engine {
    /// Applies configuration parameters to the engine's components; called at startup and after CONFIG SET.
    pub fn configure(&self, values: &Values) {
        self.settings.configure(values);
        self.configure_logs(values);
        let windows = HotKeyWindowSettings {
            top_k: values[keys::HOTKEYS_TOP_K],
            sampling_percent: values[keys::HOTKEYS_SAMPLING_PERCENTAGE],
            window_secs: values[keys::HOTKEYS_WINDOW_SECONDS],
        };
        self.diagnostics.hot_keys.configure(&self.settings, windows);
        self.configure_output_limits(values);
        let open_channels = values[keys::ACL_PUBSUB_DEFAULT] == PubsubDefault::AllChannels;
        self.access.users.write().set_all_channels_by_default(open_channels);
        self.limit_memory(values[keys::MAXMEMORY]);
        self.set_client_memory_limit(values[keys::MAXMEMORY_CLIENTS].to_bytes(values[keys::MAXMEMORY]));
        let (threads, micros) = (values[keys::LONG_COMMAND_THREADS], values[keys::LONG_COMMAND_THRESHOLD]);
        let nanos = if threads == 0 { u64::MAX } else { micros.saturating_mul(1000) };
        self.scheduling.long_commands.set_threshold(nanos);
        self.settings.set_node_flag(NodeFlags::BACKGROUND, nanos == 0);
    }

    fn configure_logs(&self, values: &Values) {
        let threshold = values[keys::LATENCY_MONITOR_THRESHOLD].as_millis();
        self.diagnostics.latency.configure(u64::try_from(threshold).unwrap_or(u64::MAX));
        let logs = &self.diagnostics.command_logs;
        for (log, threshold, len) in [
            (&logs.slow_commands, keys::SLOWLOG_LOG_SLOWER_THAN, keys::SLOWLOG_MAX_LEN),
            (
                &logs.large_requests,
                keys::COMMANDLOG_REQUEST_LARGER_THAN,
                keys::COMMANDLOG_LARGE_REQUEST_MAX_LEN,
            ),
            (&logs.large_replies, keys::COMMANDLOG_REPLY_LARGER_THAN, keys::COMMANDLOG_LARGE_REPLY_MAX_LEN),
        ] {
            log.configure(values[threshold], values[len]);
        }
        self.access.acl_log.lock().set_max_len(values[keys::ACLLOG_MAX_LEN]);
    }

    fn configure_output_limits(&self, values: &Values) {
        let limits = &values[keys::CLIENT_OUTPUT_BUFFER_LIMIT];
        self.notifications.tracking.max_keys.store(values[keys::TRACKING_TABLE_MAX_KEYS], Ordering::Relaxed);
        self.notifications.tracking.output_limit.store(limits.pubsub.hard_limit, Ordering::Relaxed);
        self.notifications.pubsub.output_limit.store(limits.pubsub.hard_limit, Ordering::Relaxed);
        self.notifications.monitors.output_limit.store(limits.normal.hard_limit, Ordering::Relaxed);
    }
}
