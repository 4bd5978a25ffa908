//! The `redoubt` program.
//!
//! Called by another name (`redis-server`, `valkey-server`) it behaves as that program does: tools that
//! start a server by such a name need not know.
#![forbid(unsafe_code)]

mod capacity;
mod check;
mod cluster;
mod companion;
mod convert;
mod doctor;
mod lock;
mod memory_test;
mod pages;
mod ping;
mod progress;
mod rdb;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use resp::REDIS_VERSION;

/// The general allocator, for what does not lie in the keyspace's own pages. Chosen by measurement; see
/// docs/ARCHITECTURE.md.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The version line under the redis-server names: tools look for ` v=` and the Redis version whose behaviour this is.
fn version_of_redis() -> String {
    let build = env!("CARGO_PKG_VERSION");
    format!(
        "Redis server v={REDIS_VERSION} sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=redoubt-{build}"
    )
}

#[derive(Debug, Parser)]
#[command(name = "redoubt", about = "A Redis-protocol in-memory data server", disable_version_flag = true)]
struct Cli {
    /// Say which version this is.
    #[arg(short = 'v', long)]
    version: bool,
    #[command(subcommand)]
    command: Option<Subcommands>,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Run a server. Takes what redis-server takes.
    #[command(disable_help_flag = true)]
    Server {
        /// A configuration file or `-` for standard input, then `--option value ...`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FILE|- --OPTION VALUE")]
        arguments: Vec<String>,
    },
    /// Watch masters and replace them when they fail. Takes what redis-sentinel takes.
    #[command(disable_help_flag = true)]
    Sentinel {
        /// A configuration file that can be written to, then `--option value ...`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FILE --OPTION VALUE")]
        arguments: Vec<String>,
    },
    /// Say whether an RDB file can be loaded.
    CheckRdb {
        /// The file.
        file: PathBuf,
    },
    /// Say what is in an RDB file: its keys, or what takes how much memory.
    Rdb(rdb::Options),
    /// Say whether an append-only file can be loaded; cut off a torn end.
    CheckAof {
        /// Cut off what is not whole at the end of the last file.
        #[arg(long)]
        fix: bool,
        /// Cut off what was done after these Unix seconds, where the file says when.
        #[arg(long, value_name = "SECONDS")]
        truncate_to_timestamp: Option<i64>,
        /// The manifest, or one file.
        file: PathBuf,
    },
    /// Say how much memory data will take, or what takes it.
    #[command(subcommand)]
    Capacity(capacity::Question),
    /// Examine this machine, a configuration and a cluster; say how to mend what is wrong.
    Doctor(doctor::Options),
    /// Ask a cluster, or sentinels, about what happened.
    #[command(subcommand)]
    Cluster(cluster::Question),
    /// Say by the exit status whether a server lives, or is ready: for containers.
    Ping(ping::Options),
    /// Say what each line of a redis.conf or valkey.conf means here, and write it anew.
    Convert(convert::Options),
    /// Run a command while holding a lock.
    Lock(lock::Arguments),
    /// Print what completes words of this program in a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder.
    #[command(hide = true)]
    ManualPages {
        /// The folder, which is made if it is not there.
        folder: PathBuf,
    },
    /// Start throw-away servers for a test, and break them on request (by redoubt-test).
    #[command(disable_help_flag = true)]
    Testkit(Companion),
    /// Say how good a client library is, by scenarios (by redoubt-test).
    #[command(disable_help_flag = true)]
    Judge(Companion),
    /// Break servers while clients write, and say what became of their data (by redoubt-test).
    #[command(disable_help_flag = true)]
    Chaos(Companion),
}

/// The arguments that are passed on to `redoubt-test`.
#[derive(Debug, clap::Args)]
struct Companion {
    /// Its arguments; --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Programs of Redis and Valkey that a subcommand stands for.
fn subcommand_of(name: &str) -> Option<&'static str> {
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
        return sentinel(&arguments.collect::<Vec<_>>());
    }
    if matches!(name, "redis-server" | "valkey-server") {
        return server(&arguments.collect::<Vec<_>>());
    }
    // A process that stays for long has no use for what reads the tools' words: more than a megabyte of code and tables.
    let run: Option<fn(&[String]) -> ExitCode> =
        match (subcommand_of(name), std::env::args().nth(1).as_deref()) {
            (None, Some("server")) => Some(server),
            (None, Some("sentinel")) => Some(sentinel),
            (None, Some(_) | None) | (Some(_), _) => None,
        };
    if let Some(run) = run {
        return run(&arguments.skip(1).collect::<Vec<_>>());
    }
    let as_subcommand = subcommand_of(name).into_iter().map(str::to_owned);
    let cli = ["redoubt".to_owned()].into_iter().chain(as_subcommand).chain(std::env::args().skip(1));
    let cli = match Cli::try_parse_from(cli) {
        Ok(cli) => cli,
        Err(error) if matches!(error.kind(), ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument) => {
            let said = arguments.collect::<Vec<_>>().join(" ");
            eprintln!(
                "What to do is missing. To start a server: 'redoubt server {said}'. 'redoubt --help' tells more."
            );
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    match cli.command {
        Some(command) => execute(command),
        None if cli.version => {
            println!("Redoubt {} (speaks as Redis {REDIS_VERSION})", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("Say what to do: 'redoubt server' starts a server, 'redoubt --help' tells more.");
            ExitCode::from(2)
        }
    }
}

fn execute(command: Subcommands) -> ExitCode {
    match command {
        Subcommands::Server { arguments } => server(&arguments),
        Subcommands::Sentinel { arguments } => sentinel(&arguments),
        Subcommands::CheckRdb { file } => finish(check::rdb(&file).map(drop)),
        Subcommands::Rdb(options) => finish(rdb::run(&options)),
        Subcommands::CheckAof { fix, truncate_to_timestamp: until, file } => {
            finish(check::aof(&file, check::Repair { fix, until }))
        }
        Subcommands::Capacity(question) => finish(capacity::run(&question)),
        Subcommands::Doctor(options) => doctor::run(&options),
        Subcommands::Cluster(question) => finish(cluster::run(&question)),
        Subcommands::Ping(options) => ping::run(&options),
        Subcommands::Convert(options) => convert::run(&options),
        Subcommands::Lock(arguments) => lock::run(&arguments),
        Subcommands::Completions { shell } => {
            pages::completions(Cli::command(), shell, &mut std::io::stdout());
            ExitCode::SUCCESS
        }
        Subcommands::ManualPages { folder } => finish(pages::manual(Cli::command(), &folder)),
        Subcommands::Testkit(told) => companion::run("testkit", &told.arguments),
        Subcommands::Judge(told) => companion::run("judge", &told.arguments),
        Subcommands::Chaos(told) => companion::run("chaos", &told.arguments),
    }
}

/// The text of an error with its causes. Some libraries' errors repeat their cause in their own text, so a cause that was
/// just said is left out.
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

fn finish(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error_text(&error));
            ExitCode::FAILURE
        }
    }
}

/// Runs a sentinel, as `redis-sentinel` and `redis-server --sentinel` do.
fn sentinel(arguments: &[String]) -> ExitCode {
    match arguments.first().map(String::as_str) {
        Some("--version" | "-v") => {
            println!("{}", version_of_redis());
            return ExitCode::SUCCESS;
        }
        Some("--help" | "-h") => {
            println!("Usage: redoubt sentinel FILE [--option value ...]");
            println!("FILE is a sentinel.conf; it is rewritten as what is known changes.");
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    report(sentinel_server::serve_sentinel(arguments))
}

fn report(outcome: Result<(), node::Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn server(arguments: &[String]) -> ExitCode {
    if arguments.iter().any(|argument| argument == "--sentinel") {
        let rest: Vec<String> =
            arguments.iter().filter(|argument| *argument != "--sentinel").cloned().collect();
        return sentinel(&rest);
    }
    match arguments.first().map(String::as_str) {
        Some("--version" | "-v") => {
            println!("{}", version_of_redis());
            return ExitCode::SUCCESS;
        }
        Some("--help" | "-h") => {
            println!("Usage: redoubt server [FILE|-] [--option value ...]");
            println!("Options are the lines of a redis.conf: 'redoubt server --port 7000 --save \"\"'.");
            println!(
                "  --check-system              examine this machine and exit; 'redoubt doctor' looks at more"
            );
            println!("  --test-memory MB [PASSES]   write patterns to memory, read them back and exit");
            return ExitCode::SUCCESS;
        }
        Some("--check-system") => return doctor::check_system(),
        Some("--test-memory") => return memory_test::run(&arguments[1..]),
        _ => {}
    }
    report(node::serve(arguments))
}
