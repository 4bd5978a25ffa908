//! The common parts of the tests of sentinels, beyond the harness: many masters at once, and what is compared with
//! Valkey's sentinels.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod farm;
pub mod questions;
pub mod stories;
pub mod story;
