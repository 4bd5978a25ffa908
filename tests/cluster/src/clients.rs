//! Tests with clients of a cluster: the `redis` crate, redis-cli and blocking commands.

mod blocking_clients;
mod redis_cli;
mod redis_crate;
