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
    command: TestCommand,
}

#[derive(Debug, Subcommand)]
enum TestCommand {
    /// Test a client library against failure scenarios.
    Judge(client_conformance::Arguments),
    /// Inject faults into servers under load and check for lost writes.
    Chaos(chaos::ChaosArguments),
    /// Start temporary servers for tests and inject faults on request.
    Testkit(testkit::TestkitArguments),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        TestCommand::Judge(arguments) => client_conformance::run(&arguments),
        TestCommand::Chaos(arguments) => chaos::run_command(arguments),
        TestCommand::Testkit(arguments) => testkit::run_testkit(arguments).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::from(2)
    })
}
