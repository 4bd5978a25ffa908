//! Converts the `cluster-*` parameters to the configuration of the state machine.

use std::time::Duration;

use anyhow::{Context as _, Result};
use gossip::AnnouncedAddress;
use slot_routing::ClientEndpoint;

use config::{Values, keys};

/// Difference between the bus port and the client port, unless `cluster-port` is set.
const BUS_PORT_OFFSET: u16 = 10_000;
/// Lower bound for `cluster-node-timeout`: with a shorter timeout, timers would fire continuously.
const MIN_NODE_TIMEOUT: Duration = Duration::from_millis(10);
const MAX_NODE_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Returns `cluster-port`, or else the client port plus [`BUS_PORT_OFFSET`].
pub(crate) fn bus_port(values: &Values) -> Result<u16> {
    let counted = || bus_base_port(values).checked_add(BUS_PORT_OFFSET);
    values[keys::CLUSTER_PORT].or_else(counted).context(
        "Redis port number too high for cluster mode. The cluster communication port, which is \
         calculated by adding 10,000 to the data port, is greater than 65535. Setting the port number to \
         a lower value, or explicitly setting the 'cluster-port' value is required.",
    )
}

/// Returns the client port from which the bus port is derived: the TLS port if the bus uses TLS.
fn bus_base_port(values: &Values) -> u16 {
    values[if values[keys::TLS_CLUSTER] { keys::TLS_PORT } else { keys::PORT }]
}

pub(super) fn read_cluster_config(values: &Values) -> Result<gossip::ClusterConfig> {
    let factor = values[keys::CLUSTER_REPLICA_VALIDITY_FACTOR];
    Ok(gossip::ClusterConfig {
        node_timeout: values[keys::CLUSTER_NODE_TIMEOUT].clamp(MIN_NODE_TIMEOUT, MAX_NODE_TIMEOUT),
        connect_refused_timeout: values[keys::CLUSTER_CONNECT_REFUSED_TIMEOUT],
        replica_validity_factor: u32::try_from(factor).unwrap_or(u32::MAX).min(1_000_000),
        repl_ping_period: values[keys::REPL_PING_REPLICA_PERIOD],
        replica_no_failover: values[keys::CLUSTER_REPLICA_NO_FAILOVER],
        require_full_coverage: values[keys::CLUSTER_REQUIRE_FULL_COVERAGE],
        allow_replica_migration: values[keys::CLUSTER_ALLOW_REPLICA_MIGRATION],
        migration_barrier: values[keys::CLUSTER_MIGRATION_BARRIER],
        manual_failover_timeout: values[keys::CLUSTER_MANUAL_FAILOVER_TIMEOUT],
        empty_master_timeout: values[keys::EMPTY_MASTER_TIMEOUT],
        blacklist_ttl: Duration::from_secs(values[keys::CLUSTER_BLACKLIST_TTL].max(0).unsigned_abs()),
        announced_address: announced_address(values)?,
    })
}

fn announced_address(values: &Values) -> Result<AnnouncedAddress> {
    Ok(AnnouncedAddress {
        ip: values[keys::CLUSTER_ANNOUNCE_IP],
        port: values[keys::CLUSTER_ANNOUNCE_PORT].unwrap_or(values[keys::PORT]),
        tls_port: values[keys::CLUSTER_ANNOUNCE_TLS_PORT].unwrap_or(values[keys::TLS_PORT]),
        tls_cluster: values[keys::TLS_CLUSTER],
        tls_replication: values[keys::TLS_REPLICATION],
        bus_port: values[keys::CLUSTER_ANNOUNCE_BUS_PORT].map_or_else(|| bus_port(values), Ok)?,
        hostname: values[keys::CLUSTER_ANNOUNCE_HOSTNAME].to_string(),
        human_name: values[keys::CLUSTER_ANNOUNCE_HUMAN_NODENAME].to_string(),
        client_endpoint: ClientEndpoint {
            ipv4: values[keys::CLUSTER_ANNOUNCE_CLIENT_IPV4],
            ipv6: values[keys::CLUSTER_ANNOUNCE_CLIENT_IPV6],
            port: values[keys::CLUSTER_ANNOUNCE_CLIENT_PORT].unwrap_or(0),
            tls_port: values[keys::CLUSTER_ANNOUNCE_CLIENT_TLS_PORT].unwrap_or(0),
        },
        zone: values[keys::AVAILABILITY_ZONE].to_string(),
    })
}
