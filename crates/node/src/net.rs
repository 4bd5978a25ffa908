//! The network: what carries connections, how others are reached, the sockets that listen, and what every thread that
//! runs commands for a connection has.

pub(crate) mod crew;
pub(crate) mod dialer;
pub(crate) mod door;
pub(crate) mod handed_over;
pub(crate) mod link_pool;
pub(crate) mod listener;
pub(crate) mod output;
pub(crate) mod pauses;
pub(crate) mod scratch;
pub(crate) mod tls;
pub(crate) mod traffic;
pub(crate) mod transport;
pub(crate) mod wake_batches;
