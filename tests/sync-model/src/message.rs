//! Messages between copies and to the group. The group's replies are its states.

use crate::group::{Incarnation, Incarnations};
use crate::log::Log;

/// From a master to all replicas: its whole log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Append {
    /// The epoch of the master.
    pub(crate) epoch: u8,
    /// The lease round that an acknowledgement renews.
    pub(crate) round: u8,
    /// The log, whose offset and history a real master would name instead.
    pub(crate) log: Log,
}

/// From a replica to the master of `epoch`: it has `len` entries, and promises not to stand for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Acknowledgement {
    /// The incarnation that holds the entries.
    pub(crate) from: Incarnation,
    /// The epoch, which stands for the history.
    pub(crate) epoch: u8,
    /// The lease round of the message that it answers.
    pub(crate) round: u8,
    /// The number of entries.
    pub(crate) len: u8,
}

/// A request to the configuration group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum GroupRequest {
    /// The master asks for other members.
    Change {
        /// The master's epoch.
        epoch: u8,
        /// The version that the new set would have.
        version: u8,
        /// The new members.
        members: Incarnations,
    },
    /// A member asks to become the master.
    Promote {
        /// The epoch that the member knows.
        epoch: u8,
        /// Its incarnation.
        candidate: Incarnation,
    },
}
