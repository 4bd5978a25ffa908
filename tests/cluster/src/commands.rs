//! Tests of CLUSTER subcommands and cluster parameters.

mod cluster_command;
mod parameters;
mod resets;
