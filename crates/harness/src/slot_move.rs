//! Moves a slot between masters, with the same steps as redis-cli.

use std::io;
use std::time::Duration;

use crate::{Connection, Node, Reply, slot_owner};

const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of keys that one MIGRATE moves.
const KEYS_PER_MIGRATE: &str = "100";

/// Moves a slot with its keys to master `target`. Nodes that are not running are skipped.
///
/// # Errors
/// A node refused a step, which leaves the move incomplete; the error names the node and the reason.
///
/// # Panics
/// There is no node `target`.
pub fn move_slot(nodes: &[Node], slot: u16, target: usize) -> Result<(), String> {
    let running = || nodes.iter().filter(|node| node.is_running());
    let owner = running().find_map(|node| slot_owner(&mut connect_to_node(node).ok()?, slot));
    let owner = owner.ok_or_else(|| format!("nobody serves slot {slot}"))?;
    let source =
        running().find(|node| node.port == owner).ok_or_else(|| format!("{owner} is no node of ours"))?;
    let target = &nodes[target];
    if source.port == target.port {
        return Ok(());
    }
    let (from, to) = (
        send_command(source, &["CLUSTER", "MYID"])?.text(),
        send_command(target, &["CLUSTER", "MYID"])?.text(),
    );
    let number = slot.to_string();
    send_command(target, &["CLUSTER", "SETSLOT", &number, "IMPORTING", &from])?;
    send_command(source, &["CLUSTER", "SETSLOT", &number, "MIGRATING", &to])?;
    loop {
        let keys = send_command(source, &["CLUSTER", "GETKEYSINSLOT", &number, KEYS_PER_MIGRATE])?;
        if keys.items().is_empty() {
            break;
        }
        let (ip, port) = (target.ip().to_string(), target.port.to_string());
        let mut words =
            ["MIGRATE", &ip, &port, "", "0", "5000", "KEYS"].map(|word| word.as_bytes().to_vec()).to_vec();
        words.extend(keys.items().iter().map(bytes_of));
        send_command(source, &words)?;
    }
    // The new owner must learn of the move first, then the old owner, then the other masters.
    send_command(target, &["CLUSTER", "SETSLOT", &number, "NODE", &to])?;
    send_command(source, &["CLUSTER", "SETSLOT", &number, "NODE", &to])?;
    for node in running().filter(|node| node.port != source.port && node.port != target.port) {
        let Ok(role) = send_command(node, &["ROLE"]) else { continue };
        if role.items()[0].text() == "master" {
            send_command(node, &["CLUSTER", "SETSLOT", &number, "NODE", &to])?;
        }
    }
    Ok(())
}

fn bytes_of(key: &Reply) -> Vec<u8> {
    match key {
        Reply::Bulk(bytes) => bytes.clone(),
        other => other.text().into_bytes(),
    }
}

fn connect_to_node(node: &Node) -> io::Result<Connection> {
    let mut connection = node.try_connect()?;
    connection.set_timeout(STEP_TIMEOUT);
    Ok(connection)
}

fn send_command<A: AsRef<[u8]>>(node: &Node, words: &[A]) -> Result<Reply, String> {
    let reply = connect_to_node(node).and_then(|mut connection| connection.try_call(words));
    match reply {
        Ok(Reply::Error(text)) => Err(format!("{}: {text}", node.port)),
        Ok(reply) => Ok(reply),
        Err(error) => Err(format!("{}: {error}", node.port)),
    }
}
