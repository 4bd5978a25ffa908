//! Clients' connections: the sockets that listen, the threads that serve, and one file for what a connection does.

pub(crate) mod connection;
pub(crate) mod listener;
pub(crate) mod output;
pub(crate) mod worker;
