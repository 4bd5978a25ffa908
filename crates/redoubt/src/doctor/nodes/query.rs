//! Queries servers for the facts that the checks need.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
use redis::{Client, Connection, ConnectionAddr, ConnectionInfo};

use super::{ClusterPeer, ClusterView, ServerFacts};

/// A node that does not respond within this time counts as unreachable.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns the facts about `first` and all other nodes of its cluster.
pub(in crate::doctor) fn query_all_nodes(info: &ConnectionInfo, first: ServerFacts) -> Vec<ServerFacts> {
    let Some(place) = first.cluster_view.clone() else { return vec![first] };
    let mut nodes = Vec::new();
    for peer in &place.peers {
        let mut node = if peer.id == place.id {
            ServerFacts { address: peer.address.clone(), ..first.clone() }
        } else {
            let at = with_address(info, &peer.address);
            at.and_then(|at| query_server(&at, &peer.address)).unwrap_or_else(|error| ServerFacts {
                address: peer.address.clone(),
                connect_error: Some(crate::error_text(&error)),
                ..ServerFacts::default()
            })
        };
        node.bus_error =
            check_port(host_of(&peer.address), peer.bus_port).err().map(|error| crate::error_text(&error));
        nodes.push(node);
    }
    nodes
}

/// Returns the connection info for another address, with the same credentials and TLS settings.
pub(in crate::doctor) fn with_address(info: &ConnectionInfo, address: &str) -> Result<ConnectionInfo> {
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
pub(in crate::doctor) fn connect_with_timeout(info: &ConnectionInfo) -> Result<Connection> {
    let connection = Client::open(info.clone())?.get_connection_with_timeout(QUERY_TIMEOUT)?;
    connection.set_read_timeout(Some(QUERY_TIMEOUT))?;
    connection.set_write_timeout(Some(QUERY_TIMEOUT))?;
    Ok(connection)
}

/// Queries the facts about a server.
///
/// # Errors
/// The server cannot be queried.
pub(in crate::doctor) fn query_server(info: &ConnectionInfo, address: &str) -> Result<ServerFacts> {
    let mut connection = connect_with_timeout(info)?;
    let before = now_millis();
    let info: String = redis::cmd("INFO").query(&mut connection)?;
    let after = now_millis();
    let info = parse_info(&info);
    let is = |wanted: &str, value: &str| info.iter().any(|(name, is)| name == wanted && is == value);
    let told = info.iter().find(|(name, _)| name == "server_time_usec");
    let told = told.and_then(|(_, micros)| micros.parse::<i64>().ok());
    // The server read its clock between request and reply; the midpoint is the best estimate.
    let clock_ahead = told.map(|micros| micros / 1000 - (before + after) / 2);
    let place = if is("cluster_enabled", "1") { Some(query_cluster_view(&mut connection)?) } else { None };
    Ok(ServerFacts {
        address: address.to_owned(),
        clock_ahead_ms: clock_ahead,
        info_fields: info,
        cluster_view: place,
        ..ServerFacts::default()
    })
}

fn query_cluster_view(connection: &mut Connection) -> Result<ClusterView> {
    let state: String = redis::cmd("CLUSTER").arg("INFO").query(connection)?;
    let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(connection)?;
    Ok(ClusterView { is_ok: state.contains("cluster_state:ok"), ..parse_cluster_nodes(&nodes) })
}

/// Parses lines of `name:value`.
fn parse_info(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

/// Parses CLUSTER NODES, skipping nodes in handshake and nodes without an address.
pub(super) fn parse_cluster_nodes(text: &str) -> ClusterView {
    let mut place = ClusterView::default();
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
        place.peers.push(ClusterPeer {
            id: (*id).to_owned(),
            address: address.to_owned(),
            bus_port: bus_port.parse().unwrap_or(0),
            master_id: Some((*master).to_owned()).filter(|master| master != "-"),
            has_failed: has("fail"),
            is_linked: *link == "connected",
            slot_count: slots.iter().map(|range| count_slots(range)).sum(),
        });
    }
    place
}

/// Returns the number of slots in `5` or `5-9`. Migrating slots (`[5->-...]`) are already included in other ranges.
fn count_slots(range: &str) -> usize {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) if first <= last => last - first + 1,
        _ => 0,
    }
}

fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

fn check_port(host: &str, port: u16) -> Result<()> {
    let address = (host, port).to_socket_addrs()?.next().ok_or_else(|| anyhow!("{host} does not resolve"))?;
    TcpStream::connect_timeout(&address, QUERY_TIMEOUT).with_context(|| format!("port {port}"))?;
    Ok(())
}

fn now_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
