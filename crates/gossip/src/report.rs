//! The texts of operator commands (CLUSTER NODES, REPLICAS, INFO), and the topology for routing.

use std::collections::BTreeMap;
use std::fmt::Write;

use clock::Instant;
use slot_routing::{ClientTransport, Endpoint, Member, NodeId, Slot, Topology};

use crate::commands::OperatorError;
use crate::node::Node;
use crate::state::ClusterState;
use crate::stats::{LinkTraffic, MessageStats};
use crate::wire::MessageKind;

/// The slot ranges of each owner; both ends of a range are inclusive.
pub(crate) type OwnerRanges = BTreeMap<NodeId, Vec<(Slot, Slot)>>;

impl ClusterState {
    /// The text of CLUSTER NODES, one line per node. `transport` selects the address that the client can reach.
    #[must_use]
    pub fn nodes_text(&self, transport: ClientTransport) -> String {
        let mut text = String::new();
        let ranges = self.slot_ranges();
        for node in self.nodes.values() {
            self.write_node(&mut text, node, transport, &ranges);
            text.push('\n');
        }
        text
    }

    /// The slot ranges of each owner.
    pub(crate) fn slot_ranges(&self) -> OwnerRanges {
        let mut ranges = OwnerRanges::new();
        for (first, last, owner) in self.slots.owner_ranges() {
            ranges.entry(owner).or_default().push((first, last));
        }
        ranges
    }

    /// The lines of CLUSTER REPLICAS. `transport` selects the address that the client can reach.
    ///
    /// # Errors
    /// The node is unknown or is not a master.
    pub fn replicas_text(
        &self,
        master: &str,
        transport: ClientTransport,
    ) -> Result<Vec<String>, OperatorError> {
        let master = self.find_node(master)?;
        if !self.nodes[&master].is_master() {
            return Err(OperatorError::NotAMaster);
        }
        let ranges = self.slot_ranges();
        let replicas = self.nodes.values().filter(|node| node.master() == Some(master));
        Ok(replicas
            .map(|node| {
                let mut line = String::new();
                self.write_node(&mut line, node, transport, &ranges);
                line
            })
            .collect())
    }

    /// Writes `id ip:port@bus[,hostname] flags master ping pong epoch link slots...`.
    fn write_node(&self, text: &mut String, node: &Node, transport: ClientTransport, ranges: &OwnerRanges) {
        let endpoint = self.node_endpoint(node);
        let (ip, port) = (endpoint.client_ip(transport), endpoint.client_port(transport));
        let _ = write!(text, "{} {ip}:{port}@{}", node.id, endpoint.bus_port);
        if !node.hostname.is_empty() {
            let _ = write!(text, ",{}", node.hostname);
        }
        self.write_node_state(text, node, ranges);
    }

    pub(crate) fn write_node_state(&self, text: &mut String, node: &Node, ranges: &OwnerRanges) {
        let millis = |time: Option<Instant>| time.map_or(0, |time| self.wall_time_at(time).0);
        let master = node.master().and_then(|id| self.nodes.get(&id));
        let epoch = self.claimed_epoch(node);
        let connected = node.link.is_up() || node.id == self.id();
        let _ = write!(
            text,
            " {} {} {} {} {epoch} {}",
            self.flag_names(node),
            master.map_or("-", |master| master.id.as_str()),
            millis(node.contact_times.ping_sent_at),
            millis(node.contact_times.pong_received_at),
            if connected { "connected" } else { "disconnected" },
        );
        for (first, last) in ranges.get(&node.id).into_iter().flatten() {
            let _ = match first == last {
                true => write!(text, " {first}"),
                false => write!(text, " {first}-{last}"),
            };
        }
        if node.id == self.id() {
            for (slot, to) in self.marks.migrating() {
                let _ = write!(text, " [{slot}->-{to}]");
            }
            for (slot, from) in self.marks.importing() {
                let _ = write!(text, " [{slot}-<-{from}]");
            }
        }
    }

    fn flag_names(&self, node: &Node) -> String {
        let words = [
            (node.id == self.id(), "myself"),
            (node.is_master() && node.handshake.is_none(), "master"),
            (!node.is_master(), "slave"),
            (node.is_suspected(), "fail?"),
            (node.has_failed(), "fail"),
            (node.handshake.is_some(), "handshake"),
            (node.address.ip.is_none() && node.id != self.id(), "noaddr"),
            (node.disables_failover, "nofailover"),
        ];
        let set: Vec<&str> = words.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect();
        if set.is_empty() { "noflags".to_owned() } else { set.join(",") }
    }

    /// The text of CLUSTER INFO. The driver counts `traffic`.
    pub(crate) fn info_text(&self, traffic: &LinkTraffic, stats: &MessageStats) -> String {
        let slots_of = |wanted: fn(&Node) -> bool| -> usize {
            let owners = self.slots.owners();
            owners.filter(|(id, _)| self.nodes.get(id).is_some_and(wanted)).map(|(_, count)| count).sum()
        };
        let nodes = |wanted: fn(&Node) -> bool| self.nodes.values().filter(|node| wanted(node)).count();
        let voters = |wanted: fn(&Node) -> bool| {
            self.nodes.values().filter(|node| wanted(node) && self.is_voter(node.id)).count()
        };
        let epoch = self.claimed_epoch(self.myself());
        let mut text = format!(
            "cluster_state:{}\r\ncluster_slots_assigned:{}\r\ncluster_slots_ok:{}\r\n\
             cluster_slots_pfail:{}\r\ncluster_slots_fail:{}\r\n\
             cluster_nodes_pfail:{}\r\ncluster_nodes_fail:{}\r\n\
             cluster_voting_nodes_pfail:{}\r\ncluster_voting_nodes_fail:{}\r\ncluster_known_nodes:{}\r\n\
             cluster_size:{}\r\ncluster_current_epoch:{}\r\ncluster_my_epoch:{epoch}\r\n",
            if self.is_serving() { "ok" } else { "fail" },
            self.slots.assigned_count(),
            slots_of(Node::is_healthy),
            slots_of(Node::is_suspected),
            slots_of(Node::has_failed),
            nodes(Node::is_suspected),
            nodes(Node::has_failed),
            voters(Node::is_suspected),
            voters(Node::has_failed),
            self.nodes.len(),
            self.voter_count(),
            self.current_epoch(),
        );
        write_message_counts(&mut text, stats);
        let LinkTraffic {
            bytes_sent, bytes_received, published_bytes_sent, published_bytes_received, ..
        } = traffic;
        // Module messages are not supported. Their fields are written because monitoring tools expect them.
        let _ = write!(
            text,
            "cluster_stats_bytes_sent:{bytes_sent}\r\ncluster_stats_bytes_received:{bytes_received}\r\n\
             cluster_stats_pubsub_bytes_sent:{published_bytes_sent}\r\n\
             cluster_stats_pubsub_bytes_received:{published_bytes_received}\r\n\
             cluster_stats_module_bytes_sent:0\r\ncluster_stats_module_bytes_received:0\r\n\
             total_cluster_links_buffer_limit_exceeded:{}\r\n",
            traffic.overflowed_links
        );
        text
    }

    /// Returns the topology by which clients are redirected.
    #[must_use]
    pub fn topology(&self) -> Topology {
        let members = self.nodes.values().filter_map(|node| self.topology_member(node)).collect();
        let mut topology = Topology::new(self.id(), self.current_epoch(), self.is_serving(), members);
        for (first, last, owner) in self.slots.owner_ranges() {
            topology.assign_range(first, last, owner);
        }
        for (&slot, &to) in self.marks.migrating() {
            topology.mark_migrating(slot, to);
        }
        for (&slot, &from) in self.marks.importing() {
            topology.mark_importing(slot, from);
        }
        topology
    }

    /// Converts a node to a member of the topology. Returns `None` for nodes in handshake and replicas of unknown
    /// masters, other than this node itself.
    fn topology_member(&self, node: &Node) -> Option<Member> {
        let role = match node.role {
            crate::node::Role::Replica(Some(master)) => slot_routing::Role::Replica(master),
            crate::node::Role::Replica(None) if node.id != self.id() => return None,
            _ => slot_routing::Role::Master,
        };
        if node.handshake.is_some() {
            return None;
        }
        let me = node.id == self.id();
        Some(Member {
            id: node.id,
            shard: node.shard,
            endpoint: self.node_endpoint(node),
            role,
            config_epoch: self.claimed_epoch(node),
            offset: if me { self.replication().offset } else { node.offset },
            has_failed: node.has_failed(),
            is_suspected: node.is_suspected(),
        })
    }

    fn node_endpoint(&self, node: &Node) -> Endpoint {
        let (port, tls_port) = self.client_ports(&node.address);
        Endpoint {
            ip: node.address.ip.map_or_else(String::new, |ip| ip.to_string()),
            hostname: node.hostname.clone(),
            port,
            tls_port,
            bus_port: node.address.bus_port,
            client_endpoint: node.client_endpoint,
            zone: node.zone.clone(),
        }
    }
}

fn write_message_counts(text: &mut String, stats: &MessageStats) {
    for (word, count) in [
        ("sent", MessageStats::sent_count as fn(&MessageStats, MessageKind) -> u64),
        ("received", MessageStats::received_count),
    ] {
        let mut total = 0;
        for kind in MessageKind::ALL {
            let messages = count(stats, kind);
            total += messages;
            if messages > 0 {
                let _ = write!(text, "cluster_stats_messages_{}_{word}:{messages}\r\n", kind.wire_name());
            }
        }
        let _ = write!(text, "cluster_stats_messages_{word}:{total}\r\n");
    }
}
