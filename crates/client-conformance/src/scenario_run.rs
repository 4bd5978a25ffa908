//! Runs one scenario: starts its nodes and the adapter, executes the steps and collects the events.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use crate::adapter::{Adapter, AdapterFailure};
use crate::event_log::{LogEntry, LogEvent};
use crate::nodes::{Nodes, NodesRecord};
use crate::placeholders::fill_placeholders;
use crate::protocol::{AdapterOutcome, AdapterRequest, ClientLibrary, ClientSettings, DiscoveryMode};
use crate::real_nodes::{RealNodes, ServerPrograms};
use crate::scenario::{ErrorPolicy, Expectation, Scenario, StepAction};
use crate::scripted_nodes::ScriptedNodes;
use crate::simulation::{ExecutedCommand, MASTER_NAME, RefusedCommand, format_command, script_that_calls};

/// How long an adapter may take to start on a busy machine.
const ADAPTER_START_TIMEOUT: Duration = Duration::from_secs(30);
/// Extra time for an attempt that began before the step's deadline. Only earlier attempts could have delayed it.
const LAST_ATTEMPT_EXTRA_TIME: Duration = Duration::from_secs(5);
/// Delay between two attempts of a step.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long to watch for further retries after the library has reported a failure.
const RETRY_WATCH_TIME: Duration = Duration::from_millis(400);

/// One attempt at a step: the request and the adapter's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestAttempt {
    /// The request's number, counted over all requests to the adapter.
    pub step: usize,
    /// When the request was sent, in milliseconds since the scenario began.
    pub request_ms: u64,
    /// When the answer arrived, in milliseconds since the scenario began.
    pub answer_ms: u64,
    /// The commands in the request, each as name and arguments.
    pub commands: Vec<Vec<String>>,
    /// The adapter's answer, or the reason why there is none.
    pub outcome: Result<AdapterOutcome, AdapterFailure>,
}

/// A step that was executed, with all its attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct StepResult {
    /// The action that the step performed.
    pub action: StepAction,
    /// The result that the step must have.
    pub expectation: Expectation,
    /// The attempts in order; the last one decides the step's result.
    pub attempts: Vec<RequestAttempt>,
    /// Whether the expected message arrived, if the step waits for a message.
    pub has_message_arrived: bool,
}

impl StepResult {
    /// Returns whether the step met its expectation. Otherwise the run ends.
    fn meets_expectation(&self) -> bool {
        let outcome = self.attempts.last().map(|attempt| &attempt.outcome);
        match (&self.action, outcome, self.expectation.errors) {
            (StepAction::ExpectMessage { .. }, None, _) => self.has_message_arrived,
            (_, Some(Err(_)), _) | (_, Some(Ok(AdapterOutcome::Error(_))), ErrorPolicy::Forbidden) => false,
            (_, Some(Ok(AdapterOutcome::Unsupported(_))), _) => false,
            (_, Some(Ok(_)) | None, _) => true,
        }
    }
}

/// The record of a scenario run.
#[derive(Debug, Clone, Default)]
pub struct ScenarioRun {
    /// The library's name and version as reported by its adapter.
    pub library: Option<ClientLibrary>,
    /// The executed steps; the run ends at the first failed step.
    pub steps: Vec<StepResult>,
    /// When the client was created, in milliseconds since the scenario began.
    pub connected_at_ms: u64,
    /// Why no client could be created; `None` if one was created.
    pub client_error: Option<Result<AdapterOutcome, AdapterFailure>>,
    /// All logged events, in the order in which they happened.
    pub log: Vec<LogEntry>,
    /// The commands that took effect, on any node.
    pub executed_commands: Vec<ExecutedCommand>,
    /// The commands that a node refused or left without a reply.
    pub refused_commands: Vec<RefusedCommand>,
    /// Whether [`ScenarioRun::executed_commands`] records a blocking command when it pops an element. Real servers record it
    /// when it arrives.
    pub records_pops_on_effect: bool,
    /// The end of the adapter's standard error, for the report.
    pub stderr_tail: String,
    /// The duration of the run in milliseconds.
    pub duration_ms: u64,
}

struct StepRunner<'a> {
    nodes: &'a dyn Nodes,
    adapter: Adapter,
    /// Whether the scenario subscribes with SSUBSCRIBE, so that messages must be published with SPUBLISH.
    uses_sharded_channels: bool,
    /// The number of steps started so far.
    step_count: usize,
    run: ScenarioRun,
}

/// Runs a scenario on scripted nodes or real servers.
///
/// # Errors
/// The adapter cannot be started, or the scenario is invalid.
pub fn run_scenario(
    scenario: &Scenario,
    adapter: &[String],
    seed: u64,
    servers: Option<&ServerPrograms>,
) -> Result<ScenarioRun> {
    let scenario = fill_placeholders(scenario, seed)?;
    let scripted;
    let real;
    let nodes: &dyn Nodes = match servers {
        None => {
            scripted = ScriptedNodes::open(&scenario)?;
            &scripted
        }
        Some(servers) => {
            real = RealNodes::start(&scenario, servers);
            &real
        }
    };
    let adapter = Adapter::start(adapter)?;
    let mut player = StepRunner {
        nodes,
        adapter,
        uses_sharded_channels: false,
        step_count: 0,
        run: ScenarioRun::default(),
    };
    if player.connect(&scenario) {
        for step in &scenario.steps {
            let played = player.run_step(&step.action, &step.expectation);
            let goes_on = played.meets_expectation();
            player.run.steps.push(played);
            // Later steps depend on earlier ones, so after a failure their results would be misleading.
            if !goes_on {
                break;
            }
        }
        thread::sleep(RETRY_WATCH_TIME);
    }
    let StepRunner { mut adapter, mut run, .. } = player;
    run.stderr_tail = adapter.stderr_tail();
    drop(adapter);
    run.duration_ms = nodes.now();
    NodesRecord {
        log: run.log,
        executed_commands: run.executed_commands,
        refused_commands: run.refused_commands,
    } = nodes.take_record();
    run.records_pops_on_effect = servers.is_none();
    Ok(run)
}

impl StepRunner<'_> {
    /// Logs the start of a step and returns the number of the step.
    fn begin_step(&mut self, description: String) -> usize {
        self.nodes.log_event(LogEvent::RequestSent(description));
        self.step_count += 1;
        self.step_count
    }

    fn send_request(
        &mut self,
        request: &AdapterRequest,
        description: &str,
        timeout: Duration,
    ) -> RequestAttempt {
        let asked = self.nodes.now();
        let step = self.begin_step(description.to_owned());
        let outcome = self.adapter.request(request, timeout);
        let said = match &outcome {
            Ok(AdapterOutcome::Ok(value)) => value.to_string(),
            Ok(AdapterOutcome::Error(text)) => format!("error: {text}"),
            Ok(AdapterOutcome::Unsupported(text)) => format!("not offered: {text}"),
            Err(AdapterFailure::TimedOut) => "no answer".to_owned(),
            Err(AdapterFailure::Exited) => "the adapter has ended".to_owned(),
            Err(AdapterFailure::InvalidLine(text)) => text.clone(),
        };
        self.nodes.log_event(LogEvent::AdapterAnswered(said));
        RequestAttempt { step, request_ms: asked, answer_ms: self.nodes.now(), commands: Vec::new(), outcome }
    }

    /// Creates the client and returns whether the adapter succeeded.
    fn connect(&mut self, scenario: &Scenario) -> bool {
        let hello = self.send_request(&AdapterRequest::Hello, "hello", ADAPTER_START_TIMEOUT);
        self.run.library = match &hello.outcome {
            Ok(AdapterOutcome::Ok(value)) => serde_json::from_value(value.clone()).ok(),
            _ => None,
        };
        if self.run.library.is_none() {
            self.run.client_error = Some(hello.outcome);
            return false;
        }
        let addresses = self.nodes.addresses();
        let nodes = scenario.seeds().filter_map(|name| addresses.get(name).cloned()).collect();
        let connect = AdapterRequest::Connect(ClientSettings {
            mode: scenario.mode,
            nodes,
            master: (scenario.mode == DiscoveryMode::Sentinel).then(|| MASTER_NAME.to_owned()),
            replicas: scenario.replicas,
            caching: scenario.caching,
            scripts: script_texts(scenario),
            tls_ca: self.nodes.ca_file().map(|file| file.to_string_lossy().into_owned()),
            protocol: scenario.protocol,
            timeout_ms: scenario.timeout_ms,
        });
        let connected = self.send_request(&connect, "connect", ADAPTER_START_TIMEOUT);
        self.run.connected_at_ms = connected.answer_ms;
        let made = matches!(connected.outcome, Ok(AdapterOutcome::Ok(_)));
        if !made {
            self.run.client_error = Some(connected.outcome);
        }
        made
    }

    fn run_step(&mut self, action: &StepAction, expectation: &Expectation) -> StepResult {
        let mut played = StepResult {
            action: action.clone(),
            expectation: expectation.clone(),
            attempts: Vec::new(),
            has_message_arrived: false,
        };
        self.uses_sharded_channels |= matches!(action, StepAction::Ssubscribe(_));
        match action {
            StepAction::ChangeNodes(event) => self.nodes.apply_event(event),
            StepAction::Pause(ms) => thread::sleep(Duration::from_millis(*ms)),
            StepAction::ExpectMessage { channel, data } => self.expect_message(channel, data, &mut played),
            StepAction::Command(_)
            | StepAction::Script(_)
            | StepAction::Pipeline(_)
            | StepAction::Transaction(_)
            | StepAction::Subscribe(_)
            | StepAction::Ssubscribe(_) => {
                self.retry_until_done(action, &mut played);
            }
        }
        played
    }

    fn retry_until_done(&mut self, action: &StepAction, result: &mut StepResult) {
        let until = Instant::now() + Duration::from_millis(result.expectation.within_ms);
        for number in 1..=result.expectation.tries {
            let Some((request, commands)) = build_request(action, number) else { return };
            let told = describe_step(action, &commands);
            let left = until.saturating_duration_since(Instant::now());
            let timeout = if number == 1 { left } else { left.max(LAST_ATTEMPT_EXTRA_TIME) };
            let mut attempt = self.send_request(&request, &told, timeout);
            attempt.commands = commands;
            let over =
                !matches!(attempt.outcome, Ok(AdapterOutcome::Error(_))) && !has_failed_command(&attempt);
            result.attempts.push(attempt);
            if over || Instant::now() > until {
                return;
            }
            if number < result.expectation.tries {
                thread::sleep(RETRY_DELAY);
            }
        }
    }

    fn expect_message(&mut self, channel: &str, data: &str, result: &mut StepResult) {
        let until = Instant::now() + Duration::from_millis(result.expectation.within_ms);
        let step = self.begin_step(format!("must hear {data} on {channel}"));
        while Instant::now() < until {
            self.nodes.publish(channel, data, self.uses_sharded_channels);
            match self.adapter.next_message(RETRY_DELAY) {
                Ok(Some(message)) => {
                    self.nodes.log_event(LogEvent::AdapterAnswered(format!(
                        "{} on {}",
                        message.data, message.channel
                    )));
                    if message.channel == channel && message.data == data {
                        result.has_message_arrived = true;
                        return;
                    }
                }
                Ok(None) => {}
                Err(why) => {
                    let now = self.nodes.now();
                    let attempt = RequestAttempt {
                        step,
                        request_ms: now,
                        answer_ms: now,
                        commands: Vec::new(),
                        outcome: Err(why),
                    };
                    result.attempts.push(attempt);
                    return;
                }
            }
        }
    }
}

/// Returns the distinct script texts of the scenario.
fn script_texts(scenario: &Scenario) -> Vec<String> {
    let texts = scenario.steps.iter().filter_map(|step| match &step.action {
        StepAction::Script(words) => Some(script_that_calls(words).0),
        _ => None,
    });
    texts.collect::<BTreeSet<String>>().into_iter().collect()
}

/// Returns whether a command in the pipeline failed. In this case the whole pipeline is retried.
fn has_failed_command(attempt: &RequestAttempt) -> bool {
    let Ok(AdapterOutcome::Ok(Value::Array(items))) = &attempt.outcome else { return false };
    attempt.commands.len() == items.len() && items.iter().any(is_error_item)
}

/// Returns whether an item of a pipeline's reply is an error.
pub(crate) fn is_error_item(item: &Value) -> bool {
    item.as_object().is_some_and(|object| object.contains_key("error"))
}

/// Builds the request for an attempt at a step, together with its commands.
fn build_request(action: &StepAction, attempt_number: u32) -> Option<(AdapterRequest, Vec<Vec<String>>)> {
    let number = attempt_number.to_string();
    let filled = |words: &Vec<String>| -> Vec<String> {
        words.iter().map(|word| word.replace("$try", &number)).collect()
    };
    let all = |commands: &Vec<Vec<String>>| -> Vec<Vec<String>> { commands.iter().map(filled).collect() };
    Some(match action {
        StepAction::Command(words) => {
            let args = filled(words);
            (AdapterRequest::Command { args: args.clone() }, vec![args])
        }
        StepAction::Script(words) => {
            let call = filled(words);
            let (source, keys, args) = script_that_calls(&call);
            (AdapterRequest::Script { source, keys, args }, vec![call])
        }
        StepAction::Pipeline(commands) => {
            let commands = all(commands);
            (AdapterRequest::Pipeline { commands: commands.clone() }, commands)
        }
        StepAction::Transaction(commands) => {
            let commands = all(commands);
            (AdapterRequest::Transaction { commands: commands.clone() }, commands)
        }
        StepAction::Subscribe(channels) => {
            (AdapterRequest::Subscribe { channels: channels.clone(), sharded: false }, Vec::new())
        }
        StepAction::Ssubscribe(channels) => {
            (AdapterRequest::Subscribe { channels: channels.clone(), sharded: true }, Vec::new())
        }
        StepAction::ExpectMessage { .. } | StepAction::ChangeNodes(_) | StepAction::Pause(_) => return None,
    })
}

/// Formats a step as one line.
pub(crate) fn describe_step(action: &StepAction, commands: &[Vec<String>]) -> String {
    let all = || commands.iter().map(|args| format_command(args)).collect::<Vec<_>>().join("; ");
    match action {
        StepAction::Command(_) => all(),
        StepAction::Script(_) => format!("a script that calls {}", all()),
        StepAction::Pipeline(_) => format!("pipeline: {}", all()),
        StepAction::Transaction(_) => format!("transaction: {}", all()),
        StepAction::Subscribe(channels) => format!("subscribe {}", channels.join(" ")),
        StepAction::Ssubscribe(channels) => format!("ssubscribe {}", channels.join(" ")),
        StepAction::ExpectMessage { channel, data } => format!("hear {data} on {channel}"),
        StepAction::ChangeNodes(event) => event.describe(),
        StepAction::Pause(ms) => format!("wait {ms} ms"),
    }
}
