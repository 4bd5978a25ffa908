//! The keyspace beside its twin.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::twin::run);
