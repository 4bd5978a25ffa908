//! The state that the status page polls each second: INFO fields, nodes, commands, slow commands.

use std::collections::BTreeMap;

use gossip::{Gossip, Node, Role};
use metrics::InfoFields;
use serde::Serialize;
use slot_routing::{NodeId, Slot};

use super::readiness;
use super::scrape;
use crate::commands::info::{Data, render};
use crate::server::Server;

/// The INFO sections shown on the page.
const SECTIONS: [&str; 8] =
    ["server", "clients", "memory", "persistence", "stats", "replication", "cpu", "keyspace"];
/// The maximum number of slow commands, of arguments, and of bytes per argument.
const SLOW: usize = 32;
const WORDS: usize = 8;
const BYTES: usize = 64;

#[derive(Debug, Serialize)]
struct State<'a> {
    /// Unix time in milliseconds.
    at: i64,
    /// The reasons for not being ready.
    hindrances: Vec<&'static str>,
    info: BTreeMap<&'a str, &'a str>,
    cluster: BTreeMap<&'a str, &'a str>,
    nodes: Vec<Member>,
    commands: Vec<CommandFigures>,
    slow: Vec<SlowCommand>,
}

/// A node of the cluster.
#[derive(Debug, Serialize)]
struct Member {
    id: String,
    name: String,
    address: String,
    /// Whether it is this node.
    myself: bool,
    /// `None` for a master.
    master: Option<String>,
    shard: String,
    epoch: u64,
    offset: u64,
    state: &'static str,
    linked: bool,
    slots: usize,
}

#[derive(Debug, Serialize)]
struct CommandFigures {
    name: &'static str,
    calls: u64,
    micros: f64,
    /// Latency percentiles: the percentage and the value in microseconds.
    percentiles: Vec<(f64, f64)>,
}

#[derive(Debug, Serialize)]
struct SlowCommand {
    id: u64,
    at: i64,
    micros: u64,
    words: String,
    client: String,
}

/// Returns the state as JSON.
pub(super) fn json(server: &Server) -> String {
    let sections = SECTIONS.map(str::to_owned);
    let info = render(server, &sections, &mut Data::Free(&server.engine.keyspace));
    let cluster = scrape::cluster_info(server);
    let state = State {
        at: process::time::now().0,
        hindrances: readiness::hindrances(server).map(readiness::Hindrance::name).collect(),
        info: InfoFields::new(&info).iter().collect(),
        cluster: InfoFields::new(&cluster).iter().collect(),
        nodes: nodes(server),
        commands: commands(server),
        slow: slow(server),
    };
    super::json_of(&state)
}

fn nodes(server: &Server) -> Vec<Member> {
    let Some(cluster) = &server.cluster else { return Vec::new() };
    // A node receives no gossip about itself.
    let own_offset = server.replication.offset();
    let gossip = cluster.machine.gossip.lock();
    let mut slots: BTreeMap<NodeId, usize> = BTreeMap::new();
    for owner in Slot::all().filter_map(|slot| gossip.slot_owner(slot)) {
        *slots.entry(owner).or_default() += 1;
    }
    let known = gossip.nodes().filter(|node| node.handshake.is_none());
    known
        .map(|node| {
            let heard = member(&gossip, node, slots.get(&node.id).copied().unwrap_or(0));
            Member { offset: if heard.myself { own_offset.0 } else { heard.offset }, ..heard }
        })
        .collect()
}

/// Converts a node from the cluster state.
fn member(gossip: &Gossip, node: &Node, slots: usize) -> Member {
    let myself = node.id == gossip.id();
    let state = match (node.has_failed(), node.is_suspected()) {
        (true, _) => "failed",
        (false, true) => "suspected",
        (false, false) => "healthy",
    };
    Member {
        id: node.id.to_string(),
        name: if node.human_name.is_empty() { node.hostname.clone() } else { node.human_name.clone() },
        address: address(node),
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

/// Returns the client address of a node.
pub(super) fn address(node: &Node) -> String {
    let port = node.address.port;
    match node.address.ip {
        Some(ip) => std::net::SocketAddr::new(ip, port).to_string(),
        None => format!(":{port}"),
    }
}

fn commands(server: &Server) -> Vec<CommandFigures> {
    let times = scrape::commands(server).into_iter();
    times
        .map(|times| CommandFigures {
            name: times.command,
            calls: times.calls,
            micros: times.sum,
            percentiles: times.quantiles,
        })
        .collect()
}

fn slow(server: &Server) -> Vec<SlowCommand> {
    let entries = server.engine.command_logs.slow.newest(SLOW).into_iter();
    let shown = |word: &Vec<u8>| super::shown(word, BYTES);
    entries
        .map(|entry| SlowCommand {
            id: entry.id,
            at: entry.time.0,
            micros: entry.value,
            words: entry.args.iter().take(WORDS).map(shown).collect::<Vec<_>>().join(" "),
            client: entry.address,
        })
        .collect()
}
