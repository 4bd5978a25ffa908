//! Memory for pages and index lines.
//!
//! The tables of all slots grow at the same pace, so a general-purpose allocator would leave freed blocks half used.
//! Pages and index lines therefore have their own pool: [`pool`] finds space among its free [`runs`] in safe code, and
//! [`block`] converts a pool position into bytes (the crate's only unsafe code).
mod bits;
mod block;
mod pool;
mod runs;

pub use block::with_wide_vectors;
pub(crate) use block::{Block, CacheLinePair, ChunkArray, prefetch};
pub use pool::{PoolUsage, pool_usage, pool_used_bytes, prepare_chunk, purge_pool};
pub(crate) use pool::{begin_purge_round, is_moving_to_lower_addresses};
