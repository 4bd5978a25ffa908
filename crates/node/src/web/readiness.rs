//! Readiness: whether clients may be routed to this node, and whether a rolling update may continue with the next node.
//! A ready node has its data and is in sync with its master, and its cluster is up.

use engine::NodeFlags;

use crate::server::Server;

/// A reason for not being ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadinessBlocker {
    /// Data is being loaded from disk or from a master.
    Loading,
    /// The node is a replica without an established link to its master, or is receiving a snapshot.
    NotInSync,
    /// The node is a master that restarted without its data and waits for a replica to be promoted.
    EmptyMaster,
    /// The cluster is down, because slots are not covered or this node is in a minority.
    ClusterDown,
    Stopping,
}

impl ReadinessBlocker {
    pub(super) const ALL: [Self; 5] =
        [Self::Loading, Self::NotInSync, Self::EmptyMaster, Self::ClusterDown, Self::Stopping];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::NotInSync => "not_in_sync",
            Self::EmptyMaster => "without_data",
            Self::ClusterDown => "cluster_down",
            Self::Stopping => "stopping",
        }
    }

    pub(super) fn is_active(self, server: &Server) -> bool {
        let gate = server.engine.settings.node_flags();
        match self {
            Self::Loading => gate.contains(NodeFlags::LOADING),
            Self::NotInSync => !server.replication.is_in_sync(),
            Self::EmptyMaster => gate.contains(NodeFlags::EMPTY_MASTER),
            Self::ClusterDown => {
                server.engine.topology.as_ref().is_some_and(|topology| !topology.load().is_serving)
            }
            Self::Stopping => server.shutdown.remaining_wait_millis().is_some(),
        }
    }
}

pub(super) fn readiness_blockers(server: &Server) -> impl Iterator<Item = ReadinessBlocker> {
    ReadinessBlocker::ALL.into_iter().filter(|hindrance| hindrance.is_active(server))
}
