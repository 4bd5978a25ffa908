//! `redoubt-test testkit`: starts temporary servers for tests and injects faults on request.
//!
//! Requests and answers are JSON, one per line, in the same order. At the end of its input the process stops all servers.
//! If it is killed, the sweeper does this: a second process in its own process group that waits for the end of the first,
//! kills all processes in the test's directory, and removes the directory.
//!
//! `harness` panics when a wait times out; a panic during a request becomes the error of its answer.

mod deployment;
mod faults;
mod request;
mod sweep;

use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use deployment::TestDeployment;
use request::{DeploymentKind, StartRequest, TargetDeployment, TestkitAction, TestkitRequest};

/// The message of the last panic, which becomes the error of an answer.
static PANIC_MESSAGE: Mutex<String> = Mutex::new(String::new());

/// `redoubt-test testkit [KIND]`
#[derive(Debug, Args)]
#[command(
    after_help = "Reads requests from the standard input and writes answers, one JSON object per line; docs/testkit.md lists \
    them. At the end of the input it stops all servers and removes their files."
)]
pub(crate) struct TestkitArguments {
    /// Start this deployment at once, as if {"do":"start","kind":KIND} were the first request.
    kind: Option<DeploymentKind>,
    /// Number of masters in a cluster.
    #[arg(long, default_value_t = 3)]
    masters: usize,
    /// Replicas per master.
    #[arg(long, default_value_t = 1)]
    replicas: usize,
    /// Allow network partitions on request.
    #[arg(long)]
    partitions: bool,
    /// Enable TLS on a second port of every node, with server.crt, server.key and ca.crt from this directory. A sentinel
    /// group then uses the TLS ports for replication, monitoring and clients.
    #[arg(long, value_name = "FOLDER")]
    tls: Option<PathBuf>,
    /// Another server binary with the command line of redis-server.
    #[arg(long, value_name = "BINARY")]
    program: Option<PathBuf>,
    /// Option for every server, such as --option '--maxmemory 100mb'; can be repeated.
    #[arg(long = "option", value_name = "OPTION", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Wait for the end of the input, then clean up this directory.
    #[arg(long, hide = true, value_name = "FOLDER")]
    sweep: Option<PathBuf>,
}

pub(crate) fn run_testkit(arguments: TestkitArguments) -> Result<()> {
    if let Some(folder) = &arguments.sweep {
        return sweep::run_sweeper(folder);
    }
    let sweeper = sweep::Sweeper::start()?;
    harness::set_folders_root(sweeper.folder());
    std::panic::set_hook(Box::new(|panic| {
        *PANIC_MESSAGE.lock().unwrap_or_else(PoisonError::into_inner) =
            panic.payload_as_str().unwrap_or("a bug").to_owned();
    }));
    let outcome = serve_requests(arguments);
    drop(std::panic::take_hook());
    sweeper.clean_up();
    outcome
}

fn serve_requests(arguments: TestkitArguments) -> Result<()> {
    let mut kit = TestkitServer::default();
    if let Some(kind) = arguments.kind {
        let TestkitArguments { masters, replicas, partitions, tls, program, options, .. } = arguments;
        let start = StartRequest { kind, masters, replicas, options, program, partitions, tls };
        kit.handle_request(&TestkitRequest { id: Value::Null, action: TestkitAction::Start(start) })?;
    }
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        match serde_json::from_str(&line) {
            Ok(request) => kit.handle_request(&request)?,
            Err(error) => write_answer(&json!({"id": null, "error": format!("invalid request: {error}")}))?,
        }
    }
    Ok(())
}

fn write_answer(answer: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}").and_then(|()| out.flush()).context("cannot write the answer")
}

/// The deployments that the test kit has started.
#[derive(Default)]
struct TestkitServer {
    deployments: Vec<TestDeployment>,
    /// Number of deployments started so far, from which unique names are derived.
    started_count: usize,
}

impl TestkitServer {
    fn handle_request(&mut self, request: &TestkitRequest) -> Result<()> {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.execute_action(&request.action)));
        let outcome = outcome.unwrap_or_else(|_| {
            Err(anyhow::Error::msg(PANIC_MESSAGE.lock().unwrap_or_else(PoisonError::into_inner).clone()))
        });
        match outcome {
            Ok(result) => write_answer(&json!({"id": request.id, "ok": result})),
            Err(error) => write_answer(&json!({"id": request.id, "error": format!("{error:#}")})),
        }
    }

    fn execute_action(&mut self, action: &TestkitAction) -> Result<Value> {
        match action {
            TestkitAction::Start(start) => self.start_deployment(start),
            TestkitAction::End(at) => {
                let index = self.deployment_index(at)?;
                let place = self.deployments.remove(index);
                Ok(json!({"place": place.name}))
            }
            TestkitAction::Show(at) => Ok(serde_json::to_value(self.find_deployment(at)?.describe())?),
            TestkitAction::Kill(what) => self.find_deployment(&what.deployment)?.kill_node(what.node),
            TestkitAction::Freeze(what) => self.find_deployment(&what.deployment)?.freeze_node(what.node),
            TestkitAction::Thaw(what) => self.find_deployment(&what.deployment)?.thaw_node(what.node),
            TestkitAction::Stop(what) => self.find_deployment(&what.deployment)?.stop_node(what.node),
            TestkitAction::Restart(what) => {
                self.find_deployment(&what.deployment)?.restart_node(what.node, what.data)
            }
            TestkitAction::Partition(what) => {
                self.find_deployment(&what.deployment)?.partition_network(&what.groups)
            }
            TestkitAction::Lose(what) => {
                self.find_deployment(&what.deployment)?.drop_packets(what.node, &what.to)
            }
            TestkitAction::Heal(at) => self.find_deployment(at)?.heal_network(),
            TestkitAction::MoveSlot(what) => {
                self.find_deployment(&what.deployment)?.move_slot(what.slot, what.to)
            }
            TestkitAction::Failover(what) => {
                self.find_deployment(&what.deployment)?.start_failover(what.node, what.how)
            }
            TestkitAction::Wait(what) => self.find_deployment(&what.deployment)?.wait_for_condition(
                what.until,
                what.node,
                what.seconds,
            ),
        }
    }

    fn start_deployment(&mut self, start_request: &StartRequest) -> Result<Value> {
        self.started_count += 1;
        let place = TestDeployment::start(
            format!("{}-{}", start_request.kind.default_name(), self.started_count),
            start_request,
        )?;
        let shown = serde_json::to_value(place.describe())?;
        self.deployments.push(place);
        Ok(shown)
    }

    fn deployment_index(&self, target: &TargetDeployment) -> Result<usize> {
        match (&target.place, &self.deployments[..]) {
            (Some(name), places) => {
                let index = places.iter().position(|place| place.name == *name);
                index.with_context(|| format!("there is no deployment {name}"))
            }
            (None, [_]) => Ok(0),
            (None, []) => bail!("no deployment is running"),
            (None, _) => bail!("several deployments are running: set \"place\""),
        }
    }

    fn find_deployment(&mut self, target: &TargetDeployment) -> Result<&mut TestDeployment> {
        let index = self.deployment_index(target)?;
        Ok(&mut self.deployments[index])
    }
}
