//! Whether the node may be sent clients, and whether the next one may be replaced: it has its data, the data is that of
//! its master, and the cluster serves.

use engine::Gate;

use crate::server::Server;

/// A reason not to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hindrance {
    /// Data is being loaded, from the disk or from a master.
    Loading,
    /// A replica whose link to its master is not up, or that is being given a snapshot.
    NotInSync,
    /// A master that came back without its data, and waits for a replica that has it.
    WithoutData,
    /// The cluster does not serve: slots are not covered, or this node is in the minority.
    ClusterDown,
    /// It is about to end.
    Stopping,
}

impl Hindrance {
    pub(super) const ALL: [Self; 5] =
        [Self::Loading, Self::NotInSync, Self::WithoutData, Self::ClusterDown, Self::Stopping];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::NotInSync => "not_in_sync",
            Self::WithoutData => "without_data",
            Self::ClusterDown => "cluster_down",
            Self::Stopping => "stopping",
        }
    }

    pub(super) fn holds(self, server: &Server) -> bool {
        let gate = server.engine.settings.gate();
        match self {
            Self::Loading => gate.contains(Gate::LOADING),
            Self::NotInSync => !server.replication.is_in_sync(),
            Self::WithoutData => gate.contains(Gate::EMPTY_MASTER),
            Self::ClusterDown => {
                server.engine.topology.as_ref().is_some_and(|topology| !topology.load().serving)
            }
            Self::Stopping => server.shutdown.waits_for().is_some(),
        }
    }
}

/// All that holds now.
pub(super) fn hindrances(server: &Server) -> impl Iterator<Item = Hindrance> {
    Hindrance::ALL.into_iter().filter(|hindrance| hindrance.holds(server))
}
