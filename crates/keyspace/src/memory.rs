//! Memory for pages and index lines.
//!
//! All slots grow in step, so a general-purpose allocator would leave freed blocks half used. Pages and lines
//! therefore come from our own pool: [`pool`] finds space among its free [`runs`] in safe code, and [`block`]
//! turns a pool position into bytes (the crate's only unsafe code).
mod bits;
mod block;
mod pool;
mod runs;

pub use block::with_wide_vectors;
pub(crate) use block::{Block, CacheLinePair, FullChunk, prefetch};
pub use pool::{PoolUsage, pool_usage, pool_used_bytes, prepare_chunk, purge_pool};
pub(crate) use pool::{begin_purge_round, is_moving_lower};
