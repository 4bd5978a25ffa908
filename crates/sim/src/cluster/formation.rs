//! Creates the initial cluster: assigns a master to each replica and writes each node's `nodes.conf`.

use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use gossip::{AnnouncedAddress, ClusterConfig};
use slot_routing::{NodeId, SLOT_COUNT, Slot};

use super::{NODE_TIMEOUT, ip_of};
use crate::RandomSource;

pub(super) const CLIENT_PORT: u16 = 6379;
pub(super) const BUS_PORT: u16 = 16379;
/// The number of slots per master that a run observes, as representatives of the others.
const SAMPLE_SLOTS_PER_MASTER: usize = 3;

pub(super) struct FormedCluster {
    pub(super) nodes_confs: Vec<String>,
    pub(super) sample_slots: Vec<Slot>,
}

pub(super) fn cluster_config(ip: IpAddr) -> ClusterConfig {
    let announce = AnnouncedAddress {
        ip: Some(ip),
        port: CLIENT_PORT,
        bus_port: BUS_PORT,
        ..AnnouncedAddress::default()
    };
    ClusterConfig {
        node_timeout: NODE_TIMEOUT,
        // Shorter than a run, so that forgotten nodes can rejoin within the run.
        blacklist_ttl: Duration::from_secs(5),
        // Long enough for three election attempts.
        empty_master_timeout: Duration::from_secs(20),
        manual_failover_timeout: Duration::from_secs(2),
        announced_address: announce,
        ..ClusterConfig::default()
    }
}

/// Creates the initial cluster: at least three masters, and replicas that are distributed evenly among them.
pub(super) fn form_cluster(nodes: usize, random: &mut RandomSource) -> FormedCluster {
    let nodes = nodes.max(4);
    let masters = (nodes / 2).clamp(3, 5);
    let ids: Vec<NodeId> = (0..nodes).map(|_| random.random_id()).collect();
    let first = |master: usize| SLOT_COUNT * master / masters;
    let line = |text: &mut String, me: usize, number: usize| {
        let master = number % masters;
        let (id, shard, ip) = (ids[number], ids[master], ip_of(number));
        let myself = if me == number { "myself," } else { "" };
        let _ = write!(text, "{id} {ip}:{CLIENT_PORT}@{BUS_PORT},,shard-id={shard} {myself}");
        let epoch = master + 1;
        let _ = if number == master {
            let last = first(master + 1) - 1;
            writeln!(text, "master - 0 0 {epoch} connected {}-{last}", first(master))
        } else {
            writeln!(text, "slave {shard} 0 0 {epoch} connected")
        };
    };
    let nodes_conf = |me: usize| {
        let mut text = String::new();
        (0..nodes).for_each(|number| line(&mut text, me, number));
        let _ = writeln!(text, "vars currentEpoch {masters} lastVoteEpoch 0");
        text
    };
    let sample = |master: usize| (0..SAMPLE_SLOTS_PER_MASTER).map(move |place| first(master) + place);
    let slot = |number: usize| Slot::new(u16::try_from(number).ok()?);
    FormedCluster {
        nodes_confs: (0..nodes).map(nodes_conf).collect(),
        sample_slots: (0..masters).flat_map(sample).filter_map(slot).collect(),
    }
}
