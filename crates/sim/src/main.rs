//! `cargo run -p sim -- --seeds 10000 --nodes 12`
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use sim::{Machine, Plan, Plant};

/// Runs the protocol machines under faults that a seed decides.
#[derive(Debug, Parser)]
struct Options {
    /// Which machines.
    #[arg(long, value_enum, default_value_t = Which::Both)]
    machine: Which,
    /// How many seeds to try.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// How many processes each run has.
    #[arg(long, default_value_t = 6)]
    nodes: usize,
    /// Only this seed, with all that happens.
    #[arg(long)]
    seed: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Build in a known fault.
    #[arg(long, value_enum)]
    plant: Option<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    Both,
    Cluster,
    Sentinel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fault {
    ForgottenVotes,
    IgnoredQuorum,
    Panic,
}

impl Fault {
    fn plant(self) -> Plant {
        match self {
            Self::ForgottenVotes => Plant::ForgottenVotes,
            Self::IgnoredQuorum => Plant::IgnoredQuorum,
            Self::Panic => Plant::Panic,
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let machines = match options.machine {
        Which::Both => vec![Machine::Cluster, Machine::Sentinel],
        Which::Cluster => vec![Machine::Cluster],
        Which::Sentinel => vec![Machine::Sentinel],
    };
    // Every machine is tried, also after one has failed.
    let failures = machines.into_iter().filter(|machine| !holds(&options, *machine)).count();
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Tries one machine, and tells.
fn holds(options: &Options, machine: Machine) -> bool {
    let plant = options.plant.map(Fault::plant);
    let plan = |seed| Plan { machine, seed, nodes: options.nodes, plant };
    let name = format!("{machine:?}").to_lowercase();
    if let Some(seed) = options.seed {
        let outcome = sim::run(plan(seed), true);
        for line in &outcome.trace {
            println!("{line}");
        }
        println!("{name}: digest {:016x}, {} promotions", outcome.digest, outcome.promotions);
        return report(options, &name, seed, outcome.violation);
    }
    let explored = sim::explore(options.from..options.from + options.seeds, plan);
    match explored.failed {
        Some((seed, violation)) => report(options, &name, seed, Some(violation)),
        None => {
            println!("{name}: {} seeds, {} promotions, nothing violated", options.seeds, explored.promotions);
            true
        }
    }
}

fn report(options: &Options, name: &str, seed: u64, violation: Option<String>) -> bool {
    let Some(violation) = violation else { return true };
    println!("{name}: seed {seed}: {violation}");
    let named = options.plant.and_then(|fault| fault.to_possible_value());
    let plant = named.map_or_else(String::new, |fault| format!(" --plant {}", fault.get_name()));
    let nodes = options.nodes;
    println!("replay: cargo run -p sim -- --machine {name} --nodes {nodes} --seed {seed}{plant}");
    false
}
