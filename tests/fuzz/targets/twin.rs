//! Fuzz target that compares the keyspace with its naive twin.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::twin::run);
