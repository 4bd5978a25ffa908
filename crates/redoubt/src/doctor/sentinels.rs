//! Checks of running sentinels: reachability, a writable configuration file, and quorum.

mod query;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::nodes::{self, ServerFacts};

pub(super) use query::query_all_sentinels;

/// A leader needs a majority of all sentinels, so with two sentinels neither may fail.
const MIN_SENTINELS: usize = 3;

/// What was found out about one sentinel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SentinelFacts {
    /// The facts that are also gathered about servers.
    pub(super) node: ServerFacts,
    /// Why the sentinel could not write its configuration file; `None` if it could.
    pub(super) write_error: Option<String>,
    pub(super) masters: Vec<MasterView>,
}

/// One sentinel's view of a master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MasterView {
    pub(super) name: String,
    pub(super) address: String,
    /// Flags such as `s_down`, `o_down` and `disconnected`.
    pub(super) flags: BTreeSet<String>,
    /// The number of sentinels that must agree that the master is down.
    pub(super) required_quorum: usize,
    /// The number of sentinels that this one knows, including itself.
    pub(super) sentinel_count: usize,
    pub(super) replica_count: usize,
    /// The error reply to SENTINEL CKQUORUM; `None` if the quorum can be reached.
    pub(super) quorum_error: Option<String>,
}

/// Runs all checks of these sentinels.
pub(super) fn check_sentinels(sentinels: &[SentinelFacts]) -> Vec<Finding> {
    let nodes: Vec<ServerFacts> = sentinels.iter().map(|sentinel| sentinel.node.clone()).collect();
    let mut findings: Vec<Finding> = sentinels.iter().flat_map(check_sentinel).collect();
    findings.extend(nodes::check_versions(&nodes));
    findings.extend(nodes::check_clocks(&nodes));
    let mut masters: BTreeMap<&str, Vec<(&str, &MasterView)>> = BTreeMap::new();
    for sentinel in sentinels {
        for watched in &sentinel.masters {
            masters.entry(&watched.name).or_default().push((&sentinel.node.address, watched));
        }
    }
    findings.extend(masters.into_iter().flat_map(|(name, views)| check_master(name, &views)));
    findings
}

fn check_sentinel(sentinel: &SentinelFacts) -> Vec<Finding> {
    let about = sentinel.node.address.as_str();
    if let Some(reason) = &sentinel.node.connect_error {
        return vec![nodes::unreachable_finding(about, reason)];
    }
    let mut findings = Vec::new();
    if let Some(reason) = &sentinel.write_error {
        findings.push(Finding::fault(
            about,
            format!("cannot write its configuration file: {reason}"),
            "give the file and its directory to the sentinel's user: it must remember its votes after a restart",
        ));
    }
    if sentinel.masters.is_empty() {
        findings.push(Finding::warning(about, "monitors no master", "sentinel monitor NAME IP PORT QUORUM"));
    }
    if findings.is_empty() {
        let version = sentinel.node.server_version().unwrap_or_default();
        findings.push(Finding::fine(about, format!("{version}, sentinel")));
    }
    findings
}

/// Checks a master through the views of its sentinels.
fn check_master(name: &str, views: &[(&str, &MasterView)]) -> Vec<Finding> {
    let about = format!("master {name}");
    let mut findings: Vec<Finding> =
        [check_master_agreement, check_master_down, check_quorum, check_spare_replicas]
            .iter()
            .filter_map(|check| check(views))
            .map(|finding| Finding { about: about.clone(), ..finding })
            .collect();
    if findings.is_empty() {
        let text = format!("{} sentinels monitor {}", views.len(), views[0].1.address);
        findings.push(Finding::fine(about, text));
    }
    findings
}

fn check_master_agreement(views: &[(&str, &MasterView)]) -> Option<Finding> {
    let addresses: BTreeSet<&str> = views.iter().map(|(_, watched)| &*watched.address).collect();
    let quorums: BTreeSet<usize> = views.iter().map(|(_, watched)| watched.required_quorum).collect();
    if addresses.len() > 1 {
        let all: Vec<_> = addresses.into_iter().collect();
        return Some(Finding::fault(
            "",
            format!("sentinels disagree about its address: {}", all.join(", ")),
            "check that they can reach each other; on a sentinel with an old address, use SENTINEL REMOVE and MONITOR",
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

fn check_master_down(views: &[(&str, &MasterView)]) -> Option<Finding> {
    let flags = ["o_down", "s_down", "disconnected"];
    let (who, flag) = flags.iter().find_map(|flag| {
        let (who, _) = views.iter().find(|(_, watched)| watched.flags.contains(*flag))?;
        Some((who, flag))
    })?;
    Some(Finding::fault(
        "",
        format!("{who} reports it as {flag}"),
        "check that it runs, and that every sentinel can reach it and log in (sentinel auth-pass)",
    ))
}

fn check_quorum(views: &[(&str, &MasterView)]) -> Option<Finding> {
    if let Some((who, reason)) =
        views.iter().find_map(|(who, watched)| Some((who, watched.quorum_error.as_ref()?)))
    {
        let fix = "restart the missing sentinels; SENTINEL RESET NAME removes those that will not return";
        return Some(Finding::fault(
            "",
            format!("{who} reports that no failover is possible: {reason}"),
            fix,
        ));
    }
    let sentinels = views.iter().map(|(_, watched)| watched.sentinel_count).min()?;
    let quorum = views.iter().map(|(_, watched)| watched.required_quorum).max()?;
    if sentinels < MIN_SENTINELS {
        return Some(Finding::warning(
            "",
            format!(
                "{sentinels} sentinels monitor it: if one fails, the others have no majority and cannot elect a leader"
            ),
            "use at least three sentinels on separate machines",
        ));
    }
    (quorum >= sentinels).then(|| {
        Finding::warning(
            "",
            format!(
                "all {sentinels} sentinels must agree that it is down: if one fails, no failover happens"
            ),
            format!("SENTINEL SET NAME quorum {} on each", sentinels / 2 + 1),
        )
    })
}

fn check_spare_replicas(views: &[(&str, &MasterView)]) -> Option<Finding> {
    views.iter().all(|(_, watched)| watched.replica_count == 0).then(|| {
        Finding::warning(
            "",
            "it has no replica: if it fails, nothing can replace it",
            "add one: REPLICAOF IP PORT",
        )
    })
}
