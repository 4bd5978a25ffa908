//! Defines scenarios: nodes, their faults, the client's requests, and cost limits.
//!
//! A scenario is a YAML file that begins with a description ([docs/judge.md] documents its format). Keys are drawn from
//! the seed: `key(a)` is a key of node `a`, and `key(a,2)` a second one.
//!
//! [docs/judge.md]: ../../../docs/judge.md

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::protocol::DiscoveryMode;

/// A parsed scenario file, before its key placeholders are replaced.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The file's name without extension.
    #[serde(default)]
    pub name: String,
    /// The description at the top of the file, shown to people in reports.
    pub story: String,
    /// The theme under which the scorecard lists the scenario.
    pub theme: Theme,
    /// How the client discovers its servers.
    pub mode: DiscoveryMode,
    /// The RESP version that the client must use, 2 or 3.
    #[serde(default = "default_protocol")]
    pub protocol: u8,
    /// Whether the client must read from replicas.
    #[serde(default)]
    pub replicas: bool,
    /// Whether the client must use client-side caching.
    #[serde(default)]
    pub caching: bool,
    /// Whether the nodes accept TLS connections only.
    #[serde(default)]
    pub tls: bool,
    /// The client's timeout for connections and replies, in milliseconds.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
    /// The nodes by the names that the rest of the file uses.
    pub nodes: BTreeMap<String, NodeSpec>,
    /// The names of the nodes given to the client. If the list is empty, all suitable nodes are given.
    #[serde(default)]
    pub seeds: Vec<String>,
    /// The faults: how nodes deviate from healthy servers.
    #[serde(default)]
    pub rules: Vec<FaultRule>,
    /// The steps, which run in this order until one fails.
    pub steps: Vec<ScenarioStep>,
    /// The costs that still count as good.
    #[serde(default)]
    pub allow: CostLimits,
}

/// The themes by which scenarios are grouped on the scorecard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Theme {
    /// MOVED, ASK and other errors that tell the client where or when to retry.
    Redirects,
    /// Outdated, empty or unusual slot maps.
    Maps,
    /// Connections that break and replies that are cut, late or missing.
    Replies,
    /// Masters that die and are replaced.
    Failover,
    /// Pub/Sub subscriptions and their messages.
    Channels,
    /// Blocking commands while nodes fail or slots move.
    Blocking,
    /// Scripts, which must be loaded on each node that runs them.
    Scripts,
    /// Client-side caching and its invalidation messages.
    Caching,
    /// Reads from replicas while roles change.
    Replicas,
    /// TLS connections and certificates.
    Tls,
    /// Discovery of the master through sentinels.
    Sentinels,
}

impl Theme {
    /// Returns the theme's title on the scorecard.
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

/// The initial properties of a scenario's node.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Slot ranges of a cluster master, such as `0-8191`.
    #[serde(default)]
    pub slots: Vec<String>,
    /// The name of the node's master, if the node is a replica.
    #[serde(default)]
    pub replica_of: Option<String>,
    /// Whether the node is a sentinel.
    #[serde(default)]
    pub sentinel: bool,
    /// Whether the node does not exist at first: nothing listens on its address until another node moves there.
    #[serde(default)]
    pub absent: bool,
    /// How the node handles connections at the beginning.
    #[serde(default)]
    pub state: ConnectionHandling,
    /// The slot map that the node reports initially.
    #[serde(default)]
    pub tells: ReportedMap,
}

/// How a node handles connections. Events can change this.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionHandling {
    /// The node accepts connections and replies to requests.
    #[default]
    #[serde(rename = "up")]
    Serve,
    /// The node refuses connections because nothing listens on its port.
    #[serde(rename = "refuses")]
    Refuse,
    /// Accepts and immediately closes connections, like a dead node whose connection attempts can
    /// be counted.
    #[serde(rename = "slams")]
    CloseAtOnce,
    /// The node accepts connections and reads requests, but never replies.
    #[serde(rename = "silent")]
    NeverReply,
}

/// The slot map that a node reports, or a sentinel's information about its master.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReportedMap {
    /// The true state at the time of the query.
    #[default]
    #[serde(rename = "truth")]
    Current,
    /// A map without any slots.
    Empty,
    /// The node's own host is reported as null; the client should use the host that it connected to.
    NullHost,
    /// A map with `localhost` in place of IP addresses.
    Hostnames,
    /// The state at the beginning, without any later change.
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
    /// The names of the affected nodes; empty means all nodes.
    #[serde(default)]
    pub at: Vec<String>,
    /// The affected command, as two words where a subcommand matters (`CLUSTER SLOTS`).
    pub on: String,
    /// Restricts the rule to commands whose first key is this one; `None` means no restriction.
    #[serde(default)]
    pub key: Option<String>,
    /// The number of matching commands to let pass first.
    #[serde(default)]
    pub skip: u32,
    /// The maximum number of times that the rule applies; `None` means no limit.
    #[serde(default)]
    pub times: Option<u32>,
    /// Milliseconds during which the rule applies, counted from its first use; `None` means no limit.
    #[serde(default)]
    pub for_ms: Option<u64>,
    /// The fault that replaces or changes the normal reply.
    #[serde(rename = "do")]
    pub fault: ReplyFault,
}

/// What a node does instead of giving a normal reply.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ReplyFault {
    /// The command is not executed and this error is the reply. In the text, `$slot` stands for the key's slot and `$a`
    /// for the address of node `a`.
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
    /// The command is executed; its reply is delayed by this number of milliseconds.
    #[serde(rename = "late")]
    Delay(u64),
    /// The command is executed; its reply is sent in pieces of a few bytes.
    #[serde(rename = "torn")]
    Fragment,
    /// The command is executed; RESP3 pushes of unknown kinds precede its reply.
    #[serde(rename = "pushes")]
    UnknownPushes,
}

/// One step of a scenario: an action and its expected result.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "SerializedStep")]
pub struct ScenarioStep {
    /// What the client or the test program does in this step.
    pub action: StepAction,
    /// The result that the library must produce.
    pub expectation: Expectation,
}

/// What happens in a step: a request to the adapter, or an action of the test program.
#[derive(Debug, Clone, PartialEq)]
pub enum StepAction {
    /// The client runs one command and returns its reply.
    Command(Vec<String>),
    /// The client runs a script that calls this one command.
    Script(Vec<String>),
    /// The client sends commands as one pipeline.
    Pipeline(Vec<Vec<String>>),
    /// The client runs commands in a transaction.
    Transaction(Vec<Vec<String>>),
    /// The client subscribes to channels with SUBSCRIBE.
    Subscribe(Vec<String>),
    /// The client subscribes to channels with SSUBSCRIBE.
    Ssubscribe(Vec<String>),
    /// A message must arrive at the client; the message is published again with each attempt.
    ExpectMessage {
        /// The channel on which the message is published.
        channel: String,
        /// The payload to publish and to expect.
        data: String,
    },
    /// An event changes the nodes; the client does nothing.
    ChangeNodes(NodeEvent),
    /// The test program waits for this number of milliseconds.
    Pause(u64),
}

/// The result that a step must have.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// The required reply; `None` accepts any reply.
    pub reply: Option<Value>,
    /// Whether an error is forbidden, allowed or required.
    pub errors: ErrorPolicy,
    /// The maximum number of attempts, at least 1.
    pub tries: u32,
    /// The time limit for all attempts together, in milliseconds.
    pub within_ms: u64,
}

/// Whether an error of the library makes a step fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorPolicy {
    /// Any error makes the step fail.
    Forbidden,
    /// An error is acceptable, because no library could avoid it without risk.
    Allowed,
    /// An error is required, because any reply would be made up.
    Required,
}

/// An event that changes the nodes, immediately or after a delay.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum NodeEvent {
    /// A node changes how it handles connections. Its open connections are closed, unless the new handling is to never
    /// reply.
    #[serde(rename = "net")]
    SetConnectionHandling {
        /// The name of the node that changes.
        node: String,
        /// How the node handles connections from then on.
        state: ConnectionHandling,
        /// Milliseconds until the event happens.
        #[serde(default)]
        after_ms: u64,
    },
    /// A replica replaces its master and takes over its slots.
    Promote {
        /// The name of the replica to promote.
        node: String,
        /// Milliseconds until the event happens.
        #[serde(default)]
        after_ms: u64,
    },
    /// The slot of a key moves to another node.
    #[serde(rename = "move")]
    MoveSlot {
        /// A key in the slot that moves.
        key: String,
        /// The name of the slot's new owner.
        to: String,
        /// Milliseconds until the event happens.
        #[serde(default)]
        after_ms: u64,
    },
    /// A node changes the slot map that it reports.
    #[serde(rename = "tells")]
    ReportMap {
        /// The name of the node that reports the map.
        node: String,
        /// The slot map to report instead.
        #[serde(rename = "what")]
        map: ReportedMap,
        /// The number of replies with this map, after which the node reports the true state; `None` means no limit.
        #[serde(default)]
        times: Option<u32>,
        /// Milliseconds until the event happens.
        #[serde(default)]
        after_ms: u64,
    },
    /// A node moves to the address of an absent node, but keeps its name and slots. Nothing listens on its old address
    /// any more.
    #[serde(rename = "readdress")]
    ChangeAddress {
        /// The name of the node that moves.
        node: String,
        /// The name of the absent node; the moved node takes over its address.
        to: String,
        /// Milliseconds until the event happens.
        #[serde(default)]
        after_ms: u64,
    },
    /// Another client runs a command at its key's owner or, without a key, at every data node.
    #[serde(rename = "run")]
    RunCommand {
        /// The command's name and arguments.
        command: Vec<String>,
        /// Milliseconds until the event happens.
        #[serde(default)]
        after_ms: u64,
    },
    /// Every node switches to another certificate for new connections.
    #[serde(rename = "certificate")]
    ReplaceCertificate {
        /// The authority that signed the new certificate.
        of: CertificateAuthority,
        /// Milliseconds until the event happens.
        #[serde(default)]
        after_ms: u64,
    },
}

/// The certificate authority of the nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateAuthority {
    /// The authority whose certificate the client was given.
    #[default]
    #[serde(rename = "known")]
    Trusted,
    /// An authority unknown to the client.
    #[serde(rename = "unknown")]
    Untrusted,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SerializedStep {
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

/// Longer than the default reply timeout of any library, with a margin for a busy machine.
fn default_step_timeout_ms() -> u64 {
    12_000
}

impl TryFrom<SerializedStep> for ScenarioStep {
    type Error = String;

    fn try_from(file: SerializedStep) -> Result<Self, String> {
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
        Ok(Self { action: act, expectation })
    }
}

/// Cost limits for a good grade; exceeding one makes the scenario costly.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CostLimits {
    /// The maximum number of MOVED and ASK replies for one command.
    pub redirects: usize,
    /// The maximum number of MOVED and ASK replies in the whole run.
    pub redirects_in_all: usize,
    /// The maximum number of slot map queries after the client was created.
    pub refreshes: usize,
    /// The maximum number of connections that the client opens in the whole run.
    pub connections: usize,
    /// The maximum number of refused connections or commands per second and node.
    pub storm: usize,
    /// The maximum time from the last event to the first success, in milliseconds.
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
    /// The position and reason of the first error in the text.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut scenario: Self = serde_saphyr::from_str(text).with_context(|| format!("scenario {name}"))?;
        scenario.name = name.to_owned();
        scenario.validate().with_context(|| format!("scenario {name}"))?;
        Ok(scenario)
    }

    fn validate(&self) -> Result<()> {
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
            if let StepAction::ChangeNodes(event) = &step.action {
                event.nodes().try_for_each(known)?;
                ensure!(
                    self.tls || !matches!(event, NodeEvent::ReplaceCertificate { .. }),
                    "a certificate without tls"
                );
            }
        }
        Ok(())
    }

    /// Iterates over the events of all steps, for example to find the nodes they name.
    pub fn events(&self) -> impl Iterator<Item = &NodeEvent> {
        self.steps.iter().filter_map(|step| match &step.action {
            StepAction::ChangeNodes(event) => Some(event),
            _ => None,
        })
    }

    /// Iterates over the names of the nodes given to the client.
    pub fn seeds(&self) -> impl Iterator<Item = &String> {
        let sentinels = self.mode == DiscoveryMode::Sentinel;
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

    /// Describes the event as a sentence for the log.
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

    /// Returns the delay before the event, in milliseconds.
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

/// Parses a slot range such as `0-8191` into its first and last slot.
///
/// # Errors
/// `text` is not a valid range.
pub(crate) fn parse_slot_range(text: &str) -> Result<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range: (u16, u16) = (first.parse()?, last.parse()?);
    if range.0 > range.1 || range.1 >= harness::SLOT_COUNT {
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
            Scenario::parse("x", &format!("{MINIMAL_SCENARIO}steps: [{{command: [GET, key(a), 1]}}]"))
                .unwrap();
        assert_eq!(scenario.seeds().collect::<Vec<_>>(), ["a"]);
        assert_eq!(
            scenario.steps[0].action,
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
            let error = Scenario::parse("x", &format!("{MINIMAL_SCENARIO}steps: {steps}")).unwrap_err();
            assert!(format!("{error:#}").contains(said), "{steps}: {error:#}");
        }
    }
}
