//! The features of client libraries.

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// A hundred writes at once, to one slot.
    Pipelines,
    /// Two hundred writes at once, to all slots.
    ClusterPipelines,
    /// MULTI and EXEC, and WATCH.
    Transactions,
    /// A script that is called by its digest.
    Scripts,
    /// SUBSCRIBE.
    Messages,
    /// SSUBSCRIBE.
    MessagesOfAShard,
    /// A value that the library keeps until the server says that it changed.
    Caching,
    /// A pop that waits.
    Blocking,
    /// SCAN, wrapped.
    ScanIterators,
    /// Commands that the library sends to replicas.
    Replicas,
    /// All connections are ended by the server.
    Reconnection,
    /// A user with few rights.
    Acl,
    /// Ports for TLS.
    Tls,
}

impl Feature {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Pipelines,
        Self::ClusterPipelines,
        Self::Transactions,
        Self::Scripts,
        Self::Messages,
        Self::MessagesOfAShard,
        Self::Caching,
        Self::Blocking,
        Self::ScanIterators,
        Self::Replicas,
        Self::Reconnection,
        Self::Acl,
        Self::Tls,
    ];

    /// Whether it runs once more while a master dies: the judge (docs/judge.md) has no scenario for that.
    #[must_use]
    pub fn meets_death(self) -> bool {
        match self {
            Self::Pipelines
            | Self::ClusterPipelines
            | Self::Transactions
            | Self::ScanIterators
            | Self::Acl
            | Self::Tls => true,
            Self::Scripts
            | Self::Messages
            | Self::MessagesOfAShard
            | Self::Caching
            | Self::Blocking
            | Self::Replicas
            | Self::Reconnection => false,
        }
    }

    /// As the table calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pipelines => "pipelines",
            Self::ClusterPipelines => "cluster pipelines",
            Self::Transactions => "transactions",
            Self::Scripts => "scripts",
            Self::Messages => "pub/sub",
            Self::MessagesOfAShard => "sharded pub/sub",
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
