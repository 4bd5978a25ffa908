//! The tested features of client libraries.

/// A tested feature, which is a row of the table in docs/clients.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// A pipeline of a hundred writes to one slot.
    Pipelines,
    /// A pipeline of two hundred writes across all slots.
    ClusterPipelines,
    /// Transactions with MULTI, EXEC and WATCH.
    Transactions,
    /// Scripts that are called by EVALSHA, with a fallback to EVAL.
    Scripts,
    /// Messages published to subscribers with SUBSCRIBE.
    Messages,
    /// Messages published to subscribers with SSUBSCRIBE.
    ShardedMessages,
    /// Client-side caching with invalidation by the server.
    Caching,
    /// Blocking pops, which a client must not time out on its own.
    Blocking,
    /// Iterators over SCAN.
    ScanIterators,
    /// Reads that the library sends to replicas.
    Replicas,
    /// Reconnection after the server has closed all connections.
    Reconnection,
    /// Authentication as a user with few permissions.
    Acl,
    /// Connections that are encrypted with TLS.
    Tls,
}

impl Feature {
    /// All features, in the order of the table's rows.
    pub const ALL: [Self; 13] = [
        Self::Pipelines,
        Self::ClusterPipelines,
        Self::Transactions,
        Self::Scripts,
        Self::Messages,
        Self::ShardedMessages,
        Self::Caching,
        Self::Blocking,
        Self::ScanIterators,
        Self::Replicas,
        Self::Reconnection,
        Self::Acl,
        Self::Tls,
    ];

    /// Whether the test is repeated with a killed master. This is only done for features without a scenario in the
    /// client conformance tests (docs/judge.md).
    #[must_use]
    pub fn runs_with_killed_master(self) -> bool {
        match self {
            Self::Pipelines
            | Self::ClusterPipelines
            | Self::Transactions
            | Self::ScanIterators
            | Self::Acl
            | Self::Tls => true,
            Self::Scripts
            | Self::Messages
            | Self::ShardedMessages
            | Self::Caching
            | Self::Blocking
            | Self::Replicas
            | Self::Reconnection => false,
        }
    }

    /// The feature's name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pipelines => "pipelines",
            Self::ClusterPipelines => "cluster pipelines",
            Self::Transactions => "transactions",
            Self::Scripts => "scripts",
            Self::Messages => "pub/sub",
            Self::ShardedMessages => "sharded pub/sub",
            Self::Caching => "client-side caching",
            Self::Blocking => "blocking",
            Self::ScanIterators => "scan iterators",
            Self::Replicas => "reading from replicas",
            Self::Reconnection => "reconnection",
            Self::Acl => "ACL",
            Self::Tls => "TLS",
        }
    }
}
