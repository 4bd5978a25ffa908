//! The keys of commands.
#![cfg_attr(fuzzing, no_main)]

fuzz::target!(fuzz::keys::run);
