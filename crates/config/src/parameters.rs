//! Every parameter of a configuration file: its name, what its value must be, its default.
//!
//! The names and defaults are those that Redis and Valkey users have in their files. Where a parameter
//! has a meaning here, whoever needs it reads it from [`crate::Config`] or applies a change in
//! `process/settings.rs` of the node.

use super::kind::ParameterKind;

/// One row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter {
    /// One that Redis 7 knows, if it knows the parameter: CONFIG REWRITE appends lines by this name.
    pub(crate) name: &'static str,
    /// Its other name, if it has one.
    pub(crate) alias: Option<&'static str>,
    pub(crate) kind: ParameterKind,
    pub(crate) default: &'static str,
    /// Whether CONFIG SET may change it.
    pub(crate) mutable: bool,
    /// Whether CONFIG SET may change it only where `enable-protected-configs` says so.
    pub(crate) protected: bool,
    /// Whether CONFIG GET shows it only to who asks for it by its name.
    pub(crate) hidden: bool,
}

impl Parameter {
    const fn new(name: &'static str, kind: ParameterKind, default: &'static str) -> Self {
        Self { name, alias: None, kind, default, mutable: true, protected: false, hidden: false }
    }

    const fn alias(mut self, alias: &'static str) -> Self {
        self.alias = Some(alias);
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
}

pub(crate) const PARAMETERS: &[Parameter] = &[
    Parameter::new(
        "acl-pubsub-default",
        ParameterKind::Choice(&["allchannels", "resetchannels"]),
        "resetchannels",
    ),
    Parameter::new("aclfile", ParameterKind::Text, "").immutable(),
    Parameter::new("acllog-max-len", ParameterKind::Integer(0, i64::MAX), "128"),
    Parameter::new("active-defrag-cycle-max", ParameterKind::Integer(1, 99), "25"),
    Parameter::new("active-defrag-cycle-min", ParameterKind::Integer(1, 99), "1"),
    Parameter::new("active-defrag-cycle-us", ParameterKind::Integer(0, 100_000), "500"),
    Parameter::new("active-defrag-ignore-bytes", ParameterKind::Memory(1, i64::MAX), "104857600"),
    Parameter::new("active-defrag-max-scan-fields", ParameterKind::Integer(1, i64::MAX), "1000"),
    Parameter::new("active-defrag-threshold-lower", ParameterKind::Integer(0, 1000), "10"),
    Parameter::new("active-defrag-threshold-upper", ParameterKind::Integer(0, 1000), "100"),
    Parameter::new("active-expire-effort", ParameterKind::Integer(1, 10), "1"),
    Parameter::new("activedefrag", ParameterKind::Switch, "no"),
    Parameter::new("activerehashing", ParameterKind::Switch, "yes"),
    Parameter::new("always-show-logo", ParameterKind::Switch, "no").immutable(),
    Parameter::new("aof-disable-auto-gc", ParameterKind::Switch, "no").hidden(),
    Parameter::new("aof-load-truncated", ParameterKind::Switch, "yes"),
    Parameter::new("aof-rewrite-cpulist", ParameterKind::Text, "").alias("aof_rewrite_cpulist").immutable(),
    Parameter::new("aof-rewrite-incremental-fsync", ParameterKind::Switch, "yes"),
    Parameter::new("aof-timestamp-enabled", ParameterKind::Switch, "no"),
    Parameter::new("aof-use-rdb-preamble", ParameterKind::Switch, "yes"),
    Parameter::new("appenddirname", ParameterKind::Text, "appendonlydir").immutable(),
    Parameter::new("appendfilename", ParameterKind::Text, "appendonly.aof").immutable(),
    Parameter::new("appendfsync", ParameterKind::Choice(&["everysec", "always", "no"]), "everysec"),
    Parameter::new("appendonly", ParameterKind::Switch, "no"),
    Parameter::new("auto-aof-rewrite-min-size", ParameterKind::Memory(0, i64::MAX), "67108864"),
    Parameter::new("auto-aof-rewrite-percentage", ParameterKind::Integer(0, i32::MAX as i64), "100"),
    Parameter::new("availability-zone", ParameterKind::Text, ""),
    Parameter::new("bgsave-cpulist", ParameterKind::Text, "").alias("bgsave_cpulist").immutable(),
    Parameter::new("bind", ParameterKind::Words, "* -::*"),
    Parameter::new("bind-source-addr", ParameterKind::Text, ""),
    Parameter::new("bio-cpulist", ParameterKind::Text, "").alias("bio_cpulist").immutable(),
    Parameter::new("busy-reply-threshold", ParameterKind::Integer(0, i64::MAX), "5000")
        .alias("lua-time-limit"),
    Parameter::new(
        "client-output-buffer-limit",
        ParameterKind::OutputLimits,
        "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
    ),
    Parameter::new("client-query-buffer-limit", ParameterKind::Memory(1048576, i64::MAX), "1073741824"),
    Parameter::new("cluster-allow-pubsubshard-when-down", ParameterKind::Switch, "yes"),
    Parameter::new("cluster-allow-reads-when-down", ParameterKind::Switch, "no"),
    Parameter::new("cluster-allow-replica-migration", ParameterKind::Switch, "yes"),
    Parameter::new("cluster-announce-bus-port", ParameterKind::Integer(0, 65535), "0"),
    Parameter::new("cluster-announce-client-ipv4", ParameterKind::Ipv4, ""),
    Parameter::new("cluster-announce-client-ipv6", ParameterKind::Ipv6, ""),
    Parameter::new("cluster-announce-client-port", ParameterKind::Integer(0, 65535), "0"),
    Parameter::new("cluster-announce-client-tls-port", ParameterKind::Integer(0, 65535), "0"),
    Parameter::new("cluster-announce-hostname", ParameterKind::Hostname, ""),
    Parameter::new("cluster-announce-human-nodename", ParameterKind::PlainName, ""),
    Parameter::new("cluster-announce-ip", ParameterKind::AnnouncedAddress, ""),
    Parameter::new("cluster-announce-port", ParameterKind::Integer(0, 65535), "0"),
    Parameter::new("cluster-announce-tls-port", ParameterKind::Integer(0, 65535), "0"),
    Parameter::new("cluster-blacklist-ttl", ParameterKind::Integer(i64::MIN, i64::MAX), "60"),
    Parameter::new("cluster-config-file", ParameterKind::Text, "nodes.conf").immutable(),
    Parameter::new("cluster-config-save-behavior", ParameterKind::Choice(&["sync", "best-effort"]), "sync"),
    Parameter::new("cluster-databases", ParameterKind::Integer(1, u16::MAX as i64), "1").immutable(),
    Parameter::new("cluster-enabled", ParameterKind::Switch, "no").immutable(),
    Parameter::new("cluster-link-sendbuf-limit", ParameterKind::Memory(0, i64::MAX), "0"),
    Parameter::new("cluster-manual-failover-timeout", ParameterKind::Integer(1, i32::MAX as i64), "5000"),
    Parameter::new("cluster-message-gossip-perc", ParameterKind::Integer(0, 100), "10").hidden(),
    Parameter::new("cluster-migration-barrier", ParameterKind::Integer(0, i32::MAX as i64), "1"),
    Parameter::new("cluster-node-timeout", ParameterKind::Integer(0, i64::MAX), "15000"),
    Parameter::new("cluster-ping-interval", ParameterKind::Integer(0, i64::MAX), "1000").hidden(),
    Parameter::new("cluster-port", ParameterKind::Integer(0, 65535), "0").immutable(),
    Parameter::new(
        "cluster-preferred-endpoint-type",
        ParameterKind::Choice(&["ip", "hostname", "unknown-endpoint"]),
        "ip",
    ),
    Parameter::new("cluster-refused-timeout", ParameterKind::Integer(0, 60000), "150"),
    Parameter::new("cluster-replica-no-failover", ParameterKind::Switch, "no")
        .alias("cluster-slave-no-failover"),
    Parameter::new("cluster-replica-validity-factor", ParameterKind::Integer(0, i32::MAX as i64), "10")
        .alias("cluster-slave-validity-factor"),
    Parameter::new("cluster-require-full-coverage", ParameterKind::Switch, "yes"),
    Parameter::new("cluster-slot-migration-log-max-len", ParameterKind::Integer(0, i64::MAX), "1000"),
    Parameter::new("cluster-slot-stats-enabled", ParameterKind::Switch, "no"),
    Parameter::new("slowlog-log-slower-than", ParameterKind::Integer(-1, i64::MAX), "10000")
        .alias("commandlog-execution-slower-than"),
    Parameter::new("commandlog-large-reply-max-len", ParameterKind::Integer(0, i64::MAX), "128"),
    Parameter::new("commandlog-large-request-max-len", ParameterKind::Integer(0, i64::MAX), "128"),
    Parameter::new("commandlog-reply-larger-than", ParameterKind::Integer(-1, i64::MAX), "1048576"),
    Parameter::new("commandlog-request-larger-than", ParameterKind::Integer(-1, i64::MAX), "1048576"),
    Parameter::new("slowlog-max-len", ParameterKind::Integer(0, i64::MAX), "128")
        .alias("commandlog-slow-execution-max-len"),
    Parameter::new("crash-log-enabled", ParameterKind::Switch, "yes"),
    Parameter::new("crash-memcheck-enabled", ParameterKind::Switch, "yes"),
    Parameter::new("daemonize", ParameterKind::Switch, "no").immutable(),
    Parameter::new("databases", ParameterKind::Integer(1, i32::MAX as i64), "16").immutable(),
    Parameter::new("dbfilename", ParameterKind::FileName, "dump.rdb").protected(),
    Parameter::new("debug-context", ParameterKind::Text, "").hidden(),
    Parameter::new("dir", ParameterKind::Text, ".").protected(),
    Parameter::new("disable-thp", ParameterKind::Switch, "yes").immutable(),
    Parameter::new("dynamic-hz", ParameterKind::Switch, "yes"),
    Parameter::new("dual-channel-replication-enabled", ParameterKind::Switch, "no"),
    Parameter::new("enable-debug-assert", ParameterKind::Switch, "no").immutable().hidden(),
    Parameter::new("enable-debug-command", ParameterKind::Choice(&["no", "yes", "local"]), "no").immutable(),
    Parameter::new("enable-module-command", ParameterKind::Choice(&["no", "yes", "local"]), "no").immutable(),
    Parameter::new("enable-protected-configs", ParameterKind::Choice(&["no", "yes", "local"]), "no")
        .immutable(),
    Parameter::new("events-per-io-thread", ParameterKind::Integer(0, i64::MAX), "2").hidden(),
    Parameter::new("extended-redis-compatibility", ParameterKind::Switch, "no"),
    Parameter::new("hash-max-listpack-entries", ParameterKind::Integer(0, i64::MAX), "512")
        .alias("hash-max-ziplist-entries"),
    Parameter::new("hash-max-listpack-value", ParameterKind::Memory(0, i64::MAX), "64")
        .alias("hash-max-ziplist-value"),
    Parameter::new("hash-seed", ParameterKind::Text, "").immutable(),
    Parameter::new("hide-user-data-from-log", ParameterKind::Switch, "yes"),
    Parameter::new("hll-sparse-max-bytes", ParameterKind::Memory(0, i64::MAX), "3000"),
    Parameter::new("hz", ParameterKind::Clamped(1, 500), "10"),
    Parameter::new("ignore-warnings", ParameterKind::Text, ""),
    Parameter::new("import-mode", ParameterKind::Switch, "no"),
    Parameter::new("io-threads", ParameterKind::Integer(1, 256), "1"),
    Parameter::new("io-threads-always-active", ParameterKind::Switch, "no").hidden(),
    Parameter::new("io-threads-do-reads", ParameterKind::Switch, "no").immutable(),
    Parameter::new("jemalloc-bg-thread", ParameterKind::Switch, "yes"),
    Parameter::new("key-load-delay", ParameterKind::Integer(i32::MIN as i64, i32::MAX as i64), "0").hidden(),
    Parameter::new("latency-monitor-threshold", ParameterKind::Integer(0, i64::MAX), "0"),
    Parameter::new("latency-tracking", ParameterKind::Switch, "yes"),
    Parameter::new("latency-tracking-info-percentiles", ParameterKind::Percentiles, "50 99 99.9"),
    Parameter::new("lazyfree-lazy-eviction", ParameterKind::Switch, "yes"),
    Parameter::new("lazyfree-lazy-expire", ParameterKind::Switch, "yes"),
    Parameter::new("lazyfree-lazy-server-del", ParameterKind::Switch, "yes"),
    Parameter::new("lazyfree-lazy-user-del", ParameterKind::Switch, "yes"),
    Parameter::new("lazyfree-lazy-user-flush", ParameterKind::Switch, "yes"),
    Parameter::new("lfu-decay-time", ParameterKind::Integer(0, i32::MAX as i64), "1"),
    Parameter::new("lfu-log-factor", ParameterKind::Integer(0, i32::MAX as i64), "10"),
    Parameter::new("list-compress-depth", ParameterKind::Integer(0, i32::MAX as i64), "0"),
    Parameter::new("list-max-listpack-size", ParameterKind::Integer(i32::MIN as i64, i32::MAX as i64), "-2")
        .alias("list-max-ziplist-size"),
    Parameter::new(
        "loading-process-events-interval-bytes",
        ParameterKind::Memory(1024, i32::MAX as i64),
        "2097152",
    )
    .hidden(),
    Parameter::new("locale-collate", ParameterKind::Text, ""),
    Parameter::new("log-format", ParameterKind::Choice(&["legacy", "logfmt", "json"]), "legacy"),
    Parameter::new(
        "log-timestamp-format",
        ParameterKind::Choice(&["legacy", "iso8601", "milliseconds"]),
        "legacy",
    ),
    Parameter::new("logfile", ParameterKind::Text, "").immutable(),
    Parameter::new(
        "loglevel",
        ParameterKind::Choice(&["debug", "verbose", "notice", "warning", "nothing"]),
        "notice",
    ),
    Parameter::new("lua-enable-insecure-api", ParameterKind::Switch, "no")
        .alias("lua-enable-deprecated-api")
        .immutable()
        .hidden(),
    Parameter::new("masterauth", ParameterKind::Text, "").alias("primaryauth"),
    Parameter::new("masteruser", ParameterKind::Text, "").alias("primaryuser"),
    Parameter::new("max-new-connections-per-cycle", ParameterKind::Integer(1, 1000), "10"),
    Parameter::new("max-new-tls-connections-per-cycle", ParameterKind::Integer(1, 1000), "1"),
    Parameter::new("maxclients", ParameterKind::Integer(1, 4294967295), "10000"),
    Parameter::new("maxmemory", ParameterKind::Memory(0, i64::MAX), "0"),
    Parameter::new("maxmemory-clients", ParameterKind::MemoryOrPercent, "0"),
    Parameter::new("maxmemory-eviction-tenacity", ParameterKind::Integer(0, 100), "10"),
    Parameter::new(
        "maxmemory-policy",
        ParameterKind::Choice(&[
            "volatile-lru",
            "volatile-lfu",
            "volatile-random",
            "volatile-ttl",
            "allkeys-lru",
            "allkeys-lfu",
            "allkeys-random",
            "noeviction",
        ]),
        "noeviction",
    ),
    Parameter::new("maxmemory-samples", ParameterKind::Integer(1, 64), "5"),
    Parameter::new("min-io-threads-avoid-copy-reply", ParameterKind::Integer(0, i64::MAX), "7").hidden(),
    Parameter::new("min-replicas-max-lag", ParameterKind::Integer(0, 2_147_483_647), "10")
        .alias("min-slaves-max-lag"),
    Parameter::new("min-replicas-to-write", ParameterKind::Integer(0, 2_147_483_647), "0")
        .alias("min-slaves-to-write"),
    Parameter::new("min-string-size-avoid-copy-reply", ParameterKind::Integer(0, i64::MAX), "16384").hidden(),
    Parameter::new("min-string-size-avoid-copy-reply-threaded", ParameterKind::Integer(0, i64::MAX), "65536")
        .hidden(),
    Parameter::new("mptcp", ParameterKind::Switch, "no").immutable(),
    Parameter::new("no-appendfsync-on-rewrite", ParameterKind::Switch, "no"),
    Parameter::new("notify-keyspace-events", ParameterKind::Events, ""),
    Parameter::new("oom-score-adj", ParameterKind::Choice(&["no", "yes", "relative", "absolute"]), "no"),
    Parameter::new("oom-score-adj-values", ParameterKind::ScoreAdjustments, "0 200 800"),
    Parameter::new("pidfile", ParameterKind::Text, "").immutable(),
    Parameter::new("port", ParameterKind::Integer(0, 65535), "6379"),
    Parameter::new("prefetch-batch-max-size", ParameterKind::Integer(0, 128), "16"),
    Parameter::new(
        "proc-title-template",
        ParameterKind::TitleTemplate,
        "{title} {listen-addr} {server-mode}",
    ),
    Parameter::new(
        "propagation-error-behavior",
        ParameterKind::Choice(&["ignore", "panic", "panic-on-replicas"]),
        "ignore",
    ),
    Parameter::new("protected-mode", ParameterKind::Switch, "yes"),
    Parameter::new("proto-max-bulk-len", ParameterKind::Memory(1048576, i64::MAX), "536870912"),
    Parameter::new("rdb-del-sync-files", ParameterKind::Switch, "no"),
    Parameter::new("rdb-key-save-delay", ParameterKind::Integer(i32::MIN as i64, i32::MAX as i64), "0")
        .hidden(),
    Parameter::new("rdb-save-incremental-fsync", ParameterKind::Switch, "yes"),
    Parameter::new("rdb-version-check", ParameterKind::Choice(&["strict", "relaxed"]), "strict"),
    Parameter::new("rdbchecksum", ParameterKind::Switch, "yes").immutable(),
    Parameter::new("rdbcompression", ParameterKind::Switch, "yes"),
    Parameter::new("rdma-bind", ParameterKind::Text, "").immutable(),
    Parameter::new("rdma-completion-vector", ParameterKind::Integer(-1, 1024), "-1").immutable(),
    Parameter::new("rdma-port", ParameterKind::Integer(0, 65535), "0"),
    Parameter::new("rdma-rx-size", ParameterKind::Integer(65536, 16777216), "1048576").immutable(),
    Parameter::new("repl-backlog-size", ParameterKind::AtLeast(16_384), "10485760"),
    Parameter::new("repl-backlog-ttl", ParameterKind::Integer(0, i64::MAX), "3600"),
    Parameter::new("repl-disable-tcp-nodelay", ParameterKind::Switch, "no"),
    Parameter::new(
        "repl-diskless-load",
        ParameterKind::Choice(&["disabled", "on-empty-db", "swapdb", "flush-before-load"]),
        "disabled",
    ),
    Parameter::new("repl-diskless-sync", ParameterKind::Switch, "yes"),
    Parameter::new("repl-diskless-sync-delay", ParameterKind::Integer(0, i32::MAX as i64), "5"),
    Parameter::new("repl-diskless-sync-max-replicas", ParameterKind::Integer(0, i32::MAX as i64), "0"),
    Parameter::new("repl-mptcp", ParameterKind::Switch, "no").immutable(),
    Parameter::new("repl-ping-replica-period", ParameterKind::Integer(1, i32::MAX as i64), "10")
        .alias("repl-ping-slave-period"),
    Parameter::new("repl-timeout", ParameterKind::Integer(1, i32::MAX as i64), "60"),
    Parameter::new("replica-announce-ip", ParameterKind::Text, "").alias("slave-announce-ip"),
    Parameter::new("replica-announce-port", ParameterKind::Integer(0, 65535), "0")
        .alias("slave-announce-port"),
    Parameter::new("replica-announced", ParameterKind::Switch, "yes"),
    Parameter::new("replica-ignore-disk-write-errors", ParameterKind::Switch, "no"),
    Parameter::new("replica-ignore-maxmemory", ParameterKind::Switch, "yes").alias("slave-ignore-maxmemory"),
    Parameter::new("replica-lazy-flush", ParameterKind::Switch, "yes").alias("slave-lazy-flush"),
    Parameter::new("replica-priority", ParameterKind::Integer(0, i32::MAX as i64), "100")
        .alias("slave-priority"),
    Parameter::new("replica-read-only", ParameterKind::Switch, "yes").alias("slave-read-only"),
    Parameter::new("replica-serve-stale-data", ParameterKind::Switch, "yes").alias("slave-serve-stale-data"),
    Parameter::new("replicaof", ParameterKind::Words, "").alias("slaveof").immutable(),
    Parameter::new("requirepass", ParameterKind::Text, ""),
    Parameter::new("sanitize-dump-payload", ParameterKind::Choice(&["no", "yes", "clients"]), "no"),
    Parameter::new("save", ParameterKind::Save, "3600 1 300 100 60 10000"),
    Parameter::new("server-cpulist", ParameterKind::Text, "").alias("server_cpulist").immutable(),
    Parameter::new("set-max-intset-entries", ParameterKind::Integer(0, i64::MAX), "512"),
    Parameter::new("set-max-listpack-entries", ParameterKind::Integer(0, i64::MAX), "128"),
    Parameter::new("set-max-listpack-value", ParameterKind::Integer(0, i64::MAX), "64"),
    Parameter::new("set-proc-title", ParameterKind::Switch, "yes").immutable(),
    Parameter::new("shutdown-on-sigint", ParameterKind::ShutdownWords, "default"),
    Parameter::new("shutdown-on-sigterm", ParameterKind::ShutdownWords, "default"),
    Parameter::new("shutdown-timeout", ParameterKind::Integer(0, i32::MAX as i64), "10"),
    Parameter::new("slot-migration-max-failover-repl-bytes", ParameterKind::Memory(-1, i64::MAX), "0"),
    Parameter::new("socket-mark-id", ParameterKind::Integer(0, i64::MAX), "0").immutable(),
    Parameter::new("stale-master-timeout", ParameterKind::Integer(0, 3_600_000), "60000"),
    Parameter::new("stop-writes-on-bgsave-error", ParameterKind::Switch, "yes"),
    Parameter::new("stream-node-max-bytes", ParameterKind::Memory(0, i64::MAX), "4096"),
    Parameter::new("stream-node-max-entries", ParameterKind::Integer(0, i64::MAX), "100"),
    Parameter::new("supervised", ParameterKind::Choice(&["upstart", "systemd", "auto", "no"]), "no")
        .immutable(),
    Parameter::new("syslog-enabled", ParameterKind::Switch, "no").immutable(),
    Parameter::new(
        "syslog-facility",
        ParameterKind::Choice(&[
            "user", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
        ]),
        "local0",
    )
    .immutable(),
    Parameter::new("syslog-ident", ParameterKind::Text, "redoubt").immutable(),
    Parameter::new("tcp-backlog", ParameterKind::Integer(0, i32::MAX as i64), "511").immutable(),
    Parameter::new("tcp-keepalive", ParameterKind::Integer(0, i32::MAX as i64), "300"),
    Parameter::new("timeout", ParameterKind::Integer(0, i32::MAX as i64), "0"),
    Parameter::new("tls-auth-clients", ParameterKind::Choice(&["no", "yes", "optional"]), "yes"),
    Parameter::new("tls-auth-clients-user", ParameterKind::Choice(&["CN", "URI", "off"]), "off"),
    Parameter::new("tls-auto-reload-interval", ParameterKind::Integer(0, i32::MAX as i64), "0"),
    Parameter::new("tls-ca-cert-dir", ParameterKind::Text, ""),
    Parameter::new("tls-ca-cert-file", ParameterKind::Text, ""),
    Parameter::new("tls-cert-file", ParameterKind::Text, ""),
    Parameter::new("tls-ciphers", ParameterKind::Text, ""),
    Parameter::new("tls-ciphersuites", ParameterKind::Text, ""),
    Parameter::new("tls-client-cert-file", ParameterKind::Text, ""),
    Parameter::new("tls-client-key-file", ParameterKind::Text, ""),
    Parameter::new("tls-client-key-file-pass", ParameterKind::Text, ""),
    Parameter::new("tls-cluster", ParameterKind::Switch, "no"),
    Parameter::new("tls-dh-params-file", ParameterKind::Text, ""),
    Parameter::new("tls-key-file", ParameterKind::Text, ""),
    Parameter::new("tls-key-file-pass", ParameterKind::Text, ""),
    Parameter::new("tls-port", ParameterKind::Integer(0, 65535), "0"),
    Parameter::new("tls-prefer-server-ciphers", ParameterKind::Switch, "no"),
    Parameter::new("tls-protocols", ParameterKind::Text, ""),
    Parameter::new("tls-replication", ParameterKind::Switch, "no"),
    Parameter::new("tls-session-cache-size", ParameterKind::Integer(0, i32::MAX as i64), "20480"),
    Parameter::new("tls-session-cache-timeout", ParameterKind::Integer(0, i32::MAX as i64), "300"),
    Parameter::new("tls-session-caching", ParameterKind::Switch, "yes"),
    Parameter::new("tracking-table-max-keys", ParameterKind::Integer(0, i64::MAX), "1000000"),
    Parameter::new("unixsocket", ParameterKind::Text, "").immutable(),
    Parameter::new("unixsocketgroup", ParameterKind::Text, "").immutable(),
    Parameter::new("unixsocketperm", ParameterKind::Octal, "0").immutable(),
    Parameter::new("use-exit-on-panic", ParameterKind::Switch, "no").hidden(),
    Parameter::new("watchdog-period", ParameterKind::Integer(0, i32::MAX as i64), "0").hidden(),
    Parameter::new("zset-max-listpack-entries", ParameterKind::Integer(0, i64::MAX), "128")
        .alias("zset-max-ziplist-entries"),
    Parameter::new("zset-max-listpack-value", ParameterKind::Memory(0, i64::MAX), "64")
        .alias("zset-max-ziplist-value"),
];
