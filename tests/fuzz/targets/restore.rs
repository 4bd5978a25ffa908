//! Fuzz target for payloads of RESTORE.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::restore::fuzz_restore);
