//! Shared code of the sentinel tests: simulated servers, and scenarios compared with Valkey's sentinel.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod farm;
pub mod questions;
pub mod stories;
pub mod story;
