//! Asking servers for their facts.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
use redis::{Client, Connection, ConnectionAddr, ConnectionInfo};

use super::{Node, Peer, Place};

/// A node that has not answered by then is one that cannot be reached.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The facts of a server that was asked already, and of all other nodes of its cluster.
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

/// The way to another address with the same password and, where there is TLS, the same certificates.
pub(in crate::doctor) fn at(info: &ConnectionInfo, address: &str) -> Result<ConnectionInfo> {
    let (host, port) = address.rsplit_once(':').ok_or_else(|| anyhow!("{address} is no address"))?;
    let (host, port) = (host.to_owned(), port.parse().with_context(|| format!("{address} is no address"))?);
    let there = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    Ok(info.clone().set_addr(there))
}

/// A connection to a server that must answer soon.
///
/// # Errors
/// It cannot be reached, or refuses the password.
pub(in crate::doctor) fn connect(info: &ConnectionInfo) -> Result<Connection> {
    let connection = Client::open(info.clone())?.get_connection_with_timeout(TIMEOUT)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    Ok(connection)
}

/// The facts of the server there.
///
/// # Errors
/// It cannot be asked.
pub(in crate::doctor) fn ask_at(info: &ConnectionInfo, address: &str) -> Result<Node> {
    let mut connection = connect(info)?;
    let before = now();
    let info: String = redis::cmd("INFO").query(&mut connection)?;
    let after = now();
    let info = fields(&info);
    let is = |wanted: &str, value: &str| info.iter().any(|(name, is)| name == wanted && is == value);
    let told = info.iter().find(|(name, _)| name == "server_time_usec");
    let told = told.and_then(|(_, micros)| micros.parse::<i64>().ok());
    // It looked at its clock somewhere between the question and the answer.
    let clock_ahead = told.map(|micros| micros / 1000 - (before + after) / 2);
    let place = if is("cluster_enabled", "1") { Some(place(&mut connection)?) } else { None };
    Ok(Node { address: address.to_owned(), clock_ahead, info, place, ..Node::default() })
}

fn place(connection: &mut Connection) -> Result<Place> {
    let state: String = redis::cmd("CLUSTER").arg("INFO").query(connection)?;
    let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(connection)?;
    Ok(Place { is_ok: state.contains("cluster_state:ok"), ..read_place(&nodes) })
}

/// The lines `name:value`.
fn fields(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

/// The lines of CLUSTER NODES. Nodes that are not known yet, and those without an address, are left out.
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

/// The slots of `5` or `5-9`; one that is on the move (`[5->-...]`) stands among those already.
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
    let address = (host, port).to_socket_addrs()?.next().ok_or_else(|| anyhow!("{host} has no address"))?;
    TcpStream::connect_timeout(&address, TIMEOUT).with_context(|| format!("port {port}"))?;
    Ok(())
}

/// Milliseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
