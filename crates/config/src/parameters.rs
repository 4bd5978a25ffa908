//! The table of configuration parameters: key, value type, name, validation and default.
//!
//! Names and defaults are those of Redis and Valkey. A row has the form
//!
//! ```text
//! KEY: type = "name", kind(bounds), "default as CONFIG GET shows it", more ...;
//! ```
//!
//! and expands to a field of [`Values`], a [`Key`] in [`keys`], and a [`Parameter`] in [`PARAMETERS`] for code that
//! handles all parameters alike. `more` are calls of [`Parameter`] methods.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use slot_routing::EndpointType;

use crate::choices::{
    AllowedClients, AppendFsync, DisklessLoad, EvictionPolicy, LogFormat, LogLevel, LogTimestamp,
    OomScoreMode, PubsubDefault, ShutdownWord, Supervised, SyslogFacility, TlsAuthClients, TlsUserField,
};
use crate::key::Key;
use crate::kind::{
    MasterAddress, MemorySize, OutputLimits, ParameterField, SavePoint, Text, TypedField, announced_address,
    append_directory_name, append_file_name, availability_zone, bounded_number, byte_count, clamped_number,
    dump_file_name, enum_word, event_letters, file_mode, fixed_word, hostname, ipv4, ipv6, memory_size,
    millis, min_bytes, node_name, oom_adjustments, optional_master, optional_port, optional_text,
    output_limits, parse_default, path, percentile_list, process_title, save_points, seconds,
    shutdown_options, text, unbounded_bytes, word_list, yes_no,
};

/// A type-erased row of the table.
#[derive(Clone, Copy)]
pub(crate) struct Parameter {
    pub(crate) id: Id,
    /// The primary name, which CONFIG REWRITE uses for new lines. If Redis 7 has the parameter, Redis 7 accepts this
    /// name.
    pub(crate) name: &'static str,
    /// An alternative name that is also accepted, if there is one.
    pub(crate) alias: Option<&'static str>,
    /// Whether the alias is a former name of this server, which CONFIG REWRITE replaces.
    pub(crate) alias_is_former_name: bool,
    /// The default in the format of CONFIG GET.
    #[cfg(test)]
    pub(crate) default: &'static str,
    /// Whether CONFIG SET may change the parameter.
    pub(crate) mutable: bool,
    /// Whether CONFIG SET may change the parameter only if `enable-protected-configs` permits it.
    pub(crate) protected: bool,
    /// Whether CONFIG GET shows the parameter only if its exact name is given.
    pub(crate) hidden: bool,
    /// Access to the value in a snapshot.
    pub(crate) field: &'static dyn ParameterField,
}

impl Parameter {
    const fn new(
        id: Id,
        name: &'static str,
        _default: &'static str,
        field: &'static dyn ParameterField,
    ) -> Self {
        Self {
            id,
            name,
            alias: None,
            alias_is_former_name: false,
            #[cfg(test)]
            default: _default,
            mutable: true,
            protected: false,
            hidden: false,
            field,
        }
    }

    const fn alias(mut self, alias: &'static str) -> Self {
        self.alias = Some(alias);
        self
    }

    /// Declares a former name of the parameter, which remains valid as an alias.
    const fn renamed_from(mut self, former_name: &'static str) -> Self {
        self.alias = Some(former_name);
        self.alias_is_former_name = true;
        self
    }

    const fn immutable(mut self) -> Self {
        self.mutable = false;
        self
    }

    const fn protected(mut self) -> Self {
        self.protected = true;
        self
    }

    const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// Whether this is a name of the parameter, compared case-insensitively.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.names().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// The primary name and, if there is one, the alias.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        std::iter::once(self.name).chain(self.alias)
    }
}

impl Id {
    /// The table row of this parameter.
    pub(crate) fn parameter(self) -> &'static Parameter {
        &PARAMETERS[self as usize]
    }

    /// The parameter's primary name.
    pub(crate) fn name(self) -> &'static str {
        self.parameter().name
    }
}

macro_rules! parameters {
    ($($key:ident: $type:ty = $name:literal, $kind:expr, $default:literal $(, $more:ident($($argument:expr)?))*;)*) => {
        /// A type-erased parameter: its index in [`PARAMETERS`].
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Id {
            $($key,)*
        }

        /// A snapshot of all parameter values, indexed by [`keys`]: `values[keys::PORT]`.
        #[allow(non_snake_case)]
        #[derive(Clone)]
        pub struct Values {
            $($key: $type,)*
        }

        impl Default for Values {
            fn default() -> Self {
                Self { $($key: parse_default(&$kind, $default),)* }
            }
        }

        impl fmt::Debug for Values {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_map().entries(PARAMETERS.iter().map(|row| (row.name, row.field.format_value(self)))).finish()
            }
        }

        /// The typed key of each parameter.
        pub mod keys {
            use super::*;

            $(
                #[doc = concat!("`", $name, "`")]
                pub const $key: Key<$type> =
                    Key { id: Id::$key, getter: |values| &values.$key, setter: |values| &mut values.$key };
            )*
        }

        /// All rows of the table.
        pub(crate) static PARAMETERS: &[Parameter] = &[$(
            Parameter::new(Id::$key, $name, $default, &TypedField { key: keys::$key, kind: $kind })
                $(.$more($($argument)?))*,
        )*];
    };
}

/// Bounds of integer types, for parameters without a stricter bound.
const MIN: i64 = i64::MIN;
const MAX: i64 = i64::MAX;
const I32_MIN: i64 = i32::MIN as i64;
const I32_MAX: i64 = i32::MAX as i64;

parameters! {
    ACL_PUBSUB_DEFAULT: PubsubDefault = "acl-pubsub-default", enum_word(), "resetchannels";
    ACLFILE: Option<Text> = "aclfile", optional_text(), "", immutable();
    ACLLOG_MAX_LEN: usize = "acllog-max-len", bounded_number(0, MAX), "128";
    ACTIVE_DEFRAG_CYCLE_MAX: usize = "active-defrag-cycle-max", bounded_number(1, 99), "25";
    ACTIVE_DEFRAG_CYCLE_MIN: usize = "active-defrag-cycle-min", bounded_number(1, 99), "1";
    ACTIVE_DEFRAG_CYCLE_US: usize = "active-defrag-cycle-us", bounded_number(0, 100000), "500";
    ACTIVE_DEFRAG_IGNORE_BYTES: usize = "active-defrag-ignore-bytes", byte_count(1, MAX), "104857600";
    ACTIVE_DEFRAG_MAX_SCAN_FIELDS: usize = "active-defrag-max-scan-fields", bounded_number(1, MAX), "1000";
    ACTIVE_DEFRAG_THRESHOLD_LOWER: usize = "active-defrag-threshold-lower", bounded_number(0, 1000), "10";
    ACTIVE_DEFRAG_THRESHOLD_UPPER: usize = "active-defrag-threshold-upper", bounded_number(0, 1000), "100";
    ACTIVE_EXPIRE_EFFORT: usize = "active-expire-effort", bounded_number(1, 10), "1";
    ACTIVEDEFRAG: bool = "activedefrag", yes_no(), "no";
    ACTIVEREHASHING: bool = "activerehashing", yes_no(), "yes";
    ALWAYS_SHOW_LOGO: bool = "always-show-logo", yes_no(), "no", immutable();
    AOF_DISABLE_AUTO_GC: bool = "aof-disable-auto-gc", yes_no(), "no", hidden();
    AOF_LOAD_TRUNCATED: bool = "aof-load-truncated", yes_no(), "yes";
    AOF_REWRITE_CPULIST: Text = "aof-rewrite-cpulist", text(), "", alias("aof_rewrite_cpulist"), immutable();
    AOF_REWRITE_INCREMENTAL_FSYNC: bool = "aof-rewrite-incremental-fsync", yes_no(), "yes";
    AOF_TIMESTAMP_ENABLED: bool = "aof-timestamp-enabled", yes_no(), "no";
    AOF_USE_RDB_PREAMBLE: bool = "aof-use-rdb-preamble", yes_no(), "yes";
    APPENDDIRNAME: Text = "appenddirname", append_directory_name(), "appendonlydir", immutable();
    APPENDFILENAME: Text = "appendfilename", append_file_name(), "appendonly.aof", immutable();
    APPENDFSYNC: AppendFsync = "appendfsync", enum_word(), "everysec";
    APPENDONLY: bool = "appendonly", yes_no(), "no";
    AUTO_AOF_REWRITE_MIN_SIZE: u64 = "auto-aof-rewrite-min-size", byte_count(0, MAX), "67108864";
    AUTO_AOF_REWRITE_PERCENTAGE: u64 = "auto-aof-rewrite-percentage", bounded_number(0, I32_MAX), "100";
    AVAILABILITY_ZONE: Text = "availability-zone", availability_zone(), "";
    BGSAVE_CPULIST: Text = "bgsave-cpulist", text(), "", alias("bgsave_cpulist"), immutable();
    BIND: Arc<[Text]> = "bind", word_list(), "* -::*";
    BIND_SOURCE_ADDR: Option<Text> = "bind-source-addr", optional_text(), "";
    BIO_CPULIST: Text = "bio-cpulist", text(), "", alias("bio_cpulist"), immutable();
    BUSY_REPLY_THRESHOLD: Duration = "busy-reply-threshold", millis(0, MAX), "5000", alias("lua-time-limit");
    CLIENT_OUTPUT_BUFFER_LIMIT: OutputLimits =
        "client-output-buffer-limit", output_limits(),
        "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
    CLIENT_QUERY_BUFFER_LIMIT: usize = "client-query-buffer-limit", byte_count(1048576, MAX), "1073741824";
    CLUSTER_ALLOW_PUBSUBSHARD_WHEN_DOWN: bool = "cluster-allow-pubsubshard-when-down", yes_no(), "yes";
    CLUSTER_ALLOW_READS_WHEN_DOWN: bool = "cluster-allow-reads-when-down", yes_no(), "no";
    CLUSTER_ALLOW_REPLICA_MIGRATION: bool = "cluster-allow-replica-migration", yes_no(), "yes";
    CLUSTER_ANNOUNCE_BUS_PORT: Option<u16> = "cluster-announce-bus-port", optional_port(), "0";
    CLUSTER_ANNOUNCE_CLIENT_IPV4: Option<Ipv4Addr> = "cluster-announce-client-ipv4", ipv4(), "";
    CLUSTER_ANNOUNCE_CLIENT_IPV6: Option<Ipv6Addr> = "cluster-announce-client-ipv6", ipv6(), "";
    CLUSTER_ANNOUNCE_CLIENT_PORT: Option<u16> = "cluster-announce-client-port", optional_port(), "0";
    CLUSTER_ANNOUNCE_CLIENT_TLS_PORT: Option<u16> = "cluster-announce-client-tls-port", optional_port(), "0";
    CLUSTER_ANNOUNCE_HOSTNAME: Text = "cluster-announce-hostname", hostname(), "";
    CLUSTER_ANNOUNCE_HUMAN_NODENAME: Text = "cluster-announce-human-nodename", node_name(), "";
    CLUSTER_ANNOUNCE_IP: Option<IpAddr> = "cluster-announce-ip", announced_address(), "";
    CLUSTER_ANNOUNCE_PORT: Option<u16> = "cluster-announce-port", optional_port(), "0";
    CLUSTER_ANNOUNCE_TLS_PORT: Option<u16> = "cluster-announce-tls-port", optional_port(), "0";
    CLUSTER_BLACKLIST_TTL: i64 = "cluster-blacklist-ttl", bounded_number(MIN, MAX), "60";
    CLUSTER_BUS_PORT_PROTECTED_MODE: bool = "cluster-bus-port-protected-mode", yes_no(), "no";
    CLUSTER_CONFIG_FILE: Text = "cluster-config-file", path("cluster-config-file can't be empty"), "nodes.conf", immutable();
    CLUSTER_CONFIG_SAVE_BEHAVIOR: &'static str =
        "cluster-config-save-behavior", fixed_word(&["sync", "best-effort"]), "sync";
    CLUSTER_DATABASES: usize = "cluster-databases", bounded_number(1, 65535), "1", immutable();
    CLUSTER_ENABLED: bool = "cluster-enabled", yes_no(), "no", immutable();
    CLUSTER_LINK_SENDBUF_LIMIT: usize = "cluster-link-sendbuf-limit", byte_count(0, MAX), "0";
    CLUSTER_MANUAL_FAILOVER_TIMEOUT: Duration = "cluster-manual-failover-timeout", millis(1, I32_MAX), "5000";
    CLUSTER_MESSAGE_GOSSIP_PERC: usize = "cluster-message-gossip-perc", bounded_number(0, 100), "10", hidden();
    CLUSTER_CONNECT_REFUSED_TIMEOUT: Duration =
        "cluster-connect-refused-timeout", millis(0, 60000), "150", renamed_from("cluster-refused-timeout");
    CLUSTER_MIGRATION_BARRIER: usize = "cluster-migration-barrier", bounded_number(0, I32_MAX), "1";
    CLUSTER_NODE_TIMEOUT: Duration = "cluster-node-timeout", millis(0, MAX), "15000";
    CLUSTER_PING_INTERVAL: Duration = "cluster-ping-interval", millis(0, MAX), "1000", hidden();
    CLUSTER_PORT: Option<u16> = "cluster-port", optional_port(), "0", immutable();
    CLUSTER_PREFERRED_ENDPOINT_TYPE: EndpointType = "cluster-preferred-endpoint-type", enum_word(), "ip";
    CLUSTER_REPLICA_NO_FAILOVER: bool =
        "cluster-replica-no-failover", yes_no(), "no", alias("cluster-slave-no-failover");
    CLUSTER_REPLICA_VALIDITY_FACTOR: u64 =
        "cluster-replica-validity-factor", bounded_number(0, I32_MAX), "10", alias("cluster-slave-validity-factor");
    CLUSTER_REQUIRE_FULL_COVERAGE: bool = "cluster-require-full-coverage", yes_no(), "yes";
    CLUSTER_SLOT_MIGRATION_LOG_MAX_LEN: usize = "cluster-slot-migration-log-max-len", bounded_number(0, MAX), "1000";
    CLUSTER_SLOT_STATS_ENABLED: bool = "cluster-slot-stats-enabled", yes_no(), "no";
    SLOWLOG_LOG_SLOWER_THAN: i64 =
        "slowlog-log-slower-than", bounded_number(-1, MAX), "10000", alias("commandlog-execution-slower-than");
    COMMANDLOG_LARGE_REPLY_MAX_LEN: usize = "commandlog-large-reply-max-len", bounded_number(0, MAX), "128";
    COMMANDLOG_LARGE_REQUEST_MAX_LEN: usize = "commandlog-large-request-max-len", bounded_number(0, MAX), "128";
    COMMANDLOG_REPLY_LARGER_THAN: i64 = "commandlog-reply-larger-than", bounded_number(-1, MAX), "1048576";
    COMMANDLOG_REQUEST_LARGER_THAN: i64 = "commandlog-request-larger-than", bounded_number(-1, MAX), "1048576";
    SLOWLOG_MAX_LEN: usize = "slowlog-max-len", bounded_number(0, MAX), "128", alias("commandlog-slow-execution-max-len");
    CRASH_LOG_ENABLED: bool = "crash-log-enabled", yes_no(), "yes";
    CRASH_MEMCHECK_ENABLED: bool = "crash-memcheck-enabled", yes_no(), "yes";
    DAEMONIZE: bool = "daemonize", yes_no(), "no", immutable();
    DATABASES: usize = "databases", bounded_number(1, I32_MAX), "16", immutable();
    DBFILENAME: Text = "dbfilename", dump_file_name(), "dump.rdb", protected();
    DEBUG_CONTEXT: Text = "debug-context", text(), "", hidden();
    DIR: Text = "dir", path("dir can't be empty"), ".", protected();
    DISABLE_THP: bool = "disable-thp", yes_no(), "yes", immutable();
    DYNAMIC_HZ: bool = "dynamic-hz", yes_no(), "yes";
    DUAL_CHANNEL_REPLICATION_ENABLED: bool = "dual-channel-replication-enabled", yes_no(), "no";
    EMPTY_MASTER_TIMEOUT: Duration =
        "empty-master-timeout", millis(0, 3600000), "60000", renamed_from("stale-master-timeout");
    ENABLE_DEBUG_ASSERT: bool = "enable-debug-assert", yes_no(), "no", immutable(), hidden();
    ENABLE_DEBUG_COMMAND: AllowedClients = "enable-debug-command", enum_word(), "no", immutable();
    ENABLE_MODULE_COMMAND: AllowedClients = "enable-module-command", enum_word(), "no", immutable();
    ENABLE_PROTECTED_CONFIGS: AllowedClients = "enable-protected-configs", enum_word(), "no", immutable();
    EVENTS_PER_IO_THREAD: usize = "events-per-io-thread", bounded_number(0, MAX), "2", hidden();
    EXTENDED_REDIS_COMPATIBILITY: bool = "extended-redis-compatibility", yes_no(), "no";
    HASH_MAX_LISTPACK_ENTRIES: usize =
        "hash-max-listpack-entries", bounded_number(0, MAX), "512", alias("hash-max-ziplist-entries");
    HASH_MAX_LISTPACK_VALUE: usize = "hash-max-listpack-value", byte_count(0, MAX), "64", alias("hash-max-ziplist-value");
    HASH_SEED: Option<Text> = "hash-seed", optional_text(), "", immutable();
    HIDE_USER_DATA_FROM_LOG: bool = "hide-user-data-from-log", yes_no(), "yes";
    HLL_SPARSE_MAX_BYTES: usize = "hll-sparse-max-bytes", byte_count(0, MAX), "3000";
    HOTKEYS_SAMPLING_PERCENTAGE: u64 = "hotkeys-sampling-percentage", bounded_number(1, 100), "1";
    HOTKEYS_TOP_K: usize = "hotkeys-top-k", bounded_number(0, 1000), "0";
    HOTKEYS_WINDOW_SECONDS: u64 = "hotkeys-window-seconds", bounded_number(1, 300), "1";
    HZ: u32 = "hz", clamped_number(1, 500), "10";
    IGNORE_WARNINGS: Text = "ignore-warnings", text(), "";
    IMPORT_MODE: bool = "import-mode", yes_no(), "no";
    IO_THREADS: usize = "io-threads", bounded_number(1, 256), "1";
    IO_THREADS_ALWAYS_ACTIVE: bool = "io-threads-always-active", yes_no(), "no", hidden();
    IO_THREADS_DO_READS: bool = "io-threads-do-reads", yes_no(), "no", immutable();
    JEMALLOC_BG_THREAD: bool = "jemalloc-bg-thread", yes_no(), "yes";
    KEY_LOAD_DELAY: i64 = "key-load-delay", bounded_number(I32_MIN, I32_MAX), "0", hidden();
    LATENCY_MONITOR_THRESHOLD: Duration = "latency-monitor-threshold", millis(0, MAX), "0";
    LATENCY_TRACKING: bool = "latency-tracking", yes_no(), "yes";
    LATENCY_TRACKING_INFO_PERCENTILES: Arc<[f64]> = "latency-tracking-info-percentiles", percentile_list(), "50 99 99.9";
    LAZYFREE_LAZY_EVICTION: bool = "lazyfree-lazy-eviction", yes_no(), "yes";
    LAZYFREE_LAZY_EXPIRE: bool = "lazyfree-lazy-expire", yes_no(), "yes";
    LAZYFREE_LAZY_SERVER_DEL: bool = "lazyfree-lazy-server-del", yes_no(), "yes";
    LAZYFREE_LAZY_USER_DEL: bool = "lazyfree-lazy-user-del", yes_no(), "yes";
    LAZYFREE_LAZY_USER_FLUSH: bool = "lazyfree-lazy-user-flush", yes_no(), "yes";
    LFU_DECAY_TIME: u64 = "lfu-decay-time", bounded_number(0, I32_MAX), "1";
    LFU_LOG_FACTOR: u32 = "lfu-log-factor", bounded_number(0, I32_MAX), "10";
    LIST_COMPRESS_DEPTH: usize = "list-compress-depth", bounded_number(0, I32_MAX), "0";
    LIST_MAX_LISTPACK_SIZE: i32 =
        "list-max-listpack-size", bounded_number(I32_MIN, I32_MAX), "-2", alias("list-max-ziplist-size");
    LOADING_PROCESS_EVENTS_INTERVAL_BYTES: usize =
        "loading-process-events-interval-bytes", byte_count(1024, I32_MAX), "2097152", hidden();
    LOCALE_COLLATE: Text = "locale-collate", text(), "";
    LOG_FORMAT: LogFormat = "log-format", enum_word(), "legacy";
    LOG_TIMESTAMP_FORMAT: LogTimestamp = "log-timestamp-format", enum_word(), "legacy";
    LOGFILE: Option<Text> = "logfile", optional_text(), "", immutable();
    LOGLEVEL: LogLevel = "loglevel", enum_word(), "notice";
    LONG_COMMAND_THREADS: usize = "long-command-threads", bounded_number(0, 128), "1", immutable();
    LONG_COMMAND_THRESHOLD: u64 = "long-command-threshold", bounded_number(0, MAX), "1000", hidden();
    LUA_ENABLE_INSECURE_API: bool =
        "lua-enable-insecure-api", yes_no(), "no", alias("lua-enable-deprecated-api"), immutable(), hidden();
    MASTERAUTH: Option<Text> = "masterauth", optional_text(), "", alias("primaryauth");
    MASTERUSER: Option<Text> = "masteruser", optional_text(), "", alias("primaryuser");
    MAX_NEW_CONNECTIONS_PER_CYCLE: usize = "max-new-connections-per-cycle", bounded_number(1, 1000), "10";
    MAX_NEW_TLS_CONNECTIONS_PER_CYCLE: usize = "max-new-tls-connections-per-cycle", bounded_number(1, 1000), "1";
    MAXCLIENTS: usize = "maxclients", bounded_number(1, 4294967295), "10000";
    MAXMEMORY: usize = "maxmemory", unbounded_bytes(), "0";
    MAXMEMORY_CLIENTS: MemorySize = "maxmemory-clients", memory_size(), "0";
    MAXMEMORY_EVICTION_TENACITY: u32 = "maxmemory-eviction-tenacity", bounded_number(0, 100), "10";
    MAXMEMORY_POLICY: EvictionPolicy = "maxmemory-policy", enum_word(), "noeviction";
    MAXMEMORY_SAMPLES: usize = "maxmemory-samples", bounded_number(1, 64), "5";
    METRICS_BIND: Arc<[Text]> = "metrics-bind", word_list(), "127.0.0.1 -::1", immutable();
    METRICS_PASSWORD: Option<Text> = "metrics-password", optional_text(), "";
    METRICS_PORT: u16 = "metrics-port", bounded_number(0, 65535), "0", immutable();
    METRICS_TLS: bool = "metrics-tls", yes_no(), "no", immutable();
    MIN_IO_THREADS_AVOID_COPY_REPLY: usize = "min-io-threads-avoid-copy-reply", bounded_number(0, MAX), "7", hidden();
    MIN_REPLICAS_MAX_LAG: Duration = "min-replicas-max-lag", seconds(0, 2147483647), "10", alias("min-slaves-max-lag");
    MIN_REPLICAS_TO_WRITE: usize = "min-replicas-to-write", bounded_number(0, 2147483647), "0", alias("min-slaves-to-write");
    MIN_STRING_SIZE_AVOID_COPY_REPLY: usize = "min-string-size-avoid-copy-reply", bounded_number(0, MAX), "16384", hidden();
    MIN_STRING_SIZE_AVOID_COPY_REPLY_THREADED: usize =
        "min-string-size-avoid-copy-reply-threaded", bounded_number(0, MAX), "65536", hidden();
    MPTCP: bool = "mptcp", yes_no(), "no", immutable();
    NO_APPENDFSYNC_ON_REWRITE: bool = "no-appendfsync-on-rewrite", yes_no(), "no";
    NOTIFY_KEYSPACE_EVENTS: Text = "notify-keyspace-events", event_letters(), "";
    OOM_SCORE_ADJ: OomScoreMode = "oom-score-adj", enum_word(), "no";
    OOM_SCORE_ADJ_VALUES: [i32; 3] = "oom-score-adj-values", oom_adjustments(), "0 200 800";
    PIDFILE: Option<Text> = "pidfile", optional_text(), "", immutable();
    PORT: u16 = "port", bounded_number(0, 65535), "6379";
    PREFETCH_BATCH_MAX_SIZE: usize = "prefetch-batch-max-size", bounded_number(0, 128), "16";
    PROC_TITLE_TEMPLATE: Text = "proc-title-template", process_title(), "{title} {listen-addr} {server-mode}";
    PROPAGATION_ERROR_BEHAVIOR: &'static str =
        "propagation-error-behavior", fixed_word(&["ignore", "panic", "panic-on-replicas"]), "ignore";
    PROTECTED_MODE: bool = "protected-mode", yes_no(), "yes";
    PROTO_MAX_BULK_LEN: i64 = "proto-max-bulk-len", byte_count(1048576, MAX), "536870912";
    RDB_DEL_SYNC_FILES: bool = "rdb-del-sync-files", yes_no(), "no";
    RDB_KEY_SAVE_DELAY: i64 = "rdb-key-save-delay", bounded_number(I32_MIN, I32_MAX), "0", hidden();
    RDB_SAVE_INCREMENTAL_FSYNC: bool = "rdb-save-incremental-fsync", yes_no(), "yes";
    RDB_VERSION_CHECK: &'static str = "rdb-version-check", fixed_word(&["strict", "relaxed"]), "strict";
    RDBCHECKSUM: bool = "rdbchecksum", yes_no(), "yes", immutable();
    RDBCOMPRESSION: bool = "rdbcompression", yes_no(), "yes";
    RDMA_BIND: Text = "rdma-bind", text(), "", immutable();
    RDMA_COMPLETION_VECTOR: i64 = "rdma-completion-vector", bounded_number(-1, 1024), "-1", immutable();
    RDMA_PORT: u16 = "rdma-port", bounded_number(0, 65535), "0";
    RDMA_RX_SIZE: usize = "rdma-rx-size", bounded_number(65536, 16777216), "1048576", immutable();
    REPL_BACKLOG_SIZE: u64 = "repl-backlog-size", min_bytes(16384), "10485760";
    REPL_BACKLOG_TTL: Duration = "repl-backlog-ttl", seconds(0, MAX), "3600";
    REPL_DISABLE_TCP_NODELAY: bool = "repl-disable-tcp-nodelay", yes_no(), "no";
    REPL_DISKLESS_LOAD: DisklessLoad = "repl-diskless-load", enum_word(), "disabled";
    REPL_DISKLESS_SYNC: bool = "repl-diskless-sync", yes_no(), "yes";
    REPL_DISKLESS_SYNC_DELAY: Duration = "repl-diskless-sync-delay", seconds(0, I32_MAX), "5";
    REPL_DISKLESS_SYNC_MAX_REPLICAS: usize = "repl-diskless-sync-max-replicas", bounded_number(0, I32_MAX), "0";
    REPL_MPTCP: bool = "repl-mptcp", yes_no(), "no", immutable();
    REPL_PING_REPLICA_PERIOD: Duration =
        "repl-ping-replica-period", seconds(1, I32_MAX), "10", alias("repl-ping-slave-period");
    REPL_TIMEOUT: Duration = "repl-timeout", seconds(1, I32_MAX), "60";
    REPLICA_ANNOUNCE_IP: Option<Text> = "replica-announce-ip", optional_text(), "", alias("slave-announce-ip");
    REPLICA_ANNOUNCE_PORT: Option<u16> = "replica-announce-port", optional_port(), "0", alias("slave-announce-port");
    REPLICA_ANNOUNCED: bool = "replica-announced", yes_no(), "yes";
    REPLICA_IGNORE_DISK_WRITE_ERRORS: bool = "replica-ignore-disk-write-errors", yes_no(), "no";
    REPLICA_IGNORE_MAXMEMORY: bool = "replica-ignore-maxmemory", yes_no(), "yes", alias("slave-ignore-maxmemory");
    REPLICA_LAZY_FLUSH: bool = "replica-lazy-flush", yes_no(), "yes", alias("slave-lazy-flush");
    REPLICA_PRIORITY: u64 = "replica-priority", bounded_number(0, I32_MAX), "100", alias("slave-priority");
    REPLICA_READ_ONLY: bool = "replica-read-only", yes_no(), "yes", alias("slave-read-only");
    REPLICA_SERVE_STALE_DATA: bool = "replica-serve-stale-data", yes_no(), "yes", alias("slave-serve-stale-data");
    REPLICAOF: Option<MasterAddress> = "replicaof", optional_master(), "", alias("slaveof"), immutable();
    REQUIREPASS: Option<Text> = "requirepass", optional_text(), "";
    SANITIZE_DUMP_PAYLOAD: &'static str = "sanitize-dump-payload", fixed_word(&["no", "yes", "clients"]), "no";
    SAVE: Arc<[SavePoint]> = "save", save_points(), "3600 1 300 100 60 10000";
    SERVER_CPULIST: Text = "server-cpulist", text(), "", alias("server_cpulist"), immutable();
    SET_MAX_INTSET_ENTRIES: usize = "set-max-intset-entries", bounded_number(0, MAX), "512";
    SET_MAX_LISTPACK_ENTRIES: usize = "set-max-listpack-entries", bounded_number(0, MAX), "128";
    SET_MAX_LISTPACK_VALUE: usize = "set-max-listpack-value", bounded_number(0, MAX), "64";
    SET_PROC_TITLE: bool = "set-proc-title", yes_no(), "yes", immutable();
    SHUTDOWN_ON_SIGINT: Arc<[ShutdownWord]> = "shutdown-on-sigint", shutdown_options(), "default";
    SHUTDOWN_ON_SIGTERM: Arc<[ShutdownWord]> = "shutdown-on-sigterm", shutdown_options(), "default";
    SHUTDOWN_TIMEOUT: Duration = "shutdown-timeout", seconds(0, I32_MAX), "10";
    SLOT_MIGRATION_MAX_FAILOVER_REPL_BYTES: i64 = "slot-migration-max-failover-repl-bytes", byte_count(-1, MAX), "0";
    SOCKET_MARK_ID: usize = "socket-mark-id", bounded_number(0, MAX), "0", immutable();
    STOP_WRITES_ON_BGSAVE_ERROR: bool = "stop-writes-on-bgsave-error", yes_no(), "yes";
    STREAM_IDMP_DURATION: u64 = "stream-idmp-duration", bounded_number(1, 86400), "100";
    STREAM_IDMP_MAXSIZE: u64 = "stream-idmp-maxsize", bounded_number(1, 10000), "100";
    STREAM_NODE_MAX_BYTES: usize = "stream-node-max-bytes", byte_count(0, MAX), "4096";
    STREAM_NODE_MAX_ENTRIES: usize = "stream-node-max-entries", bounded_number(0, MAX), "100";
    SUPERVISED: Supervised = "supervised", enum_word(), "no", immutable();
    SYSLOG_ENABLED: bool = "syslog-enabled", yes_no(), "no", immutable();
    SYSLOG_FACILITY: SyslogFacility = "syslog-facility", enum_word(), "local0", immutable();
    SYSLOG_IDENT: Text = "syslog-ident", text(), "redoubt", immutable();
    TCP_BACKLOG: i32 = "tcp-backlog", bounded_number(0, I32_MAX), "511", immutable();
    TCP_KEEPALIVE: Duration = "tcp-keepalive", seconds(0, I32_MAX), "300";
    TIMEOUT: Duration = "timeout", seconds(0, I32_MAX), "0";
    TLS_AUTH_CLIENTS: TlsAuthClients = "tls-auth-clients", enum_word(), "yes";
    TLS_AUTH_CLIENTS_USER: TlsUserField = "tls-auth-clients-user", enum_word(), "off";
    TLS_AUTO_RELOAD_INTERVAL: Duration = "tls-auto-reload-interval", seconds(0, I32_MAX), "0";
    TLS_CA_CERT_DIR: Option<Text> = "tls-ca-cert-dir", optional_text(), "";
    TLS_CA_CERT_FILE: Option<Text> = "tls-ca-cert-file", optional_text(), "";
    TLS_CERT_FILE: Option<Text> = "tls-cert-file", optional_text(), "";
    TLS_CIPHERS: Option<Text> = "tls-ciphers", optional_text(), "";
    TLS_CIPHERSUITES: Option<Text> = "tls-ciphersuites", optional_text(), "";
    TLS_CLIENT_CERT_FILE: Option<Text> = "tls-client-cert-file", optional_text(), "";
    TLS_CLIENT_KEY_FILE: Option<Text> = "tls-client-key-file", optional_text(), "";
    TLS_CLIENT_KEY_FILE_PASS: Option<Text> = "tls-client-key-file-pass", optional_text(), "";
    TLS_CLUSTER: bool = "tls-cluster", yes_no(), "no";
    TLS_DH_PARAMS_FILE: Option<Text> = "tls-dh-params-file", optional_text(), "";
    TLS_KEY_FILE: Option<Text> = "tls-key-file", optional_text(), "";
    TLS_KEY_FILE_PASS: Option<Text> = "tls-key-file-pass", optional_text(), "";
    TLS_PORT: u16 = "tls-port", bounded_number(0, 65535), "0";
    TLS_PREFER_SERVER_CIPHERS: bool = "tls-prefer-server-ciphers", yes_no(), "no";
    TLS_PROTOCOLS: Option<Text> = "tls-protocols", optional_text(), "";
    TLS_REPLICATION: bool = "tls-replication", yes_no(), "no";
    TLS_SESSION_CACHE_SIZE: usize = "tls-session-cache-size", bounded_number(0, I32_MAX), "20480";
    TLS_SESSION_CACHE_TIMEOUT: Duration = "tls-session-cache-timeout", seconds(0, I32_MAX), "300";
    TLS_SESSION_CACHING: bool = "tls-session-caching", yes_no(), "yes";
    TRACKING_TABLE_MAX_KEYS: usize = "tracking-table-max-keys", bounded_number(0, MAX), "1000000";
    UNIXSOCKET: Option<Text> = "unixsocket", optional_text(), "", immutable();
    UNIXSOCKETGROUP: Text = "unixsocketgroup", text(), "", immutable();
    UNIXSOCKETPERM: u32 = "unixsocketperm", file_mode(), "0", immutable();
    USE_EXIT_ON_PANIC: bool = "use-exit-on-panic", yes_no(), "no", hidden();
    WATCHDOG_PERIOD: Duration = "watchdog-period", millis(0, I32_MAX), "0", hidden();
    ZSET_MAX_LISTPACK_ENTRIES: usize =
        "zset-max-listpack-entries", bounded_number(0, MAX), "128", alias("zset-max-ziplist-entries");
    ZSET_MAX_LISTPACK_VALUE: usize = "zset-max-listpack-value", byte_count(0, MAX), "64", alias("zset-max-ziplist-value");
}
