//! What the tests of sentinels share beyond the harness: many masters at once.
#![forbid(unsafe_code)]

pub mod farm;
