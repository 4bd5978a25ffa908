//! Connections: access control, TLS, limits, bad input, disconnects.

mod acl;
mod bad_input;
mod client_list;
mod disconnects;
mod fairness;
mod io_threads;
mod sessions;
mod tls;
