//! Nodes that follow a scenario: a small cluster or sentinel group as a machine without sockets.
//!
//! The caller passes in the input with its connection and time; the stage returns the actions to carry out. All nodes
//! share one keyspace: a key is where its slot is. A node answers as a healthy one would (`map`, `model`), unless a
//! rule of the scenario says otherwise. All commands that took effect, and all refusals, are remembered: verdicts count
//! them.

mod commands;
mod map;
mod model;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use anyhow::Result;
use harness::{SLOTS, slot_of};
use resp::{Protocol, Value, Writer};

use crate::log::{Entry, Happened};
use crate::protocol::Mode;
use crate::scenario::{Deed, Event, NetState, Scenario, Tells, range_of};
pub use commands::is_write;
pub use map::MASTER_NAME;
use model::Stored;
use rules::Rules;

/// Which node.
pub type NodeIndex = usize;
/// Which connection, of all that there were.
pub type ConnectionId = u64;

/// The role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It serves slots, or could; in a group of sentinels, the data.
    Master,
    /// It follows this node.
    Replica(NodeIndex),
    /// It watches.
    Sentinel,
}

/// A node on the stage.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name in the scenario.
    pub name: String,
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// How it meets connections now.
    pub state: NetState,
    role: Role,
    tells: Tells,
}

impl Node {
    fn id(&self) -> String {
        format!("{:0>40}", format!("{:x}", self.port))
    }
}

#[derive(Debug)]
struct Connection {
    node: NodeIndex,
    /// A reply was never sent on it, so no other can be: a server leaves out none.
    silent: bool,
    protocol: Protocol,
    /// The next command may ask for a slot that is on its way here.
    asking: bool,
    /// Replicas answer reads.
    readonly: bool,
    /// The commands that MULTI has queued, and whether one was refused.
    queue: Option<(Vec<Vec<String>>, bool)>,
    channels: Vec<(String, bool)>,
}

/// An action on a connection, for the caller to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send these bytes.
    Send(ConnectionId, Vec<u8>),
    /// Send them after so many milliseconds; input on this connection waits meanwhile.
    SendLate(ConnectionId, Vec<u8>, u64),
    /// Send them in small pieces.
    SendTorn(ConnectionId, Vec<u8>),
    /// Close it once all is sent.
    Close(ConnectionId),
    /// The node meets connections otherwise now.
    Net(NodeIndex),
}

/// A command that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// When.
    pub ms: u64,
    /// By which node.
    pub node: NodeIndex,
    /// Its name and arguments.
    pub args: Vec<String>,
}

/// A command that a node did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// When.
    pub ms: u64,
    /// By which node.
    pub node: NodeIndex,
    /// The error's first word.
    pub code: String,
    /// The command.
    pub args: Vec<String>,
}

/// All nodes of a scenario.
#[derive(Debug)]
pub struct Stage {
    mode: Mode,
    /// The nodes, in the order of their names.
    pub nodes: Vec<Node>,
    owners: Vec<Option<NodeIndex>>,
    beginning: Vec<Option<NodeIndex>>,
    first_master: NodeIndex,
    epoch: u64,
    data: BTreeMap<String, Stored>,
    rules: Rules,
    connections: BTreeMap<ConnectionId, Connection>,
    last_connection: ConnectionId,
    /// Everything, in order.
    pub log: Vec<Entry>,
    /// The commands that took effect.
    pub executed: Vec<Executed>,
    /// The commands that were refused.
    pub refused: Vec<Refusal>,
}

impl Stage {
    /// The nodes at the beginning, each on its port.
    ///
    /// # Errors
    /// If the scenario's nodes do not fit together.
    pub fn new(scenario: &Scenario, ports: &[u16]) -> Result<Self> {
        let names: Vec<&String> = scenario.nodes.keys().collect();
        let index = |name: &String| names.iter().position(|known| *known == name).unwrap_or_default();
        let mut owners = vec![None; usize::from(SLOTS)];
        let mut nodes = Vec::new();
        for ((place, (name, spec)), port) in scenario.nodes.iter().enumerate().zip(ports) {
            for range in &spec.slots {
                let (first, last) = range_of(range)?;
                owners[usize::from(first)..=usize::from(last)].fill(Some(place));
            }
            let role = match &spec.replica_of {
                _ if spec.sentinel => Role::Sentinel,
                Some(master) => Role::Replica(index(master)),
                None => Role::Master,
            };
            nodes.push(Node { name: name.clone(), port: *port, state: spec.state, role, tells: spec.tells });
        }
        let first_master = nodes.iter().position(|node| node.role == Role::Master).unwrap_or_default();
        Ok(Self {
            mode: scenario.mode,
            nodes,
            beginning: owners.clone(),
            owners,
            first_master,
            epoch: 1,
            data: BTreeMap::new(),
            rules: Rules::new(&scenario.rules),
            connections: BTreeMap::new(),
            last_connection: 0,
            log: Vec::new(),
            executed: Vec::new(),
            refused: Vec::new(),
        })
    }

    /// The node with this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<NodeIndex> {
        self.nodes.iter().position(|node| node.name == name)
    }

    /// Notes something that is about no node.
    pub fn note(&mut self, ms: u64, what: Happened) {
        self.log.push(Entry { ms, node: String::new(), connection: 0, what });
    }

    fn note_on(&mut self, ms: u64, id: ConnectionId, what: Happened) {
        let node = self.connections.get(&id).map_or_else(String::new, |c| self.nodes[c.node].name.clone());
        self.log.push(Entry { ms, node, connection: id, what });
    }

    /// A client has connected; none if the node wants no clients.
    pub fn handle_open(&mut self, ms: u64, node: NodeIndex) -> Option<ConnectionId> {
        self.last_connection += 1;
        let id = self.last_connection;
        let name = self.nodes[node].name.clone();
        let taken = match self.nodes[node].state {
            NetState::Up | NetState::Silent => true,
            NetState::Refuses | NetState::Slams => false,
        };
        let what = if taken { Happened::Opened } else { Happened::Slammed };
        self.log.push(Entry { ms, node: name, connection: id, what });
        if !taken {
            return None;
        }
        let connection = Connection {
            node,
            silent: false,
            protocol: Protocol::Resp2,
            asking: false,
            readonly: false,
            queue: None,
            channels: Vec::new(),
        };
        self.connections.insert(id, connection);
        Some(id)
    }

    /// A connection has ended.
    pub fn handle_close(&mut self, ms: u64, id: ConnectionId) {
        if self.connections.contains_key(&id) {
            self.note_on(ms, id, Happened::Closed);
            self.connections.remove(&id);
        }
    }

    /// A command has come.
    pub fn handle_command(&mut self, ms: u64, id: ConnectionId, args: &[String]) -> Vec<Action> {
        let Some(connection) = self.connections.get(&id) else { return Vec::new() };
        let (node, silent) = (connection.node, connection.silent);
        self.note_on(ms, id, Happened::Asked(shown(args)));
        if silent || self.nodes[node].state == NetState::Silent {
            return Vec::new();
        }
        let deed = self.rules.next(ms, &self.nodes[node].name, args);
        if let Some(Deed::Error(text)) = &deed {
            let error = Value::Error(self.filled(text, args));
            self.refuse(ms, id, &error, args);
            return vec![self.send(ms, id, &error)];
        }
        let replies = self.run(ms, id, args);
        let mut bytes = Vec::new();
        for reply in &replies {
            self.refuse(ms, id, reply, args);
            self.note_on(ms, id, Happened::Answered(shown_reply(reply)));
            bytes.extend(self.encoded(id, reply));
        }
        let deliver = self.deliver(ms, id, bytes, deed);
        // A connection that closes itself (QUIT) has no further deed.
        deliver
    }

    /// Returns the actions for a reply, after the deed of a rule.
    fn deliver(&mut self, ms: u64, id: ConnectionId, mut bytes: Vec<u8>, deed: Option<Deed>) -> Vec<Action> {
        let Some(deed) = deed else { return vec![Action::Send(id, bytes)] };
        self.note_on(ms, id, Happened::Fault(deed_shown(&deed)));
        match deed {
            // Handled before the command was run.
            Deed::Error(_) => Vec::new(),
            Deed::Cut => {
                bytes.truncate(bytes.len() / 2);
                vec![Action::Send(id, bytes), Action::Close(id)]
            }
            Deed::Lose => vec![Action::Close(id)],
            Deed::Silence => {
                self.connections.entry(id).and_modify(|connection| connection.silent = true);
                Vec::new()
            }
            Deed::Late(late) => vec![Action::SendLate(id, bytes, late)],
            Deed::Torn => vec![Action::SendTorn(id, bytes)],
            Deed::Pushes => {
                let mut all = Vec::new();
                if self.connections[&id].protocol == Protocol::Resp3 {
                    let odd = |words: &[&str]| Value::Push(words.iter().map(|word| bulk(word)).collect());
                    all.extend(self.encoded(id, &odd(&["server-cpu-usage", "42"])));
                    all.extend(self.encoded(id, &odd(&["message-of-the-day", "hello", "there"])));
                }
                all.extend(bytes);
                vec![Action::Send(id, all)]
            }
        }
    }

    /// Something happens to nodes.
    pub fn handle_event(&mut self, ms: u64, event: &Event) -> Vec<Action> {
        self.note(ms, Happened::Event(format!("{event:?}")));
        match event {
            Event::Net { node, state, .. } => {
                let Some(node) = self.node(node) else { return Vec::new() };
                self.nodes[node].state = *state;
                vec![Action::Net(node)]
            }
            Event::Promote { node, .. } => {
                if let Some(node) = self.node(node) {
                    self.promote(node);
                }
                Vec::new()
            }
            Event::Move { key, to, .. } => {
                let Some(to) = self.node(to) else { return Vec::new() };
                self.move_slot(ms, slot_of(key), to)
            }
            Event::Tells { node, what, .. } => {
                if let Some(node) = self.node(node) {
                    self.nodes[node].tells = *what;
                }
                Vec::new()
            }
        }
    }

    fn promote(&mut self, node: NodeIndex) {
        let Role::Replica(master) = self.nodes[node].role else { return };
        self.epoch += 1;
        for owner in self.owners.iter_mut().filter(|owner| **owner == Some(master)) {
            *owner = Some(node);
        }
        for other in &mut self.nodes {
            if other.role == Role::Replica(master) {
                other.role = Role::Replica(node);
            }
        }
        self.nodes[node].role = Role::Master;
        self.nodes[master].role = Role::Replica(node);
    }

    /// Subscribers of the slot's channels are told that they are none any more, as a real node tells them.
    fn move_slot(&mut self, ms: u64, slot: u16, to: NodeIndex) -> Vec<Action> {
        self.epoch += 1;
        self.owners[usize::from(slot)] = Some(to);
        let mut told = Vec::new();
        for (id, connection) in self.connections.iter_mut().filter(|(_, connection)| connection.node != to) {
            let (gone, kept) = std::mem::take(&mut connection.channels)
                .into_iter()
                .partition(|(name, sharded)| *sharded && slot_of(name) == slot);
            connection.channels = kept;
            let left = connection.channels.iter().filter(|(_, sharded)| *sharded).count() as i64;
            let gone: Vec<(String, bool)> = gone;
            told.extend(gone.into_iter().map(|(name, _)| {
                (*id, Value::Push(vec![bulk("sunsubscribe"), bulk(&name), Value::Integer(left)]))
            }));
        }
        told.into_iter().map(|(id, push)| self.send(ms, id, &push)).collect()
    }

    /// Publishes to the subscribers of the channel, wherever a real cluster would reach them.
    pub fn publish(&mut self, ms: u64, channel: &str, data: &str) -> Vec<Action> {
        let owner = self.owners[usize::from(slot_of(channel))];
        let mut pushes = Vec::new();
        for (id, connection) in &self.connections {
            if self.nodes[connection.node].state != NetState::Up {
                continue;
            }
            for (name, sharded) in &connection.channels {
                let reached = name == channel
                    && (!sharded || owner == Some(connection.node) || self.mode != Mode::Cluster);
                if reached {
                    let kind = if *sharded { "smessage" } else { "message" };
                    pushes.push((*id, Value::Push(vec![bulk(kind), bulk(channel), bulk(data)])));
                }
            }
        }
        pushes.into_iter().map(|(id, push)| self.send(ms, id, &push)).collect()
    }

    fn send(&mut self, ms: u64, id: ConnectionId, reply: &Value) -> Action {
        self.note_on(ms, id, Happened::Answered(shown_reply(reply)));
        Action::Send(id, self.encoded(id, reply))
    }

    fn encoded(&self, id: ConnectionId, reply: &Value) -> Vec<u8> {
        let protocol = self.connections.get(&id).map_or(Protocol::Resp2, |connection| connection.protocol);
        let mut bytes = Vec::new();
        encode(&mut Writer::new(&mut bytes, protocol), reply);
        bytes
    }

    /// Remembers an error that says where or when to ask again.
    fn refuse(&mut self, ms: u64, id: ConnectionId, reply: &Value, args: &[String]) {
        let (Value::Error(text), Some(connection)) = (reply, self.connections.get(&id)) else { return };
        let code = text.split(' ').next().unwrap_or_default().to_owned();
        if code != "ERR" {
            self.refused.push(Refusal { ms, node: connection.node, code, args: args.to_vec() });
        }
    }

    /// An error's text with slots and addresses in it.
    fn filled(&self, text: &str, args: &[String]) -> String {
        let slot = args.get(1).map_or(0, |key| slot_of(key));
        let mut text = text.replace("$slot", &slot.to_string());
        // Long names first, so that none hides in another.
        let mut nodes: Vec<&Node> = self.nodes.iter().collect();
        nodes.sort_by_key(|node| std::cmp::Reverse(node.name.len()));
        for node in nodes {
            text = text.replace(&format!("${}", node.name), &format!("127.0.0.1:{}", node.port));
        }
        text
    }
}

fn bulk(text: &str) -> Value {
    Value::Bulk(text.as_bytes().to_vec())
}

fn deed_shown(deed: &Deed) -> String {
    match deed {
        Deed::Error(text) => format!("refuses: {text}"),
        Deed::Cut => "the reply breaks off in the middle, and the connection with it".to_owned(),
        Deed::Lose => "the connection ends before the reply".to_owned(),
        Deed::Silence => "the reply never comes".to_owned(),
        Deed::Late(ms) => format!("the reply comes {ms} ms late"),
        Deed::Torn => "the reply comes in pieces".to_owned(),
        Deed::Pushes => "pushes of unknown kinds come before the reply".to_owned(),
    }
}

/// A command as a person would type it.
#[must_use]
pub fn shown(args: &[String]) -> String {
    args.join(" ").escape_debug().to_string()
}

/// A reply in a line; a long one is cut.
fn shown_reply(reply: &Value) -> String {
    let text = match reply {
        Value::Null => "(nil)".to_owned(),
        Value::Simple(text) => format!("+{text}"),
        Value::Error(text) => format!("-{text}"),
        Value::Integer(number) => format!(":{number}"),
        Value::Bulk(bytes) | Value::Verbatim(_, bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Value::Double(number) => number.to_string(),
        Value::Boolean(truth) => truth.to_string(),
        Value::BigNumber(digits) => digits.clone(),
        Value::Array(items) | Value::Set(items) => {
            format!("[{}]", items.iter().map(shown_reply).collect::<Vec<_>>().join(" "))
        }
        Value::Push(items) => {
            format!("push [{}]", items.iter().map(shown_reply).collect::<Vec<_>>().join(" "))
        }
        Value::Map(pairs) => {
            let pairs =
                pairs.iter().map(|(key, value)| format!("{} {}", shown_reply(key), shown_reply(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(" "))
        }
    };
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn encode(out: &mut Writer<'_>, reply: &Value) {
    match reply {
        Value::Null => out.null(),
        Value::Simple(text) => out.simple(text),
        Value::Error(text) => out.error(text),
        Value::Integer(number) => out.integer(*number),
        Value::Double(number) => out.double(*number),
        Value::Boolean(truth) => out.boolean(*truth),
        Value::BigNumber(digits) => out.bulk(digits.as_bytes()),
        Value::Bulk(bytes) | Value::Verbatim(_, bytes) => out.bulk(bytes),
        Value::Array(items) => {
            out.array(items.len());
            items.iter().for_each(|item| encode(out, item));
        }
        Value::Set(items) => {
            out.set(items.len());
            items.iter().for_each(|item| encode(out, item));
        }
        Value::Push(items) => {
            out.push(items.len());
            items.iter().for_each(|item| encode(out, item));
        }
        Value::Map(pairs) => {
            out.map(pairs.len());
            for (key, value) in pairs {
                encode(out, key);
                encode(out, value);
            }
        }
    }
}
