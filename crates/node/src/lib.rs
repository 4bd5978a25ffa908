//! The node: connections, roles, the cluster bus, slot migration, and the assembly of all pure crates into a server.
//! The crates below handle the process, sockets and files.
//!
//! [`run_server`] starts a server from its configuration ([`startup`]). Worker threads each run a tokio current-thread
//! runtime ([`workers`]) with their own connections ([`connection`]). [`commands`] contains the commands that need more
//! than the engine, one file per family. Data on disk and the replication log are in [`durability`]
//! ([`durability::stream`]), replication is in [`replication`], the cluster bus in [`cluster`]. [`web`] serves metrics
//! and the status page over HTTP. [`server::Server`] holds all parts. Modules only use modules further down in the
//! order that docs/ARCHITECTURE.md lists.
#![forbid(unsafe_code)]

mod cluster;
mod commands;
mod connection;
mod housekeeping;
mod migration;
mod replication;
mod server;
mod startup;
mod web;
mod workers;

pub use process::StartError;
pub use startup::run_server;
