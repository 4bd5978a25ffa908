//! Tests of keys: expiry, blocking commands, transactions, notifications, client-side caching and pub/sub.

mod blocking;
mod expiry;
mod notifications;
mod pubsub;
mod tracking;
mod transactions;
mod valkey_edge_cases;
