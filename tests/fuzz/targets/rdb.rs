//! Fuzz target for RDB files.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::rdb::fuzz_rdb);
