//! The common parts of the tests of locks: a counter in a file that nothing protects but the lock, and fencing tokens
//! that show when two held it at once.
#![forbid(unsafe_code)]

#[allow(clippy::missing_errors_doc)]
#[path = "../../../crates/lock/examples/resource.rs"]
mod resource;

pub use resource::{Refused, Resource};
