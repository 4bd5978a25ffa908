//! The commands, a file for each family: its rows of the table first, then the handlers.

mod acl;
mod bitmap;
mod cluster;
mod connection;
mod facts;
mod generic;
mod geo;
mod hash;
mod help;
mod hyperloglog;
mod list;
mod memory;
mod pubsub;
mod replication;
mod rows;
mod sampling;
mod scanning;
mod scripting;
pub(crate) mod sentinel;
mod server;
mod set;
mod shell;
mod sort;
mod sorted_set;
mod stream;
mod string;
mod time_arg;
mod transaction;

pub use connection::CLIENT_HELP;
pub use help::write_help;
pub use server::answer_command;

use crate::command::Command;

/// Every family's rows.
pub(crate) const TABLE: &[&[Command]] = &[
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
