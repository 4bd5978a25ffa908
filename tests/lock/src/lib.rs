//! Helpers of the lock tests: a counter in a file that only the lock protects, and fencing tokens that reveal two
//! concurrent holders.
#![forbid(unsafe_code)]

#[allow(clippy::missing_errors_doc)]
#[path = "../../../crates/lock/examples/resource.rs"]
mod resource;

pub use resource::{FencedFile, StaleToken};
