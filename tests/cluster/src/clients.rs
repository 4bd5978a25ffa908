//! Clients of a cluster: the `redis` crate, redis-cli, blocking commands.

mod blocking_clients;
mod redis_cli;
mod redis_crate;
