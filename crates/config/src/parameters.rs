//! Every parameter of a configuration file: its name, what its value must be, its default.
//!
//! The names and defaults are those that Redis and Valkey users have in their files. Where a parameter
//! has a meaning here, whoever needs it reads it from [`crate::Config`] or applies a change in
//! `process/settings.rs` of the node.

use super::kind::Kind;

/// One row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter {
    /// One that Redis 7 knows, if it knows the parameter: CONFIG REWRITE appends lines by this name.
    pub(crate) name: &'static str,
    /// Its other name, if it has one.
    pub(crate) alias: Option<&'static str>,
    pub(crate) kind: Kind,
    pub(crate) default: &'static str,
    /// Whether CONFIG SET may change it.
    pub(crate) mutable: bool,
    /// Whether CONFIG SET may change it only where `enable-protected-configs` says so.
    pub(crate) protected: bool,
    /// Whether CONFIG GET shows it only to who asks for it by its name.
    pub(crate) hidden: bool,
}

impl Parameter {
    const fn new(name: &'static str, kind: Kind, default: &'static str) -> Self {
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

const SHUTDOWN_WORDS: &[&str] = &["default", "save", "nosave", "now", "force"];

pub(crate) const PARAMETERS: &[Parameter] = &[
    Parameter::new("acl-pubsub-default", Kind::Choice(&["allchannels", "resetchannels"]), "resetchannels"),
    Parameter::new("aclfile", Kind::Text, "").immutable(),
    Parameter::new("acllog-max-len", Kind::Integer(0, i64::MAX), "128"),
    Parameter::new("active-defrag-cycle-max", Kind::Integer(0, i64::MAX), "25"),
    Parameter::new("active-defrag-cycle-min", Kind::Integer(0, i64::MAX), "1"),
    Parameter::new("active-defrag-cycle-us", Kind::Integer(0, i64::MAX), "500"),
    Parameter::new("active-defrag-ignore-bytes", Kind::Memory(0, i64::MAX), "104857600"),
    Parameter::new("active-defrag-max-scan-fields", Kind::Integer(0, i64::MAX), "1000"),
    Parameter::new("active-defrag-threshold-lower", Kind::Integer(0, i64::MAX), "10"),
    Parameter::new("active-defrag-threshold-upper", Kind::Integer(0, i64::MAX), "100"),
    Parameter::new("active-expire-effort", Kind::Integer(1, 10), "1"),
    Parameter::new("activedefrag", Kind::Switch, "no"),
    Parameter::new("activerehashing", Kind::Switch, "yes"),
    Parameter::new("always-show-logo", Kind::Switch, "no").immutable(),
    Parameter::new("aof-disable-auto-gc", Kind::Switch, "no").hidden(),
    Parameter::new("aof-load-truncated", Kind::Switch, "yes"),
    Parameter::new("aof-rewrite-cpulist", Kind::Text, "").alias("aof_rewrite_cpulist").immutable(),
    Parameter::new("aof-rewrite-incremental-fsync", Kind::Switch, "yes"),
    Parameter::new("aof-timestamp-enabled", Kind::Switch, "no"),
    Parameter::new("aof-use-rdb-preamble", Kind::Switch, "yes"),
    Parameter::new("appenddirname", Kind::Text, "appendonlydir").immutable(),
    Parameter::new("appendfilename", Kind::Text, "appendonly.aof").immutable(),
    Parameter::new("appendfsync", Kind::Choice(&["always", "everysec", "no"]), "everysec"),
    Parameter::new("appendonly", Kind::Switch, "no"),
    Parameter::new("auto-aof-rewrite-min-size", Kind::Memory(0, i64::MAX), "67108864"),
    Parameter::new("auto-aof-rewrite-percentage", Kind::Integer(0, i32::MAX as i64), "100"),
    Parameter::new("availability-zone", Kind::PlainName, ""),
    Parameter::new("bgsave-cpulist", Kind::Text, "").alias("bgsave_cpulist").immutable(),
    Parameter::new("bind", Kind::Words, "* -::*"),
    Parameter::new("bind-source-addr", Kind::Text, ""),
    Parameter::new("bio-cpulist", Kind::Text, "").alias("bio_cpulist").immutable(),
    Parameter::new("busy-reply-threshold", Kind::Integer(0, i64::MAX), "5000").alias("lua-time-limit"),
    Parameter::new(
        "client-output-buffer-limit",
        Kind::OutputLimits,
        "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
    ),
    Parameter::new("client-query-buffer-limit", Kind::Memory(1048576, i64::MAX), "1073741824"),
    Parameter::new("cluster-allow-pubsubshard-when-down", Kind::Switch, "yes"),
    Parameter::new("cluster-allow-reads-when-down", Kind::Switch, "no"),
    Parameter::new("cluster-allow-replica-migration", Kind::Switch, "yes"),
    Parameter::new("cluster-announce-bus-port", Kind::Integer(0, 65535), "0"),
    Parameter::new("cluster-announce-client-ipv4", Kind::Ip, ""),
    Parameter::new("cluster-announce-client-ipv6", Kind::Ip, ""),
    Parameter::new("cluster-announce-client-port", Kind::Integer(0, 65535), "0"),
    Parameter::new("cluster-announce-client-tls-port", Kind::Integer(0, 65535), "0"),
    Parameter::new("cluster-announce-hostname", Kind::Hostname, ""),
    Parameter::new("cluster-announce-human-nodename", Kind::PlainName, ""),
    Parameter::new("cluster-announce-ip", Kind::Ip, ""),
    Parameter::new("cluster-announce-port", Kind::Integer(0, 65535), "0"),
    Parameter::new("cluster-announce-tls-port", Kind::Integer(0, 65535), "0"),
    Parameter::new("cluster-blacklist-ttl", Kind::Integer(0, i64::MAX), "60"),
    Parameter::new("cluster-config-file", Kind::Text, "nodes.conf").immutable(),
    Parameter::new("cluster-config-save-behavior", Kind::Choice(&["sync", "best-effort"]), "sync"),
    Parameter::new("cluster-databases", Kind::Integer(1, u16::MAX as i64), "1").immutable(),
    Parameter::new("cluster-enabled", Kind::Switch, "no").immutable(),
    Parameter::new("cluster-link-sendbuf-limit", Kind::Memory(0, i64::MAX), "0"),
    Parameter::new("cluster-manual-failover-timeout", Kind::Integer(0, i64::MAX), "5000"),
    Parameter::new("cluster-message-gossip-perc", Kind::Integer(0, 100), "10").hidden(),
    Parameter::new("cluster-migration-barrier", Kind::Integer(0, i64::MAX), "1"),
    Parameter::new("cluster-node-timeout", Kind::Integer(0, i64::MAX), "15000"),
    Parameter::new("cluster-ping-interval", Kind::Integer(0, i64::MAX), "1000").hidden(),
    Parameter::new("cluster-port", Kind::Integer(0, 65535), "0").immutable(),
    Parameter::new(
        "cluster-preferred-endpoint-type",
        Kind::Choice(&["ip", "hostname", "unknown-endpoint"]),
        "ip",
    ),
    Parameter::new("cluster-refused-timeout", Kind::Integer(0, 60000), "150"),
    Parameter::new("cluster-replica-no-failover", Kind::Switch, "no").alias("cluster-slave-no-failover"),
    Parameter::new("cluster-replica-validity-factor", Kind::Integer(0, i64::MAX), "10")
        .alias("cluster-slave-validity-factor"),
    Parameter::new("cluster-require-full-coverage", Kind::Switch, "yes"),
    Parameter::new("cluster-slot-migration-log-max-len", Kind::Integer(0, i64::MAX), "1000"),
    Parameter::new("cluster-slot-stats-enabled", Kind::Switch, "no"),
    Parameter::new("slowlog-log-slower-than", Kind::Integer(-1, i64::MAX), "10000")
        .alias("commandlog-execution-slower-than"),
    Parameter::new("commandlog-large-reply-max-len", Kind::Integer(0, i64::MAX), "128"),
    Parameter::new("commandlog-large-request-max-len", Kind::Integer(0, i64::MAX), "128"),
    Parameter::new("commandlog-reply-larger-than", Kind::Integer(-1, i64::MAX), "1048576"),
    Parameter::new("commandlog-request-larger-than", Kind::Integer(-1, i64::MAX), "1048576"),
    Parameter::new("slowlog-max-len", Kind::Integer(0, i64::MAX), "128")
        .alias("commandlog-slow-execution-max-len"),
    Parameter::new("crash-log-enabled", Kind::Switch, "yes"),
    Parameter::new("crash-memcheck-enabled", Kind::Switch, "yes"),
    Parameter::new("daemonize", Kind::Switch, "no").immutable(),
    Parameter::new("databases", Kind::Integer(1, i32::MAX as i64), "16").immutable(),
    Parameter::new("dbfilename", Kind::FileName, "dump.rdb").protected(),
    Parameter::new("debug-context", Kind::Text, "").hidden(),
    Parameter::new("dir", Kind::Text, ".").protected(),
    Parameter::new("disable-thp", Kind::Switch, "yes").immutable(),
    Parameter::new("dynamic-hz", Kind::Switch, "yes"),
    Parameter::new("dual-channel-replication-enabled", Kind::Switch, "no"),
    Parameter::new("enable-debug-assert", Kind::Switch, "no").immutable().hidden(),
    Parameter::new("enable-debug-command", Kind::Choice(&["no", "yes", "local"]), "no").immutable(),
    Parameter::new("enable-module-command", Kind::Choice(&["no", "yes", "local"]), "no").immutable(),
    Parameter::new("enable-protected-configs", Kind::Choice(&["no", "yes", "local"]), "no").immutable(),
    Parameter::new("events-per-io-thread", Kind::Integer(0, i64::MAX), "2").hidden(),
    Parameter::new("extended-redis-compatibility", Kind::Switch, "no"),
    Parameter::new("hash-max-listpack-entries", Kind::Integer(0, i64::MAX), "512")
        .alias("hash-max-ziplist-entries"),
    Parameter::new("hash-max-listpack-value", Kind::Integer(0, i64::MAX), "64")
        .alias("hash-max-ziplist-value"),
    Parameter::new("hash-seed", Kind::Text, "").immutable(),
    Parameter::new("hide-user-data-from-log", Kind::Switch, "yes"),
    Parameter::new("hll-sparse-max-bytes", Kind::Memory(0, i64::MAX), "3000"),
    Parameter::new("hz", Kind::Clamped(1, 500), "10"),
    Parameter::new("ignore-warnings", Kind::Text, ""),
    Parameter::new("import-mode", Kind::Switch, "no"),
    Parameter::new("io-threads", Kind::Integer(1, 128), "1").immutable(),
    Parameter::new("io-threads-always-active", Kind::Switch, "no").hidden(),
    Parameter::new("io-threads-do-reads", Kind::Switch, "no").immutable(),
    Parameter::new("jemalloc-bg-thread", Kind::Switch, "yes"),
    Parameter::new("key-load-delay", Kind::Integer(i32::MIN as i64, i32::MAX as i64), "0").hidden(),
    Parameter::new("latency-monitor-threshold", Kind::Integer(0, i64::MAX), "0"),
    Parameter::new("latency-tracking", Kind::Switch, "yes"),
    Parameter::new("latency-tracking-info-percentiles", Kind::Percentiles, "50 99 99.9"),
    Parameter::new("lazyfree-lazy-eviction", Kind::Switch, "yes"),
    Parameter::new("lazyfree-lazy-expire", Kind::Switch, "yes"),
    Parameter::new("lazyfree-lazy-server-del", Kind::Switch, "yes"),
    Parameter::new("lazyfree-lazy-user-del", Kind::Switch, "yes"),
    Parameter::new("lazyfree-lazy-user-flush", Kind::Switch, "yes"),
    Parameter::new("lfu-decay-time", Kind::Integer(0, i64::MAX), "1"),
    Parameter::new("lfu-log-factor", Kind::Integer(0, i32::MAX as i64), "10"),
    Parameter::new("list-compress-depth", Kind::Integer(0, i64::MAX), "0"),
    Parameter::new("list-max-listpack-size", Kind::Integer(i32::MIN as i64, i32::MAX as i64), "-2")
        .alias("list-max-ziplist-size"),
    Parameter::new("loading-process-events-interval-bytes", Kind::Memory(1024, i32::MAX as i64), "2097152")
        .hidden(),
    Parameter::new("locale-collate", Kind::Text, ""),
    Parameter::new("log-format", Kind::Choice(&["legacy", "logfmt"]), "legacy"),
    Parameter::new("log-timestamp-format", Kind::Choice(&["legacy", "iso8601", "milliseconds"]), "legacy"),
    Parameter::new("logfile", Kind::Text, "").immutable(),
    Parameter::new("loglevel", Kind::Choice(&["debug", "verbose", "notice", "warning", "nothing"]), "notice"),
    Parameter::new("lua-enable-insecure-api", Kind::Switch, "no")
        .alias("lua-enable-deprecated-api")
        .immutable()
        .hidden(),
    Parameter::new("masterauth", Kind::Text, "").alias("primaryauth"),
    Parameter::new("masteruser", Kind::Text, "").alias("primaryuser"),
    Parameter::new("max-new-connections-per-cycle", Kind::Integer(0, i64::MAX), "10"),
    Parameter::new("max-new-tls-connections-per-cycle", Kind::Integer(0, i64::MAX), "1"),
    Parameter::new("maxclients", Kind::Integer(1, 4294967295), "10000"),
    Parameter::new("maxmemory", Kind::Memory(0, i64::MAX), "0"),
    Parameter::new("maxmemory-clients", Kind::MemoryOrPercent, "0"),
    Parameter::new("maxmemory-eviction-tenacity", Kind::Integer(0, 100), "10"),
    Parameter::new(
        "maxmemory-policy",
        Kind::Choice(&[
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
    Parameter::new("maxmemory-samples", Kind::Integer(1, 64), "5"),
    Parameter::new("min-io-threads-avoid-copy-reply", Kind::Integer(0, i64::MAX), "7").hidden(),
    Parameter::new("min-replicas-max-lag", Kind::Integer(0, i64::MAX), "10").alias("min-slaves-max-lag"),
    Parameter::new("min-replicas-to-write", Kind::Integer(0, i64::MAX), "0").alias("min-slaves-to-write"),
    Parameter::new("min-string-size-avoid-copy-reply", Kind::Integer(0, i64::MAX), "16384").hidden(),
    Parameter::new("min-string-size-avoid-copy-reply-threaded", Kind::Integer(0, i64::MAX), "65536").hidden(),
    Parameter::new("mptcp", Kind::Switch, "no"),
    Parameter::new("no-appendfsync-on-rewrite", Kind::Switch, "no"),
    Parameter::new("notify-keyspace-events", Kind::Text, ""),
    Parameter::new("oom-score-adj", Kind::Choice(&["no", "yes", "relative", "absolute"]), "no"),
    Parameter::new("oom-score-adj-values", Kind::ScoreAdjustments, "0 200 800"),
    Parameter::new("pidfile", Kind::Text, "").immutable(),
    Parameter::new("port", Kind::Integer(0, 65535), "6379"),
    Parameter::new("prefetch-batch-max-size", Kind::Integer(0, i64::MAX), "16"),
    Parameter::new("proc-title-template", Kind::Text, "{title} {listen-addr} {server-mode}"),
    Parameter::new(
        "propagation-error-behavior",
        Kind::Choice(&["ignore", "panic", "panic-on-replicas"]),
        "ignore",
    ),
    Parameter::new("protected-mode", Kind::Switch, "yes"),
    Parameter::new("proto-max-bulk-len", Kind::Memory(1048576, i64::MAX), "536870912"),
    Parameter::new("rdb-del-sync-files", Kind::Switch, "no"),
    Parameter::new("rdb-key-save-delay", Kind::Integer(i32::MIN as i64, i32::MAX as i64), "0").hidden(),
    Parameter::new("rdb-save-incremental-fsync", Kind::Switch, "yes"),
    Parameter::new("rdb-version-check", Kind::Choice(&["strict", "relaxed"]), "strict"),
    Parameter::new("rdbchecksum", Kind::Switch, "yes").immutable(),
    Parameter::new("rdbcompression", Kind::Switch, "yes"),
    Parameter::new("rdma-bind", Kind::Text, "").immutable(),
    Parameter::new("rdma-completion-vector", Kind::Integer(-1, 1024), "-1"),
    Parameter::new("rdma-port", Kind::Integer(0, 65535), "0").immutable(),
    Parameter::new("rdma-rx-size", Kind::Integer(65536, 16777216), "1048576"),
    Parameter::new("repl-backlog-size", Kind::Memory(1, i64::MAX), "10485760"),
    Parameter::new("repl-backlog-ttl", Kind::Integer(0, i64::MAX), "3600"),
    Parameter::new("repl-disable-tcp-nodelay", Kind::Switch, "no"),
    Parameter::new("repl-diskless-load", Kind::Choice(&["disabled", "on-empty-db", "swapdb"]), "disabled"),
    Parameter::new("repl-diskless-sync", Kind::Switch, "yes"),
    Parameter::new("repl-diskless-sync-delay", Kind::Integer(0, i64::MAX), "5"),
    Parameter::new("repl-diskless-sync-max-replicas", Kind::Integer(0, i64::MAX), "0"),
    Parameter::new("repl-mptcp", Kind::Switch, "no"),
    Parameter::new("repl-ping-replica-period", Kind::Integer(1, i32::MAX as i64), "10")
        .alias("repl-ping-slave-period"),
    Parameter::new("repl-timeout", Kind::Integer(1, i32::MAX as i64), "60"),
    Parameter::new("replica-announce-ip", Kind::Text, "").alias("slave-announce-ip"),
    Parameter::new("replica-announce-port", Kind::Integer(0, 65535), "0").alias("slave-announce-port"),
    Parameter::new("replica-announced", Kind::Switch, "yes"),
    Parameter::new("replica-ignore-disk-write-errors", Kind::Switch, "no"),
    Parameter::new("replica-ignore-maxmemory", Kind::Switch, "yes").alias("slave-ignore-maxmemory"),
    Parameter::new("replica-lazy-flush", Kind::Switch, "yes").alias("slave-lazy-flush"),
    Parameter::new("replica-priority", Kind::Integer(0, i64::MAX), "100").alias("slave-priority"),
    Parameter::new("replica-read-only", Kind::Switch, "yes").alias("slave-read-only"),
    Parameter::new("replica-serve-stale-data", Kind::Switch, "yes").alias("slave-serve-stale-data"),
    Parameter::new("replicaof", Kind::Words, "").alias("slaveof").immutable(),
    Parameter::new("requirepass", Kind::Text, ""),
    Parameter::new("sanitize-dump-payload", Kind::Choice(&["no", "yes", "clients"]), "no"),
    Parameter::new("save", Kind::Save, "3600 1 300 100 60 10000"),
    Parameter::new("server-cpulist", Kind::Text, "").alias("server_cpulist").immutable(),
    Parameter::new("set-max-intset-entries", Kind::Integer(0, i64::MAX), "512"),
    Parameter::new("set-max-listpack-entries", Kind::Integer(0, i64::MAX), "128"),
    Parameter::new("set-max-listpack-value", Kind::Integer(0, i64::MAX), "64"),
    Parameter::new("set-proc-title", Kind::Switch, "yes").immutable(),
    Parameter::new("shutdown-on-sigint", Kind::Choices(SHUTDOWN_WORDS), "default"),
    Parameter::new("shutdown-on-sigterm", Kind::Choices(SHUTDOWN_WORDS), "default"),
    Parameter::new("shutdown-timeout", Kind::Integer(0, i64::MAX), "10"),
    Parameter::new("slot-migration-max-failover-repl-bytes", Kind::Memory(0, i64::MAX), "0"),
    Parameter::new("socket-mark-id", Kind::Integer(0, i64::MAX), "0").immutable(),
    Parameter::new("stop-writes-on-bgsave-error", Kind::Switch, "yes"),
    Parameter::new("stream-node-max-bytes", Kind::Memory(0, i64::MAX), "4096"),
    Parameter::new("stream-node-max-entries", Kind::Integer(0, i64::MAX), "100"),
    Parameter::new("supervised", Kind::Choice(&["upstart", "systemd", "auto", "no"]), "no").immutable(),
    Parameter::new("syslog-enabled", Kind::Switch, "no").immutable(),
    Parameter::new(
        "syslog-facility",
        Kind::Choice(&[
            "user", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
        ]),
        "local0",
    )
    .immutable(),
    Parameter::new("syslog-ident", Kind::Text, "redoubt").immutable(),
    Parameter::new("tcp-backlog", Kind::Integer(0, i32::MAX as i64), "511").immutable(),
    Parameter::new("tcp-keepalive", Kind::Integer(0, i64::MAX), "300"),
    Parameter::new("timeout", Kind::Integer(0, i32::MAX as i64), "0"),
    Parameter::new("tls-auth-clients", Kind::Choice(&["no", "yes", "optional"]), "yes"),
    Parameter::new("tls-auth-clients-user", Kind::Choice(&["off", "CN", "URI"]), "off"),
    Parameter::new("tls-auto-reload-interval", Kind::Integer(0, i64::MAX), "0"),
    Parameter::new("tls-ca-cert-dir", Kind::Text, ""),
    Parameter::new("tls-ca-cert-file", Kind::Text, ""),
    Parameter::new("tls-cert-file", Kind::Text, ""),
    Parameter::new("tls-ciphers", Kind::Text, ""),
    Parameter::new("tls-ciphersuites", Kind::Text, ""),
    Parameter::new("tls-client-cert-file", Kind::Text, ""),
    Parameter::new("tls-client-key-file", Kind::Text, ""),
    Parameter::new("tls-client-key-file-pass", Kind::Text, ""),
    Parameter::new("tls-cluster", Kind::Switch, "no"),
    Parameter::new("tls-dh-params-file", Kind::Text, ""),
    Parameter::new("tls-key-file", Kind::Text, ""),
    Parameter::new("tls-key-file-pass", Kind::Text, ""),
    Parameter::new("tls-port", Kind::Integer(0, 65535), "0"),
    Parameter::new("tls-prefer-server-ciphers", Kind::Switch, "no"),
    Parameter::new("tls-protocols", Kind::Text, ""),
    Parameter::new("tls-replication", Kind::Switch, "no"),
    Parameter::new("tls-session-cache-size", Kind::Integer(0, i64::MAX), "20480"),
    Parameter::new("tls-session-cache-timeout", Kind::Integer(0, i64::MAX), "300"),
    Parameter::new("tls-session-caching", Kind::Switch, "yes"),
    Parameter::new("tracking-table-max-keys", Kind::Integer(0, i64::MAX), "1000000"),
    Parameter::new("unixsocket", Kind::Text, "").immutable(),
    Parameter::new("unixsocketgroup", Kind::Text, "").immutable(),
    Parameter::new("unixsocketperm", Kind::Octal, "0").immutable(),
    Parameter::new("use-exit-on-panic", Kind::Switch, "no").hidden(),
    Parameter::new("watchdog-period", Kind::Integer(0, i32::MAX as i64), "0").hidden(),
    Parameter::new("zset-max-listpack-entries", Kind::Integer(0, i64::MAX), "128")
        .alias("zset-max-ziplist-entries"),
    Parameter::new("zset-max-listpack-value", Kind::Integer(0, i64::MAX), "64")
        .alias("zset-max-ziplist-value"),
];
