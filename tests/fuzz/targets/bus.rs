//! Packets of the bus.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::bus::run);
