//! Tests of memory: maxmemory, eviction, client buffers, and memory returned to the system.

mod client_memory;
mod eviction;
mod eviction_quality;
mod memory_stats;
mod returned_memory;
