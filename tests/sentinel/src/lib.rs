//! Shared code of the sentinel tests: simulated servers, and scenarios compared with Valkey's sentinel.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod fake_servers;
pub mod queries;
pub mod scenario;
pub mod scenarios;
