//! `redoubt-test testkit`: throw-away servers for the tests of others, and faults on request.
//!
//! One process. Requests come as lines of JSON, answers go out as lines of JSON, in the same order. It ends when its
//! input does, and with it all that it started. If it is killed, the sweeper does this: a second process in a group of
//! its own that waits for the first one's end, then kills whatever still runs in the test's folder, and removes that.
//!
//! Starting and waiting are `harness`'s, which panics when something does not come about; a request that panics is
//! answered with that as its error.

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
static SAID: Mutex<String> = Mutex::new(String::new());

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
        *SAID.lock().unwrap_or_else(PoisonError::into_inner) =
            panic.payload_as_str().unwrap_or("a bug").to_owned();
    }));
    let outcome = serve(arguments);
    drop(std::panic::take_hook());
    sweeper.finish();
    outcome
}

fn serve(arguments: Arguments) -> Result<()> {
    let mut kit = Kit::default();
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
            Err(error) => say(&json!({"id": null, "error": format!("no request: {error}")}))?,
        }
    }
    Ok(())
}

fn say(answer: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}").and_then(|()| out.flush()).context("nobody reads the answers")
}

/// All that stands.
#[derive(Default)]
struct Kit {
    places: Vec<Deployment>,
    /// How many there have been.
    started: usize,
}

impl Kit {
    fn answer(&mut self, request: &Request) -> Result<()> {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.carry_out(&request.action)));
        let outcome = outcome.unwrap_or_else(|_| {
            Err(anyhow::Error::msg(SAID.lock().unwrap_or_else(PoisonError::into_inner).clone()))
        });
        match outcome {
            Ok(told) => say(&json!({"id": request.id, "ok": told})),
            Err(error) => say(&json!({"id": request.id, "error": format!("{error:#}")})),
        }
    }

    fn carry_out(&mut self, action: &Action) -> Result<Value> {
        match action {
            Action::Start(start) => self.start(start),
            Action::End(at) => {
                let index = self.index(at)?;
                let place = self.places.remove(index);
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
        self.places.push(place);
        Ok(shown)
    }

    fn index(&self, at: &At) -> Result<usize> {
        match (&at.place, &self.places[..]) {
            (Some(name), places) => {
                let index = places.iter().position(|place| place.name == *name);
                index.with_context(|| format!("there is no place {name}"))
            }
            (None, [_]) => Ok(0),
            (None, []) => bail!("nothing has been started"),
            (None, _) => bail!("say in which place"),
        }
    }

    fn at(&mut self, at: &At) -> Result<&mut Deployment> {
        let index = self.index(at)?;
        Ok(&mut self.places[index])
    }
}
