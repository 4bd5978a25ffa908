//! Tests of clusters in which Redoubt nodes run together with Redis or Valkey nodes.

mod slot_moves;
mod with_redis;
