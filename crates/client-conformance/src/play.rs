//! Plays one scenario: opens its nodes, starts the adapter, has it do one thing after another, and gives all that was seen.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use crate::adapter::{Adapter, NoAnswer};
use crate::log::{Entry, Happened};
use crate::names::filled;
use crate::nodes::{Nodes, Seen};
use crate::protocol::{Connect, Library, Mode, Outcome, Request};
use crate::real::{RealNodes, Servers};
use crate::scenario::{Act, Errors, Scenario, Wants};
use crate::sockets::Sockets;
use crate::stage::{Executed, MASTER_NAME, Refusal, script_calling, shown};

/// How long a program may take to start, on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// A try that begins in time may end so much later: it is the tries that have taken too long then, and not this one.
const LAST_TRY: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// A library that runs something once more does so soon after it has given up.
const AFTERMATH: Duration = Duration::from_millis(400);

/// One try of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Its number among all that the adapter was asked.
    pub step: usize,
    /// When the adapter was asked.
    pub asked: u64,
    /// When it had answered.
    pub answered: u64,
    /// The commands that it was to run.
    pub commands: Vec<Vec<String>>,
    /// How it went.
    pub outcome: Result<Outcome, NoAnswer>,
}

/// A step as it was played.
#[derive(Debug, Clone, PartialEq)]
pub struct Played {
    /// The act of the step.
    pub act: Act,
    /// The result that was required of it.
    pub wants: Wants,
    /// Its tries.
    pub attempts: Vec<Attempt>,
    /// For messages: whether it came.
    pub heard: bool,
}

impl Played {
    /// Whether it ended as it was to end, so that the next step means what it says.
    fn is_as_wanted(&self) -> bool {
        let outcome = self.attempts.last().map(|attempt| &attempt.outcome);
        match (&self.act, outcome, self.wants.errors) {
            (Act::Hears { .. }, None, _) => self.heard,
            (_, Some(Err(_)), _) | (_, Some(Ok(Outcome::Error(_))), Errors::Wrong) => false,
            (_, Some(Ok(Outcome::Unsupported(_))), _) => false,
            (_, Some(Ok(_)) | None, _) => true,
        }
    }
}

/// A scenario as it was played.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// The library's name, version and features, in its own words.
    pub library: Option<Library>,
    /// The steps, up to where it ended.
    pub steps: Vec<Played>,
    /// When the client was made.
    pub connected: u64,
    /// Why no client was made.
    pub no_client: Option<Result<Outcome, NoAnswer>>,
    /// Everything in order.
    pub log: Vec<Entry>,
    /// The commands that took effect.
    pub executed: Vec<Executed>,
    /// The commands that were refused.
    pub refused: Vec<Refusal>,
    /// Whether [`Run::executed`] has blocking commands when they take effect; real servers tell of them when they come.
    pub counts_pops: bool,
    /// The end of the adapter's standard error.
    pub complaints: String,
    /// How long it all took.
    pub ms: u64,
}

struct Player<'a> {
    nodes: &'a dyn Nodes,
    adapter: Adapter,
    /// Whether the channels are those of SSUBSCRIBE.
    sharded: bool,
    /// How many steps have begun.
    steps: usize,
    run: Run,
}

/// Plays a scenario, on scripted nodes or on real servers.
///
/// # Errors
/// If the adapter cannot be started, or the scenario is no scenario.
pub fn play(scenario: &Scenario, adapter: &[String], seed: u64, servers: Option<&Servers>) -> Result<Run> {
    let scenario = filled(scenario, seed)?;
    let scripted;
    let real;
    let nodes: &dyn Nodes = match servers {
        None => {
            scripted = Sockets::open(&scenario)?;
            &scripted
        }
        Some(servers) => {
            real = RealNodes::open(&scenario, servers);
            &real
        }
    };
    let adapter = Adapter::start(adapter)?;
    let mut player = Player { nodes, adapter, sharded: false, steps: 0, run: Run::default() };
    if player.connect(&scenario) {
        for step in &scenario.steps {
            let played = player.step(&step.act, &step.wants);
            let goes_on = played.is_as_wanted();
            player.run.steps.push(played);
            // The steps behind a failed one depend on it, so their results would mislead.
            if !goes_on {
                break;
            }
        }
        thread::sleep(AFTERMATH);
    }
    let Player { mut adapter, mut run, .. } = player;
    run.complaints = adapter.complaints();
    drop(adapter);
    run.ms = nodes.now();
    Seen { log: run.log, executed: run.executed, refused: run.refused } = nodes.seen();
    run.counts_pops = servers.is_none();
    Ok(run)
}

impl Player<'_> {
    /// Notes that a step begins; its number.
    fn begin_step(&mut self, told: String) -> usize {
        self.nodes.note(Happened::Step(told));
        self.steps += 1;
        self.steps
    }

    fn ask(&mut self, request: &Request, told: &str, timeout: Duration) -> Attempt {
        let asked = self.nodes.now();
        let step = self.begin_step(told.to_owned());
        let outcome = self.adapter.ask(request, timeout);
        let said = match &outcome {
            Ok(Outcome::Ok(value)) => value.to_string(),
            Ok(Outcome::Error(text)) => format!("error: {text}"),
            Ok(Outcome::Unsupported(text)) => format!("not offered: {text}"),
            Err(NoAnswer::Hung) => "no answer".to_owned(),
            Err(NoAnswer::Ended) => "the adapter has ended".to_owned(),
            Err(NoAnswer::Nonsense(text)) => text.clone(),
        };
        self.nodes.note(Happened::Said(said));
        Attempt { step, asked, answered: self.nodes.now(), commands: Vec::new(), outcome }
    }

    /// Makes the client; whether there is one.
    fn connect(&mut self, scenario: &Scenario) -> bool {
        let hello = self.ask(&Request::Hello, "hello", START_PATIENCE);
        self.run.library = match &hello.outcome {
            Ok(Outcome::Ok(value)) => serde_json::from_value(value.clone()).ok(),
            _ => None,
        };
        if self.run.library.is_none() {
            self.run.no_client = Some(hello.outcome);
            return false;
        }
        let addresses = self.nodes.addresses();
        let nodes = scenario.seeds().filter_map(|name| addresses.get(name).cloned()).collect();
        let connect = Request::Connect(Connect {
            mode: scenario.mode,
            nodes,
            master: (scenario.mode == Mode::Sentinel).then(|| MASTER_NAME.to_owned()),
            replicas: scenario.replicas,
            caching: scenario.caching,
            scripts: scripts_of(scenario),
            tls_ca: self.nodes.authority().map(|file| file.to_string_lossy().into_owned()),
            protocol: scenario.protocol,
            timeout_ms: scenario.timeout_ms,
        });
        let connected = self.ask(&connect, "connect", START_PATIENCE);
        self.run.connected = connected.answered;
        let made = matches!(connected.outcome, Ok(Outcome::Ok(_)));
        if !made {
            self.run.no_client = Some(connected.outcome);
        }
        made
    }

    fn step(&mut self, act: &Act, wants: &Wants) -> Played {
        let mut played =
            Played { act: act.clone(), wants: wants.clone(), attempts: Vec::new(), heard: false };
        self.sharded |= matches!(act, Act::Ssubscribe(_));
        match act {
            Act::Stage(event) => self.nodes.event(event),
            Act::Pause(ms) => thread::sleep(Duration::from_millis(*ms)),
            Act::Hears { channel, data } => self.hear(channel, data, &mut played),
            Act::Command(_)
            | Act::Script(_)
            | Act::Pipeline(_)
            | Act::Transaction(_)
            | Act::Subscribe(_)
            | Act::Ssubscribe(_) => {
                self.try_until_done(act, &mut played);
            }
        }
        played
    }

    fn try_until_done(&mut self, act: &Act, played: &mut Played) {
        let until = Instant::now() + Duration::from_millis(played.wants.within_ms);
        for number in 1..=played.wants.tries {
            let Some((request, commands)) = request_of(act, number) else { return };
            let told = told(act, &commands);
            let left = until.saturating_duration_since(Instant::now());
            let timeout = if number == 1 { left } else { left.max(LAST_TRY) };
            let mut attempt = self.ask(&request, &told, timeout);
            attempt.commands = commands;
            let over = !matches!(attempt.outcome, Ok(Outcome::Error(_))) && !is_refused_in_part(&attempt);
            played.attempts.push(attempt);
            if over || Instant::now() > until {
                return;
            }
            if number < played.wants.tries {
                thread::sleep(PAUSE);
            }
        }
    }

    fn hear(&mut self, channel: &str, data: &str, played: &mut Played) {
        let until = Instant::now() + Duration::from_millis(played.wants.within_ms);
        let step = self.begin_step(format!("must hear {data} on {channel}"));
        while Instant::now() < until {
            self.nodes.publish(channel, data, self.sharded);
            match self.adapter.message(PAUSE) {
                Ok(Some(message)) => {
                    self.nodes.note(Happened::Said(format!("{} on {}", message.data, message.channel)));
                    if message.channel == channel && message.data == data {
                        played.heard = true;
                        return;
                    }
                }
                Ok(None) => {}
                Err(why) => {
                    let now = self.nodes.now();
                    let attempt =
                        Attempt { step, asked: now, answered: now, commands: Vec::new(), outcome: Err(why) };
                    played.attempts.push(attempt);
                    return;
                }
            }
        }
    }
}

/// The text of each script in it, once.
fn scripts_of(scenario: &Scenario) -> Vec<String> {
    let texts = scenario.steps.iter().filter_map(|step| match &step.act {
        Act::Script(words) => Some(script_calling(words).0),
        _ => None,
    });
    texts.collect::<BTreeSet<String>>().into_iter().collect()
}

/// Whether commands of a pipeline have failed: it is tried again as a whole.
fn is_refused_in_part(attempt: &Attempt) -> bool {
    let Ok(Outcome::Ok(Value::Array(items))) = &attempt.outcome else { return false };
    attempt.commands.len() == items.len() && items.iter().any(is_error)
}

/// Whether a reply within a pipeline is an error.
pub(crate) fn is_error(item: &Value) -> bool {
    item.as_object().is_some_and(|object| object.contains_key("error"))
}

/// The request of a step's try, and the commands in it.
fn request_of(act: &Act, number: u32) -> Option<(Request, Vec<Vec<String>>)> {
    let number = number.to_string();
    let filled = |words: &Vec<String>| -> Vec<String> {
        words.iter().map(|word| word.replace("$try", &number)).collect()
    };
    let all = |commands: &Vec<Vec<String>>| -> Vec<Vec<String>> { commands.iter().map(filled).collect() };
    Some(match act {
        Act::Command(words) => {
            let args = filled(words);
            (Request::Command { args: args.clone() }, vec![args])
        }
        Act::Script(words) => {
            let call = filled(words);
            let (source, keys, args) = script_calling(&call);
            (Request::Script { source, keys, args }, vec![call])
        }
        Act::Pipeline(commands) => {
            let commands = all(commands);
            (Request::Pipeline { commands: commands.clone() }, commands)
        }
        Act::Transaction(commands) => {
            let commands = all(commands);
            (Request::Transaction { commands: commands.clone() }, commands)
        }
        Act::Subscribe(channels) => {
            (Request::Subscribe { channels: channels.clone(), sharded: false }, Vec::new())
        }
        Act::Ssubscribe(channels) => {
            (Request::Subscribe { channels: channels.clone(), sharded: true }, Vec::new())
        }
        Act::Hears { .. } | Act::Stage(_) | Act::Pause(_) => return None,
    })
}

/// A step in a line.
pub(crate) fn told(act: &Act, commands: &[Vec<String>]) -> String {
    let all = || commands.iter().map(|args| shown(args)).collect::<Vec<_>>().join("; ");
    match act {
        Act::Command(_) => all(),
        Act::Script(_) => format!("a script that calls {}", all()),
        Act::Pipeline(_) => format!("pipeline: {}", all()),
        Act::Transaction(_) => format!("transaction: {}", all()),
        Act::Subscribe(channels) => format!("subscribe {}", channels.join(" ")),
        Act::Ssubscribe(channels) => format!("ssubscribe {}", channels.join(" ")),
        Act::Hears { channel, data } => format!("hear {data} on {channel}"),
        Act::Stage(event) => event.told(),
        Act::Pause(ms) => format!("wait {ms} ms"),
    }
}
