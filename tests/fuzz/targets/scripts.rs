//! Fuzz target for scripts.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::scripts::fuzz_scripts);
