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

use deployment::Deployment;
use request::{Action, At, Kind, Request, Start};

/// The message of the last panic.
static PANIC_MESSAGE: Mutex<String> = Mutex::new(String::new());

/// `redoubt-test testkit [KIND]`
#[derive(Debug, Args)]
#[command(
    after_help = "Reads requests from the standard input and writes answers, one JSON object per line; docs/testkit.md lists \
    them. At the end of the input it stops all servers and removes their files."
)]
pub(crate) struct Arguments {
    /// Start this deployment at once, as if {"do":"start","kind":KIND} were the first request.
    kind: Option<Kind>,
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

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    if let Some(folder) = &arguments.sweep {
        return sweep::sweep(folder);
    }
    let sweeper = sweep::Sweeper::start()?;
    harness::keep_folders_in(sweeper.folder());
    std::panic::set_hook(Box::new(|panic| {
        *PANIC_MESSAGE.lock().unwrap_or_else(PoisonError::into_inner) =
            panic.payload_as_str().unwrap_or("a bug").to_owned();
    }));
    let outcome = serve(arguments);
    drop(std::panic::take_hook());
    sweeper.finish();
    outcome
}

fn serve(arguments: Arguments) -> Result<()> {
    let mut kit = TestKit::default();
    if let Some(kind) = arguments.kind {
        let Arguments { masters, replicas, partitions, tls, program, options, .. } = arguments;
        let start = Start { kind, masters, replicas, options, program, partitions, tls };
        kit.answer(&Request { id: Value::Null, action: Action::Start(start) })?;
    }
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        match serde_json::from_str(&line) {
            Ok(request) => kit.answer(&request)?,
            Err(error) => write_answer(&json!({"id": null, "error": format!("invalid request: {error}")}))?,
        }
    }
    Ok(())
}

fn write_answer(answer: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}").and_then(|()| out.flush()).context("cannot write the answer")
}

/// All running deployments.
#[derive(Default)]
struct TestKit {
    deployments: Vec<Deployment>,
    /// Number of deployments started so far.
    started: usize,
}

impl TestKit {
    fn answer(&mut self, request: &Request) -> Result<()> {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.carry_out(&request.action)));
        let outcome = outcome.unwrap_or_else(|_| {
            Err(anyhow::Error::msg(PANIC_MESSAGE.lock().unwrap_or_else(PoisonError::into_inner).clone()))
        });
        match outcome {
            Ok(result) => write_answer(&json!({"id": request.id, "ok": result})),
            Err(error) => write_answer(&json!({"id": request.id, "error": format!("{error:#}")})),
        }
    }

    fn carry_out(&mut self, action: &Action) -> Result<Value> {
        match action {
            Action::Start(start) => self.start(start),
            Action::End(at) => {
                let index = self.index(at)?;
                let place = self.deployments.remove(index);
                Ok(json!({"place": place.name}))
            }
            Action::Show(at) => Ok(serde_json::to_value(self.at(at)?.show())?),
            Action::Kill(what) => self.at(&what.at)?.kill(what.node),
            Action::Freeze(what) => self.at(&what.at)?.freeze(what.node),
            Action::Thaw(what) => self.at(&what.at)?.thaw(what.node),
            Action::Stop(what) => self.at(&what.at)?.stop(what.node),
            Action::Restart(what) => self.at(&what.at)?.restart(what.node, what.data),
            Action::Partition(what) => self.at(&what.at)?.partition(&what.groups),
            Action::Lose(what) => self.at(&what.at)?.lose(what.node, &what.to),
            Action::Heal(at) => self.at(at)?.heal(),
            Action::MoveSlot(what) => self.at(&what.at)?.move_slot(what.slot, what.to),
            Action::Failover(what) => self.at(&what.at)?.failover(what.node, what.how),
            Action::Wait(what) => self.at(&what.at)?.wait(what.until, what.node, what.seconds),
        }
    }

    fn start(&mut self, start: &Start) -> Result<Value> {
        self.started += 1;
        let place = Deployment::start(format!("{}-{}", start.kind.name(), self.started), start)?;
        let shown = serde_json::to_value(place.show())?;
        self.deployments.push(place);
        Ok(shown)
    }

    fn index(&self, at: &At) -> Result<usize> {
        match (&at.place, &self.deployments[..]) {
            (Some(name), places) => {
                let index = places.iter().position(|place| place.name == *name);
                index.with_context(|| format!("there is no deployment {name}"))
            }
            (None, [_]) => Ok(0),
            (None, []) => bail!("no deployment is running"),
            (None, _) => bail!("several deployments are running: set \"place\""),
        }
    }

    fn at(&mut self, at: &At) -> Result<&mut Deployment> {
        let index = self.index(at)?;
        Ok(&mut self.deployments[index])
    }
}
