//! May this command run here? A decision without side effects.
//!
//! The rules are those of the Redis Cluster specification, "Redirection and resharding".

use std::fmt;

use crate::slot::Slot;

/// The relation of this node to a slot. The keyspace keeps it in the slot, so that it is read under the
/// slot's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Ownership {
    /// Served here, as is every slot of a node without cluster mode.
    #[default]
    Mine,
    /// Served here, on its way to another node: keys that have left are there.
    Migrating,
    /// Served by another node, on its way here: only for clients that say ASKING.
    Importing,
    /// Served by the master whose replica this node is.
    MyMasters,
    /// Served by the master whose replica this node is, on its way to another node: keys that have left are there.
    MyMastersMigrating,
    /// Served by another node, on its way to the master whose replica this node is.
    MyMastersImporting,
    /// Served by another node.
    Elsewhere,
    /// Served by nobody.
    Unassigned,
}

/// The client's and the command's part of the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// The client said ASKING just before, or the command implies it.
    pub asking: bool,
    /// The client said READONLY and the command only reads.
    pub replica_read: bool,
    /// How many different keys the command names.
    pub keys: usize,
    /// How many of them are not here. Only looked at for a slot that is on the move.
    pub missing: usize,
    /// The command puts a key into another database: which node has the key there is not asked.
    pub crosses_databases: bool,
}

/// The decision about a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Run it here.
    Serve,
    /// The slot's owner serves it: MOVED.
    Moved,
    /// The node that the slot moves to has the key: ASK.
    Ask,
    /// Some of the keys have moved and others have not: TRYAGAIN.
    TryAgain,
    /// Nobody serves the slot: CLUSTERDOWN.
    Unserved,
}

/// Decides over a command whose keys all lie in one slot.
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

/// The text of a redirection, without the leading `-`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirect<'a> {
    /// ASK, for the next command alone; otherwise MOVED.
    pub ask: bool,
    /// The slot of the command's keys.
    pub slot: Slot,
    /// Address or name of the other node; empty for "the one you are talking to".
    pub host: &'a str,
    /// The other node's port for clients.
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
