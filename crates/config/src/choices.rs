//! Parameters whose value is one of a few words.

use std::fmt;

use slot_routing::EndpointType;

/// A value that users write as a word.
pub(crate) trait Choice: Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// All of them, in the order in which an error lists them.
    const WORDS: &'static [(&'static str, Self)];

    /// The value of a word, in whichever case.
    fn read(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(word)).map(|(_, value)| *value)
    }

    /// The word for this one.
    fn word(self) -> &'static str {
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
            /// The value of a word, in whichever case.
            #[must_use]
            pub fn of_word(word: &str) -> Option<Self> {
                Choice::read(word)
            }
        }

        impl Choice for $name {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),*];
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    )*};
}

choices! {
    /// `acl-pubsub-default`: the channels of a user without rules about channels.
    PubsubDefault {
        /// All.
        AllChannels = "allchannels",
        /// None.
        ResetChannels = "resetchannels",
    }

    /// `appendfsync`: when the append-only file is synced.
    AppendFsync {
        /// Once a second.
        EverySecond = "everysec",
        /// Before the reply.
        Always = "always",
        /// Whenever the system does.
        Never = "no",
    }

    /// `enable-debug-command` and its kin: the clients that may.
    Allowed {
        /// None.
        No = "no",
        /// All.
        Yes = "yes",
        /// Those on this machine.
        Local = "local",
    }

    /// `log-format`: the form of a line of the log.
    LogFormat {
        /// Redis's own.
        Legacy = "legacy",
        /// `name=value`, and a text in quotes.
        Logfmt = "logfmt",
        /// An object of JSON.
        Json = "json",
    }

    /// `log-timestamp-format`: how a line of the log says when.
    LogTimestamp {
        /// Day, month, year and the time of day.
        Legacy = "legacy",
        /// ISO 8601, with the offset from UTC.
        Iso8601 = "iso8601",
        /// Milliseconds since 1970.
        Milliseconds = "milliseconds",
    }

    /// `loglevel`: the least urgent lines that are written.
    LogLevel {
        /// All.
        Debug = "debug",
        /// Nearly all.
        Verbose = "verbose",
        /// All that an operator may want to know.
        Notice = "notice",
        /// Problems that an operator should look at.
        Warning = "warning",
        /// None.
        Nothing = "nothing",
    }

    /// `maxmemory-policy`: the keys that go first when memory runs out.
    EvictionPolicy {
        /// Of those that expire, the least recently used.
        VolatileLru = "volatile-lru",
        /// Of those that expire, the least frequently used.
        VolatileLfu = "volatile-lfu",
        /// Of those that expire, any.
        VolatileRandom = "volatile-random",
        /// Those that expire soonest.
        VolatileTtl = "volatile-ttl",
        /// Of those that expire, the least recently modified.
        VolatileLrm = "volatile-lrm",
        /// The least recently used.
        AllKeysLru = "allkeys-lru",
        /// The least frequently used.
        AllKeysLfu = "allkeys-lfu",
        /// Any.
        AllKeysRandom = "allkeys-random",
        /// The least recently modified.
        AllKeysLrm = "allkeys-lrm",
        /// None: writes are refused.
        NoEviction = "noeviction",
    }

    /// `oom-score-adj`: how the system's score of this process is set.
    OomScoreMode {
        /// It is not.
        No = "no",
        /// As `Relative`.
        Yes = "yes",
        /// The values are added to the score that the process began with.
        Relative = "relative",
        /// The values are the score.
        Absolute = "absolute",
    }

    /// `repl-diskless-load`: how a replica takes a snapshot.
    DisklessLoad {
        /// By way of a file.
        Disabled = "disabled",
        /// As it comes, where there is no data.
        OnEmptyDb = "on-empty-db",
        /// As it comes, beside the data, which is served meanwhile.
        Swapdb = "swapdb",
        /// As it comes, once the data is deleted.
        FlushBeforeLoad = "flush-before-load",
    }

    /// `shutdown-on-sigterm` and `shutdown-on-sigint`: the options of SHUTDOWN that a signal stands for.
    ShutdownWord {
        /// Nothing.
        Default = "default",
        /// Save, even without save points.
        Save = "save",
        /// Do not save.
        NoSave = "nosave",
        /// Do not wait for replicas.
        Now = "now",
        /// Stop even where saving fails.
        Force = "force",
        /// Stop only where the cluster does not need this node, unless forced.
        Safe = "safe",
        /// Hand the slots over to a replica first.
        Failover = "failover",
    }

    /// `supervised`: the supervisor that is told that the server is up.
    Supervised {
        /// upstart.
        Upstart = "upstart",
        /// systemd.
        Systemd = "systemd",
        /// The one that the environment names.
        Auto = "auto",
        /// None.
        No = "no",
    }

    /// `syslog-facility`.
    SyslogFacility {
        /// Programs of users.
        User = "user",
        /// For local use, as the seven that follow.
        Local0 = "local0",
        /// For local use.
        Local1 = "local1",
        /// For local use.
        Local2 = "local2",
        /// For local use.
        Local3 = "local3",
        /// For local use.
        Local4 = "local4",
        /// For local use.
        Local5 = "local5",
        /// For local use.
        Local6 = "local6",
        /// For local use.
        Local7 = "local7",
    }

    /// `tls-auth-clients`: whether clients show a certificate.
    TlsAuthClients {
        /// They are not asked for one.
        No = "no",
        /// They must.
        Yes = "yes",
        /// They may.
        Optional = "optional",
    }

    /// `tls-auth-clients-user`: the field of a client's certificate that names its user.
    TlsUserField {
        /// The common name.
        CommonName = "CN",
        /// The URIs among the alternative names: the first that is a user's.
        Uri = "URI",
        /// None.
        Off = "off",
    }
}

impl EvictionPolicy {
    /// Whether keys go by when they were last used.
    #[must_use]
    pub fn goes_by_age(self) -> bool {
        matches!(self, Self::VolatileLru | Self::AllKeysLru)
    }
}

impl Choice for EndpointType {
    const WORDS: &'static [(&'static str, Self)] =
        &[("ip", Self::Ip), ("hostname", Self::Hostname), ("unknown-endpoint", Self::Unknown)];
}
