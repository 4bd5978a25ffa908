//! Decides whether this node serves a command or redirects the client.
//!
//! The rules are those of the Redis Cluster specification, "Redirection and resharding".

use std::fmt;

use crate::slot::Slot;

/// Who owns a slot, as seen by this node. The keyspace stores it in the slot so that commands read it while they lock
/// the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Ownership {
    /// The slot is owned by this node. Without cluster mode, this node owns every slot.
    #[default]
    Local,
    /// The slot is owned by this node and migrating to another node; keys that already moved are on the target.
    Migrating,
    /// The slot is owned by another node and being imported here; it is served only to clients that sent ASKING.
    Importing,
    /// The slot is owned by this replica's master.
    MasterOwned,
    /// The slot is owned by this replica's master and migrating to another node; keys that already moved are on the
    /// target.
    MasterMigrating,
    /// The slot is owned by another node and being imported by this replica's master.
    MasterImporting,
    /// The slot is owned by another node.
    Remote,
    /// The slot is not assigned to any node.
    Unassigned,
}

impl Ownership {
    /// Returns whether this replica's master owns or imports the slot.
    #[must_use]
    pub fn is_owned_by_my_master(self) -> bool {
        matches!(self, Self::MasterOwned | Self::MasterMigrating | Self::MasterImporting)
    }
}

/// The properties of a command and its client on which routing depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouteRequest {
    /// Whether the client sent ASKING before this command, or the command implies it.
    pub is_asking: bool,
    /// Whether a replica may serve the command: the client is in READONLY mode and the command does not write. A script
    /// without declared flags counts as writing.
    pub allows_replica_read: bool,
    /// Number of distinct keys in the command.
    pub key_count: usize,
    /// Number of the command's keys that do not exist on this node. It is only used while the slot is migrating or
    /// importing.
    pub missing_key_count: usize,
    /// Whether the command moves or copies a key to another database. Such a command gets TRYAGAIN while the slot is
    /// migrating or importing.
    pub crosses_databases: bool,
}

/// The routing decision for a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteDecision {
    /// This node executes the command.
    Serve,
    /// Redirect to the slot's owner with MOVED.
    Moved,
    /// Redirect to the migration target with ASK.
    Ask,
    /// Reply TRYAGAIN: some of the command's keys have moved to the target node and others have not.
    TryAgain,
    /// Reply CLUSTERDOWN: the slot has no owner.
    ClusterDown,
}

/// Routes a command whose keys all hash to one slot.
#[must_use]
pub fn route(ownership: Ownership, request: RouteRequest) -> RouteDecision {
    match ownership {
        Ownership::Local => RouteDecision::Serve,
        Ownership::Migrating | Ownership::Importing if request.crosses_databases => RouteDecision::TryAgain,
        Ownership::Migrating if request.missing_key_count == 0 => RouteDecision::Serve,
        Ownership::Migrating if request.missing_key_count < request.key_count => RouteDecision::TryAgain,
        Ownership::Migrating => RouteDecision::Ask,
        Ownership::Importing if request.is_asking => {
            if request.key_count > 1 && request.missing_key_count > 0 {
                RouteDecision::TryAgain
            } else {
                RouteDecision::Serve
            }
        }
        Ownership::MasterOwned if request.allows_replica_read => RouteDecision::Serve,
        Ownership::MasterMigrating if request.allows_replica_read => route(Ownership::Migrating, request),
        Ownership::MasterImporting if request.allows_replica_read => route(Ownership::Importing, request),
        Ownership::Importing
        | Ownership::MasterOwned
        | Ownership::MasterMigrating
        | Ownership::MasterImporting
        | Ownership::Remote => RouteDecision::Moved,
        Ownership::Unassigned => RouteDecision::ClusterDown,
    }
}

/// The text of a MOVED or ASK error, without the leading `-`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirect<'a> {
    /// Whether to send ASK, which redirects only the next command, instead of MOVED.
    pub is_ask: bool,
    /// The slot of the command's keys.
    pub slot: Slot,
    /// IP address or hostname of the other node. Empty means the host that the client is already connected to.
    pub host: &'a str,
    /// Client port of the other node.
    pub port: u16,
}

impl fmt::Display for Redirect<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.is_ask { "ASK" } else { "MOVED" };
        write!(f, "{word} {} {}:{}", self.slot, self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_decisions_match_the_specification() {
        use Ownership::{
            Importing, Local, MasterImporting, MasterMigrating, MasterOwned, Migrating, Remote, Unassigned,
        };
        use RouteDecision::{Ask, ClusterDown, Moved, Serve, TryAgain};
        // Columns: ownership, asking, replica_read, keys, missing_keys, expected decision
        let table = [
            (Local, false, false, 3, 3, Serve),
            (Local, true, true, 1, 1, Serve),
            (Migrating, false, false, 1, 0, Serve),
            (Migrating, false, false, 1, 1, Ask),
            (Migrating, false, false, 3, 3, Ask),
            (Migrating, false, false, 3, 1, TryAgain),
            (Importing, false, false, 1, 0, Moved),
            (Importing, true, false, 1, 1, Serve),
            (Importing, true, false, 2, 0, Serve),
            (Importing, true, false, 2, 1, TryAgain),
            (MasterOwned, false, false, 1, 0, Moved),
            (MasterOwned, false, true, 1, 1, Serve),
            (MasterMigrating, false, true, 1, 0, Serve),
            (MasterMigrating, false, true, 1, 1, Ask),
            (MasterMigrating, false, true, 2, 1, TryAgain),
            (MasterMigrating, true, false, 1, 0, Moved),
            (MasterImporting, false, true, 1, 0, Moved),
            (MasterImporting, true, true, 1, 0, Serve),
            (MasterImporting, true, false, 1, 0, Moved),
            (Remote, true, true, 1, 0, Moved),
            (Unassigned, true, true, 1, 0, ClusterDown),
        ];
        for (ownership, asking, replica_read, keys, missing_keys, verdict) in table {
            let access = RouteRequest {
                is_asking: asking,
                allows_replica_read: replica_read,
                key_count: keys,
                missing_key_count: missing_keys,
                crosses_databases: false,
            };
            assert_eq!(route(ownership, access), verdict, "{ownership:?} {access:?}");
        }
    }

    #[test]
    fn redirect_texts_match_the_specification() {
        let slot = Slot::new(3999).unwrap();
        let moved = Redirect { is_ask: false, slot, host: "127.0.0.1", port: 6381 };
        assert_eq!(moved.to_string(), "MOVED 3999 127.0.0.1:6381");
        assert_eq!(Redirect { is_ask: true, ..moved }.to_string(), "ASK 3999 127.0.0.1:6381");
    }
}
