//! The common parts of the tests of client libraries: servers in each mode, the features, how they are run, and the
//! cells of the table in docs/clients.md.
//!
//! A library's test is one function that goes through a feature ([`Feature`]) and stops in its middle
//! ([`Attempt::middle`]). It runs twice. At first the features run one after another and nothing happens in the middle.
//! Then those that are to meet a death run at the same time; when each is in its middle, the master of their keys ([`key`]) is killed, and
//! they go on ([`Attempt::retried`]).
#![forbid(unsafe_code)]

pub mod adapter;
mod attempt;
mod deployment;
mod feature;
mod middle;
mod run;
mod table;

pub use attempt::{Attempt, Outcome, PAUSE, TIMEOUT, check, key};
pub use deployment::{Addresses, Deployment, Mode};
pub use feature::Feature;
pub use run::{tell_all, tell_of_tls_with_sentinels};
