//! Decides whether this node serves a command or redirects the client.
//!
//! The rules are those of the Redis Cluster specification, "Redirection and resharding".

use std::fmt;

use crate::slot::Slot;

/// This node's relation to a slot. The keyspace stores it in the slot so that commands read it under the slot lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Ownership {
    /// Owned by this node. Without cluster mode, this node owns every slot.
    #[default]
    Mine,
    /// Owned by this node and migrating to another; keys that already moved are on the target.
    Migrating,
    /// Owned by another node and being imported here; served only to clients that sent ASKING.
    Importing,
    /// Owned by this replica's master.
    MyMasters,
    /// Owned by this replica's master and migrating to another node; keys that already moved are on the target.
    MyMastersMigrating,
    /// Owned by another node and being imported by this replica's master.
    MyMastersImporting,
    /// Owned by another node.
    Elsewhere,
    /// Not assigned to any node.
    Unassigned,
}

/// The state of the client and the command that routing depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// The client sent ASKING before this command, or the command implies it.
    pub asking: bool,
    /// The client is in READONLY mode and the command only reads.
    pub replica_read: bool,
    /// Number of distinct keys in the command.
    pub keys: usize,
    /// Number of those keys that do not exist on this node. Only used while the slot is migrating or importing.
    pub missing: usize,
    /// The command moves or copies a key to another database. Such commands are not redirected to the node that holds
    /// the key there.
    pub crosses_databases: bool,
}

/// The routing decision for a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Execute the command on this node.
    Serve,
    /// Redirect to the slot's owner with MOVED.
    Moved,
    /// Redirect to the migration target with ASK.
    Ask,
    /// Reply TRYAGAIN: some of the keys have moved and others have not.
    TryAgain,
    /// Reply CLUSTERDOWN: the slot has no owner.
    Unserved,
}

/// Routes a command whose keys all hash to one slot.
#[must_use]
pub fn route(ownership: Ownership, access: Access) -> Verdict {
    match ownership {
        Ownership::Mine => Verdict::Serve,
        Ownership::Migrating | Ownership::Importing if access.crosses_databases => Verdict::TryAgain,
        Ownership::Migrating if access.missing == 0 => Verdict::Serve,
        Ownership::Migrating if access.missing < access.keys => Verdict::TryAgain,
        Ownership::Migrating => Verdict::Ask,
        Ownership::Importing if access.asking => {
            if access.keys > 1 && access.missing > 0 {
                Verdict::TryAgain
            } else {
                Verdict::Serve
            }
        }
        Ownership::MyMasters if access.replica_read => Verdict::Serve,
        Ownership::MyMastersMigrating if access.replica_read => route(Ownership::Migrating, access),
        Ownership::MyMastersImporting if access.replica_read => route(Ownership::Importing, access),
        Ownership::Importing
        | Ownership::MyMasters
        | Ownership::MyMastersMigrating
        | Ownership::MyMastersImporting
        | Ownership::Elsewhere => Verdict::Moved,
        Ownership::Unassigned => Verdict::Unserved,
    }
}

/// The text of a MOVED or ASK error, without the leading `-`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirect<'a> {
    /// Whether to send ASK, which redirects only the next command, instead of MOVED.
    pub ask: bool,
    /// The slot of the command's keys.
    pub slot: Slot,
    /// IP address or hostname of the other node. Empty means the host that the client is already connected to.
    pub host: &'a str,
    /// Client port of the other node.
    pub port: u16,
}

impl fmt::Display for Redirect<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.ask { "ASK" } else { "MOVED" };
        write!(f, "{word} {} {}:{}", self.slot, self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        use Ownership::{
            Elsewhere, Importing, Migrating, Mine, MyMasters, MyMastersImporting, MyMastersMigrating,
            Unassigned,
        };
        use Verdict::{Ask, Moved, Serve, TryAgain, Unserved};
        // ownership, asking, replica read, keys, missing, verdict
        let table = [
            (Mine, false, false, 3, 3, Serve),
            (Mine, true, true, 1, 1, Serve),
            (Migrating, false, false, 1, 0, Serve),
            (Migrating, false, false, 1, 1, Ask),
            (Migrating, false, false, 3, 3, Ask),
            (Migrating, false, false, 3, 1, TryAgain),
            (Importing, false, false, 1, 0, Moved),
            (Importing, true, false, 1, 1, Serve),
            (Importing, true, false, 2, 0, Serve),
            (Importing, true, false, 2, 1, TryAgain),
            (MyMasters, false, false, 1, 0, Moved),
            (MyMasters, false, true, 1, 1, Serve),
            (MyMastersMigrating, false, true, 1, 0, Serve),
            (MyMastersMigrating, false, true, 1, 1, Ask),
            (MyMastersMigrating, false, true, 2, 1, TryAgain),
            (MyMastersMigrating, true, false, 1, 0, Moved),
            (MyMastersImporting, false, true, 1, 0, Moved),
            (MyMastersImporting, true, true, 1, 0, Serve),
            (MyMastersImporting, true, false, 1, 0, Moved),
            (Elsewhere, true, true, 1, 0, Moved),
            (Unassigned, true, true, 1, 0, Unserved),
        ];
        for (ownership, asking, replica_read, keys, missing, verdict) in table {
            let access = Access { asking, replica_read, keys, missing, crosses_databases: false };
            assert_eq!(route(ownership, access), verdict, "{ownership:?} {access:?}");
        }
    }

    #[test]
    fn redirections_read_as_the_specification_says() {
        let slot = Slot::new(3999).unwrap();
        let moved = Redirect { ask: false, slot, host: "127.0.0.1", port: 6381 };
        assert_eq!(moved.to_string(), "MOVED 3999 127.0.0.1:6381");
        assert_eq!(Redirect { ask: true, ..moved }.to_string(), "ASK 3999 127.0.0.1:6381");
    }
}
