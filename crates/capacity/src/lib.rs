//! How much memory data will take: in this server, and in Redis 7, Redis 8 and Valkey.
//!
//! A question is a [`Data`]: so many keys of one make. [`own`] says what a key takes here, by filling a table of the
//! keyspace with a few of them; [`redis`] and [`valkey`] add up what is known of these servers' structures. Each
//! answers with [`Parts`]. [`plan`] makes nodes of them, and [`estimate`] reckons a single key's bytes, where a table
//! would be too slow. No I/O, no clock: the same question has the same answer.
#![forbid(unsafe_code)]

pub mod allocator;
pub mod data;
pub mod estimate;
mod kinds;
pub mod own;
pub mod plan;
pub mod redis;
mod structures;
pub mod valkey;

pub use data::{Data, Parts};
