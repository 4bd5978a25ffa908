//! Servers that run: whether each can be reached, and whether they agree with each other.

mod ask;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::finding::{Finding, size};

pub(super) use ask::{ask_at, at, connect, gather};

/// Clocks that differ by more than this make keys expire too early or too late after a failover.
const MOST_CLOCK_DIFFERENCE: i64 = 500;
/// A cluster elects by a majority of its masters: two cannot do without either.
const FEWEST_MASTERS: usize = 3;
const SLOTS: usize = 16384;

/// The facts of one server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Node {
    /// As others reach it.
    pub(super) address: String,
    /// Why its port cannot be used.
    pub(super) refusal: Option<String>,
    /// Why the bus's port cannot be reached. None also where it is in no cluster.
    pub(super) bus_refusal: Option<String>,
    /// Milliseconds by which its clock is ahead of this machine's, where it told its time.
    pub(super) clock_ahead: Option<i64>,
    /// The fields of INFO.
    pub(super) info: Vec<(String, String)>,
    /// Its place in a cluster, if it is in one.
    pub(super) place: Option<Place>,
}

/// The view that a node of a cluster has of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) id: String,
    /// `cluster_state` is `ok`.
    pub(super) is_ok: bool,
    pub(super) peers: Vec<Peer>,
}

/// A line of CLUSTER NODES.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) id: String,
    pub(super) address: String,
    pub(super) bus_port: u16,
    /// The id of its master, if it is a replica.
    pub(super) master: Option<String>,
    /// Others say that it failed.
    pub(super) has_failed: bool,
    /// The node that said this has its link to it.
    pub(super) is_linked: bool,
    pub(super) slots: usize,
}

impl Node {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.info.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The name and the version of the program.
    pub(super) fn version(&self) -> Option<String> {
        let named = ["redoubt_version", "valkey_version", "redis_version"];
        named.iter().find_map(|name| Some(format!("{} {}", name.split('_').next()?, self.field(name)?)))
    }
}

/// All findings about these servers.
pub(super) fn check(nodes: &[Node]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = nodes.iter().flat_map(of_node).collect();
    findings.extend(versions(nodes));
    findings.extend(clocks(nodes));
    // The view of one that can be asked; where views differ, the links below say why.
    if let Some(place) = nodes.iter().find_map(|node| node.place.as_ref()) {
        findings.extend(of_cluster(place));
    }
    findings
}

/// A server or a sentinel that could not be asked.
pub(super) fn unreachable(about: &str, reason: &str) -> Finding {
    let fix = "is it running, does it listen there ('bind'), and does every firewall let its port through?";
    Finding::fault(about, format!("cannot be used: {reason}"), fix)
}

fn of_node(node: &Node) -> Vec<Finding> {
    let about = node.address.as_str();
    if let Some(reason) = &node.refusal {
        return vec![unreachable(about, reason)];
    }
    let mut findings = Vec::new();
    if let Some(reason) = &node.bus_refusal {
        findings.push(Finding::fault(
            about,
            format!("the port of its bus cannot be reached: {reason}"),
            "let the bus's port (10000 above, or cluster-port) through every firewall, between all nodes",
        ));
    }
    findings.extend(node.place.iter().flat_map(|place| links(about, place)));
    findings.extend(states(node));
    if findings.is_empty() {
        let role = node.field("role").unwrap_or("?");
        let version = node.version().unwrap_or_default();
        findings.push(Finding::fine(about, format!("{version}, {role}")));
    }
    findings
}

/// Fields of INFO that tell of trouble.
fn states(node: &Node) -> Vec<Finding> {
    let about = node.address.as_str();
    let is = |name: &str, value: &str| node.field(name) == Some(value);
    let number = |name: &str| node.field(name).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    let mut findings = Vec::new();
    if is("master_link_status", "down") {
        findings.push(Finding::fault(
            about,
            "it does not follow its master",
            "its log says why: masterauth, masteruser, tls-replication, or the master's port",
        ));
    }
    for (field, text) in [
        ("rdb_last_bgsave_status", "its last snapshot failed"),
        ("aof_last_write_status", "its append-only file cannot be written"),
        ("aof_last_bgrewrite_status", "its append-only file could not be rewritten"),
    ] {
        if is(field, "err") {
            findings.push(Finding::fault(about, text, "its log says why; mostly the disk is full"));
        }
    }
    let (used, limit) = (number("used_memory"), number("maxmemory"));
    if limit != 0 && used > limit / 10 * 9 && is("maxmemory_policy", "noeviction") {
        findings.push(Finding::warning(
            about,
            format!("{} of its maxmemory ({}) are used, and nothing is evicted", size(used), size(limit)),
            "a larger maxmemory, more masters, or a policy of eviction; 'redoubt capacity sample' says what takes it",
        ));
    }
    findings
}

/// The links over which this node hears of others.
fn links(about: &str, place: &Place) -> Vec<Finding> {
    let broken = place.peers.iter().filter(|peer| !peer.is_linked && !peer.has_failed && peer.id != place.id);
    broken
        .map(|peer| {
            Finding::fault(
                about,
                format!("it has no link to {}", peer.address),
                "let the bus's port through between the two, and see that each is announced by an address that the \
                 other reaches (cluster-announce-ip)",
            )
        })
        .collect()
}

pub(super) fn versions(nodes: &[Node]) -> Option<Finding> {
    let versions: BTreeSet<String> = nodes.iter().filter_map(Node::version).collect();
    (versions.len() > 1).then(|| {
        let all: Vec<_> = versions.into_iter().collect();
        Finding::warning(
            "versions",
            format!("nodes differ: {}", all.join(", ")),
            "bring all to one, replicas first, each master by CLUSTER FAILOVER of a replica",
        )
    })
}

pub(super) fn clocks(nodes: &[Node]) -> Option<Finding> {
    let told = || nodes.iter().filter_map(|node| Some((node.clock_ahead?, node.address.as_str())));
    // One alone has nothing to differ from.
    told().nth(1)?;
    // Of those that are level the first, so that who is named does not change from one run to the next.
    let ((least, behind), (most, ahead)) =
        (told().min_by_key(|told| told.0)?, told().rev().max_by_key(|told| told.0)?);
    let difference = most - least;
    let text = match difference {
        // Both names would be the same node.
        0 => "the nodes' clocks agree to the millisecond".to_owned(),
        _ => format!("{ahead} is {difference} ms ahead of {behind}"),
    };
    Some(if difference > MOST_CLOCK_DIFFERENCE {
        Finding::warning("clocks", text, "synchronise them all by NTP (chrony, systemd-timesyncd)")
    } else {
        Finding::fine("clocks", text)
    })
}

fn of_cluster(place: &Place) -> Vec<Finding> {
    let about = "cluster";
    let mut findings = Vec::new();
    let masters: Vec<&Peer> = place.peers.iter().filter(|peer| peer.slots > 0 && !peer.has_failed).collect();
    let served: usize = masters.iter().map(|peer| peer.slots).sum();
    if !place.is_ok || served < SLOTS {
        findings.push(Finding::fault(
            about,
            format!("{} slots are served by nobody", SLOTS.saturating_sub(served)),
            "start the nodes that failed; or give slots to others: redis-cli --cluster fix",
        ));
    }
    for failed in place.peers.iter().filter(|peer| peer.has_failed) {
        findings.push(Finding::warning(
            about,
            format!("{} has failed", failed.address),
            "start it again, or let the others forget it: CLUSTER FORGET on each",
        ));
    }
    let has_replica = |master: &Peer| {
        place.peers.iter().any(|peer| peer.master.as_deref() == Some(&*master.id) && !peer.has_failed)
    };
    for alone in masters.iter().filter(|master| !has_replica(master)) {
        findings.push(Finding::warning(
            about,
            format!("{} has no replica: if it dies its slots are gone with it", alone.address),
            "add one: redis-cli --cluster add-node NEW OLD --cluster-slave",
        ));
    }
    if masters.len() < FEWEST_MASTERS {
        findings.push(Finding::warning(
            about,
            format!(
                "{} masters serve slots: if one dies, the others are no majority and elect nobody",
                masters.len()
            ),
            "at least three masters, on machines of their own",
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
