//! Several nodes joined into a cluster.

use crate::{Connection, Node, Program, Reply, SLOT_COUNT, eventually};

/// A cluster of nodes. The masters come first, in the order of their slots, followed by the replicas.
#[derive(Debug)]
pub struct Cluster {
    /// All nodes, running or not. Tests kill and restart nodes without removing them from this list.
    pub nodes: Vec<Node>,
    /// Number of nodes that began as masters.
    pub master_count: usize,
}

impl Cluster {
    /// Starts `masters` masters with `replicas` replicas each and joins them. Waits until every node reports the
    /// cluster as ok and every replica is in sync. Node `masters + i` replicates master `i % masters`.
    ///
    /// # Panics
    /// The cluster does not form in time.
    #[must_use]
    pub fn start(program: &Program, masters: usize, replicas: usize) -> Self {
        let count = masters * (1 + replicas);
        Self::join_nodes((0..count).map(|_| Node::start_clustered(program)).collect(), masters)
    }

    /// Joins running, empty nodes of any kind into a cluster.
    ///
    /// # Panics
    /// The cluster does not form in time.
    #[must_use]
    pub fn join_nodes(nodes: Vec<Node>, masters: usize) -> Self {
        for (index, node) in nodes.iter().enumerate() {
            node.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1)).expect_ok();
        }
        for (index, node) in nodes[..masters].iter().enumerate() {
            let bound = |index: usize| usize::from(SLOT_COUNT) * index / masters;
            let (first, last) = (bound(index), bound(index + 1) - 1);
            node.run(&format!("CLUSTER ADDSLOTSRANGE {first} {last}")).expect_ok();
        }
        for node in &nodes[1..] {
            node.run(&format!("CLUSTER MEET {} {}", nodes[0].ip(), nodes[0].port)).expect_ok();
        }
        let cluster = Self { nodes, master_count: masters };
        cluster.wait_until_all_nodes_known();
        for index in masters..cluster.nodes.len() {
            cluster.make_replica(index, (index - masters) % masters);
        }
        cluster.wait_until_ok();
        cluster.wait_until_synchronised();
        cluster
    }

    /// Makes node `replica` a replica of node `master`. The replica must already know the master as a cluster node.
    ///
    /// # Panics
    /// The node refuses the command.
    pub fn make_replica(&self, replica: usize, master: usize) {
        let id = self.node_id(master);
        self.nodes[replica].run(&format!("CLUSTER REPLICATE {id}")).expect_ok();
    }

    /// Returns the 40-digit id that the node reports for itself.
    ///
    /// # Panics
    /// The node does not reply.
    #[must_use]
    pub fn node_id(&self, node: usize) -> String {
        self.nodes[node].run("CLUSTER MYID").text()
    }

    /// Returns the nodes that the test has started and has not stopped since.
    pub fn running_nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.is_running())
    }

    /// Waits until every running node knows all nodes.
    ///
    /// # Panics
    /// The nodes do not know each other in time.
    pub fn wait_until_all_nodes_known(&self) {
        let count = self.nodes.len();
        for node in self.running_nodes() {
            eventually(&format!("{} knows {count} nodes", node.port), || {
                let nodes = node.run("CLUSTER NODES").text();
                let met = nodes.lines().filter(|line| !line.contains("handshake")).count();
                (met == count).then_some(())
            });
        }
    }

    /// Waits until every running node reports the cluster as ok.
    ///
    /// # Panics
    /// A node does not report it in time.
    pub fn wait_until_ok(&self) {
        for node in self.running_nodes() {
            eventually(&format!("{} calls the cluster ok", node.port), || {
                (cluster_info_field(&mut node.connect(), "cluster_state")? == "ok").then_some(())
            });
        }
    }

    /// Waits until every running replica is in sync and its master sends it new data.
    ///
    /// # Panics
    /// A replica is not in sync in time.
    pub fn wait_until_synchronised(&self) {
        for node in &self.nodes[self.master_count..] {
            if node.is_running() {
                eventually(&format!("{} is synchronised", node.port), || {
                    (node.info("replication", "master_link_status")? == "up").then_some(())?;
                    let port = node.info("replication", "master_port")?;
                    let master = self.running_nodes().find(|master| master.port.to_string() == port)?;
                    // INFO of the master reports the replica as online only some time after the replica has loaded the
                    // data.
                    let told = format!("port={},state=online", node.port);
                    let replica = |index| master.info("replication", &format!("slave{index}"));
                    (0..self.nodes.len()).filter_map(replica).any(|line| line.contains(&told)).then_some(())
                });
            }
        }
    }

    /// Waits until every running node knows that node `replica` replicates node `master`.
    ///
    /// # Panics
    /// A node does not know it in time.
    pub fn wait_until_replica_is_known(&self, replica: usize, master: usize) {
        let (replica, master) = (self.node_id(replica), self.node_id(master));
        for node in self.running_nodes() {
            eventually(&format!("{} knows whom the replica follows", node.port), || {
                let nodes = node.run("CLUSTER NODES").text();
                let line = nodes.lines().find(|line| line.starts_with(&replica))?;
                (line.split(' ').nth(3)? == master).then_some(())
            });
        }
    }

    /// Waits until all running nodes agree on an owner of the slot for which `is_expected` is true. Returns the owner's
    /// port.
    ///
    /// # Panics
    /// The nodes do not agree in time.
    pub fn wait_for_owner(&self, slot: u16, is_expected: impl Fn(u16) -> bool) -> u16 {
        eventually(&format!("all agree on a new owner of slot {slot}"), || {
            let mut agreed = None;
            for node in self.running_nodes() {
                let owner = slot_owner(&mut node.try_connect().ok()?, slot)?;
                if !is_expected(owner) || *agreed.get_or_insert(owner) != owner {
                    return None;
                }
            }
            agreed
        })
    }

    /// Returns the node on this port.
    ///
    /// # Panics
    /// No node has this port.
    #[must_use]
    pub fn node_on_port(&self, port: u16) -> &Node {
        self.nodes.iter().find(|node| node.port == port).expect("a node of this cluster")
    }

    /// Returns the `redis://` URLs of the running nodes, which cluster clients need.
    #[must_use]
    pub fn redis_urls(&self) -> Vec<String> {
        self.running_nodes().map(|node| format!("redis://{}", node.address())).collect()
    }

    /// Returns the total number of keys on the running masters.
    ///
    /// # Panics
    /// A node does not reply.
    #[must_use]
    pub fn key_count(&self) -> i64 {
        self.running_nodes()
            .filter(|node| node.info("replication", "role").as_deref() == Some("master"))
            .map(|node| node.run("DBSIZE").int())
            .sum()
    }
}

/// Reads one field of an INFO section. `None` if the section lacks the field.
pub fn info_field(connection: &mut Connection, section: &str, field: &str) -> Option<String> {
    find_field(connection.try_call(&["INFO", section]).ok()?, field)
}

/// Reads one field of CLUSTER INFO. `None` if the reply lacks the field.
pub fn cluster_info_field(connection: &mut Connection, field: &str) -> Option<String> {
    find_field(connection.try_call(&["CLUSTER", "INFO"]).ok()?, field)
}

fn find_field(reply: Reply, field: &str) -> Option<String> {
    let text = match reply {
        Reply::Error(_) => return None,
        reply => reply.text(),
    };
    text.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim_end().to_owned()))
}

/// Returns the port of the slot's master in the view of this node. `None` if the slot has no master or its master is
/// failing.
pub fn slot_owner(connection: &mut Connection, slot: u16) -> Option<u16> {
    let nodes = connection.try_call(&["CLUSTER", "NODES"]).ok()?.text();
    nodes.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let serves = fields.get(8..)?.iter().any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            match (first.parse::<u16>(), last.parse::<u16>()) {
                (Ok(first), Ok(last)) => (first..=last).contains(&slot),
                // In CLUSTER NODES, migrating slots appear in brackets among the slot ranges.
                _ => false,
            }
        });
        let failing = fields[2].split(',').any(|flag| flag == "fail" || flag == "fail?");
        if !serves || failing {
            return None;
        }
        fields[1].split('@').next()?.rsplit(':').next()?.parse().ok()
    })
}
