//! Memory of the structures that store elements, one module per server. The models of the value types combine them.

pub(crate) mod estimated;
pub(crate) mod own;
pub(crate) mod redis;
pub(crate) mod valkey;
