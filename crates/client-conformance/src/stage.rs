//! Nodes that follow a scenario: a small cluster or sentinel group as a machine without sockets.
//!
//! The caller passes in the input with its connection and time; the stage returns the actions to carry out. All nodes
//! share one keyspace: a key is where its slot is. A node answers as a healthy one would (`map`, `model`), unless a
//! rule of the scenario says otherwise. All commands that took effect, and all refusals, are remembered: verdicts count
//! them.

mod channels;
mod commands;
mod data;
mod map;
mod model;
mod replies;
mod rules;
mod scripts;
#[cfg(test)]
mod tests;
mod tracking;
mod waiting;

use std::collections::{BTreeMap, VecDeque};

use anyhow::Result;
use harness::{SLOTS, slot_of};
use resp::{Protocol, Value, Writer};

use crate::log::{Entry, Happened};
use crate::protocol::Mode;
use crate::scenario::{Deed, Event, NetState, Scenario, Tells, range_of};
pub(crate) use commands::first_key;
pub use commands::{is_write, script_calling, waits};
use data::Stored;
pub use map::MASTER_NAME;
use replies::{deed_shown, encode, shown_reply};
use rules::Rules;
use scripts::Known;
use tracking::Tracking;
use waiting::Waiting;

/// Which node.
pub type NodeIndex = usize;
/// Which connection, of all that there were.
pub type ConnectionId = u64;

/// The connection of those who are not judged.
const OTHERS: ConnectionId = 0;

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
    /// Its name within the cluster, which it keeps at another address.
    id: String,
    /// Whether it is no member.
    absent: bool,
    role: Role,
    view: View,
}

/// The view of the others that a node tells.
#[derive(Debug, Clone, Copy)]
struct View {
    tells: Tells,
    /// To so many questions; then it tells the truth. None if that has no end.
    answers_left: Option<u32>,
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
    /// A blocking command that has no reply yet, and those behind it.
    waiting: Option<Waiting>,
    behind: VecDeque<Vec<String>>,
    tracking: Option<Tracking>,
}

impl Connection {
    fn new(node: NodeIndex) -> Self {
        Self {
            node,
            silent: false,
            protocol: Protocol::Resp2,
            asking: false,
            readonly: false,
            queue: None,
            channels: Vec::new(),
            waiting: None,
            behind: VecDeque::new(),
            tracking: None,
        }
    }
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

impl Action {
    /// The connection that it is about.
    #[must_use]
    pub fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Send(id, _) | Self::SendLate(id, ..) | Self::SendTorn(id, _) | Self::Close(id) => Some(*id),
            Self::Net(_) => None,
        }
    }
}

/// A command that took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// When.
    pub ms: u64,
    /// How many steps had begun.
    pub step: usize,
    /// By which node.
    pub node: NodeIndex,
    /// Its name and arguments.
    pub args: Vec<String>,
}

/// The code of a refusal without words: the node said nothing.
pub(crate) const NO_ANSWER: &str = "(no answer)";

/// A command that a node did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// When.
    pub ms: u64,
    /// How many steps had begun; 0 if that is not known.
    pub step: usize,
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
    /// The scripts that each node knows.
    scripts: Known,
    /// Keys that were changed, and by whom: those who keep them have to be told.
    changed: Vec<(ConnectionId, String)>,
    rules: Rules,
    connections: BTreeMap<ConnectionId, Connection>,
    last_connection: ConnectionId,
    /// How many steps have begun.
    steps: usize,
    /// The last place among those who wait.
    last_turn: u64,
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
            nodes.push(Node {
                name: name.clone(),
                port: *port,
                state: spec.state,
                id: format!("{:0>40}", format!("{port:x}")),
                absent: spec.absent,
                role,
                view: View { tells: spec.tells, answers_left: None },
            });
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
            scripts: Known::default(),
            changed: Vec::new(),
            rules: Rules::new(&scenario.rules),
            connections: BTreeMap::new(),
            last_connection: 0,
            steps: 0,
            last_turn: 0,
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
        self.steps += usize::from(matches!(what, Happened::Step(_)));
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
        self.connections.insert(id, Connection::new(node));
        Some(id)
    }

    /// Whether the connection is there, as the nodes see it.
    #[must_use]
    pub fn is_open(&self, id: ConnectionId) -> bool {
        self.connections.contains_key(&id)
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
        let node = &self.nodes[connection.node];
        let is_silent = connection.silent || node.state == NetState::Silent;
        self.note_on(ms, id, Happened::Asked(shown(args)));
        if is_silent {
            self.remember_refusal(ms, id, NO_ANSWER, args);
            return Vec::new();
        }
        let mut actions = self.answer_in_turn(ms, id, args);
        actions.extend(self.follow_up(ms));
        actions
    }

    /// Answers a command now, or behind one that waits.
    fn answer_in_turn(&mut self, ms: u64, id: ConnectionId, args: &[String]) -> Vec<Action> {
        match self.connections.get_mut(&id) {
            Some(connection) if connection.waiting.is_some() => {
                connection.behind.push_back(args.to_vec());
                Vec::new()
            }
            Some(_) => self.answer(ms, id, args),
            None => Vec::new(),
        }
    }

    fn answer(&mut self, ms: u64, id: ConnectionId, args: &[String]) -> Vec<Action> {
        let node = self.connections[&id].node;
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
        self.deliver(ms, id, bytes, deed)
    }

    /// Tells others of what a command has done: those who keep its keys are told, and those who wait are served.
    fn follow_up(&mut self, ms: u64) -> Vec<Action> {
        let mut actions = self.invalidations(ms);
        while let Some(served) = self.serve_next(ms) {
            actions.extend(served);
            actions.extend(self.invalidations(ms));
        }
        actions
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
        self.note(ms, Happened::Event(event.told()));
        match event {
            Event::Net { node, state, .. } => {
                let Some(node) = self.node(node) else { return Vec::new() };
                let mut actions = match state {
                    NetState::Silent => Vec::new(),
                    NetState::Up | NetState::Refuses | NetState::Slams => {
                        self.end_connections(ms, |at| at == node)
                    }
                };
                self.nodes[node].state = *state;
                actions.push(Action::Net(node));
                actions
            }
            Event::Promote { node, .. } => {
                let Some(node) = self.node(node) else { return Vec::new() };
                self.promote(ms, node)
            }
            Event::Move { key, to, .. } => {
                let Some(to) = self.node(to) else { return Vec::new() };
                self.move_slot(ms, slot_of(key), to)
            }
            Event::Tells { node, what, times, .. } => {
                if let Some(node) = self.node(node) {
                    self.nodes[node].view = View { tells: *what, answers_left: *times };
                }
                Vec::new()
            }
            Event::Readdress { node, to, .. } => {
                let (Some(node), Some(to)) = (self.node(node), self.node(to)) else { return Vec::new() };
                let mut actions = self.end_connections(ms, |at| at == node || at == to);
                self.readdress(node, to);
                actions.extend([Action::Net(node), Action::Net(to)]);
                actions
            }
            Event::Run { command, .. } => self.run_for_others(ms, command),
            // Certificates are of those who encrypt.
            Event::Certificate { .. } => Vec::new(),
        }
    }

    fn promote(&mut self, ms: u64, node: NodeIndex) -> Vec<Action> {
        let Role::Replica(master) = self.nodes[node].role else { return Vec::new() };
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
        match self.mode {
            Mode::Cluster => self.send_away(ms, |waiting_at, _| waiting_at == master),
            // A sentinel that gives servers other roles has them end their clients' connections, also of those who
            // wait, without a word.
            Mode::Sentinel => {
                let is_told: Vec<bool> = self
                    .nodes
                    .iter()
                    .map(|node| node.role != Role::Sentinel && node.state == NetState::Up)
                    .collect();
                self.end_connections(ms, |at| is_told[at])
            }
        }
    }

    /// Nodes end their connections.
    fn end_connections(&mut self, ms: u64, at: impl Fn(NodeIndex) -> bool) -> Vec<Action> {
        let ended = self.connections.iter().filter(|(_, connection)| at(connection.node));
        let ended: Vec<ConnectionId> = ended.map(|(id, _)| *id).collect();
        for id in &ended {
            self.note_on(ms, *id, Happened::Ended);
            self.connections.remove(id);
        }
        ended.into_iter().map(Action::Close).collect()
    }

    /// A node is where an absent one was, under its own name, and nobody is where it was.
    fn readdress(&mut self, from: NodeIndex, to: NodeIndex) {
        self.epoch += 1;
        for owner in self.owners.iter_mut().filter(|owner| **owner == Some(from)) {
            *owner = Some(to);
        }
        for node in &mut self.nodes {
            if node.role == Role::Replica(from) {
                node.role = Role::Replica(to);
            }
        }
        let old = &mut self.nodes[from];
        (old.absent, old.state) = (true, NetState::Slams);
        let (id, role) = (old.id.clone(), old.role);
        let new = &mut self.nodes[to];
        (new.absent, new.state, new.id, new.role) = (false, NetState::Up, id, role);
    }

    /// Another client's command, at the owner of its key or at every node with data.
    fn run_for_others(&mut self, ms: u64, args: &[String]) -> Vec<Action> {
        let keyed = commands::find(&args[0]).and_then(|row| row.keys(args).first().map(|key| slot_of(key)));
        let nodes: Vec<NodeIndex> = match (keyed, self.mode) {
            (Some(slot), Mode::Cluster) => self.owners[usize::from(slot)].into_iter().collect(),
            (Some(_), Mode::Sentinel) => {
                self.nodes.iter().position(|node| node.role == Role::Master).into_iter().collect()
            }
            (None, _) => {
                (0..self.nodes.len()).filter(|node| self.nodes[*node].role != Role::Sentinel).collect()
            }
        };
        for node in nodes {
            self.connections.insert(OTHERS, Connection::new(node));
            self.run(ms, OTHERS, args);
            self.connections.remove(&OTHERS);
        }
        self.follow_up(ms)
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
        let Value::Error(text) = reply else { return };
        let code = text.split(' ').next().unwrap_or_default().to_owned();
        if code != "ERR" && id != OTHERS {
            self.remember_refusal(ms, id, &code, args);
        }
    }

    fn remember_refusal(&mut self, ms: u64, id: ConnectionId, code: &str, args: &[String]) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (step, node) = (self.steps, connection.node);
        self.refused.push(Refusal { ms, step, node, code: code.to_owned(), args: args.to_vec() });
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

/// A command as a person would type it.
#[must_use]
pub fn shown(args: &[String]) -> String {
    args.join(" ").escape_debug().to_string()
}
