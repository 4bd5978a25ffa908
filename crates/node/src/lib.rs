//! The shell of a node around the pure crates: connections, roles, the bus, moves of slots, and what puts them together.
//! The process, its sockets and its files are crates of their own below it.
//!
//! [`serve`] brings a server up from its configuration ([`startup`]). Worker threads each run a tokio current-thread
//! runtime ([`workers`]) with their own connections ([`connection`]); what a command needs beyond the engine is in
//! [`commands`], a file for each family. What is on disk is in [`durability`], and so is the log
//! ([`durability::stream`]); its followers are in [`replication`], the bus is in [`cluster`]; [`web`] shows all of it over
//! HTTP. The parts are put together in [`server::Server`]. Rooms use each other downwards only: docs/ARCHITECTURE.md has
//! their order.
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
pub use startup::serve;
