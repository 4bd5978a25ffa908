//! A model of synchronous replication, checked exhaustively within small bounds.
//!
//! Three copies of a shard and the configuration group, which is one linearizable register here. Messages may be lost,
//! doubled and reordered; processes crash and restart, with or without their memory; each clock may be fast or slow.
//! [`omission::Omission`] leaves one rule out, and the checker then has to find a counterexample.
//!
//! The network is the set of all messages ever sent. A lost message is one that nobody ever receives, and a doubled or
//! late one is received again at any time, so no action is needed for either.
//!
//! Invariant: nothing here runs in the server, and nothing is shared with it. A rule is tried here before it is built.
#![forbid(unsafe_code)]
#![cfg(test)]

mod copy;
mod group;
mod healing;
mod log;
mod message;
mod model;
mod omission;
mod rules;

/// The number of copies of the shard.
const COPIES: usize = 3;
