//! Polls each node for its role over connections that network faults do not cut.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Connection, Endpoint, Reply};

use crate::{MasterPeriod, OpHistory};

const POLL_INTERVAL: Duration = Duration::from_millis(50);
const REPLY_TIMEOUT: Duration = Duration::from_millis(200);

/// The masters and violations that the observer recorded.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    pub(crate) master_periods: Vec<MasterPeriod>,
    pub(crate) violations: Vec<String>,
}

/// Polls the servers until `stop` is set.
pub(crate) fn observe(servers: &[Endpoint], history: &OpHistory, should_stop: &AtomicBool) -> Observations {
    let mut seen = Observations::default();
    let mut connections: HashMap<usize, Connection> = HashMap::new();
    let mut reigning: HashMap<usize, usize> = HashMap::new();
    while !should_stop.load(Ordering::Relaxed) {
        let mut claims: Vec<(usize, u64, Vec<String>)> = Vec::new();
        for (node, endpoint) in servers.iter().enumerate() {
            let Some(view) = query_node(&mut connections, node, endpoint) else {
                connections.remove(&node);
                continue;
            };
            let now = history.now();
            if !view.is_master {
                reigning.remove(&node);
                continue;
            }
            let reign = *reigning.entry(node).or_insert_with(|| {
                seen.master_periods.push(MasterPeriod { node, since: now, until: now });
                seen.master_periods.len() - 1
            });
            seen.master_periods[reign].until = now;
            if let Some(epoch) = view.epoch {
                claims.push((node, epoch, view.slots));
            }
        }
        seen.violations.extend(find_conflicting_masters(&claims));
        std::thread::sleep(POLL_INTERVAL);
    }
    seen.violations.sort();
    seen.violations.dedup();
    seen
}

/// Returns a violation if two masters claim equal slots in one epoch, because nodes could not resolve that conflict.
fn find_conflicting_masters(claims: &[(usize, u64, Vec<String>)]) -> Option<String> {
    claims.iter().enumerate().find_map(|(at, (one, epoch, slots))| {
        let twin = claims[at + 1..]
            .iter()
            .find(|(_, other, theirs)| other == epoch && slots.iter().any(|range| theirs.contains(range)));
        twin.map(|(other, ..)| {
            format!("nodes {one} and {other} are masters of the same slots in epoch {epoch}")
        })
    })
}

struct NodeView {
    is_master: bool,
    epoch: Option<u64>,
    slots: Vec<String>,
}

fn query_node(
    connections: &mut HashMap<usize, Connection>,
    node: usize,
    endpoint: &Endpoint,
) -> Option<NodeView> {
    let connection = match connections.entry(node) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => {
            let mut connection = endpoint.connect().ok()?;
            connection.set_timeout(REPLY_TIMEOUT);
            place.insert(connection)
        }
    };
    let Reply::Array(role) = connection.try_call(&["ROLE"]).ok()? else { return None };
    let is_master = role[0].text() == "master";
    let (mut epoch, mut slots) = (None, Vec::new());
    if let Reply::Bulk(nodes) = connection.try_call(&["CLUSTER", "NODES"]).ok()? {
        let nodes = String::from_utf8_lossy(&nodes).into_owned();
        let own = nodes.lines().find(|line| line.contains("myself"))?;
        let words: Vec<&str> = own.split(' ').collect();
        epoch = words.get(6)?.parse().ok();
        slots =
            words[8..].iter().filter(|word| !word.starts_with('[')).map(|word| (*word).to_owned()).collect();
    }
    Some(NodeView { is_master: is_master && (epoch.is_none() || !slots.is_empty()), epoch, slots })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_conflict_only_within_one_epoch() {
        let claim = |node, epoch, range: &str| (node, epoch, vec![range.to_owned()]);
        let two = |claims: &[_]| find_conflicting_masters(claims).is_some();
        assert!(two(&[claim(0, 5, "0-100"), claim(1, 6, "101-200"), claim(3, 5, "0-100")]));
        assert!(!two(&[claim(0, 5, "0-100"), claim(3, 6, "0-100")]));
        assert!(!two(&[claim(0, 5, "0-100"), claim(1, 5, "101-200")]));
    }
}
