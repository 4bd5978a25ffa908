//! Tests of the engine together with the command table, across command families.

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
