//! The state that the status page requests each second: INFO fields, nodes, commands and slow commands.

use std::collections::BTreeMap;

use gossip::{ClusterView, Node, Role};
use metrics::InfoFields;
use serde::Serialize;
use slot_routing::{NodeId, Slot};

use super::readiness;
use super::scrape;
use crate::commands::info::{DataAccess, render_sections};
use crate::server::Server;

/// The INFO sections shown on the page.
const PAGE_SECTIONS: [&str; 8] =
    ["server", "clients", "memory", "persistence", "stats", "replication", "cpu", "keyspace"];
/// The maximum number of slow commands, of arguments per command, and of bytes per argument.
const MAX_SLOW_COMMANDS: usize = 32;
const MAX_ARGUMENTS: usize = 8;
const MAX_ARGUMENT_BYTES: usize = 64;

#[derive(Debug, Serialize)]
struct PageState<'a> {
    /// When the state was read, as a Unix time in milliseconds.
    at: i64,
    /// The reasons why the node is not ready; empty if it is ready.
    hindrances: Vec<&'static str>,
    info: BTreeMap<&'a str, &'a str>,
    cluster: BTreeMap<&'a str, &'a str>,
    nodes: Vec<NodeRow>,
    commands: Vec<CommandRow>,
    slow: Vec<SlowCommandRow>,
}

/// A node of the cluster, as a row of the page's table.
#[derive(Debug, Serialize)]
struct NodeRow {
    id: String,
    name: String,
    address: String,
    myself: bool,
    /// The id of a replica's master. `None` for a master.
    master: Option<String>,
    shard: String,
    epoch: u64,
    offset: u64,
    state: &'static str,
    linked: bool,
    slots: usize,
}

#[derive(Debug, Serialize)]
struct CommandRow {
    name: &'static str,
    calls: u64,
    micros: f64,
    /// Latency percentiles as pairs of a percentage and microseconds.
    percentiles: Vec<(f64, f64)>,
}

#[derive(Debug, Serialize)]
struct SlowCommandRow {
    id: u64,
    at: i64,
    micros: u64,
    words: String,
    client: String,
}

pub(super) fn state_json(server: &Server) -> String {
    let sections = PAGE_SECTIONS.map(str::to_owned);
    let info = render_sections(server, &sections, &mut DataAccess::Unlocked(&server.engine.keyspace));
    let cluster = scrape::collect_cluster_info(server);
    let state = PageState {
        at: process::time::now().0,
        hindrances: readiness::readiness_blockers(server).map(readiness::ReadinessBlocker::name).collect(),
        info: InfoFields::new(&info).iter().collect(),
        cluster: InfoFields::new(&cluster).iter().collect(),
        nodes: list_nodes(server),
        commands: list_commands(server),
        slow: list_slow_commands(server),
    };
    super::to_json(&state)
}

fn list_nodes(server: &Server) -> Vec<NodeRow> {
    let Some(cluster) = &server.cluster else { return Vec::new() };
    // Gossip tells a node nothing about itself, so its own offset comes from replication.
    let own_offset = server.replication.current_offset();
    let view = cluster.view();
    let mut slots: BTreeMap<NodeId, usize> = BTreeMap::new();
    for owner in Slot::all().filter_map(|slot| view.slot_owner(slot)) {
        *slots.entry(owner).or_default() += 1;
    }
    let known = view.nodes().filter(|node| node.handshake.is_none());
    known
        .map(|node| {
            let heard = node_row(&view, node, slots.get(&node.id).copied().unwrap_or(0));
            NodeRow { offset: if heard.myself { own_offset.0 } else { heard.offset }, ..heard }
        })
        .collect()
}

fn node_row(view: &ClusterView, node: &Node, slots: usize) -> NodeRow {
    let myself = node.id == view.id();
    let state = match (node.has_failed(), node.is_suspected()) {
        (true, _) => "failed",
        (false, true) => "suspected",
        (false, false) => "healthy",
    };
    NodeRow {
        id: node.id.to_string(),
        name: if node.human_name.is_empty() { node.hostname.clone() } else { node.human_name.clone() },
        address: client_address(node),
        myself,
        master: match node.role {
            Role::Master => None,
            Role::Replica(master) => Some(master.map(|id| id.to_string()).unwrap_or_default()),
        },
        shard: node.shard.to_string(),
        epoch: node.config_epoch.0,
        offset: node.offset.0,
        state,
        linked: myself || node.link.is_up(),
        slots,
    }
}

/// Returns the `host:port` at which clients reach the node.
pub(super) fn client_address(node: &Node) -> String {
    let port = node.address.port;
    match node.address.ip {
        Some(ip) => std::net::SocketAddr::new(ip, port).to_string(),
        None => format!(":{port}"),
    }
}

fn list_commands(server: &Server) -> Vec<CommandRow> {
    let times = scrape::collect_command_latencies(server).into_iter();
    times
        .map(|times| CommandRow {
            name: times.command,
            calls: times.calls,
            micros: times.total_micros,
            percentiles: times.quantiles,
        })
        .collect()
}

fn list_slow_commands(server: &Server) -> Vec<SlowCommandRow> {
    let entries =
        server.engine.diagnostics.command_logs.slow_commands.newest_entries(MAX_SLOW_COMMANDS).into_iter();
    let shown = |word: &Vec<u8>| super::format_bytes(word, MAX_ARGUMENT_BYTES);
    entries
        .map(|entry| SlowCommandRow {
            id: entry.id,
            at: entry.time.0,
            micros: entry.value,
            words: entry.args.iter().take(MAX_ARGUMENTS).map(shown).collect::<Vec<_>>().join(" "),
            client: entry.client_address,
        })
        .collect()
}
