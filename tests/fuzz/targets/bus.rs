//! Fuzz target for packets of the cluster bus.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::bus::fuzz_bus);
