//! Queries servers.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
use redis::{Client, Connection, ConnectionAddr, ConnectionInfo};

use super::{Node, Peer, Place};

/// A node that does not respond within this time counts as unreachable.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Returns the facts about `first` and all other nodes of its cluster.
pub(in crate::doctor) fn gather(info: &ConnectionInfo, first: Node) -> Vec<Node> {
    let Some(place) = first.place.clone() else { return vec![first] };
    let mut nodes = Vec::new();
    for peer in &place.peers {
        let mut node = if peer.id == place.id {
            Node { address: peer.address.clone(), ..first.clone() }
        } else {
            let at = at(info, &peer.address);
            at.and_then(|at| ask_at(&at, &peer.address)).unwrap_or_else(|error| Node {
                address: peer.address.clone(),
                refusal: Some(crate::error_text(&error)),
                ..Node::default()
            })
        };
        node.bus_refusal =
            reach(host_of(&peer.address), peer.bus_port).err().map(|error| crate::error_text(&error));
        nodes.push(node);
    }
    nodes
}

/// Connection info for another address with the same credentials and TLS settings.
pub(in crate::doctor) fn at(info: &ConnectionInfo, address: &str) -> Result<ConnectionInfo> {
    let (host, port) = address.rsplit_once(':').ok_or_else(|| anyhow!("invalid address: {address}"))?;
    let (host, port) =
        (host.to_owned(), port.parse().with_context(|| format!("invalid address: {address}"))?);
    let there = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    Ok(info.clone().set_addr(there))
}

/// Connects with a timeout for connecting and for replies.
///
/// # Errors
/// The server is unreachable or rejects the credentials.
pub(in crate::doctor) fn connect(info: &ConnectionInfo) -> Result<Connection> {
    let connection = Client::open(info.clone())?.get_connection_with_timeout(TIMEOUT)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    Ok(connection)
}

/// Queries the facts about a server.
///
/// # Errors
/// The server cannot be queried.
pub(in crate::doctor) fn ask_at(info: &ConnectionInfo, address: &str) -> Result<Node> {
    let mut connection = connect(info)?;
    let before = now();
    let info: String = redis::cmd("INFO").query(&mut connection)?;
    let after = now();
    let info = fields(&info);
    let is = |wanted: &str, value: &str| info.iter().any(|(name, is)| name == wanted && is == value);
    let told = info.iter().find(|(name, _)| name == "server_time_usec");
    let told = told.and_then(|(_, micros)| micros.parse::<i64>().ok());
    // The server read its clock between request and reply; the midpoint is the best estimate.
    let clock_ahead = told.map(|micros| micros / 1000 - (before + after) / 2);
    let place = if is("cluster_enabled", "1") { Some(place(&mut connection)?) } else { None };
    Ok(Node { address: address.to_owned(), clock_ahead, info, place, ..Node::default() })
}

fn place(connection: &mut Connection) -> Result<Place> {
    let state: String = redis::cmd("CLUSTER").arg("INFO").query(connection)?;
    let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(connection)?;
    Ok(Place { is_ok: state.contains("cluster_state:ok"), ..read_place(&nodes) })
}

/// Parses lines of `name:value`.
fn fields(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

/// Parses CLUSTER NODES, skipping nodes in handshake and nodes without an address.
pub(super) fn read_place(text: &str) -> Place {
    let mut place = Place::default();
    for words in text.lines().map(|line| line.split(' ').collect::<Vec<_>>()) {
        let [id, address, flags, master, _, _, _, link, slots @ ..] = words.as_slice() else { continue };
        let has = |flag: &str| flags.split(',').any(|known| known == flag);
        if has("myself") {
            (*id).clone_into(&mut place.id);
        }
        let Some((address, bus_port)) = address.split(',').next().and_then(|address| address.split_once('@'))
        else {
            continue;
        };
        if has("handshake") || has("noaddr") {
            continue;
        }
        place.peers.push(Peer {
            id: (*id).to_owned(),
            address: address.to_owned(),
            bus_port: bus_port.parse().unwrap_or(0),
            master: Some((*master).to_owned()).filter(|master| master != "-"),
            has_failed: has("fail"),
            is_linked: *link == "connected",
            slots: slots.iter().map(|range| count(range)).sum(),
        });
    }
    place
}

/// The number of slots in `5` or `5-9`. Migrating slots (`[5->-...]`) are already included in other ranges.
fn count(range: &str) -> usize {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) if first <= last => last - first + 1,
        _ => 0,
    }
}

fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

fn reach(host: &str, port: u16) -> Result<()> {
    let address = (host, port).to_socket_addrs()?.next().ok_or_else(|| anyhow!("{host} does not resolve"))?;
    TcpStream::connect_timeout(&address, TIMEOUT).with_context(|| format!("port {port}"))?;
    Ok(())
}

/// Unix time in milliseconds.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
