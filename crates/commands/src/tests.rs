//! Tests of the engine with its commands, told as stories, that concern more than one command.

mod access;
mod batches;
mod bin;
mod callers;
mod debugging;
mod eviction;
mod expiry;
mod full_slots;
mod lookup;
mod migration;
mod monitors;
mod notifications;
mod revocation;
mod waiting;
