//! The `cluster-*` parameters as the machine takes them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use gossip::Announce;

use config::Config;

/// The bus is this far above the client port unless `cluster-port` says otherwise.
const BUS_OFFSET: u16 = 10_000;
/// Below this the timers would do nothing but fire.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(10);

/// The port that the bus listens on.
pub(crate) fn bus_port(config: &Config) -> Result<u16> {
    match config.port("cluster-port") {
        0 => base_port(config).checked_add(BUS_OFFSET).context(
            "Redis port number too high for cluster mode. The cluster communication port, which is \
             calculated by adding 10,000 to the data port, is greater than 65535. Setting the port number to \
             a lower value, or explicitly setting the 'cluster-port' value is required.",
        ),
        port => Ok(port),
    }
}

/// The port of those that the bus's port is counted from.
fn base_port(config: &Config) -> u16 {
    config.port(if config.switch("tls-cluster") { "tls-port" } else { "port" })
}

pub(super) fn read(config: &Config) -> Result<gossip::Config> {
    let millis = |name: &str| Duration::from_millis(config.integer(name).unsigned_abs());
    let seconds = |name: &str| Duration::from_secs(config.integer(name).unsigned_abs());
    let factor = config.integer("cluster-replica-validity-factor");
    Ok(gossip::Config {
        node_timeout: millis("cluster-node-timeout").clamp(SHORTEST_TIMEOUT, Duration::from_secs(86_400)),
        refused_timeout: millis("cluster-refused-timeout"),
        replica_validity_factor: u32::try_from(factor).unwrap_or(u32::MAX).min(1_000_000),
        repl_ping_period: seconds("repl-ping-replica-period"),
        replica_no_failover: config.switch("cluster-replica-no-failover"),
        require_full_coverage: config.switch("cluster-require-full-coverage"),
        allow_replica_migration: config.switch("cluster-allow-replica-migration"),
        migration_barrier: usize::try_from(config.integer("cluster-migration-barrier")).unwrap_or(usize::MAX),
        manual_failover_timeout: millis("cluster-manual-failover-timeout"),
        stale_master_timeout: millis("stale-master-timeout"),
        blacklist_ttl: Duration::from_secs(config.integer("cluster-blacklist-ttl").max(0).unsigned_abs()),
        announce: announce(config)?,
    })
}

fn announce(config: &Config) -> Result<Announce> {
    let or = |name: &str, otherwise: u16| match config.port(name) {
        0 => otherwise,
        port => port,
    };
    Ok(Announce {
        // An empty text is none; what is no address, CONFIG SET refuses.
        ip: config.text("cluster-announce-ip").parse().ok(),
        port: or("cluster-announce-port", config.port("port")),
        tls_port: or("cluster-announce-tls-port", config.port("tls-port")),
        tls_cluster: config.switch("tls-cluster"),
        tls_replication: config.switch("tls-replication"),
        bus_port: or("cluster-announce-bus-port", bus_port(config)?),
        hostname: config.text("cluster-announce-hostname"),
        human_name: config.text("cluster-announce-human-nodename"),
    })
}
