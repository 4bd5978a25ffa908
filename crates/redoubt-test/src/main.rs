//! `redoubt-test`: tools that test clients and servers. It is a separate program so that the server binary does not contain
//! fault injection; `redoubt judge`, `redoubt chaos` and `redoubt testkit` run it.
#![forbid(unsafe_code)]

mod testkit;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "redoubt-test", version, about = "Tests clients and servers of the Redis protocol")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Test a client library against failure scenarios.
    Judge(client_conformance::Arguments),
    /// Inject faults into servers under load and check for lost writes.
    Chaos(chaos::Arguments),
    /// Start temporary servers for tests and inject faults on request.
    Testkit(testkit::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Task::Judge(arguments) => client_conformance::run(&arguments),
        Task::Chaos(arguments) => chaos::run_command(arguments),
        Task::Testkit(arguments) => testkit::run(arguments).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::from(2)
    })
}
