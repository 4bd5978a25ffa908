//! A model of synchronous replication, checked exhaustively within small bounds.
//!
//! The model has three nodes of a shard and the configuration group, which is reduced to one linearizable register.
//! Messages may be lost, duplicated and reordered; processes crash and restart, with or without their memory; each
//! clock may be fast or slow. [`omission::Omission`] leaves one rule out, and the checker then has to find a
//! counterexample.
//!
//! The network is the set of all messages ever sent. A lost message is one that nobody ever receives, and a duplicated
//! or late message is received again at any time, so neither needs an action of its own.
//!
//! Invariant: the model does not run in the server and shares no code with it. A rule is tried in the model before it
//! is built.
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

/// The number of nodes of the shard.
const NODE_COUNT: usize = 3;
