//! Scripts.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::scripts::run);
