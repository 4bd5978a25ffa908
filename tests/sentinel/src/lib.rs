//! The common parts of the tests of sentinels, beyond the harness: many masters at once.
#![forbid(unsafe_code)]

pub mod farm;
