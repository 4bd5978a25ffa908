//! Connections: what carries them, how others are reached, the sockets that listen, the threads that serve clients, and
//! one file for what a client's connection does.

pub(crate) mod connection;
pub(crate) mod connection_slot;
pub(crate) mod dialer;
pub(crate) mod door;
pub(crate) mod link_pool;
pub(crate) mod listener;
pub(crate) mod output;
pub(crate) mod pauses;
pub(crate) mod tls;
pub(crate) mod traffic;
pub(crate) mod transport;
pub(crate) mod wake_batches;
pub(crate) mod worker;
