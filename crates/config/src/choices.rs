//! Enum-valued parameters.

use std::fmt;

use slot_routing::EndpointType;

/// A parameter value that users write as one of several words.
pub(crate) trait Choice: Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// All words with their values, in the order in which errors list them.
    const WORDS: &'static [(&'static str, Self)];

    /// Looks up a word, case-insensitively.
    fn parse(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(word)).map(|(_, value)| *value)
    }

    /// The word for this value.
    fn as_word(self) -> &'static str {
        let found = Self::WORDS.iter().find(|(_, value)| *value == self);
        found.map(|(word, _)| *word).expect("every value has a word")
    }
}

macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Looks up a word, case-insensitively.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                Choice::parse(word)
            }
        }

        impl Choice for $name {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),*];
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_word())
            }
        }
    )*};
}

choices! {
    /// `acl-pubsub-default`: the channels that new users may access.
    PubsubDefault {
        /// All channels.
        AllChannels = "allchannels",
        /// No channels.
        ResetChannels = "resetchannels",
    }

    /// `appendfsync`: when the AOF is fsynced.
    AppendFsync {
        /// Once a second.
        EverySecond = "everysec",
        /// Before the reply.
        Always = "always",
        /// The operating system decides.
        Never = "no",
    }

    /// `enable-debug-command` and similar: the clients that may use the feature.
    AllowedClients {
        /// No client.
        No = "no",
        /// All clients.
        Yes = "yes",
        /// Clients on the local machine.
        Local = "local",
    }

    /// `log-format`: the format of log lines.
    LogFormat {
        /// Redis's format.
        Legacy = "legacy",
        /// `name=value` pairs with quoted text.
        Logfmt = "logfmt",
        /// One JSON object per line.
        Json = "json",
    }

    /// `log-timestamp-format`: the timestamp of log lines.
    LogTimestamp {
        /// Day, month, year and time of day.
        Legacy = "legacy",
        /// ISO 8601 with the offset from UTC.
        Iso8601 = "iso8601",
        /// Milliseconds since the Unix epoch.
        Milliseconds = "milliseconds",
    }

    /// `loglevel`: the minimum severity of log lines.
    LogLevel {
        /// Everything, for debugging.
        Debug = "debug",
        /// Details that are rarely useful.
        Verbose = "verbose",
        /// Information for operators.
        Notice = "notice",
        /// Problems that need attention.
        Warning = "warning",
        /// Disables logging.
        Nothing = "nothing",
    }

    /// `maxmemory-policy`: the keys to evict when memory runs out.
    EvictionPolicy {
        /// The least recently used keys with an expiry.
        VolatileLru = "volatile-lru",
        /// The least frequently used keys with an expiry.
        VolatileLfu = "volatile-lfu",
        /// Random keys with an expiry.
        VolatileRandom = "volatile-random",
        /// The keys that expire soonest.
        VolatileTtl = "volatile-ttl",
        /// The least recently modified keys with an expiry.
        VolatileLrm = "volatile-lrm",
        /// The least recently used keys.
        AllKeysLru = "allkeys-lru",
        /// The least frequently used keys.
        AllKeysLfu = "allkeys-lfu",
        /// Random keys.
        AllKeysRandom = "allkeys-random",
        /// The least recently modified keys.
        AllKeysLrm = "allkeys-lrm",
        /// Evict nothing and refuse writes.
        NoEviction = "noeviction",
    }

    /// `oom-score-adj`: how `oom-score-adj-values` are applied to the process.
    OomScoreMode {
        /// Do not change the OOM score.
        No = "no",
        /// Same as `Relative`.
        Yes = "yes",
        /// Add the values to the initial score.
        Relative = "relative",
        /// Use the values as the score.
        Absolute = "absolute",
    }

    /// `repl-diskless-load`: how a replica loads a snapshot.
    DisklessLoad {
        /// Store it in a file first.
        Disabled = "disabled",
        /// Load it from the socket if the dataset is empty.
        OnEmptyDb = "on-empty-db",
        /// Load it from the socket next to the old dataset, which is served meanwhile.
        Swapdb = "swapdb",
        /// Delete the dataset, then load from the socket.
        FlushBeforeLoad = "flush-before-load",
    }

    /// `shutdown-on-sigterm` and `shutdown-on-sigint`: the SHUTDOWN options that the signal implies.
    ShutdownWord {
        /// No options.
        Default = "default",
        /// Save even without save points.
        Save = "save",
        /// Do not save.
        NoSave = "nosave",
        /// Do not wait for lagging replicas.
        Now = "now",
        /// Exit even if saving fails.
        Force = "force",
        /// Exit only if the cluster can do without this node, unless forced.
        Safe = "safe",
        /// Hand the slots over to a replica first.
        Failover = "failover",
    }

    /// `supervised`: the supervisor to notify when the server is ready.
    Supervised {
        /// Signal readiness to upstart.
        Upstart = "upstart",
        /// Notify systemd over its socket.
        Systemd = "systemd",
        /// Detect the supervisor from the environment.
        Auto = "auto",
        /// No supervisor.
        No = "no",
    }

    /// `syslog-facility`: the facility of log messages sent to syslog.
    SyslogFacility {
        /// User-level messages.
        User = "user",
        /// Local use 0.
        Local0 = "local0",
        /// Local use 1.
        Local1 = "local1",
        /// Local use 2.
        Local2 = "local2",
        /// Local use 3.
        Local3 = "local3",
        /// Local use 4.
        Local4 = "local4",
        /// Local use 5.
        Local5 = "local5",
        /// Local use 6.
        Local6 = "local6",
        /// Local use 7.
        Local7 = "local7",
    }

    /// `tls-auth-clients`: whether clients need a certificate.
    TlsAuthClients {
        /// Do not request a certificate.
        No = "no",
        /// Require a valid certificate.
        Yes = "yes",
        /// Accept clients with a valid certificate or none.
        Optional = "optional",
    }

    /// `tls-auth-clients-user`: the certificate field that names the ACL user.
    TlsUserField {
        /// The common name.
        CommonName = "CN",
        /// The first URI among the subject alternative names that is the name of a user.
        Uri = "URI",
        /// Do not authenticate by certificate.
        Off = "off",
    }
}

impl EvictionPolicy {
    /// Whether the policy evicts by age (LRU) rather than by frequency.
    #[must_use]
    pub fn evicts_by_age(self) -> bool {
        matches!(self, Self::VolatileLru | Self::AllKeysLru)
    }
}

impl Choice for EndpointType {
    const WORDS: &'static [(&'static str, Self)] =
        &[("ip", Self::Ip), ("hostname", Self::Hostname), ("unknown-endpoint", Self::Unknown)];
}
