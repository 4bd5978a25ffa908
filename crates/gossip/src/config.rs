//! Configuration of the cluster bus: timeouts, and the addresses that this node announces.

use std::net::IpAddr;
use std::time::Duration;

use slot_routing::ClientEndpoint;

/// Configuration options of the state machine. All can change at run time ([`ClusterInput::Configure`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// `cluster-node-timeout`: a node that is silent for this long is suspected (PFAIL).
    pub node_timeout: Duration,
    /// `cluster-connect-refused-timeout`: a node whose link broke is suspected after refusing connections for this
    /// long. Zero disables this rule.
    pub connect_refused_timeout: Duration,
    /// `cluster-replica-validity-factor`; 0 means that a replica may fail over regardless of the age of its data.
    pub replica_validity_factor: u32,
    /// `repl-ping-replica-period`: added to the maximum data age of a replica that may fail over.
    pub repl_ping_period: Duration,
    /// `cluster-replica-no-failover`: this replica never starts an election.
    pub replica_no_failover: bool,
    /// `cluster-require-full-coverage`: this node serves only while every slot is covered.
    pub require_full_coverage: bool,
    /// `cluster-allow-replica-migration`: a master that loses its last slot becomes a replica of the new owner, and
    /// replicas migrate to orphaned masters.
    pub allow_replica_migration: bool,
    /// `cluster-migration-barrier`: minimum number of working replicas that a master keeps when one of them migrates.
    pub migration_barrier: usize,
    /// `cluster-manual-failover-timeout`: maximum duration of a manual failover.
    pub manual_failover_timeout: Duration,
    /// `empty-master-timeout`: how long a master that restarts with less data than a replica waits for the replica to
    /// take over. Zero disables the wait.
    pub empty_master_timeout: Duration,
    /// `cluster-blacklist-ttl`: how long a forgotten node cannot rejoin through gossip.
    pub blacklist_ttl: Duration,
    /// The addresses that this node announces.
    pub announced_address: AnnouncedAddress,
}

/// The addresses and names that this node announces to other nodes and to clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnnouncedAddress {
    /// `cluster-announce-ip`; if unset, the node learns its address from the nodes that it meets.
    pub ip: Option<IpAddr>,
    /// The plaintext client port; 0 if there is none.
    pub port: u16,
    /// The TLS client port; 0 if TLS is disabled.
    pub tls_port: u16,
    /// `tls-cluster`: nodes use TLS among each other. In packets and in `nodes.conf`, the TLS port and the plaintext
    /// port then swap their fields.
    pub tls_cluster: bool,
    /// `tls-replication`: replicas connect to their masters with TLS.
    pub tls_replication: bool,
    /// The cluster bus port on which other nodes reach this node.
    pub bus_port: u16,
    /// `cluster-announce-hostname`; empty if there is none.
    pub hostname: String,
    /// `cluster-announce-human-nodename`; empty if there is none.
    pub human_name: String,
    /// `cluster-announce-client-*`: the addresses announced to clients, where they differ from those for other nodes.
    pub client_endpoint: ClientEndpoint,
    /// `availability-zone`; empty if there is none.
    pub zone: String,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            node_timeout: Duration::from_secs(15),
            connect_refused_timeout: Duration::from_millis(150),
            replica_validity_factor: 10,
            repl_ping_period: Duration::from_secs(10),
            replica_no_failover: false,
            require_full_coverage: true,
            allow_replica_migration: true,
            migration_barrier: 1,
            manual_failover_timeout: Duration::from_secs(5),
            empty_master_timeout: Duration::from_secs(60),
            blacklist_ttl: Duration::from_secs(60),
            announced_address: AnnouncedAddress::default(),
        }
    }
}

impl ClusterConfig {
    /// Time between a PONG and the next PING to the same node.
    ///
    /// The silence of a node is measured from its last message. In small clusters each node is pinged ten times per
    /// node timeout, so that message is at most a tenth of the timeout older than the node's death. Bus traffic grows
    /// with the square of the number of nodes, so larger clusters ping less often, down to twice per timeout as in
    /// Redis.
    #[must_use]
    pub(crate) fn ping_interval(&self, peer_count: usize) -> Duration {
        let peers = u32::try_from(peer_count).unwrap_or(u32::MAX).clamp(20, 100);
        self.node_timeout * peers / 200
    }

    /// How long a PING must be unanswered before the silence of a node counts: nine tenths of the node timeout, so that
    /// the node had time to answer.
    #[must_use]
    pub(crate) fn ping_answer_timeout(&self) -> Duration {
        self.node_timeout * 9 / 10
    }

    /// How long a failure report is valid (as in Redis, twice the node timeout).
    #[must_use]
    pub(crate) fn failure_report_validity(&self) -> Duration {
        self.node_timeout * 2
    }

    /// How long a failed master with slots must have no successor before its next PONG clears its FAIL flag (as in
    /// Redis, twice the node timeout).
    #[must_use]
    pub(crate) fn fail_clear_delay(&self) -> Duration {
        self.node_timeout * 2
    }

    /// Maximum duration of a handshake (as in Redis, the node timeout but at least one second).
    #[must_use]
    pub(crate) fn handshake_timeout(&self) -> Duration {
        self.node_timeout.max(Duration::from_secs(1))
    }

    /// How long an inbound link from an unknown peer may stay silent: twice the handshake timeout.
    #[must_use]
    pub(crate) fn unknown_peer_timeout(&self) -> Duration {
        self.handshake_timeout() * 2
    }

    /// How long a candidate waits for votes (as in Redis, twice the node timeout but at least two seconds).
    #[must_use]
    pub(crate) fn vote_timeout(&self) -> Duration {
        (self.node_timeout * 2).max(Duration::from_secs(2))
    }

    /// How long after a vote this node votes for no other replica of the same master (as in Redis, twice the node
    /// timeout).
    #[must_use]
    pub(crate) fn vote_pause(&self) -> Duration {
        self.node_timeout * 2
    }

    /// How long a master waits after being in a minority before it serves again (as in Redis, the node timeout clamped
    /// to 0.5 to 5 seconds).
    #[must_use]
    pub(crate) fn rejoin_delay(&self) -> Duration {
        self.node_timeout.clamp(Duration::from_millis(500), Duration::from_secs(5))
    }

    /// Fixed delay before an election, during which FAIL messages arrive everywhere and the replicas exchange offsets.
    /// A random delay of up to the same length is added. One fortieth of the node timeout, for example 50 ms for 2 s.
    /// (Redis: 500 ms plus up to 500 ms.)
    #[must_use]
    pub(crate) fn election_delay(&self) -> Duration {
        (self.node_timeout / 40).clamp(Duration::from_millis(20), Duration::from_millis(500))
    }

    /// Additional election delay per better-ranked replica. (Redis: one second.)
    #[must_use]
    pub(crate) fn rank_delay(&self) -> Duration {
        (self.node_timeout / 4).clamp(Duration::from_millis(100), Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_interval_grows_with_the_cluster() {
        let config = ClusterConfig { node_timeout: Duration::from_secs(2), ..ClusterConfig::default() };
        // Columns: number of peers, expected milliseconds between PINGs
        for (peers, millis) in [(1, 200), (5, 200), (20, 200), (50, 500), (100, 1000), (999, 1000)] {
            assert_eq!(config.ping_interval(peers), Duration::from_millis(millis), "{peers} peers");
        }
    }
}
