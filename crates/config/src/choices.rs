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
    /// `acl-pubsub-default`: the channels that a new user may access.
    PubsubDefault {
        /// A new user may access all channels.
        AllChannels = "allchannels",
        /// A new user may access no channels.
        ResetChannels = "resetchannels",
    }

    /// `appendfsync`: when the server fsyncs the AOF.
    AppendFsync {
        /// Fsync once a second, so that a crash loses about a second of writes.
        EverySecond = "everysec",
        /// Fsync before the reply to a write is sent.
        Always = "always",
        /// Leave it to the operating system when writes reach the disk.
        Never = "no",
    }

    /// `enable-debug-command` and similar parameters: which clients may use the feature.
    AllowedClients {
        /// No client may use the feature.
        No = "no",
        /// Every client may use the feature.
        Yes = "yes",
        /// Only clients that connect from the local machine may use the feature.
        Local = "local",
    }

    /// `log-format`: the format of log lines.
    LogFormat {
        /// The log format of Redis.
        Legacy = "legacy",
        /// `name=value` pairs, with texts in quotes.
        Logfmt = "logfmt",
        /// One JSON object per line.
        Json = "json",
    }

    /// `log-timestamp-format`: the timestamp of log lines.
    LogTimestamp {
        /// Day, month, year and time of day, as in Redis.
        Legacy = "legacy",
        /// ISO 8601 with the offset from UTC.
        Iso8601 = "iso8601",
        /// Milliseconds since the Unix epoch.
        Milliseconds = "milliseconds",
    }

    /// `loglevel`: the minimum severity of log lines.
    LogLevel {
        /// Log everything, for debugging.
        Debug = "debug",
        /// Also log details that are rarely useful.
        Verbose = "verbose",
        /// Log information for operators, and warnings.
        Notice = "notice",
        /// Log only problems that need attention.
        Warning = "warning",
        /// Log nothing.
        Nothing = "nothing",
    }

    /// `maxmemory-policy`: which keys are evicted when memory exceeds `maxmemory`.
    EvictionPolicy {
        /// Evict the least recently used keys among those with an expiry.
        VolatileLru = "volatile-lru",
        /// Evict the least frequently used keys among those with an expiry.
        VolatileLfu = "volatile-lfu",
        /// Evict random keys among those with an expiry.
        VolatileRandom = "volatile-random",
        /// Evict the keys that expire soonest.
        VolatileTtl = "volatile-ttl",
        /// Evict the least recently modified keys among those with an expiry.
        VolatileLrm = "volatile-lrm",
        /// Evict the least recently used keys.
        AllKeysLru = "allkeys-lru",
        /// Evict the least frequently used keys.
        AllKeysLfu = "allkeys-lfu",
        /// Evict random keys.
        AllKeysRandom = "allkeys-random",
        /// Evict the least recently modified keys.
        AllKeysLrm = "allkeys-lrm",
        /// Evict nothing, and refuse writes that need memory.
        NoEviction = "noeviction",
    }

    /// `oom-score-adj`: how `oom-score-adj-values` are applied to the process.
    OomScoreMode {
        /// Do not change the OOM score.
        No = "no",
        /// An older word for `Relative`.
        Yes = "yes",
        /// Add the values to the score that the process had at startup.
        Relative = "relative",
        /// Use the values as the score.
        Absolute = "absolute",
    }

    /// `repl-diskless-load`: how a replica loads the snapshot that its master sends.
    DisklessLoad {
        /// Store the snapshot in a file first, and load it from there.
        Disabled = "disabled",
        /// Load the snapshot from the socket, but only if the dataset is empty.
        OnEmptyDb = "on-empty-db",
        /// Load the snapshot from the socket while the old dataset is still served.
        Swapdb = "swapdb",
        /// Delete the dataset, then load the snapshot from the socket.
        FlushBeforeLoad = "flush-before-load",
    }

    /// `shutdown-on-sigterm` and `shutdown-on-sigint`: the SHUTDOWN options that the signal implies.
    ShutdownWord {
        /// Shut down without additional options: save if there are save points.
        Default = "default",
        /// Save the dataset even without save points.
        Save = "save",
        /// Do not save the dataset.
        NoSave = "nosave",
        /// Do not wait for replicas that lag behind.
        Now = "now",
        /// Exit even if saving fails.
        Force = "force",
        /// Exit only if the cluster can do without this node, unless `Force` is set as well.
        Safe = "safe",
        /// Hand the slots over to a replica before exiting.
        Failover = "failover",
    }

    /// `supervised`: which service supervisor the server notifies when it is ready.
    Supervised {
        /// Signal readiness to upstart.
        Upstart = "upstart",
        /// Notify systemd over its socket.
        Systemd = "systemd",
        /// Detect the supervisor from environment variables.
        Auto = "auto",
        /// Do not notify a supervisor.
        No = "no",
    }

    /// `syslog-facility`: the facility under which syslog files the messages.
    SyslogFacility {
        /// Facility `user`: messages of ordinary programs.
        User = "user",
        /// Facility `local0`, free for local use.
        Local0 = "local0",
        /// Facility `local1`, free for local use.
        Local1 = "local1",
        /// Facility `local2`, free for local use.
        Local2 = "local2",
        /// Facility `local3`, free for local use.
        Local3 = "local3",
        /// Facility `local4`, free for local use.
        Local4 = "local4",
        /// Facility `local5`, free for local use.
        Local5 = "local5",
        /// Facility `local6`, free for local use.
        Local6 = "local6",
        /// Facility `local7`, free for local use.
        Local7 = "local7",
    }

    /// `tls-auth-clients`: whether clients must present a certificate.
    TlsAuthClients {
        /// Do not ask clients for a certificate.
        No = "no",
        /// Refuse clients without a valid certificate.
        Yes = "yes",
        /// Accept clients without a certificate, but refuse those with an invalid one.
        Optional = "optional",
    }

    /// `tls-auth-clients-user`: the field of a client's certificate that names the ACL user.
    TlsUserField {
        /// Use the common name of the certificate's subject.
        CommonName = "CN",
        /// Use the first URI among the subject alternative names that is the name of a user.
        Uri = "URI",
        /// Do not authenticate clients by their certificates.
        Off = "off",
    }
}

impl EvictionPolicy {
    /// Whether the policy evicts by time since the last use (LRU) rather than by frequency.
    #[must_use]
    pub fn evicts_by_age(self) -> bool {
        matches!(self, Self::VolatileLru | Self::AllKeysLru)
    }
}

impl Choice for EndpointType {
    const WORDS: &'static [(&'static str, Self)] =
        &[("ip", Self::Ip), ("hostname", Self::Hostname), ("unknown-endpoint", Self::Unknown)];
}
