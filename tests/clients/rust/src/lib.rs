//! Common code of the client library tests: servers in each mode, the features, the test runner, and the cells of the
//! table in docs/clients.md.
//!
//! The test of a library is one function that exercises a feature ([`Feature`]) and pauses in its middle
//! ([`FeatureAttempt::wait_for_kill`]). It runs twice: first the features run one after another without a failure. Then the features
//! for which [`Feature::runs_with_killed_master`] is true run concurrently; when all of them have paused, the master of their keys
//! ([`test_key`]) is killed, and they continue ([`FeatureAttempt::retry_after_kill`]).
#![forbid(unsafe_code)]

pub mod adapter;
mod attempt;
mod deployment;
mod feature;
mod kill_barrier;
mod run;
mod table;

pub use attempt::{FeatureAttempt, FeatureResult, OPERATION_TIMEOUT, RETRY_DELAY, check_condition, test_key};
pub use deployment::{ClientTestServers, DeploymentMode, ServerAddresses};
pub use feature::Feature;
pub use run::{test_all_features, test_tls_with_sentinels};
