//! The command line of `redoubt-test judge -- COMMAND`.

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

use crate::protocol::ClientLibrary;
use crate::real_nodes::{ServerPrograms, is_supported};
use crate::scenario::Scenario;
use crate::scenario_files::{built_in_scenarios, scenarios_in_folder};
use crate::scenario_run::run_scenario;
use crate::scorecard::{
    Baseline, SavedScorecard, ScenarioResult, Scorecard, compare_scorecards, render_evidence, render_html,
    render_junit, render_text, worse_results,
};
use crate::verdict::{Grade, grade_run};

/// Options of `redoubt-test judge`.
#[derive(Debug, Args)]
#[command(
    after_help = "COMMAND starts the library's adapter: a small program that does what lines of JSON tell it.\n\
    docs/judge.md says how to write one. The exit status is 1 if anything fails or does harm; with --baseline,\n\
    if anything got worse."
)]
pub struct Arguments {
    /// Run only these scenarios: names, name prefixes or themes, separated by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The seed from which keys are drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// List the scenarios.
    #[arg(long)]
    list: bool,
    /// Compare these cards, written by --json, as Markdown, and run nothing.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    compare: Vec<PathBuf>,
    /// Report what got worse since this card, written by --json.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write the card as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the card as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the card as an HTML page with timelines.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Number of scenarios to run in parallel; they mostly wait. Real servers run one scenario at a
    /// time.
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Show the wire traffic of each scenario that is not good.
    #[arg(long)]
    evidence: bool,
    /// Run on real servers where possible: Redoubt, or any program compatible with redis-server.
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, default_missing_value = "")]
    server: Option<String>,
    /// The sentinel program for --server, compatible with redis-sentinel.
    #[arg(long, value_name = "PROGRAM", requires = "server")]
    sentinel: Option<PathBuf>,
    /// A folder with scenarios to run instead of the built-in ones.
    #[arg(long, value_name = "FOLDER")]
    scenarios: Option<PathBuf>,
    /// The command that starts the library's adapter.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Tests a library as the options say.
///
/// # Errors
/// If the adapter, a scenario or a file is missing.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if !arguments.compare.is_empty() {
        let cards: Result<Vec<SavedScorecard>> =
            arguments.compare.iter().map(|file| read_scorecard(file)).collect();
        print!("{}", compare_scorecards(&cards?));
        return Ok(ExitCode::SUCCESS);
    }
    let scenarios = select_scenarios(arguments)?;
    if arguments.list {
        for scenario in &scenarios {
            let story = scenario.story.split_whitespace().collect::<Vec<_>>().join(" ");
            println!("{} ({})\n    {story}", scenario.name, scenario.theme.name());
        }
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!arguments.command.is_empty(), "say which adapter: redoubt-test judge -- python3 adapter.py");
    let baseline = arguments.baseline.as_deref().map(read_scorecard::<Baseline>).transpose()?;
    let servers = arguments.real_servers();
    for program in servers.iter().flat_map(|servers| [&servers.server, &servers.sentinel]) {
        let told = Command::new(program.binary()).arg("--version").output();
        told.with_context(|| format!("{} cannot be started", program.binary().display()))?;
    }
    let player = ScenarioRunner {
        adapter: &arguments.command,
        seed: arguments.seed,
        servers: servers.as_ref(),
        jobs: if servers.is_some() { 1 } else { arguments.jobs },
    };
    let card = player.run_all(&scenarios)?;
    print!("{}", render_text(&card));
    if arguments.evidence {
        for case in card.cases.iter().filter(|case| case.verdict.grade > Grade::Unsupported) {
            print!("\n{}", render_evidence(case));
        }
    }
    write_file(arguments.json.as_deref(), || Ok(serde_json::to_string_pretty(&card)?))?;
    write_file(arguments.junit.as_deref(), || Ok(render_junit(&card)))?;
    write_file(arguments.html.as_deref(), || render_html(&card))?;
    let good = match &baseline {
        Some(baseline) => {
            let worse = worse_results(&card, baseline);
            worse.iter().for_each(|line| println!("worse: {line}"));
            worse.is_empty()
        }
        None => card.worst_grade() < Grade::Fails,
    };
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A result, and the library's name and version if its adapter reported them.
type NamedResult = (ScenarioResult, Option<ClientLibrary>);

/// Runs scenarios against an adapter.
#[derive(Debug, Clone, Copy)]
pub struct ScenarioRunner<'a> {
    /// The command that starts the library's adapter, with its arguments.
    pub adapter: &'a [String],
    /// The seed from which keys are drawn.
    pub seed: u64,
    /// Real servers to run on instead of scripted nodes.
    pub servers: Option<&'a ServerPrograms>,
    /// The number of scenarios that run in parallel; the command line uses 1 on real servers.
    pub jobs: usize,
}

impl ScenarioRunner<'_> {
    /// Runs the scenarios and grades each.
    ///
    /// # Errors
    /// If the adapter cannot be started.
    pub fn run_all(&self, scenarios: &[Scenario]) -> Result<Scorecard> {
        let next = AtomicUsize::new(0);
        let played: Vec<Mutex<Option<Result<NamedResult>>>> =
            scenarios.iter().map(|_| Mutex::default()).collect();
        thread::scope(|scope| {
            for _ in 0..self.jobs.clamp(1, scenarios.len().max(1)) {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some((scenario, place)) = scenarios.get(index).zip(played.get(index)) else {
                            return;
                        };
                        *place.lock().unwrap_or_else(PoisonError::into_inner) =
                            Some(self.run_scenario(scenario));
                    }
                });
            }
        });
        let mut card = Scorecard {
            library: None,
            seed: self.seed,
            servers: self.servers.map(ServerPrograms::name),
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

    fn run_scenario(&self, scenario: &Scenario) -> Result<NamedResult> {
        let run = run_scenario(scenario, self.adapter, self.seed, self.servers)?;
        let verdict = grade_run(scenario, &run);
        Ok((ScenarioResult::new(scenario, verdict, run.log, run.stderr_tail), run.library))
    }
}

impl Arguments {
    /// Returns the real servers to run on, if requested.
    fn real_servers(&self) -> Option<ServerPrograms> {
        let named = |name: &str| {
            if name.is_empty() { Program::redoubt() } else { Program::from_binary(Path::new(name)) }
        };
        let server = named(self.server.as_deref()?);
        let sentinel = self.sentinel.as_deref().map_or_else(Program::redoubt, Program::from_binary);
        Some(ServerPrograms { server, sentinel })
    }
}

fn select_scenarios(arguments: &Arguments) -> Result<Vec<Scenario>> {
    let mut scenarios = match &arguments.scenarios {
        Some(folder) => scenarios_in_folder(folder)?,
        None => built_in_scenarios()?,
    };
    if arguments.server.is_some() {
        scenarios.retain(is_supported);
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

fn read_scorecard<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let text = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no card", file.display()))
}

fn write_file(file: Option<&Path>, make_content: impl FnOnce() -> Result<String>) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    fs::write(file, make_content()?).with_context(|| format!("{} cannot be written", file.display()))
}
