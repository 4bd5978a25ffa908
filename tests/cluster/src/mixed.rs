//! Clusters of Redoubt with Redis and Valkey nodes.

mod slot_moves;
mod with_redis;
