//! The operator's settings: timeouts, and the addresses that this node announces.

use std::net::IpAddr;
use std::time::Duration;

use slot_routing::ClientEndpoint;

/// The settings that the machine reads. They may change while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `cluster-node-timeout`: silence of this length makes a node suspect.
    pub node_timeout: Duration,
    /// `cluster-connect-refused-timeout`: how long reconnects must be refused before a node whose link broke
    /// is suspect; zero switches the rule off.
    pub connect_refused_timeout: Duration,
    /// `cluster-replica-validity-factor`; 0 means that no replica is too old to stand.
    pub replica_validity_factor: u32,
    /// `repl-ping-replica-period`: a part of the age that is allowed to a replica's data.
    pub repl_ping_period: Duration,
    /// `cluster-replica-no-failover`.
    pub replica_no_failover: bool,
    /// `cluster-require-full-coverage`: serve only while every slot is served by somebody.
    pub require_full_coverage: bool,
    /// `cluster-allow-replica-migration`: a master that loses its last slot follows the new owner, and
    /// replicas go to masters that have none left.
    pub allow_replica_migration: bool,
    /// `cluster-migration-barrier`: how many working replicas a master keeps when one of its own goes
    /// to another.
    pub migration_barrier: usize,
    /// `cluster-manual-failover-timeout`: how long a manual failover may take.
    pub manual_failover_timeout: Duration,
    /// `empty-master-timeout`: how long a master that starts with less data than a replica has waits until one took its
    /// place; zero switches the rule off.
    pub empty_master_timeout: Duration,
    /// `cluster-blacklist-ttl`: how long a forgotten node stays forgotten.
    pub blacklist_ttl: Duration,
    /// The address that this node announces to others.
    pub announce: Announce,
}

/// The address that this node announces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Announce {
    /// `cluster-announce-ip`; without it, the nodes that it meets say it.
    pub ip: Option<IpAddr>,
    /// The port for clients.
    pub port: u16,
    /// The TLS port, or 0.
    pub tls_port: u16,
    /// Nodes speak TLS with each other (`tls-cluster`): the TLS port stands where else the other one stands, on the
    /// wire and in `nodes.conf`.
    pub tls_cluster: bool,
    /// Replicas speak TLS with their masters (`tls-replication`).
    pub tls_replication: bool,
    /// The port of the bus.
    pub bus_port: u16,
    /// `cluster-announce-hostname`, or empty.
    pub hostname: String,
    /// `cluster-announce-human-nodename`, or empty.
    pub human_name: String,
    /// `cluster-announce-client-*`: the address for clients, where it is another.
    pub client_endpoint: ClientEndpoint,
    /// `availability-zone`, or empty.
    pub zone: String,
}

impl Default for Config {
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
            announce: Announce::default(),
        }
    }
}

impl Config {
    /// How long after a PONG the next PING goes out.
    ///
    /// Silence counts from the last word of a node, so in small clusters each node is asked ten times
    /// per timeout: the count then starts within a tenth of the moment the node fell silent. The bus
    /// traffic grows with the square of the nodes, so larger clusters ask less often, down to twice
    /// per timeout, which is Redis's habit.
    #[must_use]
    pub(crate) fn ping_interval(&self, peers: usize) -> Duration {
        let peers = u32::try_from(peers).unwrap_or(u32::MAX).clamp(20, 100);
        self.node_timeout * peers / 200
    }

    /// How long an unanswered PING must be under way before silence counts against a node: it had
    /// its chance to answer.
    #[must_use]
    pub(crate) fn answer_time(&self) -> Duration {
        self.node_timeout * 9 / 10
    }

    /// How long a report of a suspicion counts (Redis: twice the node timeout).
    #[must_use]
    pub(crate) fn report_validity(&self) -> Duration {
        self.node_timeout * 2
    }

    /// How long a node that was FAIL and serves slots must wait before it counts as back without
    /// having been replaced (Redis: twice the node timeout).
    #[must_use]
    pub(crate) fn fail_undo_time(&self) -> Duration {
        self.node_timeout * 2
    }

    /// How long a handshake may take (Redis: the node timeout, at least a second).
    #[must_use]
    pub(crate) fn handshake_timeout(&self) -> Duration {
        self.node_timeout.max(Duration::from_secs(1))
    }

    /// How long a link that a peer made may stay silent while nobody that we know has spoken on it: twice what a
    /// handshake may take.
    #[must_use]
    pub(crate) fn stranger_timeout(&self) -> Duration {
        self.handshake_timeout() * 2
    }

    /// How long a candidate waits for votes (Redis: twice the node timeout, at least two seconds).
    #[must_use]
    pub(crate) fn auth_timeout(&self) -> Duration {
        (self.node_timeout * 2).max(Duration::from_secs(2))
    }

    /// How long after a vote no other replica of the same master gets one (Redis: twice the node timeout).
    #[must_use]
    pub(crate) fn vote_pause(&self) -> Duration {
        self.node_timeout * 2
    }

    /// How long a master that was in a minority waits before it serves again (Redis: the node timeout
    /// between half a second and five).
    #[must_use]
    pub(crate) fn rejoin_delay(&self) -> Duration {
        self.node_timeout.clamp(Duration::from_millis(500), Duration::from_secs(5))
    }

    /// The fixed delay before a replica stands, in which the FAIL spreads and the replicas learn each
    /// other's offsets; a random part of the same length follows. A fortieth of the node timeout
    /// stands for the size of the network: 50 ms for 2 s. (Redis: 500 ms and up to 500 more.)
    #[must_use]
    pub(crate) fn election_delay(&self) -> Duration {
        (self.node_timeout / 40).clamp(Duration::from_millis(20), Duration::from_millis(500))
    }

    /// By how much each better replica delays a worse one. (Redis: a second.)
    #[must_use]
    pub(crate) fn rank_delay(&self) -> Duration {
        (self.node_timeout / 4).clamp(Duration::from_millis(100), Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_thin_out_as_the_cluster_grows() {
        let config = Config { node_timeout: Duration::from_secs(2), ..Config::default() };
        // peers, milliseconds between pings
        for (peers, millis) in [(1, 200), (5, 200), (20, 200), (50, 500), (100, 1000), (999, 1000)] {
            assert_eq!(config.ping_interval(peers), Duration::from_millis(millis), "{peers} peers");
        }
    }
}
