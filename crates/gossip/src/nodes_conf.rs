//! Reads and writes `nodes.conf`, the persistent cluster state of a node.
//!
//! The format is that of Redis (CLUSTER NODES plus a `vars` line), so operators can read it and a node can be switched
//! between Redis, Valkey and Redoubt:
//!
//! ```text
//! <id> <ip>:<port>@<bus>[,<hostname>[,<key>=<value>]...] <flags> <master|-> <ping> <pong> <epoch> <link> [<slots>...]
//! vars currentEpoch <n> lastVoteEpoch <n>
//! ```
//!
//! The supported keys are `shard-id`, `nodename`, `tls-port` (Redis also writes `tcp-port`, which repeats the port
//! before it) and Valkey's `availability-zone`, `client-ipv4`, `client-ipv6`, `client-tcp-port` and `client-tls-port`.
//! Unknown keys are ignored. The file is replaced atomically by a rename, so a crash leaves the old or the new file; a
//! truncated file is therefore reported as corruption.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;

use clock::Instant;
use slot_routing::{ClientEndpoint, Epoch, NodeId, Slot};
use thiserror::Error;

use crate::config::ClusterConfig;
use crate::node::{Address, Handshake, Node, NodeHealth, Role};
use crate::nodes::Nodes;
use crate::slot_marks::SlotMarks;
use crate::slots::SlotTable;
use crate::state::ClusterState;

/// Why `nodes.conf` cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct NodesConfError {
    /// Line number, starting at 1.
    pub line: usize,
    /// A description of the error, for the log.
    pub reason: String,
}

/// The content of `nodes.conf`, from which a node is restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedConfig {
    pub(crate) my_id: NodeId,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) slots: SlotTable,
    pub(crate) marks: SlotMarks,
    pub(crate) current_epoch: Epoch,
    pub(crate) last_vote_epoch: Epoch,
}

impl SavedConfig {
    pub(crate) fn empty(me: NodeId) -> Self {
        Self {
            my_id: me,
            nodes: BTreeMap::new(),
            slots: SlotTable::new(),
            marks: SlotMarks::default(),
            current_epoch: Epoch(0),
            last_vote_epoch: Epoch(0),
        }
    }

    /// Returns the state of a node that starts with this content of `nodes.conf`.
    pub(crate) fn into_state(self, config: ClusterConfig) -> ClusterState {
        let nodes = Nodes::from(self.nodes);
        ClusterState::new(config, self.my_id, nodes, self.slots, self.marks, self.current_epoch)
    }
}

impl ClusterState {
    /// Formats the current state for `nodes.conf`.
    pub(crate) fn nodes_conf_text(&self, last_vote_epoch: Epoch) -> String {
        let mut text = String::new();
        let ranges = self.slot_ranges();
        for node in self.nodes.values().filter(|node| node.handshake.is_none()) {
            write_address(&mut text, node);
            self.write_node_state(&mut text, node, &ranges);
            text.push('\n');
        }
        let _ =
            writeln!(text, "vars currentEpoch {} lastVoteEpoch {}", self.current_epoch(), last_vote_epoch);
        text
    }
}

/// Writes the id and the address field with its additional keys.
fn write_address(text: &mut String, node: &Node) {
    let ip = node.address.ip.map_or_else(String::new, |ip| ip.to_string());
    let _ = write!(text, "{} {ip}:{}@{}", node.id, node.address.port, node.address.bus_port);
    let _ = write!(text, ",{},shard-id={}", node.hostname, node.shard);
    let ClientEndpoint { ipv4, ipv6, port, tls_port } = node.client_endpoint;
    let known = |port: u16| (port != 0).then(|| port.to_string());
    let said = |word: &String| (!word.is_empty()).then(|| word.clone());
    let further = [
        ("nodename", said(&node.human_name)),
        ("tls-port", known(node.address.secondary_port)),
        ("availability-zone", said(&node.zone)),
        ("client-ipv4", ipv4.map(|ip| ip.to_string())),
        ("client-ipv6", ipv6.map(|ip| ip.to_string())),
        ("client-tcp-port", known(port)),
        ("client-tls-port", known(tls_port)),
    ];
    for (key, value) in further {
        if let Some(value) = value {
            let _ = write!(text, ",{key}={value}");
        }
    }
}

/// Parses the content of the file.
pub(crate) fn parse(text: &str) -> Result<SavedConfig, NodesConfError> {
    let mut reader = NodesConfParser {
        saved_config: SavedConfig::empty(NodeId::from_random([0; 20])),
        my_id: None,
        replica_masters: Vec::new(),
    };
    for (index, line) in text.lines().enumerate() {
        let at = |reason: String| NodesConfError { line: index + 1, reason };
        if !line.is_empty() {
            reader.parse_line(line).map_err(at)?;
        }
    }
    let last = text.lines().count().max(1);
    let at_end = |reason: &str| NodesConfError { line: last, reason: reason.to_owned() };
    // Some editors drop the final newline. A file without it is accepted only if the last line is complete.
    let is_last = |line: &str| line.starts_with("vars ") && line.contains(" lastVoteEpoch ");
    if !text.ends_with('\n') && !text.lines().last().is_some_and(is_last) {
        return Err(at_end("the last line is cut short"));
    }
    let Some(me) = reader.my_id else { return Err(at_end("no line is marked as myself")) };
    reader.link_replicas().map_err(|reason| at_end(&reason))?;
    let mut saved = reader.saved_config;
    saved.my_id = me;
    // The node has seen every claimed epoch, even if the `vars` line is older.
    let claimed = saved.nodes.values().map(|node| node.config_epoch).max().unwrap_or_default();
    saved.current_epoch = saved.current_epoch.max(claimed);
    Ok(saved)
}

struct NodesConfParser {
    saved_config: SavedConfig,
    my_id: Option<NodeId>,
    /// Each replica with its master. Resolved at the end, because the line of the master may follow that of the
    /// replica.
    replica_masters: Vec<(NodeId, NodeId)>,
}

impl NodesConfParser {
    fn parse_line(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        if words.first() == Some(&"vars") {
            return self.parse_vars(&words[1..]);
        }
        let [id, address, flags, master, _ping, _pong, epoch, _link, slots @ ..] = &words[..] else {
            return Err("a node line needs at least eight fields".to_owned());
        };
        let id = parse_id(id)?;
        if self.saved_config.nodes.contains_key(&id) {
            return Err(format!("node {id} occurs twice"));
        }
        let mut node = Node::new(id, Address::default(), Instant::ORIGIN);
        parse_address(&mut node, address)?;
        for flag in flags.split(',') {
            self.parse_flag(&mut node, flag)?;
        }
        if *master != "-" {
            self.replica_masters.push((id, parse_id(master)?));
        }
        let epoch = parse_epoch(epoch)?;
        // A replica's line contains its master's epoch. If the replica kept this epoch as its own, a later promotion of
        // the replica under a lower epoch would be ignored.
        node.config_epoch = if node.is_master() { epoch } else { Epoch(0) };
        self.saved_config.nodes.insert(id, node);
        slots.iter().try_for_each(|word| self.parse_slot_word(id, word))
    }

    fn parse_vars(&mut self, words: &[&str]) -> Result<(), String> {
        for pair in words.chunks(2) {
            let [name, value] = pair else { return Err("a variable without a value".to_owned()) };
            match *name {
                "currentEpoch" => self.saved_config.current_epoch = parse_epoch(value)?,
                "lastVoteEpoch" => self.saved_config.last_vote_epoch = parse_epoch(value)?,
                // As in Redis, ignore variables of newer versions.
                _ => {}
            }
        }
        Ok(())
    }

    fn parse_flag(&mut self, node: &mut Node, flag: &str) -> Result<(), String> {
        match flag {
            "myself" => {
                if self.my_id.replace(node.id).is_some() {
                    return Err("a second line is marked as myself".to_owned());
                }
            }
            "master" => node.role = Role::Master,
            "slave" => node.role = Role::Replica(None),
            // PFAIL is transient and is not restored, unlike FAIL.
            "fail?" | "noaddr" | "noflags" => {}
            "fail" => node.health = NodeHealth::Failed { since: Instant::ORIGIN },
            "handshake" => {
                node.handshake = Some(Handshake { started_at: Instant::ORIGIN, sends_meet: false });
            }
            "nofailover" => node.disables_failover = true,
            other => return Err(format!("unknown flag '{other}'")),
        }
        Ok(())
    }

    /// Parses a slot `n`, a range `n-m`, or a mark `[n->-id]` or `[n-<-id]`.
    fn parse_slot_word(&mut self, id: NodeId, word: &str) -> Result<(), String> {
        if let Some(moving) = word.strip_prefix('[') {
            let moving = moving.strip_suffix(']').ok_or_else(|| format!("'{word}' is not a slot"))?;
            let (arrow, mark): (_, fn(&mut SlotMarks, Slot, NodeId)) = if moving.contains("->-") {
                ("->-", SlotMarks::mark_migrating)
            } else {
                ("-<-", SlotMarks::mark_importing)
            };
            let (slot, other) = moving.split_once(arrow).ok_or_else(|| format!("'{word}' is not a slot"))?;
            mark(&mut self.saved_config.marks, parse_slot(slot)?, parse_id(other)?);
            return Ok(());
        }
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let (first, last) = (parse_slot(first)?, parse_slot(last)?);
        for number in first.number()..=last.number() {
            self.saved_config.slots.assign(Slot::new(number).expect("below the last"), id);
        }
        Ok(())
    }

    fn link_replicas(&mut self) -> Result<(), String> {
        for (replica, master) in std::mem::take(&mut self.replica_masters) {
            if !self.saved_config.nodes.contains_key(&master) {
                return Err(format!("node {replica} replicates {master}, which has no line"));
            }
            if self.saved_config.slots.slot_count(replica) > 0 {
                return Err(format!("replica {replica} owns slots"));
            }
            let shard = self.saved_config.nodes[&master].shard;
            let node = self.saved_config.nodes.get_mut(&replica).expect("its line was read");
            node.role = Role::Replica(Some(master));
            node.shard = shard;
        }
        let known = |id: &NodeId| self.saved_config.nodes.contains_key(id);
        if !self.saved_config.marks.peer_nodes().all(|id| known(&id)) {
            return Err("a slot moves to or from a node that has no line".to_owned());
        }
        self.drop_handshakes()
    }

    /// Drops the nodes in handshake, which will be met again. Their ids are temporary, so no other line may refer to
    /// them.
    fn drop_handshakes(&mut self) -> Result<(), String> {
        let saved = &mut self.saved_config;
        let masters = saved.nodes.values().filter_map(Node::master);
        let named: BTreeSet<NodeId> = saved.marks.peer_nodes().chain(masters).chain(self.my_id).collect();
        for node in saved.nodes.values().filter(|node| node.handshake.is_some()) {
            if named.contains(&node.id) || saved.slots.slot_count(node.id) > 0 {
                return Err(format!(
                    "node {} is in handshake but is referenced by the cluster configuration",
                    node.id
                ));
            }
        }
        saved.nodes.retain(|_, node| node.handshake.is_none());
        Ok(())
    }
}

/// Parses `ip:port@bus[,hostname[,key=value]...]`; an IPv6 address contains colons.
fn parse_address(node: &mut Node, text: &str) -> Result<(), String> {
    let bad = || format!("'{text}' is not an address");
    let mut parts = text.split(',');
    let address = parts.next().ok_or_else(bad)?;
    let (ip, ports) = address.rsplit_once(':').ok_or_else(bad)?;
    let (port, bus_port) = match ports.split_once('@') {
        Some((port, bus)) => (port.parse().map_err(|_| bad())?, bus.parse().map_err(|_| bad())?),
        None => {
            let port: u16 = ports.parse().map_err(|_| bad())?;
            (port, port.checked_add(10_000).ok_or_else(bad)?)
        }
    };
    let ip: Option<IpAddr> = if ip.is_empty() { None } else { Some(ip.parse().map_err(|_| bad())?) };
    node.address = Address { ip, port, secondary_port: 0, bus_port };
    parts.next().unwrap_or_default().clone_into(&mut node.hostname);
    for part in parts {
        let (key, value) = part.split_once('=').ok_or_else(bad)?;
        match key {
            "shard-id" => node.shard = parse_id(value)?,
            "nodename" => value.clone_into(&mut node.human_name),
            "availability-zone" => value.clone_into(&mut node.zone),
            "client-ipv4" => node.client_endpoint.ipv4 = Some(value.parse().map_err(|_| bad())?),
            "client-ipv6" => node.client_endpoint.ipv6 = Some(value.parse().map_err(|_| bad())?),
            "client-tcp-port" => node.client_endpoint.port = value.parse().map_err(|_| bad())?,
            "client-tls-port" => node.client_endpoint.tls_port = value.parse().map_err(|_| bad())?,
            "tls-port" => node.address.secondary_port = value.parse().map_err(|_| bad())?,
            _ => {}
        }
    }
    Ok(())
}

fn parse_id(text: &str) -> Result<NodeId, String> {
    text.parse().map_err(|_| format!("'{text}' is not a node id"))
}

fn parse_epoch(text: &str) -> Result<Epoch, String> {
    let epoch = text.parse().ok().filter(|epoch| *epoch < crate::wire::MAX_EPOCH);
    epoch.map(Epoch).ok_or_else(|| format!("'{text}' is not an epoch"))
}

fn parse_slot(text: &str) -> Result<Slot, String> {
    text.parse().ok().and_then(Slot::new).ok_or_else(|| format!("'{text}' is not a slot"))
}
