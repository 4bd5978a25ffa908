//! Defines scenarios: nodes, their faults, the client's requests, and the costs that still count as
//! good.
//!
//! A scenario is a YAML file that begins with a description ([docs/judge.md] documents its format).
//! Keys are drawn from the seed: `key(a)` is a key of node `a`, and `key(a,2)` a second one.
//!
//! [docs/judge.md]: ../../../docs/judge.md

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::protocol::Mode;

/// A parsed scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The file's name without extension.
    #[serde(default)]
    pub name: String,
    /// The description for people.
    pub story: String,
    /// The scenario's section on the card.
    pub theme: Theme,
    /// How the client discovers its servers.
    pub mode: Mode,
    /// The RESP version for the client.
    #[serde(default = "default_protocol")]
    pub protocol: u8,
    /// Whether the client reads from replicas.
    #[serde(default)]
    pub replicas: bool,
    /// Whether the client uses client-side caching.
    #[serde(default)]
    pub caching: bool,
    /// Whether the nodes use TLS.
    #[serde(default)]
    pub tls: bool,
    /// The client's timeout for connections and replies, in milliseconds.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
    /// The nodes by name.
    pub nodes: BTreeMap<String, NodeSpec>,
    /// The nodes given to the client; empty means every suitable node.
    #[serde(default)]
    pub seeds: Vec<String>,
    /// The faults: how nodes deviate from healthy servers.
    #[serde(default)]
    pub rules: Vec<FaultRule>,
    /// The steps in order.
    pub steps: Vec<ScenarioStep>,
    /// The costs that still count as good.
    #[serde(default)]
    pub allow: CostLimits,
}

/// The themes of scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Theme {
    /// MOVED, ASK and other errors that tell the client where or when to retry.
    Redirects,
    /// The slot map.
    Maps,
    /// Broken connections and replies.
    Replies,
    /// Masters that die and are replaced.
    Failover,
    /// Pub/Sub channels.
    Channels,
    /// Blocking commands.
    Blocking,
    /// Scripts, which each node must load.
    Scripts,
    /// Client-side caching.
    Caching,
    /// Reads from replicas.
    Replicas,
    /// Encrypted connections.
    Tls,
    /// Sentinels.
    Sentinels,
}

impl Theme {
    /// Returns the theme's title.
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

fn default_protocol() -> u8 {
    2
}

fn default_timeout_ms() -> u64 {
    1000
}

/// A node of a scenario.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Slot ranges of a cluster master, such as `0-8191`.
    #[serde(default)]
    pub slots: Vec<String>,
    /// The master of this replica.
    #[serde(default)]
    pub replica_of: Option<String>,
    /// Whether the node is a sentinel.
    #[serde(default)]
    pub sentinel: bool,
    /// Whether the node is no member: an address without a server, at least initially.
    #[serde(default)]
    pub absent: bool,
    /// The initial handling of connections.
    #[serde(default)]
    pub state: ConnectionHandling,
    /// The slot map that the node reports initially.
    #[serde(default)]
    pub tells: ReportedMap,
}

/// How a node handles connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionHandling {
    /// Serves requests.
    #[default]
    #[serde(rename = "up")]
    Serve,
    /// Refuses connections: nothing listens on the port.
    #[serde(rename = "refuses")]
    Refuse,
    /// Accepts and immediately closes connections, like a dead node whose connection attempts can
    /// be counted.
    #[serde(rename = "slams")]
    CloseAtOnce,
    /// Accepts connections and reads requests, but never replies.
    #[serde(rename = "silent")]
    NeverReply,
}

/// The slot map that a node reports, or a sentinel's information about its master.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReportedMap {
    /// The true state.
    #[default]
    #[serde(rename = "truth")]
    Current,
    /// No slots.
    Empty,
    /// Null instead of the node's own host; the client should use the host it connected to.
    NullHost,
    /// `localhost` instead of addresses.
    Hostnames,
    /// The initial state, ignoring all later changes.
    #[serde(rename = "beginning")]
    Initial,
}

impl ReportedMap {
    fn describe(self) -> &'static str {
        match self {
            Self::Current => "the truth",
            Self::Empty => "an empty map",
            Self::NullHost => "a map with null in the place of hosts",
            Self::Hostnames => "a map with hostnames",
            Self::Initial => "the map of the beginning",
        }
    }
}

/// A fault that replaces a node's normal reply.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    /// The nodes affected; all if empty.
    #[serde(default)]
    pub at: Vec<String>,
    /// The affected command, as two words where a subcommand matters (`CLUSTER SLOTS`).
    pub on: String,
    /// Restricts the rule to commands with this first key.
    #[serde(default)]
    pub key: Option<String>,
    /// The number of matching commands to let pass first.
    #[serde(default)]
    pub skip: u32,
    /// The number of times the rule applies; unlimited if absent.
    #[serde(default)]
    pub times: Option<u32>,
    /// How long the rule applies after its first use.
    #[serde(default)]
    pub for_ms: Option<u64>,
    /// The fault to inject.
    #[serde(rename = "do")]
    pub fault: ReplyFault,
}

/// The kinds of reply faults.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ReplyFault {
    /// The command is not executed; this error is the reply. `$slot` is the key's slot, `$a` the
    /// address of node `a`.
    Error(String),
    /// The command is executed; the connection closes in the middle of its reply.
    #[serde(rename = "cut")]
    CutReply,
    /// The command is executed; the connection closes without a reply.
    #[serde(rename = "lose")]
    DropReply,
    /// The command is executed; no reply is sent, and the connection stays open.
    #[serde(rename = "silence")]
    NoReply,
    /// The command is executed; its reply is delayed by this many milliseconds.
    #[serde(rename = "late")]
    Delay(u64),
    /// The command is executed; its reply is sent in pieces of a few bytes.
    #[serde(rename = "torn")]
    Fragment,
    /// The command is executed; RESP3 pushes of unknown kinds precede its reply.
    #[serde(rename = "pushes")]
    UnknownPushes,
}

/// A step of a scenario.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "StepFile")]
pub struct ScenarioStep {
    /// The action to take.
    pub act: StepAction,
    /// The expected result.
    pub expectation: Expectation,
}

/// The kinds of step actions.
#[derive(Debug, Clone, PartialEq)]
pub enum StepAction {
    /// The client runs a command.
    Command(Vec<String>),
    /// The client runs a script that calls this one command.
    Script(Vec<String>),
    /// The client sends commands as one pipeline.
    Pipeline(Vec<Vec<String>>),
    /// The client runs commands in a transaction.
    Transaction(Vec<Vec<String>>),
    /// The client subscribes to channels.
    Subscribe(Vec<String>),
    /// The client subscribes to channels with SSUBSCRIBE.
    Ssubscribe(Vec<String>),
    /// A message must arrive; it is published again with each attempt.
    ExpectMessage {
        /// The channel's name.
        channel: String,
        /// The message's payload.
        data: String,
    },
    /// An event changes the nodes.
    ChangeNodes(NodeEvent),
    /// Waits this many milliseconds.
    Pause(u64),
}

/// The expected result of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// The required reply, if specified.
    pub reply: Option<Value>,
    /// Whether an error is forbidden, allowed or required.
    pub errors: ErrorPolicy,
    /// The maximum number of attempts.
    pub tries: u32,
    /// The time limit for all attempts together, in milliseconds.
    pub within_ms: u64,
}

/// Whether a step may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorPolicy {
    /// An error is a failure.
    Forbidden,
    /// An error is acceptable, because no library could avoid it without risk.
    Allowed,
    /// An error is required, because any reply would be invented.
    Required,
}

/// An event that changes the nodes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum NodeEvent {
    /// A node changes its handling of connections. Open connections are closed unless it becomes
    /// silent.
    #[serde(rename = "net")]
    SetConnectionHandling {
        /// The node's name.
        node: String,
        /// The new connection handling.
        state: ConnectionHandling,
        /// The delay in milliseconds.
        #[serde(default)]
        after_ms: u64,
    },
    /// A replica replaces its master and takes over its slots.
    Promote {
        /// The replica's name.
        node: String,
        /// The delay in milliseconds.
        #[serde(default)]
        after_ms: u64,
    },
    /// A key's slot moves to another node.
    #[serde(rename = "move")]
    MoveSlot {
        /// A key in the slot.
        key: String,
        /// The new owner.
        to: String,
        /// The delay in milliseconds.
        #[serde(default)]
        after_ms: u64,
    },
    /// A node changes the slot map that it reports.
    #[serde(rename = "tells")]
    ReportMap {
        /// The node's name.
        node: String,
        /// The slot map to report.
        #[serde(rename = "what")]
        map: ReportedMap,
        /// The number of replies to give; afterwards the node reports the truth. Unlimited if
        /// absent.
        #[serde(default)]
        times: Option<u32>,
        /// The delay in milliseconds.
        #[serde(default)]
        after_ms: u64,
    },
    /// A node moves to the address of an absent node and keeps its name and slots; its old address
    /// becomes dead.
    #[serde(rename = "readdress")]
    ChangeAddress {
        /// The node's name.
        node: String,
        /// The absent node.
        to: String,
        /// The delay in milliseconds.
        #[serde(default)]
        after_ms: u64,
    },
    /// Another client runs a command at its key's owner or, without a key, at every data node.
    #[serde(rename = "run")]
    RunCommand {
        /// The command.
        command: Vec<String>,
        /// The delay in milliseconds.
        #[serde(default)]
        after_ms: u64,
    },
    /// Every node switches to another certificate for new connections.
    #[serde(rename = "certificate")]
    ReplaceCertificate {
        /// The authority that signed it.
        of: CertificateAuthority,
        /// The delay in milliseconds.
        #[serde(default)]
        after_ms: u64,
    },
}

/// The certificate authority of the nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateAuthority {
    /// The authority given to the client.
    #[default]
    #[serde(rename = "known")]
    Trusted,
    /// An authority unknown to the client.
    #[serde(rename = "unknown")]
    Untrusted,
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
    stage: Option<NodeEvent>,
    pause_ms: Option<u64>,
    expect: Option<Value>,
    #[serde(default)]
    may_fail: bool,
    #[serde(default)]
    must_fail: bool,
    #[serde(default = "default_tries")]
    tries: u32,
    #[serde(default = "default_step_timeout_ms")]
    within_ms: u64,
}

fn default_tries() -> u32 {
    1
}

/// Longer than any library's default reply timeout, with a margin for a busy machine.
fn default_step_timeout_ms() -> u64 {
    12_000
}

impl TryFrom<StepFile> for ScenarioStep {
    type Error = String;

    fn try_from(file: StepFile) -> Result<Self, String> {
        let acts = [
            file.command.map(StepAction::Command),
            file.script.map(StepAction::Script),
            file.pipeline.map(StepAction::Pipeline),
            file.transaction.map(StepAction::Transaction),
            file.subscribe.map(StepAction::Subscribe),
            file.ssubscribe.map(StepAction::Ssubscribe),
            file.hears.map(|[channel, data]| StepAction::ExpectMessage { channel, data }),
            file.stage.map(StepAction::ChangeNodes),
            file.pause_ms.map(StepAction::Pause),
        ];
        let mut acts = acts.into_iter().flatten();
        let (Some(act), None) = (acts.next(), acts.next()) else {
            return Err("a step does one thing".to_owned());
        };
        let errors = match (file.may_fail, file.must_fail) {
            (false, false) => ErrorPolicy::Forbidden,
            (true, false) => ErrorPolicy::Allowed,
            (false, true) => ErrorPolicy::Required,
            (true, true) => return Err("may_fail or must_fail".to_owned()),
        };
        let expectation =
            Expectation { reply: file.expect, errors, tries: file.tries.max(1), within_ms: file.within_ms };
        Ok(Self { act, expectation })
    }
}

/// Cost limits for a good grade; exceeding one makes the scenario costly.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CostLimits {
    /// MOVED and ASK replies for one command.
    pub redirects: usize,
    /// MOVED and ASK replies in total.
    pub redirects_in_all: usize,
    /// Slot map queries after the client was created.
    pub refreshes: usize,
    /// Connections in total.
    pub connections: usize,
    /// Refused connections or refused commands per second and node.
    pub storm: usize,
    /// The time from the last event to the first success, in milliseconds.
    pub recovery_ms: u64,
}

impl Default for CostLimits {
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
    /// Parses a scenario file.
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
                parse_slot_range(range)?;
            }
        }
        self.seeds.iter().try_for_each(known)?;
        for rule in &self.rules {
            rule.at.iter().try_for_each(known)?;
        }
        for step in &self.steps {
            if let StepAction::ChangeNodes(event) = &step.act {
                event.nodes().try_for_each(known)?;
                ensure!(
                    self.tls || !matches!(event, NodeEvent::ReplaceCertificate { .. }),
                    "a certificate without tls"
                );
            }
        }
        Ok(())
    }

    /// Returns all events of the scenario.
    pub fn events(&self) -> impl Iterator<Item = &NodeEvent> {
        self.steps.iter().filter_map(|step| match &step.act {
            StepAction::ChangeNodes(event) => Some(event),
            _ => None,
        })
    }

    /// Returns the nodes given to the client.
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

impl NodeEvent {
    /// Returns the nodes that the event names.
    pub fn nodes(&self) -> impl Iterator<Item = &String> {
        let (first, second) = match self {
            Self::SetConnectionHandling { node, .. }
            | Self::Promote { node, .. }
            | Self::ReportMap { node, .. } => (Some(node), None),
            Self::MoveSlot { to, .. } => (Some(to), None),
            Self::ChangeAddress { node, to, .. } => (Some(node), Some(to)),
            Self::RunCommand { .. } | Self::ReplaceCertificate { .. } => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Describes the event as a sentence.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::SetConnectionHandling { node, state: ConnectionHandling::Serve, .. } => {
                format!("{node} serves")
            }
            Self::SetConnectionHandling { node, state: ConnectionHandling::Refuse, .. } => {
                format!("nothing listens at {node} any more")
            }
            Self::SetConnectionHandling { node, state: ConnectionHandling::CloseAtOnce, .. } => {
                format!("{node} dies")
            }
            Self::SetConnectionHandling { node, state: ConnectionHandling::NeverReply, .. } => {
                format!("{node} says nothing any more")
            }
            Self::Promote { node, .. } => format!("{node} takes its master's place"),
            Self::MoveSlot { key, to, .. } => format!("the slot of {key} moves to {to}"),
            Self::ReportMap { node, map, .. } => format!("{node} reports {}", map.describe()),
            Self::ChangeAddress { node, to, .. } => format!("{node} comes back at the address of {to}"),
            Self::RunCommand { command, .. } => format!("another client runs {}", command.join(" ")),
            Self::ReplaceCertificate { of: CertificateAuthority::Trusted, .. } => {
                "the nodes have another certificate".to_owned()
            }
            Self::ReplaceCertificate { of: CertificateAuthority::Untrusted, .. } => {
                "the nodes have a certificate of an authority that the client does not know".to_owned()
            }
        }
    }

    /// Returns the event's delay.
    #[must_use]
    pub fn after_ms(&self) -> u64 {
        match self {
            Self::SetConnectionHandling { after_ms, .. }
            | Self::Promote { after_ms, .. }
            | Self::MoveSlot { after_ms, .. }
            | Self::ReportMap { after_ms, .. }
            | Self::ChangeAddress { after_ms, .. }
            | Self::RunCommand { after_ms, .. }
            | Self::ReplaceCertificate { after_ms, .. } => *after_ms,
        }
    }
}

/// Parses the first and last slot of a range.
///
/// # Errors
/// If `text` is no valid range.
pub(crate) fn parse_slot_range(text: &str) -> Result<(u16, u16)> {
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

    const MINIMAL_SCENARIO: &str =
        "story: s\ntheme: maps\nmode: cluster\nnodes: {a: {slots: [0-16383]}, b: {}}\n";

    #[test]
    fn missing_fields_have_defaults() {
        let scenario =
            Scenario::read("x", &format!("{MINIMAL_SCENARIO}steps: [{{command: [GET, key(a), 1]}}]"))
                .unwrap();
        assert_eq!(scenario.seeds().collect::<Vec<_>>(), ["a"]);
        assert_eq!(
            scenario.steps[0].act,
            StepAction::Command(["GET", "key(a)", "1"].map(str::to_owned).to_vec())
        );
        assert_eq!(scenario.steps[0].expectation.errors, ErrorPolicy::Forbidden);
    }

    #[test]
    fn invalid_scenarios_are_rejected_with_reason() {
        for (steps, said) in [
            ("[{command: [A], pause_ms: 1}]", "one thing"),
            ("[{may_fail: true}]", "one thing"),
            ("[{stage: {promote: {node: z}}}]", "no node z"),
            ("[{comand: [A]}]", "comand"),
            ("[{pause_ms: 1, may_fail: true, must_fail: true}]", "may_fail"),
        ] {
            let error = Scenario::read("x", &format!("{MINIMAL_SCENARIO}steps: {steps}")).unwrap_err();
            assert!(format!("{error:#}").contains(said), "{steps}: {error:#}");
        }
    }
}
