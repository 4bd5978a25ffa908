//! `cargo run -p sim -- --seeds 10000 --nodes 12`
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use sim::{Plan, Plant, sentinels};

/// Runs the protocol machines under faults that a seed decides.
#[derive(Debug, Parser)]
struct Options {
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
    /// Build in a known fault: votes that are not written to disk.
    #[arg(long)]
    forget_votes: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let plant = options.forget_votes.then_some(Plant::ForgottenVotes);
    let plan = |seed| Plan { seed, nodes: options.nodes, plant };
    if let Some(seed) = options.seed {
        let outcome = sentinels::run(plan(seed), true);
        for line in &outcome.trace {
            println!("{line}");
        }
        println!("digest {:016x}, {} promotions", outcome.digest, outcome.promotions);
        return report(&options, seed, outcome.violation);
    }
    let explored = sim::explore(options.from..options.from + options.seeds, plan);
    match explored.failed {
        Some((seed, violation)) => report(&options, seed, Some(violation)),
        None => {
            println!("{} seeds, {} promotions, nothing violated", options.seeds, explored.promotions);
            ExitCode::SUCCESS
        }
    }
}

fn report(options: &Options, seed: u64, violation: Option<String>) -> ExitCode {
    let Some(violation) = violation else { return ExitCode::SUCCESS };
    println!("seed {seed}: {violation}");
    let plant = if options.forget_votes { " --forget-votes" } else { "" };
    println!("replay: cargo run -p sim -- --nodes {} --seed {seed}{plant}", options.nodes);
    ExitCode::FAILURE
}
