//! The failovers that this node saw, newest first, each as steps in the order of time: what the bus's timeline has.

use gossip::{FailoverRecord, Gossip};
use serde::Serialize;
use slot_routing::NodeId;

use super::state::address;
use crate::server::Server;

#[derive(Debug, Serialize)]
struct Failover {
    /// The failed node.
    node: String,
    address: String,
    outcome: &'static str,
    steps: Vec<Step>,
}

#[derive(Debug, Serialize)]
struct Step {
    /// Milliseconds since the epoch.
    at: i64,
    text: String,
}

/// The failovers as JSON.
pub(super) fn json(server: &Server) -> String {
    let Some(cluster) = server.cluster.get() else { return "[]".to_owned() };
    let gossip = cluster.machine.gossip.lock();
    let failovers: Vec<Failover> =
        gossip.timeline().records().rev().map(|record| failover(&gossip, record)).collect();
    drop(gossip);
    super::json_of(&failovers)
}

fn failover(gossip: &Gossip, record: &FailoverRecord) -> Failover {
    let name = |id: NodeId| match gossip.node(id) {
        Some(_) if id == gossip.id() => "this node".to_owned(),
        Some(node) => address(node),
        None => id.to_string()[..8].to_owned(),
    };
    let mut steps = Vec::new();
    let mut step = |at: clock::Millis, text: String| steps.push(Step { at: at.0, text });
    for suspicion in &record.suspicions {
        let cause = suspicion.cause.map(|cause| format!(" ({cause})")).unwrap_or_default();
        step(suspicion.at, format!("suspected by {}{cause}", name(suspicion.by)));
    }
    if let Some(at) = record.agreed {
        step(at, "agreed to have failed".to_owned());
    }
    for ballot in &record.ballots {
        let (rank, offset) = (ballot.rank, ballot.offset);
        step(ballot.scheduled, format!("this node stands for election: rank {rank}, offset {offset}"));
        if let Some((epoch, at)) = ballot.asked {
            step(at, format!("it asks for votes in epoch {epoch}"));
        }
        for (voter, at) in &ballot.votes {
            step(*at, format!("{} votes for it", name(*voter)));
        }
    }
    for (candidate, epoch, at) in &record.voted {
        step(*at, format!("this node votes for {} in epoch {epoch}", name(*candidate)));
    }
    if let Some((by, epoch, at)) = record.replaced {
        step(at, format!("{} takes over its slots in epoch {epoch}", name(by)));
    }
    if let Some(at) = record.returned {
        step(at, "it answers again".to_owned());
    }
    steps.sort_by_key(|step| step.at);
    let outcome = match (record.replaced.is_some(), record.returned.is_some()) {
        (true, _) => "replaced",
        (false, true) => "came back",
        (false, false) => "open",
    };
    let address = gossip.node(record.node).map(address).unwrap_or_default();
    Failover { node: record.node.to_string(), address, outcome, steps }
}
