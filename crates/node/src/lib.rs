//! The shell around the pure crates: sockets, files, timers, threads.
//!
//! [`serve`] brings a server up from its configuration ([`startup`]). Worker threads each run a tokio current-thread
//! runtime ([`workers`]) with their own connections ([`connection`]); what a command needs beyond the engine is in
//! [`commands`], a file for each family. What is on disk is in [`durability`], the log in [`stream`], its followers in
//! [`replication`], the bus in [`cluster`]; [`web`] shows all of it over HTTP; [`sentinel`] is another program. The parts
//! are put together in [`server::Server`]. Rooms use each other downwards only: docs/ARCHITECTURE.md has their order.
#![forbid(unsafe_code)]

mod cluster;
mod commands;
mod connection;
mod durability;
mod housekeeping;
mod migration;
mod replication;
mod sentinel;
mod server;
mod startup;
mod stream;
mod web;
mod workers;

pub use process::Failure;
pub use sentinel::serve_sentinel;
pub use startup::serve;
