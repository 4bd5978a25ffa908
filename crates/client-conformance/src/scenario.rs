//! A scenario: its nodes, their faults, the client's requests meanwhile, and the costs that are still good.
//!
//! It is data, a YAML file with its story on top ([docs/judge.md] lists what may stand in it). Keys are drawn from the
//! seed: `key(a)` is a key of node `a`, `key(a,2)` another.
//!
//! [docs/judge.md]: ../../../docs/judge.md

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::protocol::Mode;

/// A scenario as its file says it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The file's name.
    #[serde(default)]
    pub name: String,
    /// The story, for people.
    pub story: String,
    /// Where it stands on the card.
    pub theme: Theme,
    /// How the client finds its servers.
    pub mode: Mode,
    /// The protocol that the client is to speak.
    #[serde(default = "two")]
    pub protocol: u8,
    /// Whether the client is to read from replicas.
    #[serde(default)]
    pub replicas: bool,
    /// Whether the client is to keep what it reads (client-side caching).
    #[serde(default)]
    pub caching: bool,
    /// Whether the nodes speak TLS.
    #[serde(default)]
    pub tls: bool,
    /// How long the client may wait for a connection or a reply.
    #[serde(default = "second")]
    pub timeout_ms: u64,
    /// The nodes.
    pub nodes: BTreeMap<String, NodeSpec>,
    /// Which nodes the client is told of; all that it could be told of without.
    #[serde(default)]
    pub seeds: Vec<String>,
    /// The faults: how nodes deviate from healthy servers.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The costs that are still good.
    #[serde(default)]
    pub allow: Allow,
}

/// The themes of scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Theme {
    /// MOVED, ASK and other errors that say where or when.
    Redirects,
    /// The cluster's map, as nodes tell it.
    Maps,
    /// Connections and replies that break.
    Replies,
    /// Masters that die and are replaced.
    Failover,
    /// Channels.
    Channels,
    /// Commands that wait.
    Blocking,
    /// Scripts, which each node has to be told.
    Scripts,
    /// Values that the client keeps.
    Caching,
    /// Reads from replicas.
    Replicas,
    /// Encrypted connections.
    Tls,
    /// Sentinels.
    Sentinels,
}

impl Theme {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redirects => "redirects",
            Self::Maps => "maps of the cluster",
            Self::Replies => "replies and connections",
            Self::Failover => "failover",
            Self::Channels => "channels",
            Self::Blocking => "blocking commands",
            Self::Scripts => "scripts",
            Self::Caching => "caching in the client",
            Self::Replicas => "replicas",
            Self::Tls => "tls",
            Self::Sentinels => "sentinels",
        }
    }
}

fn two() -> u8 {
    2
}

fn second() -> u64 {
    1000
}

/// A node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// First and last slot of a master in a cluster, as `0-8191`.
    #[serde(default)]
    pub slots: Vec<String>,
    /// The master that it follows.
    #[serde(default)]
    pub replica_of: Option<String>,
    /// Whether it is a sentinel.
    #[serde(default)]
    pub sentinel: bool,
    /// Whether it is no member: an address where nobody is, or is not yet.
    #[serde(default)]
    pub absent: bool,
    /// How it meets connections at the beginning.
    #[serde(default)]
    pub state: NetState,
    /// The map that it tells at the beginning.
    #[serde(default)]
    pub tells: Tells,
}

/// How a node meets connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetState {
    /// It serves.
    #[default]
    Up,
    /// Nothing listens on its port.
    Refuses,
    /// Connections are accepted and closed at once: what a dead node does, but countable.
    Slams,
    /// Connections are accepted, requests are read, nothing is ever answered.
    Silent,
}

/// The view of the cluster that a node tells, or a sentinel's view of its master.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tells {
    /// The true state.
    #[default]
    Truth,
    /// No slots at all.
    Empty,
    /// Null in the place of its own host: the client is to take the one that it has reached.
    NullHost,
    /// `localhost` in the place of addresses.
    Hostnames,
    /// The state at the beginning, whatever came after.
    Beginning,
}

impl Tells {
    fn told(self) -> &'static str {
        match self {
            Self::Truth => "the truth",
            Self::Empty => "an empty map",
            Self::NullHost => "a map with null in the place of hosts",
            Self::Hostnames => "a map with hostnames",
            Self::Beginning => "the map of the beginning",
        }
    }
}

/// A fault that replaces an ordinary reply.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// On these nodes; on all without.
    #[serde(default)]
    pub at: Vec<String>,
    /// For this command; of two words where the second one counts (`CLUSTER SLOTS`).
    pub on: String,
    /// With this key as its first argument.
    #[serde(default)]
    pub key: Option<String>,
    /// So many times it does not apply at first.
    #[serde(default)]
    pub skip: u32,
    /// So many times it applies then; without end if nothing is said.
    #[serde(default)]
    pub times: Option<u32>,
    /// It applies for so long after its first time.
    #[serde(default)]
    pub for_ms: Option<u64>,
    /// The fault itself.
    #[serde(rename = "do")]
    pub deed: Deed,
}

/// The kinds of faults.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Deed {
    /// The command is not run; this is answered. `$slot` is the key's slot, `$a` the address of node `a`.
    Error(String),
    /// The command is run; its reply breaks off in the middle, and with it the connection.
    Cut,
    /// The command is run; the connection ends without a reply.
    Lose,
    /// The command is run; its reply never comes, the connection stands.
    Silence,
    /// The command is run; its reply comes so many milliseconds late.
    Late(u64),
    /// The command is run; its reply comes in pieces of a few bytes.
    Torn,
    /// The command is run; before its reply come pushes of unknown kinds (with RESP3).
    Pushes,
}

/// Something done in a scenario.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "StepFile")]
pub struct Step {
    /// The act of the step.
    pub act: Act,
    /// The result that is required of it.
    pub wants: Wants,
}

/// The kinds of acts.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// The client runs a command.
    Command(Vec<String>),
    /// The client runs a script that calls this one command.
    Script(Vec<String>),
    /// The client sends commands at once.
    Pipeline(Vec<Vec<String>>),
    /// The client runs commands as one.
    Transaction(Vec<Vec<String>>),
    /// The client subscribes to channels.
    Subscribe(Vec<String>),
    /// The client subscribes to channels by SSUBSCRIBE.
    Ssubscribe(Vec<String>),
    /// A message must come; it is published anew each time that it is waited for.
    Hears {
        /// On this channel.
        channel: String,
        /// With this text.
        data: String,
    },
    /// Something happens to nodes.
    Stage(Event),
    /// Nothing is done for so long.
    Pause(u64),
}

/// The requirements on the result of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Wants {
    /// This reply, if one is named.
    pub reply: Option<Value>,
    /// Whether an error is an answer too, or the only right one.
    pub errors: Errors,
    /// How often it is tried until it is done.
    pub tries: u32,
    /// After so long it is too late, in all.
    pub within_ms: u64,
}

/// Whether a step may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errors {
    /// It must not.
    Wrong,
    /// It may: the servers are such that no library could do better, or not without risk.
    Allowed,
    /// It must: a reply would be an invention.
    Right,
}

/// Something that happens to nodes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Event {
    /// A node treats connections otherwise; open ones end, unless it becomes silent.
    Net {
        /// The node.
        node: String,
        /// How from now on.
        state: NetState,
        /// After so long.
        #[serde(default)]
        after_ms: u64,
    },
    /// A replica takes its master's place and slots.
    Promote {
        /// The replica.
        node: String,
        /// After so long.
        #[serde(default)]
        after_ms: u64,
    },
    /// The slot of a key belongs to another node.
    Move {
        /// The key.
        key: String,
        /// Its new owner.
        to: String,
        /// After so long.
        #[serde(default)]
        after_ms: u64,
    },
    /// A node tells something else.
    Tells {
        /// The node.
        node: String,
        /// The view that it tells from then on.
        what: Tells,
        /// To so many questions; then it tells the truth. Without end if nothing is said.
        #[serde(default)]
        times: Option<u32>,
        /// After so long.
        #[serde(default)]
        after_ms: u64,
    },
    /// A node is at another address from now on, that of an absent one, with its name and slots; nobody is at the old one.
    Readdress {
        /// The node.
        node: String,
        /// The absent one.
        to: String,
        /// After so long.
        #[serde(default)]
        after_ms: u64,
    },
    /// Another client runs a command, at its key's owner; without a key, at every node with data.
    Run {
        /// The command.
        command: Vec<String>,
        /// After so long.
        #[serde(default)]
        after_ms: u64,
    },
    /// Every node has another certificate for new connections.
    Certificate {
        /// The authority that signed it.
        of: Authority,
        /// After so long.
        #[serde(default)]
        after_ms: u64,
    },
}

/// The authority that has signed the nodes' certificates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Authority {
    /// The one that the client was given.
    #[default]
    Known,
    /// One that the client has never heard of.
    Unknown,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepFile {
    command: Option<Vec<String>>,
    script: Option<Vec<String>>,
    pipeline: Option<Vec<Vec<String>>>,
    transaction: Option<Vec<Vec<String>>>,
    subscribe: Option<Vec<String>>,
    ssubscribe: Option<Vec<String>>,
    hears: Option<[String; 2]>,
    stage: Option<Event>,
    pause_ms: Option<u64>,
    expect: Option<Value>,
    #[serde(default)]
    may_fail: bool,
    #[serde(default)]
    must_fail: bool,
    #[serde(default = "one")]
    tries: u32,
    #[serde(default = "timeout")]
    within_ms: u64,
}

fn one() -> u32 {
    1
}

/// Longer than any library waits by default for a single reply, on a busy machine.
fn timeout() -> u64 {
    12_000
}

impl TryFrom<StepFile> for Step {
    type Error = String;

    fn try_from(file: StepFile) -> Result<Self, String> {
        let acts = [
            file.command.map(Act::Command),
            file.script.map(Act::Script),
            file.pipeline.map(Act::Pipeline),
            file.transaction.map(Act::Transaction),
            file.subscribe.map(Act::Subscribe),
            file.ssubscribe.map(Act::Ssubscribe),
            file.hears.map(|[channel, data]| Act::Hears { channel, data }),
            file.stage.map(Act::Stage),
            file.pause_ms.map(Act::Pause),
        ];
        let mut acts = acts.into_iter().flatten();
        let (Some(act), None) = (acts.next(), acts.next()) else {
            return Err("a step does one thing".to_owned());
        };
        let errors = match (file.may_fail, file.must_fail) {
            (false, false) => Errors::Wrong,
            (true, false) => Errors::Allowed,
            (false, true) => Errors::Right,
            (true, true) => return Err("may_fail or must_fail".to_owned()),
        };
        let wants = Wants { reply: file.expect, errors, tries: file.tries.max(1), within_ms: file.within_ms };
        Ok(Self { act, wants })
    }
}

/// The costs that are still good; a scenario that needs more is graded down.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Allow {
    /// MOVED and ASK for one command.
    pub redirects: usize,
    /// Redirects in all.
    pub redirects_in_all: usize,
    /// Questions for the map, after the client was made.
    pub refreshes: usize,
    /// Connections in all.
    pub connections: usize,
    /// Connections within a second to a node that takes none, or commands within a second that are refused.
    pub storm: usize,
    /// How long after the last event the first success may come.
    pub recovery_ms: u64,
}

impl Default for Allow {
    fn default() -> Self {
        Self {
            redirects: 2,
            redirects_in_all: 10,
            refreshes: 12,
            connections: 40,
            storm: 200,
            recovery_ms: 6_000,
        }
    }
}

impl Scenario {
    /// Reads a scenario's file.
    ///
    /// # Errors
    /// The first error in the file.
    pub fn read(name: &str, text: &str) -> Result<Self> {
        let mut scenario: Self = serde_saphyr::from_str(text).with_context(|| format!("scenario {name}"))?;
        scenario.name = name.to_owned();
        scenario.check().with_context(|| format!("scenario {name}"))?;
        Ok(scenario)
    }

    fn check(&self) -> Result<()> {
        ensure!(matches!(self.protocol, 2 | 3), "protocol is 2 or 3");
        let known = |name: &String| {
            ensure!(self.nodes.contains_key(name), "there is no node {name}");
            Ok(())
        };
        for node in self.nodes.values() {
            node.replica_of.iter().try_for_each(known)?;
            for range in &node.slots {
                range_of(range)?;
            }
        }
        self.seeds.iter().try_for_each(known)?;
        for rule in &self.rules {
            rule.at.iter().try_for_each(known)?;
        }
        for step in &self.steps {
            if let Act::Stage(event) = &step.act {
                event.nodes().try_for_each(known)?;
                ensure!(self.tls || !matches!(event, Event::Certificate { .. }), "a certificate without tls");
            }
        }
        Ok(())
    }

    /// All that happens to nodes.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.steps.iter().filter_map(|step| match &step.act {
            Act::Stage(event) => Some(event),
            _ => None,
        })
    }

    /// The nodes that the client is told of.
    pub fn seeds(&self) -> impl Iterator<Item = &String> {
        let sentinels = self.mode == Mode::Sentinel;
        self.nodes.iter().filter_map(move |(name, node)| {
            let named = if self.seeds.is_empty() {
                node.sentinel == sentinels
                    && !node.absent
                    && (sentinels || !node.slots.is_empty() || node.replica_of.is_some())
            } else {
                self.seeds.contains(name)
            };
            named.then_some(name)
        })
    }
}

impl Event {
    /// The nodes that it names.
    pub fn nodes(&self) -> impl Iterator<Item = &String> {
        let (first, second) = match self {
            Self::Net { node, .. } | Self::Promote { node, .. } | Self::Tells { node, .. } => {
                (Some(node), None)
            }
            Self::Move { to, .. } => (Some(to), None),
            Self::Readdress { node, to, .. } => (Some(node), Some(to)),
            Self::Run { .. } | Self::Certificate { .. } => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// The event as a sentence.
    #[must_use]
    pub fn told(&self) -> String {
        match self {
            Self::Net { node, state: NetState::Up, .. } => format!("{node} serves"),
            Self::Net { node, state: NetState::Refuses, .. } => format!("nothing listens at {node} any more"),
            Self::Net { node, state: NetState::Slams, .. } => format!("{node} dies"),
            Self::Net { node, state: NetState::Silent, .. } => format!("{node} says nothing any more"),
            Self::Promote { node, .. } => format!("{node} takes its master's place"),
            Self::Move { key, to, .. } => format!("the slot of {key} moves to {to}"),
            Self::Tells { node, what, .. } => format!("{node} tells {}", what.told()),
            Self::Readdress { node, to, .. } => format!("{node} comes back at the address of {to}"),
            Self::Run { command, .. } => format!("another client runs {}", command.join(" ")),
            Self::Certificate { of: Authority::Known, .. } => "the nodes have another certificate".to_owned(),
            Self::Certificate { of: Authority::Unknown, .. } => {
                "the nodes have a certificate of an authority that the client does not know".to_owned()
            }
        }
    }

    /// How long it waits.
    #[must_use]
    pub fn after_ms(&self) -> u64 {
        match self {
            Self::Net { after_ms, .. }
            | Self::Promote { after_ms, .. }
            | Self::Move { after_ms, .. }
            | Self::Tells { after_ms, .. }
            | Self::Readdress { after_ms, .. }
            | Self::Run { after_ms, .. }
            | Self::Certificate { after_ms, .. } => *after_ms,
        }
    }
}

/// First and last slot of a range.
///
/// # Errors
/// If it is none.
pub(crate) fn range_of(text: &str) -> Result<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range: (u16, u16) = (first.parse()?, last.parse()?);
    if range.0 > range.1 || range.1 >= harness::SLOTS {
        bail!("{text} is no range of slots");
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "story: s\ntheme: maps\nmode: cluster\nnodes: {a: {slots: [0-16383]}, b: {}}\n";

    #[test]
    fn what_is_not_said_has_a_default() {
        let scenario =
            Scenario::read("x", &format!("{LEAST}steps: [{{command: [GET, key(a), 1]}}]")).unwrap();
        assert_eq!(scenario.seeds().collect::<Vec<_>>(), ["a"]);
        assert_eq!(scenario.steps[0].act, Act::Command(["GET", "key(a)", "1"].map(str::to_owned).to_vec()));
        assert_eq!(scenario.steps[0].wants.errors, Errors::Wrong);
    }

    #[test]
    fn what_cannot_be_played_is_refused_by_name() {
        for (steps, said) in [
            ("[{command: [A], pause_ms: 1}]", "one thing"),
            ("[{may_fail: true}]", "one thing"),
            ("[{stage: {promote: {node: z}}}]", "no node z"),
            ("[{comand: [A]}]", "comand"),
            ("[{pause_ms: 1, may_fail: true, must_fail: true}]", "may_fail"),
        ] {
            let error = Scenario::read("x", &format!("{LEAST}steps: {steps}")).unwrap_err();
            assert!(format!("{error:#}").contains(said), "{steps}: {error:#}");
        }
    }
}
