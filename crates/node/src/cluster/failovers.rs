//! Lists the failovers that this node observed, each as a sequence of steps, from the records of the cluster's view.

use clock::Millis;
use failover_history::{Failover, FailoverOutcome, FailoverStep};
use gossip::{ClusterView, FailoverRecord, IneligibilityReason, RankedReplica};
use slot_routing::{Epoch, NodeId};

/// Returns the observed failovers, oldest first.
pub(crate) fn list_failovers(view: &ClusterView, now: Millis) -> Vec<Failover> {
    view.timeline().records().map(|record| describe_failover(view, now, record)).collect()
}

fn describe_failover(view: &ClusterView, now: Millis, record: &FailoverRecord) -> Failover {
    let mut steps = FailoverSteps { view, steps: Vec::new() };
    steps.add_cause(record);
    steps.add_candidates(record);
    steps.add_ballots(record);
    steps.add_votes(record);
    steps.add_end(record);
    let mut steps = steps.steps;
    steps.sort_by_key(|(at, _)| *at);
    let began = steps.first().map_or(now, |(at, _)| *at);
    let ms = |from: Millis, to: Millis| u64::try_from(to.0 - from.0).unwrap_or(0);
    let outcome = match record {
        FailoverRecord { replacement: Some(_), .. } => FailoverOutcome::Replaced,
        FailoverRecord { recovered_at: Some(_), .. } => FailoverOutcome::CameBack,
        FailoverRecord { request_timed_out_at: Some(_), .. } => FailoverOutcome::GivenUp,
        _ => FailoverOutcome::Open,
    };
    Failover {
        node: record.node.to_string(),
        address: node_address(view, record.node).unwrap_or_default(),
        began_ms_ago: ms(began, now),
        outcome,
        steps: steps.into_iter().map(|(at, text)| FailoverStep { ms: ms(began, at), text }).collect(),
    }
}

/// Returns the node's client address as `host:port`; `None` if this node does not know the id.
fn node_address(view: &ClusterView, id: NodeId) -> Option<String> {
    view.node(id).map(|node| {
        let port = node.address.port;
        node.address.ip.map_or(format!(":{port}"), |ip| std::net::SocketAddr::new(ip, port).to_string())
    })
}

struct FailoverSteps<'a> {
    view: &'a ClusterView,
    steps: Vec<(Millis, String)>,
}

impl FailoverSteps<'_> {
    fn add_step(&mut self, time: Millis, text: String) {
        self.steps.push((time, text));
    }

    fn node_name(&self, id: NodeId) -> String {
        if id == self.view.id() {
            return "this node".to_owned();
        }
        node_address(self.view, id).unwrap_or_else(|| id.to_string()[..8].to_owned())
    }

    fn add_cause(&mut self, record: &FailoverRecord) {
        if let Some((by, at)) = record.request {
            self.add_step(
                at,
                format!("{} is to take its place at an operator's request", self.node_name(by)),
            );
        }
        for suspicion in &record.suspicions {
            let cause = suspicion.cause.map(|cause| format!(" ({cause})")).unwrap_or_default();
            self.add_step(
                suspicion.reported_at,
                format!("suspected by {}{cause}", self.node_name(suspicion.reporter)),
            );
        }
        if let Some(at) = record.agreed_at {
            self.add_step(at, "agreed to have failed".to_owned());
        }
    }

    fn add_candidates(&mut self, record: &FailoverRecord) {
        let Some(at) = record.ranked_at else { return };
        for RankedReplica { node, offset, rank, ineligibility } in &record.candidates {
            let verdict = match (rank, ineligibility) {
                (Some(rank), None) => format!("rank {rank}"),
                (_, Some(IneligibilityReason::Down)) => "not eligible: it does not answer".to_owned(),
                (_, Some(IneligibilityReason::NoFailover)) => {
                    "not eligible: cluster-replica-no-failover".to_owned()
                }
                (_, Some(IneligibilityReason::Empty)) => "not eligible: it has no data".to_owned(),
                (None, None) => "not eligible".to_owned(),
            };
            self.add_step(at, format!("candidate {}: offset {offset}, {verdict}", self.node_name(*node)));
        }
    }

    fn add_ballots(&mut self, record: &FailoverRecord) {
        for ballot in &record.election_attempts {
            let (rank, offset) = (ballot.rank, ballot.offset);
            self.add_step(
                ballot.scheduled_at,
                format!("this node stands for election: rank {rank}, offset {offset}"),
            );
            if let Some((epoch, at)) = ballot.last_request {
                self.add_step(at, format!("it asks for votes in epoch {epoch}"));
            }
            for (voter, at) in &ballot.votes {
                self.add_step(*at, format!("{} votes for it", self.node_name(*voter)));
            }
        }
        for (why, at) in &record.obstacles {
            self.add_step(*at, format!("this node cannot stand: {why}"));
        }
    }

    fn add_votes(&mut self, record: &FailoverRecord) {
        let in_epoch = |name: String, epoch: Epoch| format!("{name} in epoch {epoch}");
        for (candidate, epoch, at) in &record.votes_given {
            self.add_step(
                *at,
                format!("this node votes for {}", in_epoch(self.node_name(*candidate), *epoch)),
            );
        }
        for (candidate, epoch, why, at) in &record.votes_refused {
            let about = in_epoch(self.node_name(*candidate), *epoch);
            self.add_step(*at, format!("this node does not vote for {about}: {}", why.log_text(*epoch)));
        }
    }

    fn add_end(&mut self, record: &FailoverRecord) {
        if let Some((by, epoch, at)) = record.replacement {
            self.add_step(at, format!("{} takes over its slots in epoch {epoch}", self.node_name(by)));
        }
        if let Some(at) = record.first_write_at {
            self.add_step(at, "this node accepts the first write".to_owned());
        }
        if let Some(at) = record.recovered_at {
            self.add_step(at, "it answers again".to_owned());
        }
        if let Some(at) = record.request_timed_out_at {
            self.add_step(at, "the request is given up".to_owned());
        }
    }
}
