//! `redoubt-test`: what tests clients and servers. The server's own binary carries none of it; `redoubt judge`, `redoubt
//! chaos` and `redoubt testkit` become this one.
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
    /// Say how good a client library is, by scenarios.
    Judge(judge::Arguments),
    /// Break servers while clients write, and say what became of their data.
    Chaos(chaos::Arguments),
    /// Start throw-away servers for a test, and break them on request.
    Testkit(testkit::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Task::Judge(arguments) => judge::run(&arguments),
        Task::Chaos(arguments) => chaos::run_as_told(arguments),
        Task::Testkit(arguments) => testkit::run(arguments).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::from(2)
    })
}
