//! `redoubt-test judge -- COMMAND`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Args;
use harness::Program;
use serde::de::DeserializeOwned;

use crate::card::{Baseline, Card, CardOfOne, Case, compared, evidence, html, junit, text, worse};
use crate::play::play;
use crate::protocol::Library;
use crate::real::{Servers, can_play};
use crate::scenario::Scenario;
use crate::scenarios::{built_in, in_folder};
use crate::verdict::{Grade, judge};

/// The judge's command line.
#[derive(Debug, Args)]
#[command(
    after_help = "COMMAND starts the library's adapter: a small program that does what lines of JSON tell it.\n\
    docs/judge.md says how to write one. The exit status is 1 if anything fails or does harm; with --baseline,\n\
    if anything got worse."
)]
pub struct Arguments {
    /// Play only these scenarios: names, beginnings of names or themes, with commas between.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The seed that keys and the like are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Say which scenarios there are.
    #[arg(long)]
    list: bool,
    /// Show these cards, written by --json, beside each other as Markdown, and play nothing.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    compare: Vec<PathBuf>,
    /// A card written by --json: what got worse since.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write the card as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the card as JUnit's XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the card as a page with timelines.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// How many scenarios are played at the same time: most of each is waiting. Real servers are started for one at a time.
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Show what was on the wire in each scenario that is not good.
    #[arg(long)]
    evidence: bool,
    /// Play on real servers, as far as they can: Redoubt, or any program of redis-server's form.
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, default_missing_value = "")]
    server: Option<String>,
    /// With --server: what watches; a program of redis-sentinel's form.
    #[arg(long, value_name = "PROGRAM", requires = "server")]
    sentinel: Option<PathBuf>,
    /// Scenarios of your own, in the place of those that come along.
    #[arg(long, value_name = "FOLDER")]
    scenarios: Option<PathBuf>,
    /// The adapter.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Judges a library as the command line says.
///
/// # Errors
/// If there is no such adapter, scenario or file.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if !arguments.compare.is_empty() {
        let cards: Result<Vec<CardOfOne>> = arguments.compare.iter().map(|file| read_card(file)).collect();
        print!("{}", compared(&cards?));
        return Ok(ExitCode::SUCCESS);
    }
    let scenarios = chosen(arguments)?;
    if arguments.list {
        for scenario in &scenarios {
            let story = scenario.story.split_whitespace().collect::<Vec<_>>().join(" ");
            println!("{} ({})\n    {story}", scenario.name, scenario.theme.name());
        }
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!arguments.command.is_empty(), "say which adapter: redoubt-test judge -- python3 adapter.py");
    let baseline = arguments.baseline.as_deref().map(read_card::<Baseline>).transpose()?;
    let servers = arguments.servers();
    for program in servers.iter().flat_map(|servers| [&servers.server, &servers.sentinel]) {
        let told = Command::new(program.binary()).arg("--version").output();
        told.with_context(|| format!("{} cannot be started", program.binary().display()))?;
    }
    let player = Player {
        adapter: &arguments.command,
        seed: arguments.seed,
        servers: servers.as_ref(),
        jobs: if servers.is_some() { 1 } else { arguments.jobs },
    };
    let card = player.judge(&scenarios)?;
    print!("{}", text(&card));
    if arguments.evidence {
        for case in card.cases.iter().filter(|case| case.verdict.grade > Grade::NotOffered) {
            print!("\n{}", evidence(case));
        }
    }
    write(arguments.json.as_deref(), || Ok(serde_json::to_string_pretty(&card)?))?;
    write(arguments.junit.as_deref(), || Ok(junit(&card)))?;
    write(arguments.html.as_deref(), || html(&card))?;
    let good = match &baseline {
        Some(baseline) => {
            let worse = worse(&card, baseline);
            worse.iter().for_each(|line| println!("worse: {line}"));
            worse.is_empty()
        }
        None => card.worst() < Grade::Fails,
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A scenario on the card, and the library as it called itself.
type PlayedCase = (Case, Option<Library>);

/// Plays scenarios with an adapter.
#[derive(Debug, Clone, Copy)]
pub struct Player<'a> {
    /// The command that starts it.
    pub adapter: &'a [String],
    /// The seed that keys are drawn from.
    pub seed: u64,
    /// The servers, if they are to be real.
    pub servers: Option<&'a Servers>,
    /// How many scenarios are played at the same time.
    pub jobs: usize,
}

impl Player<'_> {
    /// Plays the scenarios and judges each.
    ///
    /// # Errors
    /// If the adapter cannot be started.
    pub fn judge(&self, scenarios: &[Scenario]) -> Result<Card> {
        let next = AtomicUsize::new(0);
        let played: Vec<Mutex<Option<Result<PlayedCase>>>> =
            scenarios.iter().map(|_| Mutex::default()).collect();
        thread::scope(|scope| {
            for _ in 0..self.jobs.clamp(1, scenarios.len().max(1)) {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some((scenario, place)) = scenarios.get(index).zip(played.get(index)) else {
                            return;
                        };
                        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.case(scenario));
                    }
                });
            }
        });
        let mut card = Card {
            library: None,
            seed: self.seed,
            servers: self.servers.map(Servers::name),
            cases: Vec::new(),
        };
        for place in played {
            let case = place.into_inner().unwrap_or_else(PoisonError::into_inner);
            let (case, library) = case.context("a scenario was not played")??;
            card.library = card.library.or(library);
            card.cases.push(case);
        }
        Ok(card)
    }

    fn case(&self, scenario: &Scenario) -> Result<PlayedCase> {
        let run = play(scenario, self.adapter, self.seed, self.servers)?;
        let verdict = judge(scenario, &run);
        Ok((Case::new(scenario, verdict, run.log, run.complaints), run.library))
    }
}

impl Arguments {
    /// The servers to play on, if they are to be real.
    fn servers(&self) -> Option<Servers> {
        let named =
            |name: &str| if name.is_empty() { Program::redoubt() } else { Program::named(Path::new(name)) };
        let server = named(self.server.as_deref()?);
        let sentinel = self.sentinel.as_deref().map_or_else(Program::redoubt, Program::named);
        Some(Servers { server, sentinel })
    }
}

fn chosen(arguments: &Arguments) -> Result<Vec<Scenario>> {
    let mut scenarios = match &arguments.scenarios {
        Some(folder) => in_folder(folder)?,
        None => built_in()?,
    };
    if arguments.server.is_some() {
        scenarios.retain(can_play);
    }
    let wanted = |scenario: &Scenario| {
        let only = &arguments.only;
        only.is_empty()
            || only
                .iter()
                .any(|word| scenario.name.starts_with(word) || scenario.theme.name().starts_with(word))
    };
    scenarios.retain(wanted);
    ensure!(!scenarios.is_empty(), "there is no scenario {}", arguments.only.join(", "));
    Ok(scenarios)
}

fn read_card<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let text = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no card", file.display()))
}

fn write(file: Option<&Path>, make: impl FnOnce() -> Result<String>) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    fs::write(file, make()?).with_context(|| format!("{} cannot be written", file.display()))
}
