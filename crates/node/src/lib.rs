//! The shell around the pure crates: sockets, files, timers, threads, configuration.
//!
//! [`start`] brings a server up from its configuration. Worker threads ([`worker`]) each run a tokio
//! current-thread runtime with their own connections ([`connection`]); what a command needs beyond the
//! engine is in [`commands`], a file for each family. Everything they share is the [`server::Server`].
#![forbid(unsafe_code)]

mod cluster;
mod commands;
pub mod config;
mod connection;
mod cron;
mod daemon;
mod failover;
mod listener;
mod log;
mod memory;
mod oom;
mod output;
mod pace;
mod rates;
mod replication;
mod saving;
mod sentinel;
mod server;
mod settings;
mod shutdown;
mod startup;
mod time;
mod totals;
mod worker;

pub use sentinel::serve_sentinel;
pub use startup::{Failure, serve};
