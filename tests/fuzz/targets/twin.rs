//! Fuzz target that compares the keyspace with its reference model.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::twin::run);
