//! Tests of keys: expiry, blocking commands, transactions, notifications, client-side caching and pub/sub.

mod blocking;
mod edges_beside_valkey;
mod expiry;
mod notifications;
mod pubsub;
mod tracking;
mod transactions;
