//! Tests of client connections: ACLs, TLS, limits, bad input and disconnects.

mod acl;
mod bad_input;
mod client_list;
mod disconnects;
mod fairness;
mod io_threads;
mod sessions;
mod tls;
