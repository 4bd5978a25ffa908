//! What clients send.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::requests::run);
