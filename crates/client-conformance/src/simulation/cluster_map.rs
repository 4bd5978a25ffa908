//! Builds replies that describe the cluster or, on sentinels, the master.

use std::fmt::Write as _;

use harness::slot_of;
use resp::Value;

use super::{ClusterSimulation, NodeIndex, ReportedView, Role, SimulatedNode, bulk_reply};
use crate::protocol::DiscoveryMode;
use crate::scenario::{ConnectionHandling, ReportedMap};

/// The name under which the scripted sentinels know the master.
pub const MASTER_NAME: &str = "mymaster";

/// The first slot, the last slot and the master of a slot range.
type SlotRange = (u16, u16, NodeIndex);

impl ClusterSimulation {
    fn slot_ranges(&self, reported_map: ReportedMap) -> Vec<SlotRange> {
        let owners = match reported_map {
            ReportedMap::Current | ReportedMap::NullHost | ReportedMap::Hostnames => &self.slot_owners,
            ReportedMap::Initial => &self.initial_owners,
            ReportedMap::Empty => return Vec::new(),
        };
        let mut ranges: Vec<SlotRange> = Vec::new();
        for (slot, owner) in owners.iter().enumerate() {
            let (slot, Some(owner)) = (slot as u16, *owner) else { continue };
            match ranges.last_mut() {
                Some((_, last, known)) if *known == owner && *last + 1 == slot => *last = slot,
                _ => ranges.push((slot, slot, owner)),
            }
        }
        ranges
    }

    fn replicas(&self, master: NodeIndex) -> impl Iterator<Item = &SimulatedNode> {
        self.nodes.iter().filter(move |node| node.role == Role::Replica(master) && is_alive(node))
    }

    /// Returns what `node` reports in its next reply, and counts that reply.
    fn next_view(&mut self, node: NodeIndex) -> ReportedMap {
        let view = &mut self.nodes[node].view;
        match &mut view.replies_left {
            None => {}
            Some(0) => *view = ReportedView { map: ReportedMap::Current, replies_left: None },
            Some(left) => *left -= 1,
        }
        view.map
    }

    pub(super) fn cluster_command(&mut self, node: NodeIndex, args: &[String]) -> Value {
        if self.mode != DiscoveryMode::Cluster {
            return Value::Error("ERR This instance has cluster support disabled".to_owned());
        }
        let question = args[1].to_ascii_uppercase();
        let map = match question.as_str() {
            "SLOTS" | "SHARDS" | "NODES" => self.next_view(node),
            _ => ReportedMap::Current,
        };
        match question.as_str() {
            "SLOTS" => self.slots_reply(map),
            "SHARDS" => self.shards_reply(map),
            "NODES" => bulk_reply(&self.nodes_text(node, map)),
            "MYID" => bulk_reply(&self.nodes[node].id),
            "KEYSLOT" => Value::Integer(args.get(2).map_or(0, |key| i64::from(slot_of(key)))),
            "COUNTKEYSINSLOT" => Value::Integer(0),
            "INFO" => bulk_reply(&format!(
                "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_known_nodes:{}\r\ncluster_size:{}\r\ncluster_current_epoch:{}\r\n",
                self.nodes.len(),
                self.nodes.iter().filter(|node| node.role == Role::Master).count(),
                self.epoch
            )),
            other => Value::Error(format!("ERR unknown subcommand '{other}'.")),
        }
    }

    /// Formats a node's entry in the CLUSTER SLOTS reply.
    fn format_node(&self, node: &SimulatedNode, reported_map: ReportedMap) -> Value {
        let (host, more) = match reported_map {
            ReportedMap::NullHost => (Value::Null, Vec::new()),
            ReportedMap::Hostnames => {
                (bulk_reply("localhost"), vec![(bulk_reply("ip"), bulk_reply("127.0.0.1"))])
            }
            ReportedMap::Current | ReportedMap::Empty | ReportedMap::Initial => {
                (bulk_reply("127.0.0.1"), Vec::new())
            }
        };
        let more = more.into_iter().flat_map(|(name, value)| [name, value]).collect();
        Value::Array(vec![
            host,
            Value::Integer(i64::from(node.port)),
            bulk_reply(&node.id),
            Value::Array(more),
        ])
    }

    fn slots_reply(&self, reported_map: ReportedMap) -> Value {
        let entry = |(first, last, master): SlotRange| {
            let mut entry = vec![Value::Integer(first.into()), Value::Integer(last.into())];
            entry.push(self.format_node(&self.nodes[master], reported_map));
            entry.extend(self.replicas(master).map(|node| self.format_node(node, reported_map)));
            Value::Array(entry)
        };
        Value::Array(self.slot_ranges(reported_map).into_iter().map(entry).collect())
    }

    fn shards_reply(&self, reported_map: ReportedMap) -> Value {
        let ranges = self.slot_ranges(reported_map);
        let mut masters: Vec<NodeIndex> = ranges.iter().map(|(_, _, master)| *master).collect();
        masters.sort_unstable();
        masters.dedup();
        let member = |node: &SimulatedNode| {
            let endpoint = match reported_map {
                ReportedMap::NullHost => Value::Null,
                ReportedMap::Hostnames => bulk_reply("localhost"),
                ReportedMap::Current | ReportedMap::Empty | ReportedMap::Initial => bulk_reply("127.0.0.1"),
            };
            let role = if node.role == Role::Master { "master" } else { "replica" };
            Value::Map(vec![
                (bulk_reply("id"), bulk_reply(&node.id)),
                (bulk_reply("port"), Value::Integer(node.port.into())),
                (bulk_reply("ip"), bulk_reply("127.0.0.1")),
                (bulk_reply("endpoint"), endpoint),
                (bulk_reply("role"), bulk_reply(role)),
                (bulk_reply("replication-offset"), Value::Integer(1)),
                (bulk_reply("health"), bulk_reply("online")),
            ])
        };
        let shard = |master: NodeIndex| {
            let mine = ranges.iter().filter(|(_, _, owner)| *owner == master);
            let slots = mine.flat_map(|(first, last, _)| {
                [Value::Integer((*first).into()), Value::Integer((*last).into())]
            });
            let mut members = vec![member(&self.nodes[master])];
            members.extend(self.replicas(master).map(member));
            Value::Map(vec![
                (bulk_reply("slots"), Value::Array(slots.collect())),
                (bulk_reply("nodes"), Value::Array(members)),
            ])
        };
        Value::Array(masters.into_iter().map(shard).collect())
    }

    fn nodes_text(&self, myself: NodeIndex, reported_map: ReportedMap) -> String {
        let ranges = self.slot_ranges(reported_map);
        let mut text = String::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| !node.is_absent) {
            let mine = if index == myself { "myself," } else { "" };
            let (kind, master) = match node.role {
                Role::Master => ("master", "-".to_owned()),
                Role::Replica(master) => ("slave", self.nodes[master].id.clone()),
                Role::Sentinel => continue,
            };
            let fails = if is_alive(node) { "" } else { ",fail" };
            let host = self.reported_host(reported_map);
            let (port, epoch) = (node.port, self.epoch);
            let bus = u32::from(port) + 10_000;
            // Writing to a `String` cannot fail.
            let _ = write!(
                text,
                "{} {host}:{port}@{bus} {mine}{kind}{fails} {master} 0 0 {epoch} connected",
                node.id
            );
            for (first, last, _) in ranges.iter().filter(|(_, _, owner)| *owner == index) {
                let _ = write!(text, " {first}-{last}");
            }
            text.push('\n');
        }
        text
    }

    /// Returns the master according to the given view.
    fn known_master(&self, reported_map: ReportedMap) -> Option<NodeIndex> {
        match reported_map {
            ReportedMap::Initial => Some(self.first_master),
            ReportedMap::Empty => None,
            ReportedMap::Current | ReportedMap::NullHost | ReportedMap::Hostnames => {
                self.nodes.iter().position(|node| node.role == Role::Master)
            }
        }
    }

    pub(super) fn info_reply(&self, node: NodeIndex) -> Value {
        let node = &self.nodes[node];
        let clustered = u8::from(self.mode == DiscoveryMode::Cluster);
        let mode = match (node.role, self.mode) {
            (Role::Sentinel, _) => "sentinel",
            (Role::Master | Role::Replica(_), DiscoveryMode::Cluster) => "cluster",
            (Role::Master | Role::Replica(_), DiscoveryMode::Sentinel) => "standalone",
        };
        let (role, link) = match node.role {
            Role::Replica(_) => ("slave", "master_link_status:up\r\n"),
            Role::Master | Role::Sentinel => ("master", ""),
        };
        bulk_reply(&format!(
            "# Server\r\nredis_version:{}\r\nredis_mode:{mode}\r\n# Persistence\r\nloading:0\r\n# Replication\r\n\
             role:{role}\r\n{link}# Cluster\r\ncluster_enabled:{clustered}\r\n",
            resp::REDIS_VERSION
        ))
    }

    pub(super) fn role_reply(&self, node: NodeIndex) -> Value {
        match self.nodes[node].role {
            Role::Master => {
                Value::Array(vec![bulk_reply("master"), Value::Integer(1), Value::Array(Vec::new())])
            }
            Role::Replica(master) => Value::Array(vec![
                bulk_reply("slave"),
                bulk_reply("127.0.0.1"),
                Value::Integer(self.nodes[master].port.into()),
                bulk_reply("connected"),
                Value::Integer(1),
            ]),
            Role::Sentinel => {
                Value::Array(vec![bulk_reply("sentinel"), Value::Array(vec![bulk_reply(MASTER_NAME)])])
            }
        }
    }

    pub(super) fn sentinel_command(&mut self, node: NodeIndex, args: &[String]) -> Value {
        if self.nodes[node].role != Role::Sentinel {
            return Value::Error("ERR unknown command 'sentinel'".to_owned());
        }
        let named = args.get(2).is_some_and(|name| name == MASTER_NAME);
        let question = args[1].to_ascii_uppercase();
        let master = match question.as_str() {
            "GET-MASTER-ADDR-BY-NAME" | "MASTER" | "MASTERS" => {
                let map = self.next_view(node);
                self.known_master(map)
            }
            _ => None,
        };
        let unknown = || Value::Error("ERR No such master with that name".to_owned());
        match question.as_str() {
            "GET-MASTER-ADDR-BY-NAME" => master.filter(|_| named).map_or(Value::Null, |master| {
                Value::Array(vec![bulk_reply("127.0.0.1"), bulk_reply(&self.nodes[master].port.to_string())])
            }),
            "MASTER" => master.filter(|_| named).map_or_else(unknown, |master| {
                server_fields(&self.nodes[master], "master", self.other_sentinels(node).len())
            }),
            "MASTERS" => {
                let told = master.map(|master| {
                    server_fields(&self.nodes[master], "master", self.other_sentinels(node).len())
                });
                Value::Array(told.into_iter().collect())
            }
            "SENTINELS" if named => Value::Array(
                self.other_sentinels(node).iter().map(|node| server_fields(node, "sentinel", 0)).collect(),
            ),
            "SLAVES" | "REPLICAS" if named => {
                let replicas = self.nodes.iter().filter(|node| matches!(node.role, Role::Replica(_)));
                Value::Array(replicas.map(|node| server_fields(node, "slave", 0)).collect())
            }
            "SENTINELS" | "SLAVES" | "REPLICAS" => unknown(),
            other => Value::Error(format!("ERR unknown subcommand '{other}'.")),
        }
    }

    fn other_sentinels(&self, excluded: NodeIndex) -> Vec<&SimulatedNode> {
        let others = self.nodes.iter().enumerate().filter(|(index, _)| *index != excluded);
        others.map(|(_, node)| node).filter(|node| node.role == Role::Sentinel).collect()
    }
}

fn is_alive(node: &SimulatedNode) -> bool {
    node.connection_handling == ConnectionHandling::Serve
}

/// Returns the fields that a sentinel reports about a server.
fn server_fields(node: &SimulatedNode, kind: &str, sentinel_count: usize) -> Value {
    let flags = if is_alive(node) { kind.to_owned() } else { format!("s_down,{kind}") };
    let mut pairs = vec![
        ("name", if kind == "master" { MASTER_NAME.to_owned() } else { format!("127.0.0.1:{}", node.port) }),
        ("ip", "127.0.0.1".to_owned()),
        ("port", node.port.to_string()),
        ("runid", node.id.clone()),
        ("flags", flags),
        ("link-pending-commands", "0".to_owned()),
        ("link-refcount", "1".to_owned()),
        ("last-ping-sent", "0".to_owned()),
        ("last-ok-ping-reply", "10".to_owned()),
        ("last-ping-reply", "10".to_owned()),
        ("down-after-milliseconds", "1000".to_owned()),
    ];
    if kind == "master" {
        pairs.extend([
            ("role-reported", "master".to_owned()),
            ("config-epoch", "0".to_owned()),
            ("num-slaves", "1".to_owned()),
            ("num-other-sentinels", sentinel_count.to_string()),
            ("quorum", "2".to_owned()),
            ("failover-timeout", "1000".to_owned()),
            ("parallel-syncs", "1".to_owned()),
        ]);
    }
    if kind == "slave" {
        pairs.extend([
            ("master-link-status", "ok".to_owned()),
            ("slave-priority", "100".to_owned()),
            ("slave-repl-offset", "1".to_owned()),
            ("replica-announced", "1".to_owned()),
        ]);
    }
    Value::Map(pairs.into_iter().map(|(name, value)| (bulk_reply(name), bulk_reply(&value))).collect())
}
