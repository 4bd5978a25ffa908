//! Structures that hold the elements of values: what they take, server by server. The models of kinds are made of them.

pub(crate) mod estimated;
pub(crate) mod own;
pub(crate) mod redis;
pub(crate) mod valkey;
