//! Tests that run several state machines in a simulated network with a virtual clock.

mod commands;
mod elections;
mod failover;
mod membership;
mod net;
mod nodes_conf;
mod replica_migration;
mod self_fail;
mod single;
mod slot_moves;
mod stale;
mod strangers;
