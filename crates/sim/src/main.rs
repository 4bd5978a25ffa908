//! Command line of the simulator, for example `cargo run -p sim -- --seeds 10000 --nodes 12`.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use sim::{InjectedBug, InvariantName, RunPlan, SimulationTarget};

/// Run the protocol machines under random faults.
#[derive(Debug, Parser)]
struct Options {
    /// The part to simulate; all parts if absent.
    #[arg(long, value_enum)]
    machine: Option<SimulationTarget>,
    /// The number of seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The number of processes per run.
    #[arg(long, default_value_t = 6)]
    nodes: usize,
    /// Run only this seed and print its event trace.
    #[arg(long)]
    seed: Option<u64>,
    /// The first of the seeds to run.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Inject a known bug.
    #[arg(long = "inject-bug", alias = "plant", value_enum)]
    injected_bug: Option<InjectedBug>,
    /// Measure clusters, each given as `NODES:DEATHS`: the number of nodes, and of masters that die
    /// at once.
    #[arg(long, value_name = "NODES:DEATHS", value_delimiter = ',')]
    scale: Vec<String>,
    /// With --scale: `cluster-node-timeout`, in milliseconds.
    #[arg(long, default_value_t = 15_000)]
    node_timeout: u64,
    /// Check only this invariant.
    #[arg(long, value_enum)]
    only: Option<InvariantName>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if !options.scale.is_empty() {
        return run_measurements(&options);
    }
    let machines =
        options.machine.map_or(SimulationTarget::value_variants().to_vec(), |machine| vec![machine]);
    // Each machine is run even if an earlier one has failed.
    let failures = machines.into_iter().filter(|machine| !run_machine(&options, *machine)).count();
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Measures large clusters and prints a table with one row per cluster.
fn run_measurements(options: &Options) -> ExitCode {
    println!("| nodes | masters that die | bytes/s sent by a node | messages/s | replaced | last new view |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    for words in &options.scale {
        let numbers = words.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let Some((nodes, deaths)) = numbers.filter(|(nodes, deaths)| *nodes < 10_000 && *deaths <= nodes / 2)
        else {
            eprintln!("{words} is not NODES:DEATHS");
            return ExitCode::FAILURE;
        };
        match sim::scale(
            nodes,
            deaths,
            Duration::from_millis(options.node_timeout),
            options.seed.unwrap_or(1),
        ) {
            Ok(sim::ClusterMeasurements {
                bytes_per_second: bytes,
                messages_per_second: messages,
                replacement_time: replaced,
                agreement_time: agreed,
            }) => {
                let (replaced, agreed) = (replaced.as_millis(), agreed.as_millis());
                println!("| {nodes} | {deaths} | {bytes} | {messages} | {replaced} ms | {agreed} ms |");
            }
            Err(why) => {
                println!("{nodes} nodes: {why}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Runs all seeds of one machine and prints the result. Returns whether all runs passed.
fn run_machine(options: &Options, target: SimulationTarget) -> bool {
    let Options { nodes, injected_bug, only, .. } = *options;
    let plan = |seed| RunPlan { machine: target, seed, nodes, injected_bug, only_invariant: only };
    let name = value_name(&target);
    if let Some(seed) = options.seed {
        let outcome = sim::run(plan(seed), true);
        for line in &outcome.trace {
            println!("{line}");
        }
        let counted = outcome.promotion_count;
        println!("{name}: digest {:016x}, {counted} {}", outcome.digest, event_name(target));
        return report(options, &name, seed, outcome.violation);
    }
    let explored = sim::explore(options.from..options.from + options.seeds, plan);
    match explored.failure {
        Some((seed, violation)) => report(options, &name, seed, Some(violation)),
        None => {
            let (seeds, counted) = (options.seeds, explored.promotion_count);
            println!("{name}: {seeds} seeds, {counted} {}, nothing violated", event_name(target));
            true
        }
    }
}

fn report(options: &Options, name: &str, seed: u64, violation: Option<String>) -> bool {
    let Some(violation) = violation else { return true };
    println!("{name}: seed {seed}: {violation}");
    let injected_bug = options.injected_bug.map_or_else(String::new, |injected_bug| {
        format!(" --inject-bug {}", self::value_name(&injected_bug))
    });
    let only = options.only.map_or_else(String::new, |only| format!(" --only {}", self::value_name(&only)));
    let nodes = options.nodes;
    println!(
        "replay: cargo run -p sim -- --machine {name} --nodes {nodes} --seed {seed}{injected_bug}{only}"
    );
    false
}

/// Returns what a run of this machine counts, for the printed result.
fn event_name(target: SimulationTarget) -> &'static str {
    match target {
        SimulationTarget::Cluster | SimulationTarget::Sentinel => "promotions",
        SimulationTarget::Node => "starts",
    }
}

/// Returns the name of a value on the command line.
fn value_name(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |choice| choice.get_name().to_owned())
}
