//! Tests of the tools around the server: subcommands, scripts, the book, packages, metrics and the dashboard.
#![forbid(unsafe_code)]

#[cfg(test)]
mod book;
#[cfg(test)]
mod capacity;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod local_cluster;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod packaging;
#[cfg(test)]
mod page;
#[cfg(test)]
mod redis_cli_options;
#[cfg(test)]
mod testkit;
