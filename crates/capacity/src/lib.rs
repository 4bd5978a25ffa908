//! Predicts how much memory a data set takes in this server, Redis 7, Redis 8 and Valkey.
//!
//! The data set is described by a list of [`KeyGroup`]s, groups of similar keys. [`own`] measures this server by
//! filling a real table with sample keys; [`redis`] and [`valkey`] add up the known structures of those servers. All
//! return a [`MemoryBreakdown`]. [`plan`] derives the number of nodes, and [`estimate`] computes a single key where
//! filling a table would be too slow. There is no I/O and no clock, so results are reproducible.
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

pub use data::{KeyGroup, MemoryBreakdown};
