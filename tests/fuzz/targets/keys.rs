//! Fuzz target for commands with keys at variable positions.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::keys::fuzz_keys);
