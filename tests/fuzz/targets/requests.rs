//! Fuzz target for the request parser.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::requests::fuzz_requests);
