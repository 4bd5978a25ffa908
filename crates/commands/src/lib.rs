//! The commands. Each family has a file with its rows of the command table first and the handlers below.
//!
//! The engine executes commands without knowing any of them: it receives a [`Registry`], which [`server_registry`] and
//! [`sentinel_registry`] build from the rows. A handler only uses a [`Context`](engine::Context): it reads the
//! arguments, finds and changes keys, reports the modifications, and writes one reply, or returns an error and leaves
//! the data unchanged.
#![forbid(unsafe_code)]

mod acl;
mod bitmap;
mod cluster;
mod connection;
mod digest;
mod estimates;
mod facts;
mod generic;
mod geo;
mod hash;
mod help;
mod hyperloglog;
mod kinds;
mod list;
mod long_double;
mod memory;
mod pubsub;
mod replication;
mod rows;
mod sampling;
mod scanning;
mod scripting;
mod sentinel;
mod server;
mod set;
mod shell;
mod sketch;
mod sort;
mod sorted_set;
mod stream;
mod string;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod time_arg;
mod transaction;

pub use server::execute_command;

use std::sync::LazyLock;

use engine::{Command, Registry};

static SERVER_REGISTRY: LazyLock<Registry> =
    LazyLock::new(|| Registry::for_server(COMMAND_TABLE.iter().copied().flatten()));
static SENTINEL_REGISTRY: LazyLock<Registry> =
    LazyLock::new(|| Registry::for_sentinel(sentinel::sentinel_commands()));

/// The command table of a server.
#[must_use]
pub fn server_registry() -> &'static Registry {
    &SERVER_REGISTRY
}

/// The command table of a sentinel.
#[must_use]
pub fn sentinel_registry() -> &'static Registry {
    &SENTINEL_REGISTRY
}

/// The command table rows of all command families.
const COMMAND_TABLE: &[&[Command]] = &[
    acl::COMMANDS,
    bitmap::COMMANDS,
    cluster::COMMANDS,
    connection::COMMANDS,
    generic::COMMANDS,
    memory::COMMANDS,
    list::COMMANDS,
    sorted_set::COMMANDS,
    geo::COMMANDS,
    hash::COMMANDS,
    hyperloglog::COMMANDS,
    pubsub::COMMANDS,
    replication::COMMANDS,
    scripting::COMMANDS,
    server::COMMANDS,
    server::DEBUG,
    server::HOTKEYS,
    server::LATENCY,
    server::LOGS,
    server::MODULE,
    set::COMMANDS,
    shell::COMMANDS,
    sort::COMMANDS,
    stream::COMMANDS,
    string::COMMANDS,
    transaction::COMMANDS,
];
