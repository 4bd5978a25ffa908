//! The network: what carries connections, how others are reached, the sockets that listen, and what every thread that
//! runs commands for a connection has.
#![forbid(unsafe_code)]

pub mod admission;
pub mod crew;
pub mod dialer;
pub mod door;
pub mod handed_over;
pub mod link_pool;
pub mod listener;
pub mod output;
pub mod pauses;
pub mod scratch;
pub mod tls;
pub mod traffic;
pub mod transport;
pub mod wake_batches;
