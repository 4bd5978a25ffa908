//! Tests of the engine with its commands, told as stories, that concern more than one command.

mod access;
mod batches;
mod callers;
mod debugging;
mod eviction;
mod expiry;
mod full_slots;
mod lazy_free;
mod lookup;
mod migration;
mod monitors;
mod notifications;
mod revocation;
mod tracking;
mod waiting;
