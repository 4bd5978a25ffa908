//! The configuration group's replicated state, modelled as one register.

use crate::message::GroupRequest;
use crate::omission::Omission;

/// The identity of a node's data: the node's index, and how often the node has dropped its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Incarnation {
    /// The index of the node.
    pub(crate) node: u8,
    /// How often the node has lost or dropped its data.
    pub(crate) generation: u8,
}

/// A set of incarnations with at most four generations of each node, stored as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Incarnations(u16);

impl Incarnations {
    fn bit_of(incarnation: Incarnation) -> u16 {
        assert!(incarnation.generation < 4, "the bounds allow four generations");
        1 << (incarnation.node * 4 + incarnation.generation)
    }

    pub(crate) fn contains(self, incarnation: Incarnation) -> bool {
        self.0 & Self::bit_of(incarnation) != 0
    }

    /// Whether the set contains any generation of the node.
    pub(crate) fn contains_node(self, node: u8) -> bool {
        self.0 & 0b1111 << (node * 4) != 0
    }

    /// Returns the set with `incarnation` added.
    pub(crate) fn with_member(self, incarnation: Incarnation) -> Self {
        Self(self.0 | Self::bit_of(incarnation))
    }

    /// Returns the set with `incarnation` removed.
    pub(crate) fn without_member(self, incarnation: Incarnation) -> Self {
        Self(self.0 & !Self::bit_of(incarnation))
    }

    /// Returns the members of both sets.
    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Incarnation> {
        (0..12)
            .filter(move |bit| self.0 & 1 << bit != 0)
            .map(|bit| Incarnation { node: bit / 4, generation: bit % 4 })
    }
}

/// The group's state for the shard: which node is the master, and which replicas are in sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReplicaSetState {
    /// The current epoch, increased by each promotion.
    pub(crate) epoch: u8,
    /// The version of the member set, incremented by each change of the members and reset in a new epoch.
    pub(crate) version: u8,
    /// The incarnation that was promoted in this epoch.
    pub(crate) master: Incarnation,
    /// The incarnations in the in-sync set, without the master.
    pub(crate) members: Incarnations,
}

impl ReplicaSetState {
    /// Decides a request. Returns the new state, or `None` if the request is refused.
    pub(crate) fn decide(&self, request: &GroupRequest, omitted_rule: Option<Omission>) -> Option<Self> {
        match *request {
            GroupRequest::Change { epoch, version, members } => {
                let is_next = version == self.version + 1 || omitted_rule == Some(Omission::AcceptAnyVersion);
                (epoch == self.epoch && is_next).then_some(Self { version, members, ..*self })
            }
            GroupRequest::Promote { epoch, candidate } => {
                let is_member = match omitted_rule {
                    Some(Omission::PromoteNonMember) => true,
                    Some(Omission::IgnoreIncarnations) => {
                        self.members.contains_node(candidate.node) || self.master.node == candidate.node
                    }
                    // The restarted master's own data also has every acknowledged write.
                    _ => self.members.contains(candidate) || self.master == candidate,
                };
                let members = self.members.without_member(candidate);
                (epoch == self.epoch && is_member).then_some(Self {
                    epoch: epoch + 1,
                    version: 0,
                    master: candidate,
                    members,
                })
            }
        }
    }
}
