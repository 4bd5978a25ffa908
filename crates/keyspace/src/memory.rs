//! The memory that pages and index lines lie in.
//!
//! All slots grow in step, so whatever a general allocator gets back while they grow stays behind half
//! used. Therefore they come from a pool of our own ([`pool`], which finds room among its free [`runs`]; both in
//! safe code), and [`block`] turns a place in the pool into bytes (the crate's only unsafe code).
mod bits;
mod block;
mod pool;
mod runs;

pub use block::in_wide_vectors;
pub(crate) use block::{Block, FullChunk, Line, prefetch};
pub use pool::{PoolUse, keep_chunk_ready, pool_taken, pool_use, purge_pool};
pub(crate) use pool::{begin_round, is_sinking};
