//! What the indexes of [`Nodes`](crate::nodes::Nodes) hold for one node.

use clock::Instant;
use slot_routing::NodeId;

/// The values of a node that the indexes depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct IndexedState {
    pub(crate) due: Option<Instant>,
    pub(crate) is_gossip_candidate: bool,
    pub(crate) is_suspected: bool,
    /// When the node became FAIL, if it is a master with slots.
    pub(crate) failed_voter: Option<Instant>,
    pub(crate) eligible_replica_of: Option<NodeId>,
    pub(crate) is_reachable: bool,
    pub(crate) confirms_serving: bool,
}

/// The indexed values of a node, and its position in the list of gossip candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct IndexEntry {
    pub(crate) state: IndexedState,
    pub(crate) gossip_index: usize,
}
