//! Networking: sockets, TLS, listeners, outgoing connections and the worker pool that serves clients.
#![forbid(unsafe_code)]

pub mod admission;
pub mod context;
pub mod detached_connection;
pub mod dialer;
pub mod link_pool;
pub mod listener;
pub mod output;
pub mod pauses;
pub mod scratch;
pub mod tls;
pub mod traffic;
pub mod transport;
pub mod wake_batches;
pub mod worker_pool;
