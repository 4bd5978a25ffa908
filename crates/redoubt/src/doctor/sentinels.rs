//! Sentinels that run: whether each can be reached and can remember what it learns, and whether enough of them agree.

mod ask;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::nodes::{self, Node};

pub(super) use ask::gather;

/// A sentinel is elected by a majority of all: two cannot do without either.
const FEWEST: usize = 3;

/// The facts of one sentinel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sentinel {
    /// The facts that every server has, too.
    pub(super) node: Node,
    /// Why it could not write its configuration.
    pub(super) write_refusal: Option<String>,
    pub(super) masters: Vec<Watched>,
}

/// A master as one sentinel sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) name: String,
    pub(super) address: String,
    /// `s_down`, `o_down`, `disconnected` and their like.
    pub(super) flags: BTreeSet<String>,
    /// Sentinels that must agree that it is down.
    pub(super) quorum: usize,
    /// Sentinels that this one knows of, with itself.
    pub(super) sentinels: usize,
    pub(super) replicas: usize,
    /// Why a failover could not be agreed on now, in the sentinel's words.
    pub(super) hindrance: Option<String>,
}

/// All findings about these sentinels.
pub(super) fn check(sentinels: &[Sentinel]) -> Vec<Finding> {
    let nodes: Vec<Node> = sentinels.iter().map(|sentinel| sentinel.node.clone()).collect();
    let mut findings: Vec<Finding> = sentinels.iter().flat_map(of_sentinel).collect();
    findings.extend(nodes::versions(&nodes));
    findings.extend(nodes::clocks(&nodes));
    let mut masters: BTreeMap<&str, Vec<(&str, &Watched)>> = BTreeMap::new();
    for sentinel in sentinels {
        for watched in &sentinel.masters {
            masters.entry(&watched.name).or_default().push((&sentinel.node.address, watched));
        }
    }
    findings.extend(masters.into_iter().flat_map(|(name, views)| of_master(name, &views)));
    findings
}

fn of_sentinel(sentinel: &Sentinel) -> Vec<Finding> {
    let about = sentinel.node.address.as_str();
    if let Some(reason) = &sentinel.node.refusal {
        return vec![nodes::unreachable(about, reason)];
    }
    let mut findings = Vec::new();
    if let Some(reason) = &sentinel.write_refusal {
        findings.push(Finding::fault(
            about,
            format!("it cannot write its configuration: {reason}"),
            "make the file and its folder its user's: what it votes for it must remember after a restart",
        ));
    }
    if sentinel.masters.is_empty() {
        findings.push(Finding::warning(
            about,
            "it watches no master",
            "sentinel monitor NAME IP PORT QUORUM",
        ));
    }
    if findings.is_empty() {
        let version = sentinel.node.version().unwrap_or_default();
        findings.push(Finding::fine(about, format!("{version}, sentinel")));
    }
    findings
}

/// Findings about a master, by the views of those that watch it.
fn of_master(name: &str, views: &[(&str, &Watched)]) -> Vec<Finding> {
    let about = format!("master {name}");
    let mut findings: Vec<Finding> = [split, down, quorum, spare]
        .iter()
        .filter_map(|check| check(views))
        .map(|finding| Finding { about: about.clone(), ..finding })
        .collect();
    if findings.is_empty() {
        let text = format!("{} sentinels watch {}", views.len(), views[0].1.address);
        findings.push(Finding::fine(about, text));
    }
    findings
}

fn split(views: &[(&str, &Watched)]) -> Option<Finding> {
    let addresses: BTreeSet<&str> = views.iter().map(|(_, watched)| &*watched.address).collect();
    let quorums: BTreeSet<usize> = views.iter().map(|(_, watched)| watched.quorum).collect();
    if addresses.len() > 1 {
        let all: Vec<_> = addresses.into_iter().collect();
        return Some(Finding::fault(
            "",
            format!("sentinels do not agree where it is: {}", all.join(", ")),
            "can they reach each other? One that knows an old address: SENTINEL REMOVE and SENTINEL MONITOR there",
        ));
    }
    (quorums.len() > 1).then(|| {
        let all: Vec<_> = quorums.iter().map(ToString::to_string).collect();
        Finding::warning(
            "",
            format!("sentinels have different quorums: {}", all.join(", ")),
            "SENTINEL SET NAME quorum N on each",
        )
    })
}

fn down(views: &[(&str, &Watched)]) -> Option<Finding> {
    let flags = ["o_down", "s_down", "disconnected"];
    let (who, flag) = flags.iter().find_map(|flag| {
        let (who, _) = views.iter().find(|(_, watched)| watched.flags.contains(*flag))?;
        Some((who, flag))
    })?;
    Some(Finding::fault(
        "",
        format!("it is {flag}, says {who}"),
        "does it run, and can every sentinel reach its port and log in (sentinel auth-pass)?",
    ))
}

fn quorum(views: &[(&str, &Watched)]) -> Option<Finding> {
    if let Some((who, reason)) =
        views.iter().find_map(|(who, watched)| Some((who, watched.hindrance.as_ref()?)))
    {
        let fix =
            "start the sentinels that are gone; SENTINEL RESET NAME forgets those that will not come back";
        return Some(Finding::fault("", format!("no failover is possible, says {who}: {reason}"), fix));
    }
    let sentinels = views.iter().map(|(_, watched)| watched.sentinels).min()?;
    let quorum = views.iter().map(|(_, watched)| watched.quorum).max()?;
    if sentinels < FEWEST {
        return Some(Finding::warning(
            "",
            format!(
                "{sentinels} sentinels watch it: if one is gone, the others are no majority and elect nobody"
            ),
            "at least three sentinels, on machines of their own",
        ));
    }
    (quorum >= sentinels).then(|| {
        Finding::warning(
            "",
            format!(
                "all {sentinels} sentinels must agree that it is down: if one is gone, nobody replaces it"
            ),
            format!("SENTINEL SET NAME quorum {} on each", sentinels / 2 + 1),
        )
    })
}

fn spare(views: &[(&str, &Watched)]) -> Option<Finding> {
    views.iter().all(|(_, watched)| watched.replicas == 0).then(|| {
        Finding::warning(
            "",
            "it has no replica: if it dies nobody takes its place",
            "add one: REPLICAOF IP PORT",
        )
    })
}
