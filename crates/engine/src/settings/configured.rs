//! Applies the configuration to the settings that commands read, at startup and after CONFIG SET.
//!
//! A parameter that nearly every command needs is a field of [`Settings`], so that reading it costs one load.
//! [`crate::Engine::configure`] passes the other parameters on to their components.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use config::{Values, keys};
use keyspace::{EncodingLimits, IdempotenceBounds, ListLimit, ListpackBounds, SetBounds, StreamNodeBounds};
use persistence::{AcceptedVersions, InputChecks, ValidationDepth};

use crate::notifications::EventClass;
use crate::settings::{LazyFreeReason, Measurements, NodeFlags, Settings};

impl Settings {
    /// Applies the current configuration.
    pub(crate) fn configure(&self, values: &Values) {
        for (setting, key) in [
            (&self.flush_async, keys::LAZYFREE_LAZY_USER_FLUSH),
            (&self.cluster_allow_reads_when_down, keys::CLUSTER_ALLOW_READS_WHEN_DOWN),
            (&self.cluster_allow_pubsubshard_when_down, keys::CLUSTER_ALLOW_PUBSUBSHARD_WHEN_DOWN),
            (&self.lua_deprecated_api, keys::LUA_ENABLE_INSECURE_API),
            (&self.extended_redis_compatibility, keys::EXTENDED_REDIS_COMPATIBILITY),
        ] {
            setting.store(values[key], Ordering::Relaxed);
        }
        self.set_measurements(Measurements::LATENCY, values[keys::LATENCY_TRACKING]);
        self.set_measurements(Measurements::SLOTS, values[keys::CLUSTER_SLOT_STATS_ENABLED]);
        for (permission, key) in [
            (&self.debug_command, keys::ENABLE_DEBUG_COMMAND),
            (&self.module_command, keys::ENABLE_MODULE_COMMAND),
            (&self.protected_configs, keys::ENABLE_PROTECTED_CONFIGS),
        ] {
            permission.set(values[key]);
        }
        self.set_node_flag(NodeFlags::IMPORTING, values[keys::IMPORT_MODE]);
        self.set_endpoint_type(values[keys::CLUSTER_PREFERRED_ENDPOINT_TYPE]);
        self.set_notified_event_classes(
            EventClass::from_letters(&values[keys::NOTIFY_KEYSPACE_EVENTS]).unwrap_or_default(),
        );
        self.availability_zone.store(Arc::new(values[keys::AVAILABILITY_ZONE].to_string()));
        self.proto_max_bulk_len.store(values[keys::PROTO_MAX_BULK_LEN], Ordering::Relaxed);
        let busy = values[keys::BUSY_REPLY_THRESHOLD].as_millis();
        self.busy_reply_threshold.store(i64::try_from(busy).unwrap_or(i64::MAX), Ordering::Relaxed);
        self.hll_sparse_max_bytes.store(values[keys::HLL_SPARSE_MAX_BYTES], Ordering::Relaxed);
        self.set_encoding_limits(&encoding_limits(values));
        self.configure_checks(values);
        self.set_idempotence_bounds(IdempotenceBounds {
            duration_secs: values[keys::STREAM_IDMP_DURATION],
            max_iids: values[keys::STREAM_IDMP_MAXSIZE],
        });
        self.configure_eviction(values);
    }

    /// Sets how thoroughly files and payloads are validated.
    fn configure_checks(&self, values: &Values) {
        self.accepts_any_version.store(values[keys::RDB_VERSION_CHECK] == "relaxed", Ordering::Relaxed);
        let (files, payloads) = match values[keys::SANITIZE_DUMP_PAYLOAD] {
            "yes" => (true, true),
            "clients" => (false, true),
            _ => (false, false),
        };
        self.validates_files.store(files, Ordering::Relaxed);
        self.validates_payloads.store(payloads, Ordering::Relaxed);
    }

    /// Returns the checks for files and data received from a master.
    #[must_use]
    pub fn file_checks(&self) -> InputChecks {
        self.checks(&self.validates_files)
    }

    /// Returns the checks for payloads sent by clients (RESTORE).
    #[must_use]
    pub fn payload_checks(&self) -> InputChecks {
        self.checks(&self.validates_payloads)
    }

    fn checks(&self, validates: &AtomicBool) -> InputChecks {
        InputChecks {
            versions: if self.accepts_any_version.load(Ordering::Relaxed) {
                AcceptedVersions::Any
            } else {
                AcceptedVersions::Known
            },
            depth: if validates.load(Ordering::Relaxed) {
                ValidationDepth::Deep
            } else {
                ValidationDepth::HeadersOnly
            },
        }
    }

    /// Sets the eviction policy and its parameters.
    fn configure_eviction(&self, values: &Values) {
        self.lfu_log_factor.store(values[keys::LFU_LOG_FACTOR], Ordering::Relaxed);
        let minutes = u32::try_from(values[keys::LFU_DECAY_TIME]).unwrap_or(u32::MAX);
        self.lfu_decay_minutes.store(minutes, Ordering::Relaxed);
        self.set_eviction_settings(
            values[keys::MAXMEMORY_POLICY],
            values[keys::MAXMEMORY_SAMPLES],
            values[keys::MAXMEMORY_EVICTION_TENACITY],
            values[keys::REPLICA_IGNORE_MAXMEMORY],
        );
        let reasons = [
            (keys::LAZYFREE_LAZY_EXPIRE, LazyFreeReason::EXPIRE),
            (keys::LAZYFREE_LAZY_EVICTION, LazyFreeReason::EVICTION),
            (keys::LAZYFREE_LAZY_SERVER_DEL, LazyFreeReason::SERVER_DEL),
            (keys::LAZYFREE_LAZY_USER_DEL, LazyFreeReason::USER_DEL),
        ];
        let lazy = reasons.into_iter().filter(|(key, _)| values[*key]).map(|(_, reason)| reason);
        self.set_lazy_reasons(lazy.collect());
    }
}

/// Returns the maximum sizes of compact encodings.
fn encoding_limits(values: &Values) -> EncodingLimits {
    EncodingLimits {
        list: ListLimit(values[keys::LIST_MAX_LISTPACK_SIZE]),
        set: SetBounds {
            max_intset_entries: values[keys::SET_MAX_INTSET_ENTRIES],
            listpack: ListpackBounds {
                max_entries: values[keys::SET_MAX_LISTPACK_ENTRIES],
                max_value_len: values[keys::SET_MAX_LISTPACK_VALUE],
            },
        },
        sorted_set: ListpackBounds {
            max_entries: values[keys::ZSET_MAX_LISTPACK_ENTRIES],
            max_value_len: values[keys::ZSET_MAX_LISTPACK_VALUE],
        },
        hash: ListpackBounds {
            max_entries: values[keys::HASH_MAX_LISTPACK_ENTRIES],
            max_value_len: values[keys::HASH_MAX_LISTPACK_VALUE],
        },
        stream: StreamNodeBounds {
            max_bytes: values[keys::STREAM_NODE_MAX_BYTES],
            max_entries: values[keys::STREAM_NODE_MAX_ENTRIES],
        },
    }
}

#[cfg(test)]
mod tests {
    use config::Config;

    use super::*;

    /// Tests of commands run without a configuration, so the initial settings must equal the default values.
    #[test]
    fn initial_settings_match_configuration_defaults() {
        let settings = Settings::default();
        let before = format!("{settings:#?}");
        settings.configure(&Config::default().values());
        assert_eq!(format!("{settings:#?}"), before);
    }

    #[test]
    fn changed_parameters_reach_settings() {
        let (settings, config) = (Settings::default(), Config::default());
        let change = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let changes = [
            change("enable-debug-command", "local"),
            change("maxmemory-policy", "allkeys-lfu"),
            change("lazyfree-lazy-expire", "no"),
            change("hash-max-listpack-entries", "7"),
            change("busy-reply-threshold", "70"),
            change("notify-keyspace-events", "KEx"),
        ];
        for (name, value) in changes {
            config.load(&name, &[value]).unwrap();
        }
        settings.configure(&config.values());
        assert!(settings.debug_command.allows(true) && !settings.debug_command.allows(false));
        assert!(settings.lfu().is_some());
        assert!(
            !settings.frees_lazily(LazyFreeReason::EXPIRE) && settings.frees_lazily(LazyFreeReason::USER_DEL)
        );
        assert_eq!(settings.encoding_limits().hash.max_entries, 7);
        assert_eq!(settings.busy_reply_threshold.load(Ordering::Relaxed), 70);
        assert_eq!(
            settings.notified_event_classes(),
            EventClass::KEYSPACE | EventClass::KEYEVENT | EventClass::EXPIRED
        );
    }
}
