//! Messages between nodes, and requests to the group. The group replies with its states.

use crate::group::{Incarnation, Incarnations};
use crate::log::Log;

/// A message from a master to all replicas, with the master's whole log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AppendMessage {
    /// The epoch of the sending master.
    pub(crate) epoch: u8,
    /// The lease round in which an acknowledgement of this message counts.
    pub(crate) lease_round: u8,
    /// The master's log. A real master would send an offset and a history instead.
    pub(crate) log: Log,
}

/// A message from a replica to the master of `epoch`: it acknowledges `acknowledged_length` entries, and promises not to request
/// promotion for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Acknowledgement {
    /// The incarnation that holds the entries.
    pub(crate) sender: Incarnation,
    /// The epoch of the entries, which identifies their history.
    pub(crate) epoch: u8,
    /// The lease round of the master's message that this message acknowledges.
    pub(crate) lease_round: u8,
    /// The number of entries that the replica has.
    pub(crate) acknowledged_length: u8,
}

/// A request to the configuration group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum GroupRequest {
    /// The master proposes another in-sync set.
    Change {
        epoch: u8,
        /// The version that the new set would get.
        version: u8,
        /// The members of the new set, without the master.
        members: Incarnations,
    },
    /// A member of the in-sync set requests to become the master.
    Promote {
        /// The newest epoch that the member knows.
        epoch: u8,
        candidate: Incarnation,
    },
}
