//! Fuzz target for append-only files.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::aof::fuzz_aof);
