//! Memory of the structures that hold elements, per server. The models of value types combine them.

pub(crate) mod estimated;
pub(crate) mod own;
pub(crate) mod redis;
pub(crate) mod valkey;
