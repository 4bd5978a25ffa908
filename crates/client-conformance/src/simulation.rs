//! Simulates the nodes of a scenario, a small cluster or sentinel group, without sockets.
//!
//! The caller passes in each input with its connection and time, and carries out the returned actions. All nodes share
//! one keyspace, in which each key belongs to the owner of its slot. A node replies like a healthy one unless a rule of
//! the scenario applies. Executed and refused commands are recorded, because verdicts count them.

mod blocking;
mod channels;
mod cluster_map;
mod commands;
mod data;
mod healthy_node;
mod replies;
mod rules;
mod scripts;
#[cfg(test)]
mod tests;
mod tracking;

use std::collections::{BTreeMap, VecDeque};

use anyhow::Result;
use harness::{SLOT_COUNT, slot_of};
use resp::{Protocol, Value, Writer};

use crate::event_log::{LogEntry, LogEvent};
use crate::protocol::DiscoveryMode;
use crate::scenario::{ConnectionHandling, NodeEvent, ReplyFault, ReportedMap, Scenario, parse_slot_range};
use blocking::BlockedCommand;
pub use cluster_map::MASTER_NAME;
pub(crate) use commands::first_key;
pub use commands::{is_write, may_block, script_that_calls};
use data::StoredValue;
use replies::{describe_fault, encode, format_reply};
use rules::RuleMatcher;
use scripts::LoadedScripts;
use tracking::ClientTracking;

/// The index of a node in [`ClusterSimulation::nodes`].
pub type NodeIndex = usize;
/// The number of a connection. Numbers are never reused.
pub type ConnectionId = u64;

/// The connection id that stands for all clients other than the tested one.
const OTHER_CLIENTS_CONNECTION: ConnectionId = 0;

/// The current role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A cluster node that can own slots, or the data server of a sentinel group.
    Master,
    /// A replica of the node with this index.
    Replica(NodeIndex),
    /// A sentinel, which monitors the data server.
    Sentinel,
}

/// The state of one simulated node.
#[derive(Debug, Clone)]
pub struct SimulatedNode {
    /// The node's name in the scenario.
    pub name: String,
    /// The node's port on 127.0.0.1; it changes when the node moves to another address.
    pub port: u16,
    /// How the node currently handles connections.
    pub connection_handling: ConnectionHandling,
    /// The node's id in the cluster, which survives a change of address.
    id: String,
    /// Whether the node does not exist yet, so that nothing listens on its address.
    is_absent: bool,
    role: Role,
    view: ReportedView,
}

/// What a node reports about the cluster.
#[derive(Debug, Clone, Copy)]
struct ReportedView {
    map: ReportedMap,
    /// The number of replies that still use this view, after which the node reports the true state; `None` means no
    /// limit.
    replies_left: Option<u32>,
}

#[derive(Debug)]
struct SimulatedConnection {
    node: NodeIndex,
    /// Set once a reply was withheld. All later replies are withheld as well, because a server never skips a reply.
    is_silent: bool,
    protocol: Protocol,
    /// Set by ASKING: the next command may access a slot that the node is importing.
    is_asking: bool,
    /// Set by READONLY: a replica may serve reads.
    is_readonly: bool,
    /// The commands queued since MULTI, and whether one of them was rejected; `None` outside of a transaction.
    transaction: Option<(Vec<Vec<String>>, bool)>,
    channels: Vec<(String, bool)>,
    /// The blocking command that waits for an element, if there is one.
    blocked_command: Option<BlockedCommand>,
    queued_commands: VecDeque<Vec<String>>,
    tracking: Option<ClientTracking>,
}

impl SimulatedConnection {
    fn new(node: NodeIndex) -> Self {
        Self {
            node,
            is_silent: false,
            protocol: Protocol::Resp2,
            is_asking: false,
            is_readonly: false,
            transaction: None,
            channels: Vec::new(),
            blocked_command: None,
            queued_commands: VecDeque::new(),
            tracking: None,
        }
    }
}

/// An action that the caller must carry out on a connection or node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionAction {
    /// Send these bytes at once.
    Send(ConnectionId, Vec<u8>),
    /// Send these bytes after the given milliseconds; later input on this connection waits until then.
    SendDelayed(ConnectionId, Vec<u8>, u64),
    /// Send these bytes in pieces of a few bytes each.
    SendFragmented(ConnectionId, Vec<u8>),
    /// Close the connection after all its output is sent.
    Close(ConnectionId),
    /// Open or close the node's port, because the node now handles connections differently.
    ChangeConnectionHandling(NodeIndex),
}

impl ConnectionAction {
    /// Returns the connection on which to act; `None` if the action concerns a node.
    #[must_use]
    pub fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Send(id, _) | Self::SendDelayed(id, ..) | Self::SendFragmented(id, _) | Self::Close(id) => {
                Some(*id)
            }
            Self::ChangeConnectionHandling(_) => None,
        }
    }
}

/// A command that took effect on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutedCommand {
    /// Milliseconds since the scenario began.
    pub ms: u64,
    /// The number of steps started when the command was executed.
    pub step: usize,
    /// The node that executed the command.
    pub node: NodeIndex,
    /// The command's name and arguments as received.
    pub args: Vec<String>,
}

/// The code that is recorded when a node gave no reply.
pub(crate) const NO_REPLY_CODE: &str = "(no answer)";

/// A command that a node refused or did not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedCommand {
    /// Milliseconds since the scenario began.
    pub ms: u64,
    /// The number of steps started when the command was refused; 0 if unknown.
    pub step: usize,
    /// The node that refused the command.
    pub node: NodeIndex,
    /// The error code, which is the first word of the error.
    pub code: String,
    /// The command's name and arguments; empty if unknown.
    pub args: Vec<String>,
}

/// The simulated nodes of a scenario, with their connections and shared keyspace.
#[derive(Debug)]
pub struct ClusterSimulation {
    mode: DiscoveryMode,
    /// The nodes, ordered by name; [`NodeIndex`] refers to this order.
    pub nodes: Vec<SimulatedNode>,
    slot_owners: Vec<Option<NodeIndex>>,
    initial_owners: Vec<Option<NodeIndex>>,
    first_master: NodeIndex,
    epoch: u64,
    data: BTreeMap<String, StoredValue>,
    /// The scripts that each node has loaded.
    scripts: LoadedScripts,
    /// The keys changed by the current command, each with the connection that changed it. Clients that cache such a key
    /// are notified.
    changed_keys: Vec<(ConnectionId, String)>,
    rules: RuleMatcher,
    connections: BTreeMap<ConnectionId, SimulatedConnection>,
    last_connection: ConnectionId,
    /// The number of steps started so far.
    step_count: usize,
    /// The last queue position that was given to a blocked client.
    last_queue_position: u64,
    /// All logged events, in the order in which they happened.
    pub log: Vec<LogEntry>,
    /// The commands that took effect, in the order of their execution.
    pub executed_commands: Vec<ExecutedCommand>,
    /// The commands that were refused, in the order of their arrival.
    pub refused_commands: Vec<RefusedCommand>,
}

impl ClusterSimulation {
    /// Creates the nodes in their initial state, with one port each.
    ///
    /// # Errors
    /// The scenario's nodes are inconsistent.
    pub fn new(scenario: &Scenario, ports: &[u16]) -> Result<Self> {
        let names: Vec<&String> = scenario.nodes.keys().collect();
        let index = |name: &String| names.iter().position(|known| *known == name).unwrap_or_default();
        let mut owners = vec![None; usize::from(SLOT_COUNT)];
        let mut nodes = Vec::new();
        for ((place, (name, spec)), port) in scenario.nodes.iter().enumerate().zip(ports) {
            for range in &spec.slots {
                let (first, last) = parse_slot_range(range)?;
                owners[usize::from(first)..=usize::from(last)].fill(Some(place));
            }
            let role = match &spec.replica_of {
                _ if spec.sentinel => Role::Sentinel,
                Some(master) => Role::Replica(index(master)),
                None => Role::Master,
            };
            nodes.push(SimulatedNode {
                name: name.clone(),
                port: *port,
                connection_handling: spec.state,
                id: format!("{:0>40}", format!("{port:x}")),
                is_absent: spec.absent,
                role,
                view: ReportedView { map: spec.tells, replies_left: None },
            });
        }
        let first_master = nodes.iter().position(|node| node.role == Role::Master).unwrap_or_default();
        Ok(Self {
            mode: scenario.mode,
            nodes,
            initial_owners: owners.clone(),
            slot_owners: owners,
            first_master,
            epoch: 1,
            data: BTreeMap::new(),
            scripts: LoadedScripts::default(),
            changed_keys: Vec::new(),
            rules: RuleMatcher::new(&scenario.rules),
            connections: BTreeMap::new(),
            last_connection: 0,
            step_count: 0,
            last_queue_position: 0,
            log: Vec::new(),
            executed_commands: Vec::new(),
            refused_commands: Vec::new(),
        })
    }

    /// Returns the index of the node with this name.
    #[must_use]
    pub fn node_index(&self, name: &str) -> Option<NodeIndex> {
        self.nodes.iter().position(|node| node.name == name)
    }

    /// Logs an event that concerns no node.
    pub fn log_event(&mut self, now_ms: u64, event: LogEvent) {
        self.step_count += usize::from(matches!(event, LogEvent::RequestSent(_)));
        self.log.push(LogEntry { ms: now_ms, node: String::new(), connection: 0, event });
    }

    fn log_on_connection(&mut self, now_ms: u64, id: ConnectionId, event: LogEvent) {
        let node = self.connections.get(&id).map_or_else(String::new, |c| self.nodes[c.node].name.clone());
        self.log.push(LogEntry { ms: now_ms, node, connection: id, event });
    }

    /// Handles a new connection. Returns `None` if the node accepts no clients.
    pub fn handle_open(&mut self, now_ms: u64, node: NodeIndex) -> Option<ConnectionId> {
        self.last_connection += 1;
        let id = self.last_connection;
        let name = self.nodes[node].name.clone();
        let taken = match self.nodes[node].connection_handling {
            ConnectionHandling::Serve | ConnectionHandling::NeverReply => true,
            ConnectionHandling::Refuse | ConnectionHandling::CloseAtOnce => false,
        };
        let event = if taken { LogEvent::ConnectionOpened } else { LogEvent::ConnectionRejected };
        self.log.push(LogEntry { ms: now_ms, node: name, connection: id, event });
        if !taken {
            return None;
        }
        self.connections.insert(id, SimulatedConnection::new(node));
        Some(id)
    }

    /// Returns whether the connection is still open at the node.
    #[must_use]
    pub fn is_open(&self, id: ConnectionId) -> bool {
        self.connections.contains_key(&id)
    }

    /// Handles the end of a connection that the client closed or that broke.
    pub fn handle_close(&mut self, now_ms: u64, id: ConnectionId) {
        if self.connections.contains_key(&id) {
            self.log_on_connection(now_ms, id, LogEvent::ClientClosed);
            self.connections.remove(&id);
        }
    }

    /// Handles a command and returns the actions that it causes, also on other connections.
    pub fn handle_command(
        &mut self,
        now_ms: u64,
        id: ConnectionId,
        args: &[String],
    ) -> Vec<ConnectionAction> {
        let Some(connection) = self.connections.get(&id) else { return Vec::new() };
        let node = &self.nodes[connection.node];
        let is_silent = connection.is_silent || node.connection_handling == ConnectionHandling::NeverReply;
        self.log_on_connection(now_ms, id, LogEvent::CommandReceived(format_command(args)));
        if is_silent {
            self.record_refusal(now_ms, id, NO_REPLY_CODE, args);
            return Vec::new();
        }
        let mut actions = self.execute_or_queue(now_ms, id, args);
        actions.extend(self.notify_other_clients(now_ms));
        actions
    }

    /// Executes a command and replies, or queues the command if an earlier one is blocked.
    fn execute_or_queue(&mut self, now_ms: u64, id: ConnectionId, args: &[String]) -> Vec<ConnectionAction> {
        match self.connections.get_mut(&id) {
            Some(connection) if connection.blocked_command.is_some() => {
                connection.queued_commands.push_back(args.to_vec());
                Vec::new()
            }
            Some(_) => self.execute_and_reply(now_ms, id, args),
            None => Vec::new(),
        }
    }

    fn execute_and_reply(&mut self, now_ms: u64, id: ConnectionId, args: &[String]) -> Vec<ConnectionAction> {
        let node = self.connections[&id].node;
        let fault = self.rules.next_fault(now_ms, &self.nodes[node].name, args);
        if let Some(ReplyFault::Error(text)) = &fault {
            let error = Value::Error(self.fill_error_text(text, args));
            self.record_if_refused(now_ms, id, &error, args);
            return vec![self.send_reply(now_ms, id, &error)];
        }
        let replies = self.execute(now_ms, id, args);
        let mut bytes = Vec::new();
        for reply in &replies {
            self.record_if_refused(now_ms, id, reply, args);
            self.log_on_connection(now_ms, id, LogEvent::ReplySent(format_reply(reply)));
            bytes.extend(self.encode_for(id, reply));
        }
        self.deliver_reply(now_ms, id, bytes, fault)
    }

    /// Handles the effects of a command on other clients: cache invalidations and elements for blocked clients.
    fn notify_other_clients(&mut self, now_ms: u64) -> Vec<ConnectionAction> {
        let mut actions = self.send_invalidations(now_ms);
        while let Some(served) = self.serve_longest_blocked(now_ms) {
            actions.extend(served);
            actions.extend(self.send_invalidations(now_ms));
        }
        actions
    }

    /// Returns the actions that deliver a reply. A fault can modify it.
    fn deliver_reply(
        &mut self,
        now_ms: u64,
        id: ConnectionId,
        mut bytes: Vec<u8>,
        fault: Option<ReplyFault>,
    ) -> Vec<ConnectionAction> {
        let Some(fault) = fault else { return vec![ConnectionAction::Send(id, bytes)] };
        self.log_on_connection(now_ms, id, LogEvent::FaultInjected(describe_fault(&fault)));
        match fault {
            // The error was returned instead of executing the command.
            ReplyFault::Error(_) => Vec::new(),
            ReplyFault::CutReply => {
                bytes.truncate(bytes.len() / 2);
                vec![ConnectionAction::Send(id, bytes), ConnectionAction::Close(id)]
            }
            ReplyFault::DropReply => vec![ConnectionAction::Close(id)],
            ReplyFault::NoReply => {
                self.connections.entry(id).and_modify(|connection| connection.is_silent = true);
                Vec::new()
            }
            ReplyFault::Delay(late) => vec![ConnectionAction::SendDelayed(id, bytes, late)],
            ReplyFault::Fragment => vec![ConnectionAction::SendFragmented(id, bytes)],
            ReplyFault::UnknownPushes => {
                let mut all = Vec::new();
                if self.connections[&id].protocol == Protocol::Resp3 {
                    let odd =
                        |words: &[&str]| Value::Push(words.iter().map(|word| bulk_reply(word)).collect());
                    all.extend(self.encode_for(id, &odd(&["server-cpu-usage", "42"])));
                    all.extend(self.encode_for(id, &odd(&["message-of-the-day", "hello", "there"])));
                }
                all.extend(bytes);
                vec![ConnectionAction::Send(id, all)]
            }
        }
    }

    /// Applies an event of the scenario to the nodes and returns the resulting actions.
    pub fn handle_event(&mut self, now_ms: u64, event: &NodeEvent) -> Vec<ConnectionAction> {
        self.log_event(now_ms, LogEvent::NodesChanged(event.describe()));
        match event {
            NodeEvent::SetConnectionHandling { node, state, .. } => {
                let Some(node) = self.node_index(node) else { return Vec::new() };
                let mut actions = match state {
                    ConnectionHandling::NeverReply => Vec::new(),
                    ConnectionHandling::Serve
                    | ConnectionHandling::Refuse
                    | ConnectionHandling::CloseAtOnce => self.close_connections(now_ms, |at| at == node),
                };
                self.nodes[node].connection_handling = *state;
                actions.push(ConnectionAction::ChangeConnectionHandling(node));
                actions
            }
            NodeEvent::Promote { node, .. } => {
                let Some(node) = self.node_index(node) else { return Vec::new() };
                self.promote(now_ms, node)
            }
            NodeEvent::MoveSlot { key, to, .. } => {
                let Some(to) = self.node_index(to) else { return Vec::new() };
                self.unsubscribe_moved_slot(now_ms, slot_of(key), to)
            }
            NodeEvent::ReportMap { node, map, times, .. } => {
                if let Some(node) = self.node_index(node) {
                    self.nodes[node].view = ReportedView { map: *map, replies_left: *times };
                }
                Vec::new()
            }
            NodeEvent::ChangeAddress { node, to, .. } => {
                let (Some(node), Some(to)) = (self.node_index(node), self.node_index(to)) else {
                    return Vec::new();
                };
                let mut actions = self.close_connections(now_ms, |at| at == node || at == to);
                self.move_node_to_address(node, to);
                actions.extend([
                    ConnectionAction::ChangeConnectionHandling(node),
                    ConnectionAction::ChangeConnectionHandling(to),
                ]);
                actions
            }
            NodeEvent::RunCommand { command, .. } => self.run_as_other_client(now_ms, command),
            // TLS certificates are handled by the `encryption` module.
            NodeEvent::ReplaceCertificate { .. } => Vec::new(),
        }
    }

    fn promote(&mut self, now_ms: u64, node: NodeIndex) -> Vec<ConnectionAction> {
        let Role::Replica(master) = self.nodes[node].role else { return Vec::new() };
        self.epoch += 1;
        for owner in self.slot_owners.iter_mut().filter(|owner| **owner == Some(master)) {
            *owner = Some(node);
        }
        for other in &mut self.nodes {
            if other.role == Role::Replica(master) {
                other.role = Role::Replica(node);
            }
        }
        self.nodes[node].role = Role::Master;
        self.nodes[master].role = Role::Replica(node);
        match self.mode {
            DiscoveryMode::Cluster => self.unblock_matching(now_ms, |waiting_at, _| waiting_at == master),
            // When sentinels change the role of a server, the server closes all client connections without notice,
            // including those of blocked clients.
            DiscoveryMode::Sentinel => {
                let is_told: Vec<bool> = self
                    .nodes
                    .iter()
                    .map(|node| {
                        node.role != Role::Sentinel && node.connection_handling == ConnectionHandling::Serve
                    })
                    .collect();
                self.close_connections(now_ms, |at| is_told[at])
            }
        }
    }

    /// Closes all connections of the nodes for which `at` returns true.
    fn close_connections(
        &mut self,
        now_ms: u64,
        is_affected_node: impl Fn(NodeIndex) -> bool,
    ) -> Vec<ConnectionAction> {
        let ended = self.connections.iter().filter(|(_, connection)| is_affected_node(connection.node));
        let ended: Vec<ConnectionId> = ended.map(|(id, _)| *id).collect();
        for id in &ended {
            self.log_on_connection(now_ms, *id, LogEvent::NodeClosed);
            self.connections.remove(id);
        }
        ended.into_iter().map(ConnectionAction::Close).collect()
    }

    /// Moves a node to the address of an absent node.
    fn move_node_to_address(&mut self, from: NodeIndex, to: NodeIndex) {
        self.epoch += 1;
        for owner in self.slot_owners.iter_mut().filter(|owner| **owner == Some(from)) {
            *owner = Some(to);
        }
        for node in &mut self.nodes {
            if node.role == Role::Replica(from) {
                node.role = Role::Replica(to);
            }
        }
        let old = &mut self.nodes[from];
        (old.is_absent, old.connection_handling) = (true, ConnectionHandling::CloseAtOnce);
        let (id, role) = (old.id.clone(), old.role);
        let new = &mut self.nodes[to];
        (new.is_absent, new.connection_handling, new.id, new.role) =
            (false, ConnectionHandling::Serve, id, role);
    }

    /// Runs a command as another client, at the owner of its key or, without a key, at every data node.
    fn run_as_other_client(&mut self, now_ms: u64, args: &[String]) -> Vec<ConnectionAction> {
        let keyed =
            commands::find_command(&args[0]).and_then(|row| row.keys(args).first().map(|key| slot_of(key)));
        let nodes: Vec<NodeIndex> = match (keyed, self.mode) {
            (Some(slot), DiscoveryMode::Cluster) => self.slot_owners[usize::from(slot)].into_iter().collect(),
            (Some(_), DiscoveryMode::Sentinel) => {
                self.nodes.iter().position(|node| node.role == Role::Master).into_iter().collect()
            }
            (None, _) => {
                (0..self.nodes.len()).filter(|node| self.nodes[*node].role != Role::Sentinel).collect()
            }
        };
        for node in nodes {
            self.connections.insert(OTHER_CLIENTS_CONNECTION, SimulatedConnection::new(node));
            self.execute(now_ms, OTHER_CLIENTS_CONNECTION, args);
            self.connections.remove(&OTHER_CLIENTS_CONNECTION);
        }
        self.notify_other_clients(now_ms)
    }

    fn send_reply(&mut self, now_ms: u64, id: ConnectionId, reply: &Value) -> ConnectionAction {
        self.log_on_connection(now_ms, id, LogEvent::ReplySent(format_reply(reply)));
        ConnectionAction::Send(id, self.encode_for(id, reply))
    }

    fn encode_for(&self, id: ConnectionId, reply: &Value) -> Vec<u8> {
        let protocol = self.connections.get(&id).map_or(Protocol::Resp2, |connection| connection.protocol);
        let mut bytes = Vec::new();
        encode(&mut Writer::new(&mut bytes, protocol), reply);
        bytes
    }

    /// Records the refusal if the reply redirects the client or asks it to retry.
    fn record_if_refused(&mut self, now_ms: u64, id: ConnectionId, reply: &Value, args: &[String]) {
        let Value::Error(text) = reply else { return };
        let code = text.split(' ').next().unwrap_or_default().to_owned();
        if code != "ERR" && id != OTHER_CLIENTS_CONNECTION {
            self.record_refusal(now_ms, id, &code, args);
        }
    }

    fn record_refusal(&mut self, now_ms: u64, id: ConnectionId, code: &str, args: &[String]) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (step, node) = (self.step_count, connection.node);
        self.refused_commands.push(RefusedCommand {
            ms: now_ms,
            step,
            node,
            code: code.to_owned(),
            args: args.to_vec(),
        });
    }

    /// Replaces the placeholders for slots and addresses in an error text.
    fn fill_error_text(&self, text: &str, args: &[String]) -> String {
        let slot = args.get(1).map_or(0, |key| slot_of(key));
        let mut text = text.replace("$slot", &slot.to_string());
        // Longer names come first, because one name can be a prefix of another.
        let mut nodes: Vec<&SimulatedNode> = self.nodes.iter().collect();
        nodes.sort_by_key(|node| std::cmp::Reverse(node.name.len()));
        for node in nodes {
            text = text.replace(&format!("${}", node.name), &format!("127.0.0.1:{}", node.port));
        }
        text
    }
}

fn bulk_reply(text: &str) -> Value {
    Value::Bulk(text.as_bytes().to_vec())
}

/// Formats a command like a line typed into redis-cli.
#[must_use]
pub fn format_command(args: &[String]) -> String {
    args.join(" ").escape_debug().to_string()
}
