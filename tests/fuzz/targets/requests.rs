//! The requests of clients.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::requests::run);
