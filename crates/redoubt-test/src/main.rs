//! `redoubt-test`: what tests clients and servers.
#![forbid(unsafe_code)]

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
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Task::Judge(arguments) => judge::run(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::from(2)
    })
}
