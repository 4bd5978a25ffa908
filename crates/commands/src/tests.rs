//! The engine with its commands, told as stories: what is about more than one of them.

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
