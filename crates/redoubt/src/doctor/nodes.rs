//! Checks of running servers: reachability, state, and consistency between nodes.

mod query;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::finding::{Finding, format_size};

pub(super) use query::{connect_with_timeout, query_all_nodes, query_server, with_address};

/// Maximum difference between the nodes' clocks. With a larger one, keys expire too early or too late after a failover.
const MAX_CLOCK_DIFFERENCE_MS: i64 = 500;
/// An election needs a majority of the masters, so with two masters neither may fail.
const MIN_MASTERS: usize = 3;
const SLOT_COUNT: usize = 16384;

/// What was found out about one server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ServerFacts {
    /// The host and port at which other nodes reach the server.
    pub(super) address: String,
    /// Why the connection failed; `None` if it succeeded.
    pub(super) connect_error: Option<String>,
    /// Why the bus port is unreachable; `None` if it is reachable or cluster mode is off.
    pub(super) bus_error: Option<String>,
    /// How many milliseconds the server's clock is ahead of this machine's; `None` if INFO has no time.
    pub(super) clock_ahead_ms: Option<i64>,
    /// The fields of INFO as pairs of name and value.
    pub(super) info_fields: Vec<(String, String)>,
    /// The server's view of its cluster; `None` outside of cluster mode.
    pub(super) cluster_view: Option<ClusterView>,
}

/// One node's view of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ClusterView {
    pub(super) id: String,
    /// Whether the node reports `cluster_state:ok`.
    pub(super) is_ok: bool,
    pub(super) peers: Vec<ClusterPeer>,
}

/// A line of CLUSTER NODES.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ClusterPeer {
    pub(super) id: String,
    pub(super) address: String,
    pub(super) bus_port: u16,
    /// The id of a replica's master; `None` for a master.
    pub(super) master_id: Option<String>,
    /// Whether the node is flagged FAIL. PFAIL alone does not count.
    pub(super) has_failed: bool,
    /// Whether the queried node has a bus link to this peer.
    pub(super) is_linked: bool,
    pub(super) slot_count: usize,
}

impl ServerFacts {
    pub(super) fn info_field(&self, name: &str) -> Option<&str> {
        self.info_fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the name and version of the server software. `None` if INFO has no version.
    pub(super) fn server_version(&self) -> Option<String> {
        let named = ["redoubt_version", "valkey_version", "redis_version"];
        named.iter().find_map(|name| Some(format!("{} {}", name.split('_').next()?, self.info_field(name)?)))
    }
}

/// Runs all checks of these servers.
pub(super) fn check_servers(nodes: &[ServerFacts]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = nodes.iter().flat_map(check_server).collect();
    findings.extend(check_versions(nodes));
    findings.extend(check_clocks(nodes));
    // The view of one node suffices: if views differ, bus links are broken, and that is already reported above.
    if let Some(place) = nodes.iter().find_map(|node| node.cluster_view.as_ref()) {
        findings.extend(check_cluster(place));
    }
    findings
}

/// Returns the finding for a server or sentinel that cannot be queried.
pub(super) fn unreachable_finding(about: &str, reason: &str) -> Finding {
    let fix = "check that it runs, listens on this address ('bind'), and that no firewall blocks its port";
    Finding::fault(about, format!("cannot connect: {reason}"), fix)
}

fn check_server(node: &ServerFacts) -> Vec<Finding> {
    let about = node.address.as_str();
    if let Some(reason) = &node.connect_error {
        return vec![unreachable_finding(about, reason)];
    }
    let mut findings = Vec::new();
    if let Some(reason) = &node.bus_error {
        findings.push(Finding::fault(
            about,
            format!("its cluster bus port is unreachable: {reason}"),
            "open the bus port (port + 10000, or cluster-port) in every firewall between the nodes",
        ));
    }
    findings.extend(node.cluster_view.iter().flat_map(|place| check_bus_links(about, place)));
    findings.extend(check_status(node));
    if findings.is_empty() {
        let role = node.info_field("role").unwrap_or("?");
        let version = node.server_version().unwrap_or_default();
        findings.push(Finding::fine(about, format!("{version}, {role}")));
    }
    findings
}

/// Checks the status fields of INFO.
fn check_status(node: &ServerFacts) -> Vec<Finding> {
    let about = node.address.as_str();
    let is = |name: &str, value: &str| node.info_field(name) == Some(value);
    let number = |name: &str| node.info_field(name).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    let mut findings = Vec::new();
    if is("master_link_status", "down") {
        findings.push(Finding::fault(
            about,
            "the link to its master is down",
            "see its log: masterauth, masteruser, tls-replication, or the master's port",
        ));
    }
    for (field, text) in [
        ("rdb_last_bgsave_status", "the last snapshot failed"),
        ("aof_last_write_status", "the append-only file cannot be written"),
        ("aof_last_bgrewrite_status", "the last rewrite of the append-only file failed"),
    ] {
        if is(field, "err") {
            findings.push(Finding::fault(about, text, "see its log; usually the disk is full"));
        }
    }
    let (used, limit) = (number("used_memory"), number("maxmemory"));
    if limit != 0 && used > limit / 10 * 9 && is("maxmemory_policy", "noeviction") {
        findings.push(Finding::warning(
            about,
            format!("{} of maxmemory ({}) in use, and the policy is noeviction", format_size(used), format_size(limit)),
            "raise maxmemory, add masters, or set an eviction policy; 'redoubt capacity sample' shows what uses the memory",
        ));
    }
    findings
}

/// Checks the cluster bus links of this node.
fn check_bus_links(about: &str, view: &ClusterView) -> Vec<Finding> {
    let broken = view.peers.iter().filter(|peer| !peer.is_linked && !peer.has_failed && peer.id != view.id);
    broken
        .map(|peer| {
            Finding::fault(
                about,
                format!("no cluster bus link to {}", peer.address),
                "open the bus port between the two, and check that each announces an address that the other can reach \
                 (cluster-announce-ip)",
            )
        })
        .collect()
}

pub(super) fn check_versions(nodes: &[ServerFacts]) -> Option<Finding> {
    let versions: BTreeSet<String> = nodes.iter().filter_map(ServerFacts::server_version).collect();
    (versions.len() > 1).then(|| {
        let all: Vec<_> = versions.into_iter().collect();
        Finding::warning(
            "versions",
            format!("nodes run different versions: {}", all.join(", ")),
            "upgrade all to one version: replicas first, and each master after CLUSTER FAILOVER to a replica",
        )
    })
}

pub(super) fn check_clocks(nodes: &[ServerFacts]) -> Option<Finding> {
    let told = || nodes.iter().filter_map(|node| Some((node.clock_ahead_ms?, node.address.as_str())));
    // With a single clock there is nothing to compare.
    told().nth(1)?;
    // If several nodes have the same extreme clock, the first one is named, so that repeated runs give the same result.
    let ((least, behind), (most, ahead)) =
        (told().min_by_key(|told| told.0)?, told().rev().max_by_key(|told| told.0)?);
    let difference = most - least;
    let text = match difference {
        // Without a difference, both names would be those of the same node.
        0 => "all clocks agree to the millisecond".to_owned(),
        _ => format!("{ahead} is {difference} ms ahead of {behind}"),
    };
    Some(if difference > MAX_CLOCK_DIFFERENCE_MS {
        Finding::warning("clocks", text, "synchronise all clocks with NTP (chrony, systemd-timesyncd)")
    } else {
        Finding::fine("clocks", text)
    })
}

fn check_cluster(view: &ClusterView) -> Vec<Finding> {
    let about = "cluster";
    let mut findings = Vec::new();
    let masters: Vec<&ClusterPeer> =
        view.peers.iter().filter(|peer| peer.slot_count > 0 && !peer.has_failed).collect();
    let served: usize = masters.iter().map(|peer| peer.slot_count).sum();
    if !view.is_ok || served < SLOT_COUNT {
        findings.push(Finding::fault(
            about,
            format!("{} slots are not served", SLOT_COUNT.saturating_sub(served)),
            "restart the failed nodes, or assign the slots to others: redis-cli --cluster fix",
        ));
    }
    for failed in view.peers.iter().filter(|peer| peer.has_failed) {
        findings.push(Finding::warning(
            about,
            format!("{} has failed", failed.address),
            "restart it, or remove it: CLUSTER FORGET on every other node",
        ));
    }
    let has_replica = |master: &ClusterPeer| {
        view.peers.iter().any(|peer| peer.master_id.as_deref() == Some(&*master.id) && !peer.has_failed)
    };
    for alone in masters.iter().filter(|master| !has_replica(master)) {
        findings.push(Finding::warning(
            about,
            format!("{} has no replica: if it fails, its slots are unavailable", alone.address),
            "add one: redis-cli --cluster add-node NEW OLD --cluster-slave",
        ));
    }
    if masters.len() < MIN_MASTERS {
        findings.push(Finding::warning(
            about,
            format!(
                "{} masters serve slots: if one fails, the others have no majority and cannot elect a replica",
                masters.len()
            ),
            "use at least three masters on separate machines",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::fine(
            about,
            format!("{} masters serve all slots, each with a replica", masters.len()),
        ));
    }
    findings
}
