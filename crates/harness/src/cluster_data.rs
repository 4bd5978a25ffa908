//! Test data for clusters: one key per slot, written to the slot's master.

use crate::slots::{SLOT_COUNT, slot_of};
use crate::{Cluster, Connection, Node, Reply, slot_owner};

/// Returns one key for each slot. The index of the key is the number of the slot.
#[must_use]
pub fn keys_for_all_slots() -> Vec<String> {
    let mut keys = vec![String::new(); usize::from(SLOT_COUNT)];
    let mut missing = keys.len();
    for number in 0_u32.. {
        let key = format!("key:{number}");
        let place = &mut keys[usize::from(slot_of(&key))];
        if place.is_empty() {
            *place = key;
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    keys
}

/// Writes `count` keys, each to the master of its slot, and waits until the replicas have them. The value of a key is
/// the key itself.
///
/// # Panics
/// A write is refused.
pub fn fill_cluster(cluster: &Cluster, prefix: &str, count: usize) -> Vec<String> {
    let owners = slot_owners(cluster);
    let mut by_port: Vec<(u16, Vec<String>)> = Vec::new();
    let mut all = Vec::with_capacity(count);
    for number in 0..count {
        let key = format!("{prefix}:{number}");
        let port = owners[usize::from(slot_of(&key))];
        match by_port.iter_mut().find(|(known, _)| *known == port) {
            Some((_, keys)) => keys.push(key.clone()),
            None => by_port.push((port, vec![key.clone()])),
        }
        all.push(key);
    }
    for (port, keys) in by_port {
        let mut connection = Connection::open(("127.0.0.1", port)).expect("a master takes connections");
        for batch in keys.chunks(500) {
            for key in batch {
                connection.send(&["SET", key, key]).expect("a master takes commands");
            }
            for _ in batch {
                connection.read().expect("a master answers").expect_ok();
            }
        }
        wait_for_replicas(&mut connection);
    }
    all
}

/// Waits until the master's replicas have acknowledged the writes of this connection.
fn wait_for_replicas(connection: &mut Connection) {
    let role = connection.call_line("ROLE");
    let replicas = role.items()[2].items().len();
    if replicas > 0 {
        let acknowledged = connection.call(&["WAIT", &replicas.to_string(), "20000"]).int();
        assert_eq!(acknowledged, replicas as i64, "the replicas have all writes");
    }
}

/// Returns the keys of [`fill_cluster`] that are missing or have a wrong value, reading each from its slot's master.
///
/// # Panics
/// A slot has no master.
#[must_use]
pub fn find_lost_keys(cluster: &Cluster, keys: &[String]) -> Vec<String> {
    let owners = slot_owners(cluster);
    let mut connections: Vec<(u16, Connection)> = Vec::new();
    keys.iter()
        .filter(|key| {
            let port = owners[usize::from(slot_of(key))];
            if !connections.iter().any(|(known, _)| *known == port) {
                let connection = Connection::open(("127.0.0.1", port)).expect("a master takes connections");
                connections.push((port, connection));
            }
            let (_, connection) =
                connections.iter_mut().find(|(known, _)| *known == port).expect("it is there or was added");
            connection.call(&["GET", key]) != Reply::Bulk(key.as_bytes().to_vec())
        })
        .cloned()
        .collect()
}

/// Returns the port of each slot's master in the view of a running node.
fn slot_owners(cluster: &Cluster) -> Vec<u16> {
    let node = cluster.running_nodes().next().expect("a node runs");
    let reply = node.run("CLUSTER SLOTS");
    let mut owners = vec![0; usize::from(SLOT_COUNT)];
    for range in reply.items() {
        let range = range.items();
        let (first, last) = (range[0].int() as usize, range[1].int() as usize);
        owners[first..=last].fill(range[2].items()[1].int() as u16);
    }
    assert!(!owners.contains(&0), "every slot is served");
    owners
}

/// Returns the index of the slot's master in the view of node `witness`.
///
/// # Panics
/// The slot has no master.
#[must_use]
pub fn slot_owner_index(cluster: &Cluster, witness: usize, slot: u16) -> usize {
    let port = slot_owner(&mut cluster.nodes[witness].connect(), slot).expect("the slot is served");
    cluster.nodes.iter().position(|node| node.port == port).expect("a node of the cluster")
}

/// Returns the CPU time used by the process, in hundredths of a second.
///
/// # Panics
/// The process is not running.
#[must_use]
pub fn cpu_ticks(node: &Node) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.pid())).expect("the process is there");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields[11..13].iter().filter_map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_its_key() {
        let keys = keys_for_all_slots();
        assert!(keys.iter().enumerate().all(|(slot, key)| usize::from(slot_of(key)) == slot));
    }
}
