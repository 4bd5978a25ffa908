//! Watches which nodes are masters, from beside each of them: its connections stand however the network is cut.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Connection, Endpoint, Value};

use crate::{History, Reign};

const PERIOD: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_millis(200);

/// The masters and the violations that the observer saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) reigns: Vec<Reign>,
    pub(crate) violations: Vec<String>,
}

/// Looks until it is told to stop.
pub(crate) fn observe(servers: &[Endpoint], history: &History, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut connections: HashMap<usize, Connection> = HashMap::new();
    let mut reigning: HashMap<usize, usize> = HashMap::new();
    while !stop.load(Ordering::Relaxed) {
        let mut claims: Vec<(usize, u64, Vec<String>)> = Vec::new();
        for (node, endpoint) in servers.iter().enumerate() {
            let Some(view) = look(&mut connections, node, endpoint) else {
                connections.remove(&node);
                continue;
            };
            let now = history.now();
            if !view.is_master {
                reigning.remove(&node);
                continue;
            }
            let reign = *reigning.entry(node).or_insert_with(|| {
                seen.reigns.push(Reign { node, since: now, until: now });
                seen.reigns.len() - 1
            });
            seen.reigns[reign].until = now;
            if let Some(epoch) = view.epoch {
                claims.push((node, epoch, view.slots));
            }
        }
        seen.violations.extend(two_of_one_epoch(&claims));
        std::thread::sleep(PERIOD);
    }
    seen.violations.sort();
    seen.violations.dedup();
    seen
}

/// Two masters that claim the same slots in the same epoch: no node could tell which of them is right.
fn two_of_one_epoch(claims: &[(usize, u64, Vec<String>)]) -> Option<String> {
    claims.iter().enumerate().find_map(|(at, (one, epoch, slots))| {
        let twin = claims[at + 1..]
            .iter()
            .find(|(_, other, theirs)| other == epoch && slots.iter().any(|range| theirs.contains(range)));
        twin.map(|(other, ..)| {
            format!("nodes {one} and {other} are masters of the same slots in epoch {epoch}")
        })
    })
}

struct View {
    is_master: bool,
    epoch: Option<u64>,
    slots: Vec<String>,
}

fn look(connections: &mut HashMap<usize, Connection>, node: usize, endpoint: &Endpoint) -> Option<View> {
    let connection = match connections.entry(node) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => {
            let mut connection = endpoint.connect().ok()?;
            connection.set_timeout(TIMEOUT);
            place.insert(connection)
        }
    };
    let Value::Array(role) = connection.try_call(&["ROLE"]).ok()? else { return None };
    let is_master = role[0].text() == "master";
    let (mut epoch, mut slots) = (None, Vec::new());
    if let Value::Bulk(nodes) = connection.try_call(&["CLUSTER", "NODES"]).ok()? {
        let nodes = String::from_utf8_lossy(&nodes).into_owned();
        let own = nodes.lines().find(|line| line.contains("myself"))?;
        let words: Vec<&str> = own.split(' ').collect();
        epoch = words.get(6)?.parse().ok();
        slots =
            words[8..].iter().filter(|word| !word.starts_with('[')).map(|word| (*word).to_owned()).collect();
    }
    Some(View { is_master: is_master && (epoch.is_none() || !slots.is_empty()), epoch, slots })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_masters_of_the_same_slots_are_told_by_their_epoch() {
        let claim = |node, epoch, range: &str| (node, epoch, vec![range.to_owned()]);
        let two = |claims: &[_]| two_of_one_epoch(claims).is_some();
        assert!(two(&[claim(0, 5, "0-100"), claim(1, 6, "101-200"), claim(3, 5, "0-100")]));
        assert!(!two(&[claim(0, 5, "0-100"), claim(3, 6, "0-100")]));
        assert!(!two(&[claim(0, 5, "0-100"), claim(1, 5, "101-200")]));
    }
}
