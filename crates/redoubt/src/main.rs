//! The `redoubt` program.
//!
//! When it is started under the name `redis-server` or `valkey-server`, it behaves like that program, so existing tools can
//! start it.
#![forbid(unsafe_code)]

mod capacity;
mod check;
mod cluster;
mod convert;
mod doctor;
mod lock;
mod memory_test;
mod pages;
mod ping;
mod progress;
mod rdb;
mod test_program;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use resp::REDIS_VERSION;

/// Serves all memory outside the pages of the keyspace. docs/ARCHITECTURE.md gives the reason for jemalloc.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The version line under the redis-server names. Tools parse ` v=` and the Redis version.
fn redis_version_line() -> String {
    let build = env!("CARGO_PKG_VERSION");
    format!(
        "Redis server v={REDIS_VERSION} sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=redoubt-{build}"
    )
}

#[derive(Debug, Parser)]
#[command(name = "redoubt", about = "A Redis-protocol in-memory data server", disable_version_flag = true)]
struct Cli {
    /// Print the version.
    #[arg(short = 'v', long)]
    version: bool,
    #[command(subcommand)]
    command: Option<Subcommands>,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Run a server; accepts the arguments of redis-server.
    #[command(disable_help_flag = true)]
    Server {
        /// A configuration file or `-` for standard input, then `--option value ...`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FILE|- --OPTION VALUE")]
        arguments: Vec<String>,
    },
    /// Run a sentinel; accepts the arguments of redis-sentinel.
    #[command(disable_help_flag = true)]
    Sentinel {
        /// A writable configuration file, then `--option value ...`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FILE --OPTION VALUE")]
        arguments: Vec<String>,
    },
    /// Check whether an RDB file can be loaded.
    CheckRdb {
        /// The RDB file.
        file: PathBuf,
    },
    /// List the keys of an RDB file, or report what uses the memory.
    Rdb(rdb::RdbOptions),
    /// Check whether an append-only file can be loaded; truncate an incomplete tail.
    CheckAof {
        /// Truncate the last file after its last complete command.
        #[arg(long)]
        fix: bool,
        /// Truncate everything after this Unix time; needs a file with timestamps.
        #[arg(long, value_name = "SECONDS")]
        truncate_to_timestamp: Option<i64>,
        /// The manifest, or a single file.
        file: PathBuf,
    },
    /// Estimate the memory that a data set needs, or report what uses it.
    #[command(subcommand)]
    Capacity(capacity::CapacityCommand),
    /// Check this machine, a configuration or a cluster for problems, and suggest fixes.
    Doctor(doctor::DoctorOptions),
    /// Show past failovers and slot migrations.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Check whether a server is alive or ready, for container health checks.
    Ping(ping::PingOptions),
    /// Explain each line of a redis.conf or valkey.conf, and write a converted file.
    Convert(convert::ConvertOptions),
    /// Run a command while holding a distributed lock.
    Lock(lock::LockArguments),
    /// Print a shell completion script.
    Completions {
        /// The shell that loads the script.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory.
    #[command(hide = true)]
    ManualPages {
        /// The directory, created if missing.
        folder: PathBuf,
    },
    /// Start temporary servers for tests and inject faults (runs redoubt-test).
    #[command(disable_help_flag = true)]
    Testkit(TestProgramArguments),
    /// Test a client library against failure scenarios (runs redoubt-test).
    #[command(disable_help_flag = true)]
    Judge(TestProgramArguments),
    /// Inject faults into servers under load and check for lost writes (runs redoubt-test).
    #[command(disable_help_flag = true)]
    Chaos(TestProgramArguments),
}

/// Arguments that are passed on to `redoubt-test`.
#[derive(Debug, clap::Args)]
struct TestProgramArguments {
    /// Arguments for redoubt-test; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// The subcommand that replaces the Redis or Valkey program `name`.
fn subcommand_for_program(name: &str) -> Option<&'static str> {
    match name.strip_prefix("redis-").or_else(|| name.strip_prefix("valkey-"))? {
        "check-rdb" => Some("check-rdb"),
        "check-aof" => Some("check-aof"),
        _ => None,
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let called = arguments.next().unwrap_or_default();
    let name = Path::new(&called).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if matches!(name, "redis-sentinel" | "valkey-sentinel") {
        return run_sentinel(&arguments.collect::<Vec<_>>());
    }
    if matches!(name, "redis-server" | "valkey-server") {
        return run_server(&arguments.collect::<Vec<_>>());
    }
    // Servers skip clap, which would keep more than a megabyte of code and tables in memory.
    let run: Option<fn(&[String]) -> ExitCode> =
        match (subcommand_for_program(name), std::env::args().nth(1).as_deref()) {
            (None, Some("server")) => Some(run_server),
            (None, Some("sentinel")) => Some(run_sentinel),
            (None, Some(_) | None) | (Some(_), _) => None,
        };
    if let Some(run) = run {
        return run(&arguments.skip(1).collect::<Vec<_>>());
    }
    let as_subcommand = subcommand_for_program(name).into_iter().map(str::to_owned);
    let cli = ["redoubt".to_owned()].into_iter().chain(as_subcommand).chain(std::env::args().skip(1));
    let cli = match Cli::try_parse_from(cli) {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument) => {
            let said = arguments.collect::<Vec<_>>().join(" ");
            eprintln!(
                "Missing subcommand. To start a server, run 'redoubt server {said}'. For help, run 'redoubt --help'."
            );
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    match cli.command {
        Some(command) => run_subcommand(command),
        None if cli.version => {
            println!("Redoubt {} (compatible with Redis {REDIS_VERSION})", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        None => {
            eprintln!(
                "Missing subcommand. To start a server, run 'redoubt server'. For help, run 'redoubt --help'."
            );
            ExitCode::from(2)
        }
    }
}

fn run_subcommand(command: Subcommands) -> ExitCode {
    match command {
        Subcommands::Server { arguments } => run_server(&arguments),
        Subcommands::Sentinel { arguments } => run_sentinel(&arguments),
        Subcommands::CheckRdb { file } => exit_code_of(check::check_rdb(&file).map(drop)),
        Subcommands::Rdb(options) => exit_code_of(rdb::run_rdb(&options)),
        Subcommands::CheckAof { fix, truncate_to_timestamp: until, file } => exit_code_of(
            check::check_aof_file(&file, check::RepairOptions { truncates_tail: fix, truncate_after: until }),
        ),
        Subcommands::Capacity(question) => exit_code_of(capacity::run_capacity(&question)),
        Subcommands::Doctor(options) => doctor::run_doctor(&options),
        Subcommands::Cluster(question) => exit_code_of(cluster::run_cluster(&question)),
        Subcommands::Ping(options) => ping::run_ping(&options),
        Subcommands::Convert(options) => convert::run_convert(&options),
        Subcommands::Lock(arguments) => lock::run_lock(&arguments),
        Subcommands::Completions { shell } => {
            pages::write_completions(Cli::command(), shell, &mut std::io::stdout());
            ExitCode::SUCCESS
        }
        Subcommands::ManualPages { folder } => {
            exit_code_of(pages::write_manual_pages(Cli::command(), &folder))
        }
        Subcommands::Testkit(told) => test_program::run_test_program("testkit", &told.arguments),
        Subcommands::Judge(told) => test_program::run_test_program("judge", &told.arguments),
        Subcommands::Chaos(told) => test_program::run_test_program("chaos", &told.arguments),
    }
}

/// The text of an error with its causes. The errors of some libraries already contain their cause; it is not repeated.
fn error_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn exit_code_of(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error_text(&error));
            ExitCode::FAILURE
        }
    }
}

/// Runs a sentinel, as `redis-sentinel` and `redis-server --sentinel` do.
fn run_sentinel(arguments: &[String]) -> ExitCode {
    match arguments.first().map(String::as_str) {
        Some("--version" | "-v") => {
            println!("{}", redis_version_line());
            return ExitCode::SUCCESS;
        }
        Some("--help" | "-h") => {
            println!("Usage: redoubt sentinel FILE [--option value ...]");
            println!("FILE is a sentinel.conf. The sentinel rewrites it whenever its state changes.");
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    report_start_error(sentinel_server::serve_sentinel(arguments))
}

fn report_start_error(outcome: Result<(), node::StartError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run_server(arguments: &[String]) -> ExitCode {
    if arguments.iter().any(|argument| argument == "--sentinel") {
        let rest: Vec<String> =
            arguments.iter().filter(|argument| *argument != "--sentinel").cloned().collect();
        return run_sentinel(&rest);
    }
    match arguments.first().map(String::as_str) {
        Some("--version" | "-v") => {
            println!("{}", redis_version_line());
            return ExitCode::SUCCESS;
        }
        Some("--help" | "-h") => {
            println!("Usage: redoubt server [FILE|-] [--option value ...]");
            println!("Options are the parameters of redis.conf: 'redoubt server --port 7000 --save \"\"'.");
            println!(
                "  --check-system              check this machine and exit; 'redoubt doctor' checks more"
            );
            println!("  --test-memory MB [PASSES]   test the memory with write patterns and exit");
            return ExitCode::SUCCESS;
        }
        Some("--check-system") => return doctor::check_system(),
        Some("--test-memory") => return memory_test::run_memory_test(&arguments[1..]),
        _ => {}
    }
    report_start_error(node::run_server(arguments))
}
