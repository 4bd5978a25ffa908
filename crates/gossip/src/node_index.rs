//! The values of one node in the indexes of [`Nodes`](crate::nodes::Nodes).

use clock::Instant;
use slot_routing::NodeId;

/// The attributes of a node on which the indexes depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct IndexedState {
    pub(crate) next_deadline: Option<Instant>,
    pub(crate) is_gossip_candidate: bool,
    pub(crate) is_suspected: bool,
    /// When the node became FAIL; `None` unless it is a FAIL master with slots.
    pub(crate) failed_voter_since: Option<Instant>,
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
